//! Many clients at once that do not read.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use crate::support::answers::{
    DONE_EVENT, chat, chat_body, chunk, delta_event, finish_event, last_chunk, stream_head,
};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::Step;
use crate::support::kernel::{HELD_MAX, at_rest};

/// Clients that read nothing.
const CLIENTS: usize = 50;
/// Events of 64 KiB that each of them is sent.
const EVENTS: usize = 400;

async fn asks_and_never_reads(router: &Router) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut client = socket.connect(router.api()).await.unwrap();
    let body = ask_stream("m");
    let len = body.len();
    let request = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {len}\r\n\r\n{body}");
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

#[tokio::test]
async fn many_clients_that_do_not_read_cost_little_and_others_are_served() {
    // MAXeaglet/commandcode-proxy#20, NousResearch/hermes-agent#58471, KarpelesLab/teamclaude#341.
    let gate = Arc::new(Semaphore::new(CLIENTS * EVENTS));
    let event = chunk(delta_event("m", &"x".repeat(64 << 10)));
    let mut script = vec![stream_head()];
    for _ in 0..EVENTS {
        script.extend([Step::Gate(Arc::clone(&gate)), event.clone()]);
    }
    script.extend([chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
    let endpoint = llm(move |request| match request.body.ends_with(b"\"max_tokens\":8}") {
        true => chat("m", "quick"),
        false => script.clone(),
    })
    .await;
    let model = "{name: m, throughput: {max_concurrency: 128}}";
    let router = Router::start(&[node("a", endpoint.url()).model(model)], CHEAPEST_FIRST).await;
    let mut stuck = Vec::new();
    for _ in 0..CLIENTS {
        stuck.push(asks_and_never_reads(&router).await);
    }
    endpoint.posts_reach(CLIENTS).await;
    let (left, kernel) = at_rest(&gate, &[router.api().port(), endpoint.addr().port()]).await;
    let written = (CLIENTS * EVENTS - left) * (64 << 10);
    let held = written.saturating_sub(kernel) / CLIENTS;
    assert!(left > 0, "the endpoint could write everything: {} MiB", written >> 20);
    assert!(held < HELD_MAX, "{held} bytes for each; {} MiB in the kernel", kernel >> 20);
    for _ in 0..20 {
        assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "quick"));
    }
    assert_eq!(router.metrics().await.count("cema_inflight", &[]), CLIENTS as u64, "all are still stuck");
    drop(stuck);
    endpoint.answers_cut_reach(CLIENTS).await;
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "client_gone")]), CLIENTS as u64);
    assert!(metrics.sum("cema_backlog_seconds", &[]).abs() < 1e-9);
}
