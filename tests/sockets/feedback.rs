//! What clients say of answers: stored before it is acknowledged, kept apart by key, learnt from at once.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::answers::{chat, chat_stream, chunk, delta_event, stream_head};
use crate::support::app::{CHAT, EMBEDDINGS, Router, ask, ask_stream, llm, node};
use crate::support::embedder::embedder_or_skip;
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;
use crate::support::raw_client::Answer;
use cema_router::profiler::quality::store::QualityStore;

const FEEDBACK: &str = "/v1/feedback";

fn quality(store: &Path, feedback: &str) -> String {
    // Longer than any embedding takes, so that a busy machine does not decide this.
    format!("quality: {{store: \"{}\", embed_wait_ms: 10000, feedback: {{{feedback}}}}}\n", store.display())
}

/// Answers everything; a stream whose prompt says so breaks off.
async fn endpoint() -> FakeEndpoint {
    llm(|asked| {
        let body = String::from_utf8_lossy(&asked.body);
        match (body.contains("break"), body.contains("\"stream\":true")) {
            (true, _) => vec![stream_head(), chunk(delta_event("m", "a")), Step::Reset],
            (false, true) => chat_stream("m", &["done"]),
            (false, false) => chat("m", "done"),
        }
    })
    .await
}

fn body(id: &str, score: f64) -> String {
    json!({"request_id": id, "score": score}).to_string()
}

fn id_of(answer: &Answer) -> String {
    answer.head.header("x-request-id").unwrap()
}

fn assert_error(answer: &Answer, status: u16, code: &str) {
    let error = &answer.json()["error"];
    assert_eq!((answer.head.status(), &error["code"]), (status, &code.into()), "{}", answer.text());
    assert!(error["message"].is_string() && error["type"].is_string() && error.get("param").is_some());
}

#[tokio::test]
async fn a_score_is_on_disk_before_it_is_acknowledged_and_the_last_one_stands() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let endpoint = endpoint().await;
    let nodes = [node("n", endpoint.url()).model("{name: m, quality_prior: 0.8}")];
    let router = Router::start(&nodes, &quality(&store, "")).await;
    assert!(!store.exists(), "nothing is made before there is something to keep");
    let mut ids = Vec::new();
    for request in [ask("m"), ask_stream("m")] {
        ids.push(id_of(&router.chat(&request).await));
    }
    let stored = |n: usize| {
        let rows = QualityStore::open(&store).unwrap().recent_feedback("", 10).unwrap();
        assert_eq!(rows.len(), n);
        rows.into_iter().map(|row| (row.model, row.score)).collect::<Vec<_>>()
    };
    for (n, id) in (1..).zip(&ids) {
        let answer = router.post(FEEDBACK, "", body(id, 0.25)).await;
        assert_eq!(answer.head.status(), 200, "{}", answer.text());
        let said = answer.json();
        assert_eq!((&said["object"], &said["request_id"]), (&"feedback".into(), &id.as_str().into()));
        assert_eq!((&said["score"], &said["previous_score"]), (&0.25.into(), &Value::Null));
        assert_eq!(stored(n)[n - 1], ("m".to_owned(), 0.25));
    }
    let labelled = json!({"request_id": ids[0], "score": 1, "label": "thumbs_up"}).to_string();
    let again = router.post(FEEDBACK, "", labelled).await.json();
    assert_eq!((&again["previous_score"], &again["label"]), (&0.25.into(), &"thumbs_up".into()));
    assert_eq!(stored(2), [("m".to_owned(), 0.25), ("m".to_owned(), 1.0)], "by time");

    let metrics = router.metrics_reach("the scores to be taken in", |metrics| {
        metrics.count("cema_predicted_vs_actual_ratio_count", &[("quantity", "quality")]) == 3
    });
    let metrics = metrics.await;
    assert_eq!(metrics.count("cema_feedback_total", &[("outcome", "stored")]), 2);
    assert_eq!(metrics.count("cema_feedback_total", &[("outcome", "replaced")]), 1);
    // (1 + 0.25) / 2 against 0.8.
    assert!((metrics.sum("cema_feedback_score", &[("model", "m")]) - 0.625).abs() < 1e-9);
    assert!((metrics.sum("cema_quality_drift", &[("model", "m")]) + 0.175).abs() < 1e-9);
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    let feedback = &shown["destinations"][0]["feedback"];
    assert_eq!((&feedback["scores"], &feedback["is_drifting"]), (&2.into(), &false.into()));
    assert!((feedback["drift"].as_f64().unwrap() + 0.175).abs() < 1e-9, "{feedback}");
}

#[tokio::test]
async fn scores_are_in_the_decision_log_and_in_the_comparison_of_policies() {
    let folder = tempfile::tempdir().unwrap();
    let (store, log) = (folder.path().join("store"), folder.path().join("decisions.jsonl"));
    let endpoint = endpoint().await;
    let nodes = [node("n", endpoint.url()).model("{name: m}")];
    let further = format!(
        "decision_log: {{path: \"{}\"}}\nswitchback: {{minutes: 60, policies: [greedy, memetic], washout: 0}}\n",
        log.display()
    );
    let router = Router::start(&nodes, &format!("{}{further}", quality(&store, ""))).await;
    let answer = router.chat(&ask("m")).await;
    let policy = answer.head.header("x-cema-policy").unwrap();
    let labelled = json!({"request_id": id_of(&answer), "score": 0.25, "label": "wrong"}).to_string();
    assert_eq!(router.post(FEEDBACK, "", labelled).await.head.status(), 200);
    let scored =
        |metrics: &Metrics| metrics.sum("cema_switchback_feedback_score", &[("policy", &policy)]) > 0.2;
    router.metrics_reach("the score to be taken in", scored).await;
    let report = router.admin_get("/admin/v1/switchback").await.json();
    let of =
        report["policies"].as_array().unwrap().iter().find(|of| of["policy"] == policy.as_str()).unwrap();
    assert_eq!((&of["scored"], &of["figures"]["feedback_score"]["mean"]), (&1.into(), &0.25.into()));
    router.stop();
    router.ended().await;
    let text = std::fs::read_to_string(&log).unwrap();
    let line = text.lines().find(|line| line.contains("\"kind\":\"feedback\"")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["destination"], &line["label"]), (&"n/m".into(), &"wrong".into()));
    assert_eq!((&line["score"], &line["previous"]), (&0.25.into(), &Value::Null));
}

#[tokio::test]
async fn drift_is_known_again_after_a_restart_and_kept_answers_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let endpoint = endpoint().await;
    let nodes = [node("n", endpoint.url()).model("{name: m}")];
    let router = Router::start(&nodes, &quality(&store, "")).await;
    let id = id_of(&router.chat(&ask("m")).await);
    assert_eq!(router.post(FEEDBACK, "", body(&id, 0.0)).await.head.status(), 200);
    router.stop();
    router.ended().await;
    let router = Router::start(&nodes, &quality(&store, "")).await;
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    assert_eq!(shown["destinations"][0]["feedback"]["scores"], 1);
    assert_error(&router.post(FEEDBACK, "", body(&id, 0.0)).await, 404, "request_not_found");
}

#[tokio::test]
async fn only_whole_answers_of_the_same_key_take_feedback_and_only_good_feedback_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let endpoint = endpoint().await;
    let nodes = [node("n", endpoint.url()).model("{name: m, capabilities: [chat, embedding]}")];
    let digest = |key: &str| {
        use sha2::Digest as _;
        sha2::Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let keys = format!(
        "auth: {{keys: [{{name: one, sha256: {}}}, {{name: two, sha256: {}}}]}}\n",
        digest("key-one"),
        digest("key-two")
    );
    let router = Router::start(&nodes, &format!("{keys}{}", quality(&store, ""))).await;
    let (one, two) = ("authorization: Bearer key-one\r\n", "authorization: Bearer key-two\r\n");
    let id = id_of(&router.chat_with(one, &ask("m")).await);
    assert_error(&router.post(FEEDBACK, "", body(&id, 1.0)).await, 401, "invalid_api_key");
    assert_error(&router.post(FEEDBACK, two, body(&id, 1.0)).await, 404, "request_not_found");
    assert_error(&router.post(FEEDBACK, one, body("req_unknown", 1.0)).await, 404, "request_not_found");
    assert_error(&router.post(FEEDBACK, one, body(&id, 1.5)).await, 400, "invalid_feedback");
    assert_error(&router.post(FEEDBACK, one, "{").await, 400, "invalid_json");
    assert_error(&router.post(FEEDBACK, one, "x".repeat(100_000)).await, 413, "request_too_large");
    assert_error(&router.get(FEEDBACK).await, 405, "method_not_allowed");
    let broken = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"break"}]}"#;
    let broken = id_of(&router.post(CHAT, one, broken).await);
    assert_error(&router.post(FEEDBACK, one, body(&broken, 1.0)).await, 404, "request_not_found");
    let embedding = router.post(EMBEDDINGS, one, r#"{"model":"m","input":"x"}"#).await;
    assert_error(&router.post(FEEDBACK, one, body(&id_of(&embedding), 1.0)).await, 404, "request_not_found");
    assert!(!store.exists(), "nothing of it was stored");

    // Both use the id of the other's request for their own.
    let named = format!("{two}x-request-id: {id}\r\n");
    assert_eq!(id_of(&router.chat_with(&named, &ask("m")).await), id);
    for (key, score) in [(one, 0.0), (two, 1.0)] {
        let said = router.post(FEEDBACK, key, body(&id, score)).await.json();
        assert_eq!(said["previous_score"], Value::Null);
    }
    let metrics = router.metrics().await;
    assert_eq!(metrics.count("cema_feedback_total", &[("outcome", "stored")]), 2);
    assert_eq!(metrics.count("cema_feedback_total", &[("outcome", "unknown")]), 4);
    assert_eq!(metrics.count("cema_feedback_total", &[("outcome", "invalid")]), 4);
}

#[tokio::test]
async fn answers_are_kept_within_bounds_and_not_at_all_where_nobody_wants_it() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint().await;
    let nodes = [node("n", endpoint.url()).model("{name: m}")];
    for (feedback, kept) in [("requests: 1", [404, 200]), ("retention_s: 0", [404, 404])] {
        let router = Router::start(&nodes, &quality(&folder.path().join("store"), feedback)).await;
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(id_of(&router.chat(&ask("m")).await));
        }
        for (id, status) in ids.iter().zip(kept) {
            assert_eq!(router.post(FEEDBACK, "", body(id, 1.0)).await.head.status(), status, "{feedback}");
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_written_is_said_and_costs_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    std::fs::write(&store, "somebody's notes").unwrap();
    let endpoint = endpoint().await;
    let nodes = [node("n", endpoint.url()).model("{name: m}")];
    let router = Router::start(&nodes, &quality(&store, "")).await;
    let id = id_of(&router.chat(&ask("m")).await);
    let refused = router.post(FEEDBACK, "", body(&id, 1.0)).await;
    assert_error(&refused, 503, "service_unavailable");
    assert!(refused.head.header("retry-after").is_some());
    assert_eq!(std::fs::read(&store).unwrap(), b"somebody's notes");
    // Once it can, the same score is taken.
    std::fs::remove_file(&store).unwrap();
    assert_eq!(router.post(FEEDBACK, "", body(&id, 1.0)).await.head.status(), 200);
}

#[tokio::test]
async fn predictions_follow_what_clients_say_from_the_first_score_and_after_a_restart() {
    const TEST: &str = "predictions_follow_what_clients_say_from_the_first_score_and_after_a_restart";
    if embedder_or_skip(TEST).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let endpoint = endpoint().await;
    let model = |name: &str| format!("{{name: {name}, quality_prior: 0.5}}");
    let nodes =
        [node("a", endpoint.url()).model(&model("first")), node("b", endpoint.url()).model(&model("other"))];
    let sections = format!("{}routing: {{weights: {{quality: 1}}}}\n", quality(&store, ""));
    let router = Router::start(&nodes, &sections).await;
    let ask_for = |model: &str, prompt: &str| {
        json!({"model": model, "messages": [{"role": "user", "content": prompt}]}).to_string()
    };
    let sum = "What is 5 plus 12? Answer with a number.";
    for (model, score) in [("first", 0.0), ("other", 1.0)] {
        let id = id_of(&router.chat(&ask_for(model, sum)).await);
        let said = router.post(FEEDBACK, "", body(&id, score)).await.json();
        assert_eq!(said["learned"], true, "{said}");
    }
    router.metrics_reach("both scores to count", |m| m.count("cema_feedback_rows", &[]) == 2).await;
    let predicted = async |router: &Router| {
        let head = router.chat_with("x-cema-debug: true\r\n", &ask_for("auto", sum)).await.head;
        assert_eq!(head.header("x-cema-destination").unwrap(), "b/other");
        let predicted = head.header("x-cema-predicted").unwrap();
        let (_, quality) = predicted.split(';').next().unwrap().split_once('=').unwrap();
        quality.parse::<f64>().unwrap()
    };
    // The prior 0.5 counts as one, the score of the very same prompt as one.
    assert!((predicted(&router).await - 0.75).abs() < 0.01);
    router.stop();
    router.ended().await;
    let router = Router::start(&nodes, &sections).await;
    assert!((predicted(&router).await - 0.75).abs() < 0.01);
    // Prompts are not kept unless they are to be.
    let bytes = std::fs::read(store.join("quality.sqlite")).unwrap();
    assert!(!bytes.windows(10).any(|window| window == b"What is 5 "));
}
