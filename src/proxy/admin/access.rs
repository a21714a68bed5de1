//! Who may use the admin API: whoever has its key, or, without a key, programs on this machine.
//!
//! A page that a browser on this machine shows is no such program: requests that another origin sends, or that reach the
//! listener under a foreign name, are refused.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderMap, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::proxy::auth::{bearer, is_equal};
use crate::proxy::openai::ApiError;

/// The rule of one listener.
#[derive(Debug, Clone, Copy)]
pub struct AdminAccess {
    /// SHA-256 of the key; `None` = none is asked for.
    pub key: Option<[u8; 32]>,
    /// Whether the listener is reachable from this machine only.
    pub is_on_loopback: bool,
}

impl AdminAccess {
    /// Whether a request with these headers may use the API.
    ///
    /// # Errors
    /// 401 without the key, 403 where there is none and the request does not come from a program on this machine.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if let Some(key) = &self.key {
            let presented = bearer(headers).map(|key| <[u8; 32]>::from(Sha256::digest(key)));
            return match presented {
                Some(digest) if is_equal(key, &digest) => Ok(()),
                Some(_) => Err(ApiError::unauthorized("the admin key is not known here")),
                None => Err(ApiError::unauthorized(
                    "the admin API needs its key: send it as `Authorization: Bearer KEY`",
                )),
            };
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if !self.is_on_loopback {
            return Err(refused(
                "the admin API has no key and is reachable from other machines: set `admin_auth`",
            ));
        }
        if !host.is_some_and(names_this_machine) {
            return Err(refused(
                "the admin API has no key: use it by the address of this machine, or set `admin_auth`",
            ));
        }
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
        let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, at)| host == Some(at));
        if !origin.is_none_or(is_own) {
            return Err(refused("the admin API takes nothing from pages of another origin"));
        }
        Ok(())
    }
}

fn refused(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "permission_error", Some("admin_refused"), message.to_owned())
}

fn names_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn without_a_key_only_programs_on_this_machine_may() {
        let open = AdminAccess { key: None, is_on_loopback: true };
        for ok in [
            &[("host", "127.0.0.1:9090")][..],
            &[("host", "localhost:9090")],
            &[("host", "[::1]:9090")],
            &[("host", "127.0.0.1:9090"), ("origin", "http://127.0.0.1:9090")],
        ] {
            assert!(open.check(&headers(ok)).is_ok(), "{ok:?}");
        }
        for bad in [
            &[][..],
            &[("host", "evil.example:9090")],
            &[("host", "10.0.0.5:9090")],
            &[("host", "127.0.0.1:9090"), ("origin", "http://evil.example")],
            &[("host", "127.0.0.1:9090"), ("origin", "null")],
            &[("host", "127.0.0.1:9090"), ("origin", "http://127.0.0.1:8000")],
        ] {
            assert_eq!(open.check(&headers(bad)).unwrap_err().status, 403, "{bad:?}");
        }
        let reachable = AdminAccess { is_on_loopback: false, ..open };
        assert_eq!(reachable.check(&headers(&[("host", "127.0.0.1")])).unwrap_err().status, 403);
    }

    #[test]
    fn with_a_key_it_is_needed_everywhere() {
        let closed = AdminAccess { key: Some(Sha256::digest(b"secret").into()), is_on_loopback: true };
        assert!(closed.check(&headers(&[("authorization", "Bearer secret")])).is_ok());
        for bad in [&[][..], &[("authorization", "Bearer other")], &[("host", "127.0.0.1:9090")]] {
            assert_eq!(closed.check(&headers(bad)).unwrap_err().status, 401);
        }
    }
}
