//! The pages that engines describe themselves on: where they are, how often they may be asked, what they say.
//!
//! None of them makes an engine load a model. llama.cpp counts `/metrics` and `/slots` as work all the same: both
//! wake a server that sleeps (`--sleep-idle-seconds`) and keep one awake that would. Only `/props` does neither.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::reading::{EngineReading, ModelResidence};
use crate::endpoint::EndpointKind;
use crate::profiler::exposition::samples;
use crate::units::Bytes;

/// One page of one kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    VllmMetrics,
    LlamaCppProps,
    LlamaCppMetrics,
    LlamaCppSlots,
    OllamaLoaded,
    OllamaInstalled,
}

/// The pages of a kind, in the order in which they are asked; none where it is just any server.
pub(super) const fn pages_of(kind: EndpointKind) -> &'static [Page] {
    match kind {
        EndpointKind::Vllm => &[Page::VllmMetrics],
        EndpointKind::LlamaCpp => &[Page::LlamaCppProps, Page::LlamaCppMetrics, Page::LlamaCppSlots],
        EndpointKind::Ollama => &[Page::OllamaLoaded, Page::OllamaInstalled],
        EndpointKind::OpenAi => &[],
    }
}

impl Page {
    /// From the server's root.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::VllmMetrics | Self::LlamaCppMetrics => "/metrics",
            Self::LlamaCppProps => "/props",
            Self::LlamaCppSlots => "/slots",
            Self::OllamaLoaded => "/api/ps",
            Self::OllamaInstalled => "/api/tags",
        }
    }

    /// Time between two readings that succeed.
    pub(super) const fn every(self) -> Duration {
        match self {
            // What is installed hardly ever changes, and its list is long.
            Self::OllamaInstalled => Duration::from_secs(60),
            _ => Duration::from_secs(2),
        }
    }

    /// Whether it is to be asked after what the pages before it have `told`; `is_working` = requests of ours are
    /// there, so that one more keeps no engine awake.
    pub(super) fn is_wanted(self, told: &Told, is_working: bool) -> bool {
        let may_disturb =
            told.props.is_some_and(|props| props.is_sleeping.is_none_or(|asleep| is_working && !asleep));
        match self {
            Self::LlamaCppMetrics => may_disturb,
            Self::LlamaCppSlots => may_disturb && told.queue.running.is_none(),
            _ => true,
        }
    }

    /// Reads the page's text into `told`; false where it is not what it should be.
    pub(super) fn read(self, text: &str, told: &mut Told) -> bool {
        let read = match self {
            Self::VllmMetrics => vllm_metrics(text).map(|queue| told.queue = queue),
            Self::LlamaCppMetrics => llamacpp_metrics(text).map(|queue| told.queue = queue),
            Self::LlamaCppProps => serde_json::from_str(text).ok().map(|props| told.props = Some(props)),
            Self::LlamaCppSlots => llamacpp_slots(text).map(|queue| told.queue = queue),
            Self::OllamaLoaded => ollama_models(text).map(|models| told.loaded = Some(models)),
            Self::OllamaInstalled => ollama_models(text).map(|models| told.installed = models),
        };
        read.is_some()
    }

    /// What the page said is not known any more. Requests are counted anew in every round.
    pub(super) fn forget(self, told: &mut Told) {
        match self {
            Self::VllmMetrics | Self::LlamaCppMetrics | Self::LlamaCppSlots => {}
            Self::LlamaCppProps => told.props = None,
            Self::OllamaLoaded => told.loaded = None,
            Self::OllamaInstalled => told.installed.clear(),
        }
    }
}

/// Requests in an engine and the room for more.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Queue {
    running: Option<u32>,
    waiting: Option<u32>,
    kv_usage: Option<f64>,
    slots: Option<u32>,
}

/// A model on a page of Ollama's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ListedModel {
    name: Arc<str>,
    size: Option<u64>,
    size_vram: Option<u64>,
}

/// What an engine's pages have told so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Told {
    queue: Queue,
    props: Option<Props>,
    loaded: Option<Vec<ListedModel>>,
    installed: Vec<ListedModel>,
}

impl Told {
    /// Begins a round: the engine's requests are counted anew.
    pub(super) fn begin_round(&mut self) {
        self.queue = Queue::default();
    }

    /// As a reading of an engine whose models are called `configured` here.
    pub(super) fn reading(
        &self,
        configured: &[Arc<str>],
        own_inflight: u32,
        read_at: Instant,
    ) -> Option<EngineReading> {
        let Queue { running, waiting, kv_usage, .. } = self.queue;
        let reading = EngineReading {
            running,
            waiting,
            kv_usage,
            slots: self.props.and_then(|props| props.total_slots).or(self.queue.slots),
            models: self.residences(configured, read_at),
            own_inflight,
            read_at,
        };
        (!reading.is_silent()).then_some(reading)
    }

    fn residences(&self, configured: &[Arc<str>], read_at: Instant) -> Vec<ModelResidence> {
        let named = |name: &Arc<str>, is_loaded| ModelResidence {
            name: Arc::clone(name),
            is_loaded,
            vram_share: None,
            size: None,
        };
        if let Some(is_asleep) = self.props.and_then(|props| props.is_sleeping) {
            return configured.iter().map(|name| named(name, !is_asleep)).collect();
        }
        let Some(loaded) = &self.loaded else { return Vec::new() };
        let mut reading = EngineReading::silent(read_at);
        reading.models = loaded.iter().map(ListedModel::resident).collect();
        for name in configured {
            if reading.residence(name).is_none() {
                reading.models.push(named(name, false));
            }
        }
        let mut installed = EngineReading::silent(read_at);
        installed.models = self.installed.iter().map(ListedModel::resident).collect();
        for model in &mut reading.models {
            // In memory a model takes more than its file, which is what has to be loaded.
            model.size = installed.residence(&model.name).and_then(|file| file.size).or(model.size);
        }
        reading.models
    }
}

impl ListedModel {
    fn resident(&self) -> ModelResidence {
        let share = |size: u64, in_vram: u64| (in_vram as f64 / size as f64).clamp(0.0, 1.0);
        ModelResidence {
            name: Arc::clone(&self.name),
            is_loaded: true,
            vram_share: self.size.filter(|size| *size > 0).zip(self.size_vram).map(|(s, v)| share(s, v)),
            size: self.size.map(|size| Bytes(size as f64)),
        }
    }
}

/// vLLM: sums over its engines, whose caches count alike. Older versions call the cache's share
/// `gpu_cache_usage_perc` and count requests that were swapped out, which wait.
fn vllm_metrics(text: &str) -> Option<Queue> {
    let (mut running, mut waiting) = (None, None);
    let (mut usage, mut n_caches) = (0.0, 0_u32);
    for sample in samples(text).filter(|sample| sample.value.is_finite() && sample.value >= 0.0) {
        match sample.name {
            "vllm:num_requests_running" => running = Some(running.unwrap_or(0.0) + sample.value),
            "vllm:num_requests_waiting" | "vllm:num_requests_swapped" => {
                waiting = Some(waiting.unwrap_or(0.0) + sample.value);
            }
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => {
                usage += sample.value;
                n_caches += 1;
            }
            _ => {}
        }
    }
    let queue = Queue {
        running: running.map(count),
        waiting: waiting.map(count),
        kv_usage: (n_caches > 0).then(|| (usage / f64::from(n_caches)).min(1.0)),
        slots: None,
    };
    (queue != Queue::default()).then_some(queue)
}

/// llama.cpp with `--metrics`. Only older versions tell the share of the cache.
fn llamacpp_metrics(text: &str) -> Option<Queue> {
    let mut queue = Queue::default();
    for sample in samples(text).filter(|sample| sample.value.is_finite() && sample.value >= 0.0) {
        match sample.name {
            "llamacpp:requests_processing" => queue.running = Some(count(sample.value)),
            "llamacpp:requests_deferred" => queue.waiting = Some(count(sample.value)),
            "llamacpp:kv_cache_usage_ratio" => queue.kv_usage = Some(sample.value.min(1.0)),
            _ => {}
        }
    }
    (queue != Queue::default()).then_some(queue)
}

/// The fields of llama.cpp's `/props` that matter.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Props {
    total_slots: Option<u32>,
    /// Absent in versions that never sleep.
    is_sleeping: Option<bool>,
}

#[derive(Deserialize)]
struct Slot {
    is_processing: Option<bool>,
    /// 1 = processing, in older versions.
    state: Option<u32>,
}

/// Slots, and how many of them are at work.
fn llamacpp_slots(text: &str) -> Option<Queue> {
    let slots: Vec<Slot> = serde_json::from_str(text).ok()?;
    let is_at_work = |slot: &&Slot| slot.is_processing.unwrap_or(slot.state == Some(1));
    let count = |n| u32::try_from(n).ok();
    let running = count(slots.iter().filter(is_at_work).count());
    Some(Queue { running, slots: count(slots.len()), ..Queue::default() })
}

/// What Ollama has loaded (`/api/ps`) or installed (`/api/tags`).
fn ollama_models(text: &str) -> Option<Vec<ListedModel>> {
    #[derive(Deserialize)]
    struct Listing {
        models: Option<Vec<ListedModel>>,
    }
    // An empty list is `null` in some versions.
    serde_json::from_str::<Listing>(text).ok().map(|listing| listing.models.unwrap_or_default())
}

/// A count that came as a floating-point number, not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
const fn count(value: f64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests;
