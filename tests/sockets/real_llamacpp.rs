//! End to end against real llama.cpp servers with a small model, and with the real OpenAI SDK as the client.
//!
//! `CEMA_TEST_LLAMA` and `CEMA_TEST_SDK` name the Pythons that have them; `make test` sets both.

use std::path::Path;

use crate::support::app::{CHAT, Router};
use crate::support::in_time;
use crate::support::llama::{Llama, path_or_skip};
use crate::support::metrics::Metrics;
use async_openai::types::chat::{CreateChatCompletionResponse, CreateChatCompletionStreamResponse};
use serde_json::Value;
use tokio::process::Command;
use tokio::task::JoinSet;

fn ask(max_tokens: u32, further: &str) -> String {
    format!(
        r#"{{"model":"auto","messages":[{{"role":"user","content":"Name one colour."}}],"max_tokens":{max_tokens}{further}}}"#
    )
}

#[tokio::test]
async fn answers_come_through_whole_and_streamed() {
    let Some(python) = path_or_skip("CEMA_TEST_LLAMA") else { return };
    let llama = Llama::start(&python).await;
    let router = Router::start(&[llama.node("a")], "").await;

    let answer = router.chat(&ask(8, "")).await;
    assert_eq!(answer.head.status(), 200, "{}", answer.text());
    assert_eq!(answer.head.header("x-cema-destination").unwrap(), "a/smol");
    let whole: CreateChatCompletionResponse = serde_json::from_slice(&answer.body()).unwrap();
    assert!(whole.choices[0].message.content.as_ref().is_some_and(|content| !content.is_empty()));
    let usage = whole.usage.unwrap();
    assert!((1..=8).contains(&usage.completion_tokens));

    let answer = router.chat(&ask(8, r#","stream":true,"stream_options":{"include_usage":true}"#)).await;
    assert!(answer.is_complete);
    let text = answer.text();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let mut streamed_tokens = 0;
    let mut said = String::new();
    for data in
        text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    {
        let event: CreateChatCompletionStreamResponse = serde_json::from_str(data).unwrap();
        for choice in &event.choices {
            said.push_str(choice.delta.content.as_deref().unwrap_or_default());
        }
        streamed_tokens = event.usage.map_or(streamed_tokens, |usage| usage.completion_tokens);
    }
    assert!(!said.is_empty() && streamed_tokens > 0);

    let metrics = router.idle().await;
    let counted = metrics.count("cema_tokens_total", &[("destination", "a/smol"), ("type", "completion")]);
    assert_eq!(counted, u64::from(usage.completion_tokens + streamed_tokens));
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 2);

    // What a real server says of a request that cannot be served is what its client reads.
    let refused = router.chat(&ask(8, r#","response_format":{"type":"nonsense"}"#)).await;
    assert_eq!(refused.head.status(), 400, "{}", refused.text());
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("nonsense"), "{}", refused.text());
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_generation() {
    let Some(python) = path_or_skip("CEMA_TEST_LLAMA") else { return };
    let llama = Llama::start(&python).await;
    let router = Router::start(&[llama.node("a")], "").await;
    let mut client = router.client().await;
    client.post(CHAT, "", &ask(900, r#","stream":true,"ignore_eos":true"#)).await;
    assert_eq!(client.head().await.status(), 200);
    client.chunk().await.unwrap();
    client.reset();
    router.idle().await;
    let predicted = in_time("llama.cpp to stop", async {
        loop {
            let metrics = llama.metrics().await;
            let value = |name: &str| {
                let line = metrics
                    .lines()
                    .find(|line| line.starts_with(name))
                    .unwrap_or_else(|| panic!("{metrics}"));
                line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
            };
            if value("llamacpp:requests_processing") < 0.5 {
                return value("llamacpp:tokens_predicted_total");
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(predicted < 900.0, "all {predicted} tokens were generated for nobody");
    assert_eq!(router.metrics().await.count("cema_requests_total", &[("outcome", "client_gone")]), 1);
}

#[tokio::test]
async fn its_queue_is_read_while_it_works() {
    let Some(python) = path_or_skip("CEMA_TEST_LLAMA") else { return };
    let llama = Llama::start(&python).await;
    let router = Router::start(&[llama.node("a").measured()], "").await;
    let mut clients = Vec::new();
    // Three on two slots.
    for _ in 0..3 {
        let mut client = router.client().await;
        client.post(CHAT, "", &ask(900, r#","stream":true,"ignore_eos":true"#)).await;
        clients.push(client);
    }
    let at = [("endpoint", "a")];
    let is_full = |metrics: &Metrics| {
        metrics.count("cema_engine_running", &at) == 2 && metrics.count("cema_engine_waiting", &at) == 1
    };
    let metrics = router.metrics_reach("its queue to be read", is_full).await;
    // It says that it does not sleep.
    assert_eq!(metrics.count("cema_model_loaded", &[("destination", "a/smol")]), 1);
    let rtt_s = metrics.sum("cema_node_rtt_seconds", &[("node", "a")]);
    assert!(rtt_s > 0.0 && rtt_s < 1.0, "{rtt_s}");
    for client in clients {
        client.reset();
    }
    router.idle().await;
}

/// A turn of a conversation.
#[derive(Debug)]
struct Turn {
    destination: String,
    /// Tokens of the prompt that it was expected to have in its cache, and that the server says were there.
    expected: f64,
    cached: u64,
}

/// Asks `model` with `messages`.
async fn converse(router: &Router, model: &str, messages: &[Value]) -> Turn {
    let body = serde_json::json!({"model": model, "messages": messages, "max_tokens": 5, "temperature": 0});
    let answer = router.chat(&body.to_string()).await;
    assert_eq!(answer.head.status(), 200, "{}", answer.text());
    let said = answer.json();
    let (usage, timings) = (&said["usage"], &said["timings"]);
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(timings["cache_n"], cached, "its two accounts of it: {said}");
    router.idle().await;
    let id = answer.head.header("x-request-id").unwrap();
    let decision = router.admin_get(&format!("/admin/v1/decisions/{id}")).await.json();
    let predicted = &decision["placements"][0]["predicted"];
    Turn {
        destination: answer.head.header("x-cema-destination").unwrap().to_owned(),
        expected: predicted["cached_prompt_tokens"].as_f64().unwrap(),
        cached,
    }
}

#[tokio::test]
async fn a_conversation_stays_where_its_cache_is() {
    let Some(python) = path_or_skip("CEMA_TEST_LLAMA") else { return };
    let servers = [Llama::start(&python).await, Llama::start(&python).await];
    // The second draws twice as much: it is chosen where it has less than half as much to do.
    let node = |llama: &Llama, name: &str, watts: u32| {
        let model = "upstream: smollm2-135m-instruct, context_tokens: 1024, throughput: {max_concurrency: 2}";
        let power = format!("{{board_watts: {watts}, idle_watts: 0}}");
        llama.node(name).power(&power).model(&format!("{{name: smol-{name}, {model}}}"))
    };
    let nodes = [node(&servers[0], "a", 100), node(&servers[1], "b", 200)];
    let router = Router::start(&nodes, "routing: {policy: greedy, weights: {energy: 1}}\n").await;
    let user = |text: String| serde_json::json!({"role": "user", "content": text});
    // How fast both are.
    for model in ["smol-a", "smol-b"] {
        converse(&router, model, &[user(format!("a lake, the sea and {model}, ").repeat(60))]).await;
    }
    let new = converse(&router, "auto", &[user("Who is new here?".to_owned())]).await;
    assert_eq!(new.destination, "a/smol-a", "it draws less");
    let before = router.metrics().await;
    let mut messages = vec![
        serde_json::json!({"role": "system", "content": "You count bees and wasps by the hedge. ".repeat(40)}),
        user("How many bees?".to_owned()),
    ];
    // Its first turns are sent to the second server.
    let mut found = 0;
    for model in ["smol-b", "smol-b", "smol-b", "auto", "auto"] {
        let turn = converse(&router, model, &messages).await;
        assert_eq!(turn.destination, "b/smol-b", "{turn:?}");
        if messages.len() > 2 {
            assert!(turn.cached > 300 && turn.expected > 150.0, "{turn:?} of {} messages", messages.len());
        }
        found += turn.cached;
        messages.push(serde_json::json!({"role": "assistant", "content": "Seven."}));
        messages.push(user("And now?".to_owned()));
    }
    let after = router.metrics().await;
    let tokens = |kind: &str| {
        let labels = [("destination", "b/smol-b"), ("type", kind)];
        let of = |metrics: &Metrics| metrics.sum("cema_prefix_tokens_total", &labels);
        of(&after) - of(&before)
    };
    assert!((tokens("found") - found as f64).abs() < 1e-9, "{} and {found}", tokens("found"));
    assert!((0.9..1.5).contains(&(tokens("found") / tokens("expected"))), "{}", tokens("expected"));
    let ratio = after.sum("cema_prefix_found_ratio", &[("destination", "b/smol-b")]);
    // ½, and a quarter closer to all of it with each of four answers.
    assert!(ratio > 0.8 && ratio <= 1.0, "{ratio}");
}

#[tokio::test]
async fn a_server_that_is_killed_costs_no_request() {
    let Some(python) = path_or_skip("CEMA_TEST_LLAMA") else { return };
    let (mut dies, lives) = (Llama::start(&python).await, Llama::start(&python).await);
    let router = Router::start(&[dies.node("dies"), lives.node("lives")], "").await;
    let mut asked = JoinSet::new();
    for _ in 0..8 {
        let mut client = router.client().await;
        client.post(CHAT, "", &ask(64, r#","ignore_eos":true"#)).await;
        asked.spawn(async move { client.answer().await });
    }
    let at = |metrics: &Metrics, id| metrics.count("cema_inflight", &[("destination", id)]);
    router
        .metrics_reach("both to work", |metrics| {
            at(metrics, "dies/smol") > 0 && at(metrics, "lives/smol") > 0
        })
        .await;
    dies.process.kill().await.unwrap();
    for answer in asked.join_all().await {
        assert_eq!(answer.head.status(), 200, "{}", answer.text());
        let whole: CreateChatCompletionResponse = serde_json::from_slice(&answer.body()).unwrap();
        assert_eq!(whole.usage.unwrap().completion_tokens, 64);
    }
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 8);
    assert!(metrics.count("cema_upstream_attempts_total", &[]) > 0, "none was under way there");
    let is_down = |metrics: &Metrics| metrics.count("cema_endpoint_up", &[("endpoint", "dies")]) == 0;
    router.metrics_reach("its end to be seen", is_down).await;
}

#[tokio::test]
async fn the_openai_sdk_finds_what_it_expects() {
    let (Some(python), Some(sdk)) = (path_or_skip("CEMA_TEST_LLAMA"), path_or_skip("CEMA_TEST_SDK")) else {
        return;
    };
    let llama = Llama::start(&python).await;
    let router = Router::start(&[llama.node("a")], "").await;
    let run = Command::new(sdk)
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/openai_chat.py"))
        .args(["--base-url", &format!("http://{}/v1", router.api())])
        .kill_on_drop(true)
        .output();
    let output = in_time("the SDK's checks", run).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    assert!(report["passed"].as_array().unwrap().len() > 10, "{report}");
}

#[tokio::test]
async fn a_real_server_can_be_calibrated() {
    let Some(python) = path_or_skip("CEMA_TEST_LLAMA") else { return };
    let llama = Llama::start(&python).await;
    let folder = tempfile::TempDir::new().unwrap();
    let config = folder.path().join("config.yaml");
    let model = "{name: smol, upstream: smollm2-135m-instruct, context_tokens: 1024}";
    let node =
        format!("{{name: a, endpoints: [{{url: \"{}\", kind: llamacpp, models: [{model}]}}]}}", llama.url());
    std::fs::write(&config, format!("listen: 127.0.0.1:8080\nnodes: [{node}]\n")).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_cema-router"))
        .args(["profile", "throughput", "--yes", "--format", "json", "--config"])
        .arg(&config)
        .args(["--prompt-tokens", "96,384", "--completion-tokens", "12", "--repeats", "1"])
        .kill_on_drop(true)
        .output();
    let output = in_time("the calibration", run).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let destination = &results["destinations"][0];
    let number = |path: &str| {
        destination
            .pointer(path)
            .and_then(serde_json::Value::as_f64)
            .unwrap_or_else(|| panic!("{path}: {results}"))
    };
    // The server's own account of the same requests; only a crowded machine keeps them apart at all.
    let ratio = number("/figures/decode_tps/median") / number("/figures/server_decode_tps/median");
    assert!((0.5..2.0).contains(&ratio), "{results}");
    // Two slots, which it tells and which ran.
    assert_eq!(destination["figures"]["ladder"]["slots"], 2);
    assert_eq!(destination["rungs"][1]["running_max"], 2);
    let singles = destination["singles"].as_array().unwrap();
    assert!(
        singles.iter().all(|single| single["completion_tokens"] == 12),
        "it ignored the end: {singles:?}"
    );
    let lengths: Vec<_> = singles.iter().map(|single| single["prompt_tokens"].as_u64().unwrap()).collect();
    assert!((60..=96).contains(&lengths[0]) && (300..=384).contains(&lengths[1]), "{lengths:?}");
}
