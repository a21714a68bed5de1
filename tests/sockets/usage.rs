//! Tokens of streams are counted whether or not the client asked for it, and the client does not notice.

use std::time::Duration;

use crate::support::answers::{
    DONE_EVENT, chat, delta_event, finish_event, json, role_event, stream_in_chunks,
};
use crate::support::app::{CHEAPEST_FIRST, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Recorded, Step};

const USAGE: &str = "data: {\"id\":\"chatcmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":33,\"completion_tokens\":5}}\n\n";
const ASKED: &str = r#""stream_options":{"include_usage":true}"#;

fn words() -> String {
    format!("{}{}{}", role_event("m"), delta_event("m", "all \"usage\" at once"), finish_event("m"))
}

/// Answers as servers do: with the counts if and only if they are asked for.
fn answer(request: &Recorded, size: usize) -> Vec<Step> {
    let asks = String::from_utf8_lossy(&request.body).contains(ASKED);
    let usage = if asks { USAGE } else { "" };
    stream_in_chunks(&format!("{}{usage}{DONE_EVENT}", words()), size, Duration::ZERO)
}

fn body_of(endpoint: &FakeEndpoint, n: usize) -> String {
    String::from_utf8(endpoint.posts()[n].body.to_vec()).unwrap()
}

#[tokio::test]
async fn counts_are_asked_for_and_kept_from_clients_that_did_not_ask() {
    for size in [1, 7, 60, 10_000] {
        let endpoint = llm(move |request| answer(request, size)).await;
        let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
        let got = router.chat(&ask_stream("m")).await;
        assert_eq!((got.text(), got.is_complete), (format!("{}{DONE_EVENT}", words()), true), "{size}");
        let sent = ask_stream("m").replace("true}", &format!("true,{ASKED}}}"));
        assert_eq!(body_of(&endpoint, 0), sent, "one member more and nothing else");
        let metrics = router.idle().await;
        let tokens = |kind| metrics.count("cema_tokens_total", &[("destination", "a/m"), ("type", kind)]);
        assert_eq!((tokens("prompt"), tokens("completion")), (33, 5), "{size}");
    }
}

#[tokio::test]
async fn a_client_that_asked_gets_what_it_asked_for() {
    let endpoint = llm(|request| answer(request, 60)).await;
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    let asked = ask_stream("m").replace("true}", &format!("true,{ASKED}}}"));
    assert_eq!(router.chat(&asked).await.text(), format!("{}{USAGE}{DONE_EVENT}", words()));
    assert_eq!(body_of(&endpoint, 0), asked);
    // Options without that one keep theirs.
    let options = ask_stream("m").replace("true}", r#"true,"stream_options":{"x":1}}"#);
    assert_eq!(router.chat(&options).await.text(), format!("{}{DONE_EVENT}", words()));
    assert_eq!(body_of(&endpoint, 1), options.replace("\"x\":1", r#""x":1,"include_usage":true"#));
}

#[tokio::test]
async fn answers_in_one_piece_and_switched_off_endpoints_are_left_as_they_are() {
    let endpoint = llm(|request| match request.body.ends_with(b"true}") {
        true => answer(request, 60),
        false => chat("m", "whole"),
    })
    .await;
    let off = node("a", endpoint.url()).endpoint("inject_usage: false");
    let router = Router::start(&[off], CHEAPEST_FIRST).await;
    for (n, body) in [ask("m"), ask_stream("m")].iter().enumerate() {
        assert_eq!(router.chat(body).await.head.status(), 200);
        assert_eq!(body_of(&endpoint, n), *body);
    }
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    router.chat(&ask("m")).await;
    assert_eq!(body_of(&endpoint, 2), ask("m"));
}

#[tokio::test]
async fn llamacpp_counts_by_itself_and_keeps_its_timings() {
    let events = include_str!("../fixtures/wire/llamacpp-stream.txt").split_once("\n\n").unwrap().1;
    let endpoint = llm(|_| stream_in_chunks(events, 100, Duration::ZERO)).await;
    let router = Router::start(&[node("a", endpoint.url()).llamacpp()], CHEAPEST_FIRST).await;
    assert_eq!(router.chat(&ask_stream("m")).await.text(), events);
    assert_eq!(body_of(&endpoint, 0), ask_stream("m"));
    let metrics = router.idle().await;
    let tokens = |kind| metrics.count("cema_tokens_total", &[("destination", "a/m"), ("type", kind)]);
    assert_eq!((tokens("prompt"), tokens("completion")), (33, 5));
}

#[tokio::test]
async fn an_endpoint_that_refuses_stream_options_is_asked_once_more_without() {
    let refusal = r#"{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error","param":null,"code":null}}"#;
    let endpoint = llm(move |request| match request.body.ends_with(b"true}") {
        true => answer(request, 60),
        false => json(400, refusal),
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    for n_sent in [2, 3] {
        let got = router.chat(&ask_stream("m")).await;
        assert_eq!(got.text(), format!("{}{DONE_EVENT}", words()));
        assert_eq!(got.head.header("x-cema-attempts").unwrap(), "1");
        assert_eq!(endpoint.posts().len(), n_sent, "it is remembered");
    }
    // What a client asked for itself is its own affair.
    let asked = ask_stream("m").replace("true}", &format!("true,{ASKED}}}"));
    let got = router.chat(&asked).await;
    assert_eq!((got.head.status(), endpoint.posts().len()), (400, 4));
    assert_eq!(router.idle().await.count("cema_upstream_attempts_total", &[]), 1);
}
