//! Many streams at once.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fleet::{Fleet, event_of};
use crate::router::Router;
use crate::{Fate, Outcome};

/// Time between the starts of two streams.
const GAP: Duration = Duration::from_millis(1);
/// How much longer than its length a stream may take.
const LATE_MAX: Duration = Duration::from_secs(60);

/// Opens `n` streams of `seconds` each and reads them all.
pub(crate) async fn run(router: &Router, fleet: &Fleet, n: usize, seconds: u32) -> anyhow::Result<Outcome> {
    let mut streams = JoinSet::new();
    let mut most = 0;
    for stream in 0..n {
        streams.spawn(one(router.address, format!("stream-{stream}"), seconds));
        sleep(GAP).await;
        most = most.max(fleet.inflight());
    }
    let mut fates = Vec::new();
    loop {
        tokio::select! {
            fate = streams.join_next() => match fate {
                Some(fate) => fates.push(fate?),
                None => break,
            },
            () = sleep(Duration::from_millis(100)) => most = most.max(fleet.inflight()),
        }
    }
    let faults = (most < n).then(|| format!("{most} of {n} streams were open at the same time"));
    Ok(Outcome { fates, faults: faults.into_iter().collect() })
}

async fn one(router: SocketAddr, name: String, seconds: u32) -> Fate {
    let limit = Duration::from_secs(u64::from(seconds)) + LATE_MAX;
    match timeout(limit, read(router, &name, seconds)).await {
        Ok(Ok(())) => Fate::Answered(200),
        Ok(Err(error)) => Fate::Wrong(format!("{name}: {error:#}")),
        Err(_) => Fate::Wrong(format!("{name} was not over after {limit:?}")),
    }
}

async fn read(router: SocketAddr, name: &str, seconds: u32) -> anyhow::Result<()> {
    let stream = TcpStream::connect(router).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = serde_json::json!({
        "model": "m", "messages": [{"role": "user", "content": format!("{name} {seconds}")}], "stream": true,
    });
    let request = Request::post("/v1/chat/completions")
        .header("host", "stress")
        .header("content-type", "application/json")
        .header("x-request-id", name)
        .body(Full::new(Bytes::from(body.to_string())))?;
    let response = sender.send_request(request).await.context("no answer")?;
    ensure!(response.status() == 200, "status {}", response.status());
    let id = response.headers().get("x-request-id").context("no x-request-id")?;
    ensure!(id == name, "the answer to {id:?}");
    let events = response.into_body().collect().await.context("cut")?.to_bytes();
    let expected: String = (0..seconds).map(|n| event_of(name, n)).collect();
    let said = content(std::str::from_utf8(&events)?)?;
    ensure!(said == expected, "it said {said:?}");
    Ok(())
}

/// What a whole stream says.
fn content(events: &str) -> anyhow::Result<String> {
    let mut said = String::new();
    for event in events.split_terminator("\n\n") {
        // Comments keep a stream alive and stand in lines of their own.
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        match data.with_context(|| format!("an event without data: {event:?}"))? {
            "[DONE]" => return Ok(said),
            data => {
                let event: serde_json::Value = serde_json::from_str(data)?;
                said.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
            }
        }
    }
    bail!("it ended without [DONE]")
}
