//! The request monitor over real sockets: an endpoint that becomes slow loses work while its streams run, and gets it
//! back; figures are learnt from what endpoints do and shown with where they come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::answers::{
    DONE_EVENT, chunk, delta_event, finish_event, last_chunk, role_event, stream_head,
};
use crate::support::app::{CHAT, Router, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::in_time;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Tokens of every answer.
const TOKENS: usize = 40;
/// Time of a token at full speed: 100 tokens a second.
const TOKEN_MS: u64 = 10;
const MODEL: &str =
    "{name: m, throughput: {prefill_tps: 10000, decode_tps: 100, batch_speedup: 1, max_concurrency: 4}}";

/// A server that generates one token after the other, for each of its streams in turn.
struct Engine {
    endpoint: FakeEndpoint,
    /// Time of a token, milliseconds.
    token_ms: Arc<AtomicU64>,
    _generating: AbortOnDropHandle<()>,
}

impl Engine {
    async fn start() -> Self {
        let (token_ms, tokens) = (Arc::new(AtomicU64::new(TOKEN_MS)), Arc::new(Semaphore::new(0)));
        let gate = Arc::clone(&tokens);
        let endpoint = llm(move |_| {
            let mut steps = vec![stream_head(), chunk(role_event("m"))];
            for _ in 0..TOKENS {
                steps.extend([Step::Gate(Arc::clone(&gate)), chunk(delta_event("m", "word "))]);
            }
            steps.extend([chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
            steps
        })
        .await;
        let pause = Arc::clone(&token_ms);
        let generating = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(pause.load(Ordering::Relaxed))).await;
                // None is kept for later.
                if tokens.available_permits() == 0 {
                    tokens.add_permits(1);
                }
            }
        });
        Self { endpoint, token_ms, _generating: AbortOnDropHandle::new(generating) }
    }

    fn slow_down_by(&self, factor: u64) {
        self.token_ms.store(factor * TOKEN_MS, Ordering::Relaxed);
    }
}

/// A client that asks again as soon as it is answered, until `stop`; every answer is whole.
async fn keep_asking(router: std::net::SocketAddr, stop: Arc<AtomicBool>) {
    let ask = format!(
        r#"{{"model":"auto","messages":[{{"role":"user","content":"hi"}}],"max_tokens":{TOKENS},"stream":true}}"#
    );
    while !stop.load(Ordering::Relaxed) {
        let mut client = crate::support::raw_client::RawClient::connect(router).await;
        client.post(CHAT, "", &ask).await;
        let answer = client.answer().await;
        assert_eq!((answer.head.status(), answer.is_complete), (200, true));
    }
}

/// The first endpoint's share of the next `n` requests.
async fn share(engines: &[Engine; 2], n: usize) -> f64 {
    let before = engines.each_ref().map(|engine| engine.endpoint.posts().len());
    in_time("requests to come", async {
        loop {
            let after = engines.each_ref().map(|engine| engine.endpoint.posts().len());
            let came = [after[0] - before[0], after[1] - before[1]];
            if came[0] + came[1] >= n {
                return came[0] as f64 / (came[0] + came[1]) as f64;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

#[tokio::test]
async fn an_endpoint_that_slows_to_a_third_loses_work_and_gets_it_back() {
    let engines = [Engine::start().await, Engine::start().await];
    let url = |n: usize| engines[n].endpoint.url();
    let nodes = [node("a", url(0)).model(MODEL), node("b", url(1)).model(MODEL)];
    let router = Router::start(&nodes, "routing: {policy: greedy, weights: {time: 1}}\n").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    (0..6).for_each(|_| {
        clients.spawn(keep_asking(router.api(), Arc::clone(&stop)));
    });
    let pace = |metrics: &crate::support::metrics::Metrics| {
        metrics.sum("cema_destination_pace_ratio", &[("destination", "a/m")])
    };
    let usual = share(&engines, 24).await;
    assert!((0.35..=0.65).contains(&usual), "{usual}");

    engines[0].slow_down_by(3);
    router.metrics_reach("the slow endpoint to be noticed", |metrics| pace(metrics) < 0.65).await;
    let slow = share(&engines, 24).await;
    assert!(slow < 0.35, "{slow}");

    engines[0].slow_down_by(1);
    in_time("its share to be back", async { while share(&engines, 24).await < 0.35 {} }).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

#[tokio::test]
async fn figures_are_learnt_and_shown_with_their_source() {
    let engine = Engine::start().await;
    let model = "{name: m, throughput: {decode_tps: 150, max_concurrency: 8}}";
    let router = Router::start(&[node("a", engine.endpoint.url()).model(model)], "").await;
    let shown = |answer: crate::support::raw_client::Answer| answer.json()["destinations"][0].clone();
    let before = shown(router.admin_get("/admin/v1/destinations").await);
    let source = |shown: &serde_json::Value, name: &str| shown["figures"][name]["source"].clone();
    for (name, from) in [
        ("decode_tps", "configured"),
        ("prefill_tps", "default"),
        ("batch_speedup", "default"),
        ("max_concurrency", "configured"),
        ("rtt_s", "configured"),
    ] {
        assert_eq!(source(&before, name), from, "{name}");
        assert_eq!(
            (&before["figures"][name]["samples"], &before["figures"][name]["age_s"]),
            (&0.into(), &().into())
        );
    }
    assert_eq!(
        (&before["pace"], &before["backlog_s"], &before["inflight"]),
        (&1.0.into(), &0.0.into(), &0.into())
    );

    let stop = Arc::new(AtomicBool::new(false));
    let client = tokio::spawn(keep_asking(router.api(), Arc::clone(&stop)));
    engine.endpoint.posts_reach(6).await;
    stop.store(true, Ordering::Relaxed);
    client.await.unwrap();
    router.idle().await;
    let after = shown(router.admin_get("/admin/v1/destinations").await);
    let decode = &after["figures"]["decode_tps"];
    assert_eq!((&decode["source"], &decode["stale"]), (&"live".into(), &false.into()), "{after}");
    // A token takes 10 ms at the least: up to 100 tokens a second.
    let (value, drift) = (decode["value"].as_f64().unwrap(), decode["drift"].as_f64().unwrap());
    assert!(value < 125.0 && (drift - value / 150.0).abs() < 1e-9, "{decode}");
    assert!(decode["samples"].as_u64().unwrap() >= 5 && decode["age_s"].as_f64().unwrap() < 60.0, "{decode}");
    let metrics = router.metrics().await;
    for quantity in ["seconds", "tokens", "joules"] {
        let labels = [("destination", "a/m"), ("quantity", quantity)];
        assert!(metrics.count("cema_predicted_vs_actual_ratio_count", &labels) >= 6, "{quantity}");
    }
}
