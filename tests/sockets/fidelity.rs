//! Byte fidelity and header hygiene over real sockets, for every call, streamed or not, compressed or not.

use crate::support::answers::{
    chat, chat_body, chat_events, chunk, coded, completion_body, completion_events, embedding_body, gzip,
    gzip_flushed, json, last_chunk, write,
};
use crate::support::app::{
    CHAT, CHEAPEST_FIRST, COMPLETIONS, EMBEDDINGS, Router, ask, ask_stream, llm, node, priced,
};
use crate::support::fake_endpoint::{FakeEndpoint, Recorded, Step};
use crate::support::raw_client::Answer;

const AT_ONCE: &str = "window: {max_ms: 0}\n";
const ECHO: &str = "response_model: echo\nwindow: {max_ms: 0}\n";
const ALL: &str =
    "{name: m, upstream: 'org/up:7b', capabilities: [chat, embedding, tools], context_tokens: 100000000}";

/// A router over one endpoint that knows `m` as `org/up:7b` and answers everything with `script`.
async fn over(
    script: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static,
    sections: &str,
) -> (FakeEndpoint, Router) {
    let endpoint = llm(script).await;
    let router = Router::start(&[node("a", endpoint.url()).model(ALL)], sections).await;
    (endpoint, router)
}

/// The answer to each call.
fn answer_of(path: &str) -> String {
    match path {
        COMPLETIONS => completion_body("org/up:7b", "x"),
        EMBEDDINGS => embedding_body("org/up:7b"),
        _ => chat_body("org/up:7b", "hello"),
    }
}

fn with_length(head: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("{head}host: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn odd_but_valid_json_passes_every_call_unchanged() {
    let (endpoint, router) = over(|request| json(200, &answer_of(&request.head.path())), AT_ONCE).await;
    let odd = "\"a\":1.0,\"a\":1e400,\"b\":-0.0,\"seed\":123456789012345678901234567890,\"n\\u0000ull\":null,\"z\":[ ] ,\"lone \\ud800\":\"\\udc00\\ud800x\",\"deep\":[[[{}]]]";
    for (path, content) in [
        (
            CHAT,
            r#""messages":[{"role":"user","content":"\ud800 \u0000"},{"role":"assistant","content":null,"tool_calls":[{"id":"\ud83d"}]}]"#,
        ),
        (COMPLETIONS, r#""prompt":["\ud800",""]"#),
        (EMBEDDINGS, r#""input":"\ud800 \ud83d\ude42""#),
    ] {
        let body = format!("\u{feff}{{ {odd},\"mod\\u0065l\":\"\\u006d\",\r\n{content}\t}}\n");
        let answer = router.post(path, "", &body).await;
        assert_eq!((answer.head.status(), answer.text()), (200, answer_of(path)), "{path}");
        let sent = endpoint.posts().pop().unwrap();
        assert_eq!(sent.body, body.replace("\"\\u006d\"", "\"org/up:7b\""), "{path}");
    }
    // A model that is no Unicode is nobody's, and says so.
    let answer = router.chat(&ask("\\ud800")).await;
    assert_eq!((answer.head.status(), &answer.json()["error"]["code"]), (404, &"model_not_found".into()));
}

#[tokio::test]
async fn ten_megabytes_pass_in_chunks_with_trailers() {
    let (endpoint, router) = over(|request| json(200, &answer_of(&request.head.path())), AT_ONCE).await;
    let body = format!(r#"{{"model":"m","input":"{}"}}"#, "\u{65e5}a\\n".repeat(10 << 20 >> 3));
    let mut bytes = format!(
        "POST {EMBEDDINGS} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
    )
    .into_bytes();
    for part in body.as_bytes().chunks(70_001) {
        bytes.extend_from_slice(format!("{:X};ext=1\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\nx-sum: 1\r\nauthorization: Bearer late\r\n\r\n");
    let mut client = router.client().await;
    client.send(bytes).await;
    assert_eq!(client.answer().await.text(), answer_of(EMBEDDINGS));
    let sent = endpoint.posts().pop().unwrap();
    assert_eq!(sent.body, body.replace("\"m\"", "\"org/up:7b\""));
    assert_eq!((sent.head.header("trailer"), sent.head.header("authorization")), (None, None));
    assert_eq!(sent.head.header("content-length").unwrap(), sent.body.len().to_string());
}

#[tokio::test]
async fn compressed_requests_are_decoded_within_the_limit() {
    let (endpoint, router) =
        over(|request| json(200, &answer_of(&request.head.path())), "limits: {max_body_bytes: 100000}\n")
            .await;
    let mut client = router.client().await;
    for (n, (path, body)) in [
        (CHAT, ask("m")),
        (COMPLETIONS, r#"{"model":"m","prompt":"\ud800"}"#.to_owned()),
        (EMBEDDINGS, r#"{"model":"m","input":[1,2]}"#.to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        let coding = if n == 1 { "x-gzip" } else { "gzip" };
        client.post(path, &format!("content-encoding: {coding}\r\n"), gzip(&body)).await;
        assert_eq!(client.answer().await.text(), answer_of(path));
        let sent = &endpoint.posts()[n];
        assert_eq!(sent.body, body.replace("\"m\"", "\"org/up:7b\""));
        assert_eq!(sent.head.header("content-encoding"), None);
    }
    let bomb = gzip(&ask("m").replace("hi", &"x".repeat(50 << 20)));
    assert!(bomb.len() < 100_000);
    let cut = gzip(&ask("m"))[..40].to_vec();
    let plain = ask("m").into_bytes();
    for (coding, body, status, code) in [
        ("gzip", &bomb, 413, "request_too_large"),
        ("gzip", &cut, 400, "invalid_encoding"),
        ("gzip", &plain, 400, "invalid_encoding"),
        ("br", &plain, 415, "unsupported_encoding"),
        ("deflate", &plain, 415, "unsupported_encoding"),
        ("zstd", &plain, 415, "unsupported_encoding"),
        ("gzip, gzip", &plain, 415, "unsupported_encoding"),
        ("no-such", &plain, 415, "unsupported_encoding"),
    ] {
        client.post(CHAT, &format!("content-encoding: {coding}\r\n"), body).await;
        let answer = client.answer().await;
        let error = &answer.json()["error"];
        assert_eq!((answer.head.status(), error["code"].as_str().unwrap()), (status, code), "{coding}");
        if status == 415 {
            assert_eq!(answer.head.header("accept-encoding").unwrap(), "gzip, identity");
            assert!(error["message"].as_str().unwrap().contains("gzip once"));
        }
    }
    client.post(CHAT, "content-encoding: identity\r\n", ask("m")).await;
    assert_eq!(client.answer().await.head.status(), 200);
    assert_eq!(endpoint.posts().len(), 4);
}

/// A gzip stream of `events`, each flushed and in an HTTP chunk of its own.
fn gzip_stream(events: &str) -> Vec<Step> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";
    let pieces = gzip_flushed(events.split_inclusive("\n\n")).into_iter().filter(|piece| !piece.is_empty());
    std::iter::once(write(head)).chain(pieces.map(chunk)).chain([last_chunk()]).collect()
}

/// The body of an answer whose headers agree with it: plain, and of the length they say.
fn plain(answer: &Answer) -> String {
    assert!(answer.is_complete);
    assert_eq!(answer.head.header("content-encoding"), None);
    if let Some(length) = answer.head.header("content-length") {
        assert_eq!(length, answer.body().len().to_string());
    }
    answer.text()
}

#[tokio::test]
async fn answers_that_are_compressed_all_the_same_are_decoded_in_every_cell() {
    // BerriAI/litellm#25624, agentgateway/agentgateway#3040, sgl-project/sglang#27523.
    let chat_stream = chat_events("org/up:7b", &["Hello", " \u{65e5}", "!"]);
    let text_stream = completion_events("org/up:7b", &["Hello", "!"]);
    let (of_chat, of_text) = (chat_stream.clone(), text_stream.clone());
    let script = move |request: &Recorded| {
        let body = String::from_utf8_lossy(&request.body);
        match request.head.path().as_str() {
            _ if body.contains("\"fail\"") => coded(
                400,
                "application/json",
                "gzip",
                &gzip(r#"{"error":{"message":"org/up:7b says no","type":"t","param":"p","code":"c"}}"#),
            ),
            COMPLETIONS if body.contains("stream") => gzip_stream(&of_text),
            CHAT if body.contains("stream") => gzip_stream(&of_chat),
            path => coded(200, "application/json", "gzip", &gzip(&answer_of(path))),
        }
    };
    let prompt = |fields: &str| format!(r#"{{"model":"auto","prompt":"hi"{fields}}}"#);
    let cases = [
        (CHAT, ask("auto"), answer_of(CHAT)),
        (CHAT, ask_stream("auto"), chat_stream),
        (COMPLETIONS, prompt(""), answer_of(COMPLETIONS)),
        (COMPLETIONS, prompt(",\"stream\":true"), text_stream),
        (EMBEDDINGS, r#"{"model":"auto","input":"hi"}"#.to_owned(), answer_of(EMBEDDINGS)),
    ];
    for (sections, model) in [(AT_ONCE, "org/up:7b"), (ECHO, "auto")] {
        let (endpoint, router) = over(script.clone(), sections).await;
        for accepted in ["", "accept-encoding: gzip, deflate\r\n", "accept-encoding: br\r\n"] {
            for (path, body, expected) in &cases {
                let answer = router.post(path, accepted, body).await;
                assert_eq!(answer.head.status(), 200, "{path} {body}");
                assert_eq!(plain(&answer), expected.replace("org/up:7b", model), "{path} {accepted}");
            }
            let answer = router.post(COMPLETIONS, accepted, prompt(",\"user\":\"fail\"")).await;
            assert_eq!(answer.head.status(), 400);
            assert_eq!(
                plain(&answer),
                format!(r#"{{"error":{{"message":"{model} says no","type":"t","param":"p","code":"c"}}}}"#)
            );
        }
        for sent in endpoint.posts() {
            assert_eq!(sent.head.all("accept-encoding"), ["identity"]);
        }
    }
}

#[tokio::test]
async fn answers_that_cannot_be_decoded_fail_over() {
    let whole = gzip(&answer_of(CHAT));
    let cut = whole[..whole.len() - 9].to_vec();
    let scripts = [
        coded(200, "application/json", "br", b"\x0b\x02\x80"),
        coded(200, "application/json", "gzip", &cut),
        coded(200, "application/json", "gzip", answer_of(CHAT).as_bytes()),
        coded(503, "application/json", "zstd", b"\x28\xb5\x2f\xfd"),
        coded(200, "text/event-stream", "deflate", b"\x78\x9c"),
    ];
    for (n, script) in scripts.into_iter().enumerate() {
        let bad = llm(move |_| script.clone()).await;
        let good = llm(|request| {
            if String::from_utf8_lossy(&request.body).contains("stream") {
                gzip_stream(&chat_events("m", &["b"]))
            } else {
                chat("m", "b")
            }
        })
        .await;
        let nodes = [priced("a", bad.url(), 1), priced("b", good.url(), 2)];
        let router = Router::start(&nodes, CHEAPEST_FIRST).await;
        let answer = router.chat(&if n == 4 { ask_stream("m") } else { ask("m") }).await;
        assert_eq!(answer.head.status(), 200, "{n}");
        assert!(plain(&answer).contains("\"b\""), "{n}");
        assert_eq!(answer.head.header("x-cema-attempts").unwrap(), "2", "{n}");
    }
    let only = llm(|_| coded(200, "application/json", "br", b"\x0b\x02\x80")).await;
    let router = Router::start(&[node("a", only.url())], AT_ONCE).await;
    let answer = router.chat(&ask("m")).await;
    assert_eq!(answer.head.status(), 502);
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("content encoding `br`"), "{message}");
}

#[tokio::test]
async fn a_compressed_stream_that_breaks_ends_with_an_error() {
    let mut steps = gzip_stream(&chat_events("m", &["one", "two"]));
    steps.truncate(steps.len() - 3);
    steps.push(last_chunk());
    let (_endpoint, router) = over(move |_| steps.clone(), AT_ONCE).await;
    let answer = router.chat(&ask_stream("m")).await;
    assert!(!answer.is_complete);
    let text = answer.text();
    assert!(text.contains("\"one\"") && text.contains("\"stream_interrupted\""), "{text}");
}

#[tokio::test]
async fn errors_call_the_model_as_answers_do_and_never_name_a_host() {
    // BerriAI/litellm#5569, decolua/9router#1311.
    let url = std::sync::Arc::new(std::sync::OnceLock::<String>::new());
    let own = std::sync::Arc::clone(&url);
    let script = move |_: &Recorded| {
        let url = own.get().unwrap();
        let message = format!("model 'org/up:7b' rejected by {url}/v1 (not org/up:7b-long): see org/up:7b.");
        json(400, &format!(r#"{{"error":{{"message":"{message}","type":"t","param":null,"code":null}}}}"#))
    };
    let endpoint = llm(script).await;
    url.set(endpoint.url()).unwrap();
    for (sections, model) in [(AT_ONCE, "org/up:7b"), (ECHO, "auto")] {
        let router = Router::start(&[node("a", endpoint.url()).model(ALL)], sections).await;
        for (path, body) in [
            (CHAT, ask("auto")),
            (CHAT, ask_stream("auto")),
            (COMPLETIONS, r#"{"model":"auto","prompt":"x"}"#.to_owned()),
            (EMBEDDINGS, r#"{"model":"auto","input":"x"}"#.to_owned()),
        ] {
            let answer = router.post(path, "", body).await;
            assert_eq!(answer.head.status(), 400, "{path}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(!message.contains(&endpoint.addr().to_string()), "{message}");
            assert!(message.starts_with(&format!("model '{model}' rejected by")), "{message}");
            assert!(message.ends_with(&format!("(not org/up:7b-long): see {model}.")), "{message}");
            assert_eq!(answer.head.header("x-cema-model").unwrap(), "m");
        }
    }
}

#[tokio::test]
async fn headers_that_are_no_endpoints_business_stop_here() {
    // kcolemangt/llm-router#13, BerriAI/litellm#32202, diegosouzapw/OmniRoute#11328.
    let script = |request: &Recorded| {
        let body = answer_of(&request.head.path());
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: X-Up\r\nX-Up: 1\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nx-request-id: theirs\r\nserver: uvicorn\r\naccess-control-allow-origin:\r\nx-cema-destination: forged\r\nopenai-organization: o\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        vec![write(head), write(body)]
    };
    let (endpoint, router) = over(script, AT_ONCE).await;
    let headers = "Authorization: Bearer PROXYKEY\r\nProxy-Authorization: Basic x\r\nConnection: keep-alive, X-Secret\r\nConnection: tracestate\r\n\
                   X-Secret: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nCookie: s=1\r\nx-forwarded-for: 1.2.3.4\r\nforwarded: for=1.2.3.4\r\n\
                   x-openwebui-user-email: a@b\r\nx-stainless-retry-count: 1\r\nx-session-id: s-1\r\nx-request-id: not usable\r\nX-Request-Id: mine-2\r\n\
                   x-request-id: mine-3\r\ntraceparent: 00-aa-bb-01\r\ntracestate: v=1\r\nUser-Agent: sdk/1\r\n";
    for (path, body) in [
        (CHAT, ask("m")),
        (COMPLETIONS, r#"{"model":"m","prompt":"x"}"#.to_owned()),
        (EMBEDDINGS, r#"{"model":"m","input":"x"}"#.to_owned()),
    ] {
        let answer = router.post(path, headers, body).await;
        assert_eq!(answer.head.status(), 200, "{path}");
        let sent = endpoint.posts().pop().unwrap().head;
        let text = String::from_utf8(sent.bytes.clone()).unwrap();
        let mut names: Vec<String> = text
            .lines()
            .skip(1)
            .filter_map(|line| Some(line.split_once(':')?.0.to_ascii_lowercase()))
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["accept-encoding", "content-length", "content-type", "host", "traceparent", "x-request-id"],
            "{text}"
        );
        assert_eq!(sent.all("x-request-id"), ["mine-2"], "the first that can be used");
        assert_eq!(answer.head.all("x-request-id"), ["mine-2"]);
        assert_eq!(answer.head.all("x-cema-destination"), ["a/m"]);
        for name in ["set-cookie", "server", "x-up", "access-control-allow-origin", "openai-organization"] {
            assert_eq!(answer.head.all(name), Vec::<String>::new(), "{path} {name}");
        }
    }
    let bytes = with_length(
        &format!("POST {CHAT} HTTP/1.1\r\ntracestate: a=1\r\ntracestate: b=2\r\n"),
        ask("m").as_bytes(),
    );
    let mut client = router.client().await;
    client.send(bytes).await;
    assert_eq!(client.answer().await.head.status(), 200);
    assert_eq!(endpoint.posts().pop().unwrap().head.all("tracestate"), ["a=1", "b=2"]);
}

#[tokio::test]
async fn an_answer_is_declared_as_what_it_is() {
    // Clients go by the type: the OpenAI SDK hands out the bare text of what is not called JSON.
    for (status, declared) in [
        ("200 OK", ""),
        ("200 OK", "content-type: text/plain\r\n"),
        ("200 OK", "content-type: text/html; charset=utf-8\r\n"),
        ("200 OK", "content-type: application/octet-stream\r\n"),
        ("206 Partial Content", "content-type: application/json\r\ncontent-range: bytes 0-9/9\r\n"),
        ("201 Created", "content-type: application/json\r\n"),
    ] {
        let script = move |request: &Recorded| {
            let body = answer_of(&request.head.path());
            let len = body.len();
            vec![write(format!("HTTP/1.1 {status}\r\n{declared}content-length: {len}\r\n\r\n{body}"))]
        };
        let (_endpoint, router) = over(script, AT_ONCE).await;
        for (path, body) in [
            (CHAT, ask("m")),
            (CHAT, ask_stream("m")),
            (COMPLETIONS, r#"{"model":"m","prompt":"x"}"#.to_owned()),
            (EMBEDDINGS, r#"{"model":"m","input":"x"}"#.to_owned()),
        ] {
            let answer = router.post(path, "", body).await;
            assert_eq!((answer.head.status(), answer.text()), (200, answer_of(path)), "{status} {declared}");
            assert_eq!(answer.head.all("content-type"), ["application/json"], "{status} {declared}");
            assert_eq!(answer.head.header("content-range"), None);
        }
    }
    let events = chat_events("m", &["a", "b"]);
    let head = "HTTP/1.1 206 Partial Content\r\ncontent-type: Text/Event-Stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let script = vec![write(head), chunk(&events), last_chunk()];
    let (_endpoint, router) = over(move |_| script.clone(), AT_ONCE).await;
    let answer = router.chat(&ask_stream("m")).await;
    assert_eq!((answer.head.status(), answer.text()), (200, events));
}

#[tokio::test]
async fn a_page_too_large_to_be_held_is_no_answer() {
    let page = |first: &str| {
        let body = format!("{first}{}", " ".repeat(17 << 20));
        let len = body.len();
        vec![write(format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n")), write(body)]
    };
    let (html, whole) = (page("<html>"), page(" {\"choices\":[1]}"));
    let (_endpoint, router) = over(move |_| html.clone(), AT_ONCE).await;
    assert_eq!(router.chat(&ask("m")).await.head.status(), 502);
    let (_endpoint, router) = over(move |_| whole.clone(), AT_ONCE).await;
    let answer = router.chat(&ask("m")).await;
    assert_eq!((answer.head.status(), answer.body().len()), (200, (17 << 20) + 16));
    assert_eq!(answer.head.all("content-type"), ["application/json"]);
}
