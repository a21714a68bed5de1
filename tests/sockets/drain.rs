//! Going away in good order: what is under way is finished, nothing new is taken, and a second signal ends it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::answers::{DONE_EVENT, chat, chunk, delta_event, finish_event, last_chunk, stream_head};
use crate::support::app::{CHAT, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::in_time;
use crate::support::process::Process;
use crate::support::raw_client::RawClient;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// An endpoint that streams one word, and the rest once its gate is opened.
async fn half_way() -> (FakeEndpoint, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let script = move |_: &_| {
        vec![
            stream_head(),
            chunk(delta_event("m", "half")),
            Step::Gate(Arc::clone(&opened)),
            chunk(finish_event("m")),
            chunk(DONE_EVENT),
            last_chunk(),
        ]
    };
    (llm(script).await, gate)
}

async fn begin_stream(addr: SocketAddr) -> RawClient {
    let mut client = RawClient::connect(addr).await;
    client.post(CHAT, "", &ask_stream("m")).await;
    assert_eq!(client.head().await.status(), 200);
    assert!(client.chunk().await.unwrap().is_some());
    client
}

async fn finish_stream(mut client: RawClient) {
    let mut text = String::new();
    while let Some(chunk) = client.chunk().await.unwrap() {
        text.push_str(&String::from_utf8(chunk).unwrap());
    }
    assert!(text.ends_with(DONE_EVENT), "{text}");
    assert!(client.is_closed().await);
}

async fn refuses_connections(addr: SocketAddr) {
    in_time("connections to be refused", async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_under_way_is_finished_and_nothing_new_is_taken() {
    let (endpoint, gate) = half_way().await;
    let router = Router::start(&[node("a", endpoint.url())], "").await;
    let stream = begin_stream(router.api()).await;
    let mut idle = router.client().await;
    idle.get("/readyz").await;
    assert_eq!(idle.answer().await.head.status(), 200);
    router.stop();
    assert!(idle.is_closed().await, "a connection without a request is closed");
    refuses_connections(router.api()).await;
    let ready = router.admin_get("/readyz").await;
    assert_eq!((ready.head.status(), ready.text().as_str()), (503, "draining\n"));
    assert_eq!(router.metrics().await.count("cema_inflight", &[]), 1);
    gate.add_permits(1);
    finish_stream(stream).await;
    let admin = router.admin();
    router.ended().await;
    refuses_connections(admin).await;
}

#[tokio::test]
async fn an_open_window_is_planned_and_what_is_held_is_served() {
    let (endpoint, gate) = gated().await;
    let model = "{name: m, throughput: {max_concurrency: 1}}";
    for window in ["close: fixed, max_ms: 300", "close: adaptive"] {
        let nodes = [node("a", endpoint.url()).model(model).endpoint("max_inflight: 1")];
        let router = Router::start(&nodes, &format!("window: {{{window}}}\n")).await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            let mut client = router.client().await;
            client.post(CHAT, "", &ask("auto")).await;
            clients.push(client);
        }
        // All are with the router, one at most with the endpoint.
        router
            .metrics_reach("all four", |metrics| {
                metrics.count("cema_held_requests", &[]) + metrics.count("cema_inflight", &[]) == 4
            })
            .await;
        router.stop();
        gate.add_permits(4);
        for mut client in clients {
            assert_eq!(client.answer().await.head.status(), 200, "{window}");
        }
        router.ended().await;
    }
}

#[tokio::test]
async fn asked_again_it_ends_at_once() {
    let script = vec![stream_head(), chunk(delta_event("m", "half")), Step::WaitClientClose];
    let endpoint = llm(move |_| script.clone()).await;
    let router = Router::start(&[node("a", endpoint.url())], "").await;
    let mut stream = begin_stream(router.api()).await;
    router.stop();
    router.stop();
    router.ended().await;
    is_cut(&mut stream).await;
    endpoint.answers_cut_reach(1).await;
}

/// Reads on to the cut. An error event may still get out before it; a good end may not.
async fn is_cut(stream: &mut RawClient) {
    while let Ok(chunk) = stream.chunk().await {
        let event = String::from_utf8(chunk.expect("the stream is cut, not ended")).unwrap();
        assert!(event.contains("\"error\""), "{event}");
    }
}

/// An endpoint that answers one request for each permit of its gate.
async fn gated() -> (FakeEndpoint, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let endpoint = llm(move |_| [vec![Step::Gate(Arc::clone(&opened))], chat("m", "done")].concat()).await;
    (endpoint, gate)
}

#[tokio::test]
async fn at_the_limit_every_client_is_told_so() {
    let (stuck, _stays_shut) = half_way().await;
    let (busy, _gate) = gated().await;
    let one_at_a_time = "{name: n, throughput: {max_concurrency: 1}}";
    let nodes =
        [node("a", stuck.url()), node("b", busy.url()).model(one_at_a_time).endpoint("max_inflight: 1")];
    let router = Router::start(&nodes, "limits: {drain_ms: 300}\n").await;
    let mut stream = begin_stream(router.api()).await;
    let mut runs = router.client().await;
    runs.post(CHAT, "", &ask("n")).await;
    busy.posts_reach(1).await;
    let mut held = router.client().await;
    held.post(CHAT, "", &ask("n")).await;
    router.metrics_reach("one to be held", |metrics| metrics.count("cema_held_requests", &[]) == 1).await;
    router.stop();
    // Whether it waits for a destination or for its endpoint: nothing is committed.
    for client in [&mut held, &mut runs] {
        let refused = client.answer().await;
        assert_eq!((refused.head.status(), refused.head.header("retry-after").as_deref()), (503, Some("1")));
        assert_eq!(refused.head.header("x-should-retry").as_deref(), Some("true"));
    }
    let last = String::from_utf8(stream.chunk().await.unwrap().unwrap()).unwrap();
    let error: serde_json::Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "stream_interrupted", "{last}");
    assert!(error["error"]["message"].as_str().unwrap().contains("stopping"), "{last}");
    assert!(stream.chunk().await.is_err(), "the stream is cut, not ended");
    router.ended().await;
}

#[tokio::test]
async fn a_connection_kept_alive_is_told_to_close() {
    let (endpoint, gate) = gated().await;
    let router = Router::start(&[node("a", endpoint.url())], "").await;
    let mut client = router.client().await;
    let body = ask("m");
    let post = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.send(&post).await;
    endpoint.posts_reach(1).await;
    router.stop();
    refuses_connections(router.api()).await;
    gate.add_permits(2);
    let answer = client.answer().await;
    assert_eq!((answer.head.status(), answer.head.header("connection").as_deref()), (200, Some("close")));
    assert!(client.is_closed().await);
    router.ended().await;
}

/// The binary itself, serving.
struct Served {
    process: Process,
    api: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn start(endpoint: &FakeEndpoint) -> Self {
        let url = endpoint.url();
        Self::over(&format!(
            "nodes:\n  - endpoints:\n      - {{url: \"{url}\", kind: vllm, models: [{{name: m}}]}}\n"
        ))
        .await
    }

    /// Serves a configuration of these `sections` on free ports.
    async fn over(sections: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.yaml");
        let text = format!("listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n{sections}");
        std::fs::write(&config, text).unwrap();
        let mut process = Process::start(&["serve", "--config", config.to_str().unwrap()]);
        let listening = process.logged("listening").await;
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (api, admin) = (address("listen"), address("admin"));
        Self { process, api, admin, _folder: folder }
    }

    async fn logged(&mut self, message: &str) {
        self.process.logged(message).await;
    }

    async fn signal(&self, name: &str) {
        self.process.signal(name).await;
    }
}

#[tokio::test]
async fn the_binary_drains_on_a_signal() {
    for signal in ["TERM", "INT"] {
        let (endpoint, gate) = half_way().await;
        let mut served = Served::start(&endpoint).await;
        let stream = begin_stream(served.api).await;
        served.signal(signal).await;
        served.logged("draining").await;
        refuses_connections(served.api).await;
        gate.add_permits(1);
        finish_stream(stream).await;
        let status = served.process.ended().await;
        assert!(status.success(), "{signal}: {status}");
    }
}

#[tokio::test]
async fn the_binary_ends_at_a_second_signal() {
    let (endpoint, _gate) = half_way().await;
    let mut served = Served::start(&endpoint).await;
    let mut stream = begin_stream(served.api).await;
    served.signal("TERM").await;
    served.logged("draining").await;
    served.signal("TERM").await;
    let status = served.process.ended().await;
    assert!(status.success(), "{status}");
    is_cut(&mut stream).await;
}

#[tokio::test]
async fn an_open_window_a_queue_and_streams_are_finished_before_the_binary_ends() {
    // ai-dynamo/dynamo#13559, llm-d/llm-d#1801: readiness flips first, nothing is cut, nothing fails.
    let (streams, streams_gate) = half_way().await;
    let (busy, busy_gate) = gated().await;
    let mut served = Served::over(&format!(
        "window: {{close: fixed, max_ms: 700}}\nnodes:\n  - name: s\n    endpoints:\n      \
         - {{url: \"{}\", kind: vllm, models: [{{name: m}}]}}\n  - name: q\n    endpoints:\n      \
         - {{url: \"{}\", kind: vllm, max_inflight: 1, models: [{{name: n, throughput: {{max_concurrency: 1}}}}]}}\n",
        streams.url(),
        busy.url()
    ))
    .await;
    let mut under_way = Vec::new();
    for _ in 0..3 {
        under_way.push(begin_stream(served.api).await);
    }
    let mut waiting = Vec::new();
    // Ten in the queue behind the one that runs, then five in a window that is still open.
    for n in 0..16 {
        if n == 11 {
            busy.posts_reach(1).await;
        }
        let mut client = RawClient::connect(served.api).await;
        client.post(CHAT, "", &ask("n")).await;
        waiting.push(client);
    }
    let mut ready = RawClient::connect(served.admin).await;
    ready.get("/readyz").await;
    assert_eq!(ready.answer().await.head.status(), 200);
    served.signal("TERM").await;
    served.logged("draining").await;
    ready.get("/readyz").await;
    assert_eq!(ready.answer().await.head.status(), 503, "while everything is still under way");
    refuses_connections(served.api).await;
    streams_gate.add_permits(3);
    for stream in under_way {
        finish_stream(stream).await;
    }
    busy_gate.add_permits(16);
    for mut client in waiting {
        assert_eq!(client.answer().await.head.status(), 200);
    }
    let status = served.process.ended().await;
    assert!(status.success(), "{status}");
    assert_eq!((streams.posts().len(), busy.posts().len()), (3, 16));
}
