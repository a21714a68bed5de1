//! Who may use the router: API keys, kept as SHA-256 digests.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::openai::ApiError;

/// One client's key.
#[derive(Debug, Clone)]
pub struct ApiKey {
    /// Shown in place of the key.
    pub name: Arc<str>,
    /// SHA-256 of the key.
    pub digest: [u8; 32],
    /// Models it may ask for; `None` = all.
    pub models: Option<BTreeSet<Arc<str>>>,
    /// Whether it may bring its own weights.
    pub allow_weights: bool,
}

/// The keys in force; none = open.
#[derive(Debug, Clone, Default)]
pub struct Auth {
    keys: Arc<[ApiKey]>,
}

/// What an authenticated client may do.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    key: Option<&'a ApiKey>,
}

impl Auth {
    /// Accepts `keys`, or anyone if there are none.
    #[must_use]
    pub fn new(keys: Vec<ApiKey>) -> Self {
        Self { keys: keys.into() }
    }

    /// Finds the key of a request.
    ///
    /// # Errors
    /// 401 where keys are in force and the request has none of them.
    pub fn check(&self, headers: &HeaderMap) -> Result<Grant<'_>, ApiError> {
        if self.keys.is_empty() {
            return Ok(Grant { key: None });
        }
        let presented = bearer(headers).ok_or_else(|| {
            ApiError::unauthorized("no API key was given: send it as `Authorization: Bearer KEY`")
        })?;
        let digest: [u8; 32] = Sha256::digest(presented).into();
        // Every key is compared in full, so that timing tells nothing about which one is near.
        let mut found = None;
        for key in self.keys.iter() {
            if is_equal(&key.digest, &digest) {
                found = Some(key);
            }
        }
        found
            .map(|key| Grant { key: Some(key) })
            .ok_or_else(|| ApiError::unauthorized("the API key is not known here"))
    }
}

impl Grant<'_> {
    /// Whether the client may ask for `model`.
    #[must_use]
    pub fn allows_model(&self, model: &str) -> bool {
        self.key.and_then(|key| key.models.as_ref()).is_none_or(|models| models.contains(model))
    }

    /// Whether the client may bring its own weights.
    #[must_use]
    pub fn allows_weights(&self) -> bool {
        self.key.is_none_or(|key| key.allow_weights)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

fn is_equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))])
    }

    #[test]
    fn keys_are_checked_and_limit_what_may_be_asked() {
        let auth = Auth::new(vec![ApiKey {
            name: "app".into(),
            digest: Sha256::digest("s3cret").into(),
            models: Some(BTreeSet::from(["auto".into()])),
            allow_weights: false,
        }]);
        for wrong in ["Bearer nope", "Basic s3cret", "s3cret", "Bearer", ""] {
            assert_eq!(auth.check(&headers(wrong)).unwrap_err().status, http::StatusCode::UNAUTHORIZED);
        }
        assert!(auth.check(&HeaderMap::new()).is_err());
        for right in ["Bearer s3cret", "bearer s3cret "] {
            let headers = headers(right);
            let grant = auth.check(&headers).unwrap();
            assert!(grant.allows_model("auto") && !grant.allows_model("other") && !grant.allows_weights());
        }
        let open = Auth::default();
        assert!(open.check(&HeaderMap::new()).unwrap().allows_weights());
    }
}
