//! The wire parts over real sockets: what a scripted server sends is what a raw client sees and a meter reads.

use std::time::Duration;

use crate::support::answers::{
    DONE_EVENT, chat, chat_body, chat_events, chat_stream, chunk, delta_event, healthy, json, last_chunk,
    models, stream_head, stream_in_chunks, with_type, write,
};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::raw_client::RawClient;
use cema_router::domain::ApiCall;
use cema_router::endpoint::meter::StreamMeter;
use cema_router::proxy::openai::{ApiError, parse_request};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":18446744073709551617}"#;

#[tokio::test]
async fn records_the_exact_bytes_of_a_request() {
    let endpoint = FakeEndpoint::start(|_| chat("m", "hello")).await;
    let mut client = RawClient::connect(endpoint.addr()).await;
    client.post("/v1/chat/completions", "X-Odd:  a\r\nx-odd: b\r\n", BODY).await;
    let answer = client.answer().await;
    assert_eq!((answer.head.status(), answer.text()), (200, chat_body("m", "hello")));
    assert_eq!(answer.json()["model"], "m");

    client.send("POST /v1/x HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n").await;
    assert_eq!(client.head().await.status(), 100);
    client.send("3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\ntrailer: t\r\n\r\n").await;
    assert!(client.answer().await.is_complete);

    let requests = endpoint.requests_reach(2).await;
    assert_eq!(requests[0].body, BODY);
    let head = String::from_utf8(requests[0].head.bytes.clone()).unwrap();
    assert!(head.contains("\r\nX-Odd:  a\r\nx-odd: b\r\n\r\n"), "{head}");
    assert_eq!(requests[0].head.all("X-ODD"), ["a", "b"]);
    assert_eq!((requests[1].head.method(), requests[1].head.path()), ("POST".into(), "/v1/x".into()));
    assert_eq!((requests[1].connection, requests[1].ordinal, &requests[1].body[..]), (0, 1, &b"abcde"[..]));
    assert_eq!((endpoint.connections(), endpoint.client_closes()), (1, 0));
    assert_eq!(endpoint.url(), format!("http://{}", endpoint.addr()));
    drop(client);
    endpoint.client_closes_reach(1).await;
}

#[tokio::test]
async fn scripts_follow_the_request() {
    let endpoint = FakeEndpoint::start(|request| match request.head.path().as_str() {
        "/health" => healthy(),
        "/v1/models" => models(&["a", "b/c"]),
        _ => json(404, r#"{"detail":"Not Found"}"#),
    })
    .await;
    let mut client = RawClient::connect(endpoint.addr()).await;
    client.get("/health").await;
    assert_eq!(client.answer().await.body(), b"");
    client.get("/v1/models").await;
    assert_eq!(client.answer().await.json()["data"][1]["id"], "b/c");
    client.send("HEAD /v1/nope HTTP/1.1\r\n\r\n").await;
    let answer = client.answer_to_head().await;
    assert_eq!((answer.head.status(), answer.head.header("content-length").unwrap()), (404, "22".into()));
}

#[tokio::test]
async fn chunk_boundaries_arrive_as_they_were_written() {
    // katanemo/plano#980, graniet/llm#90: the boundaries fall inside characters.
    let events = chat_events("m", &["日本語", "🙂é", "a\"}\n\n{\"b"]);
    for size in [1, 7, 64, events.len()] {
        let script = stream_in_chunks(&events, size, Duration::ZERO);
        let endpoint = FakeEndpoint::start(move |_| script.clone()).await;
        let mut client = RawClient::connect(endpoint.addr()).await;
        client.post("/v1/chat/completions", "", BODY).await;
        let answer = client.answer().await;
        assert_eq!(answer.text(), events);
        assert!(answer.is_complete && answer.chunks.iter().all(|chunk| chunk.len() <= size));
        let mut meter = StreamMeter::new();
        for chunk in &answer.chunks {
            meter.push(chunk);
        }
        assert!(meter.is_done() && meter.is_finished());
        assert_eq!(meter.completion_tokens(), 3);
    }
}

#[tokio::test]
async fn failures_look_as_they_do_in_the_wild() {
    let cut = |end: Step| vec![stream_head(), chunk(delta_event("m", "a")), write("1f\r\ndata: {"), end];
    for (end, script) in [("close", cut(Step::Close)), ("reset", cut(Step::Reset))] {
        let endpoint = FakeEndpoint::start(move |_| script.clone()).await;
        let mut client = RawClient::connect(endpoint.addr()).await;
        client.post("/v1/chat/completions", "", BODY).await;
        let answer = client.answer().await;
        assert!(!answer.is_complete, "{end}");
    }
    let endpoint = FakeEndpoint::start(|_| vec![write("HTTP/1.1 200 OK\r\n\r\n<html>"), Step::Close]).await;
    let mut client = RawClient::connect(endpoint.addr()).await;
    client.get("/").await;
    let answer = client.answer().await;
    assert!(answer.is_complete);
    assert_eq!(answer.head.first_line(), "HTTP/1.1 200 OK");
    assert_eq!(answer.text(), "<html>");
    client.shutdown().await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_hanging_server_sees_its_client_leave() {
    let endpoint = FakeEndpoint::start(|request| match request.ordinal {
        0 => vec![Step::WaitClientClose],
        _ => [chat_stream("m", &["a"]), vec![Step::WaitClientClose]].concat(),
    })
    .await;
    let mut leaves = RawClient::connect(endpoint.addr()).await;
    leaves.get("/a").await;
    endpoint.requests_reach(1).await;
    leaves.reset();
    endpoint.client_closes_reach(1).await;

    let mut reads = RawClient::connect(endpoint.addr()).await;
    reads.get("/b").await;
    assert_eq!(reads.head().await.status(), 200);
    while reads.chunk().await.unwrap().is_some_and(|chunk| chunk != DONE_EVENT.as_bytes()) {}
    assert_eq!(reads.chunk().await.unwrap(), None);
    drop(reads);
    endpoint.client_closes_reach(2).await;
    assert_eq!((endpoint.requests().len(), endpoint.connections()), (2, 2));
}

#[tokio::test]
async fn an_error_of_ours_ends_a_stream_that_was_cut() {
    let error = ApiError::bad_gateway("the endpoint closed the stream");
    let event = error.to_event();
    let script = vec![stream_head(), chunk(delta_event("m", "a")), chunk(event), last_chunk()];
    let endpoint = FakeEndpoint::start(move |_| script.clone()).await;
    let mut client = RawClient::connect(endpoint.addr()).await;
    client.post("/v1/chat/completions", "", BODY).await;
    let mut meter = StreamMeter::new();
    meter.push(&client.answer().await.body());
    assert!(meter.has_content());
    assert_eq!(meter.error().unwrap().message, error.message);
}

#[tokio::test]
async fn a_spliced_body_reaches_the_server_byte_for_byte() {
    let endpoint = FakeEndpoint::start(|_| with_type(200, "text/html", "<p>")).await;
    let body = BODY.into();
    let spliced = parse_request(ApiCall::Chat, &body).unwrap().splice_model(&body, "org/upstream:7b");
    let mut client = RawClient::connect(endpoint.addr()).await;
    client.post("/v1/chat/completions", "", std::str::from_utf8(&spliced).unwrap()).await;
    assert_eq!(client.answer().await.head.header("content-type").unwrap(), "text/html");
    assert_eq!(endpoint.requests()[0].body, BODY.replace("\"m\"", "\"org/upstream:7b\""));
}
