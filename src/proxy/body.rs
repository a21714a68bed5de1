//! Reading request bodies within bounds, those of each and that of all together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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

/// Bodies up to this size are not counted against the bound on all: there are no more of them than connections.
const UNCOUNTED_BYTES_MAX: usize = 64 << 10;
/// What is counted in.
const UNIT_BYTES: usize = 64 << 10;
/// When whoever found no room may come again.
const ROOM_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Room for the request bodies that are in memory at once. Clones share it.
#[derive(Debug, Clone)]
pub struct BodyRoom(Arc<Semaphore>);

impl BodyRoom {
    /// Room for `total_bytes`.
    #[must_use]
    pub fn of(total_bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((total_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS))))
    }
}

/// What one body takes of a [`BodyRoom`] until this is dropped.
#[derive(Debug)]
pub(super) struct RoomTaken {
    room: BodyRoom,
    taken: Option<OwnedSemaphorePermit>,
}

impl RoomTaken {
    fn nothing_of(room: &BodyRoom) -> Self {
        Self { room: room.clone(), taken: None }
    }

    /// Takes room for `n_bytes` in all.
    pub(super) fn grow_to(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        if n_bytes <= UNCOUNTED_BYTES_MAX {
            return Ok(());
        }
        let n_taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let n_more = u32::try_from(n_bytes.div_ceil(UNIT_BYTES).saturating_sub(n_taken)).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.room.0).try_acquire_many_owned(n_more).map_err(|_| {
            let message = "the router holds as many large requests as its memory is meant for; try again";
            ApiError::unavailable(message, ROOM_RETRY_AFTER)
        })?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

/// A body that is there.
#[derive(Debug)]
pub(super) struct WholeBody {
    pub(super) bytes: Bytes,
    /// To be kept as long as `bytes`.
    pub(super) room: RoomTaken,
}

/// What is allowed of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyRules<'r> {
    /// Largest size.
    pub(super) bytes_max: usize,
    /// What it is to have a place in.
    pub(super) room: &'r BodyRoom,
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
pub(super) async fn read<B>(mut body: B, rules: BodyRules<'_>) -> Result<WholeBody, ApiError>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    let BodyRules { bytes_max, room, awaits_continue, total } = rules;
    let mut room = RoomTaken::nothing_of(room);
    let told = usize::try_from(body.size_hint().lower()).ok().filter(|told| *told <= bytes_max);
    let told = told.ok_or_else(|| ApiError::payload_too_large(bytes_max));
    if let Err(error) = told.and_then(|told| room.grow_to(told)) {
        // A client that waits for its `100 Continue` need not send at all.
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
        if let Err(error) = room.grow_to(n_bytes) {
            return Err(refused(error, body));
        }
        parts.push(part);
    }
    // Most bodies come in one piece, which is not copied.
    let bytes = if parts.len() == 1 { parts.swap_remove(0) } else { parts.concat().into() };
    Ok(WholeBody { bytes, room })
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

    const TOTAL: Duration = Duration::from_secs(600);

    /// Reads a body of up to 10 bytes.
    async fn read_ten<B>(body: B, awaits_continue: bool) -> Result<Bytes, ApiError>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Send,
    {
        let room = &BodyRoom::of(1 << 20);
        let rules = BodyRules { bytes_max: 10, room, total: TOTAL, awaits_continue };
        read(body, rules).await.map(|body| body.bytes)
    }

    fn of(
        parts: &[&'static str],
    ) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<>> {
        let parts: Vec<_> =
            parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect();
        StreamBody::new(stream::iter(parts))
    }

    #[tokio::test]
    async fn a_body_within_the_limit_is_read_whole() {
        assert_eq!(read_ten(of(&["01234", "", "56789"]), false).await.unwrap(), "0123456789");
        assert_eq!(read_ten(of(&[]), false).await.unwrap(), "");
        let piece = Bytes::from_static(b"one piece");
        assert_eq!(read_ten(Full::new(piece.clone()), false).await.unwrap().as_ptr(), piece.as_ptr());
    }

    #[tokio::test]
    async fn an_oversized_body_is_refused() {
        for awaits_continue in [false, true] {
            let parts = of(&["01234", "56789", "!", "rest"]);
            let error = read_ten(parts, awaits_continue).await.unwrap_err();
            assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
            let whole = Full::new(Bytes::from_static(b"0123456789!"));
            let error = read_ten(whole, awaits_continue).await.unwrap_err();
            assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_coming_is_given_up() {
        let began = Instant::now();
        let stalled = StreamBody::new(
            of(&["01234"]).into_data_stream().map(|part| part.map(Frame::data)).chain(stream::pending()),
        );
        let error = read_ten(Box::pin(stalled), false).await.unwrap_err();
        assert_eq!((error.status, began.elapsed()), (StatusCode::REQUEST_TIMEOUT, PAUSE_MAX));
        let dripping = stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_secs(29)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::new()))
        });
        let began = Instant::now();
        let error = read_ten(Box::pin(StreamBody::new(dripping)), false).await.unwrap_err();
        assert_eq!((error.status, began.elapsed()), (StatusCode::REQUEST_TIMEOUT, TOTAL));
        let endless = StreamBody::new(stream::repeat_with(|| {
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 1 << 20])))
        }));
        let error = read_ten(endless, false).await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE, "not read for ever");
    }

    #[tokio::test]
    async fn all_bodies_together_have_so_much_room() {
        let room = BodyRoom::of(10 * UNIT_BYTES);
        let rules = BodyRules { bytes_max: 1 << 20, room: &room, total: TOTAL, awaits_continue: false };
        let of_units = |n: usize| Full::new(Bytes::from(vec![b'x'; n * UNIT_BYTES]));
        let first = read(of_units(6), rules).await.unwrap();
        let error = read(of_units(5), rules).await.unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        // One that does not tell its size beforehand is refused where it grows too large.
        let piece = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; UNIT_BYTES])));
        let untold = |n| stream::iter(0..n).map(move |_: usize| piece());
        let error = read(StreamBody::new(untold(5)), rules).await.unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        let second = read(StreamBody::new(untold(4)), rules).await.unwrap();
        assert_eq!(second.bytes.len(), 4 * UNIT_BYTES);
        // Small ones always have a place.
        assert!(read(of_units(1), rules).await.is_ok());
        drop(first);
        assert!(read(of_units(6), rules).await.is_ok(), "what is gone leaves its room");
    }
}
