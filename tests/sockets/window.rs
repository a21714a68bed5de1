//! Gathering and holding over real sockets: who is planned together, how long it takes, how a burst spreads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::answers::chat;
use crate::support::app::{CHAT, Node, Router, ask, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::in_time;
use crate::support::metrics::Metrics;
use crate::support::raw_client::{Answer, RawClient};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// An endpoint that answers a request each time its gate is opened once.
async fn gated() -> (FakeEndpoint, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let script = move |_: &_| [vec![Step::Gate(Arc::clone(&opened))], chat("m", "done")].concat();
    (llm(script).await, gate)
}

/// `n` connected clients, so that their requests can leave in the same instant.
async fn clients(router: &Router, n: usize) -> Vec<RawClient> {
    let mut clients = Vec::new();
    for _ in 0..n {
        clients.push(router.client().await);
    }
    clients
}

async fn send(clients: &mut [RawClient], body: &str) {
    for client in clients {
        client.post(CHAT, "x-cema-debug: true\r\n", body).await;
    }
}

async fn answers(clients: Vec<RawClient>) -> Vec<Answer> {
    let mut waiting = JoinSet::new();
    for mut client in clients {
        waiting.spawn(async move { client.answer().await });
    }
    waiting.join_all().await
}

fn number(answer: &Answer, name: &str) -> f64 {
    let value = answer.head.header(name).unwrap_or_else(|| panic!("no {name}: {}", answer.text()));
    value.parse().unwrap()
}

fn window_ms(answer: &Answer) -> f64 {
    number(answer, "x-cema-window-ms")
}

fn batches(answers: &[Answer]) -> BTreeMap<u64, usize> {
    let mut batches = BTreeMap::new();
    for answer in answers {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
        let batch = number(answer, "x-cema-batch") as u64;
        *batches.entry(batch).or_default() += 1;
    }
    batches
}

/// Most and fewest requests that one of `endpoints` has.
fn spread(endpoints: &[(FakeEndpoint, Arc<Semaphore>)]) -> (usize, usize) {
    let counts: Vec<usize> = endpoints.iter().map(|(endpoint, _)| endpoint.posts().len()).collect();
    (*counts.iter().max().unwrap(), *counts.iter().min().unwrap())
}

#[tokio::test]
async fn a_fixed_window_plans_together_what_comes_within_it() {
    let endpoint = llm(|_| chat("m", "done")).await;
    let router = Router::start(&[node("a", endpoint.url())], "window: {close: fixed, max_ms: 1000}\n").await;
    let mut clients = clients(&router, 8).await;
    send(&mut clients, &ask("auto")).await;
    let answers = answers(clients).await;
    assert!(answers.iter().all(|answer| answer.head.status() == 200));
    assert_eq!(batches(&answers).into_values().collect::<Vec<_>>(), [8]);
    assert!(answers.iter().all(|answer| answer.head.header("x-cema-batch-size").as_deref() == Some("8")));
    let longest = answers.iter().map(window_ms).fold(0.0, f64::max);
    assert!((1000.0..3000.0).contains(&longest), "the first one waits for the whole window: {longest} ms");
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_window_size_count", &[]), 1);
    assert_eq!(metrics.count("cema_window_size_sum", &[]), 8);
    assert_eq!(metrics.count("cema_window_wait_seconds_count", &[]), 8);
}

#[tokio::test]
async fn a_full_window_closes_early() {
    let endpoint = llm(|_| chat("m", "done")).await;
    let window = "window: {close: fixed, max_ms: 1000, max_requests: 4}\n";
    let router = Router::start(&[node("a", endpoint.url())], window).await;
    let mut clients = clients(&router, 8).await;
    send(&mut clients, &ask("auto")).await;
    let answers = answers(clients).await;
    assert_eq!(batches(&answers).into_values().collect::<Vec<_>>(), [4, 4]);
    let shortest = answers.iter().map(window_ms).fold(f64::INFINITY, f64::min);
    assert!(shortest < 900.0, "{shortest} ms");
}

#[tokio::test]
async fn a_lone_request_hardly_waits() {
    let endpoint = llm(|_| chat("m", "done")).await;
    for window in ["", "window: {max_ms: 0}\n", "routing: {policy: round_robin}\n"] {
        let router = Router::start(&[node("a", endpoint.url()), node("b", endpoint.url())], window).await;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let answer = router.chat_with("x-cema-debug: true\r\n", &ask("auto")).await;
            assert_eq!(answer.head.header("x-cema-batch-size").unwrap(), "1");
            best = best.min(window_ms(&answer));
        }
        assert!(best < 200.0, "{window} {best} ms");
    }
}

/// Sends two bursts of 32 over four identical endpoints, each as soon as the one before is on its way,
/// before any endpoint has sent a byte.
async fn bursts_spread(window: &str) {
    // sgl-project/sglang#27547: load that counts only once answers begin sends everything to one worker.
    let mut endpoints = Vec::new();
    for _ in 0..4 {
        endpoints.push(gated().await);
    }
    // Prompts are read one after the other: `batch_speedup: 1`. A serving batch that costs nothing until it
    // is full would be no reason to spread (Eq. 4). 40 s of work each: a slow machine must not see it drain in between.
    let model = "{name: m, context_tokens: 65536, throughput: {prefill_tps: 800, decode_tps: 40, batch_speedup: 1, max_concurrency: 64}}";
    let nodes: Vec<Node> = endpoints
        .iter()
        .zip(["a", "b", "c", "d"])
        .map(|((e, _), name)| node(name, e.url()).model(model))
        .collect();
    let router = Router::start(&nodes, window).await;
    let prompt = "lorem ipsum dolor sit amet ".repeat(4800);
    let body = ask("auto")
        .replace("\"hi\"", &format!("\"{prompt}\""))
        .replace("\"max_tokens\":8", "\"max_tokens\":1");
    let mut all = Vec::new();
    for n_sent in [32, 64] {
        let mut burst = clients(&router, 32).await;
        send(&mut burst, &body).await;
        all.extend(burst);
        in_time("the burst to be on its way", async {
            while endpoints.iter().map(|(endpoint, _)| endpoint.posts().len()).sum::<usize>() < n_sent {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let (most, fewest) = spread(&endpoints);
        assert!(most - fewest <= 2, "{window}: {fewest} to {most} after {n_sent}");
    }
    for (_, gate) in &endpoints {
        gate.add_permits(64);
    }
    let answers = answers(all).await;
    assert!(answers.iter().all(|answer| answer.head.status() == 200));
    let (most, fewest) = spread(&endpoints);
    assert!(most - fewest <= 2, "{window}: {fewest} to {most}");
    router.idle().await;
}

#[tokio::test]
async fn bursts_spread_when_planned_as_they_come() {
    bursts_spread("").await;
}

#[tokio::test]
async fn bursts_spread_in_fixed_windows() {
    bursts_spread("window: {close: fixed, max_ms: 200}\n").await;
}

#[tokio::test]
async fn bursts_spread_without_windows() {
    bursts_spread("window: {max_ms: 0}\n").await;
}

#[tokio::test]
async fn what_has_no_slot_is_held_until_one_is_free() {
    let (endpoint, gate) = gated().await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 1")];
    let router = Router::start(&nodes, "").await;
    let mut clients = clients(&router, 4).await;
    send(&mut clients, &ask("auto")).await;
    for n_done in 0..4 {
        let held = 3 - n_done;
        router
            .metrics_reach("one to run and the rest to be held", |metrics| {
                metrics.count("cema_inflight", &[]) == 1 && metrics.count("cema_held_requests", &[]) == held
            })
            .await;
        endpoint.posts_reach(usize::try_from(n_done).unwrap() + 1).await;
        assert_eq!(endpoint.posts().len(), usize::try_from(n_done).unwrap() + 1, "never two at once");
        gate.add_permits(1);
    }
    let answers = answers(clients).await;
    assert!(answers.iter().all(|answer| answer.head.status() == 200));
    router.idle().await;
}

#[tokio::test]
async fn what_has_waited_its_time_goes_to_the_engines_queue() {
    let (endpoint, gate) = gated().await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 2")];
    let router = Router::start(&nodes, "window: {max_ms: 200, max_hold_ms: 300}\n").await;
    let mut clients = clients(&router, 2).await;
    send(&mut clients, &ask("auto")).await;
    // The first one still runs when the second arrives.
    endpoint.posts_reach(2).await;
    gate.add_permits(2);
    let mut waits: Vec<f64> = answers(clients).await.iter().map(window_ms).collect();
    waits.sort_by(f64::total_cmp);
    assert!((300.0..3000.0).contains(&waits[1]), "{waits:?} ms");
}

#[tokio::test]
async fn a_held_request_goes_where_a_place_is_free_first() {
    // Late binding: it is not tied to the destination that looked best when it came.
    let ((quick, quick_gate), (slow, slow_gate)) = (gated().await, gated().await);
    let model = |decode_tps: u32| {
        format!("{{name: m, throughput: {{decode_tps: {decode_tps}, max_concurrency: 1}}}}")
    };
    let nodes = [
        node("quick", quick.url()).model(&model(60)).endpoint("max_inflight: 1"),
        node("slow", slow.url()).model(&model(50)).endpoint("max_inflight: 1"),
    ];
    let router = Router::start(&nodes, "window: {max_ms: 200, max_hold_ms: 200}\n").await;
    let mut clients = clients(&router, 3).await;
    send(&mut clients, &ask("auto")).await;
    quick.posts_reach(1).await;
    slow.posts_reach(1).await;
    router.metrics_reach("one to be held", |metrics| metrics.count("cema_held_requests", &[]) == 1).await;
    slow_gate.add_permits(1);
    slow.posts_reach(2).await;
    slow_gate.add_permits(1);
    quick_gate.add_permits(1);
    answers(clients).await;
    assert_eq!((quick.posts().len(), slow.posts().len()), (1, 2));
}

#[tokio::test]
async fn a_client_that_leaves_while_it_is_held_is_forgotten() {
    let (endpoint, gate) = gated().await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 1")];
    let router = Router::start(&nodes, "").await;
    let mut runs = router.client().await;
    runs.post(CHAT, "", &ask("auto")).await;
    endpoint.posts_reach(1).await;
    let held = |n: u64| move |metrics: &Metrics| metrics.count("cema_held_requests", &[]) == n;
    let (mut leaves, mut stays) = (router.client().await, router.client().await);
    leaves.post(CHAT, "x-request-id: leaves\r\n", &ask("auto")).await;
    router.metrics_reach("it to be held", held(1)).await;
    stays.post(CHAT, "x-request-id: stays\r\n", &ask("auto")).await;
    router.metrics_reach("both to be held", held(2)).await;
    leaves.reset();
    router.metrics_reach("one to be forgotten", held(1)).await;
    gate.add_permits(2);
    assert_eq!(runs.answer().await.head.status(), 200);
    assert_eq!(stays.answer().await.head.status(), 200);
    let sent = endpoint.posts();
    assert_eq!((sent.len(), sent[1].head.header("x-request-id").unwrap()), (2, "stays".into()));
    let metrics = router.idle().await;
    let gone = [("outcome", "client_gone"), ("destination", "none")];
    assert_eq!(metrics.count("cema_requests_total", &gone), 1);
}

#[tokio::test]
async fn a_client_that_leaves_the_window_is_not_planned() {
    let endpoint = llm(|_| chat("m", "done")).await;
    let router = Router::start(&[node("a", endpoint.url())], "window: {close: fixed, max_ms: 1000}\n").await;
    let mut clients = clients(&router, 3).await;
    send(&mut clients, &ask("auto")).await;
    clients.pop().unwrap().reset();
    let answers = answers(clients).await;
    assert!(answers.iter().all(|answer| answer.head.header("x-cema-batch-size").as_deref() == Some("2")));
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_window_size_sum", &[]), 2);
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "client_gone")]), 1);
    assert_eq!(endpoint.posts().len(), 2);
}

#[tokio::test]
async fn without_windows_every_request_goes_at_once() {
    let endpoint = llm(|_| chat("m", "done")).await;
    let router = Router::start(&[node("a", endpoint.url())], "window: {max_ms: 0}\n").await;
    let answers: Vec<Answer> = [router.chat(&ask("m")).await, router.chat(&ask("m")).await].into();
    assert_eq!(batches(&answers).len(), 2);
}

#[tokio::test]
async fn more_requests_than_may_wait_are_refused() {
    let (endpoint, gate) = gated().await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 1")];
    let router = Router::start(&nodes, "limits: {max_queued_requests: 2}\n").await;
    let mut waiting = clients(&router, 3).await;
    for (n, client) in waiting.iter_mut().enumerate() {
        client.post(CHAT, "", &ask("auto")).await;
        // The queue has room again once the first one is on its way.
        endpoint.posts_reach(1).await;
        router
            .metrics_reach("it to be held", |metrics| {
                metrics.count("cema_held_requests", &[]) == u64::try_from(n).unwrap()
            })
            .await;
    }
    let refused = router.chat(&ask("auto")).await;
    assert_eq!(
        (refused.head.status(), refused.json()["error"]["code"].as_str().unwrap()),
        (429, "rate_limit_exceeded")
    );
    assert!(refused.head.header("retry-after").is_some());
    gate.add_permits(3);
    let statuses: BTreeSet<u16> = answers(waiting).await.iter().map(|answer| answer.head.status()).collect();
    assert_eq!(statuses, BTreeSet::from([200]));
}

#[tokio::test]
async fn a_request_that_finds_no_place_in_time_is_told_so() {
    let (endpoint, gate) = gated().await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 1")];
    let router = Router::start(&nodes, "limits: {request_deadline_ms: 200}\n").await;
    let mut runs = router.client().await;
    runs.post(CHAT, "", &ask("auto")).await;
    endpoint.posts_reach(1).await;
    let late = router.chat(&ask("auto")).await;
    assert_eq!((late.head.status(), late.head.header("x-should-retry").as_deref()), (503, Some("true")));
    gate.add_permits(1);
    assert_eq!(runs.answer().await.head.status(), 200, "the deadline is for waiting, not for running");
    assert_eq!(router.idle().await.count("cema_rejected_total", &[("reason", "expired")]), 1);
}
