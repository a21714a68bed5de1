//! The measured speeds of the servers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::client::Base;

/// A server and what it can do.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Its destination.
    pub(crate) id: String,
    pub(crate) url: Base,
    pub(crate) prefill_tps: f64,
    pub(crate) decode_tps: f64,
    pub(crate) slots: u32,
    /// F_n / F_1 by n, rising.
    speedups: Vec<(f64, f64)>,
}

impl Server {
    /// Seconds of this work alone on the server.
    pub(crate) fn service_s(&self, prompt_tokens: f64, completion_tokens: f64) -> f64 {
        prompt_tokens / self.prefill_tps + completion_tokens / self.decode_tps
    }

    /// How much faster `n` requests at once are than one by one: between the rungs of the ladder, linear.
    pub(crate) fn speedup(&self, n: usize) -> f64 {
        let n = (n.max(1) as f64).min(f64::from(self.slots));
        let above = self.speedups.iter().position(|(at, _)| *at >= n).unwrap_or(self.speedups.len() - 1);
        let (x1, y1) = self.speedups[above];
        if above == 0 || x1 <= n {
            return y1;
        }
        let (x0, y0) = self.speedups[above - 1];
        y0 + (n - x0) / (x1 - x0) * (y1 - y0)
    }

    /// Requests of this mean size it finishes in a second with every slot taken.
    pub(crate) fn capacity_per_s(&self, prompt_tokens: f64, completion_tokens: f64) -> f64 {
        self.speedup(self.slots as usize) / self.service_s(prompt_tokens, completion_tokens)
    }
}

/// Reads what `profile throughput --format json` printed; every destination of `urls` must be in it.
pub(crate) fn servers(path: &Path, urls: BTreeMap<String, Base>) -> anyhow::Result<Vec<Server>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let measured: Value = serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
    let rows = measured["destinations"].as_array().context("no destinations in --measured")?;
    let read = |(id, url): (String, Base)| {
        let row = rows.iter().find(|row| row["id"] == id.as_str());
        let row = row.with_context(|| format!("{id} is not in {}", path.display()))?;
        let number = |value: &Value, key: &str| {
            let found = value.pointer(key).and_then(Value::as_f64);
            found.with_context(|| format!("{id} has no {key} in {}", path.display()))
        };
        let serial = number(row, "/figures/ladder/serial_tps")?;
        let rungs = row["rungs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let speedup = |rung: &Value| {
            anyhow::Ok((number(rung, "/concurrency")?, (number(rung, "/aggregate_tps")? / serial).max(1.0)))
        };
        let speedups = rungs.iter().map(speedup).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(!speedups.is_empty(), "{id} has no rungs in {}", path.display());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let slots = number(row, "/figures/ladder/max_concurrency")? as u32;
        Ok(Server {
            url,
            prefill_tps: number(row, "/figures/prefill/prefill_tps")?,
            decode_tps: number(row, "/figures/decode_tps/median")?,
            slots,
            speedups,
            id,
        })
    };
    urls.into_iter().map(read).collect()
}

#[cfg(test)]
impl Server {
    /// A server of these prefill and decode speeds.
    pub(crate) fn of([prefill_tps, decode_tps]: [f64; 2], slots: u32, speedups: Vec<(f64, f64)>) -> Self {
        Self {
            id: String::new(),
            url: "http://h:1".parse().unwrap(),
            prefill_tps,
            decode_tps,
            slots,
            speedups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_ups_lie_between_the_rungs() {
        let server = Server::of([100.0, 20.0], 4, vec![(1.0, 1.0), (2.0, 1.6), (4.0, 2.0)]);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(
            [(0, 1.0), (1, 1.0), (2, 1.6), (3, 1.8), (4, 2.0), (9, 2.0)]
                .iter()
                .all(|(n, k)| near(server.speedup(*n), *k))
        );
        // 50 / 100 + 30 / 20 = 2 s; twice as fast with all slots.
        assert!(near(server.capacity_per_s(50.0, 30.0), 1.0));
    }
}
