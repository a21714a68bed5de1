//! Sampling while a load runs: the router's backlog, and the slots of every server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::client::Base;
use crate::measured::Server;

/// A slot at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slot {
    /// The server's number of the request.
    pub(crate) task: u64,
    /// Prompt tokens not read yet.
    pub(crate) prompt_left: f64,
    /// Tokens written.
    pub(crate) decoded: f64,
    /// Tokens until its `max_tokens`.
    pub(crate) until_cap: f64,
}

/// One server at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// What the router believes.
    pub(crate) backlog_s: f64,
    pub(crate) slots: Vec<Slot>,
}

/// Samples of each server, in the order of `servers`.
pub(crate) type Samples = Vec<Vec<Sample>>;

/// Samples every `period` into `samples`, until dropped. A moment at which anything does not answer is left out.
pub(crate) async fn sample(admin: &Base, servers: &[Server], period: Duration, samples: &mut Samples) {
    samples.resize(servers.len(), Vec::new());
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let slots = join_all(servers.iter().map(|server| async {
            let slots = server.url.get("/slots").await.and_then(|page| read_slots(&page))?;
            anyhow::Ok((Instant::now(), slots))
        }));
        let (backlogs, slots) = tokio::join!(admin.get("/metrics"), slots);
        let Ok(backlogs) = backlogs.and_then(|page| read_backlogs(&page)) else { continue };
        for (server, (slots, samples)) in servers.iter().zip(slots.into_iter().zip(samples.iter_mut())) {
            if let (Ok((at, slots)), Some(backlog_s)) = (slots, backlogs.get(&server.id)) {
                samples.push(Sample { at, backlog_s: *backlog_s, slots });
            }
        }
    }
}

/// `cema_backlog_seconds` by destination.
fn read_backlogs(page: &[u8]) -> anyhow::Result<BTreeMap<String, f64>> {
    let text = std::str::from_utf8(page)?;
    let line = |line: &str| {
        let (id, value) = line.strip_prefix("cema_backlog_seconds{destination=\"")?.split_once("\"} ")?;
        Some((id.to_owned(), value.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// llama.cpp's `/slots`.
fn read_slots(page: &[u8]) -> anyhow::Result<Vec<Slot>> {
    let page: Value = serde_json::from_slice(page)?;
    let slots = page.as_array().context("/slots is no list")?;
    let slot = |slot: &Value| {
        let number = |path: &str| slot.pointer(path).and_then(Value::as_f64).unwrap_or_default();
        let decoded = number("/next_token/0/n_decoded");
        let prompt = number("/n_prompt_tokens") - decoded;
        let read = number("/n_prompt_tokens_processed") + number("/n_prompt_tokens_cache");
        Slot {
            task: slot["id_task"].as_u64().unwrap_or_default(),
            prompt_left: if decoded > 0.0 { 0.0 } else { (prompt - read).max(0.0) },
            decoded,
            until_cap: number("/next_token/0/n_remain").max(0.0),
        }
    };
    Ok(slots.iter().filter(|slot| slot["is_processing"] == true).map(slot).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read() {
        let page = r#"[{"id":0,"is_processing":false},{"id":3,"is_processing":true,"id_task":17,"n_prompt_tokens":55,
            "n_prompt_tokens_processed":40,"n_prompt_tokens_cache":0,"next_token":[{"n_remain":49,"n_decoded":15}]}]"#;
        let slot = Slot { task: 17, prompt_left: 0.0, decoded: 15.0, until_cap: 49.0 };
        assert_eq!(read_slots(page.as_bytes()).unwrap(), [slot]);
        let page =
            "# TYPE cema_backlog_seconds gauge\ncema_backlog_seconds{destination=\"a/m\"} 1.5\nother 2\n";
        let backlogs = read_backlogs(page.as_bytes()).unwrap();
        assert_eq!(backlogs.into_iter().collect::<Vec<_>>(), [("a/m".to_owned(), 1.5)]);
    }
}
