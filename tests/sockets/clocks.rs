//! Each clock measures one thing: waiting in the router, the first byte, the first token, silence between two
//! reads. None is reset by what it does not measure.

use std::sync::Arc;
use std::time::Duration;

use crate::support::answers::{
    DONE_EVENT, chat, chat_body, chat_events, chunk, delta_event, finish_event, last_chunk, role_event,
    stream_head,
};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const COMMENT: &str = ": OPENROUTER PROCESSING\n\n";

async fn over(script: Vec<Step>, limits: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(move |_| script.clone()).await;
    let router = Router::start(&[node("a", endpoint.url())], &format!("{CHEAPEST_FIRST}{limits}")).await;
    (endpoint, router)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// `n` comments with a pause before each.
fn comments(n: usize, pause_ms: u64) -> Vec<Step> {
    (0..n).flat_map(|_| [Step::Pause(ms(pause_ms)), chunk(COMMENT)]).collect()
}

#[tokio::test]
async fn comments_pass_once_a_stream_is_committed_and_do_not_stop_the_first_token_clock() {
    // mnfst/llm-gateway#2053, Wei-Shaw/sub2api#2021.
    let script = [vec![stream_head()], comments(60, 40), vec![Step::WaitClientClose]].concat();
    let limits = "timeouts: {commit_after_ms: 100, first_token_ms: 700, idle_ms: 60000}\n";
    let (endpoint, router) = over(script, limits).await;
    let began = Instant::now();
    let answer = router.chat(&ask_stream("m")).await;
    let took = began.elapsed();
    assert!(took >= ms(700) && took < ms(2_000), "{took:?}");
    let text = answer.text();
    assert!(text.matches(COMMENT).count() >= 3 && !answer.is_complete, "{text}");
    assert!(text.contains("stopped sending"), "{text}");
    endpoint.answers_cut_reach(1).await;
    assert_eq!(
        router.idle().await.count("cema_time_to_first_token_seconds_count", &[]),
        0,
        "a comment is no token"
    );
}

#[tokio::test]
async fn our_own_pings_do_not_stop_the_first_byte_clock() {
    // BerriAI/litellm#38358: before a commitment a status, after it an error in the stream.
    for (commit_after_ms, status) in [(60_000, 504), (50, 200)] {
        let limits = format!("timeouts: {{commit_after_ms: {commit_after_ms}, first_byte_ms: 500}}\n");
        let (_endpoint, router) = over(vec![Step::WaitClientClose], &limits).await;
        let began = Instant::now();
        let answer = router.chat(&ask_stream("m")).await;
        let took = began.elapsed();
        assert!(took >= ms(500) && took < ms(1_500), "{took:?}");
        assert_eq!(answer.head.status(), status);
        assert!(answer.text().contains("did not answer in time"), "{}", answer.text());
        assert_eq!(answer.text().contains(": ping\n"), status == 200);
        let metrics = router.idle().await;
        let reason = [("reason", "first_byte_timeout")];
        assert_eq!(metrics.count("cema_upstream_attempts_total", &reason), 1, "{status}");
    }
}

#[tokio::test]
async fn comments_between_tokens_keep_a_stream_alive() {
    let script = [
        vec![stream_head(), chunk(role_event("m")), chunk(delta_event("m", "a"))],
        comments(10, 100),
        vec![chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()],
    ]
    .concat();
    let (_endpoint, router) = over(script, "timeouts: {idle_ms: 700}\n").await;
    let answer = router.chat(&ask_stream("m")).await;
    assert!(answer.is_complete);
    assert_eq!(answer.text().replace(COMMENT, ""), chat_events("m", &["a"]));
}

#[tokio::test]
async fn waiting_and_running_have_clocks_of_their_own() {
    // tensorzero/tensorzero#6328, diegosouzapw/OmniRoute#12092: neither clock covers the other's time.
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let endpoint = llm(move |request| match request.head.header("x-request-id").as_deref() {
        Some("first") => {
            [vec![Step::Gate(Arc::clone(&held)), Step::Pause(ms(250))], chat("m", "first")].concat()
        }
        _ => [vec![Step::Pause(ms(900))], chat("m", "second")].concat(),
    })
    .await;
    let one_slot = node("a", endpoint.url())
        .model("{name: m, throughput: {max_concurrency: 1}}")
        .endpoint("max_inflight: 1");
    let limits = "limits: {request_deadline_ms: 800}\n";
    let router = Router::start(&[one_slot], &format!("{CHEAPEST_FIRST}{limits}")).await;
    let mut first = router.client().await;
    first.post(CHAT, "x-request-id: first\r\n", &ask("m")).await;
    endpoint.posts_reach(1).await;
    let mut second = router.client().await;
    second.post(CHAT, "x-request-id: second\r\n", &ask("m")).await;
    let waits = |metrics: &Metrics| metrics.count("cema_queue_depth", &[]) == 1;
    router.metrics_reach("the second request to wait", waits).await;
    gate.add_permits(1);
    assert_eq!(first.answer().await.text(), chat_body("m", "first"));
    assert_eq!(
        second.answer().await.text(),
        chat_body("m", "second"),
        "250 ms + 900 ms are more than 800 ms"
    );
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_window_wait_seconds_count", &[]), 2);
    assert_eq!(metrics.count("cema_hold_seconds_count", &[]), 2);
    let (hold_s, execution_s) =
        (metrics.sum("cema_hold_seconds_sum", &[]), metrics.sum("cema_execution_seconds_sum", &[]));
    assert!(hold_s >= 0.2 && metrics.sum("cema_window_wait_seconds_sum", &[]) < 0.2, "{hold_s}");
    assert!(execution_s >= 0.9 + 0.25, "{execution_s}");
}
