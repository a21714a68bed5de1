//! Golden backlogs by hand, and the books against a naive reference.

use proptest::prelude::*;

use super::*;
use crate::units::{Tokens, TokensPerSec};

const D: DestinationOrd = DestinationOrd(0);
/// What a request that is outstanding goes on owing of its completion.
const OWED: f64 = 0.2;

fn throughput(slots: u32, speedup: f64) -> Throughput {
    Throughput {
        prefill: TokensPerSec(1_000.0),
        decode: TokensPerSec(100.0),
        batch_speedup: speedup,
        max_concurrency: slots,
        cached_prompt: Tokens::ZERO,
    }
}

fn work(prefill_s: f64, decode_s: f64) -> Work {
    Work { prefill: Seconds(prefill_s), decode: Seconds(decode_s) }
}

fn ledger(model: CompletionModel, slots: u32, speedup: f64) -> BacklogLedger {
    BacklogLedger::new(model, [throughput(slots, speedup)], Seconds::ZERO)
}

fn backlog(ledger: &mut BacklogLedger, now_s: f64) -> f64 {
    ledger.backlog(Seconds(now_s), D).0
}

#[track_caller]
fn assert_close(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-9, "{got} is not {want}");
}

#[test]
fn a_window_adds_its_work_and_drains_with_time() {
    // Σ/k = 1 s and the longest takes 2 s; in model `slots` three generate 4 s of completions, each as if alone.
    let backlog_s = 2.0;
    for model in [CompletionModel::Fifo, CompletionModel::Slots] {
        let mut ledger = ledger(model, 4, 4.0);
        for service_s in [2.0, 1.0, 1.0] {
            ledger.dispatch(Seconds::ZERO, D, work(0.0, service_s));
        }
        assert_close(backlog(&mut ledger, 0.0), backlog_s);
        assert_close(backlog(&mut ledger, 0.5), backlog_s - 0.5);
        assert_close(backlog(&mut ledger, 0.2), backlog_s - 0.5);
        assert_eq!(ledger.inflight(D), 3);
    }
}

#[test]
fn eight_more_queue_behind_four_slots() {
    let mut ledger = ledger(CompletionModel::Slots, 4, 4.0);
    for _ in 0..12 {
        ledger.dispatch(Seconds::ZERO, D, work(0.1, 2.0));
    }
    // Four prompts of the running and eight of the queued at 0.1 s, 24 s of completions at four times the speed.
    assert_close(backlog(&mut ledger, 0.0), 1.2 + 6.0);
    let load = ledger.load(Seconds::ZERO, D);
    assert_eq!((load.running, load.queued), (4, 8));
    assert_close(load.queued_work.decode.0, 16.0);
    // 0.4 s of prompts, then a second of four completions.
    assert_close(backlog(&mut ledger, 1.4), 0.8 + 5.0);
    assert_close(ledger.load(Seconds(1.4), D).soonest.0, 1.0);
}

#[test]
fn generation_slows_down_with_company() {
    // a = (4/2 − 1) / 3 = 1/3: two take 4/3 as long as one.
    let mut ledger = ledger(CompletionModel::Slots, 4, 2.0);
    ledger.dispatch(Seconds::ZERO, D, work(0.5, 3.0));
    assert_close(backlog(&mut ledger, 0.0), 3.5);
    ledger.dispatch(Seconds::ZERO, D, work(0.5, 3.0));
    assert_close(backlog(&mut ledger, 0.0), 1.0 + 4.0);
    // One second of prompts, 4/3 s of company: one of three seconds each.
    assert_close(backlog(&mut ledger, 1.0 + 4.0 / 3.0), 4.0 - 4.0 / 3.0);
    assert_close(ledger.load(Seconds(1.0 + 4.0 / 3.0), D).soonest.0, 2.0);
}

#[test]
fn what_ends_takes_along_what_it_owed() {
    for model in [CompletionModel::Fifo, CompletionModel::Slots] {
        let mut ledger = ledger(model, 1, 1.0);
        let first = ledger.dispatch(Seconds::ZERO, D, work(0.5, 3.5)).unwrap();
        let second = ledger.dispatch(Seconds::ZERO, D, work(0.0, 3.0)).unwrap();
        assert_close(backlog(&mut ledger, 1.0), 6.0);
        ledger.finish(Seconds(1.0), first);
        assert_close(backlog(&mut ledger, 1.0), 3.0);
        ledger.finish(Seconds(1.0), second);
        assert_close(backlog(&mut ledger, 1.0), 0.0);
        assert_eq!(ledger.inflight(D), 0);
    }
}

#[test]
fn a_cancelled_request_that_never_began_is_all_gone() {
    let mut ledger = ledger(CompletionModel::Slots, 1, 1.0);
    let first = ledger.dispatch(Seconds::ZERO, D, work(0.5, 2.0)).unwrap();
    let queued = ledger.dispatch(Seconds::ZERO, D, work(1.0, 7.0)).unwrap();
    let last = ledger.dispatch(Seconds::ZERO, D, work(0.25, 1.0)).unwrap();
    assert_close(backlog(&mut ledger, 0.0), 1.75 + 10.0);
    ledger.finish(Seconds::ZERO, queued);
    assert_close(backlog(&mut ledger, 0.0), 0.75 + 3.0);
    ledger.finish(Seconds::ZERO, first);
    assert_close(backlog(&mut ledger, 1.0), 0.25);
    ledger.finish(Seconds(1.0), last);
    assert_close(backlog(&mut ledger, 1.0), 0.0);
}

#[test]
fn stuck_requests_go_on_owing() {
    for model in [CompletionModel::Fifo, CompletionModel::Slots] {
        let mut ledger = ledger(model, 10, 1.0);
        let stuck: Vec<_> = (0..10).map(|_| ledger.dispatch(Seconds::ZERO, D, work(0.0, 1.0))).collect();
        assert_close(backlog(&mut ledger, 0.0), 10.0);
        assert_close(backlog(&mut ledger, 4.0), 6.0);
        // Nothing has ended: each owes a fifth.
        for now_s in [20.0, 1e6] {
            assert_close(backlog(&mut ledger, now_s), 10.0 * OWED);
        }
        for outstanding in stuck.into_iter().flatten() {
            ledger.finish(Seconds(1e6), outstanding);
        }
        assert_close(backlog(&mut ledger, 1e6), 0.0);
    }
    // An embedding has nothing to generate, and owes an answer all the same.
    let mut ledger = ledger(CompletionModel::Slots, 1, 1.0);
    ledger.dispatch(Seconds::ZERO, D, work(1.0, 0.0));
    assert_close(backlog(&mut ledger, 0.0), 1.0);
    assert_close(backlog(&mut ledger, 0.5), 0.5);
    assert_close(backlog(&mut ledger, 9.0), OWED);
}

#[test]
fn first_content_tells_where_a_request_stands() {
    let mut ledger = ledger(CompletionModel::Slots, 2, 2.0);
    let late = ledger.dispatch(Seconds::ZERO, D, work(1.0, 4.0)).unwrap();
    // Generation was to begin at 1 s and begins at 3 s.
    assert_close(backlog(&mut ledger, 3.0), 2.0);
    ledger.answering(Seconds(3.0), &late);
    assert_close(backlog(&mut ledger, 3.0), 4.0);
    // The second one's prompt takes a tenth of what was predicted.
    let early = ledger.dispatch(Seconds(3.0), D, work(5.0, 4.0)).unwrap();
    assert_close(backlog(&mut ledger, 3.5), 4.5 + 4.0);
    ledger.answering(Seconds(3.5), &early);
    assert_close(backlog(&mut ledger, 3.5), 4.0);
    // More run at once than was thought: nothing is behind the slots any more.
    let third = ledger.dispatch(Seconds(3.5), D, work(0.0, 4.0)).unwrap();
    assert_eq!(ledger.load(Seconds(3.5), D).queued, 1);
    ledger.answering(Seconds(3.5), &third);
    assert_eq!((ledger.load(Seconds(3.5), D).running, ledger.load(Seconds(3.5), D).queued), (3, 0));
    for outstanding in [late, early, third] {
        ledger.finish(Seconds(4.0), outstanding);
    }
    assert_close(backlog(&mut ledger, 4.0), 0.0);
}

#[test]
fn a_slow_endpoint_drains_slowly_and_more_slots_let_the_queue_in() {
    let mut ledger = ledger(CompletionModel::Slots, 1, 1.0);
    for _ in 0..2 {
        ledger.dispatch(Seconds::ZERO, D, work(0.0, 3.0));
    }
    ledger.set_figures(Seconds::ZERO, D, throughput(1, 1.0), 0.25);
    assert_close(backlog(&mut ledger, 0.0), 24.0);
    assert_close(backlog(&mut ledger, 4.0), 20.0);
    ledger.set_figures(Seconds(4.0), D, throughput(2, 2.0), 1.0);
    assert_eq!((ledger.load(Seconds(4.0), D).running, ledger.load(Seconds(4.0), D).queued), (2, 0));
    // 2 s and 3 s at once: as long as the longer.
    assert_close(backlog(&mut ledger, 4.0), 3.0);
}

#[test]
fn an_unknown_destination_has_nothing() {
    let mut ledger = ledger(CompletionModel::Slots, 1, 1.0);
    assert!(ledger.dispatch(Seconds::ZERO, DestinationOrd(7), work(1.0, 1.0)).is_none());
    assert_eq!(ledger.backlog(Seconds::ZERO, DestinationOrd(7)), Seconds::ZERO);
    assert_eq!(ledger.load(Seconds::ZERO, DestinationOrd(7)), SlotLoad::default());
}

/// One request of the reference ledger, which keeps every number by itself.
#[derive(Debug, Clone, Copy)]
struct Naive {
    prefill_s: f64,
    decode_left_s: f64,
    decode_s: f64,
    is_running: bool,
}

impl Naive {
    fn owes_s(&self) -> f64 {
        self.prefill_s + self.decode_left_s.max(OWED * self.decode_s)
    }
}

/// Model `slots` by its words, one request after the other.
#[derive(Debug, Default)]
struct Reference {
    /// In order of dispatch.
    requests: Vec<Naive>,
}

impl Reference {
    fn admit(&mut self, throughput: &Throughput) {
        let n_running = self.requests.iter().filter(|r| r.is_running).count();
        let free = (throughput.max_concurrency as usize).saturating_sub(n_running);
        self.requests.iter_mut().filter(|r| !r.is_running).take(free).for_each(|r| r.is_running = true);
    }

    fn advance(&mut self, throughput: &Throughput, mut span_s: f64) {
        for request in self.requests.iter_mut().filter(|r| r.is_running) {
            let read_s = span_s.min(request.prefill_s);
            request.prefill_s -= read_s;
            span_s -= read_s;
        }
        let n_running = self.requests.iter().filter(|r| r.is_running).count();
        let progress_s = span_s / throughput.stretch(n_running as u32);
        self.requests.iter_mut().filter(|r| r.is_running).for_each(|r| r.decode_left_s -= progress_s);
    }

    fn owed_s(&self) -> f64 {
        self.requests.iter().map(Naive::owes_s).sum()
    }
}

proptest! {
    /// What is on the books is the sum of what each outstanding request owes, whatever happens.
    #[test]
    fn the_books_equal_outstanding_predicted_work(
        slots in 1_u32..5,
        share in 0.0..1.0_f64,
        steps in prop::collection::vec(
            (0.0..2.0_f64, prop::option::of((0.0..1.0_f64, 0.01..5.0_f64)), any::<prop::sample::Index>(), 0..4_u8),
            1..60,
        ),
    ) {
        let throughput = throughput(slots, 1.0 + share * f64::from(slots - 1));
        let mut ledger = BacklogLedger::new(CompletionModel::Slots, [throughput], Seconds::ZERO);
        let (mut reference, mut handles, mut now_s) = (Reference::default(), Vec::new(), 0.0);
        for (span_s, arrival, which, event) in steps {
            now_s += span_s;
            let now = Seconds(now_s);
            let before_s = backlog(&mut ledger, now_s - span_s);
            reference.advance(&throughput, span_s);
            prop_assert!(backlog(&mut ledger, now_s) <= before_s + 1e-9, "drains with time");
            if let Some((prefill_s, decode_s)) = arrival {
                handles.push(ledger.dispatch(now, D, work(prefill_s, decode_s)).unwrap());
                let naive = Naive { prefill_s, decode_left_s: decode_s, decode_s, is_running: false };
                reference.requests.push(naive);
            }
            if !handles.is_empty() {
                let at = which.index(handles.len());
                let owed_s = reference.requests[at].owes_s();
                match event {
                    0 => {
                        let before = ledger.load(now, D);
                        ledger.finish(now, handles.remove(at));
                        reference.requests.remove(at);
                        let after = ledger.load(now, D);
                        let total = |l: SlotLoad| (l.prefill + l.decode + l.queued_work.total()).0;
                        prop_assert!((total(before) - total(after) - owed_s).abs() < 1e-9);
                    }
                    1 => {
                        ledger.answering(now, &handles[at]);
                        let naive = &mut reference.requests[at];
                        (naive.prefill_s, naive.decode_left_s, naive.is_running) = (0.0, naive.decode_s, true);
                    }
                    _ => {}
                }
            }
            reference.admit(&throughput);
            let load = ledger.load(now, D);
            let owed_s = (load.prefill + load.decode + load.queued_work.total()).0;
            prop_assert!((owed_s - reference.owed_s()).abs() < 1e-6, "{} {}", owed_s, reference.owed_s());
            prop_assert_eq!(ledger.inflight(D) as usize, reference.requests.len());
            prop_assert_eq!(load.outstanding() as usize, reference.requests.len());
            let drain_s = backlog(&mut ledger, now_s);
            prop_assert_eq!(drain_s > 0.0, !handles.is_empty());
            prop_assert!(drain_s >= 0.0 && drain_s <= owed_s * (1.0 + 1e-9) + 1e-9, "{} {}", drain_s, owed_s);
        }
    }

    /// Model `fifo` as Eq. 4 has it for requests of one instant.
    #[test]
    fn a_batch_to_an_idle_destination_is_equation_4(
        services in prop::collection::vec(0.01..5.0_f64, 1..30),
        speedup in 1.0..16.0_f64,
        after in 0.0..1.0_f64,
    ) {
        let mut ledger = ledger(CompletionModel::Fifo, 64, speedup);
        for service_s in &services {
            ledger.dispatch(Seconds::ZERO, D, work(0.0, *service_s));
        }
        let longest_s = services.iter().copied().fold(0.0, f64::max);
        let want_s = longest_s.max(services.iter().sum::<f64>() / speedup);
        prop_assert!((backlog(&mut ledger, 0.0) - want_s).abs() < 1e-9);
        // It drains second by second; towards the end the slowest goes on owing.
        let left_s = backlog(&mut ledger, after * want_s) - (1.0 - after) * want_s;
        prop_assert!(left_s > -1e-9 && (after > 1.0 - OWED - 1e-9 || left_s < 1e-9), "{}", left_s);
    }
}
