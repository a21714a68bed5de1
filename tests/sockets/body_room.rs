//! Large requests share what memory there is for them.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::support::answers::{chat, gzip};
use crate::support::app::{CHAT, Router, ask, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::raw_client::RawClient;

/// A request of 600 KB.
fn large() -> String {
    ask("m").replace("hi", &"x".repeat(600_000))
}

/// A router with room for one request of a MiB, over an endpoint that answers large ones as its gate lets it, and a
/// client with a large one under way.
async fn router_without_room() -> (FakeEndpoint, Router, Arc<Semaphore>, RawClient) {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let endpoint = llm(move |request| match request.body.len() {
        0..10_000 => chat("m", "small"),
        _ => [vec![Step::Gate(Arc::clone(&held))], chat("m", "large")].concat(),
    })
    .await;
    let node = node("a", endpoint.url()).model("{name: m, context_tokens: 100000000}");
    let sections = "window: {max_ms: 0}\nlimits: {max_body_bytes: 1048576, max_body_bytes_total: 1048576}\n";
    let router = Router::start(&[node], sections).await;
    let mut first = router.client().await;
    first.post(CHAT, "", large()).await;
    endpoint.posts_reach(1).await;
    (endpoint, router, gate, first)
}

#[tokio::test]
async fn one_large_request_too_many_is_refused_and_may_come_again() {
    let (_endpoint, router, gate, mut first) = router_without_room().await;
    let large = large();
    let packed = gzip(&large);
    assert!(packed.len() < 10_000);
    for (headers, body) in [("", large.as_bytes()), ("content-encoding: gzip\r\n", &*packed)] {
        let refused = router.post(CHAT, headers, body).await;
        assert_eq!(refused.head.status(), 503, "{headers}");
        assert_eq!(refused.head.header("retry-after").as_deref(), Some("1"));
        assert_eq!(refused.json()["error"]["type"], "server_error");
    }
    assert_eq!(router.metrics().await.count("cema_rejected_total", &[("reason", "bodies_full")]), 2);
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200, "small ones always have a place");
    gate.add_permits(1);
    assert_eq!(first.answer().await.head.status(), 200);
    gate.add_permits(1);
    assert_eq!(router.chat(&large).await.head.status(), 200);
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_room_back() {
    let (_endpoint, router, gate, first) = router_without_room().await;
    drop(first);
    router.idle().await;
    gate.add_permits(2);
    assert_eq!(router.chat(&large()).await.head.status(), 200);
}
