//! What differs between server softwares, over sockets. vLLM and llama.cpp answer here as recorded from running
//! servers, Ollama as its published API says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::answers::{chat, chat_body, healthy, json, models};
use crate::support::app::{CHEAPEST_FIRST, Node, Router, ask, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;

/// llama.cpp while it loads: on every path.
const LOADING: &str = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
/// Ollama's `GET /api/version`.
const VERSION: &str = r#"{"version":"0.33.0"}"#;

/// How a health page answers.
type Page = fn() -> Vec<Step>;
/// Makes a node's endpoint one of a kind.
type Kind = fn(Node) -> Node;

/// A server that is healthy on `page` alone and answers chats.
async fn healthy_on(page: &'static str, answer: Page) -> FakeEndpoint {
    FakeEndpoint::start(move |request| match request.head.path() {
        path if path == page => answer(),
        _ if request.head.method() == "POST" => chat("m", "hello"),
        _ => json(404, r#"{"error":"not found"}"#),
    })
    .await
}

async fn state_of(router: &Router) -> String {
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    shown["destinations"][0]["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_kind_is_asked_on_its_own_health_page() {
    let version: Page = || json(200, VERSION);
    let status: Page = || json(200, r#"{"status":"ok"}"#);
    let cases: [(&str, Page, Kind); 5] = [
        ("/health", healthy, |node| node),
        ("/health", status, Node::llamacpp),
        ("/api/version", version, Node::ollama),
        ("/v1/models", || models(&["m"]), Node::openai),
        // It has no page of models.
        ("/", healthy, Node::openai),
    ];
    for (page, answer, kind) in cases {
        let endpoint = healthy_on(page, answer).await;
        let router =
            Router::start(&[kind(node("a", format!("{}/v1", endpoint.url())))], CHEAPEST_FIRST).await;
        assert_eq!(state_of(&router).await, "ready", "{page}");
        assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "hello"), "{page}");
    }
}

#[tokio::test]
async fn a_llamacpp_that_loads_is_waited_for() {
    let has_loaded = Arc::new(AtomicBool::new(false));
    let loaded = Arc::clone(&has_loaded);
    let endpoint = FakeEndpoint::start(move |request| match loaded.load(Ordering::Relaxed) {
        false => json(503, LOADING),
        true if request.head.method() == "POST" => chat("m", "hello"),
        true => json(200, r#"{"status":"ok"}"#),
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url()).llamacpp()], CHEAPEST_FIRST).await;
    assert_eq!(state_of(&router).await, "loading");
    let answer = router.chat(&ask("m")).await;
    assert_eq!((answer.head.status(), answer.head.header("x-should-retry").as_deref()), (503, Some("true")));
    assert!(answer.text().contains("1 loading"), "{}", answer.text());
    has_loaded.store(true, Ordering::Relaxed);
    let is_up = |metrics: &Metrics| metrics.count("cema_endpoint_up", &[]) == 1;
    router.metrics_reach("the model to be loaded", is_up).await;
    assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "hello"));
}

#[tokio::test]
async fn a_503_of_other_servers_is_no_loading() {
    // vLLM's health page says 503 once its engine has died; while it loads it does not even listen.
    let endpoint = FakeEndpoint::start(|_| json(503, "")).await;
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    assert_eq!(state_of(&router).await, "down");
}

#[tokio::test]
async fn ollama_is_told_the_cap_in_its_own_words_and_nothing_else_changes() {
    let endpoint = healthy_on("/api/version", || json(200, VERSION)).await;
    let router = Router::start(&[node("a", endpoint.url()).ollama()], CHEAPEST_FIRST).await;
    let request = |caps: &str| {
        format!(
            r#"{{"seed":18446744073709551617, "model":"m",{caps}"messages":[{{"role":"user","content":"max_completion_tokens"}}]}}"#
        )
    };
    for (n, (caps, expected)) in [
        (r#""max_completion_tokens" : 5 ,"#, r#""max_tokens" : 5 ,"#),
        (r#""max_tokens":9,"max_completion_tokens":5,"#, r#""max_tokens":5,"max_completion_tokens":5,"#),
        (r#""max_tokens":9,"#, r#""max_tokens":9,"#),
        ("", ""),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(router.chat(&request(caps)).await.head.status(), 200);
        assert_eq!(endpoint.posts()[n].body, request(expected), "{caps}");
    }
}
