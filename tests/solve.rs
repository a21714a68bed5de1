//! The `solve` command: its answer, and its one line for a problem it cannot solve.
#![expect(clippy::unwrap_used, reason = "a command that cannot be run fails the test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

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
