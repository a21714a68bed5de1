//! Who may use the router: API keys, kept as SHA-256 digests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::openai::ApiError;
use crate::request_manager::key_budget::{KeyBudget, KeyUse, OverBudget};

/// `code` of an error: too many requests at once.
const CONCURRENCY_EXCEEDED: &str = "concurrency_limit_exceeded";
/// `code` and `type` of an error: the key's money is spent (OpenAI's own name for it).
const INSUFFICIENT_QUOTA: &str = "insufficient_quota";
/// When a place may be free again where nobody knows.
const RETRY_SOON: Duration = Duration::from_secs(1);

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
    /// What it has left of its rates and money.
    pub budget: Arc<KeyBudget>,
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
    /// Takes the place of one request among those its key may send; `None` where the router is open.
    ///
    /// # Errors
    /// 429 where the key's rate, concurrency or money is used up.
    pub fn begin(&self) -> Result<Option<KeyUse>, ApiError> {
        Ok(self.key.map(|key| key.budget.begin()).transpose()?)
    }

    /// Name of the key; `None` where the router is open.
    #[must_use]
    pub fn name(&self) -> Option<&Arc<str>> {
        self.key.map(|key| &key.name)
    }

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

impl From<OverBudget> for ApiError {
    fn from(over: OverBudget) -> Self {
        let message = over.to_string();
        match over {
            OverBudget::Rate { retry_after, .. } => {
                Self::too_many_requests(message, retry_after).with_should_retry(true)
            }
            OverBudget::Concurrency { .. } => Self {
                code: Some(CONCURRENCY_EXCEEDED.into()),
                ..Self::too_many_requests(message, RETRY_SOON).with_should_retry(true)
            },
            OverBudget::Money { retry_after, .. } => Self {
                kind: INSUFFICIENT_QUOTA.into(),
                code: Some(INSUFFICIENT_QUOTA.into()),
                ..Self::too_many_requests(message, retry_after).with_should_retry(false)
            },
        }
    }
}

/// Metric label of a request refused before it was routed.
pub(super) fn refusal_reason(error: &ApiError) -> &'static str {
    match (error.status.as_u16(), error.code.as_deref()) {
        (401, _) => "unauthorized",
        (_, Some(CONCURRENCY_EXCEEDED)) => "key_concurrency",
        (_, Some(INSUFFICIENT_QUOTA)) => "key_money",
        (429, _) => "key_rate",
        (503, _) => "bodies_full",
        _ => "bad_request",
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

pub(super) fn is_equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::request_manager::key_budget::{KeyLimits, KeyMetrics};
    use crate::units::Usd;

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))])
    }

    fn budget(limits: KeyLimits) -> Arc<KeyBudget> {
        let metrics = KeyMetrics::register(&prometheus::Registry::new()).unwrap();
        Arc::new(KeyBudget::new("app", limits, &metrics))
    }

    #[test]
    fn keys_are_checked_and_limit_what_may_be_asked() {
        let auth = Auth::new(vec![ApiKey {
            name: "app".into(),
            digest: Sha256::digest("s3cret").into(),
            models: Some(BTreeSet::from(["auto".into()])),
            allow_weights: false,
            budget: budget(KeyLimits::default()),
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

    #[test]
    fn every_limit_has_an_error_of_its_own() {
        let retry_after = Duration::from_millis(1500);
        let errors = [
            OverBudget::Rate { per_minute: 4, retry_after },
            OverBudget::Concurrency { max: 2 },
            OverBudget::Money { per_day: Usd(5.0), retry_after },
        ]
        .map(ApiError::from);
        let said = errors.each_ref().map(|e| (e.status.as_u16(), e.code.as_deref().unwrap(), e.should_retry));
        assert_eq!(
            said,
            [
                (429, "rate_limit_exceeded", Some(true)),
                (429, "concurrency_limit_exceeded", Some(true)),
                (429, "insufficient_quota", Some(false)),
            ]
        );
        assert_eq!(errors.each_ref().map(refusal_reason), ["key_rate", "key_concurrency", "key_money"]);
        assert!(errors.iter().all(|e| e.retry_after.is_some()));
        assert_eq!(refusal_reason(&ApiError::unauthorized("m")), "unauthorized");
        assert_eq!(refusal_reason(&ApiError::payload_too_large(1)), "bad_request");
    }
}
