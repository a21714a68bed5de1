//! How long an endpoint asks to be left alone: `retry-after-ms`, `retry-after`.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

/// Longer waits are no waits but mistakes of a unit.
const WAIT_S_MAX: f64 = 1e9;

/// The wait that `headers` ask for at the wall-clock time `now`: `retry-after-ms` (a number), else
/// `retry-after` (seconds, also with a fraction, or an HTTP date; one in the past is no wait at all).
///
/// `None` where there is neither or what they say makes no sense: negative, infinite, no number.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let ms = text("retry-after-ms").and_then(number).and_then(|ms| seconds(ms / 1e3));
    ms.or_else(|| {
        let said = text("retry-after")?;
        match number(said) {
            Some(s) => seconds(s),
            None => {
                let at = httpdate::parse_http_date(said).ok()?;
                Some(at.duration_since(now).unwrap_or_default())
            }
        }
    })
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

fn seconds(s: f64) -> Option<Duration> {
    (0.0..=WAIT_S_MAX).contains(&s).then(|| Duration::from_secs_f64(s))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn wait_ms(headers: &[(&'static str, &str)]) -> Option<u128> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        let now = httpdate::parse_http_date("Sun, 29 Nov 2026 19:41:29 GMT").unwrap();
        retry_after(&headers.collect(), now).map(|wait| wait.as_millis())
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_understood() {
        assert_eq!(wait_ms(&[("retry-after", "7")]), Some(7_000));
        assert_eq!(wait_ms(&[("retry-after", " 0.25 ")]), Some(250));
        assert_eq!(wait_ms(&[("retry-after", "0")]), Some(0));
        assert_eq!(wait_ms(&[("retry-after-ms", "250")]), Some(250));
        assert_eq!(wait_ms(&[("retry-after-ms", "12.5"), ("retry-after", "7")]), Some(12));
        assert_eq!(wait_ms(&[("retry-after", "Sun, 29 Nov 2026 19:41:32 GMT")]), Some(3_000));
        assert_eq!(wait_ms(&[("retry-after", "Sun, 29 Nov 2026 19:41:00 GMT")]), Some(0), "in the past");
    }

    #[test]
    fn nonsense_is_ignored() {
        for said in ["-1", "abc", "", "nan", "inf", "1e300", "7 s", "soon, 29 Nov"] {
            assert_eq!(wait_ms(&[("retry-after", said)]), None, "{said}");
            assert_eq!(wait_ms(&[("retry-after-ms", said)]), None, "{said}");
            assert_eq!(wait_ms(&[("retry-after-ms", said), ("retry-after", "2")]), Some(2_000), "{said}");
        }
        assert_eq!(wait_ms(&[]), None);
    }
}
