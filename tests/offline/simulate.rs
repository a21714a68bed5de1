//! `simulate` end to end: its library by hand-worked values and laws, its command line by what it prints.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use crate::embedder_files::embedder_or_skip;
use cema_router::config::Scenario;
use cema_router::domain::{
    CachedPrefix, Capabilities, Constraints, DestinationOrd, ModelTarget, Prediction, QualitySource,
    RoutingRequest, Weights,
};
use cema_router::planning::{WindowClose, WindowOrder, WindowParams};
use cema_router::routing::{CompletionModel, CostModels, EnergyModel, ObjectiveMode, PolicyParams, TimeTerm};
use cema_router::simulate::batches::{self, BatchOutcome, BatchParams};
use cema_router::simulate::engine::EngineKind;
use cema_router::simulate::live::{self, DEADLINE, Hooks, LiveParams, LiveRun, Record, Visit};
use cema_router::simulate::live_outcome::LiveTruth;
use cema_router::simulate::methods::DEFAULT_METHODS;
use cema_router::simulate::{Method, SimulatedRequest, Workload};
use cema_router::units::{Bytes, Quality, Seconds, Tokens};
use serde_json::Value;

/// Two nodes: `big` in the cloud is good, dear and slow, `small` at the edge is the opposite. Prompts of 90
/// tokens and answers of 10 take 1 s at `big` (200 J, 0.001 USD) and 0.5 s at `small` (10 J, free).
const TINY: &str = "
title: tiny
routing: {completion: fifo, time: makespan, energy_model: paper}
nodes:
  - name: c
    class: cloud
    power: {board_watts: 200, utilisation: 1, idle_watts: 0}
    network: {rtt_ms: 100, joules_per_mb: 0, uplink_mbps: 1000000, downlink_mbps: 1000000}
    models: [{name: big, parameters_b: 5, tflops: {single: 1}, price: {prompt_usd_per_mtok: 10, completion_usd_per_mtok: 10}}]
  - name: e
    class: edge
    power: {board_watts: 20, utilisation: 1, idle_watts: 0}
    network: {rtt_ms: 0, joules_per_mb: 0, uplink_mbps: 1000000, downlink_mbps: 1000000}
    models: [{name: small, parameters_b: 5, tflops: {single: 2}}]
";

const COSTS: CostModels =
    CostModels { completion: CompletionModel::Fifo, time: TimeTerm::Makespan, energy: EnergyModel::Paper };

fn believed([big, small]: [f64; 2]) -> Arc<Prediction> {
    Arc::new(Prediction {
        quality: vec![Quality(big), Quality(small)],
        completion_tokens: vec![Tokens(10.0); 2],
        cluster_error: Vec::new(),
        source: QualitySource::Store,
    })
}

/// `n` requests that the router believes to be 0.9 and 0.3 good; truly they are 1 and 0.
fn tiny(n: usize) -> Workload {
    let scenario = Scenario::parse(TINY).unwrap();
    let request = |i: usize| RoutingRequest {
        id: format!("r{i}").into(),
        target: ModelTarget::Any,
        needs: Capabilities::CHAT,
        prompt_tokens: Tokens(90.0),
        longest_prompt: Tokens(90.0),
        cached: CachedPrefix::NOWHERE,
        max_completion_tokens: None,
        choices: 1,
        upload: Bytes(0.0),
        constraints: Constraints::default(),
        weights: None,
        time: None,
    };
    let row = |i| SimulatedRequest {
        request: Arc::new(request(i)),
        prediction: believed([0.9, 0.3]),
        truth: believed([1.0, 0.0]),
        cluster: 0,
    };
    Workload::new(scenario.destinations.into(), (0..n).map(row).collect(), vec![0.1, 0.7]).unwrap()
}

fn methods(names: &[&str]) -> Vec<Method> {
    let mut params = PolicyParams::default();
    params.memetic.evaluations_max = Some(2_000);
    names.iter().map(|name| Method::named(name, params).unwrap()).collect()
}

fn no_clock() -> Seconds {
    Seconds::ZERO
}

fn run_batches(workload: &Workload, names: &[&str], batch_size: usize, batches: usize) -> Vec<BatchOutcome> {
    let params = BatchParams { batch_size, batches, seed: 7, costs: COSTS, weights: Weights::EQUAL };
    let mut n_batches = 0;
    let outcomes =
        batches::run(workload, &methods(names), &params, &no_clock, &mut || n_batches += 1).unwrap();
    assert_eq!(n_batches, batches);
    outcomes
}

#[track_caller]
fn assert_close(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-3, "{got} is not {want}");
}

#[test]
fn two_requests_worked_by_hand() {
    let outcomes = run_batches(&tiny(2), &["cloud_only", "edge_only", "round_robin"], 2, 1);
    let [cloud, edge, turns] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    // Two requests of 1 s at the cloud after one another, then the round trip; 100 tokens cost 0.001 USD.
    assert_close(cloud.truth.raw.time, 2.1);
    assert_close(cloud.truth.raw.energy, 400.0);
    assert_close(cloud.truth.raw.cost, 0.002);
    assert_close(cloud.truth.raw.quality, 0.0);
    assert_close(cloud.predicted.raw.quality, 0.1);
    assert_close(edge.truth.raw.time, 1.0);
    assert_close(edge.truth.raw.energy, 20.0);
    // One each: the cloud's is the last to finish.
    assert_close(turns.truth.raw.time, 1.1);
    assert_close(turns.truth.raw.energy, 210.0);
    assert_close(turns.truth.raw.quality, 0.5);
    // Cloud is worst in three terms and best in one, edge the opposite; turns are half way but in time.
    assert_close(cloud.truth.objective, 0.75);
    assert_close(edge.truth.objective, 0.25);
    assert_close(turns.truth.normalised.time, 0.1 / 1.1);
    assert_close(turns.truth.objective, 0.25 * (0.5 + 0.5 + 0.5 + 0.1 / 1.1));
}

#[test]
fn normalised_terms_span_zero_to_one_and_make_up_the_objective() {
    for outcome in run_batches(&tiny(12), &DEFAULT_METHODS, 6, 4) {
        for judged in [outcome.predicted, outcome.truth] {
            let n = judged.normalised;
            let terms = [n.quality, n.cost, n.energy, n.time];
            assert!(terms.iter().all(|term| (0.0..=1.0).contains(term)), "{outcome:?}");
            assert!((judged.objective - terms.iter().sum::<f64>() / 4.0).abs() < 1e-9, "{outcome:?}");
        }
    }
}

#[test]
fn the_straw_men_do_what_their_names_say() {
    let outcomes = run_batches(&tiny(8), &["quality_only", "per_request", "memetic"], 8, 1);
    let [quality_only, per_request, memetic] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert_close(quality_only.truth.raw.quality, 0.0);
    // Alone, `small` is better in money, energy and time; each request goes there, whoever else does.
    assert_close(per_request.truth.raw.time, 4.0);
    assert!(memetic.solver_objective <= per_request.solver_objective + 1e-12, "{outcomes:?}");
}

#[test]
fn copies_are_destinations_of_their_own() {
    let twice = tiny(2).replicated(2);
    let ids: Vec<_> = twice.destinations().iter().map(|d| d.id.to_string()).collect();
    assert_eq!(ids, ["c/big", "e/small", "c/big#2", "e/small#2"]);
    let edge = &run_batches(&twice, &["edge_only"], 2, 1)[0];
    assert_close(edge.truth.raw.time, 0.5);
}

fn live_params(close: WindowClose) -> LiveParams {
    let window = WindowParams {
        max_wait: Seconds(1.0),
        max_requests: 4,
        close,
        max_hold: None,
        max_overtakes: 64,
        any_slot_after: None,
        finish_target: None,
        order: WindowOrder::Fifo,
    };
    LiveParams {
        window,
        objective: ObjectiveMode::Stationary,
        costs: COSTS,
        engine: EngineKind::Fifo,
        weights: Weights::EQUAL,
        seed: 7,
    }
}

fn with_slots(close: WindowClose) -> LiveParams {
    let costs = CostModels { completion: CompletionModel::Slots, time: TimeTerm::Sum, ..COSTS };
    LiveParams { costs, engine: EngineKind::Slots, ..live_params(close) }
}

fn run_live(workload: &Workload, name: &str, visits: &[Visit], params: &LiveParams) -> (LiveRun, usize) {
    let mut n_done = 0;
    let mut on_done = || n_done += 1;
    let mut hooks = Hooks { clock: &no_clock, on_done: &mut on_done };
    let run = live::run(workload, visits, &methods(&[name])[0], params, &mut hooks).unwrap();
    (run, n_done)
}

#[test]
fn one_request_alone_takes_its_service_and_the_round_trip() {
    let visits = [Visit { at: Seconds(3.0), row: 0 }];
    let (run, _) = run_live(&tiny(1), "cloud_only", &visits, &live_params(WindowClose::Fixed));
    let record = run.records[0].unwrap();
    // 0.05 s there, 0.9 s of prompt, 0.1 s of answer, 0.05 s back. Per-request policies have no window.
    assert_close(record.latency.get(), 1.1);
    assert_close(record.first_token.get(), 1.0);
    assert_close(record.held.get(), 0.0);
    assert_close(run.busy[0].get() + run.busy[1].get(), 1.0);
    let (run, _) = run_live(&tiny(1), "memetic", &visits, &live_params(WindowClose::Fixed));
    assert_close(run.records[0].unwrap().held.get(), 1.0);
    // The same in fixed windows by its name, whatever windows the scenario has.
    for (name, held_s) in [("memetic_fixed", 1.0), ("memetic", 0.0)] {
        let (run, _) = run_live(&tiny(1), name, &visits, &live_params(WindowClose::Adaptive));
        assert_close(run.records[0].unwrap().held.get(), held_s);
    }
}

#[test]
fn a_policy_that_binds_early_holds_nothing() {
    let scenario = Scenario::parse(&TINY.replace("{single: 1}", "{single: 1}, max_concurrency: 1")).unwrap();
    let rows = tiny(1).requests().to_vec();
    let workload = Workload::new(scenario.destinations.into(), rows, vec![0.1, 0.7]).unwrap();
    let visits = [Visit { at: Seconds(0.0), row: 0 }; 3];
    let held_s = |name: &str| {
        let (run, _) = run_live(&workload, name, &visits, &with_slots(WindowClose::Adaptive));
        run.records.iter().map(|record| record.unwrap().held.get()).fold(0.0, f64::max)
    };
    // One slot and a queue of one: the third waits in the router until the first is back after 1.1 s.
    assert_close(held_s("cloud_only"), 1.1);
    assert_close(held_s("cloud_only_early"), 0.0);
}

#[test]
fn two_requests_share_an_engine_with_slots() {
    let visits = [Visit { at: Seconds(0.0), row: 0 }, Visit { at: Seconds(0.0), row: 0 }];
    let workload = tiny(1);
    let (run, _) = run_live(&workload, "cloud_only", &visits, &with_slots(WindowClose::Fixed));
    let [first, second] = [run.records[0].unwrap(), run.records[1].unwrap()];
    // Prompts are read from 0.05 to 0.95 and to 1.85 s. The first answer, 0.1 s alone, comes at half its speed
    // beside the second prompt and is there 0.05 s after 1.15 s; the second has the engine for itself.
    assert_close(first.first_token.get(), 1.0);
    assert_close(first.latency.get(), 1.2);
    assert_close(second.first_token.get(), 1.9);
    assert_close(second.latency.get(), 2.0);
    assert_close(run.busy[0].get(), 1.9);
    // While it reads it draws all, for 0.1 s 0.55 + 0.45 / 1024 of it.
    assert_close(run.full_draw[0].get(), 1.8 + 0.1 * (0.55 + 0.45 / 1024.0));
}

#[test]
fn capacity_is_what_saturated_engines_serve() {
    let workload = tiny(3);
    let capacity = |params: &LiveParams| LiveTruth::new(&workload, params).unwrap().capacity_per_s();
    // One after the other: 1 s and 0.5 s each.
    assert_close(capacity(&live_params(WindowClose::Fixed)), 3.0);
    // With slots answers run beside prompts, and the prompts of 0.9 s and 0.45 s are the limit.
    let slots = capacity(&with_slots(WindowClose::Fixed));
    assert!((slots / (1.0 / 0.9 + 1.0 / 0.45) - 1.0).abs() < 0.01, "{slots}");
}

#[test]
fn warm_up_is_left_out_and_a_rejection_counts_against_a_method() {
    let workload = tiny(2);
    let params = live_params(WindowClose::Fixed);
    let record = |latency_s: f64| {
        let (held, first_token) = (Seconds::ZERO, Seconds(latency_s / 2.0));
        Some(Record {
            destination: DestinationOrd(0),
            row: 0,
            held,
            first_token,
            latency: Seconds(latency_s),
        })
    };
    // Of ten arrivals the first is left out; the last is rejected.
    let records: Vec<_> =
        [99.0].into_iter().chain([2.0; 8]).map(record).chain(std::iter::once(None)).collect();
    let run = LiveRun {
        records,
        decisions: Vec::new(),
        busy: vec![Seconds(9.0), Seconds::ZERO],
        full_draw: vec![Seconds(9.0), Seconds::ZERO],
        lasted: Seconds(18.0),
    };
    let truth = LiveTruth::new(&workload, &params).unwrap();
    let outcome = truth.outcome(&workload, &methods(&["greedy"])[0], &params, &run);
    assert_eq!((outcome.served, outcome.rejected), (9, 1));
    // `big` answers with score 1.
    assert_close(outcome.score, 8.0 / 9.0);
    assert_close(outcome.latency_s.mean, (8.0 * 2.0 + DEADLINE.get()) / 9.0);
    // Nine times 200 J, and nothing while idle.
    assert_close(outcome.energy_j, 1800.0);
    assert_close(outcome.energy_with_idle_j, 1800.0);
    assert_close(outcome.utilisation, 0.25);
}

#[test]
fn every_request_is_served_once_under_every_policy() {
    let workload = tiny(10);
    // Bursts of seven, more than a window takes, faster than the fleet serves.
    let visits: Vec<Visit> =
        (0..70_u32).map(|i| Visit { at: Seconds(f64::from(i / 7)), row: i as usize % 10 }).collect();
    let closes = [WindowClose::Fixed, WindowClose::Adaptive];
    for params in closes.map(live_params).into_iter().chain(closes.map(with_slots)) {
        for name in DEFAULT_METHODS {
            let (run, n_done) = run_live(&workload, name, &visits, &params);
            assert_eq!(n_done, visits.len(), "{name}");
            for (record, visit) in run.records.iter().zip(&visits) {
                let record = record.unwrap();
                assert_eq!(record.row, visit.row);
                assert!(record.held.get() <= record.first_token.get(), "{name}: {record:?}");
                assert!(record.first_token.get() <= record.latency.get(), "{name}: {record:?}");
            }
            // Work is conserved: at speed-up 1 engines are busy exactly as long as their jobs take, or less where
            // answers run beside prompts.
            for d in 0..2 {
                let n = run.records.iter().flatten().filter(|r| r.destination.idx() == d).count() as f64;
                let (alone_s, prompts_s) = (n * [1.0, 0.5][d], n * [0.9, 0.45][d]);
                match params.engine {
                    EngineKind::Fifo => assert_close(run.busy[d].get(), alone_s),
                    EngineKind::Slots => {
                        assert!(
                            (prompts_s..alone_s + 1e-9).contains(&run.busy[d].get()) || n < 1.0,
                            "{name}"
                        );
                    }
                }
            }
            let (again, _) = run_live(&workload, name, &visits, &params);
            assert_eq!(run.records, again.records, "{name}: same seed, same course");
        }
    }
}

// ---- the command line ----

fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cema-router"));
    command.arg("simulate").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = simulate(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(args: &[&str], because: &[&str]) {
    let output = simulate(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{args:?} was accepted");
    assert_eq!(output.stdout, b"", "{args:?}");
    for part in because {
        assert!(error.contains(part), "{args:?} says:\n{error}\nwithout `{part}`");
    }
    assert_eq!(error.matches("error:").count(), 1, "{error}");
}

const QUICK: [&str; 8] =
    ["--quality", "oracle", "--batches", "2", "--batch-size", "6", "--evaluations", "500"];

#[track_caller]
fn quick_json(more: &[&str]) -> Value {
    let text = printed(&[&QUICK[..], &["--format", "json"], more].concat());
    serde_json::from_str(&text).unwrap()
}

fn without_decision_times(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !key.starts_with("decision_ms"));
            map.values_mut().for_each(without_decision_times);
        }
        Value::Array(items) => items.iter_mut().for_each(without_decision_times),
        _ => {}
    }
}

#[test]
fn json_names_what_it_rests_on_and_every_method() {
    let mut report = quick_json(&["--seed", "5"]);
    for (key, value) in
        [("scenario", "routerbench"), ("mode", "batch"), ("quality", "oracle"), ("lengths", "recorded")]
    {
        assert_eq!(report[key], value);
    }
    assert_eq!((report["seed"].as_u64(), report["destinations"].as_u64()), (Some(5), Some(11)));
    let methods = report["methods"].as_array().unwrap();
    assert_eq!(methods.iter().map(|m| m["name"].as_str().unwrap()).collect::<Vec<_>>(), DEFAULT_METHODS);
    for method in methods {
        assert!(method["J"].is_f64() && method["decision_ms"].is_number(), "{method}");
        for terms in
            [&method["normalized"], &method["raw"], &method["true"]["normalized"], &method["true"]["raw"]]
        {
            let names: Vec<_> = terms.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(names, ["cost", "energy", "quality", "time"]);
        }
        // The oracle's predictions are the truth.
        assert_eq!(method["J"], method["true"]["J"]);
    }
    let mut again = quick_json(&["--seed", "5"]);
    without_decision_times(&mut report);
    without_decision_times(&mut again);
    assert_eq!(report, again, "same seed, same output");
    let mut other = quick_json(&["--seed", "6"]);
    without_decision_times(&mut other);
    assert_ne!(report["methods"], other["methods"]);
}

#[test]
fn a_list_makes_one_run_each_in_json_csv_and_charts() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().to_str().unwrap();
    let report = quick_json(&["--copies", "1,2", "--policies", "greedy,memetic", "--plot", plot]);
    assert_eq!(report["sweep"], "copies");
    let sizes: Vec<_> =
        report["runs"].as_array().unwrap().iter().map(|run| run["destinations"].as_u64()).collect();
    assert_eq!(sizes, [Some(11), Some(22)]);
    let svg = std::fs::read_to_string(dir.path().join("destinations.svg")).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("memetic") && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );

    let csv =
        printed(&[&QUICK[..], &["--copies", "1,2", "--policies", "greedy", "--format", "csv"]].concat());
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    assert_eq!((lines[0][5], lines[1][4], lines[2][3]), ("J", "greedy", "22"));
}

#[test]
fn live_runs_report_latency_and_hold() {
    let report = quick_json_live(&["--arrivals-per-s", "40"]);
    assert_eq!((report["mode"].as_str(), report["requests"].as_u64()), (Some("live"), Some(60)));
    for method in report["methods"].as_array().unwrap() {
        assert_eq!((method["served"].as_u64(), method["rejected"].as_u64()), (Some(60), Some(0)), "{method}");
        for spread in ["latency_s", "ttft_s", "hold_s"] {
            let at = |key: &str| method[spread][key].as_f64().unwrap();
            assert!(at("p50") <= at("p95") && at("p95") <= at("p99") && at("mean") >= 0.0, "{method}");
        }
        assert!(method["energy_j"].as_f64().unwrap() > 0.0 && method["objective"].is_f64(), "{method}");
    }
    let dir = tempfile::tempdir().unwrap();
    let times = dir.path().join("times.csv");
    std::fs::write(&times, "arrival_s\n0.5\n0.5,ignored\n2\n").unwrap();
    let listed = quick_json_live(&["--arrivals", times.to_str().unwrap()]);
    assert_eq!(listed["requests"].as_u64(), Some(3));
}

#[track_caller]
fn quick_json_live(more: &[&str]) -> Value {
    let common = [
        "--quality",
        "oracle",
        "--evaluations",
        "500",
        "--requests",
        "60",
        "--policies",
        "greedy,memetic,uniroute",
    ];
    serde_json::from_str(&printed(&[&common[..], &["--format", "json"], more].concat())).unwrap()
}

#[test]
fn methods_are_compared_at_equal_score_over_paired_seeds() {
    let dir = tempfile::tempdir().unwrap();
    let args = |format: &'static str| {
        let common =
            ["--quality", "oracle", "--evaluations", "300", "--requests", "80", "--scenario", "small-slots"];
        let matching = ["--load", "0.8", "--match-quality", "--seeds", "2", "--format", format];
        let methods =
            ["--policies", "memetic,memetic_fixed,round_robin", "--plot", dir.path().to_str().unwrap()];
        printed(&[&common[..], &matching, &methods].concat())
    };
    let mut report: Value = serde_json::from_str(&args("json")).unwrap();
    assert_eq!((report["engine"].as_str(), report["lengths"].as_str()), (Some("slots"), Some("synthetic")));
    let matched = report["matched"].as_array().unwrap();
    let names: Vec<_> = matched.iter().map(|m| m["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["memetic", "memetic_fixed", "round_robin"], "all but the reference");
    for m in matched {
        assert_eq!(
            (m["reference"].as_str(), m["seeds"].as_array().unwrap().len()),
            (Some("greedy_plain"), 2)
        );
        for figure in ["latency", "p95", "p99", "energy"] {
            let (value, ends) = (&m[&format!("{figure}_pct")], &m[&format!("{figure}_ci")]);
            let [value, low, high] = [value, &ends[0], &ends[1]].map(|x| x.as_f64().unwrap());
            assert!(low <= value && value <= high, "{m}");
        }
        assert!(m["score_points"].is_f64() && m["score_ci"].is_array(), "{m}");
    }
    let n_points: Vec<_> =
        report["sweeps"].as_array().unwrap().iter().map(|s| s["points"].as_array().unwrap().len()).collect();
    assert_eq!(n_points, [7, 7, 1, 7], "round robin does not heed weights");
    let svg = std::fs::read_to_string(dir.path().join("matched-80.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("memetic_fixed"), "{svg}");
    let mut again: Value = serde_json::from_str(&args("json")).unwrap();
    without_decision_times(&mut report);
    without_decision_times(&mut again);
    assert_eq!(report, again, "same seed, same output");
    let csv = args("csv");
    assert_eq!(csv.lines().count(), 4, "{csv}");
    assert!(args("table").contains("against greedy_plain at equal true score"));
}

/// Rows that ask for the colour of numbered things, all scored `score`.
fn rows(numbers: std::ops::Range<u32>, score: f64) -> String {
    let row = |n: u32| {
        let answer = format!(r#"{{"score":{score:?},"completion_tokens":{}}}"#, 5 + n);
        format!(
            r#"{{"id":"q{n}","prompt":"What is the colour of thing {n}?","models":{{"big":{answer},"small":{answer}}}}}"#
        )
    };
    numbers.map(row).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_truth_of_the_trace_never_reaches_the_router() {
    if embedder_or_skip("the_truth_of_the_trace_never_reaches_the_router").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (scenario, profile) = (file("tiny.yaml", TINY), file("profile.jsonl", &rows(0..4, 0.75)));
    let judged = |trace: &str| -> Value {
        let args = ["--scenario", &scenario, "--profile", &profile, "--trace", trace, "--policies", "greedy"];
        let text =
            printed(&[&args[..], &["--batch-size", "4", "--batches", "1", "--format", "json"]].concat());
        serde_json::from_str(&text).unwrap()
    };
    // Question 3 is in both: it may not be predicted from its own scores.
    let (right, wrong) = (file("right.jsonl", &rows(3..8, 1.0)), file("wrong.jsonl", &rows(3..8, 0.0)));
    let (right, wrong) = (judged(&right), judged(&wrong));
    assert_eq!((right["profile"]["rows"].as_u64(), right["trace"]["rows"].as_u64()), (Some(3), Some(5)));
    let [right, wrong] = [right, wrong].map(|report| report["methods"][0].clone());
    assert_eq!(right["raw"], wrong["raw"], "predictions do not change with the truth");
    assert!((right["raw"]["quality"].as_f64().unwrap() - 0.25).abs() < 1e-6, "{right}");
    assert_eq!(
        (right["true"]["raw"]["quality"].as_f64(), wrong["true"]["raw"]["quality"].as_f64()),
        (Some(0.0), Some(1.0))
    );
}

#[test]
fn every_shipped_scenario_loads_and_labels_its_assumptions() {
    let shipped = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap();
    let paths: Vec<PathBuf> = shipped.map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= 2, "{paths:?}");
    for path in paths {
        let scenario = Scenario::load(&path).unwrap();
        assert!(!scenario.assumptions.is_empty() && scenario.destinations.len() > 1, "{}", path.display());
        let text =
            printed(&[&QUICK[..], &["--scenario", path.to_str().unwrap(), "--policies", "greedy"]].concat());
        assert!(text.contains("assumed"), "{text}");
    }
    let text = printed(&[&QUICK[..], &["--scenario", "six-node", "--policies", "greedy"]].concat());
    assert!(text.contains("synthetic lengths"), "{text}");
}

#[test]
fn faults_are_named_with_what_there_is() {
    refused(&["--scenario", "nowhere"], &["unknown scenario `nowhere`", "routerbench, six-node"]);
    refused(&["--match-quality"], &["--match-quality compares runs over time", "--load"]);
    refused(&["--load", "0.5", "--match-quality", "--reference", "best"], &["unknown policy `best`"]);
    refused(&["--load", "0.5", "--match-quality", "--weights", "time=1"], &["the weight of quality"]);
    refused(&["--policies", "greedy_fixed"], &["unknown policy `greedy_fixed`", "memetic_fixed"]);
    refused(&["--policies", "memetic_early"], &["unknown policy `memetic_early`", "greedy_plain_early"]);
    refused(&["--policies", "clever"], &["unknown policy `clever`", "memetic_paper", "quality_only"]);
    refused(&["--policies", "greedy,greedy"], &["given twice"]);
    refused(&["--sweep", "speed=1"], &["unknown parameter `speed`", "population"]);
    refused(&["--sweep", "population=1.5"], &["population = 1.5"]);
    refused(&["--copies", "1,2", "--batch-size", "10,20"], &["batch_size and copies are both lists"]);
    refused(
        &["--policies", "per_request", "--load", "0.5"],
        &["per_request is for independent batches only"],
    );
    refused(&["--quality", "oracle", "--batch-size", "4000"], &["a batch of 4000", "the trace has"]);
    refused(&["--arrivals", "sometimes"], &["neither `poisson`, `bursty` nor `onoff`"]);
    refused(&["--trace", "nosuch.jsonl"], &["nosuch.jsonl"]);
    // The scenario that is the router's own configuration brings no rows.
    refused(&["--scenario", "config.yaml"], &["brings no rows", "--trace", "medium"]);

    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let foreign =
        file("foreign.jsonl", "{\"id\":\"a\",\"prompt\":\"p\",\"models\":{\"mine\":{\"score\":1}}}\n");
    refused(
        &["--quality", "oracle", "--trace", &foreign],
        &["row `a` has no score of gpt-4-1106-preview", "it has mine"],
    );
    let torn =
        file("torn.jsonl", "{\"id\":\"a\",\"prompt\":\"p\",\"models\":{\"mine\":{\"score\":1}}}\n{\"id\":");
    refused(&["--trace", &torn], &["torn.jsonl", "line 2"]);
    let misspelt = file("s.yaml", "nodes:\n  - name: n\n    models: [{name: m, tflop: {single: 1}}]\n");
    refused(&["--scenario", &misspelt], &["s.yaml:3", "did you mean `tflops`"]);
}
