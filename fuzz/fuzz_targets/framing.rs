//! A connection of any bytes: the tracker's readings do not depend on how they are split, and it finds at least the
//! requests that hyper serves, so that no request with two lengths gets past it.
//!
//! Input: eight bytes that say where to cut, then what the client sends.
#![no_main]

mod cut;

use std::cell::Cell;
use std::convert::Infallible;
use std::io::Cursor;

use cema_router::proxy::framing::FramingTracker;
use cut::cut;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Builder;

fuzz_target!(|data: &[u8]| {
    let Some((cuts, bytes)) = data.split_first_chunk::<8>() else { return };
    let whole = track(&[bytes]);
    let pieces = track(&cut(bytes, cuts, 1));
    let readings = |t: &FramingTracker| (t.heads(), t.is_in_head(), t.two_lengths());
    assert_eq!(readings(&whole), readings(&pieces));
    match whole.two_lengths() {
        // The router refuses this one and closes; hyper alone would go on.
        Some(nth) => assert_eq!(nth + 1, whole.heads()),
        None => {
            let served = serve(bytes);
            assert!(served <= whole.heads(), "hyper serves {served}, the tracker knows {}", whole.heads());
        }
    }
});

fn track(chunks: &[&[u8]]) -> FramingTracker {
    let mut tracker = FramingTracker::default();
    chunks.iter().for_each(|chunk| tracker.push(chunk));
    tracker
}

/// How many requests hyper makes of `bytes`, as the router configures it.
fn serve(bytes: &[u8]) -> u32 {
    let served = Cell::new(0);
    let service = service_fn(|request: Request<Incoming>| {
        served.set(served.get() + 1);
        async move {
            // A body that breaks ends the connection.
            _ = request.into_body().collect().await;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let io = TokioIo::new(tokio::io::join(Cursor::new(bytes.to_vec()), tokio::io::sink()));
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
    // However it ends, what it served counts.
    _ = Builder::new_current_thread().build().expect("a runtime").block_on(connection);
    served.get()
}
