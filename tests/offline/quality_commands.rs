//! The commands that judge, show and change a store, from a trace to what they print.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::embedder_files::embedder_or_skip;
use cema_router::profiler::quality::EmbedderParams;
use serde_json::Value;

struct Fixture {
    dir: tempfile::TempDir,
    params: EmbedderParams,
}

impl Fixture {
    /// A store of `n` rows of [`rows`].
    fn new(params: EmbedderParams, n: usize) -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap(), params };
        std::fs::write(fixture.path("rows.jsonl"), rows(0..n)).unwrap();
        let output = fixture.run(&["import", "--trace", fixture.path("rows.jsonl").to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `quality ARGS` on the store, with the embedder's files where the command takes them.
    fn run(&self, args: &[&str]) -> Output {
        self.run_on(&self.path("store"), args)
    }

    fn run_on(&self, store: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cema-router"));
        command.arg("quality").args(args).arg("--store").arg(store);
        if ["import", "query", "eval", "rebuild"].contains(&args[0]) {
            command.arg("--library").arg(self.params.cache_dir.join("lib/libonnxruntime.so"));
            if !args.contains(&"--model") {
                command.arg("--model").arg(self.params.cache_dir.join("model"));
            }
        }
        command.output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sums that only `large` gets right and greetings that both do.
fn rows(numbers: std::ops::Range<usize>) -> String {
    numbers.fold(String::new(), |mut text, i| {
        let (prompt, small, tag) = if i % 2 == 0 {
            (format!("What is {i} plus {}?", 3 * i), 0, "sums")
        } else {
            (format!("Say hello to guest {i}"), 1, "greetings")
        };
        let scores = format!(
            r#"{{"small":{{"score":{small},"completion_tokens":5,"cost_usd":0.001}},"large":{{"score":1,"completion_tokens":{},"cost_usd":0.01}}}}"#,
            10 + i % 2
        );
        writeln!(text, r#"{{"id":"q{i}","prompt":"{prompt}","benchmark":"{tag}","source":"made up","models":{scores}}}"#)
            .unwrap();
        text
    })
}

fn near(value: &Value, expected: f64, tolerance: f64) {
    let got = value.as_f64().unwrap();
    assert!((got - expected).abs() <= tolerance, "{got}, expected {expected}");
}

#[test]
fn a_query_is_explained() {
    let Some(params) = embedder_or_skip("a_query_is_explained") else { return };
    let fixture = Fixture::new(params, 60);
    let answer = fixture.json(&["query", "What is 7 plus 5?", "--show", "3", "--format", "json"]);
    let models = answer["models"].as_array().unwrap();
    assert_eq!((&models[0]["model"], &models[1]["model"]), (&"large".into(), &"small".into()));
    near(&models[0]["q"], 1.0, 1e-6);
    near(&models[1]["mean"], 0.5, 1e-6);
    let q = models[1]["q"].as_f64().unwrap();
    assert!(q < 0.25, "{answer}");
    // All twenty neighbours score 0: q̂ is what the mean pulls it up to, and so far from every one of them.
    near(&models[1]["deviation"], q, 1e-6);
    let neighbours = answer["neighbours"].as_array().unwrap();
    assert_eq!(neighbours.len(), 3);
    assert!(
        neighbours.iter().all(|n| n["benchmark"] == "sums" && n["scores"] == serde_json::json!([1.0, 0.0]))
    );
    assert!(neighbours[0]["similarity"].as_f64() >= neighbours[2]["similarity"].as_f64());
    assert_eq!(answer["has_low_evidence"], false);

    let table = stdout(&fixture.run(&["query", "What is 7 plus 5?"]));
    assert!(table.contains("evidence") && table.contains("(sums): What is"), "{table}");
    let empty = fixture.run(&["query", " "]);
    assert_eq!((empty.status.code(), stderr(&empty).contains("empty")), (Some(1), true));
}

#[test]
fn a_check_judges_and_warns() {
    let Some(params) = embedder_or_skip("a_check_judges_and_warns") else { return };
    let fixture = Fixture::new(params, 120);
    let charts = fixture.path("charts");
    let output = fixture.run(&["check", "--format", "json", "--plot", charts.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let check: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&check["prompts"], check["tags"].as_array().unwrap().len()), (&120.into(), 2));
    assert!(check["metrics"]["mse"].as_f64() < check["metrics"]["mse_global_mean"].as_f64(), "{check}");
    assert!(stderr(&output).contains("warning: 120 prompts predict little"), "{}", stderr(&output));
    for chart in ["quality-calibration.svg", "quality-learning.svg"] {
        assert!(std::fs::read_to_string(charts.join(chart)).unwrap().starts_with("<svg"), "{chart}");
    }
    let table = stdout(&fixture.run(&["check"]));
    assert!(table.contains("paper, K = 5") && table.contains("greetings"), "{table}");
}

#[test]
fn an_evaluation_leaves_out_what_the_store_holds_and_writes_predictions() {
    let Some(params) =
        embedder_or_skip("an_evaluation_leaves_out_what_the_store_holds_and_writes_predictions")
    else {
        return;
    };
    let fixture = Fixture::new(params, 60);
    let (trace, predictions) = (fixture.path("trace.jsonl"), fixture.path("q.csv"));
    std::fs::write(&trace, rows(50..90) + "{\"id\":\"bad\"}\n").unwrap();
    let args = ["eval", "--trace", trace.to_str().unwrap(), "--predictions", predictions.to_str().unwrap()];
    let metrics = fixture.json(&args);
    assert_eq!(
        (&metrics["rows"], &metrics["known"], &metrics["faulty"]),
        (&30.into(), &10.into(), &1.into())
    );
    near(&metrics["coverage"], 1.0, 1e-12);
    near(&metrics["mse_global_mean"], 0.125, 1e-6);
    near(&metrics["mse_task_mean"], 0.0, 1e-6);
    near(&metrics["chosen_score"], 1.0, 1e-12);
    near(&metrics["oracle"], 1.0, 1e-12);
    assert!(metrics["mse"].as_f64().unwrap() < 0.03, "{metrics}");
    // From 0.5 (all to `small`) to 1 (sums to `large`) over the first half of the money, 1 over the second.
    near(&metrics["aiq"], 0.875, 1e-9);
    assert!(metrics["token_mae_log"].is_f64(), "{metrics}");
    // Anyone can compute the error again from the file.
    let written = std::fs::read_to_string(predictions).unwrap();
    let mut lines = written.lines();
    assert_eq!(lines.next(), Some("id,model,q"));
    let errors: Vec<f64> = lines
        .map(|line| {
            let [id, model, q] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let is_sum = id[1..].parse::<usize>().unwrap() % 2 == 0;
            let truth = f64::from(u8::from(!(model == "small" && is_sum)));
            (q.parse::<f64>().unwrap() - truth).powi(2)
        })
        .collect();
    assert_eq!(errors.len(), 60);
    near(&metrics["mse"], errors.iter().sum::<f64>() / 60.0, 1e-9);
    let nothing = fixture.run(&["eval", "--trace", fixture.path("rows.jsonl").to_str().unwrap()]);
    assert!(stderr(&nothing).contains("60 are in the store"), "{}", stderr(&nothing));
}

#[test]
fn what_is_exported_can_be_imported_and_pruned() {
    let Some(params) = embedder_or_skip("what_is_exported_can_be_imported_and_pruned") else { return };
    let fixture = Fixture::new(params, 20);
    let file = fixture.path("out.jsonl.gz");
    let output = fixture.run(&["export", "--out", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let copy = fixture.path("copy");
    let output = fixture.run_on(&copy, &["import", "--trace", file.to_str().unwrap()]);
    assert!(stdout(&output).contains("20 new"), "{}", stderr(&output));
    let (first, second) = (fixture.run(&["export"]), fixture.run_on(&copy, &["export"]));
    assert_eq!((first.stdout.len() > 1_000, first.stdout), (true, second.stdout));

    let dry = fixture.run(&["prune", "--benchmark", "sums"]);
    assert!(stdout(&dry).contains("20 scores and 10 prompts would be deleted"), "{}", stdout(&dry));
    let done = fixture.run(&["prune", "--benchmark", "sums", "--yes"]);
    assert!(stdout(&done).contains("20 scores and 10 prompts deleted"), "{}", stdout(&done));
    assert_eq!(fixture.json(&["stats", "--format", "json"])["prompts"], 10);
    let none = fixture.run(&["prune", "--yes"]);
    assert_eq!((none.status.code(), stderr(&none).contains("--benchmark")), (Some(1), true));
}

#[test]
fn another_model_file_is_refused_until_the_store_is_rebuilt() {
    let Some(params) = embedder_or_skip("another_model_file_is_refused_until_the_store_is_rebuilt") else {
        return;
    };
    // The same model in a file with a byte more is another file.
    let fixture = Fixture::new(params, 30);
    let (folder, own) = (fixture.path("other"), fixture.params.cache_dir.join("model"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(own.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let mut bytes = std::fs::read(own.join("model.onnx")).unwrap();
    // An unknown field of the protocol buffer, number 1000 and empty: readers pass over it.
    bytes.extend_from_slice(&[0xc2, 0x3e, 0x00]);
    std::fs::write(folder.join("model.onnx"), bytes).unwrap();
    let model = ["--model", folder.to_str().unwrap()];
    let query = |model: &[&str]| fixture.run(&[&["query", "Say hello to guest 7"], model].concat());
    let refused = query(&model);
    assert!(stderr(&refused).contains("must not be mixed"), "{}", stderr(&refused));
    let rebuilt = fixture.run(&[&["rebuild"][..], &model].concat());
    assert!(
        stdout(&rebuilt).contains("30 prompts by") && stdout(&rebuilt).contains("30 embedded now"),
        "{}",
        stderr(&rebuilt)
    );
    assert!(query(&model).status.success());
    assert!(stderr(&query(&[])).contains("must not be mixed"));
}
