//! How many requests an engine really runs at once, held against how many it is believed to.
//!
//! A cap is declared (`throughput.max_concurrency`) or a default. Where an engine tells its slots, its word replaces a
//! default; everywhere else its queue tells: requests that wait although fewer run than could, or more that run. What
//! is seen a few scrapes in a row is said. A declared cap is never changed by what is seen; a default gives way, upwards
//! soon and downwards only after much longer, since a cap that is too low keeps work away for good.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{GaugeVec, Opts, Registry};
use tokio::sync::watch;
use tracing::{info, warn};

use super::metrics::show;
use super::reading::EngineReading;
use crate::domain::named::named_enum;
use crate::domain::{Destination, EndpointOrd};
use crate::profiler::speed::Given;

/// Scrapes in a row after which what is seen is taken for true.
const SIGHTINGS: u32 = 3;
/// Scrapes in a row after which a default is lowered.
const SIGHTINGS_TO_LOWER: u32 = 15;
/// Above this share of the KV cache requests may wait for room in it, which says nothing of slots.
const KV_ROOMY: f64 = 0.8;
/// An engine that is full runs the same number all the time, up to this share (and one): those that take and leave.
/// Where the number varies more, something else than slots keeps requests waiting, such as long prompts.
const STEADY: f64 = 0.1;

named_enum! {
    /// What shows that a cap is wrong.
    pub enum CapSign {
        /// Requests wait in the engine although fewer run than could.
        QueueingBelow = "queueing_below",
        /// More run than could.
        RunningAbove = "running_above",
        /// The engine says that it has fewer slots.
        Told = "told",
    }
}

/// A cap that is wrong, as it seems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapMismatch {
    /// Requests the engine is believed to run at once.
    pub believed: u32,
    /// Requests it is seen to run, or says it can.
    pub observed: u32,
    /// How that shows.
    pub sign: CapSign,
}

/// What is known of the slots of one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCap {
    /// The cap in place of the default, and what showed it; `None` = as configured.
    pub adopted: Option<(u32, CapSign)>,
    /// The most requests to have there where `adopted` moves that too.
    pub max_inflight: Option<u32>,
    /// The cap is wrong and nothing was done about it.
    pub mismatch: Option<CapMismatch>,
}

/// What a scrape has brought to light.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// The cap is wrong.
    Mismatch(CapMismatch),
    /// It was, and is the observed one from now on.
    Adopted(CapMismatch),
}

/// The same sign, so many scrapes in a row.
#[derive(Debug, Clone, Copy)]
struct Streak {
    sign: CapSign,
    n: u32,
    /// Fewest and most that ran.
    range: (u32, u32),
}

/// The detector of one destination.
#[derive(Debug)]
struct Detector {
    /// The configured cap.
    reference: u32,
    given: Given,
    /// Whether what the engine counts are this destination's requests alone.
    is_alone: bool,
    known: SlotCap,
    streak: Option<Streak>,
}

impl Detector {
    fn new(reference: u32, given: Given, is_alone: bool) -> Self {
        Self { reference, given, is_alone, known: SlotCap::default(), streak: None }
    }

    fn believed(&self) -> u32 {
        self.known.adopted.map_or(self.reference, |(cap, _)| cap)
    }

    /// Takes in a scrape; `None` = the engine told nothing, which ends what came in a row.
    fn observe(&mut self, reading: Option<&EngineReading>) -> Option<News> {
        let Some(reading) = reading else {
            self.streak = None;
            return None;
        };
        let told = reading.slots.filter(|slots| *slots > 0 && !self.given.max_concurrency);
        if let Some(slots) = told.filter(|slots| self.known.adopted != Some((*slots, CapSign::Told))) {
            let news = self.adopt(slots, CapSign::Told);
            return (news.believed != slots).then_some(News::Adopted(news));
        }
        self.forget_disproved(reading);
        let Some((sign, running)) = self.sign(reading) else {
            self.streak = None;
            return None;
        };
        let Streak { n, range: (_, observed), .. } = self.count(sign, running);
        let n_to_adopt = match sign {
            CapSign::RunningAbove | CapSign::Told => SIGHTINGS,
            CapSign::QueueingBelow => SIGHTINGS_TO_LOWER,
        };
        if !self.given.max_concurrency && n >= n_to_adopt {
            return Some(News::Adopted(self.adopt(observed, sign)));
        }
        if n < SIGHTINGS {
            return None;
        }
        let mismatch = CapMismatch { believed: self.believed(), observed, sign };
        let before = self.known.mismatch.replace(mismatch);
        before.is_none_or(|before| before.sign != sign).then_some(News::Mismatch(mismatch))
    }

    /// What this scrape shows to be wrong, and the cap it shows instead.
    fn sign(&self, reading: &EngineReading) -> Option<(CapSign, u32)> {
        let believed = self.believed();
        if let Some(slots) = reading.slots.filter(|slots| (1..believed).contains(slots)) {
            return Some((CapSign::Told, slots));
        }
        let running = reading.running.filter(|_| self.is_alone)?;
        if running > believed {
            return Some((CapSign::RunningAbove, running));
        }
        let is_roomy = reading.kv_usage.is_none_or(|usage| usage < KV_ROOMY);
        let waits = reading.slots.is_none() && is_roomy && reading.waiting.is_some_and(|n| n > 0);
        (waits && (1..believed).contains(&running)).then_some((CapSign::QueueingBelow, running))
    }

    fn count(&mut self, sign: CapSign, running: u32) -> Streak {
        let first = Streak { sign, n: 1, range: (running, running) };
        let longer = self.streak.filter(|streak| streak.sign == sign).map(|streak| {
            let (least, most) = streak.range;
            Streak { sign, n: streak.n.saturating_add(1), range: (least.min(running), most.max(running)) }
        });
        let is_steady = |streak: &Streak| {
            sign != CapSign::QueueingBelow || streak.range.1 <= streak.range.0 + tolerance(streak.range.1)
        };
        *self.streak.insert(longer.filter(is_steady).unwrap_or(first))
    }

    /// An engine that runs more than it was seen to, or says that it has more slots now, is not what it seemed.
    fn forget_disproved(&mut self, reading: &EngineReading) {
        let running = reading.running.unwrap_or(0);
        self.known.mismatch = self.known.mismatch.filter(|mismatch| match mismatch.sign {
            CapSign::QueueingBelow => running <= mismatch.observed + tolerance(mismatch.observed),
            CapSign::RunningAbove => true,
            CapSign::Told => reading.slots.is_none_or(|slots| slots < mismatch.believed),
        });
    }

    fn adopt(&mut self, cap: u32, sign: CapSign) -> CapMismatch {
        let wrong = CapMismatch { believed: self.believed(), observed: cap, sign };
        let max_inflight = (!self.given.max_inflight).then(|| cap.saturating_mul(2));
        self.known = SlotCap { adopted: Some((cap, sign)), max_inflight, mismatch: None };
        self.streak = None;
        wrong
    }
}

/// By how much the number that runs may vary where slots are what it is limited by.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
fn tolerance(most: u32) -> u32 {
    ((f64::from(most) * STEADY) as u32).max(1)
}

/// The slots of every destination, in the order of [`DestinationOrd`](crate::domain::DestinationOrd). Clones share them.
#[derive(Debug, Clone)]
pub struct SlotCaps {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    destinations: Arc<[Destination]>,
    /// Never held across an await.
    detectors: Mutex<Vec<Detector>>,
    published: watch::Sender<Arc<[SlotCap]>>,
    mismatch: GaugeVec,
}

impl SlotCaps {
    /// Nothing has been seen of `destinations`; `given` says which of their figures the operator gave, in the same order.
    pub(super) fn new(
        destinations: &Arc<[Destination]>,
        given: &[Given],
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "cema_slot_cap_mismatch",
            "1 where the engine seems to run more or fewer requests at once than max_concurrency says, 0 where it tells \
             of them and does not.",
        );
        let mismatch = GaugeVec::new(opts, &["destination"])?;
        registry.register(Box::new(mismatch.clone()))?;
        let n_beside = |of: &Destination| destinations.iter().filter(|d| d.endpoint == of.endpoint).count();
        let detector = |(idx, d): (usize, &Destination)| {
            let given = given.get(idx).copied().unwrap_or_default();
            Detector::new(d.throughput.max_concurrency, given, n_beside(d) == 1)
        };
        let detectors = Mutex::new(destinations.iter().enumerate().map(detector).collect());
        let published = watch::Sender::new(vec![SlotCap::default(); destinations.len()].into());
        let destinations = Arc::clone(destinations);
        Ok(Self { shared: Arc::new(Shared { destinations, detectors, published, mismatch }) })
    }

    /// Follows what is known, in the order of the destinations.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<[SlotCap]>> {
        self.shared.published.subscribe()
    }

    /// Takes in a scrape of the engine at `endpoint`.
    pub(super) fn observe(&self, endpoint: EndpointOrd, reading: Option<&EngineReading>) {
        let shared = &self.shared;
        let mut known = Vec::with_capacity(shared.destinations.len());
        let mut detectors = shared.detectors.lock().unwrap_or_else(PoisonError::into_inner);
        for (d, detector) in shared.destinations.iter().zip(detectors.iter_mut()) {
            if d.endpoint == endpoint {
                if let Some(news) = detector.observe(reading) {
                    tell(d, news);
                }
                let tells = reading.is_some_and(|r| r.running.is_some() || r.slots.is_some());
                let is_wrong = detector.known.mismatch.is_some();
                let shown = (tells || is_wrong).then_some(if is_wrong { 1.0 } else { 0.0 });
                show(&shared.mismatch, d.id.as_str(), shown);
            }
            known.push(detector.known);
        }
        // Published under the lock, so that the newest is.
        shared.published.send_if_modified(|published| {
            let is_news = **published != *known;
            if is_news {
                *published = known.into();
            }
            is_news
        });
        drop(detectors);
    }
}

/// Says what was found and how to mend it.
fn tell(destination: &Destination, news: News) {
    const MEND: &str = "set the model's throughput.max_concurrency to what its engine runs at once: vLLM's \
                        --max-num-seqs, llama.cpp's --parallel, OLLAMA_NUM_PARALLEL";
    let id = destination.id.as_str();
    match news {
        News::Mismatch(CapMismatch { believed, observed, sign }) => {
            let sign = sign.as_str();
            warn!(destination = id, believed, observed, sign, "max_concurrency seems wrong: {MEND}");
        }
        News::Adopted(CapMismatch { believed, observed, sign: CapSign::Told }) => {
            info!(
                destination = id,
                default = believed,
                slots = observed,
                "the engine says how many slots it has"
            );
        }
        News::Adopted(CapMismatch { believed, observed, sign }) => {
            let sign = sign.as_str();
            warn!(
                destination = id,
                believed, observed, sign, "the default of max_concurrency was wrong and gives way: {MEND}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const DEFAULT: Given = Given {
        prefill: false,
        decode: false,
        batch_speedup: false,
        max_concurrency: false,
        max_inflight: false,
    };
    const DECLARED: Given = Given { max_concurrency: true, ..DEFAULT };

    fn scrape(running: u32, waiting: u32) -> EngineReading {
        let silent = EngineReading::silent(Instant::now());
        EngineReading { running: Some(running), waiting: Some(waiting), ..silent }
    }

    fn told(slots: u32) -> EngineReading {
        EngineReading { slots: Some(slots), ..scrape(0, 0) }
    }

    /// What each of these scrapes brings, `(running, waiting)`.
    fn seen(detector: &mut Detector, scrapes: &[(u32, u32)]) -> Vec<Option<News>> {
        scrapes.iter().map(|(running, waiting)| detector.observe(Some(&scrape(*running, *waiting)))).collect()
    }

    const fn mismatch(believed: u32, observed: u32, sign: CapSign) -> CapMismatch {
        CapMismatch { believed, observed, sign }
    }

    #[test]
    fn requests_that_wait_although_more_could_run_show_a_declared_cap_that_is_too_high() {
        let mut detector = Detector::new(8, DECLARED, true);
        let wrong = mismatch(8, 4, CapSign::QueueingBelow);
        let news = seen(&mut detector, &[(4, 2), (4, 1), (4, 3), (4, 1), (3, 1)]);
        assert_eq!(news, [None, None, Some(News::Mismatch(wrong)), None, None], "said once");
        assert_eq!(
            detector.known,
            SlotCap { mismatch: Some(wrong), ..SlotCap::default() },
            "and left as it is"
        );
        seen(&mut detector, &[(4, 2); 100]);
        assert_eq!((detector.known.adopted, detector.believed()), (None, 8));
        // It was something else that kept them waiting.
        seen(&mut detector, &[(8, 2)]);
        assert_eq!(detector.known.mismatch, None);
    }

    #[test]
    fn what_is_not_seen_in_a_row_or_has_other_reasons_shows_nothing() {
        let is_silent = |scrapes: &[(u32, u32)]| {
            let mut detector = Detector::new(8, DECLARED, true);
            let news = seen(&mut detector, scrapes);
            news.iter().all(Option::is_none) && detector.known == SlotCap::default()
        };
        assert!(is_silent(&[(4, 2), (4, 2), (4, 0), (4, 2), (4, 2)]), "nobody waits in between");
        assert!(is_silent(&[(4, 2), (4, 2), (8, 2), (4, 2), (4, 2)]), "as many as could run");
        assert!(
            is_silent(&[(1, 9), (5, 9), (2, 9), (7, 9), (3, 9), (5, 9)]),
            "it is not slots that they wait for"
        );
        assert!(is_silent(&[(0, 3); 9]), "nothing runs at all");
        assert!(is_silent(&[(8, 5); 9]), "a cap that is right");
        let mut detector = Detector::new(8, DECLARED, true);
        for _ in 0..9 {
            assert_eq!(detector.observe(Some(&EngineReading { kv_usage: Some(0.9), ..scrape(4, 2) })), None);
        }
        seen(&mut detector, &[(4, 2), (4, 2)]);
        assert_eq!(detector.observe(None), None, "a page that was not there ends the row");
        assert_eq!(seen(&mut detector, &[(4, 2), (4, 2)]), [None, None]);
        let mut shared = Detector::new(8, DECLARED, false);
        assert!(seen(&mut shared, &[(20, 2); 9]).iter().all(Option::is_none), "whose they are is not known");
    }

    #[test]
    fn more_that_run_than_could_show_a_cap_that_is_too_low() {
        let mut declared = Detector::new(4, DECLARED, true);
        let news = seen(&mut declared, &[(6, 0), (7, 0), (5, 0), (9, 0)]);
        assert_eq!(news[2], Some(News::Mismatch(mismatch(4, 7, CapSign::RunningAbove))));
        assert_eq!(declared.known.mismatch, Some(mismatch(4, 9, CapSign::RunningAbove)));
        assert_eq!(declared.believed(), 4);

        let mut default = Detector::new(4, DEFAULT, true);
        let news = seen(&mut default, &[(6, 0), (7, 0), (5, 0), (7, 0)]);
        assert_eq!(news, [None, None, Some(News::Adopted(mismatch(4, 7, CapSign::RunningAbove))), None]);
        let adopted = Some((7, CapSign::RunningAbove));
        assert_eq!(default.known, SlotCap { adopted, max_inflight: Some(14), mismatch: None });
        seen(&mut default, &[(9, 1); 3]);
        assert_eq!(default.believed(), 9);
        let mut bounded = Detector::new(4, Given { max_inflight: true, ..DEFAULT }, true);
        seen(&mut bounded, &[(6, 0); 3]);
        assert_eq!((bounded.believed(), bounded.known.max_inflight), (6, None), "what was declared stays");
    }

    #[test]
    fn a_default_is_lowered_only_after_long() {
        let mut detector = Detector::new(64, DEFAULT, true);
        let news = seen(&mut detector, &[(16, 5); 14]);
        let wrong = mismatch(64, 16, CapSign::QueueingBelow);
        let said: Vec<_> = news.into_iter().flatten().collect();
        assert_eq!((said, detector.believed()), (vec![News::Mismatch(wrong)], 64));
        assert_eq!(seen(&mut detector, &[(16, 5)]), [Some(News::Adopted(wrong))]);
        assert_eq!((detector.believed(), detector.known.mismatch), (16, None));
        // What it was lowered by was not its slots: it goes up again.
        seen(&mut detector, &[(20, 0); 3]);
        assert_eq!(detector.believed(), 20);
    }

    #[test]
    fn an_engine_that_tells_replaces_a_default_at_once_and_contradicts_a_declared_cap() {
        let mut default = Detector::new(4, DEFAULT, true);
        assert_eq!(default.observe(Some(&told(8))), Some(News::Adopted(mismatch(4, 8, CapSign::Told))));
        assert_eq!(default.observe(Some(&told(8))), None);
        assert_eq!(default.observe(Some(&told(2))), Some(News::Adopted(mismatch(8, 2, CapSign::Told))));
        assert_eq!((default.believed(), default.known.max_inflight), (2, Some(4)));

        let mut declared = Detector::new(4, DECLARED, true);
        let news: Vec<_> = (0..4).map(|_| declared.observe(Some(&told(2)))).collect();
        assert_eq!(news, [None, None, Some(News::Mismatch(mismatch(4, 2, CapSign::Told))), None]);
        assert_eq!(declared.observe(Some(&told(4))), None);
        assert_eq!(declared.known, SlotCap::default());
        assert!((0..9).all(|_| declared.observe(Some(&told(8))).is_none()), "fewer may be on purpose");
    }
}
