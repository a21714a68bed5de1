//! What is measured of the paths to nodes: over real sockets, from real transfers.

use std::sync::Arc;
use std::time::Duration;

use crate::support::answers::{chat_body, write};
use crate::support::app::{CHEAPEST_FIRST, Router, ask, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const AT_A: [(&str, &str); 1] = [("node", "a")];

fn has(metrics: &Metrics, name: &str) -> bool {
    metrics.samples.iter().any(|sample| sample.name == name)
}

/// Answers every call with this much text, a quarter at a time.
async fn slow_and_large(n_bytes: usize) -> FakeEndpoint {
    let body = Arc::new(chat_body("m", &"x".repeat(n_bytes)));
    llm(move |_| {
        let length = body.len();
        let mut steps = vec![write(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ))];
        for part in body.as_bytes().chunks(length / 4 + 1) {
            steps.extend([write(part), Step::Pause(Duration::from_millis(20))]);
        }
        steps
    })
    .await
}

#[tokio::test]
async fn round_trips_and_large_answers_are_measured() {
    let endpoint = slow_and_large(2 << 20).await;
    let router = Router::start(&[node("a", endpoint.url()).measured()], CHEAPEST_FIRST).await;
    let metrics = router.metrics_reach("a round trip", |metrics| has(metrics, "cema_node_rtt_seconds")).await;
    let rtt_s = metrics.sum("cema_node_rtt_seconds", &AT_A);
    assert!(rtt_s > 0.0 && rtt_s < 10.0, "{rtt_s}");
    assert!(!has(&metrics, "cema_node_tls_handshake_seconds"), "there is no TLS");
    assert!(!has(&metrics, "cema_node_goodput_bytes_per_second"), "nothing has moved");
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
    let metrics = router.idle().await;
    let down = [("node", "a"), ("direction", "down")];
    let goodput = metrics.sum("cema_node_goodput_bytes_per_second", &down);
    assert!(goodput > 0.0, "{goodput}");
    assert!(!metrics.samples.iter().any(|s| s.labels.get("direction").is_some_and(|d| d == "up")));
}

#[tokio::test]
async fn small_answers_and_unmeasured_paths_say_nothing() {
    let (small, off) = (slow_and_large(1 << 10).await, slow_and_large(2 << 20).await);
    for (endpoint, node) in [(&small, node("a", small.url()).measured()), (&off, node("a", off.url()))] {
        let router = Router::start(&[node], CHEAPEST_FIRST).await;
        assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
        assert!(!has(&router.idle().await, "cema_node_goodput_bytes_per_second"));
        assert!(endpoint.connections() > 0);
    }
    // The unmeasured one saw no connection that asked for nothing.
    assert_eq!(off.client_closes(), 0);
}

/// A server that takes its time before it reads what is posted.
async fn slow_reader(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(async move { _ = read_slowly(stream).await });
    }
}

async fn read_slowly(mut stream: TcpStream) -> std::io::Result<()> {
    let mut start = vec![0; 1024];
    loop {
        let n = stream.read(&mut start).await?;
        if n == 0 {
            return Ok(());
        }
        let head = String::from_utf8_lossy(&start[..n]).into_owned();
        let body = if head.starts_with("POST") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let head_bytes = head.find("\r\n\r\n").unwrap() + 4;
            let mut rest = vec![0; length.parse::<usize>().unwrap() + head_bytes - n];
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.read_exact(&mut rest).await?;
            chat_body("m", "hello")
        } else {
            String::new()
        };
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await?;
    }
}

#[tokio::test]
async fn large_requests_show_the_pace_at_which_they_leave() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(slow_reader(listener));
    let router = Router::start(&[node("a", url).measured()], CHEAPEST_FIRST).await;
    // More than the buffers of both sockets take.
    let padding = "x".repeat(24 << 20);
    let request =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"padding":"{padding}"}}"#);
    assert_eq!(router.chat(&request).await.text(), chat_body("m", "hello"));
    let goodput =
        router.idle().await.sum("cema_node_goodput_bytes_per_second", &[("node", "a"), ("direction", "up")]);
    assert!(goodput > 0.0, "{goodput}");
}
