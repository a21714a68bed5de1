//! Errors: inside a 200, in prose that names too much, in the middle of a stream.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{AT_ONCE, ECHO};
use crate::support::answers::{
    DONE_EVENT, chat_events, chat_stream, chunk, coded, delta_event, gzip, json, role_event, stream_head,
    stream_in_chunks,
};
use crate::support::app::{CHEAPEST_FIRST, Router, ask, ask_stream, llm, node, priced};
use crate::support::fake_endpoint::{FakeEndpoint, Step};

const OVERLOADED: &str = r#"{"error":{"message":"overloaded","code":503}}"#;

/// Streams that are no answer, each a whole body behind a 200.
fn empty_streams() -> Vec<(&'static str, String)> {
    let event = |data: &str| format!("data: {data}\n\n");
    let error = event(OVERLOADED);
    vec![
        ("an error", error.clone()),
        ("an error and the end", format!("{error}{DONE_EVENT}")),
        ("after comments", format!(": a\n\n: b\n\n{error}")),
        ("after a role", format!("{}{error}", role_event("m"))),
        ("as an event of its own", format!("event: error\r\ndata: {OVERLOADED}\r\n\r\n")),
        ("behind a byte-order mark", format!("\u{feff}{error}")),
        ("over several lines", "data: {\"error\":\ndata: {\"message\":\"overloaded\"}}\n\n".to_owned()),
        ("without the last line", error.trim_end().to_owned()),
        ("a text", event(r#"{"error":"overloaded"}"#)),
        ("another shape", event(r#"{"object":"error","message":"overloaded","code":500}"#)),
        ("with choices", event(r#"{"error":{"message":"x"},"choices":[{"delta":{"content":"no"}}]}"#)),
        ("null", event("null")),
        ("no choices", format!("{}{DONE_EVENT}", event(r#"{"id":"x","choices":[]}"#))),
        ("nothing but the end", DONE_EVENT.to_owned()),
        ("a page", "<html><h1>nginx</h1></html>".to_owned()),
        ("nothing", String::new()),
    ]
}

#[tokio::test]
async fn a_stream_that_is_no_answer_fails_over_however_it_is_split() {
    // openclaw/clawrouter#101, decolua/9router#3242, theopenco/llmgateway#3904, mnfst/llm-gateway#2709.
    let fine = llm(|_| chat_stream("m", &["fine"])).await;
    for (what, body) in empty_streams() {
        for size in [1, 2, 7, 1 << 20] {
            let script = stream_in_chunks(&body, size, Duration::ZERO);
            let bad = llm(move |_| script.clone()).await;
            let nodes = [priced("a", bad.url(), 1), priced("b", fine.url(), 2)];
            let router = Router::start(&nodes, CHEAPEST_FIRST).await;
            let answer = router.chat(&ask_stream("m")).await;
            assert_eq!(
                (answer.head.status(), answer.text()),
                (200, chat_events("m", &["fine"])),
                "{what} {size}"
            );
            assert_eq!(answer.head.header("x-cema-destination").unwrap(), "b/m", "{what}");
            assert_eq!(answer.head.header("x-cema-attempts").unwrap(), "2", "{what}");
            let metrics = router.idle().await;
            assert_eq!(metrics.count("cema_upstream_attempts_total", &[]), 1, "{what}");
            assert_eq!(metrics.count("cema_requests_total", &[("destination", "a/m")]), 0, "{what}");
            assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 1, "{what}");
        }
    }
}

#[tokio::test]
async fn with_one_endpoint_it_is_an_error_with_a_status() {
    let compressed = coded(200, "application/json", "gzip", &gzip(OVERLOADED));
    let streams = empty_streams().into_iter().map(|(what, body)| {
        let is_overload = body.contains("503");
        (what, ask_stream("m"), stream_in_chunks(&body, 2, Duration::ZERO), is_overload)
    });
    let whole = [
        ("an error", json(200, OVERLOADED), true),
        ("a compressed error", compressed, true),
        ("null", json(200, "null"), false),
        ("no choices", json(200, r#"{"id":"x","choices":[]}"#), false),
        ("choices that are null", json(200, r#"{"id":"x","choices":null}"#), false),
    ];
    let whole = whole.into_iter().flat_map(|(what, script, is_overload)| {
        [ask("m"), ask_stream("m")].map(|body| (what, body, script.clone(), is_overload))
    });
    for (what, body, script, is_overload) in streams.chain(whole).collect::<Vec<_>>() {
        let bad = llm(move |_| script.clone()).await;
        let router = Router::start(&[node("a", bad.url())], AT_ONCE).await;
        let answer = router.chat(&body).await;
        assert_eq!(answer.head.status(), if is_overload { 503 } else { 502 }, "{what}: {}", answer.text());
        assert_eq!(answer.head.header("content-type").unwrap(), "application/json", "{what}");
        let error = answer.json()["error"].take();
        for (part, may_be_null) in [("message", false), ("type", false), ("code", true), ("param", true)] {
            let value = &error[part];
            assert!(value.is_string() || (may_be_null && value.is_null()), "{what}: {error}");
        }
        assert_eq!(router.idle().await.count("cema_requests_total", &[("outcome", "ok")]), 0, "{what}");
    }
}

const UPSTREAM: &str = "{name: m, upstream: 'qwen2.5:7b'}";

/// An endpoint that fails with the words of `script`, which is given the text that says too much.
async fn indiscreet(script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> FakeEndpoint {
    let addr = Arc::new(OnceLock::new());
    let own = Arc::clone(&addr);
    let endpoint = llm(move |_| {
        let addr: std::net::SocketAddr = *own.get().unwrap();
        let (host, port) = (addr.ip(), addr.port());
        script(&format!("model 'qwen2.5:7b' not found at http://{addr}/v1 (host {host}, port {port})"))
    })
    .await;
    addr.set(endpoint.addr()).unwrap();
    endpoint
}

#[tokio::test]
async fn prose_of_errors_names_the_model_as_asked_and_no_host() {
    // BerriAI/litellm#5569, #15141, router-for-me/CLIProxyAPI#3965, decolua/9router#1311, appstrate/appstrate#817.
    type Fault = fn(&str) -> Vec<Step>;
    fn error(message: &str) -> String {
        format!(r#"{{"error":{{"message":"{message}","type":"t","param":null,"code":null}}}}"#)
    }
    let faults: [(&str, Fault); 9] = [
        ("400", |text| json(400, &error(text))),
        ("404", |text| json(404, &error(text))),
        ("409", |text| json(409, &error(text))),
        ("429", |text| json(429, &error(text))),
        ("500", |text| json(500, &error(text))),
        ("503", |text| json(503, &error(text))),
        ("in a 200", |text| json(200, &error(text))),
        ("first in a stream", |text| {
            stream_in_chunks(&format!("data: {}\n\n", error(text)), 7, Duration::ZERO)
        }),
        ("in mid-stream", |text| {
            let said = delta_event("qwen2.5:7b", "a");
            stream_in_chunks(&format!("{said}data: {}\n\n{DONE_EVENT}", error(text)), 7, Duration::ZERO)
        }),
    ];
    for (what, fault) in faults {
        let endpoint = indiscreet(fault).await;
        for (sections, model) in [(AT_ONCE, "qwen2.5:7b"), (ECHO, "auto")] {
            let router = Router::start(&[node("a", endpoint.url()).model(UPSTREAM)], sections).await;
            let bodies = [ask("auto"), ask_stream("auto")];
            for body in &bodies[usize::from(what.ends_with("stream"))..] {
                let answer = router.chat(body).await;
                let text = answer.text();
                assert!(
                    text.contains(&format!("model '{model}' not found at http://(endpoint)")),
                    "{what}: {text}"
                );
                assert!(!text.contains("127.0.0.1"), "{what}: {text}");
                assert_eq!(text.contains("qwen"), model != "auto", "{what}: {text}");
                let head = String::from_utf8(answer.head.bytes.clone()).unwrap();
                assert!(!head.contains("127.0.0.1"), "{head}");
                assert_eq!(answer.head.header("x-cema-model").unwrap(), "m", "{what}");
                if what == "429" || what == "503" {
                    // It cools now, and the router speaks for itself.
                    let text = router.chat(body).await.text();
                    assert!(!text.contains("127.0.0.1") && !text.contains("qwen"), "{what}: {text}");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_only_names_its_role_is_left_for_another_one() {
    // zirkelc/ai-retry#51, router-for-me/CLIProxyAPI#2447, BerriAI/litellm#31499.
    let role = role_event("m").replace("chatcmpl-1", "chatcmpl-of-a");
    let script = vec![stream_head(), chunk(role), Step::WaitClientClose];
    let silent = llm(move |_| script.clone()).await;
    let fine = llm(|_| chat_stream("m", &["fine"])).await;
    let nodes = [priced("a", silent.url(), 1), priced("b", fine.url(), 2)];
    let limits = "timeouts: {first_token_ms: 1000, commit_after_ms: 60000}\n";
    let router = Router::start(&nodes, &format!("{CHEAPEST_FIRST}{limits}")).await;
    let began = tokio::time::Instant::now();
    let answer = router.chat(&ask_stream("m")).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    let text = answer.text();
    assert_eq!((text.matches("\"role\"").count(), text.contains("chatcmpl-of-a")), (1, false), "{text}");
    assert_eq!(text, chat_events("m", &["fine"]));
    assert_eq!(answer.head.header("x-cema-attempts").unwrap(), "2");
    silent.answers_cut_reach(1).await;
}
