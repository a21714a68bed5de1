//! What an engine says of itself, and what follows for those who plan with it.

use std::sync::Arc;

use tokio::time::Instant;

use crate::units::Bytes;

/// Share of the KV cache from which on it counts as full: vLLM then preempts what runs, or lets what comes wait.
pub const KV_FULL: f64 = 0.95;

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineReading {
    /// Requests it runs, of all its clients; `None` where it does not tell.
    pub running: Option<u32>,
    /// Requests that wait in it, of all its clients.
    pub waiting: Option<u32>,
    /// Share of its KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests it can run at once.
    pub slots: Option<u32>,
    /// The models the router knows it by, and whatever else it has loaded; empty where it does not tell, and
    /// all are loaded as far as one knows.
    pub models: Vec<ModelResidence>,
    /// Requests of this router under way there when it was asked.
    pub own_inflight: u32,
    /// When it was asked.
    pub read_at: Instant,
}

/// Where a model of an engine is.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelResidence {
    /// The engine's name of it.
    pub name: Arc<str>,
    /// Whether it is in memory.
    pub is_loaded: bool,
    /// Share of it in the memory of an accelerator, 0 to 1, where it is loaded and the engine tells.
    pub vram_share: Option<f64>,
    /// Its size, where the engine tells.
    pub size: Option<Bytes>,
}

impl EngineReading {
    /// The reading of an engine that tells nothing.
    #[must_use]
    pub const fn silent(read_at: Instant) -> Self {
        Self {
            running: None,
            waiting: None,
            kv_usage: None,
            slots: None,
            models: Vec::new(),
            own_inflight: 0,
            read_at,
        }
    }

    /// Whether it tells anything.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.running.is_none()
            && self.waiting.is_none()
            && self.kv_usage.is_none()
            && self.slots.is_none()
            && self.models.is_empty()
    }

    /// What it says of `upstream_model`.
    #[must_use]
    pub fn residence(&self, upstream_model: &str) -> Option<&ModelResidence> {
        self.models.iter().find(|model| is_same_model(&model.name, upstream_model))
    }
}

/// Requests that wait in the engine and are not this router's, which has `own_inflight` under way there now.
///
/// Of what was under way then or is now, the larger number is taken to be the router's own: what comes or goes
/// between two readings never looks like other clients' work.
#[must_use]
pub fn waiting_elsewhere(reading: &EngineReading, own_inflight: u32) -> u32 {
    let waiting = reading.waiting.unwrap_or(0);
    let present = waiting.saturating_add(reading.running.unwrap_or(0));
    let own = own_inflight.max(reading.own_inflight);
    waiting.min(present.saturating_sub(own))
}

/// Requests this router should have running at once in an engine that is configured for `configured`; at least 1.
///
/// Never more than the engine's slots. While its KV cache is full ([`KV_FULL`]) nothing is added to what the
/// router had there; what runs may go on.
#[must_use]
pub fn capped_concurrency(reading: &EngineReading, configured: u32) -> u32 {
    let slots = reading.slots.map_or(configured, |slots| slots.min(configured)).max(1);
    let is_full = reading.kv_usage.is_some_and(|usage| usage >= KV_FULL);
    if is_full { slots.min(reading.own_inflight.max(1)) } else { slots }
}

/// Whether a request for `upstream_model` would have to wait until it is loaded. An engine that tells nothing of
/// models has them all loaded.
#[must_use]
pub fn is_cold(reading: &EngineReading, upstream_model: &str) -> bool {
    !reading.models.is_empty() && !reading.residence(upstream_model).is_some_and(|model| model.is_loaded)
}

/// Whether two names are the same model's: Ollama's tag `latest` may be left out, and case is none of its names'.
fn is_same_model(one: &str, other: &str) -> bool {
    let bare = |name: &str| name.strip_suffix(":latest").map_or(name.len(), str::len);
    one[..bare(one)].eq_ignore_ascii_case(&other[..bare(other)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(running: u32, waiting: u32, own_inflight: u32) -> EngineReading {
        let silent = EngineReading::silent(Instant::now());
        EngineReading { running: Some(running), waiting: Some(waiting), own_inflight, ..silent }
    }

    #[test]
    fn what_waits_beyond_ones_own_is_others() {
        for (running, waiting, own_then, own_now, elsewhere) in [
            (4, 4, 0, 0, 4),
            // Of eight, three are ours: all of them may run.
            (4, 4, 3, 3, 4),
            (4, 4, 6, 6, 2),
            (4, 4, 8, 8, 0),
            // Ours have come or gone since.
            (4, 4, 8, 1, 0),
            (0, 0, 0, 9, 0),
        ] {
            let reading = queue(running, waiting, own_then);
            assert_eq!(waiting_elsewhere(&reading, own_now), elsewhere, "{reading:?} {own_now}");
        }
        let only_waiting = EngineReading { running: None, ..queue(0, 5, 2) };
        assert_eq!(waiting_elsewhere(&only_waiting, 2), 3);
        assert_eq!(waiting_elsewhere(&EngineReading::silent(Instant::now()), 0), 0);
    }

    #[test]
    fn a_full_cache_takes_no_more_than_it_has_and_slots_bound_everything() {
        let reading = |kv_usage, slots, own| EngineReading { kv_usage, slots, ..queue(own, 0, own) };
        for (kv_usage, slots, own, configured, cap) in [
            (None, None, 5, 64, 64),
            (Some(0.94), None, 5, 64, 64),
            (Some(0.95), None, 5, 64, 5),
            (Some(1.0), None, 0, 64, 1),
            (Some(1.0), None, 80, 64, 64),
            (None, Some(4), 0, 16, 4),
            (None, Some(16), 0, 4, 4),
            (None, Some(0), 0, 4, 1),
            (Some(1.0), Some(2), 7, 16, 2),
        ] {
            let reading = reading(kv_usage, slots, own);
            assert_eq!(capped_concurrency(&reading, configured), cap, "{reading:?}");
        }
    }

    #[test]
    fn a_model_is_cold_where_others_are_told_of_and_it_is_not_loaded() {
        let model = |name: &str, is_loaded| ModelResidence {
            name: name.into(),
            is_loaded,
            vram_share: None,
            size: None,
        };
        let mut reading = EngineReading::silent(Instant::now());
        assert!(!is_cold(&reading, "llama3.2") && reading.is_silent());
        reading.models = vec![model("llama3.2:latest", true), model("qwen3:8b", false)];
        for (name, cold) in [
            ("llama3.2", false),
            ("Llama3.2:latest", false),
            ("llama3.2:1b", true),
            ("qwen3:8b", true),
            ("qwen3", true),
            ("é:latest", true),
        ] {
            assert_eq!(is_cold(&reading, name), cold, "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_cap_keeps_what_runs_and_a_place(
            (running, waiting, own) in (0..200_u32, 0..200_u32, 0..200_u32),
            kv_usage in prop::option::of(0.0..=1.0_f64),
            configured in 1..128_u32,
        ) {
            let reading = EngineReading { kv_usage, ..queue(running, waiting, own) };
            let cap = capped_concurrency(&reading, configured);
            prop_assert!(cap >= 1 && cap <= configured);
            prop_assert!(cap >= own.min(configured));
            prop_assert!(waiting_elsewhere(&reading, own) <= waiting);
        }
    }
}
