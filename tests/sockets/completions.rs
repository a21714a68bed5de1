//! `POST /v1/completions` over real sockets: the same path as chat, with prompts in place of messages.

use crate::support::answers::{chat_body, completion_body, completion_events, json, stream_in_chunks};
use crate::support::app::{CHEAPEST_FIRST, COMPLETIONS, Router, llm, node, priced};
use crate::support::fake_endpoint::FakeEndpoint;

const AT_ONCE: &str = "window: {max_ms: 0}\n";
const UPSTREAM: &str = "{name: m, upstream: 'org/up:7b', context_tokens: 1000}";

/// A router over one endpoint that knows `m` as `org/up:7b` and completes every prompt.
async fn completing(sections: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(|_| json(200, &completion_body("org/up:7b", " there"))).await;
    let router = Router::start(&[node("a", endpoint.url()).model(UPSTREAM)], sections).await;
    (endpoint, router)
}

#[tokio::test]
async fn a_completion_passes_byte_for_byte_and_is_described() {
    let (endpoint, router) = completing(AT_ONCE).await;
    let body = "{\"prompt\" : \"Hello \\ud800\",\"model\":\"m\",\"seed\":18446744073709551617,\"suffix\":null,\"x\":1e400,\"x\":2}";
    let answer = router.post(COMPLETIONS, "x-cema-debug: true\r\n", body).await;
    assert_eq!((answer.head.status(), answer.text()), (200, completion_body("org/up:7b", " there")));
    let sent = &endpoint.posts()[0];
    assert_eq!(sent.head.path(), "/v1/completions");
    assert_eq!(sent.body, body.replace("\"m\"", "\"org/up:7b\""));
    for (name, value) in [("x-cema-destination", "a/m"), ("x-cema-model", "m"), ("x-cema-attempts", "1")] {
        assert_eq!(answer.head.header(name).unwrap(), value);
    }
    for name in ["x-request-id", "x-cema-batch", "x-cema-window-ms", "x-cema-policy", "x-cema-predicted"] {
        assert!(answer.head.header(name).is_some(), "{name}");
    }
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_tokens_total", &[("type", "prompt")]), 5);
    assert_eq!(metrics.count("cema_tokens_total", &[("type", "completion")]), 2);
}

#[tokio::test]
async fn every_form_of_a_prompt_is_taken_and_others_are_refused_by_name() {
    let (endpoint, router) = completing(AT_ONCE).await;
    let forms = [r#""text""#, r#""""#, r#"["one","two"]"#, "[1,2,3]", "[[1,2],[3]]"];
    for prompt in forms {
        let body = format!(r#"{{"model":"auto","prompt":{prompt},"n":2,"best_of":4,"max_tokens":5}}"#);
        let answer = router.post(COMPLETIONS, "", &body).await;
        assert_eq!(answer.head.status(), 200, "{prompt}: {}", answer.text());
    }
    assert_eq!(endpoint.posts().len(), forms.len());
    for (fields, code) in [
        ("", "missing_required_parameter"),
        (r#","prompt":null"#, "invalid_type"),
        (r#","prompt":{"a":1}"#, "invalid_type"),
        (r#","prompt":[]"#, "invalid_value"),
        (r#","messages":[{"role":"user","content":"x"}]"#, "missing_required_parameter"),
    ] {
        let answer = router.post(COMPLETIONS, "", format!(r#"{{"model":"m"{fields}}}"#)).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.head.status(), error["code"].as_str().unwrap()), (400, code), "{fields}");
        assert_eq!(error["param"], "prompt", "{fields}");
    }
}

#[tokio::test]
async fn each_prompt_must_fit_the_context_alone() {
    let (_endpoint, router) = completing(AT_ONCE).await;
    let of_600_tokens = "x".repeat(2_400);
    let with =
        |prompts: &str, cap: u32| format!(r#"{{"model":"m","prompt":[{prompts}],"max_tokens":{cap}}}"#);
    let three = with(&format!(r#""{of_600_tokens}","{of_600_tokens}","{of_600_tokens}""#), 400);
    assert_eq!(router.post(COMPLETIONS, "", three).await.head.status(), 200);
    let answer = router.post(COMPLETIONS, "", with(&format!(r#""a","{of_600_tokens}""#), 401)).await;
    assert_eq!(answer.head.status(), 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(answer.json()["error"]["param"], "prompt");
}

#[tokio::test]
async fn a_streamed_completion_passes_with_the_model_as_configured() {
    let events = completion_events("org/up:7b", &["Once", " upon", " \u{65e5}"]);
    let script = stream_in_chunks(&events, 7, std::time::Duration::ZERO);
    let endpoint = llm(move |_| script.clone()).await;
    let nodes = [node("a", endpoint.url()).model(UPSTREAM)];
    let body = r#"{"model":"auto","prompt":"Tell","stream":true}"#;
    for (mode, model) in [("resolved", "org/up:7b"), ("echo", "auto")] {
        let router = Router::start(&nodes, &format!("response_model: {mode}\n{AT_ONCE}")).await;
        let answer = router.post(COMPLETIONS, "", body).await;
        assert!(answer.is_complete);
        assert_eq!(answer.text(), events.replace("org/up:7b", model));
        assert_eq!(answer.head.header("content-type").unwrap(), "text/event-stream");
        assert_eq!(answer.head.header("x-cema-destination").unwrap(), "a/m");
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_tokens_total", &[("type", "completion")]), 3);
    }
}

#[tokio::test]
async fn an_answer_without_a_choice_fails_over() {
    let empty = llm(|_| json(200, r#"{"object":"list","data":[{"embedding":[1]}]}"#)).await;
    let good = llm(|_| json(200, &completion_body("m", "b"))).await;
    let nodes = [priced("a", empty.url(), 1), priced("b", good.url(), 2)];
    let router = Router::start(&nodes, CHEAPEST_FIRST).await;
    let answer = router.post(COMPLETIONS, "", r#"{"model":"m","prompt":"x"}"#).await;
    assert_eq!((answer.head.status(), answer.text()), (200, completion_body("m", "b")));
    assert_eq!(answer.head.header("x-cema-attempts").unwrap(), "2");
}

#[tokio::test]
async fn a_model_that_cannot_complete_is_named() {
    let endpoint = llm(|_| json(200, &chat_body("e", "never"))).await;
    let nodes = [node("a", endpoint.url()).model("{name: e, capabilities: [embedding]}")];
    let router = Router::start(&nodes, AT_ONCE).await;
    for model in ["e", "auto"] {
        let body = format!(r#"{{"model":"{model}","prompt":"x"}}"#);
        let answer = router.post(COMPLETIONS, "", body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.head.status(), error["code"].as_str().unwrap()), (400, "unsupported_capability"));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{model}` does not offer chat")), "{message}");
    }
    assert_eq!(endpoint.posts().len(), 0);
}
