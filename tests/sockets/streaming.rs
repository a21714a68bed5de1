//! Streams over real sockets: every byte as the endpoint wrote it, at once, and no end that looks better than
//! it was.

use std::sync::Arc;
use std::time::Duration;

use crate::support::answers::{
    DONE_EVENT, chat, chat_events, chat_stream, chunk, delta_event, finish_event, json, last_chunk,
    role_event, stream_head, stream_in_chunks, write,
};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Router, ask_stream, llm, node, priced};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::kernel::{HELD_MAX, at_rest};
use crate::support::raw_client::{Answer, RawClient};
use async_openai::types::chat::CreateChatCompletionStreamResponse;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const AT_ONCE: &str = "window: {max_ms: 0}\n";

/// A router over one endpoint that answers every request with `script`.
async fn over(script: Vec<Step>, sections: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(move |_| script.clone()).await;
    let router = Router::start(&[node("a", endpoint.url())], sections).await;
    (endpoint, router)
}

/// Data of every event.
fn events(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
}

/// The error event that ends a stream that was cut.
fn cut_with(answer: &Answer) -> serde_json::Value {
    assert!(!answer.is_complete, "a cut stream must not end well: {}", answer.text());
    let text = answer.text();
    assert!(!text.contains("[DONE]"), "{text}");
    let last = events(&text).pop().unwrap_or_else(|| panic!("no event: {text}")).to_owned();
    serde_json::from_str::<serde_json::Value>(&last).unwrap()["error"].take()
}

async fn open_stream(router: &Router) -> RawClient {
    let mut client = router.client().await;
    client.post(CHAT, "", &ask_stream("m")).await;
    client
}

/// The HTTP chunks of a stream until they hold `words`.
async fn read_until(client: &mut RawClient, words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        let chunk = client.chunk().await.unwrap().unwrap_or_else(|| panic!("ended after {text}"));
        text.push_str(&String::from_utf8(chunk).unwrap());
    }
    text
}

#[tokio::test]
async fn events_pass_byte_for_byte_however_they_are_split() {
    // katanemo/plano#980, BerriAI/litellm#30224, vllm-project/aibrix#2653.
    let odd = ": hello\n\nid: 1\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"n\":1e400,\"n\":2}\r\n\r\nevent: x\ndata: two\ndata: lines\n\n";
    let events = format!("{odd}{}", chat_events("m", &["日本語", "🙂é", "a\"}\n\n{\"b"]));
    for size in [1, 7, 64, events.len()] {
        let (_endpoint, router) = over(stream_in_chunks(&events, size, Duration::ZERO), AT_ONCE).await;
        let answer = router.chat(&ask_stream("m")).await;
        assert!(answer.is_complete);
        assert_eq!(answer.text(), events, "chunks of {size}");
        let header = |name: &str| answer.head.header(name).unwrap_or_default();
        assert_eq!(answer.head.status(), 200);
        assert_eq!(
            (header("content-type"), header("content-length")),
            ("text/event-stream".into(), String::new())
        );
        assert_eq!((header("cache-control"), header("x-accel-buffering")), ("no-cache".into(), "no".into()));
        assert_eq!((header("x-cema-destination"), header("x-cema-attempts")), ("a/m".into(), "1".into()));
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok"), ("stream", "true")]), 1);
        assert_eq!(metrics.count("cema_time_to_first_token_seconds_count", &[]), 1);
    }
}

#[tokio::test]
async fn chunks_are_what_typed_clients_expect() {
    let (_endpoint, router) = over(chat_stream("m", &["hel", "lo"]), AT_ONCE).await;
    let text = router.chat(&ask_stream("auto")).await.text();
    let mut said = String::new();
    for data in events(&text).into_iter().filter(|data| *data != "[DONE]") {
        let typed: CreateChatCompletionStreamResponse = serde_json::from_str(data).unwrap();
        said.push_str(typed.choices[0].delta.content.as_deref().unwrap_or_default());
    }
    assert_eq!(said, "hello");
}

#[tokio::test]
async fn every_event_is_passed_on_at_once() {
    let gate = Arc::new(Semaphore::new(0));
    let mut script = vec![stream_head(), chunk(role_event("m"))];
    for word in ["one", "two", "three"] {
        script.extend([chunk(delta_event("m", word)), Step::Gate(Arc::clone(&gate))]);
    }
    script.extend([chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
    let (_endpoint, router) = over(script, AT_ONCE).await;
    let mut client = open_stream(&router).await;
    assert_eq!(client.head().await.status(), 200);
    for word in ["one", "two", "three"] {
        // The endpoint writes nothing more until the client has read this far.
        read_until(&mut client, word).await;
        gate.add_permits(1);
    }
    read_until(&mut client, "[DONE]").await;
    assert_eq!(client.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn nothing_is_committed_before_content() {
    let gate = Arc::new(Semaphore::new(0));
    let preamble = format!(": comment\n\n{}", role_event("m"));
    let script = vec![
        stream_head(),
        chunk(&preamble),
        Step::Gate(Arc::clone(&gate)),
        chunk(delta_event("m", "a")),
        chunk(finish_event("m")),
        chunk(DONE_EVENT),
        last_chunk(),
    ];
    let (endpoint, router) = over(script, AT_ONCE).await;
    let mut client = open_stream(&router).await;
    endpoint.posts_reach(1).await;
    assert!(client.stays_silent(Duration::from_millis(100)).await);
    gate.add_permits(1);
    let answer = client.answer().await;
    assert_eq!(
        answer.text(),
        format!("{preamble}{}{}{DONE_EVENT}", delta_event("m", "a"), finish_event("m"))
    );
}

#[tokio::test]
async fn a_long_preamble_is_not_held_for_ever() {
    let comments = ": still here\n\n".repeat(700);
    let script = vec![stream_head(), chunk(&comments), Step::WaitClientClose];
    let (_endpoint, router) = over(script, AT_ONCE).await;
    let mut client = open_stream(&router).await;
    assert_eq!(client.head().await.status(), 200);
    let passed = read_until(&mut client, &comments).await;
    assert_eq!(passed, comments);
}

#[tokio::test]
async fn a_stream_that_breaks_says_so_and_does_not_end_well() {
    let said = format!("{}{}", role_event("m"), delta_event("m", "a"));
    let half = "data: {\"choices\":[{\"del";
    let other_choice_ends = "data: {\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    for (what, tail) in [
        ("closed between events", vec![Step::Close]),
        ("reset between events", vec![Step::Reset]),
        ("closed in an event", vec![chunk(half), Step::Close]),
        ("closed in an event after a line", vec![chunk("data: {\"choices\":[]}\n"), Step::Close]),
        // openai-python takes a blank line after an `id:` for an event.
        ("closed in an event with an id", vec![chunk("id: 2\n"), chunk(half), Step::Close]),
        ("closed in an event with an id and a line", vec![chunk("id: 2\ndata: {}\n"), Step::Close]),
        ("closed after an event with an id", vec![chunk("id: 2\ndata: {}\n\n"), chunk(half), Step::Close]),
        ("closed in a chunk", vec![write("ff\r\ndata: {"), Step::Close]),
        // What a proxy in between makes of a server that died.
        ("ended by HTTP alone", vec![last_chunk()]),
        ("ended by HTTP alone before every choice", vec![chunk(other_choice_ends), last_chunk()]),
        ("ended by HTTP alone in an event", vec![chunk(half), last_chunk()]),
        ("ended by HTTP alone after a line", vec![chunk("data: {\"choices\":[]}\n"), last_chunk()]),
    ] {
        let script = [vec![stream_head(), chunk(&said)], tail].concat();
        let (_endpoint, router) = over(script, AT_ONCE).await;
        let answer = router.chat(&ask_stream("m")).await;
        assert_eq!(answer.head.status(), 200);
        assert!(answer.text().starts_with(&said), "{what}");
        assert!(!answer.text().contains("\n\n\n"), "{what}: an empty event");
        // SDKs parse every event and give up on one that is cut in half.
        for data in events(&answer.text()) {
            serde_json::from_str::<serde_json::Value>(data).unwrap_or_else(|_| panic!("{what}: {data}"));
        }
        let error = cut_with(&answer);
        assert!(error["message"].as_str().unwrap().contains("endpoint"), "{what}: {error}");
        assert!(error["type"].is_string() && error["code"].is_string() && error["param"].is_null(), "{what}");
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "failed")]), 1, "{what}");
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 0, "{what}");
    }
}

#[tokio::test]
async fn a_finished_stream_without_done_is_whole() {
    let events = format!("{}{}", delta_event("m", "a"), finish_event("m"));
    for end in [last_chunk(), Step::Close] {
        let is_clean = matches!(end, Step::Write(_));
        let (_endpoint, router) = over(vec![stream_head(), chunk(&events), end], AT_ONCE).await;
        let answer = router.chat(&ask_stream("m")).await;
        assert!(answer.text().starts_with(&events));
        assert_eq!(answer.is_complete, is_clean);
    }
    let closed_by_the_end = vec![
        write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"),
        write(&events),
        write(DONE_EVENT),
        Step::Close,
    ];
    let (_endpoint, router) = over(closed_by_the_end, AT_ONCE).await;
    let answer = router.chat(&ask_stream("m")).await;
    assert_eq!((answer.text(), answer.is_complete), (format!("{events}{DONE_EVENT}"), true));
}

#[tokio::test]
async fn what_happens_after_done_is_no_concern_of_clients() {
    let events = format!("{}{}{DONE_EVENT}", delta_event("m", "a"), finish_event("m"));
    for (what, tail) in [
        ("closes", vec![Step::Close]),
        ("resets", vec![Step::Pause(Duration::from_millis(50)), Step::Reset]),
        ("closes in a chunk", vec![write("5\r\n: b"), Step::Close]),
        ("falls silent", vec![Step::WaitClientClose]),
    ] {
        let script = [vec![stream_head(), chunk(&events)], tail].concat();
        let (endpoint, router) = over(script, &format!("{AT_ONCE}timeouts: {{idle_ms: 200}}\n")).await;
        let answer = router.chat(&ask_stream("m")).await;
        assert!(answer.is_complete && answer.text().starts_with(&events), "{what}: {}", answer.text());
        assert!(!answer.text().contains("error"), "{what}: {}", answer.text());
        if what == "falls silent" {
            endpoint.answers_cut_reach(1).await;
        }
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 1, "{what}");
        assert_eq!(metrics.count("cema_requests_total", &[]), 1, "{what}");
    }
}

#[tokio::test]
async fn an_error_event_of_the_endpoint_is_passed_on_and_counts_as_a_failure() {
    let error = "data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\n";
    let script =
        vec![stream_head(), chunk(delta_event("m", "a")), chunk(error), chunk(DONE_EVENT), last_chunk()];
    let (_endpoint, router) = over(script, AT_ONCE).await;
    let answer = router.chat(&ask_stream("m")).await;
    assert_eq!(answer.text(), format!("{}{error}{DONE_EVENT}", delta_event("m", "a")));
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "failed")]), 1);
}

#[tokio::test]
async fn errors_in_other_forms_reach_the_client_as_openai_puts_them() {
    let flat = r#"{"object":"error","message":"EngineCore died","type":"t","param":null,"code":500}"#;
    let put = "data: {\"error\":{\"code\":\"500\",\"message\":\"EngineCore died\",\"param\":null,\"type\":\"t\"}}\n\n";
    for error in [format!("data: {flat}\n\n"), format!("event: error\ndata: {flat}\n\n")] {
        let said = delta_event("m", "a");
        let (_endpoint, router) =
            over(stream_in_chunks(&format!("{said}{error}"), 11, Duration::ZERO), AT_ONCE).await;
        assert_eq!(router.chat(&ask_stream("m")).await.text(), format!("{said}{put}"));
        assert_eq!(router.idle().await.count("cema_requests_total", &[("outcome", "failed")]), 1);
        // Before any content another endpoint takes over.
        let first = stream_in_chunks(&error, 11, Duration::ZERO);
        let (a, b) = (llm(move |_| first.clone()).await, llm(|_| chat_stream("m", &["b"])).await);
        let nodes = [priced("a", a.url(), 1), priced("b", b.url(), 2)];
        let router = Router::start(&nodes, CHEAPEST_FIRST).await;
        assert_eq!(router.chat(&ask_stream("m")).await.text(), chat_events("m", &["b"]));
    }
}

#[tokio::test]
async fn an_error_event_does_not_tell_where_the_endpoint_is_or_its_key() {
    let endpoint = llm(|request| {
        let (host, key) =
            (request.head.header("host").unwrap(), request.head.header("authorization").unwrap_or_default());
        let error = format!(
            "data: {{\"id\":1.0,\"error\":{{\"message\":\"lost http://{host}/v1, {key}\",\"code\":500}}}}\n\n"
        );
        // Its address in what a model says is no concern of ours.
        let said = delta_event("m", &format!("see {host}"));
        stream_in_chunks(&format!("{said}{error}{DONE_EVENT}"), 11, Duration::ZERO)
    })
    .await;
    let with_key = node("a", endpoint.url()).endpoint("api_key_env: ENDPOINT_KEY");
    let router = Router::start(&[with_key], AT_ONCE).await;
    let said = delta_event("m", &format!("see {}", endpoint.addr()));
    let error = "data: {\"id\":1.0,\"error\":{\"message\":\"lost http://(endpoint)/v1, Bearer (endpoint)\",\"code\":500}}\n\n";
    assert_eq!(router.chat(&ask_stream("m")).await.text(), format!("{said}{error}{DONE_EVENT}"));
}

#[tokio::test]
async fn a_stalled_stream_is_cut_and_its_connection_freed() {
    let script = vec![stream_head(), chunk(delta_event("m", "a")), Step::WaitClientClose];
    let (endpoint, router) = over(script, &format!("{AT_ONCE}timeouts: {{idle_ms: 200}}\n")).await;
    let began = Instant::now();
    let answer = router.chat(&ask_stream("m")).await;
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert!(cut_with(&answer)["message"].as_str().unwrap().contains("stopped sending"));
    endpoint.answers_cut_reach(1).await;
    router.idle().await;
}

#[tokio::test]
async fn a_slow_but_steady_stream_lives() {
    let mut script = vec![stream_head()];
    for word in ["a", "b", "c", "d", "e", "f"] {
        script.extend([chunk(delta_event("m", word)), Step::Pause(Duration::from_millis(250))]);
    }
    script.extend([chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
    let limits = "timeouts: {idle_ms: 1200, first_token_ms: 1200, first_byte_ms: 1200}\n";
    let (_endpoint, router) = over(script, &format!("{AT_ONCE}{limits}")).await;
    let answer = router.chat(&ask_stream("m")).await;
    assert!(answer.is_complete && answer.text().ends_with(DONE_EVENT), "{}", answer.text());
}

#[tokio::test]
async fn a_silent_stream_is_committed_and_kept_alive() {
    // theopenco/llmgateway#2334: a comment must not be followed by a blank line.
    let said = format!("{}{}{DONE_EVENT}", delta_event("m", "a"), finish_event("m"));
    for (what, head_first) in [("head, then silence", true), ("no head", false)] {
        let gate = Arc::new(Semaphore::new(0));
        let mut script = vec![Step::Gate(Arc::clone(&gate)), chunk(&said), last_chunk()];
        script.insert(usize::from(!head_first), stream_head());
        let (_endpoint, router) =
            over(script, &format!("{AT_ONCE}timeouts: {{commit_after_ms: 50}}\n")).await;
        let mut client = open_stream(&router).await;
        let head = client.head().await;
        assert_eq!(
            (head.status(), head.header("content-type").unwrap()),
            (200, "text/event-stream".into()),
            "{what}"
        );
        assert_eq!(head.header("x-cema-destination").unwrap(), "a/m");
        for _ in 0..3 {
            assert_eq!(client.chunk().await.unwrap().unwrap(), b": ping\n", "{what}");
        }
        gate.add_permits(1);
        let text = read_until(&mut client, DONE_EVENT).await;
        assert_eq!(text.replace(": ping\n", ""), said, "{what}");
        assert_eq!(client.chunk().await.unwrap(), None);
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 1, "{what}");
    }
}

#[tokio::test]
async fn after_commitment_there_is_no_failing_over() {
    let refusal = json(503, r#"{"error":{"message":"overloaded","type":"t","code":"busy"}}"#);
    for (what, tail) in [
        ("closes", vec![stream_head(), Step::Close]),
        ("closes without a head", vec![Step::Close]),
        ("answers with an error", refusal),
        ("answers with something else", chat("m", "whole")),
        ("never answers", vec![Step::WaitClientClose]),
        ("never says anything", vec![stream_head(), Step::WaitClientClose]),
    ] {
        let gate = Arc::new(Semaphore::new(0));
        let script = [vec![Step::Gate(Arc::clone(&gate))], tail].concat();
        let (a, b) = (llm(move |_| script.clone()).await, llm(|_| chat_stream("m", &["b"])).await);
        let limits = "timeouts: {commit_after_ms: 50, first_token_ms: 600, first_byte_ms: 600}\n";
        let nodes = [priced("a", a.url(), 1), priced("b", b.url(), 2)];
        let router = Router::start(&nodes, &format!("{CHEAPEST_FIRST}{limits}")).await;
        let mut client = open_stream(&router).await;
        assert_eq!(client.head().await.status(), 200, "{what}");
        gate.add_permits(1);
        let mut text = String::new();
        let is_cut = loop {
            match client.chunk().await {
                Ok(Some(chunk)) => text.push_str(&String::from_utf8(chunk).unwrap()),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        assert!(is_cut && text.contains("data: {\"error\":{"), "{what}: {text}");
        if what == "answers with an error" {
            let error = r#"{"error":{"code":"busy","message":"overloaded","param":null,"type":"t"}}"#;
            assert!(text.ends_with(&format!("data: {error}\n\n")), "its own words: {text}");
        }
        assert_eq!(b.posts().len(), 0, "{what}");
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "failed")]), 1, "{what}");
    }
}

#[tokio::test]
async fn tokens_are_counted() {
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":33,\"completion_tokens\":5,\"total_tokens\":38}}\n\n";
    let events = format!("{}{}{usage}{DONE_EVENT}", delta_event("m", "all at once"), finish_event("m"));
    let (_endpoint, router) = over(stream_in_chunks(&events, 50, Duration::ZERO), AT_ONCE).await;
    let asked = ask_stream("m").replace("true}", "true,\"stream_options\":{\"include_usage\":true}}");
    assert_eq!(router.chat(&asked).await.text(), events);
    let metrics = router.idle().await;
    let tokens = |kind| metrics.count("cema_tokens_total", &[("destination", "a/m"), ("type", kind)]);
    assert_eq!((tokens("prompt"), tokens("completion")), (33, 5));

    // An endpoint that does not count sends about one event per token.
    let (_endpoint, router) = over(chat_stream("m", &["a", "b", "c"]), AT_ONCE).await;
    router.chat(&ask_stream("m")).await;
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_tokens_total", &[("type", "completion")]), 3);
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_endpoint() {
    let moments: [(&str, Vec<Step>); 3] = [
        ("before the head", vec![]),
        ("before content", vec![stream_head(), chunk(role_event("m"))]),
        ("in mid-stream", vec![stream_head(), chunk(delta_event("m", "a"))]),
    ];
    for (when, mut script) in moments {
        let has_content = when == "in mid-stream";
        script.push(Step::WaitClientClose);
        let (endpoint, router) = over(script, AT_ONCE).await;
        let mut client = open_stream(&router).await;
        endpoint.posts_reach(1).await;
        if has_content {
            client.head().await;
            read_until(&mut client, "\"a\"").await;
        }
        let left = Instant::now();
        client.reset();
        endpoint.answers_cut_reach(1).await;
        assert!(left.elapsed() < Duration::from_secs(1), "{when}: {:?}", left.elapsed());
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "client_gone")]), 1, "{when}");
        assert!(metrics.sum("cema_backlog_seconds", &[]).abs() < 1e-9, "{when}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_after_done_got_everything() {
    let script = [chat_stream("m", &["a"]), vec![]].concat();
    let without_the_last_chunk = [&script[..script.len() - 1], &[Step::WaitClientClose]].concat();
    let (_endpoint, router) = over(without_the_last_chunk, AT_ONCE).await;
    let mut client = open_stream(&router).await;
    client.head().await;
    read_until(&mut client, "[DONE]").await;
    drop(client);
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 1);
}

#[tokio::test]
async fn every_event_names_the_model_asked_for_where_that_is_configured() {
    let events = chat_events("qwen2.5:7b", &["日本", "語"]);
    for size in [1, 50, events.len()] {
        let script = stream_in_chunks(&events, size, Duration::ZERO);
        let (_endpoint, router) = over(script, &format!("response_model: echo\n{AT_ONCE}")).await;
        let answer = router.chat(&ask_stream("auto")).await;
        assert_eq!(answer.text(), events.replace("qwen2.5:7b", "auto"), "chunks of {size}");
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_stops_the_endpoint_from_writing() {
    // MAXeaglet/commandcode-proxy#20: 646 MB were held for one slow client.
    const N_CHUNKS: usize = 200;
    let written = Arc::new(Semaphore::new(N_CHUNKS));
    let megabyte = chunk(delta_event("m", &"x".repeat(1 << 20)));
    let mut script = vec![stream_head()];
    for _ in 0..N_CHUNKS {
        script.extend([Step::Gate(Arc::clone(&written)), megabyte.clone()]);
    }
    script.extend([chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
    let (endpoint, router) = over(script, AT_ONCE).await;
    let mut client = open_stream(&router).await;
    client.head().await;
    let (left, kernel) = at_rest(&written, &[router.api().port(), endpoint.addr().port()]).await;
    let held = ((N_CHUNKS - left) << 20).saturating_sub(kernel);
    assert!(left > 0 && held < HELD_MAX, "{held} bytes are held, {left} MiB not yet written");
    let mut n_bytes = 0;
    while let Some(chunk) = client.chunk().await.unwrap() {
        n_bytes += chunk.len();
    }
    assert!(n_bytes > N_CHUNKS << 20, "the rest comes once it reads");
}
