//! The `solve` command: its answer, and its one line for a problem it cannot solve.
#![expect(clippy::unwrap_used, reason = "a command that cannot be run fails the test")]

use std::path::Path;
use std::process::{Command, Output};

use cema_router::routing::PolicyKind;
use serde_json::{Value, json};

const PROBLEM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/solver/ctlk8_30_11_0.json");

fn solve(problem: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cema-router"))
        .args(["solve", "--problem"])
        .arg(problem)
        .args(args)
        .output()
        .unwrap()
}

fn answer(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and the line on standard error.
fn refusal(output: &Output) -> (Option<i32>, String) {
    assert!(output.stdout.is_empty());
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    (output.status.code(), message)
}

#[test]
fn prints_the_decision_as_one_line_of_json() {
    let output = solve(Path::new(PROBLEM), &["--seed", "7", "--budget-ms", "50"]);
    let answer = answer(&output);
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort_unstable();
    let mut want = vec![
        "policy",
        "assignment",
        "objective",
        "raw",
        "lower_bound",
        "certified_gap",
        "cpu_ms",
        "elapsed_ms",
        "generations",
        "evaluations",
        "seed",
    ];
    want.sort_unstable();
    assert_eq!(keys, want);
    assert_eq!(answer["policy"], "memetic");
    assert_eq!(answer["seed"], 7);
    assert_eq!(answer["assignment"].as_array().unwrap().len(), 30);
    assert!(answer["lower_bound"].as_f64().unwrap() <= answer["objective"].as_f64().unwrap());
    for term in ["quality", "cost", "energy", "time"] {
        assert!(answer["raw"][term].is_f64(), "{term}");
    }
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
}

#[test]
fn a_policy_without_a_bound_says_null() {
    let answer = answer(&solve(Path::new(PROBLEM), &["--policy", "greedy"]));
    assert!(answer["lower_bound"].is_null() && answer["certified_gap"].is_null());
}

#[test]
fn a_policy_that_lacks_something_exits_1_and_says_what() {
    let (code, message) = refusal(&solve(Path::new(PROBLEM), &["--policy", "uniroute"]));
    assert_eq!(code, Some(1));
    assert!(message.contains("needs prompt clusters"), "{message}");
    let (code, message) = refusal(&solve(Path::new(PROBLEM), &["--policy", "edge_only"]));
    assert_eq!(code, Some(1));
    assert!(message.contains("needs the class of every destination"), "{message}");
}

#[test]
fn caps_of_a_problem_file_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capped.json");
    let mut problem: Value = serde_json::from_str(&std::fs::read_to_string(PROBLEM).unwrap()).unwrap();
    let cap = |problem: &mut Value, cap: u32| {
        for destination in problem["destinations"].as_array_mut().unwrap() {
            destination["cap"] = cap.into();
        }
        std::fs::write(&path, problem.to_string()).unwrap();
    };
    cap(&mut problem, 3);
    for policy in ["memetic", "memetic_paper", "greedy"] {
        let answer = answer(&solve(&path, &["--policy", policy, "--budget-ms", "50"]));
        let mut places: Vec<&str> =
            answer["assignment"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
        places.sort_unstable();
        let most = places.chunk_by(|a, b| a == b).map(<[&str]>::len).max();
        assert!(most <= Some(3), "{policy}: {places:?}");
    }
    cap(&mut problem, 2);
    let (code, message) = refusal(&solve(&path, &[]));
    assert_eq!(code, Some(1));
    assert!(message.contains("the caps leave 22 places"), "{message}");
}

/// Time is all that counts. At `a` one slot is taken for 2 s, and its seconds have a price; `b` is Eq. 4 at half speed
/// behind 1 s.
fn sum_problem() -> Value {
    let only_time = json!({"quality": 0, "cost": 0, "energy": 0, "time": 1});
    let bounds = json!({"quality": [0, 1], "cost": [0, 1], "energy": [0, 1], "time": [0, 8]});
    let destination = |id: &str, class: &str| json!({"id": id, "class": class, "backlog_s": 1, "batch_speedup": 1, "network_s": 0});
    json!({
        "schema": "cema-problem/1",
        "objective": {"weights": only_time, "bounds": bounds},
        "destinations": [destination("a", "cloud"), destination("b", "edge")],
        "quality_loss": [[0, 0], [0, 0]],
        "cost_usd": [[0, 0], [0, 0]],
        "energy_j": [[0, 0], [0, 0]],
        "service_s": [[2, 4], [3, 6]],
        "clusters": {"request": [0, 0], "error": [[0.1, 0.2]]},
        "sum": {
            "others_time_weight": 0.5,
            "destinations": [
                {"rtt_s": 0.5, "price_per_s": 0.25, "timeline": {
                    "model": "slots", "slots": 1, "batch_speedup": 1,
                    "running": 1, "decode_s": 2, "soonest_s": 2,
                }},
                {"rtt_s": 0.25, "timeline": {"model": "fifo", "backlog_s": 1, "batch_speedup": 2, "pace": 0.5}},
            ],
            "prefill_s": [[1, 0.5], [0, 1]],
            "decode_s": [[1, 1.5], [3, 2]],
        },
    })
}

#[test]
fn every_policy_solves_a_sum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sum.json");
    std::fs::write(&path, sum_problem().to_string()).unwrap();
    // Finishes at a: 2 + 2, or 2 + 3, or 4 + 3 behind the other; at b 2 / 0.5 and 3 / 0.5, whatever is before them.
    // A second at a costs 0.25 · 0.5 / 2.
    let objective_of = |assignment: &Value| match [&assignment[0], &assignment[1]].map(|d| d == "a") {
        [true, true] => (4.5 + 7.5) / 8.0 + 5.0 / 16.0,
        [true, false] => (4.5 + 6.25) / 8.0 + 2.0 / 16.0,
        [false, true] => (4.25 + 5.5) / 8.0 + 3.0 / 16.0,
        [false, false] => (4.25 + 6.25) / 8.0,
    };
    for kind in PolicyKind::ALL {
        let answer = answer(&solve(&path, &["--policy", kind.as_str(), "--budget-ms", "50"]));
        let objective = answer["objective"].as_f64().unwrap();
        assert!((objective - objective_of(&answer["assignment"])).abs() < 1e-12, "{kind:?}: {answer}");
        match kind {
            PolicyKind::Memetic => {
                assert_eq!(answer["assignment"], json!(["b", "b"]));
                assert!(answer["lower_bound"].as_f64().unwrap() <= objective, "{answer}");
            }
            PolicyKind::CloudOnly => assert_eq!(answer["assignment"], json!(["a", "a"])),
            PolicyKind::EdgeOnly => assert_eq!(answer["assignment"], json!(["b", "b"])),
            _ => {}
        }
    }
}

#[test]
fn a_bad_sum_exits_1_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sum.json");
    let mut problem = sum_problem();
    problem["sum"]["destinations"][1]["timeline"]["pace"] = json!(0);
    std::fs::write(&path, problem.to_string()).unwrap();
    let (code, message) = refusal(&solve(&path, &[]));
    assert_eq!(code, Some(1));
    let want = "sum.destinations[].timeline.pace of destination b is 0; it must be finite and positive";
    assert!(message.contains("sum.json") && message.contains(want), "{message}");
}

#[test]
fn a_bad_problem_exits_1_with_its_name_and_the_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.json");
    let text = std::fs::read_to_string(PROBLEM).unwrap().replace("\"backlog_s\"", "\"backlog_ms\"");
    std::fs::write(&path, text).unwrap();
    let (code, message) = refusal(&solve(&path, &[]));
    assert_eq!(code, Some(1));
    assert!(message.contains("bad.json") && message.contains("backlog_ms"), "{message}");
    let (code, message) = refusal(&solve(&folder.path().join("absent.json"), &[]));
    assert_eq!(code, Some(1));
    assert!(message.contains("absent.json"), "{message}");
    let (code, message) = refusal(&solve(Path::new(PROBLEM), &["--budget-ms", "NaN"]));
    assert_eq!(code, Some(1));
    assert!(message.contains("--budget-ms"), "{message}");
}
