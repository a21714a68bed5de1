//! The limits of API keys, over real sockets.

use crate::support::answers::{DONE_EVENT, chat, chunk, delta_event, finish_event, last_chunk, stream_head};
use crate::support::app::{CHAT, CLIENT_KEY, Router, ask, ask_stream, llm, node, nowhere};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::raw_client::{Answer, RawClient};

/// A router over `endpoint`, whose only key has `limits`.
async fn limited(endpoint: &FakeEndpoint, limits: &str) -> Router {
    let model =
        "{name: m, price: {prompt_usd_per_mtok: 100000, completion_usd_per_mtok: 200000, request_usd: 0.5}}";
    let nodes = [node("a", endpoint.url()).model(model)];
    let sections =
        format!("window: {{max_ms: 0}}\nauth: {{keys: [{{name: app, key_env: CLIENT_KEY, {limits}}}]}}\n");
    Router::start(&nodes, &sections).await
}

fn bearer() -> String {
    format!("authorization: Bearer {CLIENT_KEY}\r\n")
}

async fn chat_with_key(router: &Router) -> Answer {
    router.chat_with(&bearer(), &ask("m")).await
}

#[track_caller]
fn assert_refused(answer: &Answer, code: &str, should_retry: &str) {
    assert_eq!((answer.head.status(), answer.json()["error"]["code"].clone()), (429, code.into()));
    assert_eq!(answer.head.header("x-should-retry").as_deref(), Some(should_retry));
    let wait = |name| answer.head.header(name).unwrap().parse::<u64>().unwrap();
    assert!(wait("retry-after") >= 1 && wait("retry-after-ms").div_ceil(1_000) == wait("retry-after"));
}

#[tokio::test]
async fn a_key_has_a_rate() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let router = limited(&endpoint, "requests_per_minute: 2").await;
    for _ in 0..2 {
        assert_eq!(chat_with_key(&router).await.head.status(), 200);
    }
    let refused = chat_with_key(&router).await;
    assert_refused(&refused, "rate_limit_exceeded", "true");
    let wait: u64 = refused.head.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "a place every 30 s: {wait}");
    let mut client = router.client().await;
    client.send(format!("GET /v1/models HTTP/1.1\r\nhost: t\r\n{}\r\n", bearer())).await;
    assert_eq!(client.answer().await.head.status(), 200, "only requests to models count");
    assert_eq!(endpoint.posts().len(), 2);
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_rejected_total", &[("reason", "key_rate")]), 1);
    assert_eq!(metrics.count("cema_key_requests_total", &[("key", "app")]), 2);
    assert_eq!(metrics.count("cema_key_refused_total", &[("key", "app"), ("limit", "rate")]), 1);
}

#[tokio::test]
async fn a_key_has_so_many_requests_at_once_until_their_answers_are_over() {
    let endpoint = llm(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        match (request.head.header("x-request-id").as_deref(), body.contains("\"stream\"")) {
            (Some("stays"), true) => vec![stream_head(), chunk(delta_event("m", "a")), Step::WaitClientClose],
            (Some("stays"), false) => vec![Step::WaitClientClose],
            _ => chat("m", "done"),
        }
    })
    .await;
    let router = limited(&endpoint, "max_concurrency: 2").await;
    let full =
        || async { assert_refused(&chat_with_key(&router).await, "concurrency_limit_exceeded", "true") };
    let mut n_sent = 0;
    for n_gone in [0, 3] {
        let mut stream = stay(&router, &ask_stream("m")).await;
        assert_eq!(stream.head().await.status(), 200);
        stream.chunk().await.unwrap().unwrap();
        let whole = stay(&router, &ask("m")).await;
        endpoint.posts_reach(n_sent + 2).await;
        full().await;
        // Places come back when a client leaves in mid-stream, before any byte, and when an answer is over.
        drop(stream);
        gone(&router, n_gone + 1).await;
        for _ in 0..3 {
            assert_eq!(chat_with_key(&router).await.head.status(), 200);
        }
        let stream = stay(&router, &ask_stream("m")).await;
        endpoint.posts_reach(n_sent + 6).await;
        full().await;
        whole.reset();
        stream.reset();
        gone(&router, n_gone + 3).await;
        n_sent += 6;
        assert_eq!(endpoint.posts().len(), n_sent);
    }
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_rejected_total", &[("reason", "key_concurrency")]), 4);
}

/// Sends a request that is not answered to its end.
async fn stay(router: &Router, body: &str) -> RawClient {
    let mut client = router.client().await;
    client.post(CHAT, &format!("{}x-request-id: stays\r\n", bearer()), body).await;
    client
}

async fn gone(router: &Router, n: u64) {
    router
        .metrics_reach("clients to be gone", |metrics| {
            metrics.count("cema_requests_total", &[("outcome", "client_gone")]) == n
        })
        .await;
}

#[tokio::test]
async fn a_place_comes_back_from_requests_that_fail() {
    let model = "{name: m}";
    let nodes = [node("a", nowhere().await).model(model)];
    let sections =
        "window: {max_ms: 0}\nauth: {keys: [{name: app, key_env: CLIENT_KEY, max_concurrency: 1}]}\n";
    let router = Router::start(&nodes, sections).await;
    for _ in 0..3 {
        assert_eq!(chat_with_key(&router).await.head.status(), 503);
        assert_eq!(router.chat_with(&bearer(), "{").await.head.status(), 400);
        assert_eq!(router.chat_with(&bearer(), &ask("unknown")).await.head.status(), 404);
    }
}

#[tokio::test]
async fn a_key_has_so_much_money_a_day() {
    // 9 prompt and 3 completion tokens: 0.9 + 0.6 + 0.5 = 2 USD.
    let endpoint = llm(|_| chat("m", "hello")).await;
    let router = limited(&endpoint, "usd_per_day: 3").await;
    for _ in 0..2 {
        assert_eq!(chat_with_key(&router).await.head.status(), 200);
    }
    let refused = chat_with_key(&router).await;
    assert_refused(&refused, "insufficient_quota", "false");
    let wait: u64 = refused.head.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&wait));
    assert_eq!(endpoint.posts().len(), 2);
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_key_cost_usd_total", &[("key", "app")]), 4);
    assert_eq!(metrics.count("cema_rejected_total", &[("reason", "key_money")]), 1);
}

#[tokio::test]
async fn what_a_stream_cost_counts_too() {
    let script = [
        stream_head(),
        chunk(delta_event("m", "a")),
        chunk(finish_event("m")),
        chunk(DONE_EVENT),
        last_chunk(),
    ];
    let endpoint = llm(move |_| script.to_vec()).await;
    let router = limited(&endpoint, "usd_per_day: 0.6").await;
    let answer = router.chat_with(&bearer(), &ask_stream("m")).await;
    assert_eq!(answer.head.status(), 200);
    router.idle().await;
    assert_refused(&chat_with_key(&router).await, "insufficient_quota", "false");
}

#[tokio::test]
async fn keys_come_as_bearer_tokens_and_stay_here() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let router = limited(&endpoint, "max_concurrency: 9").await;
    for header in ["x-api-key", "api-key"] {
        let answer = router.chat_with(&format!("{header}: {CLIENT_KEY}\r\n"), &ask("m")).await;
        assert_eq!(
            (answer.head.status(), answer.json()["error"]["code"].clone()),
            (401, "invalid_api_key".into())
        );
    }
    assert_eq!(router.metrics().await.count("cema_rejected_total", &[("reason", "unauthorized")]), 2);
    let everywhere = format!("{}x-api-key: {CLIENT_KEY}\r\napi-key: {CLIENT_KEY}\r\n", bearer());
    assert_eq!(router.chat_with(&everywhere, &ask("m")).await.head.status(), 200);
    let sent = String::from_utf8(endpoint.posts().pop().unwrap().head.bytes).unwrap();
    assert!(!sent.contains(CLIENT_KEY), "{sent}");
}
