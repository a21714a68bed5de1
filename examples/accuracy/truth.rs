//! The true outstanding work of a server at each sample, told in hindsight.
//!
//! llama.cpp's `/slots` says of each running request how many tokens it has written and may still write; how many it
//! did write in the end is known from the later samples. A prompt being read counts down evenly from the first sample
//! that shows it to the first that shows a token. Requests that wait in the server's own queue are on no page: they are
//! those that the router has sent and no slot has, the latest ones, with all of their work.
//!
//! Work becomes wall-clock seconds as the router's own backlog does (B_d), at the *measured* speeds and the measured
//! speed-up of as many requests as there are: `max(longest rest, Σ rest / k(n))`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::measured::Server;
use crate::sampling::{Sample, Slot};

/// What became of a request at a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// When the router sent it.
    pub(crate) dispatched: Instant,
    /// When its last token came.
    pub(crate) finished: Instant,
    pub(crate) prompt_tokens: f64,
    pub(crate) completion_tokens: f64,
}

/// One request in the slots.
struct Task {
    first_seen: Instant,
    /// The first sample that shows a token.
    first_token: Option<Instant>,
    last_seen: Instant,
    last: Slot,
}

impl Task {
    /// Tokens it wrote in the end: up to its limit where it could have got there before the next sample, else a
    /// little more than last seen.
    fn completion(&self, per_sample: f64) -> f64 {
        if self.last.until_cap <= 1.5 * per_sample + 1.0 {
            self.last.decoded + self.last.until_cap
        } else {
            self.last.decoded + per_sample / 2.0
        }
    }

    /// Share of the prompt that is unread at `at`.
    fn unread(&self, at: Instant) -> f64 {
        let end = self.first_token.unwrap_or(self.last_seen);
        let whole = end.saturating_duration_since(self.first_seen).as_secs_f64();
        if whole > 0.0 { end.saturating_duration_since(at).as_secs_f64() / whole } else { 1.0 }
    }
}

/// The outstanding wall-clock seconds at each of `samples`, `period` apart.
pub(crate) fn outstanding(server: &Server, samples: &[Sample], sent: &[Sent], period: Duration) -> Vec<f64> {
    let mut tasks: BTreeMap<u64, Task> = BTreeMap::new();
    for sample in samples {
        for slot in &sample.slots {
            let task = tasks.entry(slot.task).or_insert(Task {
                first_seen: sample.at,
                first_token: None,
                last_seen: sample.at,
                last: *slot,
            });
            (task.last_seen, task.last) = (sample.at, *slot);
            if slot.decoded > 0.0 {
                task.first_token.get_or_insert(sample.at);
            }
        }
    }
    let per_sample = server.decode_tps * period.as_secs_f64();
    let rest = |at: Instant, slot: &Slot| {
        let task = tasks.get(&slot.task)?;
        let prompt = slot.prompt_left * task.unread(at);
        Some(server.service_s(prompt, (task.completion(per_sample) - slot.decoded).max(0.0)))
    };
    let of_sample = |sample: &Sample| {
        let mut rests: Vec<f64> = sample.slots.iter().filter_map(|slot| rest(sample.at, slot)).collect();
        let mut here: Vec<&Sent> =
            sent.iter().filter(|one| one.dispatched <= sample.at && sample.at < one.finished).collect();
        here.sort_by_key(|one| one.dispatched);
        let waiting = here.into_iter().skip(sample.slots.len());
        rests.extend(waiting.map(|one| server.service_s(one.prompt_tokens, one.completion_tokens)));
        wall_s(server, &rests)
    };
    samples.iter().map(of_sample).collect()
}

fn wall_s(server: &Server, rests: &[f64]) -> f64 {
    let longest = rests.iter().copied().fold(0.0, f64::max);
    longest.max(rests.iter().sum::<f64>() / server.speedup(rests.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_told_in_hindsight() {
        // 100 prompt tokens and 10 tokens a second; two at once are 1.6 times as fast.
        let server = Server::of([100.0, 10.0], 2, vec![(1.0, 1.0), (2.0, 1.6)]);
        let start = Instant::now();
        let period = Duration::from_secs(1);
        let at = |second: u64, slots: Vec<Slot>| Sample {
            at: start + period * u32::try_from(second).unwrap(),
            backlog_s: 0.0,
            slots,
        };
        let slot = |prompt_left, decoded, until_cap| Slot { task: 1, prompt_left, decoded, until_cap };
        // Read for two seconds, then ten tokens a second; its limit of 40 is 15 tokens away when last seen.
        let samples = [
            at(0, vec![slot(200.0, 0.0, 40.0)]),
            at(1, vec![slot(200.0, 0.0, 40.0)]),
            at(2, vec![slot(0.0, 5.0, 35.0)]),
            at(3, vec![slot(0.0, 25.0, 15.0)]),
            at(4, vec![]),
        ];
        let own = Sent {
            dispatched: start,
            finished: start + period * 4,
            prompt_tokens: 200.0,
            completion_tokens: 40.0,
        };
        let near = |found: Vec<f64>, wanted: &[f64]| {
            let same =
                found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(same, "{found:?} is not {wanted:?}");
        };
        // 2 + 4 s; half the prompt; 35 tokens; 15.
        near(outstanding(&server, &samples, &[own], period), &[6.0, 5.0, 3.5, 1.5, 0.0]);

        // Another one waits in the server's queue during the last two: 1 + 2 s on top, two at once.
        let waiting = Sent {
            dispatched: start + period * 3,
            finished: start + period * 9,
            prompt_tokens: 100.0,
            completion_tokens: 20.0,
        };
        let found = outstanding(&server, &samples, &[own, waiting], period);
        near(found, &[6.0, 5.0, 3.5, 3.0, 3.0]);
    }
}
