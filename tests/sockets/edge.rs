//! The listening edge: framing that others may read otherwise, clients that are slow or do not read, too many
//! connections, TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::answers::{DONE_EVENT, chat, chunk, delta_event, finish_event, last_chunk, stream_head};
use crate::support::app::{CHAT, Router, ask, ask_stream, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::http1::Reader;
use crate::support::in_time;
use crate::support::kernel::{HELD_MAX, at_rest};
use crate::support::raw_client::RawClient;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

const AT_ONCE: &str = "window: {max_ms: 0}\n";

async fn hello(sections: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let router = Router::start(&[node("a", endpoint.url())], &format!("{AT_ONCE}{sections}")).await;
    (endpoint, router)
}

/// A `POST` of a chat completion with these header lines and this body.
fn post(headers: &[&str], body: &str) -> String {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\n{lines}\r\n{body}")
}

fn sized(body: &str) -> String {
    post(&[&format!("content-length: {}", body.len())], body)
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

#[tokio::test]
async fn a_request_with_two_lengths_is_refused() {
    let (endpoint, router) = hello("").await;
    let body = chunked(&ask("m"));
    let both = [
        post(&["content-length: 4", "transfer-encoding: chunked"], &body),
        post(&["Transfer-Encoding: chunked", "x: y", "Content-Length: 4"], &body),
        post(&["transfer-encoding:chunked", "content-length: nonsense"], &body),
        post(&["content-length: 4", "transfer-encoding: chunked"], &body).replacen("\r\n", "\n", 4),
    ];
    for request in &both {
        let mut client = router.client().await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!(answer.head.status(), 400, "{request}");
        assert_eq!(answer.json()["error"]["code"], "ambiguous_length");
        assert_eq!(answer.head.header("connection").as_deref(), Some("close"));
        assert!(answer.head.header("x-request-id").unwrap().starts_with("req_"));
        assert!(client.is_closed().await, "{request}");
    }
    assert_eq!(endpoint.posts().len(), 0);
    let cut = [("listener", "api"), ("reason", "two_lengths")];
    assert_eq!(router.metrics().await.count("cema_connections_cut_total", &cut), both.len() as u64);
}

#[tokio::test]
async fn it_is_found_behind_other_requests_and_in_pieces() {
    let (endpoint, router) = hello("").await;
    let plain = ask("m");
    let in_chunks =
        post(&["transfer-encoding: chunked"], &chunked(&plain).replacen("\r\n", ";x=\"y\"\r\n", 1));
    let bad = post(&["content-length: 3", "transfer-encoding: chunked"], "");
    let behind = format!("{}{in_chunks}{bad}", sized(&plain));
    for in_pieces in [false, true] {
        let mut client = router.client().await;
        if in_pieces {
            for piece in behind.as_bytes().chunks(7) {
                client.send(piece).await;
                tokio::task::yield_now().await;
            }
        } else {
            client.send(format!("{behind}{}{}", chunked(&plain), sized(&plain))).await;
        }
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(client.answer().await.head.status());
        }
        assert_eq!(statuses, [200, 200, 400]);
        assert!(client.some_or_end().await.is_empty(), "what follows is not read");
    }
    assert_eq!(endpoint.posts().len(), 4);
}

#[tokio::test]
async fn odd_framing_is_refused() {
    let (endpoint, router) = hello("").await;
    let body = ask("m");
    let (len, pieces) = (body.len(), chunked(&body));
    let length = format!("content-length: {len}");
    let odd = [
        post(&[&length, "content-length: 1"], &body),
        post(&[&format!("content-length: +{len}")], &body),
        post(&[&format!("content-length: {len}, {len}")], &body),
        post(&[&format!("content-length : {len}")], &body),
        post(&["content-length:", &format!(" {len}")], &body),
        post(&[&length, "x: a", " b"], &body),
        post(&["transfer-encoding: xchunked"], &pieces),
        post(&["transfer-encoding: chunked, identity"], &pieces),
        post(&["transfer-encoding: identity"], &pieces),
        post(&["transfer-encoding: gzip, chunked"], &pieces),
        post(&["transfer-encoding: chunked", "transfer-encoding: chunked"], &pieces),
        post(&["transfer-encoding: \"chunked\""], &pieces),
        post(&["transfer-encoding\u{b}: chunked"], &pieces),
        post(&["x: a\rtransfer-encoding: chunked", &length], &body),
        post(&["transfer-encoding: chunked"], &pieces).replace("HTTP/1.1", "HTTP/1.0"),
        post(&["transfer-encoding: chunked"], &pieces.replacen("\r\n", "\n", 1)),
        post(&["transfer-encoding: chunked"], "-1\r\n\r\n0\r\n\r\n"),
        post(&["transfer-encoding: chunked"], "10000000000000000\r\n\r\n0\r\n\r\n"),
    ];
    for request in odd {
        let mut client = router.client().await;
        client.send(&request).await;
        assert_eq!(client.answer().await.head.status(), 400, "{request}");
        assert!(client.some_or_end().await.is_empty(), "{request}");
    }
    assert_eq!(endpoint.posts().len(), 0);
    // The same length twice is one length.
    let mut client = router.client().await;
    client.send(post(&[&length, &length], &body)).await;
    assert_eq!(client.answer().await.head.status(), 200);
    let sent = endpoint.posts().pop().unwrap();
    assert_eq!(sent.head.all("content-length"), [len.to_string()]);
}

#[tokio::test]
async fn targets_and_other_protocols_have_bounds() {
    let (_endpoint, router) = hello("").await;
    let long = format!("/v1/models/{}", "x".repeat(8 << 10));
    let answer = router.get(&long).await;
    assert_eq!((answer.head.status(), answer.json()["error"]["code"].clone()), (414, "uri_too_long".into()));
    assert_eq!(answer.head.header("connection").as_deref(), Some("close"));
    assert_eq!(router.get(&long[..8 << 10]).await.head.status(), 404);

    let body = ask("m");
    let (path, length) = (CHAT, format!("content-length: {}", body.len()));
    for (lines, status, code) in [
        (&[&*length][..], 400, "invalid_host"),
        (&["host: a", "host: a", &length], 400, "invalid_host"),
        (&["host: a", "expect: the-moon", &length], 417, "expectation_failed"),
        (&["host: a", "expect: 100-continue", "expect: more", &length], 417, "expectation_failed"),
    ] {
        for addr in [router.api(), router.admin()] {
            let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let mut client = RawClient::connect(addr).await;
            client.send(format!("POST {path} HTTP/1.1\r\n{lines}\r\n{body}")).await;
            let answer = client.answer().await;
            assert_eq!(
                (answer.head.status(), answer.json()["error"]["code"].as_str()),
                (status, Some(code)),
                "{lines}"
            );
            assert_eq!(answer.head.header("connection").as_deref(), Some("close"), "{lines}");
            assert!(client.some_or_end().await.is_empty(), "{lines}");
        }
    }

    let mut client = router.client().await;
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0").await;
    assert!(client.some_or_end().await.is_empty(), "HTTP/2 without negotiation is closed, not left hanging");

    let mut client = router.client().await;
    client.send("GET /healthz HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.answer().await.head.status(), 200, "HTTP/1.0 needs no Host");
}

#[tokio::test]
async fn a_head_that_takes_too_long_ends_the_connection() {
    let (_endpoint, router) = hello("timeouts: {head_ms: 200, keep_alive_ms: 86400000}\n").await;
    let mut idle = router.client().await;
    idle.get("/healthz").await;
    idle.answer().await;
    let mut slow = router.client().await;
    slow.send("GET /healthz HTTP/1.1\r\nhost").await;
    assert!(slow.is_closed().await);
    let mut second = router.client().await;
    second.get("/healthz").await;
    second.answer().await;
    second.send("GET /healthz HT").await;
    assert!(second.is_closed().await, "and so does the second head of a connection");
    idle.get("/healthz").await;
    assert_eq!(idle.answer().await.head.status(), 200, "one that has not begun has all the time");
    let cut = [("listener", "api"), ("reason", "slow_head")];
    assert_eq!(router.metrics().await.count("cema_connections_cut_total", &cut), 2);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let endpoint = llm(move |_| [vec![Step::Gate(Arc::clone(&opened))], chat("m", "done")].concat()).await;
    let sections = format!("{AT_ONCE}timeouts: {{keep_alive_ms: 200}}\n");
    let router = Router::start(&[node("a", endpoint.url())], &sections).await;
    let mut busy = router.client().await;
    busy.post(CHAT, "", &ask("m")).await;
    endpoint.posts_reach(1).await;
    let mut idle = router.client().await;
    assert!(idle.is_closed().await, "without a request");
    let mut idle = router.client().await;
    idle.get("/healthz").await;
    idle.answer().await;
    assert!(idle.is_closed().await, "after one");
    gate.add_permits(1);
    assert_eq!(busy.answer().await.head.status(), 200);
    assert!(busy.is_closed().await, "once it is idle");
}

/// A stream of `n` events of 64 KiB, each behind `gate`.
async fn long_stream(n: usize, gate: &Arc<Semaphore>) -> FakeEndpoint {
    let event = chunk(delta_event("m", &"x".repeat(64 << 10)));
    let mut script = vec![stream_head()];
    for _ in 0..n {
        script.extend([Step::Gate(Arc::clone(gate)), event.clone()]);
    }
    script.extend([chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
    llm(move |_| script.clone()).await
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_and_its_endpoint_freed() {
    const N_EVENTS: usize = 2_000;
    let gate = Arc::new(Semaphore::new(N_EVENTS));
    let endpoint = long_stream(N_EVENTS, &gate).await;
    let sections = format!("{AT_ONCE}timeouts: {{write_idle_ms: 6000}}\n");
    let router = Router::start(&[node("a", endpoint.url())], &sections).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut client = socket.connect(router.api()).await.unwrap();
    client.write_all(sized(&ask_stream("m")).as_bytes()).await.unwrap();
    endpoint.posts_reach(1).await;

    let (left, kernel) = at_rest(&gate, &[router.api().port(), endpoint.addr().port()]).await;
    let written = (N_EVENTS - left) * (64 << 10);
    // The last event counts as written while the endpoint's write of it waits.
    let in_process = written.saturating_sub(kernel);
    assert!(left > 0, "the endpoint could write everything");
    assert!(in_process < HELD_MAX, "{in_process} bytes held here, {kernel} by the kernel, {written} written");
    let other = router.get("/v1/models").await;
    assert_eq!(other.head.status(), 200, "others are served meanwhile");

    endpoint.answers_cut_reach(1).await;
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "client_gone")]), 1);
    let cut = [("listener", "api"), ("reason", "write_idle")];
    assert_eq!(metrics.count("cema_connections_cut_total", &cut), 1);
    assert!(metrics.sum("cema_backlog_seconds", &[]).abs() < 1e-9);
    let mut got = Vec::new();
    let end = in_time("the connection to end", client.read_to_end(&mut got)).await;
    assert!(end.is_err() || !got.ends_with(b"0\r\n\r\n"), "the stream is cut, not ended");
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_not_cut() {
    const N_EVENTS: usize = 200;
    let gate = Arc::new(Semaphore::new(N_EVENTS));
    let endpoint = long_stream(N_EVENTS, &gate).await;
    let sections = format!("{AT_ONCE}timeouts: {{write_idle_ms: 1000}}\n");
    let router = Router::start(&[node("a", endpoint.url())], &sections).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut client = socket.connect(router.api()).await.unwrap();
    let body = ask_stream("m");
    client.write_all(sized(&body).as_bytes()).await.unwrap();
    let mut n_bytes = 0;
    let mut part = vec![0; 512 << 10];
    let mut tail = Vec::new();
    loop {
        let n = in_time("more of the stream", client.read(&mut part)).await.unwrap();
        n_bytes += n;
        tail = [tail, part[..n].to_vec()].concat();
        tail.drain(..tail.len().saturating_sub(5));
        if tail == b"0\r\n\r\n" {
            break;
        }
        assert!(n > 0, "cut after {n_bytes} bytes");
        // About two seconds in all, twice the limit.
        tokio::time::sleep(Duration::from_millis((n / 6_500) as u64)).await;
    }
    assert!(n_bytes > N_EVENTS * (64 << 10));
}

/// Largest resident size of this process so far, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn giant_lines_pass_without_being_held() {
    const MIB: usize = 1 << 20;
    let megabyte = "x".repeat(MIB);
    let event = delta_event("m", "SPLIT");
    let (start, end) = event.split_once("SPLIT").unwrap();
    // One event of 32 MiB; then 256 MiB without any end of line before what ends the stream.
    let mut one_line = vec![stream_head(), chunk(start)];
    one_line.extend(std::iter::repeat_n(chunk(&megabyte), 32));
    one_line.extend([chunk(end), chunk(finish_event("m")), chunk(DONE_EVENT), last_chunk()]);
    let mut no_line = vec![stream_head(), chunk(delta_event("m", "a"))];
    no_line.extend(std::iter::repeat_n(chunk(&megabyte), 256));
    no_line.extend([chunk(format!("\n\n{DONE_EVENT}")), last_chunk()]);
    for (script, n_mib) in [(one_line, 32), (no_line, 256)] {
        let endpoint = llm(move |_| script.clone()).await;
        let router = Router::start(&[node("a", endpoint.url())], AT_ONCE).await;
        let mut client = router.client().await;
        client.post(CHAT, "", &ask_stream("m")).await;
        assert_eq!(client.head().await.status(), 200);
        let (before, mut n_bytes) = (peak_memory(), 0);
        while let Some(chunk) = client.chunk().await.unwrap() {
            n_bytes += chunk.len();
        }
        let around = n_bytes.saturating_sub(n_mib * MIB);
        assert!((1..1_000).contains(&around), "{n_bytes} bytes of {n_mib} MiB and a few events");
        let grown = peak_memory() - before;
        assert!(grown < 16 * MIB, "{} MiB held of {n_mib}", grown / MIB);
    }
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_their_turn() {
    let (_endpoint, router) = hello("limits: {max_connections: 2}\n").await;
    let mut first = router.client().await;
    let mut second = router.client().await;
    for client in [&mut first, &mut second] {
        client.get("/healthz").await;
        assert_eq!(client.answer().await.head.status(), 200);
    }
    let open = [("listener", "api")];
    assert_eq!(router.metrics().await.count("cema_connections", &open), 2);
    let mut third = router.client().await;
    third.get("/healthz").await;
    assert!(third.stays_silent(Duration::from_millis(200)).await);
    drop(first);
    assert_eq!(third.answer().await.head.status(), 200);
    assert_eq!(router.metrics().await.count("cema_connections", &open), 2);
    drop((second, third));
    router.metrics_reach("all to be closed", |metrics| metrics.count("cema_connections", &open) == 0).await;
}

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Connects with TLS, trusting the test's certificate.
async fn connect_tls(
    addr: SocketAddr,
    alpn: &[&str],
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixture("cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    in_time("the handshake", TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

#[tokio::test]
async fn the_api_can_be_served_through_tls() {
    let tls = format!("tls: {{cert: {}, key: {}}}\n", fixture("cert.pem"), fixture("key.pem"));
    let (_endpoint, router) = hello(&tls).await;
    for alpn in [&[][..], &["http/1.1"], &["h2", "http/1.1"]] {
        let stream = connect_tls(router.api(), alpn).await.unwrap();
        let negotiated = (!alpn.is_empty()).then_some(&b"http/1.1"[..]);
        assert_eq!(stream.get_ref().1.alpn_protocol(), negotiated);
        let (read, mut write) = tokio::io::split(stream);
        let mut reader = Reader::new(read);
        for _ in 0..2 {
            write.write_all(sized(&ask("m")).as_bytes()).await.unwrap();
            let head = in_time("an answer", reader.head()).await.unwrap().unwrap();
            assert_eq!(head.status(), 200);
            let len = head.header("content-length").unwrap().parse().unwrap();
            let body = reader.exact(len).await.unwrap();
            assert!(String::from_utf8(body).unwrap().contains("hello"));
        }
        write
            .write_all(post(&["content-length: 1", "transfer-encoding: chunked"], "").as_bytes())
            .await
            .unwrap();
        let head = in_time("an answer", reader.head()).await.unwrap().unwrap();
        assert_eq!(head.status(), 400, "bytes are watched within TLS");
    }
    assert!(connect_tls(router.api(), &["h2"]).await.is_err(), "no other protocol is spoken");
    let mut plain = router.client().await;
    plain.get("/healthz").await;
    let _alert = plain.some_or_end().await;
    let cut = [("listener", "api"), ("reason", "tls_handshake")];
    router
        .metrics_reach("both to be counted", |metrics| metrics.count("cema_connections_cut_total", &cut) == 2)
        .await;
    assert_eq!(router.admin_get("/readyz").await.head.status(), 200, "the admin listener stays in clear");
}
