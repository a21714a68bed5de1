//! The books over time, on a paused clock.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, advance};

use super::{Ending, Realised, SLICES_MAX, Switchback, Trial};
use crate::domain::{DestinationOrd, ObjectiveScales, Weights};
use crate::planning::Alternation;
use crate::profiler::power::{EnergySource, Settled};
use crate::profiler::quality::feedback::{AnsweredRequest, Given, KeptPrompt};
use crate::units::{Joules, Quality, Seconds, Usd};

const D0: DestinationOrd = DestinationOrd(0);
const D1: DestinationOrd = DestinationOrd(1);
/// Slices of ten seconds, of which the first two do not count.
const TURNS: Alternation = Alternation { slice: Seconds(10.0), washout: 0.2, n_policies: 2, seed: 1 };
const POLICIES: [&str; 2] = ["memetic", "greedy"];
const SCALES: ObjectiveScales =
    ObjectiveScales { quality: 1.0, cost: Usd(1.0), energy: Joules(100.0), time: Seconds(1.0) };
const HURRIED: Weights = Weights { quality: 0.0, cost: 0.0, energy: 0.5, time: 0.5 };

fn books() -> Switchback {
    Switchback::new(TURNS, Arc::from(POLICIES), Instant::now())
}

fn answered(latency_s: f64, joules: f64) -> Ending {
    Ending::Answered(Realised {
        quality: Quality(0.8),
        usd: Usd(0.01),
        joules: Joules(joules),
        latency: Seconds(latency_s),
    })
}

async fn wait(seconds: f64) {
    advance(Duration::from_secs_f64(seconds)).await;
}

fn begin(books: &Switchback, id: &str) -> Trial {
    books.begin(&id.into(), HURRIED)
}

/// A request that takes no time of the clock.
fn serve(books: &Switchback, id: &str, ending: Ending) {
    let mut trial = begin(books, id);
    let turn = books.shared.alternation.at(books.now()).policy;
    trial.placed(POLICIES[turn]);
    trial.end(&ending, Some(D0));
}

fn report(books: &Switchback) -> Value {
    serde_json::to_value(books.report(SCALES)).unwrap()
}

/// What is reported of the policy whose turn slice `number` is.
fn of_slice(report: &Value, number: u64) -> &Value {
    &report["policies"][TURNS.nth(number).policy]
}

fn is(value: &Value, expected: f64) -> bool {
    value.as_f64().is_some_and(|value| (value - expected).abs() < 1e-9)
}

#[tokio::test(start_paused = true)]
async fn what_arrives_during_the_wash_out_counts_for_nobody() {
    let books = books();
    serve(&books, "a", answered(1.0, 100.0));
    let long = begin(&books, "b");
    wait(1.99).await;
    serve(&books, "c", answered(1.0, 100.0));
    wait(0.02).await;
    serve(&books, "d", answered(3.0, 200.0));
    serve(&books, "e", Ending::Failed);
    serve(&books, "f", Ending::Left);
    serve(&books, "g", Ending::Void);
    drop(begin(&books, "h"));
    long.end(&answered(9.0, 100.0), Some(D0));
    let report = report(&books);
    let policy = of_slice(&report, 0);
    assert_eq!(
        (&policy["answered"], &policy["failed"], &policy["client_gone"]),
        (&json!(1), &json!(1), &json!(1))
    );
    // (200 / 100 + 3) / 2.
    assert!(is(&policy["figures"]["objective"]["mean"], 2.5), "{policy}");
    assert!(is(&policy["figures"]["failed_share"]["mean"], 0.5), "{policy}");
    assert!(is(&policy["joules"], 200.0) && is(&policy["usd"], 0.01), "{policy}");
    let p95 = policy["latency_p95_s"].as_f64().unwrap();
    assert!((p95 / 3.0).ln().abs() < 0.05, "{p95}");
    assert_eq!(report["now"]["is_counted"], true);
    assert_eq!(report["slices"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&report["slices"][0]["is_complete"], &report["slices"][0]["carried_over"]),
        (&json!(false), &json!(0))
    );
    assert_eq!(policy["figures"]["objective"]["n_slices"], 0, "a slice that goes on is no sample");
}

#[tokio::test(start_paused = true)]
async fn a_request_counts_where_it_arrived_and_a_slice_once_all_of_it_is_over() {
    let books = books();
    wait(9.0).await;
    let (mut held, mut running) = (begin(&books, "held"), begin(&books, "running"));
    let (first, second) = (TURNS.nth(0).policy, TURNS.nth(1).policy);
    assert_ne!(first, second, "the seed is chosen so");
    running.placed(POLICIES[first]);
    wait(2.0).await;
    held.placed(POLICIES[second]);
    wait(2.0).await;
    serve(&books, "next", answered(1.0, 0.0));
    let before = report(&books);
    assert_eq!(
        (&before["slices"][0]["is_complete"], &before["slices"][1]["carried_over"]),
        (&json!(false), &json!(2))
    );
    running.end(&answered(4.0, 0.0), Some(D0));
    held.end(&answered(4.0, 0.0), Some(D0));
    let report = report(&books);
    assert_eq!(report["slices"][0]["is_complete"], true);
    assert_eq!((&of_slice(&report, 0)["answered"], &of_slice(&report, 0)["crossed"]), (&json!(2), &json!(1)));
    assert_eq!((&of_slice(&report, 1)["answered"], &of_slice(&report, 1)["crossed"]), (&json!(1), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn policies_are_compared_within_rounds() {
    let books = books();
    // Rounds get slower; the second policy takes 1, 2 and 3 seconds longer than the first.
    for round in 0..3_u32 {
        for turn in 0..2 {
            wait(5.0).await;
            let policy = TURNS.nth(u64::from(2 * round + turn)).policy;
            let more = f64::from(round + 1) * policy as f64;
            serve(&books, &format!("{round}.{turn}"), answered(10.0 * f64::from(round + 1) + more, 0.0));
            wait(5.0).await;
        }
    }
    let report = report(&books);
    let of = |policy: usize| &report["policies"][policy]["figures"]["latency_s"];
    assert!(is(&of(0)["mean"], 20.0) && is(&of(0)["slice_mean"], 20.0), "{report}");
    assert_eq!(of(0)["n_slices"], 3);
    // Standard error 10 / √3, t of two degrees of freedom 4.303.
    assert!(is(&of(0)["slice_ci95"][1], 20.0 + 4.303 * 10.0 / 3.0_f64.sqrt()), "{}", of(0));
    let pair = &report["against_first"][0];
    assert_eq!((&pair["policy"], &pair["reference"]), (&json!("greedy"), &json!("memetic")));
    let difference = &pair["figures"]["latency_s"];
    assert!(is(&difference["difference"], 2.0), "{difference}");
    assert!(
        is(&difference["ci95"][0], 2.0 - 4.303 / 3.0_f64.sqrt()),
        "what rounds have in common is gone: {difference}"
    );
    assert_eq!(difference["n_rounds"], 3);
    assert!(is(&pair["figures"]["objective"]["difference"], 1.0), "half of it, by the weights");
}

#[tokio::test(start_paused = true)]
async fn what_a_meter_says_takes_the_place_of_the_model() {
    let books = books();
    wait(3.0).await;
    let settled = |id: &str, destination, joules, source| {
        books.settled(&Settled { request_id: id.into(), destination, joules: Joules(joules), source });
    };
    let joules = || of_slice(&report(&books), 0)["joules"].as_f64().unwrap();
    let trial = begin(&books, "a");
    // An endpoint that failed it drew something as well.
    settled("a", D1, 7.0, EnergySource::Measured);
    trial.end(&answered(1.0, 100.0), Some(D0));
    assert!((joules() - 107.0).abs() < 1e-9);
    settled("a", D0, 40.0, EnergySource::Measured);
    assert!((joules() - 47.0).abs() < 1e-9);
    settled("a", D0, 40.0, EnergySource::Measured);
    settled("b", D0, 40.0, EnergySource::Measured);
    assert!((joules() - 47.0).abs() < 1e-9, "told twice, or of nobody known");

    begin(&books, "c").end(&answered(1.0, 3.0), Some(D0));
    settled("c", D0, 3.0, EnergySource::Modelled);
    begin(&books, "d").end(&Ending::Failed, Some(D0));
    settled("d", D0, 9.0, EnergySource::Measured);
    assert!((joules() - 50.0).abs() < 1e-9);
    assert!(books.books().open.is_empty());
    let of = report(&books);
    assert!(is(&of["slices"][0]["figures"]["joules_per_request"], 25.0), "{of}");
    // Half of (47 / 100 + 1) and of (3 / 100 + 1), on average.
    assert!(is(&of["slices"][0]["figures"]["objective"], 0.625), "{of}");
}

#[tokio::test(start_paused = true)]
async fn one_id_twice_at_once_is_told_apart() {
    let books = books();
    wait(3.0).await;
    let (first, second) = (begin(&books, "same"), begin(&books, "same"));
    second.end(&answered(1.0, 1.0), Some(D0));
    first.end(&answered(1.0, 10.0), Some(D0));
    books.settled(&Settled {
        request_id: "same".into(),
        destination: D0,
        joules: Joules(20.0),
        source: EnergySource::Measured,
    });
    assert!(is(&of_slice(&report(&books), 0)["joules"], 21.0));
    assert!(books.books().open.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_books_are_bounded() {
    let books = books();
    for n in 0..SLICES_MAX + 3 {
        wait(5.0).await;
        serve(&books, &n.to_string(), answered(1.0, 1.0));
        wait(5.0).await;
    }
    let kept = books.books();
    assert_eq!((kept.slices.len(), kept.slices[0].slice.number), (SLICES_MAX, 3));
    assert!(kept.open.len() <= 2, "nobody told of them in time: {}", kept.open.len());
    assert_eq!(kept.totals.iter().map(|(tally, _)| tally.answered).sum::<u64>(), SLICES_MAX as u64 + 3);
    drop(kept);
    assert_eq!(report(&books)["slices"].as_array().unwrap().len(), SLICES_MAX);
}

#[tokio::test(start_paused = true)]
async fn what_clients_say_counts_for_the_policy_that_was_asked() {
    let books = books();
    let say = |trial: &Trial, score: f64, previous: Option<f64>| {
        let names = (Arc::clone(&trial.id), None);
        let prompt = KeptPrompt::of(&"".into());
        let answered = AnsweredRequest::new(names, (D0, Quality(0.8)), prompt, trial.slice());
        let previous = previous.map(Quality);
        let answered = Arc::new(answered);
        books.scored(&Given { answered, score: Quality(score), previous, label: None, drift: None });
    };
    let washed_out = begin(&books, "a");
    wait(3.0).await;
    let (first, second) = (begin(&books, "b"), begin(&books, "c"));
    wait(10.0).await;
    let next = begin(&books, "d");
    // Long after the slice they were asked for in.
    wait(10.0).await;
    say(&washed_out, 0.0, None);
    say(&first, 1.0, None);
    say(&second, 0.5, None);
    say(&first, 0.25, Some(1.0));
    say(&next, 1.0, None);
    let report = report(&books);
    for (slice, mean, scored) in [(0, 0.375, 2), (1, 1.0, 1)] {
        let policy = of_slice(&report, slice);
        assert!(is(&policy["figures"]["feedback_score"]["mean"], mean), "{policy}");
        assert_eq!(policy["scored"], scored);
        let slice = usize::try_from(slice).unwrap();
        assert!(is(&report["slices"][slice]["figures"]["feedback_score"], mean), "{report}");
    }
}
