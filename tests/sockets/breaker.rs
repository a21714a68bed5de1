//! An endpoint that keeps failing is left alone, and one request at a time finds out when it is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::answers::{
    chat, chat_body, chat_stream, chunk, delta_event, json, role_event, stream_head,
};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Router, ask, ask_stream, llm, priced};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;
use crate::support::raw_client::Answer;
use tokio::sync::Semaphore;

/// Two failures in a row open a circuit for no longer than this.
const BREAKER: &str = "breaker: {failures: 2, open_ms: 400, open_max_ms: 400}\n";

fn header(answer: &Answer, name: &str) -> String {
    answer.head.header(name).unwrap_or_default()
}

async fn over(endpoints: &[&FakeEndpoint], sections: &str) -> Router {
    let nodes: Vec<_> =
        (1..).zip(endpoints).map(|(usd, e)| priced(&format!("n{usd}"), e.url(), usd)).collect();
    Router::start(&nodes, &format!("{CHEAPEST_FIRST}{sections}")).await
}

async fn circuit_reaches(router: &Router, state: u64) {
    let reached = |metrics: &Metrics| metrics.count("cema_circuit_state", &[("endpoint", "n1")]) == state;
    router.metrics_reach("the circuit to change", reached).await;
}

#[tokio::test]
async fn failures_in_a_row_open_the_circuit_and_a_trial_closes_it() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let a = llm(move |_| if well.load(Ordering::Relaxed) { chat("m", "a") } else { json(500, "{}") }).await;
    let b = llm(|_| chat("m", "b")).await;
    let router = over(&[&a, &b], BREAKER).await;
    for attempts in ["2", "2", "1", "1"] {
        let answer = router.chat(&ask("m")).await;
        assert_eq!(
            (answer.text(), header(&answer, "x-cema-attempts")),
            (chat_body("m", "b"), attempts.into())
        );
    }
    assert_eq!(a.posts().len(), 2, "open after the second failure");
    circuit_reaches(&router, 1).await;
    // The trial fails and the circuit opens again.
    let answer = router.chat(&ask("m")).await;
    assert_eq!((answer.text(), header(&answer, "x-cema-attempts")), (chat_body("m", "b"), "2".into()));
    is_well.store(true, Ordering::Relaxed);
    circuit_reaches(&router, 1).await;
    for _ in 0..2 {
        assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "a"));
    }
    circuit_reaches(&router, 0).await;
    assert_eq!(a.posts().len(), 5);
}

#[tokio::test]
async fn a_burst_onto_a_half_open_circuit_is_one_trial() {
    let gate = Arc::new(Semaphore::new(0));
    let (hangs, held) = (Arc::new(AtomicBool::new(false)), Arc::clone(&gate));
    let hanging = Arc::clone(&hangs);
    let a = llm(move |_| match hanging.load(Ordering::Relaxed) {
        true => [vec![Step::Gate(Arc::clone(&held))], chat("m", "a")].concat(),
        false => json(500, "{}"),
    })
    .await;
    let b = llm(|_| chat("m", "b")).await;
    let router = over(&[&a, &b], BREAKER).await;
    for _ in 0..2 {
        router.chat(&ask("m")).await;
    }
    hangs.store(true, Ordering::Relaxed);
    circuit_reaches(&router, 1).await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        let mut client = router.client().await;
        client.post(CHAT, "", &ask("m")).await;
        clients.push(client);
    }
    // Fifteen are answered elsewhere while the trial is out.
    b.posts_reach(2 + 15).await;
    assert_eq!(a.posts().len(), 3);
    gate.add_permits(1);
    let mut from_a = 0;
    for mut client in clients {
        let answer = client.answer().await;
        assert_eq!(header(&answer, "x-cema-attempts"), "1", "not to be let through is no attempt");
        from_a += usize::from(answer.text() == chat_body("m", "a"));
    }
    assert_eq!(from_a, 1);
    circuit_reaches(&router, 0).await;
}

#[tokio::test]
async fn with_nowhere_else_to_go_clients_learn_when_it_is_tried_again() {
    let a = llm(|_| json(500, "{}")).await;
    let router = over(&[&a], "breaker: {failures: 2, open_ms: 40000}\n").await;
    for status in [502, 502, 503, 503] {
        let answer = router.chat(&ask("m")).await;
        assert_eq!(answer.head.status(), status, "{}", answer.text());
        if status == 503 {
            let wait_ms: u64 = header(&answer, "retry-after-ms").parse().unwrap();
            assert!((25_000..=40_000).contains(&wait_ms), "{wait_ms}");
            assert_eq!(header(&answer, "x-should-retry"), "true");
        }
    }
    assert_eq!(a.posts().len(), 2);
    let metrics = router.metrics().await;
    assert_eq!(metrics.count("cema_circuit_state", &[("endpoint", "n1")]), 2);
    assert_eq!(metrics.count("cema_endpoint_up", &[("endpoint", "n1")]), 0);
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    assert_eq!(shown["destinations"][0]["state"], "circuit_open");
}

#[tokio::test]
async fn requests_at_fault_and_clients_that_leave_open_nothing() {
    let a = llm(|request| match request.head.header("x-request-id").as_deref() {
        Some("hang") => vec![Step::WaitClientClose],
        Some("stream") => {
            vec![stream_head(), chunk(role_event("m")), chunk(delta_event("m", "a")), Step::WaitClientClose]
        }
        Some("well") => chat("m", "a"),
        _ => json(400, r#"{"error":{"message":"no"}}"#),
    })
    .await;
    let router = over(&[&a], "breaker: {failures: 1}\n").await;
    for _ in 0..3 {
        assert_eq!(router.chat(&ask("m")).await.head.status(), 400);
    }
    for (n, id, body) in [(1, "hang", ask("m")), (2, "stream", ask_stream("m"))] {
        let mut client = router.client().await;
        client.post(CHAT, &format!("x-request-id: {id}\r\n"), &body).await;
        a.posts_reach(3 + n).await;
        drop(client);
        a.answers_cut_reach(n).await;
    }
    let answer = router.chat_with("x-request-id: well\r\n", &ask("m")).await;
    assert_eq!(answer.text(), chat_body("m", "a"));
}

#[tokio::test]
async fn streams_that_break_open_a_circuit_too() {
    let cut = || vec![stream_head(), chunk(delta_event("m", "a")), Step::Close];
    let (a, b) = (llm(move |_| cut()).await, llm(|_| chat_stream("m", &["fine"])).await);
    let router = over(&[&a, &b], "breaker: {failures: 2, open_ms: 60000}\n").await;
    for is_complete in [false, false, true] {
        let answer = router.chat(&ask_stream("m")).await;
        assert_eq!((answer.head.status(), answer.is_complete), (200, is_complete));
    }
    assert_eq!(a.posts().len(), 2);
}
