//! Prefix affinity over real sockets: conversations stay where their prompt is cached, as far as endpoints say that
//! it is, and the figures of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::answers::json;
use crate::support::app::{Node, Router, llm, node};
use crate::support::fake_endpoint::FakeEndpoint;
use crate::support::metrics::Metrics;
use serde_json::{Value, json as object};

/// `a` reads faster, so that it is chosen where nothing is cached.
const SPEEDS: [(&str, u32); 2] = [("a", 125), ("b", 100)];
const ROUTING: &str = "routing: {policy: greedy, weights: {time: 1}}\nwindow: {max_ms: 0}\n";

/// What an endpoint says that it found in its cache.
#[derive(Clone, Copy)]
enum Tells {
    /// Everything that it was sent before, message by message, and the answers.
    All,
    /// That it found nothing.
    None,
    /// Nothing about it.
    Nothing,
}

/// A server that counts a token for each byte of its messages.
struct Engine {
    endpoint: FakeEndpoint,
    /// Tokens that it said it had found.
    found: Arc<AtomicU64>,
    is_up: Arc<AtomicBool>,
}

impl Engine {
    async fn start(tells: Tells) -> Self {
        let (found, is_up) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
        let (counted, serves) = (Arc::clone(&found), Arc::clone(&is_up));
        let seen = std::sync::Mutex::new(Vec::<Vec<Value>>::new());
        let endpoint = llm(move |request| {
            if !serves.load(Ordering::Relaxed) {
                return json(500, r#"{"error":{"message":"gone"}}"#);
            }
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let messages = body["messages"].as_array().unwrap().clone();
            let size = |messages: &[Value]| messages.iter().map(|m| m.to_string().len() as u64).sum::<u64>();
            let mut seen = seen.lock().unwrap();
            let shared = |before: &Vec<Value>| {
                let n = before.iter().zip(&messages).take_while(|(a, b)| a == b).count();
                size(&messages[..n])
            };
            let cached = seen.iter().map(shared).max().unwrap_or(0);
            let prompt = size(&messages);
            seen.push(messages);
            let details = match tells {
                Tells::All => object!({"cached_tokens": cached}),
                Tells::None => object!({"cached_tokens": 0}),
                Tells::Nothing => Value::Null,
            };
            if matches!(tells, Tells::All) {
                counted.fetch_add(cached, Ordering::Relaxed);
            }
            let usage = object!({"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2,
                                 "prompt_tokens_details": details});
            let message = object!({"role": "assistant", "content": "well then"});
            let choice = object!({"index": 0, "message": message, "finish_reason": "stop"});
            json(
                200,
                &object!({"object": "chat.completion", "choices": [choice], "usage": usage}).to_string(),
            )
        })
        .await;
        Self { endpoint, found, is_up }
    }

    fn node(&self, idx: usize) -> Node {
        let (name, prefill_tps) = SPEEDS[idx];
        let speed =
            format!("prefill_tps: {prefill_tps}, decode_tps: 100, batch_speedup: 4, max_concurrency: 4");
        node(name, self.endpoint.url()).model(&format!("{{name: m, throughput: {{{speed}}}}}"))
    }
}

/// A router over two of them.
async fn pair(tells: Tells, sections: &str) -> ([Engine; 2], Router) {
    let engines = [Engine::start(tells).await, Engine::start(tells).await];
    let router = Router::start(&[engines[0].node(0), engines[1].node(1)], sections).await;
    (engines, router)
}

/// A conversation about `topic` after so many answers.
fn turn(topic: &str, answers: usize) -> String {
    let mut messages = vec![object!({"role": "system", "content": format!("{topic} ").repeat(100)})];
    for n in 0..answers {
        messages.push(object!({"role": "user", "content": format!("question {n} of {topic}")}));
        messages.push(object!({"role": "assistant", "content": "well then"}));
    }
    messages.push(object!({"role": "user", "content": "and what now?"}));
    object!({"model": "auto", "messages": messages, "max_tokens": 2}).to_string()
}

async fn served_by(router: &Router, headers: &str, body: &str) -> String {
    let answer = router.chat_with(headers, body).await;
    assert_eq!(answer.head.status(), 200, "{}", answer.text());
    // So that the next one finds an idle fleet.
    router.idle().await;
    answer.head.header("x-cema-destination").unwrap().to_owned()
}

fn tokens(metrics: &Metrics, destination: &str, kind: &str) -> f64 {
    metrics.sum("cema_prefix_tokens_total", &[("destination", destination), ("type", kind)])
}

fn ratio(metrics: &Metrics, destination: &str) -> f64 {
    metrics.sum("cema_prefix_found_ratio", &[("destination", destination)])
}

#[tokio::test]
async fn conversations_stay_where_their_cache_is_and_new_ones_spread() {
    let (engines, router) = pair(Tells::All, ROUTING).await;
    // One conversation is put at `b`: while the other endpoint fails it is served there.
    engines[0].is_up.store(false, Ordering::Relaxed);
    assert_eq!(served_by(&router, "", &turn("bees", 0)).await, "b/m");
    engines[0].is_up.store(true, Ordering::Relaxed);
    // The faster one, unless the cache says otherwise.
    assert_eq!(served_by(&router, "", &turn("ants", 0)).await, "a/m");
    for answers in 1..4 {
        assert_eq!(served_by(&router, "", &turn("bees", answers)).await, "b/m", "turn {answers}");
        assert_eq!(served_by(&router, "", &turn("ants", answers)).await, "a/m", "turn {answers}");
    }

    let metrics = router.idle().await;
    for (engine, id) in engines.iter().zip(["a/m", "b/m"]) {
        let (expected, found) = (tokens(&metrics, id, "expected"), tokens(&metrics, id, "found"));
        assert!((found - engine.found.load(Ordering::Relaxed) as f64).abs() < 1e-9, "{found}");
        // The estimate of a beginning is a share of the estimate of the prompt, which is scaled to what was counted.
        assert!(expected > 0.0 && (0.8..1.3).contains(&(found / expected)), "{found} of {expected}");
        // ½, and a quarter closer to all of it with each of three answers.
        assert!(ratio(&metrics, id) > 0.7, "{}", ratio(&metrics, id));
    }
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    let figure = &shown["destinations"][0]["figures"]["prefix_found_ratio"];
    assert_eq!((&figure["source"], &figure["samples"]), (&"live".into(), &3.into()));
}

#[tokio::test]
async fn an_endpoint_without_a_cache_soon_gets_no_discount() {
    let engine = Engine::start(Tells::None).await;
    let router = Router::start(&[engine.node(0)], ROUTING).await;
    for answers in 0..9 {
        served_by(&router, "", &turn("bees", answers)).await;
    }
    let metrics = router.idle().await;
    assert!(ratio(&metrics, "a/m") < 0.06, "{}", ratio(&metrics, "a/m"));
    assert!(tokens(&metrics, "a/m", "expected") > 0.0 && tokens(&metrics, "a/m", "found") < 1e-9);
}

#[tokio::test]
async fn an_endpoint_that_tells_nothing_keeps_the_careful_guess() {
    let engine = Engine::start(Tells::Nothing).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions.jsonl");
    let sections = format!("{ROUTING}decision_log: {{path: \"{}\"}}\n", path.display());
    let router = Router::start(&[engine.node(0)], &sections).await;
    let seconds = |answer: &crate::support::raw_client::Answer| {
        let predicted = answer.head.header("x-cema-predicted").unwrap().to_owned();
        let (_, seconds) = predicted.split_once("seconds=").unwrap();
        seconds.split([';', ',', ' ']).next().unwrap().parse::<f64>().unwrap()
    };
    let mut predicted = Vec::new();
    for answers in 0..2 {
        let answer = router.chat_with("x-cema-debug: true\r\n", &turn("bees", answers)).await;
        assert_eq!(answer.head.status(), 200);
        predicted.push(seconds(&answer));
        router.idle().await;
    }
    let metrics = router.metrics().await;
    assert!((ratio(&metrics, "a/m") - 0.5).abs() < 1e-9);
    assert!(tokens(&metrics, "a/m", "expected") < 1e-9, "nobody can say what of it was found");
    // The second turn is longer and takes about half as long.
    assert!(predicted[1] < 0.7 * predicted[0], "{predicted:?}");
    router.stop();
    router.ended().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let of = |kind: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["kind"] == kind).collect::<Vec<_>>()
    };
    let (plans, requests) = (of("plan"), of("request"));
    let cached = |n: usize| requests[n]["predicted"]["cached_prompt_tokens"].as_f64().unwrap();
    // Half of 129 tokens: 500 bytes are 125, and 4 for the message.
    assert!(cached(0).abs() < 1e-9 && (cached(1) - 64.5).abs() < 1e-9, "{requests:?}");
    assert_eq!(
        plans[1]["requests"][0]["predicted"]["cached_prompt_tokens"],
        requests[1]["predicted"]["cached_prompt_tokens"]
    );
    assert_eq!(requests[1]["actual"]["cached_prompt_tokens"], Value::Null);
}

#[tokio::test]
async fn a_session_stays_even_where_its_messages_changed() {
    let (engines, router) = pair(Tells::Nothing, ROUTING).await;
    let session = "x-session-id: the bees\r\n";
    engines[0].is_up.store(false, Ordering::Relaxed);
    assert_eq!(served_by(&router, session, &turn("bees", 1)).await, "b/m");
    engines[0].is_up.store(true, Ordering::Relaxed);
    assert_eq!(served_by(&router, "", &turn("wasps", 2)).await, "a/m", "nobody knows it");
    assert_eq!(served_by(&router, "x-session-id: other\r\n", &turn("flies", 2)).await, "a/m");
    assert_eq!(served_by(&router, session, &turn("hornets", 2)).await, "b/m");
    // Two names are none.
    let twice = format!("{session}x-session-id: other\r\n");
    assert_eq!(served_by(&router, &twice, &turn("moths", 2)).await, "a/m");
}

#[tokio::test]
async fn prefix_caches_can_be_left_out_of_account() {
    let routing = ROUTING.replace("{policy", "{prefix_cache: {entries: 0}, policy");
    let (engines, router) = pair(Tells::All, &routing).await;
    engines[0].is_up.store(false, Ordering::Relaxed);
    assert_eq!(served_by(&router, "", &turn("bees", 0)).await, "b/m");
    engines[0].is_up.store(true, Ordering::Relaxed);
    assert_eq!(served_by(&router, "", &turn("bees", 1)).await, "a/m");
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    assert_eq!(shown["destinations"][0]["figures"]["prefix_found_ratio"], Value::Null);
}
