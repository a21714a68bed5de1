//! Reading request bodies within bounds.

use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::openai::ApiError;

/// Longest pause in the arrival of a body.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How much of a refused body is read and thrown away, and for how long. Clients send before they read: one whose
/// connection is closed in its face sees a broken pipe and tries again instead of reading why.
const DISCARDED_BYTES_MAX: usize = 256 << 20;
const DISCARDED_FOR_MAX: Duration = Duration::from_secs(30);
/// The connection is kept for the next request if no more than this is still to come of a refused body.
const KEPT_FOR_BYTES_MAX: u64 = 64 << 10;

/// What is allowed of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyRules {
    /// Largest size.
    pub(super) bytes_max: usize,
    /// Longest time from its first byte to its last.
    pub(super) total: Duration,
    /// Its client waits for `100 Continue`, which is sent by beginning to read.
    pub(super) awaits_continue: bool,
}

/// Until when a body must be there.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    total: Duration,
}

impl Deadline {
    fn after(total: Duration) -> Self {
        Self { at: Instant::now() + total, total }
    }

    /// When the next part must be there, and the limit that says so.
    fn of_next_part(self) -> (Instant, Duration) {
        let pause_ends = Instant::now() + PAUSE_MAX;
        if pause_ends < self.at { (pause_ends, PAUSE_MAX) } else { (self.at, self.total) }
    }
}

/// Reads a body whole. What it refuses it does not wait for: see [`linger`].
pub(super) async fn read<B>(mut body: B, rules: BodyRules) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    let BodyRules { bytes_max, awaits_continue, total } = rules;
    if body.size_hint().lower() > bytes_max as u64 {
        // A client that waits for its `100 Continue` need not send at all.
        let error = ApiError::payload_too_large(bytes_max);
        return Err(if awaits_continue { error } else { refused(error, body) });
    }
    let deadline = Deadline::after(total);
    let mut parts = Vec::new();
    let mut n_bytes = 0;
    while let Some(part) = next_part(&mut body, deadline).await? {
        n_bytes += part.len();
        if n_bytes > bytes_max {
            return Err(refused(ApiError::payload_too_large(bytes_max), body));
        }
        parts.push(part);
    }
    // Most bodies come in one piece, which is not copied.
    Ok(if parts.len() == 1 { parts.swap_remove(0) } else { parts.concat().into() })
}

async fn next_part<B>(body: &mut B, deadline: Deadline) -> Result<Option<Bytes>, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    while !body.is_end_stream() {
        let (at, limit) = deadline.of_next_part();
        let frame = timeout_at(at, body.frame()).await.map_err(|_| ApiError::request_timeout(limit))?;
        match frame {
            None => return Ok(None),
            Some(Err(_)) => {
                let message = "the request body broke off: send it whole";
                return Err(ApiError::bad_request(message, None, Some("incomplete_body")));
            }
            // Trailers say nothing to us.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
    Ok(None)
}

/// `error` as the answer to a request whose `body` is left unread: see [`linger`].
pub(super) fn refused<B>(error: ApiError, body: B) -> ApiError
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    let keeps_connection = linger(body);
    ApiError { ends_connection: error.ends_connection || !keeps_connection, ..error }
}

/// Reads on within bounds while the answer goes out and keeps nothing, so that a client that sends before it reads
/// comes to read why it was refused. Returns whether the connection may serve another request after that.
fn linger<B>(mut body: B) -> bool
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    if body.is_end_stream() {
        return true;
    }
    let keeps_connection = body.size_hint().upper().is_some_and(|left| left <= KEPT_FOR_BYTES_MAX);
    // It ends within `DISCARDED_FOR_MAX`, or with the connection, without which the body breaks off. Whoever takes
    // longer sees a closed connection.
    tokio::spawn(async move {
        let deadline = Deadline::after(DISCARDED_FOR_MAX);
        let mut n_bytes = 0;
        while n_bytes < DISCARDED_BYTES_MAX
            && let Ok(Some(part)) = next_part(&mut body, deadline).await
        {
            n_bytes += part.len();
        }
    });
    keeps_connection
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use futures_util::StreamExt as _;
    use futures_util::stream::{self, Stream};
    use http::StatusCode;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    const RULES: BodyRules =
        BodyRules { bytes_max: 10, total: Duration::from_secs(600), awaits_continue: false };

    fn of(
        parts: &[&'static str],
    ) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<>> {
        let parts: Vec<_> =
            parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect();
        StreamBody::new(stream::iter(parts))
    }

    #[tokio::test]
    async fn a_body_within_the_limit_is_read_whole() {
        assert_eq!(read(of(&["01234", "", "56789"]), RULES).await.unwrap(), "0123456789");
        assert_eq!(read(of(&[]), RULES).await.unwrap(), "");
        let piece = Bytes::from_static(b"one piece");
        assert_eq!(read(Full::new(piece.clone()), RULES).await.unwrap().as_ptr(), piece.as_ptr());
    }

    #[tokio::test]
    async fn an_oversized_body_is_refused() {
        for awaits_continue in [false, true] {
            let rules = BodyRules { awaits_continue, ..RULES };
            let error = read(of(&["01234", "56789", "!", "rest"]), rules).await.unwrap_err();
            assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
            let error = read(Full::new(Bytes::from_static(b"0123456789!")), rules).await.unwrap_err();
            assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_coming_is_given_up() {
        let began = Instant::now();
        let stalled = StreamBody::new(
            of(&["01234"]).into_data_stream().map(|part| part.map(Frame::data)).chain(stream::pending()),
        );
        let error = read(Box::pin(stalled), RULES).await.unwrap_err();
        assert_eq!((error.status, began.elapsed()), (StatusCode::REQUEST_TIMEOUT, PAUSE_MAX));
        let dripping = stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_secs(29)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::new()))
        });
        let began = Instant::now();
        let error = read(Box::pin(StreamBody::new(dripping)), RULES).await.unwrap_err();
        assert_eq!((error.status, began.elapsed()), (StatusCode::REQUEST_TIMEOUT, RULES.total));
        let endless = StreamBody::new(stream::repeat_with(|| {
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 1 << 20])))
        }));
        let error = read(endless, RULES).await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE, "not read for ever");
    }
}
