//! The configuration file: YAML in, a [`Config`] that is valid by construction out.
//!
//! Nothing is checked after parsing: each section is read once into types that cannot hold a wrong
//! value, and everything wrong with a file is reported together ([`Fault`]). Reading order of the code:
//! `tree` (bounded YAML), `reader` (typed cursor that collects faults), then a file per section.
//!
//! Required are `listen`, `nodes`, a node's `endpoints`, an endpoint's `url`, `kind` and `models`, and a
//! model's `name`. [`reference()`] (docs/CONFIGURATION.md) has every key, made from what the reader asks for (`outline`).

mod address;
mod auth;
mod fault;
mod fleet;
mod limits;
mod model;
mod name;
mod nearest;
mod node;
mod outline;
mod reader;
mod reference;
mod report;
mod routing;
mod scenario;
mod secret;
mod tls;
mod traces;
mod tree;
mod virtual_model;

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

pub use address::BaseUrl;
pub use auth::{ApiKeyConfig, AuthConfig};
pub use fault::{ConfigError, Fault};
pub use fleet::{EndpointConfig, FleetConfig};
pub use limits::{DecisionLogConfig, Limits, ResponseModel, Timeouts};
pub use node::{NetworkMeasure, NodeConfig};
pub use reference::reference;
pub use routing::{EmbedderConfig, QualityConfig, RoutingConfig, SwitchbackConfig};
pub use scenario::{Scenario, ShippedTrace, UnirouteErrors};
pub use secret::{KeyDigest, Secret};
pub use tls::TlsConfig;
pub use traces::TracingConfig;
pub use tree::MAX_FILE_BYTES;
pub use virtual_model::VirtualModel;

use self::reader::{Field, Section};
use self::report::Report;
use crate::planning::params::{WindowClose, WindowParams};
use crate::profiler::node::{BreakerParams, CoolingParams};
use crate::telemetry::json_log::JsonLogParams;

pub use crate::profiler::power::{PowerSource, ScrapedMetric};

/// A whole configuration. One that exists is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `listen` (required): address of the OpenAI-compatible API.
    pub listen: SocketAddr,
    /// `admin_listen`: address of metrics, admin API and status page; default 127.0.0.1:9090.
    pub admin_listen: SocketAddr,
    /// `tls`: certificate and key of `listen`; default none, which leaves it in clear.
    pub tls: Option<TlsConfig>,
    /// `auth`: API keys of clients.
    pub auth: AuthConfig,
    /// `admin_auth`: the key of the admin API; default none.
    pub admin_key: Option<KeyDigest>,
    /// `limits` of requests and queue.
    pub limits: Limits,
    /// `timeouts` of an attempt at an endpoint.
    pub timeouts: Timeouts,
    /// `breaker`: `failures` in a row that open an endpoint's circuit, 1 to 1000 (default 5); `open_ms` it
    /// stays open at first (5000), doubled with every trial that fails up to `open_max_ms` (60000).
    pub breaker: BreakerParams,
    /// `cooling`: `default_ms` an endpoint is left alone after a 429 or 503 that names no time (default
    /// 1000), and `max_ms` at most where it does (120000).
    pub cooling: CoolingParams,
    /// `decision_log`; default none.
    pub decision_log: Option<DecisionLogConfig>,
    /// `access_log`; default none.
    pub access_log: Option<JsonLogParams>,
    /// `tracing`: traces of requests; default none.
    pub tracing: Option<TracingConfig>,
    /// `response_model`; default `resolved`.
    pub response_model: ResponseModel,
    /// `window`: how requests are gathered.
    pub window: WindowParams,
    /// `routing`: how they are assigned.
    pub routing: RoutingConfig,
    /// `switchback`: policies that take turns in place of `routing.policy`; default none.
    pub switchback: Option<SwitchbackConfig>,
    /// `embedder`: where it is.
    pub embedder: EmbedderConfig,
    /// `quality`: the store of profiled prompts.
    pub quality: QualityConfig,
    /// `nodes`: where requests can go.
    pub fleet: FleetConfig,
    /// `virtual_models`; default one, `auto`.
    pub virtual_models: Vec<VirtualModel>,
}

/// `admin_listen` where it is not given.
const DEFAULT_ADMIN_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

impl Config {
    /// Reads the file at `path`, with variables from the process environment. Relative paths in it start at
    /// its own folder.
    ///
    /// # Errors
    /// Where the file cannot be read, is oversized, or has faults: then all of them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let env = |name: &str| std::env::var(name).ok();
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(parse_file(path, Report::new(&env, folder))?.0)
    }

    /// Reads the file at `path` where its secrets are not: environment variables that are not set and TLS files that
    /// are not there are no faults, but listed. Nobody can know the keys that stand for such variables.
    ///
    /// # Errors
    /// As those of [`Self::load`], for anything else.
    pub fn load_without_secrets(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let env = |name: &str| std::env::var(name).ok();
        let folder = path.parent().unwrap_or(Path::new(""));
        parse_file(path, Report::new(&env, folder).without_secrets())
    }

    /// Reads a configuration from its text. Relative paths stay relative. `env` looks up the variables that
    /// `api_key_env` and `key_env` name.
    ///
    /// # Errors
    /// Everything wrong with the text, in order of lines; never empty.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Vec<Fault>> {
        Ok(parse_text(text, Report::new(env, Path::new("")))?.0)
    }
}

fn parse_file(path: &Path, report: Report<'_>) -> Result<(Config, Vec<String>), ConfigError> {
    let invalid = |faults| ConfigError::Invalid { path: path.into(), faults };
    let bytes = read_bounded(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|e| invalid(vec![not_utf8(&bytes, e.valid_up_to())]))?;
    parse_text(text, report).map_err(invalid)
}

/// The configuration, and the secrets it lacks where it may.
fn parse_text(text: &str, report: Report<'_>) -> Result<(Config, Vec<String>), Vec<Fault>> {
    let root = tree::parse(text).map_err(|fault| vec![fault])?;
    let config = Field::root(&root, &report).section(read_config);
    let absent_secrets = report.absent_secrets();
    let faults = report.into_faults();
    match config.flatten() {
        Some(config) if faults.is_empty() => Ok((config, absent_secrets)),
        _ => Err(faults),
    }
}

/// Reads every section. `None` only with a fault noted.
fn read_config(s: &mut Section<'_>) -> Option<Config> {
    let listen =
        s.require("listen", address::ALLOWED_LISTEN).and_then(|field| address::listen_address(&field));
    let admin_listen = s.get("admin_listen").and_then(|field| address::listen_address(&field));
    let admin_listen = admin_listen.unwrap_or(DEFAULT_ADMIN_LISTEN);
    if listen == Some(admin_listen) && admin_listen.port() != 0 {
        s.fault("admin_listen", format!("`listen` has {admin_listen} already"), "an address of its own");
    }
    let tls = s.get("tls").and_then(|field| field.section(TlsConfig::read)).flatten();
    let admin_key = auth::read_admin_auth(s);
    let limits = s.section("limits", Limits::read);
    let timeouts = s.section("timeouts", Timeouts::read);
    let breaker = s.section("breaker", limits::read_breaker);
    let cooling = s.section("cooling", limits::read_cooling);
    let decision_log = s.section("decision_log", limits::read_decision_log);
    let access_log = s.section("access_log", limits::read_log);
    let tracing = s.get("tracing").and_then(|field| field.section(TracingConfig::read)).flatten();
    let response_model = s.choice("response_model", ResponseModel::ALL, ResponseModel::Resolved);
    let window = s.section("window", routing::read_window);
    let routing = s.section("routing", RoutingConfig::read);
    let switchback = s.get("switchback").and_then(|field| field.section(SwitchbackConfig::read));
    let embedder = s.section("embedder", EmbedderConfig::read);
    let mut quality = s.section("quality", QualityConfig::read);
    if window.close == WindowClose::Fixed {
        quality.embed_wait = quality.embed_wait.max(Duration::from_secs_f64(window.max_wait.get()));
    }
    let (fleet, fleet_names) = fleet::read_fleet(s);
    let virtual_models = virtual_model::read_virtual_models(s, &fleet_names);
    let mut model_names = fleet_names.models;
    model_names.extend(virtual_models.iter().map(|model| model.name.clone()));
    let known_models = (!fleet_names.incomplete).then_some(&model_names);
    let (auth, keys_given) = s.section("auth", |s| AuthConfig::read(s, known_models));
    let listen = listen?;
    auth.check_open(s, listen, keys_given);
    Some(Config {
        listen,
        admin_listen,
        tls,
        auth,
        admin_key,
        limits,
        timeouts,
        breaker,
        cooling,
        decision_log,
        access_log,
        tracing,
        response_model,
        window,
        routing,
        switchback,
        embedder,
        quality,
        fleet,
        virtual_models,
    })
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let read_error = |source| ConfigError::Read { path: path.into(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(read_error)?;
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge { path: path.into() });
    }
    Ok(bytes)
}

fn not_utf8(bytes: &[u8], valid_up_to: usize) -> Fault {
    Fault {
        line: bytes[..valid_up_to].iter().filter(|b| **b == b'\n').count() + 1,
        path: String::new(),
        problem: "not text in UTF-8".into(),
        got: bytes.get(valid_up_to).map(|byte| format!("byte 0x{byte:02x}")),
        allowed: Some("UTF-8; save the file in that encoding".into()),
    }
}
