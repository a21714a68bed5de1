//! HTTP as it rarely comes: interim answers, pipelines, large heads, two lengths from an endpoint, credentials.

use super::{AT_ONCE, over};
use crate::support::answers::{
    chat, chat_body, chat_events, chat_stream, chunk, json, last_chunk, stream_head, write,
};
use crate::support::app::{CHAT, CHEAPEST_FIRST, ENDPOINT_KEY, Router, ask, ask_stream, llm, node, priced};
use crate::support::fake_endpoint::Step;

/// `steps` with every byte of them written on its own.
fn in_bytes(steps: Vec<Step>) -> Vec<Step> {
    let bytes = steps.into_iter().flat_map(|step| match step {
        Step::Write(bytes) => bytes.chunks(1).map(write).collect(),
        other => vec![other],
    });
    bytes.collect()
}

#[tokio::test]
async fn interim_answers_of_an_endpoint_stay_here() {
    // spanlens/Spanlens#438, vllm-project/production-stack#448.
    let early = "HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n";
    let interim = [
        "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
        early.to_owned(),
        format!("HTTP/1.1 100 Continue\r\n\r\n{early}HTTP/1.1 102 Processing\r\n\r\n{early}"),
    ];
    for interim in interim {
        for is_slow in [false, true] {
            for (body, answer) in
                [(ask("m"), chat("m", "hello")), (ask_stream("m"), chat_stream("m", &["hello"]))]
            {
                let mut script = [vec![write(&interim)], answer].concat();
                if is_slow {
                    script = in_bytes(script);
                }
                let (endpoint, router) = over(script, AT_ONCE).await;
                let mut client = router.client().await;
                for _ in 0..2 {
                    client.post(CHAT, "", &body).await;
                    let answer = client.answer().await;
                    assert_eq!(answer.head.status(), 200, "{interim}");
                    assert_eq!(answer.head.all("link"), Vec::<String>::new());
                    assert!(answer.text().contains("hello"), "{interim}");
                }
                assert_eq!(endpoint.posts().len(), 2, "{interim}");
            }
        }
    }
}

#[tokio::test]
async fn an_interim_answer_alone_is_no_answer() {
    for (script, status) in [
        (vec![write("HTTP/1.1 103 Early Hints\r\n\r\n"), Step::Close], 503),
        (vec![write("HTTP/1.1 100 Continue\r\n\r\n"), Step::Reset], 503),
        (vec![write("HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n")], 502),
        (vec![write("HTTP/1.1 204 No Content\r\n\r\n")], 502),
        (vec![write("HTTP/1.1 302 Found\r\nlocation: http://10.0.0.7/\r\ncontent-length: 0\r\n\r\n")], 502),
    ] {
        let bad = llm(move |_| script.clone()).await;
        let fine = llm(|_| chat("m", "b")).await;
        let alone = Router::start(&[node("a", bad.url())], AT_ONCE).await;
        let answer = alone.chat(&ask("m")).await;
        assert_eq!(answer.head.status(), status, "{}", answer.text());
        assert!(!answer.text().contains("10.0.0.7") && answer.head.header("location").is_none());
        let nodes = [priced("a", bad.url(), 1), priced("b", fine.url(), 2)];
        let router = Router::start(&nodes, CHEAPEST_FIRST).await;
        let answer = router.chat(&ask("m")).await;
        assert_eq!((answer.head.status(), answer.text()), (200, chat_body("m", "b")));
    }
}

#[tokio::test]
async fn requests_in_a_pipeline_are_answered_in_order() {
    // diegosouzapw/OmniRoute#6400, stacklok/codegate#188.
    let endpoint = llm(|request| match request.body.ends_with(b"true}") {
        true => chat_stream("m", &["streamed"]),
        false => chat("m", "whole"),
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url()).endpoint("inject_usage: false")], AT_ONCE).await;
    let post = |body: &str| {
        let len = body.len();
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {len}\r\n\r\n{body}")
    };
    let half = ask("m").len() / 2;
    let (first, second) = (&ask("m")[..half], &ask("m")[half..]);
    let chunked = format!(
        "POST http://other{CHAT} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n{half:x}\r\n{first}\r\n{:X};a=b\r\n{second}\r\n0\r\nx-sum: 1\r\n\r\n",
        second.len()
    );
    let head = "HEAD /v1/models HTTP/1.1\r\nhost: t\r\n\r\n";
    let all =
        [post(&ask_stream("m")), post(&ask("m")), head.into(), chunked, post(&ask_stream("m"))].concat();
    for size in [1, 2, 7, all.len()] {
        let mut client = router.client().await;
        for piece in all.as_bytes().chunks(size) {
            client.send(piece).await;
        }
        for expected in ["streamed", "whole", "", "whole", "streamed"] {
            if expected.is_empty() {
                assert_eq!(client.answer_to_head().await.head.status(), 200);
                continue;
            }
            let answer = client.answer().await;
            assert_eq!((answer.head.status(), answer.is_complete), (200, true), "{size}");
            assert!(answer.text().contains(expected), "{size}: {}", answer.text());
        }
    }
    assert_eq!(endpoint.posts().len(), 4 * 4);
}

#[tokio::test]
async fn heads_that_are_too_long_are_refused_and_the_connection_closed() {
    let (endpoint, router) = over(chat("m", "hello"), AT_ONCE).await;
    let long = "x".repeat(70 << 10);
    let many: String = (0..90).map(|n| format!("x-{n}: {}\r\n", &long[..800])).collect();
    let countless: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    for headers in
        [format!("x-long: {long}\r\n"), format!("authorization: Bearer {long}\r\n"), many, countless]
    {
        let mut client = router.client().await;
        client.post(CHAT, &headers, &ask("m")).await;
        assert_eq!(client.head().await.status(), 431, "{}", &headers[..20]);
        assert!(client.some_or_end().await.is_empty());
    }
    let mut client = router.client().await;
    client.send(format!("GET /v1/models?{long} HTTP/1.1\r\nhost: t\r\n\r\n")).await;
    assert!(matches!(client.head().await.status(), 414 | 431));
    assert_eq!(endpoint.posts().len(), 0);
    let answer = router.chat_with(&format!("x-long: {}\r\n", &long[..60 << 10]), &ask("m")).await;
    assert_eq!(answer.head.status(), 200, "within the bound");
}

#[tokio::test]
async fn odd_answers_of_an_endpoint_have_one_framing_here() {
    let body = chat_body("m", "hello");
    let len = body.len();
    let long = "x".repeat(70 << 10);
    let two_lengths = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{len:x}\r\n{body}\r\n0\r\n\r\n"
    );
    let plain = |version: &str, headers: &str| {
        format!(
            "{version} 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {len}\r\n\r\n{body}"
        )
    };
    let trailers = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n{len:x};a=b\r\n{body}\r\n0\r\nx-sum: 1\r\nset-cookie: a=b\r\n\r\n"
    );
    let until_close =
        format!("HTTP/1.0 200 OK\r\nserver: BaseHTTP/0.6\r\ncontent-type: application/json\r\n\r\n{body}");
    for (what, bytes) in [
        ("two lengths", two_lengths),
        ("a long head", plain("HTTP/1.1", &format!("x-long: {long}\r\n"))),
        ("HTTP/1.0", plain("HTTP/1.0", "")),
        ("until it closes", until_close),
        ("trailers", trailers),
    ] {
        let (_endpoint, router) = over(vec![write(bytes), Step::Close], AT_ONCE).await;
        let mut client = router.client().await;
        client.post(CHAT, "", &ask("m")).await;
        let answer = client.answer().await;
        assert_eq!((answer.head.status(), answer.text()), (200, body.clone()), "{what}");
        assert_eq!(answer.head.all("content-length"), [len.to_string()], "{what}");
        for name in ["transfer-encoding", "trailer", "x-long", "set-cookie"] {
            assert_eq!(answer.head.all(name), Vec::<String>::new(), "{what}");
        }
        client.get("/healthz").await;
        assert_eq!(client.answer().await.head.status(), 200, "{what}: in step");
    }
}

#[tokio::test]
async fn what_a_connection_header_lists_goes_no_further() {
    // kcolemangt/llm-router#13, BerriAI/litellm#32202, diegosouzapw/OmniRoute#11328.
    let listed = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nConnection: X-Up , keep-alive\r\nconnection: x-also\r\nX-Up: 1\r\nx-also: 2\r\n\
                  keep-alive: timeout=5\r\nproxy-authenticate: Basic\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nx-request-id: theirs\r\nserver: uvicorn\r\n\
                  via: 1.1 vegur\r\nalt-svc: h3=\":443\"\r\ntransfer-encoding: chunked\r\n\r\n";
    let events = chat_events("m", &["hello"]);
    let script = vec![write(listed), chunk(&events), last_chunk()];
    let endpoint = llm(move |_| script.clone()).await;
    let with_key = node("a", endpoint.url()).endpoint("api_key_env: ENDPOINT_KEY");
    let without = node("b", endpoint.url()).model("{name: n}");
    let router = Router::start(&[with_key, without], AT_ONCE).await;
    let headers = "Authorization: Bearer PROXYKEY\r\nProxy-Authorization: Basic x\r\nConnection: close, X-Secret\r\nCONNECTION:\ttraceparent,\r\n\
                   X-Secret: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nCookie: s=1\r\nx-api-key: PROXYKEY\r\nx-forwarded-for: 1.2.3.4\r\ntraceparent: 00-1-2-01\r\n\
                   x-request-id: one\r\nX-Request-Id: two\r\n";
    for (model, key) in [("m", vec![format!("Bearer {ENDPOINT_KEY}")]), ("n", vec![])] {
        let answer = router.chat_with(headers, &ask_stream(model)).await;
        assert_eq!((answer.head.status(), answer.text()), (200, events.clone()));
        let sent = endpoint.posts().pop().unwrap().head;
        let text = String::from_utf8(sent.bytes.clone()).unwrap().to_ascii_lowercase();
        for absent in
            ["proxykey", "secret", "cookie", "forwarded", "traceparent", "\nte:", "keep-alive", "\nproxy"]
        {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        assert_eq!(sent.all("authorization"), key);
        assert_eq!(
            (sent.all("x-request-id"), answer.head.all("x-request-id")),
            (vec!["one".into()], vec!["one".into()])
        );
        for name in
            ["x-up", "x-also", "keep-alive", "proxy-authenticate", "set-cookie", "server", "via", "alt-svc"]
        {
            assert_eq!(answer.head.all(name), Vec::<String>::new(), "{name}");
        }
    }
}

#[tokio::test]
async fn what_is_not_served_is_told_at_once() {
    let (_endpoint, router) = over(json(200, "{}"), AT_ONCE).await;
    let mut client = router.client().await;
    for (request, status) in [
        ("HEAD /health", 200),
        ("HEAD /healthz", 200),
        ("HEAD /v1/models", 200),
        ("HEAD /models", 404),
        ("HEAD /v1/chat/completions", 405),
    ] {
        client.send(format!("{request} HTTP/1.1\r\nhost: t\r\n\r\n")).await;
        assert_eq!(client.answer_to_head().await.head.status(), status, "{request}");
    }
    // In step after all of them: none had a body.
    client.get("/models").await;
    let answer = client.answer().await;
    assert_eq!(answer.head.status(), 404);
    assert!(answer.text().contains("/v1"), "{}", answer.text());
    let mut upgrade = router.client().await;
    upgrade
        .send("GET /healthz HTTP/1.1\r\nhost: t\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n")
        .await;
    assert_eq!(upgrade.answer().await.head.status(), 200, "an offer that is not taken up");
}

#[tokio::test]
async fn http_1_0_gets_no_interim_answer() {
    let (_endpoint, router) = over(chat("m", "hello"), AT_ONCE).await;
    let mut client = router.client().await;
    let body = ask("m");
    let len = body.len();
    client
        .send(format!("POST {CHAT} HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n{body}"))
        .await;
    assert_eq!(client.answer().await.head.status(), 200);
}

#[tokio::test]
async fn http_1_0_gets_a_stream_to_its_end_or_an_error_event() {
    let whole = chat_stream("m", &["hello"]);
    let cut = vec![
        stream_head(),
        chunk(
            chat_events("m", &["hello"])
                .split("data: [DONE]")
                .next()
                .unwrap()
                .split("\"stop\"")
                .next()
                .unwrap(),
        ),
        Step::Close,
    ];
    for (script, end) in [(whole, "data: [DONE]\n\n"), (cut, "\"stream_interrupted\"")] {
        let (_endpoint, router) = over(script, AT_ONCE).await;
        let mut client = router.client().await;
        let body = ask_stream("m");
        client.send(format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        let head = client.head().await;
        assert_eq!(
            (head.status(), head.header("transfer-encoding"), head.header("content-length")),
            (200, None, None)
        );
        let mut text = String::new();
        loop {
            let bytes = client.some_or_end().await;
            if bytes.is_empty() {
                break;
            }
            text.push_str(&String::from_utf8(bytes).unwrap());
        }
        assert!(text.contains("hello") && text.contains(end), "{text}");
    }
}
