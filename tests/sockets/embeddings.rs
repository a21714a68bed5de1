//! `POST /v1/embeddings` over real sockets: no quality, no completion, and only where embeddings are made.

use crate::support::answers::{chat, embedding_body, json};
use crate::support::app::{CHEAPEST_FIRST, EMBEDDINGS, Router, llm, node};
use crate::support::fake_endpoint::FakeEndpoint;
use crate::support::raw_client::Answer;

const AT_ONCE: &str = "window: {max_ms: 0}\n";
const EMBEDDER: &str = "{name: e, upstream: 'BAAI/bge', capabilities: [embedding], context_tokens: 1000}";

/// A cheap chat model `m` on `a` and the embedding model `e` on `b`, which knows it as `BAAI/bge`.
async fn chat_and_embedder(sections: &str) -> (FakeEndpoint, FakeEndpoint, Router) {
    let chatting = llm(|_| chat("m", "never")).await;
    let embedding = llm(|_| json(200, &embedding_body("BAAI/bge"))).await;
    let nodes = [node("a", chatting.url()), node("b", embedding.url()).model(EMBEDDER)];
    let router = Router::start(&nodes, sections).await;
    (chatting, embedding, router)
}

fn refused(answer: &Answer) -> (u16, String, String) {
    let error = &answer.json()["error"];
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (answer.head.status(), text("code"), text("message"))
}

#[tokio::test]
async fn an_embedding_passes_byte_for_byte_and_is_described() {
    let (_chatting, endpoint, router) = chat_and_embedder(AT_ONCE).await;
    let body =
        "{\"input\":[\"a \\udfff\",\"b\"],\"model\":\"e\",\"encoding_format\":\"float\",\"dimensions\":3.0 }";
    let answer = router.post(EMBEDDINGS, "x-cema-debug: true\r\n", body).await;
    assert_eq!((answer.head.status(), answer.text()), (200, embedding_body("BAAI/bge")));
    let sent = &endpoint.posts()[0];
    assert_eq!(
        (sent.head.path().as_str(), &sent.body[..]),
        ("/v1/embeddings", body.replace("\"e\"", "\"BAAI/bge\"").as_bytes())
    );
    for (name, value) in [("x-cema-destination", "b/e"), ("x-cema-model", "e"), ("x-cema-attempts", "1")] {
        assert_eq!(answer.head.header(name).unwrap(), value);
    }
    for name in ["x-request-id", "x-cema-batch", "x-cema-window-ms", "x-cema-policy", "x-cema-predicted"] {
        assert!(answer.head.header(name).is_some(), "{name}");
    }
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_tokens_total", &[("type", "prompt")]), 6);
    assert_eq!(metrics.count("cema_tokens_total", &[("type", "completion")]), 0);
}

#[tokio::test]
async fn every_form_of_an_input_is_taken_and_nothing_is_streamed() {
    let (chatting, endpoint, router) = chat_and_embedder(CHEAPEST_FIRST).await;
    let forms = [r#""text""#, r#"["one","two"]"#, "[1,2,3]", "[[1,2],[3]]"];
    for input in forms {
        let body = format!(r#"{{"model":"auto","input":{input},"stream":true}}"#);
        let answer = router.post(EMBEDDINGS, "", body).await;
        assert_eq!(answer.text(), embedding_body("BAAI/bge"), "{input}");
        assert_eq!(answer.head.header("x-cema-destination").unwrap(), "b/e", "auto embeds where it can");
    }
    assert_eq!((chatting.posts().len(), endpoint.posts().len()), (0, forms.len()));
    for (fields, code) in [
        ("", "missing_required_parameter"),
        (r#","input":null"#, "invalid_type"),
        (r#","input":[]"#, "invalid_value"),
    ] {
        let answer = router.post(EMBEDDINGS, "", format!(r#"{{"model":"e"{fields}}}"#)).await;
        assert_eq!((refused(&answer).0, refused(&answer).1.as_str()), (400, code), "{fields}");
    }
}

#[tokio::test]
async fn many_inputs_may_be_longer_than_the_context_together() {
    let (_chatting, _endpoint, router) = chat_and_embedder(AT_ONCE).await;
    let inputs = vec![format!("\"{}\"", "x".repeat(3_600)); 20].join(",");
    let answer = router.post(EMBEDDINGS, "", format!(r#"{{"model":"e","input":[{inputs}]}}"#)).await;
    assert_eq!(answer.head.status(), 200);
    let long = "x".repeat(4_004);
    let answer = router.post(EMBEDDINGS, "", format!(r#"{{"model":"e","input":["a","{long}"]}}"#)).await;
    assert_eq!((refused(&answer).0, refused(&answer).1.as_str()), (400, "context_length_exceeded"));
}

#[tokio::test]
async fn a_model_that_cannot_embed_is_named() {
    let (chatting, _endpoint, router) = chat_and_embedder(AT_ONCE).await;
    let (status, code, message) = refused(&router.post(EMBEDDINGS, "", r#"{"model":"m","input":"x"}"#).await);
    assert_eq!((status, code.as_str()), (400, "unsupported_capability"));
    assert!(message.contains("`m` does not offer embedding"), "{message}");
    let (status, code, message) =
        refused(&router.chat(r#"{"model":"e","messages":[{"role":"user","content":"x"}]}"#).await);
    assert_eq!((status, code.as_str()), (400, "unsupported_capability"));
    assert!(message.contains("`e` does not offer chat"), "{message}");
    assert_eq!(chatting.posts().len(), 0);
}

#[tokio::test]
async fn answers_without_an_embedding_fail_over_and_echo_names_the_model_asked_for() {
    let model = |usd: u32| {
        format!("{{name: e, upstream: 'BAAI/bge', capabilities: [embedding], price: {{request_usd: {usd}}}}}")
    };
    let empty = llm(|_| json(200, r#"{"object":"list","data":[],"model":"BAAI/bge"}"#)).await;
    let good = llm(|_| json(200, &embedding_body("BAAI/bge"))).await;
    let nodes = [node("a", empty.url()).model(&model(1)), node("b", good.url()).model(&model(2))];
    let router = Router::start(&nodes, &format!("response_model: echo\n{CHEAPEST_FIRST}")).await;
    let answer = router.post(EMBEDDINGS, "", r#"{"model":"auto","input":"x"}"#).await;
    assert_eq!((answer.head.status(), answer.text()), (200, embedding_body("auto")));
    assert_eq!(answer.head.header("x-cema-attempts").unwrap(), "2");
}
