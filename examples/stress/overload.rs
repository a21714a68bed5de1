//! More requests than the endpoints can answer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use http::{HeaderMap, Method, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::fleet::{Fleet, said_to};
use crate::net::{Connection, chat_body};
use crate::router::Router;
use crate::{Fate, Outcome};

/// Requests for each that the endpoints can answer.
const OVERLOAD: f64 = 2.0;
/// A request that takes longer is lost.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Connections that wait for the next request.
type Pool = Arc<Mutex<Vec<Connection>>>;

/// Sends `n` requests at a steady rate, whatever becomes of them.
pub(crate) async fn run(router: &Router, fleet: &Fleet, n: usize) -> anyhow::Result<Outcome> {
    let gap_s = 1.0 / (OVERLOAD * fleet.per_second());
    let pool = Pool::default();
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for request in 0..n {
        sleep_until(began + Duration::from_secs_f64(gap_s * request as f64)).await;
        requests.spawn(one(router.address, Arc::clone(&pool), request));
    }
    let fates = requests.join_all().await;
    let mut faults = Vec::new();
    let (most, bound) = (fleet.inflight_peak(), fleet.capacity.inflight_max);
    if most > bound {
        faults.push(format!(
            "an endpoint had {most} requests at a time, more than its max_inflight of {bound}"
        ));
    }
    if fates.iter().all(|fate| matches!(fate, Fate::Answered(200))) {
        faults.push("nothing was refused: that was no overload".to_owned());
    }
    Ok(Outcome { fates, faults })
}

async fn one(router: SocketAddr, pool: Pool, n: usize) -> Fate {
    match timeout(LOST_AFTER, ask(router, &pool, n)).await {
        Ok(Ok(status)) => Fate::Answered(status.as_u16()),
        Ok(Err(error)) => Fate::Wrong(format!("request {n}: {error:#}")),
        Err(_) => Fate::Wrong(format!("request {n} is lost: no answer within {LOST_AFTER:?}")),
    }
}

async fn ask(router: SocketAddr, pool: &Pool, n: usize) -> anyhow::Result<StatusCode> {
    let idle = pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut connection = match idle {
        Some(connection) => connection,
        None => Connection::open(router).await.context("cannot connect")?,
    };
    let text = format!("this is request {n}");
    let body = chat_body("m", &text).into();
    let answer = connection.send(Method::POST, "/v1/chat/completions", body).await.context("no answer")?;
    pool.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    let said: serde_json::Value = serde_json::from_slice(answer.body())?;
    match answer.status() {
        StatusCode::OK => {
            let content = &said["choices"][0]["message"]["content"];
            ensure!(*content == said_to(&text), "the answer to another request: {said}");
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            check_refusal(answer.headers(), &said["error"])
                .with_context(|| format!("a {} without a clear word: {said}", answer.status()))?;
        }
        status => anyhow::bail!("status {status}: {said}"),
    }
    Ok(answer.status())
}

/// A refusal says when to come again, and why in OpenAI's terms.
fn check_refusal(headers: &HeaderMap, error: &serde_json::Value) -> anyhow::Result<()> {
    let wait = headers.get("retry-after").context("no Retry-After")?.to_str()?;
    ensure!(wait.parse::<u32>()? >= 1, "Retry-After: {wait}");
    ensure!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "no message");
    ensure!(error["type"].is_string(), "no type");
    for part in ["param", "code"] {
        let value = error.get(part).with_context(|| format!("no {part}"))?;
        ensure!(value.is_string() || value.is_null(), "{part}: {value}");
    }
    Ok(())
}
