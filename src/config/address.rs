//! Addresses: where the router listens, and where endpoints and meters are.

use std::net::SocketAddr;

use http::Uri;
use http::uri::{Authority, Scheme};

use super::reader::Field;

/// What a listening address may be.
pub(super) const ALLOWED_LISTEN: &str = "IP:PORT such as 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080";
/// What a URL may be.
pub(super) const ALLOWED_URL: &str = "http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]";

/// Where an endpoint's API starts: appending `/chat/completions` to it makes a request URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host with the port where one is given.
    pub authority: Authority,
    /// Starts with a slash and does not end with one; `/v1` where the configuration gives no path.
    pub base_path: String,
}

impl std::fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base_path)
    }
}

/// A listening address; `localhost` stands for 127.0.0.1.
pub(super) fn listen_address(field: &Field<'_>) -> Option<SocketAddr> {
    let text = field.text(ALLOWED_LISTEN)?;
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let address = numeric.as_deref().unwrap_or(text).parse().ok();
    if address.is_none() {
        field.fault("not an address to listen on", ALLOWED_LISTEN);
    }
    address
}

/// The base URL of an endpoint.
pub(super) fn base_url(field: &Field<'_>) -> Option<BaseUrl> {
    or_fault(field, parse_base_url(field.text(ALLOWED_URL)?))
}

/// An http or https URL without credentials, query or fragment.
pub(super) fn absolute_url(field: &Field<'_>) -> Option<Uri> {
    or_fault(field, parse_url(field.text(ALLOWED_URL)?))
}

/// Reads the base URL of an endpoint, with or without a trailing `/v1` or another path.
pub(super) fn parse_base_url(text: &str) -> Result<BaseUrl, UrlFault> {
    let parts = parse_url(text)?.into_parts();
    let path = parts.path_and_query.as_ref().map_or("", |path| path.path()).trim_end_matches('/');
    if ["/chat/completions", "/completions", "/embeddings", "/models"].iter().any(|end| path.ends_with(end)) {
        return Err(UrlFault::BelowBase);
    }
    let base_path = if path.is_empty() { "/v1" } else { path }.to_owned();
    match (parts.scheme, parts.authority) {
        (Some(scheme), Some(authority)) => Ok(BaseUrl { scheme, authority, base_path }),
        _ => Err(UrlFault::Malformed),
    }
}

/// What can be wrong with a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UrlFault {
    Malformed,
    Credentials,
    Query,
    /// It names a path of the API, not where the API starts.
    BelowBase,
}

fn or_fault<T>(field: &Field<'_>, url: Result<T, UrlFault>) -> Option<T> {
    match url {
        Ok(url) => return Some(url),
        Err(UrlFault::BelowBase) => {
            field
                .fault("names one path of the API: end it where the API starts, such as at /v1", ALLOWED_URL);
        }
        Err(UrlFault::Malformed) => field.fault("not a URL", ALLOWED_URL),
        // These two may hold a key, so the value is not repeated.
        Err(UrlFault::Credentials) => {
            let problem = "a URL must not carry credentials; use `api_key_env`";
            field.clone().private().fault(problem, ALLOWED_URL);
        }
        Err(UrlFault::Query) => {
            field.clone().private().fault("a URL must not have a query or fragment", ALLOWED_URL);
        }
    }
    None
}

fn parse_url(text: &str) -> Result<Uri, UrlFault> {
    if text.contains('@') {
        return Err(UrlFault::Credentials);
    }
    if text.contains(['?', '#']) {
        return Err(UrlFault::Query);
    }
    text.parse::<Uri>().ok().filter(is_absolute_http).ok_or(UrlFault::Malformed)
}

fn is_absolute_http(uri: &Uri) -> bool {
    // `Uri` leaves a port that is no number to its user.
    let port_ok = |authority: &Authority| {
        let after_host = authority.as_str().rsplit(']').next().unwrap_or_default();
        !after_host.contains(':') || authority.port_u16().is_some_and(|port| port > 0)
    };
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| !authority.host().is_empty() && port_ok(authority))
}
