//! Answers that feedback may still be given on: the last ones, for a while, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::{Arc, OnceLock};

use foldhash::quality::RandomState;
use tokio::time::Instant;

use crate::domain::{Destination, DestinationOrd};
use crate::profiler::quality::embedder::tail::{TAIL_BYTES_MAX, tail};
use crate::profiler::quality::feedback::FeedbackParams;
use crate::profiler::quality::format::{FORMAT_NUMBERS, format_numbers};
use crate::units::{Quality, Tokens, Usd};

/// Prompts up to this size are kept as they are; of longer ones the end, which is all that is embedded.
const WHOLE_BYTES_MAX: usize = 4 * TAIL_BYTES_MAX;

/// What an entry takes beside its texts, roughly.
const ENTRY_BYTES: usize = 512;

/// What is needed of a prompt to predict with it.
#[derive(Debug, Clone)]
pub struct KeptPrompt {
    /// All of it or its end.
    text: Arc<str>,
    /// Its format numbers, where `text` is not all of it.
    format: Option<Box<[f64; FORMAT_NUMBERS]>>,
}

impl KeptPrompt {
    /// What is kept of `text`, which is shared as long as it is of usual size.
    #[must_use]
    pub fn of(text: &Arc<str>) -> Self {
        if text.len() <= WHOLE_BYTES_MAX {
            return Self { text: Arc::clone(text), format: None };
        }
        let end = tail(text, TAIL_BYTES_MAX);
        Self { text: end.into(), format: Some(Box::new(format_numbers(text))) }
    }

    /// What is embedded of it; empty where there was no text.
    pub(super) const fn text(&self) -> &Arc<str> {
        &self.text
    }

    pub(super) fn format(&self) -> [f64; FORMAT_NUMBERS] {
        self.format.as_ref().map_or_else(|| format_numbers(&self.text), |format| **format)
    }
}

/// The part of an answered request in a comparison of policies that take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialSlice {
    /// Number of the slice that it arrived in.
    pub number: u64,
    /// Whose turn it was, in the order of the configuration.
    pub policy: usize,
}

/// A request that is being answered, or was.
#[derive(Debug)]
pub struct AnsweredRequest {
    /// Its id.
    pub id: Arc<str>,
    /// Name of the API key that asked; `None` where the router is open.
    pub owner: Option<Arc<str>>,
    /// Where it was answered.
    pub destination: DestinationOrd,
    /// q̂ there when it was placed.
    pub predicted: Quality,
    /// Its prompt.
    pub prompt: KeptPrompt,
    /// Its part in a comparison of policies.
    pub trial: Option<TrialSlice>,
    /// What it came to, once it is over.
    ended: OnceLock<Ended>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ended {
    /// With all of it, or as much as its client wanted.
    Read { completion: Option<Tokens>, usd: Option<Usd> },
    /// Before it was whole.
    Broken,
}

impl AnsweredRequest {
    /// An answer that has begun.
    #[must_use]
    pub fn new(
        (id, owner): (Arc<str>, Option<Arc<str>>),
        (destination, predicted): (DestinationOrd, Quality),
        prompt: KeptPrompt,
        trial: Option<TrialSlice>,
    ) -> Self {
        Self { id, owner, destination, predicted, prompt, trial, ended: OnceLock::new() }
    }

    /// The answer is over: `completion` tokens long, at this price.
    pub fn read(&self, completion: Option<Tokens>, usd: Option<Usd>) {
        let _ = self.ended.set(Ended::Read { completion, usd });
    }

    /// The answer broke off: a score would say nothing of the model.
    pub fn broke(&self) {
        let _ = self.ended.set(Ended::Broken);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.ended.get() == Some(&Ended::Broken)
    }

    pub(super) fn counted(&self) -> (Option<Tokens>, Option<Usd>) {
        match self.ended.get() {
            Some(Ended::Read { completion, usd }) => (*completion, *usd),
            Some(Ended::Broken) | None => (None, None),
        }
    }

    fn bytes(&self) -> usize {
        let owner = self.owner.as_ref().map_or(0, |owner| owner.len());
        self.id.len() + owner + self.prompt.text.len() + ENTRY_BYTES
    }
}

/// An answer with when it began.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) answered: Arc<AnsweredRequest>,
    /// Seconds since 1970.
    pub(super) at_unix: f64,
    at: Instant,
}

/// The answers, oldest first.
#[derive(Debug, Default)]
pub(super) struct KeptAnswers {
    order: VecDeque<Kept>,
    /// Answers forgotten so far: the number of the oldest one kept.
    n_forgotten: u64,
    /// By the hash of key and id, the number of the newest answer that has them. Every request passes here, few are
    /// looked for: what is kept for that is small.
    newest: HashMap<u64, u64, RandomState>,
    /// Other keys in every process: nobody outside can aim at a collision.
    keys: RandomState,
    bytes: usize,
}

impl KeptAnswers {
    /// Keeps `answered`, which began at `now`, and forgets what is over the bounds of `params`.
    pub(super) fn push(
        &mut self,
        answered: Arc<AnsweredRequest>,
        (now, at_unix): (Instant, f64),
        params: &FeedbackParams,
    ) {
        self.bytes += answered.bytes();
        self.newest.insert(self.hash_of(&answered), self.n_forgotten + self.order.len() as u64);
        self.order.push_back(Kept { answered, at_unix, at: now });
        self.forget_old(now, params);
        while self.order.len() > params.requests_max || self.bytes > params.bytes_max {
            if !self.forget_oldest() {
                break;
            }
        }
    }

    /// The newest answer called `id` that was asked for with the key called `owner`.
    pub(super) fn find(
        &mut self,
        (owner, id): (Option<&Arc<str>>, &str),
        now: Instant,
        params: &FeedbackParams,
    ) -> Option<Kept> {
        self.forget_old(now, params);
        let number = *self.newest.get(&self.keys.hash_one((owner, id)))?;
        let kept = self.order.get(usize::try_from(number.checked_sub(self.n_forgotten)?).ok()?)?;
        let is_it = kept.answered.owner.as_ref() == owner && *kept.answered.id == *id;
        is_it.then(|| kept.clone())
    }

    fn hash_of(&self, answered: &AnsweredRequest) -> u64 {
        self.keys.hash_one((answered.owner.as_ref(), &*answered.id))
    }

    fn forget_old(&mut self, now: Instant, params: &FeedbackParams) {
        while self.order.front().is_some_and(|oldest| now.duration_since(oldest.at) >= params.retention) {
            self.forget_oldest();
        }
    }

    /// `false` if there is none.
    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.order.pop_front() else { return false };
        self.bytes = self.bytes.saturating_sub(oldest.answered.bytes());
        let hash = self.hash_of(&oldest.answered);
        // A later one may have the id now.
        if self.newest.get(&hash) == Some(&self.n_forgotten) {
            self.newest.remove(&hash);
        }
        self.n_forgotten += 1;
        true
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

/// Destination id and public model name of each destination, shared.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) destination: Arc<str>,
    pub(super) model: Arc<str>,
}

impl Names {
    pub(super) fn of(destinations: &[Destination]) -> Vec<Self> {
        let names = |d: &Destination| Self { destination: d.id.as_str().into(), model: Arc::clone(&d.model) };
        destinations.iter().map(names).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(owner: Option<&str>, id: &str, prompt: &str) -> Arc<AnsweredRequest> {
        let prompt = KeptPrompt::of(&Arc::from(prompt));
        let names = (Arc::from(id), owner.map(Arc::from));
        Arc::new(AnsweredRequest::new(names, (DestinationOrd(0), Quality(0.5)), prompt, None))
    }

    fn find(kept: &mut KeptAnswers, owner: Option<&str>, id: &str, params: &FeedbackParams) -> bool {
        kept.find((owner.map(Arc::from).as_ref(), id), Instant::now(), params).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_kept_for_its_time_and_for_its_key() {
        let params = FeedbackParams { retention: Duration::from_secs(60), ..FeedbackParams::default() };
        let mut kept = KeptAnswers::default();
        kept.push(answer(Some("app"), "a", "text"), (Instant::now(), 0.0), &params);
        assert!(find(&mut kept, Some("app"), "a", &params));
        assert!(!find(&mut kept, Some("other"), "a", &params) && !find(&mut kept, None, "a", &params));
        tokio::time::advance(Duration::from_secs(30)).await;
        // The same id again: the first one's time does not end the second's.
        kept.push(answer(Some("app"), "a", "text"), (Instant::now(), 30.0), &params);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(find(&mut kept, Some("app"), "a", &params));
        assert_eq!(kept.len(), 1);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!find(&mut kept, Some("app"), "a", &params));
        assert_eq!((kept.len(), kept.bytes, kept.newest.len()), (0, 0, 0));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_large() {
        let few = FeedbackParams { requests_max: 2, ..FeedbackParams::default() };
        let small = FeedbackParams { bytes_max: 2 * (1000 + ENTRY_BYTES + 1), ..FeedbackParams::default() };
        for params in [few, small] {
            let mut kept = KeptAnswers::default();
            for id in ["a", "b", "c"] {
                kept.push(answer(None, id, &"x".repeat(1000)), (Instant::now(), 0.0), &params);
            }
            let is_kept = ["a", "b", "c"].map(|id| find(&mut kept, None, id, &params));
            assert_eq!(is_kept, [false, true, true]);
        }
    }

    #[test]
    fn of_a_long_prompt_its_end_and_its_form_are_kept() {
        let long: Arc<str> = format!("A. first\n{}", "word ".repeat(WHOLE_BYTES_MAX)).into();
        let kept = KeptPrompt::of(&long);
        assert!(kept.text.len() <= TAIL_BYTES_MAX && long.ends_with(&**kept.text()));
        assert_eq!(kept.format().map(f64::to_bits), format_numbers(&long).map(f64::to_bits));
        let short: Arc<str> = "What?".into();
        let kept = KeptPrompt::of(&short);
        assert!(Arc::ptr_eq(kept.text(), &short));
        assert_eq!(kept.format().map(f64::to_bits), format_numbers(&short).map(f64::to_bits));
    }
}
