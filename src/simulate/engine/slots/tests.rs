//! The slot engine by hand, and against a simulation in small steps.

use proptest::prelude::*;

use super::*;
use crate::domain::Work;
use crate::units::{Tokens, TokensPerSec};

fn throughput(slots: u32, batch_speedup: f64) -> Throughput {
    let tps = TokensPerSec(1.0);
    Throughput {
        prefill: tps,
        decode: tps,
        batch_speedup,
        max_concurrency: slots,
        cached_prompt: Tokens::ZERO,
    }
}

fn job(ticket: u64, prefill_s: f64, decode_s: f64) -> Job {
    let work = Work { prefill: Seconds(prefill_s), decode: Seconds(decode_s) };
    Job { ticket: Ticket(ticket), work }
}

/// Looks at the engine whenever it asks for it, until it is idle.
fn run_dry(engine: &mut SlotEngine) -> Vec<EngineEvent> {
    let mut events = Vec::new();
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut events);
    }
    events
}

fn brief(events: &[EngineEvent]) -> Vec<(u64, char, f64)> {
    let letter = |milestone| if milestone == Milestone::FirstToken { 'f' } else { 'l' };
    events.iter().map(|event| (event.ticket.0, letter(event.milestone), event.at.0)).collect()
}

#[test]
fn a_request_alone_takes_its_service() {
    let mut engine = SlotEngine::new(throughput(4, 3.0), 0.5);
    engine.accept(Seconds(10.0), job(7, 0.5, 2.0));
    assert_eq!(engine.next_event(), Some(Seconds(10.5)));
    assert_eq!(brief(&run_dry(&mut engine)), [(7, 'f', 10.5), (7, 'l', 12.5)]);
    assert_eq!((engine.next_event(), engine.busy()), (None, Seconds(2.5)));
    // 0.5 s in full, 2 s at 0.55 + 0.45 / 4.
    assert!((engine.full_draw().0 - (0.5 + 2.0 * 0.6625)).abs() < 1e-12);
}

/// Two slots at speed-up 4/3, so that a = 0.5 and two decode at 1 / 1.5 each.
#[test]
fn three_requests_at_two_slots_by_hand() {
    let mut engine = SlotEngine::new(throughput(2, 4.0 / 3.0), 0.5);
    for (ticket, decode_s) in [(1, 2.0), (2, 1.0), (3, 1.0)] {
        engine.accept(Seconds(0.0), job(ticket, 1.0, decode_s));
    }
    let expected = [
        (1, 'f', 1.0),
        // While 2 is read, from 1 to 2, request 1 decodes at half its speed.
        (2, 'f', 2.0),
        // 1 s at 1 / 1.5; request 1 has 0.5 s left, and 3 gets the slot.
        (2, 'l', 3.5),
        // At half its speed again while 3 is read.
        (1, 'l', 4.5),
        (3, 'f', 4.5),
        (3, 'l', 5.5),
    ];
    for ((got, want), event) in brief(&run_dry(&mut engine)).iter().zip(expected).zip(1..) {
        assert_eq!((got.0, got.1), (want.0, want.1), "event {event}");
        assert!((got.2 - want.2).abs() < 1e-12, "event {event}: {got:?}");
    }
    // Reads until 2, two decode until 3.5, reads until 4.5, one decodes at 0.55 + 0.45 / 2 until 5.5.
    assert!((engine.full_draw().0 - (2.0 + 1.5 + 1.0 + 0.775)).abs() < 1e-12);
    assert!((engine.busy().0 - 5.5).abs() < 1e-12);
}

#[test]
fn at_a_pace_of_zero_decode_stands_still_while_a_prompt_is_read() {
    let mut engine = SlotEngine::new(throughput(2, 2.0), 0.0);
    engine.accept(Seconds(0.0), job(1, 1.0, 1.0));
    engine.accept(Seconds(1.5), job(2, 3.0, 1.0));
    assert_eq!(
        brief(&run_dry(&mut engine)),
        [(1, 'f', 1.0), (2, 'f', 4.5), (1, 'l', 5.0), (2, 'l', 5.5)],
        "two decode at full speed each: speed-up 2 at two slots"
    );
}

#[test]
fn a_job_without_prompt_or_answer_passes() {
    let mut engine = SlotEngine::new(throughput(1, 1.0), 0.5);
    engine.accept(Seconds(2.0), job(1, 0.0, 0.0));
    engine.accept(Seconds(2.0), job(2, 0.0, 1.0));
    assert_eq!(brief(&run_dry(&mut engine)), [(1, 'f', 2.0), (1, 'l', 2.0), (2, 'f', 2.0), (2, 'l', 3.0)]);
}

/// The same engine in steps of [`STEP_S`], with nothing of its structure: times of first and last tokens by ticket,
/// busy time and full draw.
fn in_small_steps(throughput: Throughput, pace: f64, arrivals: &[(f64, Job)]) -> (Vec<[f64; 2]>, [f64; 2]) {
    let mut left: Vec<[f64; 2]> =
        arrivals.iter().map(|(_, job)| [job.work.prefill.0, job.work.decode.0]).collect();
    let mut admitted = vec![false; arrivals.len()];
    let mut over = vec![[f64::NAN; 2]; arrivals.len()];
    let (mut busy_s, mut draw_s) = (0.0, 0.0);
    for step in 0_u32.. {
        let now_s = f64::from(step) * STEP_S;
        let is_in_slot = |i: usize, admitted: &[bool], over: &[[f64; 2]]| admitted[i] && over[i][1].is_nan();
        for i in 0..arrivals.len() {
            let n_running = (0..arrivals.len()).filter(|j| is_in_slot(*j, &admitted, &over)).count();
            admitted[i] |= arrivals[i].0 <= now_s && n_running < throughput.max_concurrency as usize;
        }
        let in_slots: Vec<usize> = (0..arrivals.len()).filter(|i| is_in_slot(*i, &admitted, &over)).collect();
        if over.iter().all(|times| !times[1].is_nan()) {
            return (over, [busy_s, draw_s]);
        }
        let reading = in_slots.iter().copied().find(|i| over[*i][0].is_nan());
        let decoding: Vec<usize> = in_slots.iter().copied().filter(|i| !over[*i][0].is_nan()).collect();
        busy_s += if in_slots.is_empty() { 0.0 } else { STEP_S };
        draw_s += STEP_S
            * match (reading, decoding.len()) {
                (Some(_), _) => 1.0,
                (None, 0) => 0.0,
                (None, n) => 0.55 + 0.45 * n as f64 / f64::from(throughput.max_concurrency),
            };
        let n = decoding.len() as f64;
        let per_step =
            STEP_S / (1.0 + throughput.slowdown() * (n - 1.0)) * if reading.is_some() { pace } else { 1.0 };
        for i in decoding {
            left[i][1] -= per_step;
            if left[i][1] <= 0.0 {
                over[i][1] = now_s + STEP_S;
            }
        }
        if let Some(i) = reading {
            left[i][0] -= STEP_S;
            if left[i][0] <= 0.0 {
                over[i][0] = now_s + STEP_S;
            }
        }
    }
    unreachable!("every job ends")
}

const STEP_S: f64 = 1.0 / 4096.0;

fn arrivals() -> impl Strategy<Value = Vec<(f64, Job)>> {
    proptest::collection::vec((0.0..3.0_f64, 0.0..0.6_f64, 0.0..1.5_f64), 1..9).prop_map(|mut drawn| {
        drawn.sort_by(|a, b| a.0.total_cmp(&b.0));
        let numbered = drawn.into_iter().zip(0..);
        numbered.map(|((at, prefill_s, decode_s), ticket)| (at, job(ticket, prefill_s, decode_s))).collect()
    })
}

/// Accepts each job at its time and looks whenever the engine asks for it.
fn drive(engine: &mut SlotEngine, arrivals: &[(f64, Job)]) -> Vec<EngineEvent> {
    let mut events = Vec::new();
    for (at, job) in arrivals {
        while let Some(next) = engine.next_event().filter(|next| next.0 <= *at) {
            engine.advance(next, &mut events);
        }
        engine.accept(Seconds(*at), *job);
    }
    events.append(&mut run_dry(engine));
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_is_the_limit_of_small_steps(
        arrivals in arrivals(),
        slots in 1..5_u32,
        efficiency in 0.3..1.0_f64,
        pace in 0.0..1.0_f64,
    ) {
        let throughput = throughput(slots, (efficiency * f64::from(slots)).max(1.0));
        let mut engine = SlotEngine::new(throughput, pace);
        let mut over = vec![[f64::NAN; 2]; arrivals.len()];
        for event in drive(&mut engine, &arrivals) {
            let milestone = usize::from(event.milestone == Milestone::LastToken);
            over[usize::try_from(event.ticket.0).unwrap()][milestone] = event.at.0;
        }
        let (expected, sums) = in_small_steps(throughput, pace, &arrivals);
        // Each of up to 27 changes is seen up to a step late, and its delay is handed on.
        let tolerance_s = 100.0 * STEP_S;
        for (got, want) in over.iter().flatten().zip(expected.iter().flatten()) {
            prop_assert!((got - want).abs() < tolerance_s, "{over:?} is not {expected:?}");
        }
        for (got, want) in [engine.busy().0, engine.full_draw().0].into_iter().zip(sums) {
            prop_assert!((got - want).abs() < tolerance_s, "{got} is not {want}");
        }
    }

    #[test]
    fn every_job_passes_both_milestones_in_order_and_no_more_run_than_there_are_slots(
        arrivals in arrivals(),
        slots in 1..4_u32,
    ) {
        let mut engine = SlotEngine::new(throughput(slots, 1.0_f64.max(0.6 * f64::from(slots))), 0.5);
        let events = drive(&mut engine, &arrivals);
        prop_assert!(events.windows(2).all(|pair| pair[0].at.0 <= pair[1].at.0), "{events:?}");
        let first: Vec<u64> =
            events.iter().filter(|e| e.milestone == Milestone::FirstToken).map(|e| e.ticket.0).collect();
        let in_order: Vec<u64> = (0..arrivals.len() as u64).collect();
        prop_assert_eq!(first, in_order, "prompts are read in order of arrival");
        let mut decoding = std::collections::BTreeSet::new();
        for event in &events {
            match event.milestone {
                Milestone::FirstToken => prop_assert!(decoding.insert(event.ticket)),
                Milestone::LastToken => prop_assert!(decoding.remove(&event.ticket)),
            }
            prop_assert!(decoding.len() <= slots as usize);
        }
        prop_assert!(decoding.is_empty());
        prop_assert!(engine.full_draw().0 <= engine.busy().0 + 1e-9);
        prop_assert!(engine.full_draw().0 >= DRAW_FLOOR * engine.busy().0 - 1e-9);
    }

    /// To the bit: were a look in between to move what comes next by a rounding error, two drivers' looks at a busy
    /// engine could chase it for ever.
    #[test]
    fn looking_in_between_changes_nothing(arrivals in arrivals(), slots in 1..4_u32, shares in proptest::array::uniform3(0.0..1.0_f64)) {
        let throughput = throughput(slots, 1.0_f64.max(0.7 * f64::from(slots)));
        let (mut seldom, mut often) = (SlotEngine::new(throughput, 0.5), SlotEngine::new(throughput, 0.5));
        let expected = drive(&mut seldom, &arrivals);
        let mut events = Vec::new();
        let mut now_s = 0.0;
        let look_until = |often: &mut SlotEngine, events: &mut Vec<EngineEvent>, now_s: &mut f64, until_s: f64| {
            while let Some(next) = often.next_event().filter(|next| next.0 <= until_s) {
                for share in shares {
                    often.advance(Seconds(*now_s + share * (next.0 - *now_s)).min(Seconds(next.0.next_down())), events);
                    prop_assert_eq!(often.next_event(), Some(next));
                }
                often.advance(next, events);
                *now_s = next.0;
            }
            Ok(())
        };
        for (at, job) in &arrivals {
            look_until(&mut often, &mut events, &mut now_s, *at)?;
            often.accept(Seconds(*at), *job);
            now_s = *at;
        }
        look_until(&mut often, &mut events, &mut now_s, f64::INFINITY)?;
        prop_assert_eq!(&events, &expected);
        prop_assert_eq!((often.busy(), often.full_draw()), (seldom.busy(), seldom.full_draw()));
    }
}
