//! Reading and writing problem files: faults with their places, exact round trips.

use proptest::prelude::*;
use rand::RngExt;
use serde_json::{Value, json};

use crate::domain::{DestinationOrd, NodeClass, Weights};
use crate::problem_file::{ProblemFile, from_reader, to_json};
use crate::routing::completion::timeline::{FifoTimeline, Timeline};
use crate::routing::policy::rng_for;
use crate::routing::problem::CELLS_MAX;
use crate::routing::testing::{context, random_sum_problem};
use crate::routing::{Evaluator, Objective, Problem, TermRange};

fn example() -> Value {
    json!({
        "schema": "cema-problem/1",
        "name": "example",
        "objective": {
            "weights": {"quality": 0.25, "cost": 0.25, "energy": 0.25, "time": 0.25},
            "bounds": {"quality": [0.1, 0.6], "cost": [1.0, 3.0], "energy": [10.0, 30.0], "time": [1.0, 4.0]},
        },
        "destinations": [
            {"id": "a/m", "class": "cloud", "backlog_s": 0.5, "batch_speedup": 2.0, "network_s": 0.04},
            {"id": "b/org/m", "backlog_s": 0.0, "batch_speedup": 1.0, "network_s": 0.01},
        ],
        "quality_loss": [[0.1, 0.3], [0.2, 0.4], [0.1, 0.5]],
        "cost_usd": [[1.0, 0.5], [1.0, 0.5], [1.0, 0.5]],
        "energy_j": [[10.0, 5.0], [10.0, 5.0], [10.0, 5.0]],
        "service_s": [[1.0, 2.0], [1.5, 2.5], [0.5, 1.0]],
        "reference": {"method": "anything", "objective_optimum": 0.1},
    })
}

/// The example by time term `sum`: one slot that is taken for 2 s, and Eq. 4 at half speed behind 1 s.
fn sum_example() -> Value {
    let mut file = example();
    file["objective"]["weights"] = json!({"quality": 0, "cost": 0, "energy": 0, "time": 1});
    file["objective"]["bounds"]["time"] = json!([0.0, 8.0]);
    file["sum"] = json!({
        "others_time_weight": 0.5,
        "destinations": [
            {"rtt_s": 0.5, "price_per_s": 0.375, "timeline": {
                "model": "slots", "slots": 1, "batch_speedup": 1.0,
                "running": 1, "decode_s": 2.0, "soonest_s": 2.0,
            }},
            {"rtt_s": 0.25, "timeline": {"model": "fifo", "backlog_s": 1.0, "batch_speedup": 2.0, "pace": 0.5}},
        ],
        "prefill_s": [[1.0, 0.5], [0.0, 1.0], [0.0, 0.0]],
        "decode_s": [[1.0, 1.5], [3.0, 2.0], [0.5, 0.5]],
    });
    file
}

fn read(value: &Value) -> Result<ProblemFile, String> {
    from_reader(value.to_string().as_bytes()).map_err(|error| error.to_string())
}

/// The message for the example with one value replaced.
fn refusal(pointer: &str, value: Value) -> String {
    refusal_of(example(), pointer, value)
}

fn refusal_of(mut file: Value, pointer: &str, value: Value) -> String {
    *file.pointer_mut(pointer).unwrap() = value;
    read(&file).unwrap_err()
}

#[test]
fn reads_what_the_format_says() {
    let file = read(&example()).unwrap();
    assert_eq!((file.problem.n_requests(), file.problem.n_destinations()), (3, 2));
    assert_eq!(file.problem.destination(DestinationOrd(0)).class, Some(NodeClass::Cloud));
    assert_eq!(file.problem.destination(DestinationOrd(1)).class, None);
    assert_eq!(file.problem.destination(DestinationOrd(1)).id.as_str(), "b/org/m");
    assert_eq!(file.objective.bounds().time, TermRange { min: 1.0, max: 4.0 });
    assert!((file.problem.service(1, DestinationOrd(1)).get() - 2.5).abs() < 1e-12);
    assert!(file.problem.is_legal(2, DestinationOrd(1)));
}

#[test]
fn a_problem_written_and_read_again_has_the_same_objective_to_the_last_bit() {
    let mut tables = read(&example()).unwrap().problem.tables().clone();
    tables.weights[1] = Weights { quality: 0.7, cost: 0.1, energy: 0.1, time: 0.1 };
    tables.legal[0] = false;
    tables.first_request_number = 17;
    tables.length_tokens = vec![3.0, 1.0, 2.0];
    tables.destinations[0].cap = Some(2);
    tables.service_s[0] = 1.0 / 3.0;
    let problem = Problem::new(tables).unwrap();
    let bounds = *read(&example()).unwrap().objective.bounds();
    let objective = Objective::with_bounds_and_backlog_term(&problem, bounds);
    let text = to_json("live", &problem, &objective).unwrap();
    let again = from_reader(text.as_bytes()).unwrap();
    let x = [DestinationOrd(1), DestinationOrd(0), DestinationOrd(0)];
    let value = Evaluator::new(&problem, &objective).objective(&x);
    let value_again = Evaluator::new(&again.problem, &again.objective).objective(&x);
    assert_eq!(value.to_bits(), value_again.to_bits());
    assert_eq!(again.problem.tables().first_request_number, 17);
    assert_eq!(again.problem.tables().length_tokens, [3.0, 1.0, 2.0]);
    assert!(!again.problem.is_legal(0, DestinationOrd(0)));
    let caps = again.problem.destinations().iter().map(|load| load.cap);
    assert_eq!(caps.collect::<Vec<_>>(), [Some(2), None]);
}

#[test]
fn bad_shapes_name_the_table_and_the_row() {
    let ragged = refusal("/cost_usd", json!([[1.0, 0.5], [1.0], [1.0, 0.5]]));
    assert_eq!(ragged, "cost_usd is ragged or of the wrong shape: row 1 has 1 entries, row 0 has 2");
    let short = refusal("/energy_j", json!([[10.0, 5.0]]));
    assert!(short.starts_with("energy_j") && short.contains("1 rows where service_s has 3"), "{short}");
    let narrow = refusal("/quality_loss", json!([[0.1], [0.2], [0.3]]));
    assert!(narrow.starts_with("quality_loss") && narrow.contains("1 columns for 2"), "{narrow}");
    let mut file = example();
    file["legal"] = json!([[true, true], [false, false], [true, true]]);
    assert_eq!(read(&file).unwrap_err(), "request 1 has no legal destination");
}

#[test]
fn bad_values_name_the_cell() {
    let negative = refusal("/service_s/2/1", json!(-1.0));
    assert_eq!(negative, "service_s of request 2 at b/org/m is -1; it must be finite and not negative");
    let speedup = refusal("/destinations/0/batch_speedup", json!(0.0));
    assert!(speedup.contains("batch_speedup of destination a/m"), "{speedup}");
    let weights = refusal("/objective/weights", json!({"quality": 0, "cost": 0, "energy": 0, "time": 0}));
    assert!(weights.contains("weights of request 0"), "{weights}");
    let bounds = refusal("/objective/bounds/energy", json!([30.0, 10.0]));
    assert!(bounds.starts_with("objective.bounds.energy is [30, 10]"), "{bounds}");
    let same_id = refusal("/destinations/1/id", json!("a/m"));
    assert!(same_id.contains("a/m occurs twice"), "{same_id}");
    let class = refusal("/destinations/0/class", json!("moon"));
    assert!(class.contains("\"moon\" is unknown"), "{class}");
    assert!(refusal("/schema", json!("cema-problem/2")).contains("cema-problem/2"));
}

#[test]
fn caps_that_leave_too_few_places_name_who_competes() {
    let mut file = example();
    file["legal"] = json!([[true, true], [true, false], [true, false]]);
    file["destinations"][0]["cap"] = json!(1);
    let message = read(&file).unwrap_err();
    let want = "2 requests, request 2 among them, may only go to a/m, where the caps leave 1 places; raise a cap \
                or split the batch";
    assert_eq!(message, want);
    file["destinations"][0]["cap"] = json!(2);
    assert!(read(&file).is_ok());
    file["destinations"][0]["cap"] = json!(-1);
    assert!(read(&file).is_err());
}

#[test]
fn what_is_not_the_format_is_refused_with_its_place() {
    let mut file = example();
    file["surprise"] = json!(1);
    assert!(read(&file).unwrap_err().contains("unknown field `surprise`"));
    let text = example().to_string().replace("[0.1,0.3]", "[NaN,0.3]");
    let message = from_reader(text.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("column") && message.contains("JSON has no NaN"), "{message}");
    assert!(refusal("/energy_j/0/0", json!("much")).contains("invalid type: string"));
    assert!(from_reader(&b""[..]).is_err());
}

#[test]
fn empty_and_oversized_problems_are_refused() {
    let mut file = example();
    for table in ["quality_loss", "cost_usd", "energy_j", "service_s"] {
        file[table] = json!([]);
    }
    assert_eq!(read(&file).unwrap_err(), "the problem has no requests");
    assert_eq!(refusal("/destinations", json!([])), "the problem has no destinations");
    let row = format!("[{}1]", "1,".repeat(CELLS_MAX / 1024));
    let table = format!("[{}]", vec![row; 1024].join(","));
    let text = example().to_string().replace("[[1.0,0.5],[1.0,0.5],[1.0,0.5]]", &table);
    let message = from_reader(text.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("more than 4194304 cells"), "{message}");
}

#[test]
fn a_sum_is_valued_by_its_timelines() {
    let file = read(&sum_example()).unwrap();
    let value = |x: [u32; 3]| {
        let x = x.map(DestinationOrd);
        Evaluator::new(&file.problem, &file.objective).objective(&x)
    };
    // At a behind 2 s: 2 + 1 + 1, then 4 + 3, then 7 + 0.5, 0.5 s of network each; 5.5 s at a price of 0.375 · 0.5/3.
    assert!((value([0, 0, 0]) - (20.0 / 8.0 + 0.34375)).abs() < 1e-12);
    // At b: alone 4 s, 6 s and 1 s, which with 1 s there already end at 4 s, at 1 + 2 + 3 and at 1 + 2 + 3 + 0.5.
    assert!((value([1, 1, 1]) - (4.25 + 6.25 + 6.75) / 8.0).abs() < 1e-12);
}

#[test]
fn a_bad_sum_names_the_place() {
    let refused = |pointer: &str, value: Value| refusal_of(sum_example(), &format!("/sum{pointer}"), value);
    let (slots, fifo) = ("/destinations/0/timeline", "/destinations/1/timeline");
    for (pointer, value, want) in [
        (
            format!("{slots}/slots"),
            0.0,
            "timeline.slots of destination a/m is 0; it must be finite and at least 1",
        ),
        (format!("{slots}/batch_speedup"), 0.5, "timeline.batch_speedup of destination a/m is 0.5"),
        (format!("{slots}/soonest_s"), -1.0, "timeline.soonest_s of destination a/m is -1"),
        (format!("{slots}/decode_s"), -1.0, "timeline.decode_s of destination a/m is -1"),
        (
            format!("{fifo}/pace"),
            0.0,
            "timeline.pace of destination b/org/m is 0; it must be finite and positive",
        ),
        (format!("{fifo}/backlog_s"), -2.0, "timeline.backlog_s of destination b/org/m is -2"),
        ("/destinations/0/price_per_s".into(), -0.5, "price_per_s of destination a/m is -0.5"),
        ("/destinations/1/rtt_s".into(), -0.5, "rtt_s of destination b/org/m is -0.5"),
    ] {
        let value = if pointer.ends_with("/slots") { json!(0) } else { json!(value) };
        let message = refused(&pointer, value);
        assert!(message.starts_with(&format!("sum.destinations[].{want}")), "{message}");
    }
    let cell = refused("/decode_s/2/1", json!(-1.0));
    assert_eq!(cell, "sum.decode_s of request 2 at b/org/m is -1; it must be finite and not negative");
    let work = refusal_of(sum_example(), "/sum", {
        let mut sum = sum_example()["sum"].take();
        (sum["prefill_s"][0][0], sum["decode_s"][0][0]) = (json!(f64::MAX), json!(f64::MAX));
        sum
    });
    assert!(work.starts_with("sum.work of request 0 at a/m is inf"), "{work}");
    let weight = refused("/others_time_weight", json!(-0.25));
    assert_eq!(weight, "sum.others_time_weight is -0.25; it must be finite and not negative");
    let few = refused("/destinations", json!([]));
    assert_eq!(few, "sum.destinations is ragged or of the wrong shape: 0 entries for 2 destinations");
    let short = refused("/prefill_s", json!([[1.0, 0.5]]));
    assert!(short.starts_with("sum.prefill_s") && short.contains("1 rows where service_s has 3"), "{short}");
    assert!(refused(&format!("{fifo}/model"), json!("lifo")).contains("unknown variant `lifo`"));
    assert!(refused(slots, json!({"model": "fifo", "slots": 1})).contains("unknown field `slots`"));
    assert!(refused("/destinations/0", json!({"rtt_s": 0.1})).contains("missing field `timeline`"));
}

/// A random problem by time term `sum` in which everything differs that can.
fn varied_sum_problem(seed: u64, n: usize, m: usize) -> Problem {
    let mut tables = random_sum_problem(seed, n, m).tables().clone();
    let mut rng = rng_for(seed, 1);
    tables.transfer_s.iter_mut().for_each(|transfer_s| *transfer_s = rng.random());
    tables.weights.iter_mut().for_each(|weights| weights.time = rng.random());
    let sum = tables.sum.as_mut().unwrap();
    sum.others_time_weight = rng.random();
    sum.rtt_s.iter_mut().for_each(|rtt_s| *rtt_s = rng.random());
    for timeline in &mut sum.timelines {
        match timeline {
            Timeline::Slots(slots) if rng.random_bool(0.5) => slots.pace = 0.1 + rng.random::<f64>(),
            _ => {
                let batch_speedup = 1.0 + rng.random::<f64>();
                let pace = 0.1 + rng.random::<f64>();
                *timeline = Timeline::Fifo(FifoTimeline { busy_s: rng.random(), batch_speedup, pace });
            }
        }
    }
    Problem::new(tables).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_sum_written_and_read_again_is_the_same(
        seed in any::<u64>(), n in 1..10_usize, m in 1..6_usize, is_batch in any::<bool>(),
    ) {
        let problem = varied_sum_problem(seed, n, m);
        let objective = if is_batch {
            Objective::batch(&problem)
        } else {
            Objective::stationary(&problem, &context(Vec::new()).scales)
        };
        let text = to_json("sum", &problem, &objective).unwrap();
        let again = from_reader(text.as_bytes()).unwrap();
        prop_assert_eq!(&to_json("sum", &again.problem, &again.objective).unwrap(), &text);
        let sums = [&problem, &again.problem].map(|problem| problem.sum().unwrap());
        prop_assert_eq!(&sums[0].timelines, &sums[1].timelines);
        let mut rng = rng_for(seed, 2);
        for _ in 0..8 {
            let x: Vec<_> = (0..n).map(|_| DestinationOrd(rng.random_range(0..m as u32))).collect();
            let value = Evaluator::new(&problem, &objective).objective(&x);
            let value_again = Evaluator::new(&again.problem, &again.objective).objective(&x);
            prop_assert_eq!(value.to_bits(), value_again.to_bits());
        }
    }
}
