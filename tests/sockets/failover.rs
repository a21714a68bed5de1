//! Failing over: whatever an endpoint does wrong before its first content, another one makes good, within the
//! constraints of the request and within bounds.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use crate::support::answers::{
    chat, chat_body, chat_events, chat_stream, chunk, json, last_chunk, role_event, stream_head, with_type,
    write,
};
use crate::support::app::{CHEAPEST_FIRST, Node, Router, ask, ask_stream, llm, node, priced};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;
use crate::support::raw_client::Answer;
use tokio::time::Instant;

const LIMITS: &str =
    "timeouts: {first_byte_ms: 300, first_token_ms: 600, idle_ms: 300, commit_after_ms: 60000}\n";

fn error_body(message: &str) -> String {
    format!(r#"{{"error":{{"message":"{message}","type":"t","param":null,"code":"c"}}}}"#)
}

fn refusal(status: u16, headers: &str) -> Vec<Step> {
    let body = error_body("no luck");
    vec![write(format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    ))]
}

/// Faults of an endpoint before any content: what it does, the metric's reason, and the status of a client
/// that has nowhere else to go.
fn faults(stream: bool) -> Vec<(&'static str, Vec<Step>, &'static str, u16)> {
    let in_band = |body: &str| {
        if stream {
            vec![stream_head(), chunk(": wait\n\n"), chunk(format!("data: {body}\n\n")), last_chunk()]
        } else {
            json(200, body)
        }
    };
    let mut faults = vec![
        ("closes at once", vec![Step::Close], "broken", 503),
        ("resets", vec![Step::Reset], "broken", 503),
        ("closes in the head", vec![write("HTTP/1.1 200 OK\r\ncontent-"), Step::Close], "broken", 503),
        ("speaks no HTTP", vec![write("SSH-2.0-OpenSSH_9.2\r\n\r\n"), Step::Close], "unusable", 502),
        ("says nothing", vec![Step::WaitClientClose], "first_byte_timeout", 504),
        ("500", refusal(500, ""), "status_5xx", 502),
        ("502", with_type(502, "text/html", "<html>nginx 10.0.0.7</html>"), "status_5xx", 502),
        ("503", refusal(503, "retry-after: 7\r\n"), "status_503", 503),
        ("429", refusal(429, "retry-after-ms: 2500\r\n"), "status_429", 429),
        ("401", refusal(401, ""), "status_4xx", 502),
        ("404", refusal(404, ""), "status_4xx", 502),
        ("error in a 200", in_band(&error_body("overloaded")), "status_5xx", 502),
        ("503 in a 200", in_band(r#"{"error":{"message":"busy","code":503}}"#), "status_503", 503),
        ("null", json(200, "null"), "status_5xx", 502),
        ("HTML", with_type(200, "text/html", "<html></html>"), "status_5xx", 502),
        ("nothing", json(200, ""), "status_5xx", 502),
        ("no choices", json(200, r#"{"id":"x","choices":[]}"#), "status_5xx", 502),
    ];
    if stream {
        faults.extend([
            ("head, then closes", vec![stream_head(), Step::Close], "broken", 503),
            ("role, then closes", vec![stream_head(), chunk(role_event("m")), Step::Close], "broken", 503),
            ("role, then ends", vec![stream_head(), chunk(role_event("m")), last_chunk()], "unusable", 502),
            (
                "role, then silence",
                vec![stream_head(), chunk(role_event("m")), Step::WaitClientClose],
                "first_token_timeout",
                504,
            ),
        ]);
    } else {
        let half =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"choices\":";
        faults.extend([
            ("closes in the body", vec![write(half), Step::Close], "broken", 503),
            ("stalls in the body", vec![write(half), Step::WaitClientClose], "idle_timeout", 504),
        ]);
    }
    faults
}

async fn over(a: &FakeEndpoint, b: &FakeEndpoint) -> Router {
    let nodes = [priced("a", a.url(), 1), priced("b", b.url(), 2)];
    Router::start(&nodes, &format!("{CHEAPEST_FIRST}{LIMITS}")).await
}

fn header(answer: &Answer, name: &str) -> String {
    answer.head.header(name).unwrap_or_else(|| panic!("no {name}: {}", answer.text()))
}

#[tokio::test]
async fn whatever_fails_before_content_is_made_good_elsewhere() {
    for stream in [false, true] {
        let healthy = if stream { chat_stream("m", &["fine"]) } else { chat("m", "fine") };
        let expected = if stream { chat_events("m", &["fine"]) } else { chat_body("m", "fine") };
        let body = if stream { ask_stream("m") } else { ask("m") };
        for (what, script, reason, _) in faults(stream) {
            let (script, healthy) = (script.clone(), healthy.clone());
            let (a, b) = (llm(move |_| script.clone()).await, llm(move |_| healthy.clone()).await);
            let router = over(&a, &b).await;
            let answer = router.chat(&body).await;
            // Whole, once, from one endpoint: no second role, no second id.
            assert_eq!(
                (answer.head.status(), answer.text(), answer.is_complete),
                (200, expected.clone(), true),
                "{what}"
            );
            assert_eq!(header(&answer, "x-cema-destination"), "b/m", "{what}");
            assert_eq!(header(&answer, "x-cema-attempts"), "2", "{what}");
            // A second time where the first connection was the probe's: it might have been stale.
            assert!(a.posts().len() <= 2 && b.posts().len() == 1, "{what}");
            let metrics = router.idle().await;
            assert_eq!(metrics.count("cema_upstream_attempts_total", &[("reason", reason)]), 1, "{what}");
            assert_eq!(
                metrics.count("cema_requests_total", &[("destination", "b/m"), ("outcome", "ok")]),
                1,
                "{what}"
            );
            assert_eq!(metrics.count("cema_requests_total", &[]), 1, "{what}");
        }
    }
}

#[tokio::test]
async fn the_words_of_a_refusal_are_not_awaited_for_long() {
    let head = "HTTP/1.1 500 Status\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let script = vec![write(head), chunk(error_body("no luck")), Step::WaitClientClose];
    let (a, b) = (llm(move |_| script.clone()).await, llm(move |_| chat("m", "fine")).await);
    // As long as it takes: an endpoint may be silent for a minute in the middle of an answer.
    let nodes = [priced("a", a.url(), 1), priced("b", b.url(), 2)];
    let router = Router::start(&nodes, &format!("{CHEAPEST_FIRST}timeouts: {{idle_ms: 60000}}\n")).await;
    let answer = router.chat(&ask("m")).await;
    assert_eq!((answer.head.status(), answer.text()), (200, chat_body("m", "fine")));
    assert_eq!(header(&answer, "x-cema-destination"), "b/m");
}

#[tokio::test]
async fn errors_of_older_llama_cpp_servers_are_told_as_what_they_are() {
    let said = r#"error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}"#;
    let stream = vec![stream_head(), chunk(format!("{said}\n\n")), last_chunk()];
    let a = llm(move |_| stream.clone()).await;
    let router = Router::start(&[node("a", a.url())], CHEAPEST_FIRST).await;
    for _ in 0..6 {
        // Enough of them to open a circuit, if they were the endpoint's faults.
        let answer = router.chat(&ask_stream("m")).await;
        let error = answer.json()["error"].take();
        assert_eq!(answer.head.status(), 400, "{error}");
        assert_eq!(error["message"], "the request exceeds the available context size");
    }
}

#[tokio::test]
async fn with_nowhere_to_go_the_client_gets_a_real_status() {
    for stream in [false, true] {
        let body = if stream { ask_stream("m") } else { ask("m") };
        for (what, script, _, status) in faults(stream) {
            let a = llm(move |_| script.clone()).await;
            let router = Router::start(&[node("a", a.url())], &format!("{CHEAPEST_FIRST}{LIMITS}")).await;
            let answer = router.chat(&body).await;
            assert_eq!(answer.head.status(), status, "{what}: {}", answer.text());
            let error = answer.json()["error"].take();
            let message = error["message"].as_str().unwrap();
            assert!(!message.is_empty() && error["type"].is_string(), "{what}: {error}");
            for secret in [a.addr().to_string(), "10.0.0.7".to_owned(), "html".to_owned()] {
                assert!(!message.contains(&secret), "{what}: {message}");
            }
            assert_eq!(header(&answer, "x-cema-destination"), "a/m", "{what}");
            assert_eq!(header(&answer, "x-cema-attempts"), "1", "{what}");
            let retry_after = answer.head.header("retry-after-ms");
            let expected = match what {
                "503" => Some("7000"),
                "429" => Some("2500"),
                _ if status == 503 => Some("1000"),
                _ => None,
            };
            assert_eq!(retry_after.as_deref(), expected, "{what}");
            router.idle().await;
        }
    }
}

#[tokio::test]
async fn not_to_be_reached_and_to_break_off_are_told_apart() {
    // Answers the first probe and is gone, so that the request is the first to find out.
    let gone = llm(|_| chat("m", "a")).await;
    let router = Router::start(&[node("a", gone.url())], CHEAPEST_FIRST).await;
    drop(gone);
    let answer = router.chat(&ask("m")).await.text();
    assert!(answer.contains("could not be reached") || answer.contains("1 down"), "{answer}");
    let closing = llm(|_| vec![Step::Close]).await;
    let router = Router::start(&[node("a", closing.url())], CHEAPEST_FIRST).await;
    let answer = router.chat(&ask("m")).await.text();
    assert!(answer.contains("closed the connection before answering"), "{answer}");
}

#[tokio::test]
async fn the_last_failure_is_the_answer() {
    let (a, b) = (llm(|_| refusal(500, "")).await, llm(|_| refusal(429, "retry-after: 7\r\n")).await);
    let router = over(&a, &b).await;
    let answer = router.chat(&ask("m")).await;
    assert_eq!((answer.head.status(), header(&answer, "retry-after")), (429, "7".into()));
    assert_eq!(
        (header(&answer, "x-cema-destination"), header(&answer, "x-cema-attempts")),
        ("b/m".into(), "2".into())
    );
    assert_eq!(answer.json()["error"]["message"], "no luck");
}

#[tokio::test]
async fn a_silent_endpoint_is_left_at_once() {
    // zirkelc/ai-retry#51: role-only delta, then silence.
    let a = llm(|_| vec![stream_head(), chunk(role_event("m")), Step::WaitClientClose]).await;
    let b = llm(|_| chat_stream("m", &["fine"])).await;
    let router = over(&a, &b).await;
    let answer = router.chat(&ask_stream("m")).await;
    assert_eq!(answer.text(), chat_events("m", &["fine"]));
    a.answers_cut_reach(1).await;
}

#[tokio::test]
async fn an_endpoint_that_refuses_connections_is_down_at_once() {
    // It answers the first probe and is gone when the first request comes.
    let a = llm(|_| chat("m", "a")).await;
    let b = llm(|_| chat("m", "b")).await;
    let router = over(&a, &b).await;
    drop(a);
    // Whether a probe or the request finds out first is all the same to the client.
    assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "b"));
    let is_down = |metrics: &Metrics| metrics.count("cema_endpoint_up", &[("endpoint", "a")]) == 0;
    router.metrics_reach("a to be down", is_down).await;
    let answer = router.chat(&ask("m")).await;
    assert_eq!(header(&answer, "x-cema-attempts"), "1");
}

#[tokio::test]
async fn constraints_hold_in_failing_over() {
    let edge = llm(|_| refusal(503, "")).await;
    let cloud = llm(|_| chat("l", "cloud")).await;
    let nodes = [
        node("e", edge.url())
            .model("{name: s, quality_prior: 0.8, context_tokens: 4000, capabilities: [chat, tools]}"),
        node("c", cloud.url())
            .cloud()
            .model("{name: l, quality_prior: 0.4, context_tokens: 2000, price: {request_usd: 1}, capabilities: [chat]}"),
    ];
    let sections = "virtual_models:\n  - {name: auto}\n  - {name: local, placement: edge}\n  - {name: safe, min_quality: 0.6}\n";
    // Asked again at once, although it is overloaded.
    let sections = format!("{sections}{CHEAPEST_FIRST}cooling: {{default_ms: 0}}\n");
    let router = Router::start(&nodes, &sections).await;
    let tools = ask("auto").replace("\"max_tokens\":8", r#""tools":[{"type":"function"}]"#);
    let long = ask("auto").replace("\"max_tokens\":8", "\"max_tokens\":3000");
    for (what, headers, body) in [
        ("placement of the model", "", ask("local")),
        ("placement of the request", "x-cema-placement: edge\r\n", ask("auto")),
        ("quality of the model", "", ask("safe")),
        ("quality of the request", "x-cema-min-quality: 0.5\r\n", ask("auto")),
        ("the model asked for", "", ask("s")),
        ("capabilities", "", tools),
        ("context", "", long),
    ] {
        let answer = router.chat_with(headers, &body).await;
        assert_eq!(answer.head.status(), 503, "{what}");
        assert_eq!(header(&answer, "x-cema-attempts"), "1", "{what}");
        assert_eq!(cloud.posts().len(), 0, "{what}");
    }
    assert_eq!(router.chat(&ask("auto")).await.text(), chat_body("l", "cloud"), "free to go, it goes");
}

#[tokio::test]
async fn a_request_at_fault_is_not_tried_elsewhere() {
    let message = "This model's maximum context length is 1024 tokens. However, you requested 12031 tokens";
    let body = format!(
        r#"{{"error":{{"message":"{message}","type":"BadRequestError","param":"input_tokens","code":"context_length_exceeded"}}}}"#
    );
    for status in [400, 413, 422] {
        let refused = body.clone();
        let (a, b) = (llm(move |_| json(status, &refused)).await, llm(|_| chat("m", "b")).await);
        let router = over(&a, &b).await;
        for body in [ask("m"), ask_stream("m")] {
            let answer = router.chat(&body).await;
            assert_eq!(answer.head.status(), status);
            let error = answer.json()["error"].take();
            assert_eq!(error["message"], message);
            assert_eq!(
                (&error["type"], &error["param"], &error["code"]),
                (&"BadRequestError".into(), &"input_tokens".into(), &"context_length_exceeded".into())
            );
            assert_eq!(header(&answer, "x-cema-destination"), "a/m");
        }
        assert_eq!((a.posts().len(), b.posts().len()), (2, 0));
    }
}

#[tokio::test]
async fn the_routers_own_credentials_are_not_the_clients_concern() {
    for status in [401, 403] {
        let refused = move |_: &_| {
            json(status, &error_body("Incorrect API key provided: sk-abc, see http://10.0.0.7/keys"))
        };
        let a = llm(refused).await;
        let router = Router::start(&[node("a", a.url())], CHEAPEST_FIRST).await;
        let answer = router.chat(&ask("m")).await;
        assert_eq!(answer.head.status(), 502);
        let text = answer.text();
        assert!(
            text.contains("router's credentials") && !text.contains("sk-abc") && !text.contains("10.0.0.7"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn attempts_are_bounded() {
    let mut endpoints = Vec::new();
    for _ in 0..8 {
        endpoints.push(llm(|_| refusal(500, "")).await);
    }
    let nodes: Vec<Node> = (1..)
        .zip(&endpoints)
        .map(|(usd, endpoint)| priced(&format!("n{usd}"), endpoint.url(), usd))
        .collect();
    for (limits, bound) in [("", 3), ("limits: {max_attempts: 6}\n", 6)] {
        let before: Vec<usize> = endpoints.iter().map(|endpoint| endpoint.posts().len()).collect();
        let router = Router::start(&nodes, &format!("{CHEAPEST_FIRST}{limits}")).await;
        let answer = router.chat(&ask("m")).await;
        let attempts = header(&answer, "x-cema-attempts");
        assert_eq!((answer.head.status(), attempts), (502, bound.to_string()));
        let tried = endpoints.iter().zip(before).map(|(endpoint, n)| endpoint.posts().len() - n);
        // Each once, in order of preference.
        assert!(tried.eq((0..8).map(|nth| usize::from(nth < bound))), "{limits}");
        router.idle().await;
    }
}

#[tokio::test]
async fn a_request_that_fails_over_does_not_wait_for_a_window() {
    let (a, b) = (llm(|_| refusal(503, "")).await, llm(|_| chat("m", "b")).await);
    let nodes = [priced("a", a.url(), 1), priced("b", b.url(), 2)];
    let window = "window: {close: fixed, max_ms: 1000}\nrouting: {weights: {cost: 1}}\n";
    let router = Router::start(&nodes, window).await;
    let began = Instant::now();
    let answer = router.chat(&ask("m")).await;
    assert_eq!(answer.text(), chat_body("m", "b"));
    assert!(began.elapsed() >= Duration::from_millis(900), "one window");
    // Two windows would be two seconds.
    assert!(began.elapsed() < Duration::from_millis(1900), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_kept_connection_that_turns_out_closed_is_no_failure() {
    // The server closes an idle connection just as the next request goes out: nobody's fault, no answer lost.
    for (body, end) in [(ask("m"), Step::Close), (ask_stream("m"), Step::Reset)] {
        let used = Mutex::new(BTreeSet::new());
        let endpoint = llm(move |request| {
            let is_used = !used.lock().unwrap().insert(request.connection);
            match request.head.header("x-request-id").as_deref() {
                Some("second") if is_used => vec![end.clone()],
                _ => chat("m", "fine"),
            }
        })
        .await;
        let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
        router.chat(&ask("m")).await;
        let answer = router.chat_with("x-request-id: second\r\n", &body).await;
        assert_eq!((answer.head.status(), answer.text()), (200, chat_body("m", "fine")));
        assert_eq!(header(&answer, "x-cema-attempts"), "1", "not an attempt: no byte of an answer came");
        let sent = endpoint.posts();
        assert_eq!(sent.len(), 3);
        assert_eq!((&sent[1].body, &sent[1].head), (&sent[2].body, &sent[2].head));
        assert_eq!(router.idle().await.count("cema_upstream_attempts_total", &[]), 0);
    }
}

#[tokio::test]
async fn nothing_is_sent_again_once_an_answer_has_begun() {
    let endpoint = llm(|request| match request.head.header("x-request-id").as_deref() {
        Some("first") => chat("m", "first"),
        _ => vec![write("HTTP/1.1 200 OK\r\ncont"), Step::Close],
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    router.chat_with("x-request-id: first\r\n", &ask("m")).await;
    assert_eq!(router.chat(&ask("m")).await.head.status(), 503);
    assert_eq!(endpoint.posts().len(), 2);
}

#[tokio::test]
async fn an_endpoints_words_reach_the_client_from_long_and_plain_answers_too() {
    let long = format!(
        r#"{{"error":{{"message":"too long","code":"context_length_exceeded","input":"{}"}}}}"#,
        "x".repeat(100 << 10)
    );
    let (long, plain, page) = (
        json(400, &long),
        with_type(400, "text/plain; charset=utf-8", "the model takes no images\n"),
        with_type(400, "text/html", "<h1>nginx</h1>"),
    );
    for (answer, message, code) in [
        (long, "too long", Some("context_length_exceeded")),
        (plain, "the model takes no images", None),
        (page, "the endpoint answered with status 400 and no message", None),
    ] {
        let endpoint = llm(move |_| answer.clone()).await;
        let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
        let answer = router.chat(&ask("m")).await;
        let error = answer.json()["error"].take();
        assert_eq!((answer.head.status(), error["message"].as_str()), (400, Some(message)));
        assert_eq!(error["code"].as_str(), code);
    }
}
