//! `POST /v1/chat/completions` and its neighbours over real sockets: what reaches an endpoint, what comes back,
//! and what a client is told when it asks for something it cannot have.

use std::collections::BTreeSet;

use crate::support::answers::{chat, chat_body, healthy, json, with_type, write};
use crate::support::app::{
    CHAT, CHEAPEST_FIRST, ENDPOINT_KEY, Node, Router, ask, llm, node, nowhere, priced,
};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::raw_client::Answer;
use async_openai::types::chat::CreateChatCompletionResponse;

const AT_ONCE: &str = "window: {max_ms: 0}\n";

/// A router over one healthy endpoint that says `hello`.
async fn hello(sections: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let router = Router::start(&[node("a", endpoint.url())], sections).await;
    (endpoint, router)
}

/// Status and code of an error answer, whose shape every client relies on.
fn error(answer: &Answer) -> (u16, String) {
    assert!(answer.is_complete);
    assert_eq!(answer.head.header("content-type").unwrap(), "application/json");
    assert!(!answer.head.header("x-request-id").unwrap().is_empty());
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{body}"));
    let keys: BTreeSet<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["code", "message", "param", "type"]), "{body}");
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{body}");
    assert!(error["type"].is_string() && (error["param"].is_null() || error["param"].is_string()), "{body}");
    (answer.head.status(), error["code"].as_str().unwrap_or_default().to_owned())
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn bytes_pass_both_ways_and_only_the_model_changes() {
    let odd_answer = concat!(
        "{\"choices\" : [ {\"message\":{\"content\":\"\\u65e5\",\"role\":\"assistant\",\"x\":1e400}} ],\n",
        " \"model\":\"org/up:7b\",\"model\":\"twice\",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2},",
        "\"seed\":123456789012345678901234567890}\n"
    );
    let endpoint = llm(move |_| json(200, odd_answer)).await;
    let model = "{name: m, upstream: 'org/up:7b'}";
    let router = Router::start(&[node("a", endpoint.url()).model(model)], AT_ONCE).await;
    let body = concat!(
        "{ \"temperature\":0.10,\"model\" : \"wrong\",\t\"messages\":[{\"content\":\"\\ud83d\\ude42 \\/\",\"role\":\"user\"}],",
        "\"seed\":18446744073709551617,\"stop\":null,\"b\":1,\"a\":2,\"b\":3,\"model\":\"m\",\"max_tokens\":9 }\r\n"
    );
    let answer = router.chat(body).await;
    assert_eq!((answer.head.status(), answer.text().as_str()), (200, odd_answer));
    assert_eq!(answer.head.header("content-type").unwrap(), "application/json");
    assert_eq!(answer.head.header("content-length").unwrap(), odd_answer.len().to_string());
    let sent = &endpoint.posts()[0];
    assert_eq!(sent.head.path(), "/v1/chat/completions");
    assert_eq!(sent.body, body.replace("\"wrong\"", "\"org/up:7b\"").replace("\"m\",", "\"org/up:7b\","));
    assert_eq!(sent.head.header("content-length").unwrap(), sent.body.len().to_string());
}

#[tokio::test]
async fn every_routed_answer_says_how_it_was_routed() {
    let (_endpoint, router) = hello(AT_ONCE).await;
    let answer = router.chat_with("x-cema-debug: true\r\n", &ask("auto")).await;
    let header = |name: &str| answer.head.header(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!((header("x-cema-destination"), header("x-cema-model")), ("a/m".into(), "m".into()));
    assert_eq!((header("x-cema-attempts"), header("x-cema-policy")), ("1".into(), "memetic".into()));
    assert!(header("x-cema-batch").parse::<u64>().unwrap() >= 1);
    assert!(header("x-cema-window-ms").parse::<f64>().unwrap() >= 0.0);
    let predicted = header("x-cema-predicted");
    let names: Vec<&str> = predicted.split(';').map(|pair| pair.split_once('=').unwrap().0).collect();
    assert_eq!(names, ["quality", "usd", "joules", "seconds"]);
    assert!(header("x-request-id").starts_with("req_"));
    let plain = router.chat(&ask("m")).await;
    assert!(plain.head.header("x-cema-predicted").is_none());
}

#[tokio::test]
async fn answers_are_what_typed_clients_expect() {
    let (_endpoint, router) = hello(AT_ONCE).await;
    let answer = router.chat(&ask("auto")).await;
    let typed: CreateChatCompletionResponse = serde_json::from_slice(&answer.body()).unwrap();
    assert_eq!(typed.choices[0].message.content.as_deref(), Some("hello"));
    assert_eq!(typed.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens)), Some((9, 3)));
}

#[tokio::test]
async fn one_request_id_goes_all_the_way() {
    let (endpoint, router) = hello(AT_ONCE).await;
    let too_long = "x".repeat(129);
    for (sent, kept) in [
        ("x-request-id: own/1?a=b\r\n", Some("own/1?a=b")),
        ("x-request-id: first\r\nX-Request-ID: second\r\n", Some("first")),
        ("x-request-id: has space\r\n", None),
        ("x-request-id:\r\n", None),
        (&format!("x-request-id: {too_long}\r\n"), None),
        ("", None),
    ] {
        let answer = router.chat_with(sent, &ask("m")).await;
        let id = answer.head.header("x-request-id").unwrap();
        match kept {
            Some(kept) => assert_eq!(id, kept),
            None => assert!(id.starts_with("req_") && id.len() == 36, "{sent:?} {id}"),
        }
        let upstream = endpoint.posts().pop().unwrap();
        assert_eq!(upstream.head.all("x-request-id"), [id]);
    }
}

#[tokio::test]
async fn endpoints_get_their_own_key_and_nothing_else_of_a_client() {
    // kcolemangt/llm-router#13, BerriAI/litellm#32202.
    let with_key = llm(|_| chat("m", "a")).await;
    let without_key = llm(|_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: uvicorn\r\nset-cookie: a=b\r\nset-cookie: c=d\r\n\
                    x-request-id: theirs\r\nconnection: x-up\r\nx-up: 1\r\nlocation: http://10.0.0.7\r\ncontent-length: ";
        let body = chat_body("n", "b");
        vec![write(format!("{head}{}\r\n\r\n{body}", body.len()))]
    })
    .await;
    let nodes = [
        node("a", with_key.url()).endpoint("api_key_env: ENDPOINT_KEY"),
        node("b", without_key.url()).model("{name: n}"),
    ];
    let router = Router::start(&nodes, AT_ONCE).await;
    let private = "Authorization: Bearer client-secret\r\nProxy-Authorization: Basic x\r\nCookie: session=1\r\n\
                   Connection: close, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\nx-forwarded-for: 1.2.3.4\r\n\
                   x-openwebui-user-email: a@b\r\nx-cema-placement: edge\r\ntraceparent: 00-1-2-01\r\naccept: */*\r\n";
    let answer = router.chat_with(private, &ask("m")).await;
    assert_eq!(answer.head.status(), 200);
    let sent = with_key.posts().pop().unwrap().head;
    assert_eq!(sent.all("authorization"), [format!("Bearer {ENDPOINT_KEY}")]);

    let answer = router.chat_with(private, &ask("n")).await;
    assert_eq!(answer.head.status(), 200);
    let sent = without_key.posts().pop().unwrap().head;
    let text = String::from_utf8(sent.bytes).unwrap();
    let names: BTreeSet<String> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    let expected = [
        "accept",
        "accept-encoding",
        "content-length",
        "content-type",
        "host",
        "traceparent",
        "x-request-id",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{text}");
    for name in ["server", "set-cookie", "x-up", "location"] {
        assert_eq!(answer.head.all(name), Vec::<String>::new(), "{name} reached the client");
    }
    assert_ne!(answer.head.header("x-request-id").unwrap(), "theirs");
    for probe in with_key.requests().iter().filter(|request| request.head.method() == "GET") {
        assert_eq!(probe.head.all("authorization"), [format!("Bearer {ENDPOINT_KEY}")]);
    }
}

#[tokio::test]
async fn answers_name_the_model_asked_for_where_that_is_configured() {
    let (_endpoint, router) = hello(&format!("response_model: echo\n{AT_ONCE}")).await;
    let answer = router.chat(&ask("auto")).await;
    assert_eq!(answer.text(), chat_body("auto", "hello"));
    assert_eq!(answer.head.header("content-length").unwrap(), answer.body().len().to_string());
    assert_eq!(answer.head.header("x-cema-model").unwrap(), "m");
}

#[tokio::test]
async fn bad_requests_get_one_clear_error() {
    let (endpoint, router) = hello(AT_ONCE).await;
    let post = |body: &str| {
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let bare = |line: &str| format!("{line} HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n");
    let cases = [
        (post("{not json"), 400, "invalid_json", "line 1 column 2"),
        (post(""), 400, "invalid_json", "empty"),
        (post("[]"), 400, "invalid_type", "object"),
        (post(r#"{"model":"m"}"#), 400, "missing_required_parameter", "`messages`"),
        (post(r#"{"model":"m","messages":[]}"#), 400, "invalid_value", "at least one message"),
        (
            post(r#"{"messages":[{"role":"user","content":"x"}]}"#),
            400,
            "missing_required_parameter",
            "`model`",
        ),
        (post(&ask("no-such-model")), 404, "model_not_found", "`no-such-model`"),
        (bare("GET /v1/chat/completions"), 405, "method_not_allowed", "use POST"),
        (bare("DELETE /v1/models"), 405, "method_not_allowed", "use GET, HEAD"),
        (bare("POST /chat/completions"), 404, "path_not_found", "must end in /v1"),
        (bare("GET /v1/no/such"), 404, "path_not_found", "/v1/chat/completions"),
        (bare("POST /api/chat"), 404, "path_not_found", "not an Ollama server"),
        (bare("GET /v1/models/no%2Fsuch"), 404, "model_not_found", "no/such"),
    ];
    let mut client = router.client().await;
    for (bytes, status, code, words) in cases {
        client.send(&bytes).await;
        let answer = client.answer().await;
        assert_eq!(error(&answer), (status, code.to_owned()), "{bytes}");
        assert!(message(&answer).contains(words), "{bytes}: {}", message(&answer));
        assert_eq!(answer.head.header("allow").is_some(), status == 405, "{bytes}");
    }
    client.post(CHAT, "", &ask("m")).await;
    assert_eq!(client.answer().await.head.status(), 200, "the same connection goes on");
    assert_eq!(endpoint.posts().len(), 1);
    let rejected = router.metrics().await;
    assert_eq!(rejected.count("cema_rejected_total", &[]), 13);
}

#[tokio::test]
async fn the_batch_goes_on_without_the_bad_requests() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let model = "{name: m, context_tokens: 8192, throughput: {max_concurrency: 64}}";
    let nodes = [node("a", endpoint.url()).model(model)];
    let router = Router::start(&nodes, "window: {close: fixed, max_ms: 1000}\n").await;
    let mut good = Vec::new();
    for _ in 0..3 {
        let mut client = router.client().await;
        client.post(CHAT, "x-cema-debug: true\r\n", &ask("auto")).await;
        good.push(client);
    }
    let long = ask("auto").replace("\"max_tokens\":8", "\"max_tokens\":100000");
    let bad = [
        ("", "{".to_owned(), 400, "invalid_json"),
        ("", ask("nope"), 404, "model_not_found"),
        ("", long, 400, "context_length_exceeded"),
        // This one joins the window: what it lacks is known only from its prediction.
        ("x-cema-min-quality: 0.99\r\n", ask("auto"), 400, "quality_floor"),
    ];
    for (headers, body, status, code) in bad {
        assert_eq!(error(&router.chat_with(headers, &body).await), (status, code.to_owned()));
    }
    let mut batches = BTreeSet::new();
    for mut client in good {
        let answer = client.answer().await;
        assert_eq!(answer.head.status(), 200);
        batches.insert((answer.head.header("x-cema-batch"), answer.head.header("x-cema-batch-size")));
    }
    assert_eq!(batches.len(), 1, "{batches:?}");
    assert_eq!(batches.first().unwrap().1.as_deref(), Some("3"));
    assert_eq!(endpoint.posts().len(), 3);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let (endpoint, router) = hello("limits: {max_body_bytes: 1024}\n").await;
    let large = ask("m").replace("hi", &"x".repeat(2000));
    assert_eq!(error(&router.chat(&large).await), (413, "request_too_large".into()));

    let mut client = router.client().await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(format!("{head}{:x}\r\n{large}\r\n0\r\n\r\n", large.len())).await;
    assert_eq!(error(&client.answer().await), (413, "request_too_large".into()));

    // A client that asks first is told at once, and need not send at all.
    let mut client = router.client().await;
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n");
    client.send(head).await;
    assert_eq!(error(&client.answer().await), (413, "request_too_large".into()));
    assert_eq!(endpoint.posts().len(), 0);
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
}

#[tokio::test]
async fn a_client_that_sends_far_too_much_still_reads_why() {
    let (_endpoint, router) = hello("limits: {max_body_bytes: 1048576}\n").await;
    // More than the sockets hold: it is still being sent when the router has made up its mind.
    let large = ask("m").replace("hi", &"x".repeat(80 << 20));
    assert_eq!(error(&router.chat(&large).await), (413, "request_too_large".into()));
}

#[tokio::test]
async fn a_fleet_that_is_down_is_worth_a_retry() {
    let (down_a, down_b) = (nowhere().await, nowhere().await);
    let router = Router::start(&[node("a", &*down_a), node("b", &*down_b)], AT_ONCE).await;
    let answer = router.chat(&ask("auto")).await;
    assert_eq!(error(&answer), (503, "service_unavailable".into()));
    assert!(answer.head.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert!(answer.head.header("retry-after-ms").is_some());
    assert_eq!(answer.head.header("x-should-retry").unwrap(), "true");
    assert!(message(&answer).contains("2 down"), "{}", message(&answer));
    let address = down_a.trim_start_matches("http://");
    assert!(!message(&answer).contains(address));
    assert_eq!(router.get("/readyz").await.head.status(), 503);
}

#[tokio::test]
async fn one_endpoint_down_is_nobodys_concern() {
    let up = llm(|_| chat("m", "up")).await;
    let nodes = [priced("a", nowhere().await, 1), priced("b", up.url(), 2)];
    let router = Router::start(&nodes, CHEAPEST_FIRST).await;
    for _ in 0..3 {
        let answer = router.chat(&ask("auto")).await;
        assert_eq!(answer.head.header("x-cema-destination").unwrap(), "b/m");
        assert_eq!(answer.head.header("x-cema-attempts").unwrap(), "1");
    }
    let metrics = router.metrics().await;
    assert_eq!(metrics.count("cema_endpoint_up", &[("endpoint", "a")]), 0);
    assert_eq!(metrics.count("cema_endpoint_up", &[("endpoint", "b")]), 1);
}

#[tokio::test]
async fn keys_decide_who_may_ask_for_what() {
    let keys = "auth:\n  keys:\n    - {name: app, key_env: CLIENT_KEY, models: [auto]}\n";
    let (endpoint, router) = hello(&format!("{keys}{AT_ONCE}")).await;
    for header in ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic dGhl\r\n"] {
        let answer = router.chat_with(header, &ask("auto")).await;
        assert_eq!(error(&answer), (401, "invalid_api_key".into()), "{header}");
    }
    assert_eq!(error(&router.get("/v1/models").await), (401, "invalid_api_key".into()));
    let key = "Authorization: Bearer the-clients-key\r\n";
    assert_eq!(error(&router.chat_with(key, &ask("m")).await), (404, "model_not_found".into()));
    let weighted = format!("{key}x-cema-weights: cost=1\r\n");
    assert_eq!(error(&router.chat_with(&weighted, &ask("auto")).await), (403, "weights_not_allowed".into()));
    assert_eq!(router.chat_with(key, &ask("auto")).await.head.status(), 200);
    let sent = endpoint.posts();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].head.header("authorization"), None);
    for open in ["/healthz", "/readyz"] {
        assert_eq!(router.get(open).await.head.status(), 200, "{open}");
    }
}

/// A cheap edge node `e` of low and a dear cloud node `c` of high quality.
async fn edge_and_cloud() -> (FakeEndpoint, FakeEndpoint, Router) {
    let (edge, cloud) = (llm(|_| chat("s", "edge")).await, llm(|_| chat("l", "cloud")).await);
    let nodes = [
        node("e", edge.url())
            .model("{name: s, quality_prior: 0.3, context_tokens: 1000, capabilities: [chat]}"),
        node("c", cloud.url()).cloud().model(
            "{name: l, quality_prior: 0.8, context_tokens: 8192, price: {request_usd: 1}, capabilities: [chat, tools, json]}",
        ),
    ];
    let virtual_models = "virtual_models:\n  - {name: auto}\n  - {name: local, placement: edge}\n  - {name: safe, min_quality: 0.5}\n";
    let router = Router::start(&nodes, &format!("{virtual_models}{CHEAPEST_FIRST}")).await;
    (edge, cloud, router)
}

#[tokio::test]
async fn headers_only_tighten() {
    let (_edge, _cloud, router) = edge_and_cloud().await;
    for (model, headers, destination) in [
        ("auto", "", "e/s"),
        ("auto", "x-cema-placement: cloud\r\n", "c/l"),
        ("auto", "x-cema-min-quality: 0.7\r\n", "c/l"),
        ("auto", "x-cema-min-quality: 0.2\r\n", "e/s"),
        ("auto", "x-cema-weights: quality=1\r\n", "c/l"),
        ("safe", "", "c/l"),
        ("safe", "x-cema-min-quality: 0.1\r\n", "c/l"),
        ("local", "x-cema-placement: edge\r\n", "e/s"),
        ("l", "", "c/l"),
    ] {
        let answer = router.chat_with(headers, &ask(model)).await;
        assert_eq!(answer.head.status(), 200, "{model} {headers}: {}", answer.text());
        assert_eq!(answer.head.header("x-cema-destination").unwrap(), destination, "{model} {headers}");
    }
    for (model, headers, code) in [
        ("local", "x-cema-placement: cloud\r\n", "placement_conflict"),
        ("local", "x-cema-min-quality: 0.7\r\n", "quality_floor"),
        ("s", "x-cema-placement: cloud\r\n", "no_such_placement"),
        ("auto", "x-cema-placement: moon\r\n", "invalid_header"),
        ("auto", "x-cema-min-quality: 2\r\n", "invalid_header"),
        ("auto", "x-cema-deadline-ms: soon\r\n", "invalid_header"),
        ("auto", "x-cema-weights: speed=1\r\n", "invalid_header"),
    ] {
        let answer = router.chat_with(headers, &ask(model)).await;
        assert_eq!(error(&answer), (400, code.to_owned()), "{model} {headers}");
    }
}

#[tokio::test]
async fn requests_go_where_they_fit() {
    let (edge, cloud, router) = edge_and_cloud().await;
    let with = |fields: &str| ask("auto").replace("\"max_tokens\":8", fields);
    let tools = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;
    for (body, destination) in [
        (with("\"max_tokens\":900"), "e/s"),
        (with("\"max_tokens\":1000"), "c/l"),
        (with(tools), "c/l"),
        (with(r#""response_format":{"type":"json_object"}"#), "c/l"),
    ] {
        let answer = router.chat(&body).await;
        assert_eq!(answer.head.header("x-cema-destination").as_deref(), Some(destination), "{body}");
    }
    let image = r#"{"model":"auto","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}"#;
    let answer = router.chat(image).await;
    assert_eq!(error(&answer), (400, "unsupported_capability".into()));
    assert!(message(&answer).contains("vision"), "{}", message(&answer));
    let answer = router.chat(&with("\"max_tokens\":9000")).await;
    assert_eq!(error(&answer), (400, "context_length_exceeded".into()));
    // The words that LangChain, LiteLLM and others look for.
    let start =
        "This model's maximum context length is 8192 tokens. However, your request has about 8 tokens";
    assert!(message(&answer).starts_with(start), "{}", message(&answer));
    assert!(message(&answer).contains("up to 9000 in the completion (context_length_exceeded)"));
    assert_eq!(answer.json()["error"]["param"], "messages");
    let answer = router.chat(&with(tools).replace("auto", "s")).await;
    assert_eq!(error(&answer), (400, "unsupported_capability".into()));
    assert_eq!((edge.posts().len(), cloud.posts().len()), (1, 3));
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let nodes: [Node; 1] = [node("a", endpoint.url()).model("{name: org/m}")];
    let router = Router::start(&nodes, "").await;
    let listed = router.get("/v1/models").await.json();
    assert_eq!(listed["object"], "list");
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["auto", "org/m"]);
    for path in ["/v1/models/org/m", "/v1/models/org%2Fm", "/v1/models/org%2fm"] {
        let model = router.get(path).await.json();
        assert_eq!((&model["id"], &model["object"]), (&"org/m".into(), &"model".into()), "{path}");
    }
    let mut client = router.client().await;
    let whole = router.get("/v1/models").await.body().len();
    client.send("HEAD /v1/models HTTP/1.1\r\nhost: t\r\n\r\n").await;
    let head = client.answer_to_head().await.head;
    assert_eq!((head.status(), head.header("content-length").unwrap()), (200, whole.to_string()));
    client.get("/v1/models/").await;
    assert_eq!(client.answer().await.head.status(), 200, "HEAD had no body, and a slash at the end is fine");
}

#[tokio::test]
async fn http_as_it_comes() {
    let endpoint = llm(|_| {
        let body = chat_body("m", "hello");
        let early = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        vec![write(early), write(head), write(body)]
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], AT_ONCE).await;
    let body = ask("m");
    let len = body.len();

    let mut client = router.client().await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n"
        ))
        .await;
    assert_eq!(client.head().await.status(), 100);
    client.send(&body).await;
    assert_eq!(client.answer().await.head.status(), 200, "100 is ours, 103 is swallowed");

    let absolute = format!("POST http://t{CHAT}/ HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    let (first, second) = body.split_at(10);
    let chunks = format!("a\r\n{first}\r\n{:x};x=y\r\n{second}\r\n0\r\nx-trailer: 1\r\n\r\n", second.len());
    let plain = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {len}\r\n\r\n{body}");
    client.send(format!("{absolute}{chunks}{plain}")).await;
    assert_eq!(client.answer().await.head.status(), 200, "chunked, absolute form, slash at the end");
    assert_eq!(client.answer().await.head.status(), 200, "pipelined");

    let mut old = router.client().await;
    old.send(format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {len}\r\n\r\n{body}")).await;
    let answer = old.answer().await;
    assert_eq!((answer.head.status(), answer.head.header("transfer-encoding")), (200, None));
    assert!(old.is_closed().await);

    let mut client = router.client().await;
    client
        .send(format!("GET /healthz HTTP/1.1\r\nhost: t\r\nx-long: {}\r\n\r\n", "x".repeat(70 << 10)))
        .await;
    assert_eq!(client.head().await.status(), 431);
    for sent in endpoint.posts() {
        assert_eq!((sent.body, sent.head.header("expect")), (body.clone().into(), None));
    }
}

#[tokio::test]
async fn whole_answers_that_are_not_whole_are_never_passed_on() {
    let endpoint = FakeEndpoint::start(|request| match request.head.path().as_str() {
        "/health" => healthy(),
        _ => {
            let mut cut = with_type(200, "application/json", &chat_body("m", "hello"));
            cut.push(Step::Close);
            if let Step::Write(bytes) = &mut cut[0] {
                bytes.truncate(bytes.len() - 5);
            }
            cut
        }
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], AT_ONCE).await;
    assert_eq!(error(&router.chat(&ask("m")).await), (503, "service_unavailable".into()));
}
