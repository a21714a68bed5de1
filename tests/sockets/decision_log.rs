//! The decision log: what was planned, what was predicted and what came of it, without the words of anyone.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::answers::{chat, chat_stream, json};
use crate::support::app::{
    CHAT, CHEAPEST_FIRST, CLIENT_KEY, Router, ask, ask_stream, config_text, llm, node,
};
use serde_json::Value;

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
    assert!(plans[0]["price_per_s"].is_null(), "{}", plans[0]);
    assert_eq!(plans[0]["greedy"]["destinations"], serde_json::json!(["a/m"]));
    assert_eq!(plans[0]["v"], 2);
    let requests = records(&path, "request");
    let of = |id: &str| requests.iter().find(|record| record["id"] == id).unwrap();
    let whole = of("req-whole");
    assert_eq!((&whole["outcome"], &whole["destination"]), (&"ok".into(), &"a/m".into()));
    assert_eq!(whole["plan"], plans[0]["plan"]);
    // The last user message is SECRET-QUESTION: sha256sum, the first 16 digits.
    assert_eq!(whole["prompt_sha256"].as_str().map(str::len), Some(16));
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
    every_field_is_documented(&text, 40);
}

/// Every key of every record stands in docs/DECISION_LOG.md, but for ids of destinations.
fn every_field_is_documented(log: &str, at_least: usize) {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/DECISION_LOG.md")).unwrap();
    let mut keys = BTreeSet::new();
    for line in log.lines() {
        collect_keys(&serde_json::from_str(line).unwrap(), &mut keys);
    }
    let undocumented: Vec<_> = keys.iter().filter(|key| !docs.contains(&format!("`{key}`"))).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
    assert!(keys.len() >= at_least, "{keys:?}");
}

fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object.iter().filter(|(key, _)| !key.contains('/')) {
                keys.insert(key.clone());
                collect_keys(value, keys);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_keys(value, keys)),
        _ => {}
    }
}

#[tokio::test]
async fn every_request_of_a_client_is_in_the_access_log() {
    let endpoint = llm(|request| {
        if String::from_utf8_lossy(&request.body).contains("\"stream\":true") {
            chat_stream("m", &["SECRET-ANSWER"])
        } else {
            chat("m", "SECRET-ANSWER")
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.jsonl");
    let sections = format!(
        "{CHEAPEST_FIRST}access_log: {{path: \"{}\"}}\nauth: {{keys: [{{name: app, key_env: CLIENT_KEY}}]}}\n",
        path.display()
    );
    let router = Router::start(&[node("a", endpoint.url())], &sections).await;
    let key = format!("authorization: Bearer {CLIENT_KEY}\r\n");
    let with = |id: &str| format!("{key}x-request-id: {id}\r\n");
    let body = ask("m").replace("hi", "SECRET-QUESTION");
    assert_eq!(router.chat_with(&with("whole"), &body).await.head.status(), 200);
    assert_eq!(router.chat_with(&with("stream"), &ask_stream("m")).await.head.status(), 200);
    assert_eq!(router.chat_with(&with("lost"), &ask("nobody")).await.head.status(), 404);
    assert_eq!(router.chat_with("x-request-id: stranger\r\n", &body).await.head.status(), 401);
    let mut client = router.client().await;
    client.get("/v1/models?secret=SECRET-QUERY").await;
    assert_eq!(client.answer().await.head.status(), 401);
    router.idle().await;
    router.stop();
    router.ended().await;

    let lines = records(&path, "access");
    let of = |id: &str| lines.iter().find(|line| line["id"] == id).unwrap();
    let whole = of("whole");
    assert_eq!((&whole["status"], &whole["key"], &whole["model"]), (&200.into(), &"app".into(), &"m".into()));
    assert_eq!((&whole["destination"], &whole["attempts"]), (&"a/m".into(), &1.into()));
    assert_eq!((&whole["path"], &whole["whole"]), (&"/v1/chat/completions".into(), &true.into()));
    assert_eq!(whole["bytes_in"], body.len());
    assert!(whole["bytes_out"].as_u64().unwrap() > 20);
    assert!(whole["head_s"].as_f64().unwrap() <= whole["seconds"].as_f64().unwrap());
    assert_eq!((&of("stream")["stream"], &of("stream")["whole"]), (&true.into(), &true.into()));
    assert_eq!(of("lost")["status"], 404);
    assert_eq!((&of("stranger")["status"], &of("stranger")["key"]), (&401.into(), &Value::Null));
    let page = lines.iter().find(|line| line["path"] == "/v1/models").unwrap();
    assert_eq!((&page["method"], &page["status"]), (&"GET".into(), &401.into()));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("SECRET") && !text.contains(CLIENT_KEY), "{text}");
    every_field_is_documented(&text, 15);
}

#[tokio::test]
async fn logged_decisions_are_explained_and_replayed_exactly() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions.jsonl");
    // The dearer the better.
    let model = |n: u32| format!("{{name: m, quality_prior: 0.{}, price: {{request_usd: {n}}}}}", 2 * n);
    let nodes: Vec<_> = (1..=4).map(|n| node(&format!("n{n}"), endpoint.url()).model(&model(n))).collect();
    // Small files: they are read in order.
    let sections = format!(
        "window: {{close: fixed, max_ms: 60, max_requests: 8}}\ndecision_log: {{path: \"{}\", file_mb: 1}}\n",
        path.display()
    );
    let router = Router::start(&nodes, &sections).await;
    for wave in 0..3 {
        let mut clients = Vec::new();
        for n in 0..8 {
            let mut client = router.client().await;
            let id = format!("x-request-id: req-{wave}-{n}\r\n");
            client.post(CHAT, &id, &ask("auto")).await;
            clients.push(client);
        }
        for client in &mut clients {
            assert_eq!(client.answer().await.head.status(), 200);
        }
    }
    router.idle().await;
    let shown = router.admin_get("/admin/v1/decisions/req-2-5").await.json();
    router.stop();
    router.ended().await;
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, config_text(&nodes, &sections)).unwrap();
    let (log, config) = (path.to_str().unwrap(), config.to_str().unwrap());

    let replayed: Value =
        serde_json::from_str(&cli(&["replay", "--log", log, "--config", config, "--format", "json"]))
            .unwrap();
    assert_eq!(replayed["n_plans"], replayed["n_reproduced"], "{replayed}");
    assert_eq!(
        (&replayed["logged"]["requests"], &replayed["n_moved"]),
        (&24.into(), &0.into()),
        "{replayed}"
    );
    assert_eq!(replayed["actual"]["requests"], 24);
    let cheap = ["replay", "--config", config, "--weights", "cost=1", "--format", "json", "--plot"];
    let charts = folder.path().join("charts");
    let cheap: Value =
        serde_json::from_str(&cli(&[&cheap[..], &[charts.to_str().unwrap()]].concat())).unwrap();
    assert!(cheap["replayed"]["usd"].as_f64() < replayed["logged"]["usd"].as_f64(), "{cheap}");
    assert!(std::fs::read_to_string(charts.join("replay.svg")).unwrap().contains("<svg"));
    let table = cli(&["replay", "--log", log]);
    assert!(table.contains("exactly as logged") && table.contains("predictions"), "{table}");

    let explained = cli(&["explain", "req-2-5", "--log", log]);
    for n in 1..=4 {
        assert!(explained.contains(&format!("n{n}/m")), "{explained}");
    }
    assert!(explained.contains("What came of it"), "{explained}");
    let explained: Value =
        serde_json::from_str(&cli(&["explain", "req-2-5", "--log", log, "--json"])).unwrap();
    assert_eq!(explained["reproduced"], true);
    // The running router said the same.
    for field in ["destination", "candidates", "objective", "reason", "problem", "greedy"] {
        assert_eq!(explained["explanation"][field], shown[field], "{field}");
    }
}

/// What the program prints.
fn cli(args: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_cema-router")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
