//! The decision log: what was planned, what was predicted and what came of it, without the words of anyone.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

#[expect(dead_code, reason = "shared by all socket tests")]
mod support;

use std::path::Path;

use serde_json::Value;
use support::answers::{chat_stream, json};
use support::app::{CHEAPEST_FIRST, Router, ask, ask_stream, llm, node};

fn records(path: &Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|record| record["kind"] == kind).collect()
}

#[tokio::test]
async fn plans_and_requests_are_written_with_predictions_and_outcomes() {
    const ANSWER: &str = r#"{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"SECRET-ANSWER"},"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions.jsonl");
    let whole = llm(|request| {
        if String::from_utf8_lossy(&request.body).contains("\"stream\":true") {
            chat_stream("m", &["SECRET-ANSWER"])
        } else {
            json(200, ANSWER)
        }
    })
    .await;
    let sections = format!("{CHEAPEST_FIRST}decision_log: {{path: \"{}\"}}\n", path.display());
    let router = Router::start(&[node("a", whole.url())], &sections).await;
    let body = ask("m").replace("hi", "SECRET-QUESTION");
    assert_eq!(router.chat_with("x-request-id: req-whole\r\n", &body).await.head.status(), 200);
    assert_eq!(router.chat_with("x-request-id: req-stream\r\n", &ask_stream("m")).await.head.status(), 200);
    assert_eq!(router.chat_with("x-request-id: req-lost\r\n", &ask("nobody")).await.head.status(), 404);
    router.idle().await;
    router.stop();
    router.ended().await;

    let plans = records(&path, "plan");
    assert_eq!(plans.len(), 2);
    assert_eq!(
        (&plans[0]["policy"], &plans[0]["requests"][0]["id"]),
        (&"greedy".into(), &"req-whole".into())
    );
    assert_eq!(plans[0]["time"], "sum");
    assert!(plans[0]["price_per_s"].is_null() && plans[0]["greedy_objective"].is_null(), "{}", plans[0]);
    let requests = records(&path, "request");
    let of = |id: &str| requests.iter().find(|record| record["id"] == id).unwrap();
    let whole = of("req-whole");
    assert_eq!((&whole["outcome"], &whole["destination"]), (&"ok".into(), &"a/m".into()));
    let (predicted, actual) = (&whole["predicted"], &whole["actual"]);
    assert_eq!(predicted["seconds"], plans[0]["requests"][0]["predicted"]["seconds"]);
    assert_eq!((&actual["prompt_tokens"], &actual["completion_tokens"]), (&11.0.into(), &7.0.into()));
    assert!(actual["seconds"].as_f64().unwrap() <= actual["since_arrival_s"].as_f64().unwrap());
    assert!(predicted["joules"].as_f64().unwrap() > 0.0 && actual["modelled_joules"].as_f64().unwrap() > 0.0);
    assert!(of("req-stream")["actual"]["first_content_s"].is_number());
    let energy = records(&path, "energy");
    assert!(energy.iter().any(|record| record["id"] == "req-whole" && record["source"] == "modelled"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("SECRET"), "{text}");
}
