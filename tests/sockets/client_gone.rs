//! Clients that leave at any moment, with a close, a half-close or a reset: what was done for them ends at once.

use std::time::Duration;

use crate::support::answers::{chat, chunk, delta_event, role_event, stream_head};
use crate::support::app::{CHAT, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::Step;
use crate::support::metrics::Metrics;
use crate::support::raw_client::RawClient;
use tokio::time::Instant;

/// How a client leaves.
#[derive(Debug, Clone, Copy)]
enum Leaving {
    Reset,
    Close,
    /// It sends no more and could still read: taken for gone, as other proxies do.
    HalfClose,
}

const WAYS: [Leaving; 3] = [Leaving::Reset, Leaving::Close, Leaving::HalfClose];

impl Leaving {
    /// Leaves; what is left of a half-closed connection is handed back, so that it stays open.
    async fn leave(self, mut client: RawClient) -> Option<RawClient> {
        match self {
            Self::Reset => client.reset(),
            Self::Close => drop(client),
            Self::HalfClose => {
                client.shutdown().await;
                return Some(client);
            }
        }
        None
    }
}

/// Whether `n` requests are in the window or the queue.
fn held(n: u64) -> impl Fn(&Metrics) -> bool {
    move |metrics| metrics.count("cema_held_requests", &[]) == n
}

#[track_caller]
fn assert_nothing_is_left(metrics: &Metrics, n_gone: u64) {
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "client_gone")]), n_gone);
    assert!(metrics.sum("cema_backlog_seconds", &[]).abs() < 1e-9, "backlog is left");
}

#[tokio::test]
async fn once_it_is_with_an_endpoint() {
    let before_content = vec![stream_head(), chunk(role_event("m"))];
    let in_mid_stream = vec![stream_head(), chunk(delta_event("m", "a"))];
    let moments = [
        ("a whole answer", ask("m"), vec![]),
        ("before the head", ask_stream("m"), vec![]),
        ("before content", ask_stream("m"), before_content),
        ("in mid-stream", ask_stream("m"), in_mid_stream),
    ];
    for (moment, body, mut script) in moments {
        script.push(Step::WaitClientClose);
        let endpoint = llm(move |_| script.clone()).await;
        let router = Router::start(&[node("a", endpoint.url())], "window: {max_ms: 0}\n").await;
        for (n, way) in WAYS.into_iter().enumerate() {
            let mut client = router.client().await;
            client.post(CHAT, "", &body).await;
            endpoint.posts_reach(n + 1).await;
            if moment == "in mid-stream" {
                client.head().await;
                client.chunk().await.unwrap().unwrap();
            }
            let left = Instant::now();
            let _half = way.leave(client).await;
            endpoint.answers_cut_reach(n + 1).await;
            assert!(left.elapsed() < Duration::from_secs(1), "{moment}, {way:?}: {:?}", left.elapsed());
        }
        let metrics = router.idle().await;
        assert_nothing_is_left(&metrics, WAYS.len() as u64);
        assert_eq!(metrics.count("cema_inflight", &[]), 0, "{moment}");
    }
}

#[tokio::test]
async fn in_the_window() {
    let endpoint = llm(|_| chat("m", "done")).await;
    let router = Router::start(&[node("a", endpoint.url())], "window: {close: fixed, max_ms: 1000}\n").await;
    let mut stays = router.client().await;
    stays.post(CHAT, "x-cema-debug: true\r\n", &ask("auto")).await;
    let mut halves = Vec::new();
    for way in WAYS {
        let mut client = router.client().await;
        client.post(CHAT, "", &ask("auto")).await;
        router.metrics_reach("it to be in the window", held(2)).await;
        halves.push(way.leave(client).await);
        router.metrics_reach("it to be forgotten", held(1)).await;
    }
    let answer = stays.answer().await;
    assert_eq!(answer.head.header("x-cema-batch-size").unwrap_or_default(), "1");
    let metrics = router.idle().await;
    assert_nothing_is_left(&metrics, 3);
    assert_eq!((metrics.count("cema_window_size_sum", &[]), endpoint.posts().len()), (1, 1));
}

#[tokio::test]
async fn in_the_queue() {
    let endpoint = llm(|_| vec![Step::WaitClientClose]).await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 1")];
    let router = Router::start(&nodes, "").await;
    let mut runs = router.client().await;
    runs.post(CHAT, "", &ask("auto")).await;
    endpoint.posts_reach(1).await;
    for way in WAYS {
        let mut client = router.client().await;
        client.post(CHAT, "", &ask("auto")).await;
        router.metrics_reach("it to be held", held(1)).await;
        let left = Instant::now();
        let _half = way.leave(client).await;
        router.metrics_reach("it to be forgotten", held(0)).await;
        assert!(left.elapsed() < Duration::from_secs(1), "{way:?}: {:?}", left.elapsed());
    }
    runs.reset();
    endpoint.answers_cut_reach(1).await;
    let metrics = router.idle().await;
    assert_nothing_is_left(&metrics, 4);
    assert_eq!(endpoint.posts().len(), 1, "none of them was sent");
}
