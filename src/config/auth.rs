//! Who may use the router (`auth`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::name::plain_name;
use super::reader::{Field, Section, not_one_of};
use super::secret::KeyDigest;
use crate::units::Usd;

/// `auth`: the API keys of clients.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AuthConfig {
    /// `keys`; names and keys unique; default none, which leaves the router open.
    pub keys: Vec<ApiKeyConfig>,
    /// `allow_open`: consent to listen beyond loopback without keys; default false.
    pub allow_open: bool,
}

/// `auth.keys[]`: one client.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKeyConfig {
    /// `name` (required): shown in logs in place of the key.
    pub name: Arc<str>,
    /// SHA-256 of the key: `sha256`, or that of the variable named by `key_env` (one of both is required).
    pub digest: KeyDigest,
    /// `models`: public and virtual models the key may ask for; default `None` = all.
    pub models: Option<BTreeSet<Arc<str>>>,
    /// `allow_weights`: whether the client may set weights by header; default false.
    pub allow_weights: bool,
    /// `requests_per_minute`, from 1; default `None` = no limit.
    pub requests_per_minute: Option<u32>,
    /// `max_concurrency`: requests in progress at once, from 1; default `None` = no limit.
    pub max_concurrency: Option<u32>,
    /// `usd_per_day`: spending limit of a day in UTC, 0 to 1000000; default `None` = no limit.
    pub per_day: Option<Usd>,
}

/// `admin_auth`: the key of the admin API, by `key_env` or `sha256`; default none, with which it answers on loopback only.
///
/// `None` with a fault noted where it is there and cannot be used.
pub(super) fn read_admin_auth(s: &mut Section<'_>) -> Option<KeyDigest> {
    let field = s.get("admin_auth")?;
    field.private().section(|s| read_key_digest(s, ALLOWED_ADMIN_KEY)).flatten()
}

/// What `admin_auth` may be.
const ALLOWED_ADMIN_KEY: &str = "{key_env: VARIABLE} or {sha256: 64 hex digits}";

/// What one entry of `auth.keys` may be.
const ALLOWED_KEY: &str = "{name: NAME, key_env: VARIABLE} or {name: NAME, sha256: 64 hex digits}";

impl AuthConfig {
    /// Reads `auth`. `known_models` are the names keys may be limited to; `None` where they are not all known.
    /// The second value says whether keys stand in the file, usable or not.
    pub(super) fn read(s: &mut Section<'_>, known_models: Option<&BTreeSet<Arc<str>>>) -> (Self, bool) {
        let mut keys: Vec<ApiKeyConfig> = Vec::new();
        let items = s.get("keys").map(|field| field.items("[] or a list of keys")).unwrap_or_default();
        let keys_given = !items.is_empty();
        for item in items {
            // Whatever stands here may be a key in clear.
            let key = item.private().section(|s| {
                let key = read_key(s, known_models)?;
                if keys.iter().any(|other| other.name == key.name) {
                    s.fault(
                        "name",
                        format!("another key is called `{}`", key.name),
                        "a name of its own for each key",
                    );
                }
                if let Some(other) = keys.iter().find(|other| other.digest == key.digest) {
                    let problem = format!("the same key as `{}`", other.name);
                    s.fault(
                        if s.has("sha256") { "sha256" } else { "key_env" },
                        problem,
                        "a key of its own for each name",
                    );
                }
                Some(key)
            });
            keys.extend(key.flatten());
        }
        (Self { keys, allow_open: s.flag("allow_open", false) }, keys_given)
    }

    /// Notes a fault where anyone on the network could use the router and nobody said that this is meant.
    pub(super) fn check_open(&self, root: &Section<'_>, listen: SocketAddr, keys_given: bool) {
        if !listen.ip().is_loopback() && !keys_given && !self.allow_open {
            let problem = "reachable beyond this machine without API keys";
            let mend = "a loopback address, or `auth.keys`, or `auth.allow_open: true` if anyone may use it";
            root.fault("listen", problem, mend);
        }
    }
}

fn read_key(s: &mut Section<'_>, known_models: Option<&BTreeSet<Arc<str>>>) -> Option<ApiKeyConfig> {
    let name = s.require("name", "a name for logs").and_then(|field| plain_name(&field));
    let digest = read_key_digest(s, ALLOWED_KEY);
    let models = s.get("models").map(|field| read_models(&field, known_models));
    let allow_weights = s.flag("allow_weights", false);
    let requests_per_minute = s.get("requests_per_minute").and_then(|field| field.count(1..=1_000_000_000));
    let max_concurrency = s.get("max_concurrency").and_then(|field| field.count(1..=1_000_000));
    let per_day = s.get("usd_per_day").and_then(|field| field.float(&(0.0..=1e6), "")).map(Usd);
    let (name, digest) = (name?, digest?);
    Some(ApiKeyConfig { name, digest, models, allow_weights, requests_per_minute, max_concurrency, per_day })
}

/// The digest of a key that is given by `key_env` or by `sha256`.
fn read_key_digest(s: &mut Section<'_>, allowed: &str) -> Option<KeyDigest> {
    let from_env = s.get("key_env").map(|field| field.env().map(|key| KeyDigest::of(&key)));
    let from_hex = s.get("sha256").map(|field| read_digest(&field));
    match (from_env, from_hex) {
        (Some(digest), None) | (None, Some(digest)) => digest,
        (None, None) => {
            s.fault("key_env", "required and missing", allowed);
            None
        }
        (Some(_), Some(_)) => {
            s.fault("sha256", "given beside `key_env`", allowed);
            None
        }
    }
}

fn read_digest(field: &Field<'_>) -> Option<KeyDigest> {
    const ALLOWED: &str = "the SHA-256 of the key as 64 hex digits";
    let digest = KeyDigest::from_hex(field.text(ALLOWED)?);
    if digest.is_none() {
        field.fault("not a SHA-256", ALLOWED);
    }
    digest
}

fn read_models(field: &Field<'_>, known: Option<&BTreeSet<Arc<str>>>) -> BTreeSet<Arc<str>> {
    let names = known.map(|known| known.iter().map(|name| &**name).collect::<Vec<_>>());
    let allowed = names.as_ref().map_or_else(|| "model names".into(), |names| names.join(", "));
    let mut models = BTreeSet::new();
    for item in field.filled_list(&allowed) {
        let Some(text) = item.text(&allowed) else { continue };
        if let Some(names) = names.as_ref().filter(|names| !names.contains(&text)) {
            item.fault(not_one_of("model", text, names.iter().copied()), &allowed);
        }
        models.insert(Arc::from(text));
    }
    models
}
