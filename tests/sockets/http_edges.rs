//! The HTTP surface over real sockets: every path, method and media type gets a clear answer at once.

use crate::support::answers::{chat, chat_stream, completion_body, embedding_body, json};
use crate::support::app::{CHAT, COMPLETIONS, EMBEDDINGS, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::FakeEndpoint;

const AT_ONCE: &str = "window: {max_ms: 0}\n";
const ALL: &str = "{name: org/m, capabilities: [chat, embedding]}";

/// A router over one endpoint that serves every call.
async fn serving(sections: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(|request| match request.head.path().as_str() {
        COMPLETIONS => json(200, &completion_body("org/m", "x")),
        EMBEDDINGS => json(200, &embedding_body("org/m")),
        _ => chat("org/m", "hello"),
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url()).model(ALL)], sections).await;
    (endpoint, router)
}

const CALLS: [(&str, &str); 3] = [
    (CHAT, r#"{"model":"org/m","messages":[{"role":"user","content":"hi"}]}"#),
    (COMPLETIONS, r#"{"model":"org/m","prompt":"hi"}"#),
    (EMBEDDINGS, r#"{"model":"org/m","input":"hi"}"#),
];

const PAGES: [&str; 5] = ["/v1/models", "/v1/models/org/m", "/v1/models/org%2Fm", "/healthz", "/readyz"];

#[tokio::test]
async fn slashes_queries_and_absolute_targets_are_tolerated_and_not_forwarded() {
    let (endpoint, router) = serving(AT_ONCE).await;
    let mut client = router.client().await;
    let mut n = 0;
    for (path, body) in CALLS {
        for target in [
            format!("{path}/"),
            format!("{path}//"),
            format!("{path}?api-version=2024-10-21&x=%2F"),
            format!("{path}/?"),
            format!("http://anything.example{path}?a=b"),
        ] {
            client.post(&target, "", body).await;
            let answer = client.answer().await;
            assert_eq!(answer.head.status(), 200, "{target}: {}", answer.text());
            n += 1;
            assert_eq!((endpoint.posts().len(), endpoint.posts()[n - 1].head.path().as_str()), (n, path));
        }
    }
    for page in PAGES {
        for target in [format!("{page}/"), format!("{page}?limit=20"), format!("http://t{page}")] {
            client.get(&target).await;
            assert_eq!(client.answer().await.head.status(), 200, "{target}");
        }
    }
}

#[tokio::test]
async fn head_answers_as_get_does_without_a_body() {
    let (_endpoint, router) = serving(AT_ONCE).await;
    let mut client = router.client().await;
    for page in PAGES.into_iter().chain(["/v1/models/none", "/none"]) {
        client.get(page).await;
        let whole = client.answer().await;
        client.send(format!("HEAD {page} HTTP/1.1\r\nhost: t\r\n\r\n")).await;
        let head = client.answer_to_head().await.head;
        assert_eq!(head.status(), whole.head.status(), "{page}");
        assert_eq!(head.header("content-length").unwrap(), whole.body().len().to_string(), "{page}");
        assert_eq!(head.header("content-type"), whole.head.header("content-type"), "{page}");
    }
}

#[tokio::test]
async fn options_and_wrong_methods_name_the_right_ones() {
    let (endpoint, router) = serving(AT_ONCE).await;
    let mut client = router.client().await;
    let calls = CALLS.map(|(path, _)| (path, "POST, OPTIONS"));
    let pages = PAGES.map(|page| (page, "GET, HEAD, OPTIONS"));
    for (path, allow) in calls.into_iter().chain(pages) {
        let preflight = "origin: https://app.example\r\naccess-control-request-method: POST\r\n";
        client.send(format!("OPTIONS {path} HTTP/1.1\r\nhost: t\r\n{preflight}\r\n")).await;
        let answer = client.answer().await;
        assert_eq!(
            (answer.head.status(), answer.head.header("allow").unwrap().as_str()),
            (204, allow),
            "{path}"
        );
        assert_eq!(answer.head.header("access-control-allow-origin"), None, "{path}");
        assert!(answer.head.header("x-request-id").is_some());
        for method in ["PUT", "PATCH", "DELETE", if allow.starts_with("POST") { "GET" } else { "POST" }] {
            client
                .send(format!("{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{{}}"))
                .await;
            let answer = client.answer().await;
            assert_eq!(
                (answer.head.status(), answer.head.header("allow").unwrap().as_str()),
                (405, allow),
                "{method} {path}"
            );
            assert_eq!(answer.json()["error"]["code"], "method_not_allowed");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            let useful = if allow.starts_with("POST") { "use POST" } else { "use GET, HEAD" };
            assert!(message.ends_with(useful), "{message}");
        }
    }
    client.send("OPTIONS * HTTP/1.1\r\nhost: t\r\n\r\n").await;
    assert_eq!(client.answer().await.head.status(), 204);
    client.send("OPTIONS /v1/none HTTP/1.1\r\nhost: t\r\n\r\n").await;
    assert_eq!(client.answer().await.head.status(), 404);
    assert_eq!(endpoint.posts().len(), 0);
}

#[tokio::test]
async fn what_is_not_served_says_what_is() {
    let (endpoint, router) = serving(AT_ONCE).await;
    let mut client = router.client().await;
    for (path, words) in [
        ("/v1/responses", "POST /v1/chat/completions"),
        ("/v1/audio/speech", "audio is not served"),
        ("/v1/images/generations", "images are not made here"),
        ("/v1/moderations", "moderations"),
        ("/v1/assistants", "POST /v1/chat/completions"),
        ("/v1/threads/t_1/runs", "POST /v1/chat/completions"),
        ("/v1/messages", "Anthropic"),
        ("/api/tags", "GET /v1/models"),
        ("/api/generate", "POST /v1/completions"),
        ("/api/embed", "POST /v1/embeddings"),
        ("/api/chat", "POST /v1/chat/completions"),
        ("/api/version", "not an Ollama server"),
        ("/embeddings", "must end in /v1"),
        ("/v1/v1/models", "one /v1"),
        ("/metrics", "admin listener"),
        ("/", "/v1/embeddings"),
        ("/v1/chat/completions/x", "POST /v1/chat/completions"),
    ] {
        for method in ["GET", "POST"] {
            client
                .send(format!("{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{{}}"))
                .await;
            let answer = client.answer().await;
            assert_eq!(answer.head.status(), 404, "{path}");
            assert_eq!(answer.head.header("content-type").unwrap(), "application/json");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(words) && message.contains(path), "{path}: {message}");
        }
    }
    assert_eq!(endpoint.posts().len(), 0);
}

#[tokio::test]
async fn bodies_that_are_not_json_are_refused_by_their_type() {
    let (endpoint, router) = serving(AT_ONCE).await;
    let mut client = router.client().await;
    for (path, body) in CALLS {
        let post = |content_type: &str| {
            let len = body.len();
            format!("POST {path} HTTP/1.1\r\nhost: t\r\n{content_type}content-length: {len}\r\n\r\n{body}")
        };
        for content_type in
            ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
        {
            client.send(post(&format!("content-type: {content_type}\r\n"))).await;
            let answer = client.answer().await;
            assert_eq!(answer.head.status(), 415, "{path} {content_type}");
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "unsupported_media_type");
            assert!(error["message"].as_str().unwrap().contains("application/json"));
        }
        for accepted in ["", "content-type:\r\n", "content-type: Application/JSON;charset=UTF-8\r\n"] {
            client.send(post(accepted)).await;
            assert_eq!(client.answer().await.head.status(), 200, "{path} {accepted:?}");
        }
    }
    for sent in endpoint.posts() {
        assert_eq!(sent.head.all("content-type"), ["application/json"]);
    }
}

#[tokio::test]
async fn http_1_0_is_answered_without_chunks() {
    let endpoint = llm(|request| {
        if String::from_utf8_lossy(&request.body).contains("stream") {
            chat_stream("m", &["a", "b"])
        } else {
            chat("m", "hello")
        }
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], AT_ONCE).await;
    for body in [ask("m"), ask_stream("m")] {
        let mut client = router.client().await;
        client.send(format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        let answer = client.answer().await;
        assert_eq!((answer.head.status(), answer.head.header("transfer-encoding")), (200, None));
        let text = answer.text();
        assert!(text.ends_with("data: [DONE]\n\n") || text.ends_with('}'), "{text}");
    }
    let mut client = router.client().await;
    client.send("GET /v1/models HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.answer().await.head.status(), 200);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn models_are_shown_to_those_who_may_use_them() {
    let keys = "auth:\n  keys:\n    - {name: app, key_env: CLIENT_KEY, models: [org/m]}\n    - {name: ops, key_env: ENDPOINT_KEY}\n";
    let (_endpoint, router) = serving(keys).await;
    let mut client = router.client().await;
    for (key, expected) in
        [("the-clients-key", &["org/m"][..]), ("the-endpoints-own-key", &["auto", "org/m"])]
    {
        let mut get = async |path: &str| {
            client
                .send(format!("GET {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n\r\n"))
                .await;
            client.answer().await
        };
        let listed = get("/v1/models").await.json();
        let ids: Vec<_> =
            listed["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
        assert_eq!(ids, expected);
        let model = get("/v1/models/org%2Fm").await.json();
        assert_eq!((&model["id"], &model["object"]), (&"org/m".into(), &"model".into()));
        assert!(model["created"].as_u64().unwrap() > 0 && model["owned_by"].is_string());
        assert!(model["capabilities"].as_array().unwrap().contains(&"chat".into()));
        assert_eq!(get("/v1/models/auto").await.head.status(), if expected.len() == 2 { 200 } else { 404 });
    }
}

#[tokio::test]
async fn expect_is_answered_here_before_a_large_body_is_sent() {
    let (endpoint, router) = serving(AT_ONCE).await;
    let mut client = router.client().await;
    let body = CALLS[1].1.replace("hi", &"x".repeat(2 << 20));
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.send(head).await;
    assert_eq!(client.head().await.status(), 100);
    assert_eq!(endpoint.posts().len(), 0);
    client.send(&body).await;
    assert_eq!(client.answer().await.head.status(), 200);
    assert_eq!(endpoint.posts()[0].body.len(), body.len(), "no limit is known that it would exceed");
    let refused = "POST /v1/none HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    client.send(refused).await;
    assert_eq!(client.head().await.status(), 404, "a body that is not wanted is not asked for");
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_the_body() {
    let sections =
        "limits: {max_body_bytes: 1048576}\nauth:\n  keys:\n    - {name: app, key_env: CLIENT_KEY}\n";
    let (endpoint, router) = serving(sections).await;
    let key = "authorization: Bearer the-clients-key\r\n";
    let text = "content-type: text/plain\r\n";
    let refused = [
        ("POST", CHAT, key, 413),
        ("POST", COMPLETIONS, "", 401),
        ("POST", EMBEDDINGS, &format!("{key}{text}"), 415),
        ("POST", CHAT, &format!("{key}x-cema-placement: moon\r\n"), 400),
        ("PUT", CHAT, key, 405),
        ("POST", "/v1/none", key, 404),
    ];
    for (method, path, headers, status) in refused {
        // The client reads before it sends the body, which comes whole all the same.
        let large = vec![b'x'; 80 << 20];
        let mut client = router.client().await;
        let head = |len: usize| {
            format!("{method} {path} HTTP/1.1\r\nhost: t\r\n{headers}content-length: {len}\r\n\r\n")
        };
        client.send(head(large.len())).await;
        let answer = client.answer().await;
        assert_eq!(answer.head.status(), status, "{method} {path}");
        assert_eq!(answer.head.header("connection").as_deref(), Some("close"), "{method} {path}");
        client.send(large).await;
        assert!(client.is_closed().await, "{method} {path}: closed in good order");

        let mut client = router.client().await;
        let chunked = "transfer-encoding: chunked";
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: t\r\n{headers}{chunked}\r\n\r\n5\r\n")).await;
        if status != 413 {
            let answer = client.answer().await;
            assert_eq!(answer.head.status(), status, "{method} {path} in chunks");
            assert_eq!(answer.head.header("connection").as_deref(), Some("close"), "its length is not known");
            client.send("hello\r\n0\r\n\r\n").await;
            assert!(client.is_closed().await, "{method} {path}");

            let mut client = router.client().await;
            client.send(head(5)).await;
            let answer = client.answer().await;
            assert_eq!((answer.head.status(), answer.head.header("connection")), (status, None));
            client.send("hello").await;
            client.get("/healthz").await;
            assert_eq!(
                client.answer().await.head.status(),
                200,
                "{method} {path}: a small body costs no connection"
            );
        }
    }
    assert_eq!(endpoint.posts().len(), 0);
}
