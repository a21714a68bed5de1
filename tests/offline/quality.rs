//! Quality prediction as a whole: agreement with an independent implementation
//! (`tests/fixtures/quality/generate.py`), the import command, and the way from a trace to a prediction.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use crate::embedder_files::embedder_or_skip;
use cema_router::domain::{Prediction, QualitySource};
use cema_router::profiler::quality::embedder::{self, EMBEDDING_DIMENSIONS, embed_all};
use cema_router::profiler::quality::estimator::profile::{Profile, ProfileCell};
use cema_router::profiler::quality::estimator::{Estimator, Scratch};
use cema_router::profiler::quality::format::{FORMAT_NUMBERS, format_numbers};
use cema_router::profiler::quality::import::{Line, TraceLines, parse_row};
use cema_router::profiler::quality::store::{QualityStore, StoredPrompt};
use cema_router::profiler::quality::{
    DestinationPrior, EmbedderParams, EstimatorMode, FleetPriors, Predicting, QualityParams, QualityService,
};
use cema_router::units::{Quality, Tokens};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    texts: Vec<ReferenceText>,
    rows: Vec<ReferenceRow>,
    queries: Vec<ReferenceQuery>,
}

#[derive(Deserialize)]
struct ReferenceText {
    text: String,
    format: [f64; FORMAT_NUMBERS],
    embedding: Option<Vec<f32>>,
}

#[derive(Deserialize)]
struct ReferenceRow {
    vector: String,
    text: usize,
    scores: Vec<Option<f32>>,
    lengths: Vec<Option<f32>>,
}

#[derive(Deserialize)]
struct ReferenceQuery {
    vector: String,
    text: usize,
    format_aware: Vec<f64>,
    paper: Vec<f64>,
    lengths: Vec<f64>,
}

/// Predictions of real prompts: every sixth of the first rows of `data/open9.jsonl.gz`, from the others.
#[derive(Deserialize)]
struct RealReference {
    rows: usize,
    models: Vec<String>,
    queries: Vec<RealQuery>,
}

#[derive(Deserialize)]
struct RealQuery {
    id: String,
    format_aware: Vec<f64>,
    paper: Vec<f64>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../fixtures/quality/reference.json")).unwrap()
}

/// A unit vector from signed bytes in hexadecimal.
fn unit_vector(hex: &str) -> [f32; EMBEDDING_DIMENSIONS] {
    let byte = |i: usize| f64::from(u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap().cast_signed());
    let norm = (0..EMBEDDING_DIMENSIONS).map(|i| byte(i).powi(2)).sum::<f64>().sqrt();
    #[expect(clippy::cast_possible_truncation, reason = "embeddings are single precision")]
    std::array::from_fn(|i| (byte(i) / norm) as f32)
}

fn priors(models: &[String]) -> FleetPriors {
    let prior = |model: &String| DestinationPrior {
        model: model.as_str().into(),
        quality: Quality(0.5),
        completion_tokens: Tokens(100.0),
    };
    FleetPriors { destinations: models.iter().map(prior).collect() }
}

#[test]
fn format_numbers_are_those_of_python() {
    for ReferenceText { text, format, .. } in reference().texts {
        for (i, (got, expected)) in format_numbers(&text).iter().zip(format).enumerate() {
            assert!((got - expected).abs() < 1e-9, "number {i} of {text:?}: {got}, expected {expected}");
        }
    }
}

#[test]
fn predictions_are_those_of_the_reference() {
    let reference = reference();
    let models = ["a", "b", "c"].map(String::from).to_vec();
    let mut profile = Profile::new(models.clone());
    for row in &reference.rows {
        let cell = |(score, length): (&Option<f32>, &Option<f32>)| {
            score.map(|score| ProfileCell { score, completion_tokens: *length })
        };
        let cells: Vec<_> = row.scores.iter().zip(&row.lengths).map(cell).collect();
        profile.push(&unit_vector(&row.vector), reference.texts[row.text].format, &cells);
    }
    for mode in [EstimatorMode::FormatAware, EstimatorMode::Paper] {
        let params = QualityParams { mode, ..QualityParams::default() };
        let estimator = Estimator::new(profile.clone(), &priors(&models), &params);
        let mut scratch = Scratch::default();
        for query in &reference.queries {
            let format = &reference.texts[query.text].format;
            let prediction = estimator.predict(&unit_vector(&query.vector), format, &mut scratch).prediction;
            let expected = if mode == EstimatorMode::Paper { &query.paper } else { &query.format_aware };
            for (got, expected) in prediction.quality.iter().zip(expected) {
                assert!((got.0 - expected).abs() < 1e-5, "{mode}: {got:?}, expected {expected}");
            }
            if mode == EstimatorMode::FormatAware {
                for (got, expected) in prediction.completion_tokens.iter().zip(&query.lengths) {
                    assert!((got.0 - expected).abs() < 1e-4 * expected, "{got:?}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn predictions_of_real_prompts_are_those_of_the_reference() {
    let Some(params) = embedder_or_skip("predictions_of_real_prompts_are_those_of_the_reference") else {
        return;
    };
    let expected: RealReference =
        serde_json::from_str(include_str!("../fixtures/quality/real.json")).unwrap();
    let file = std::io::Cursor::new(include_bytes!("../../data/open9.jsonl.gz"));
    let mut lines = TraceLines::over(file).unwrap();
    let prompts: Vec<StoredPrompt> = (0..expected.rows)
        .map(|_| match lines.next_line().unwrap().unwrap() {
            Line::Bytes(line) => parse_row(&line).unwrap(),
            Line::TooLong => panic!("a shipped row is too long"),
        })
        .collect();
    let texts: Vec<&str> = prompts.iter().map(|prompt| prompt.text.as_str()).collect();
    let mut embedder = embedder::load(&params).unwrap();
    let embeddings = embed_all(&texts, &mut embedder.workers, &|| ()).unwrap();
    let mut profile = Profile::new(expected.models.clone());
    for (_, (prompt, embedding)) in
        prompts.iter().zip(&embeddings).enumerate().filter(|(row, _)| row % 6 != 0)
    {
        let cell = |model: &String| {
            let score = prompt.scores.iter().find(|score| score.model == *model)?;
            #[expect(clippy::cast_possible_truncation, reason = "profiles are single precision")]
            Some(ProfileCell { score: score.score as f32, completion_tokens: None })
        };
        let cells: Vec<_> = expected.models.iter().map(cell).collect();
        profile.push(embedding, format_numbers(&prompt.text), &cells);
    }
    let mut scratch = Scratch::default();
    for (mode, tolerance) in [(EstimatorMode::FormatAware, 1e-4), (EstimatorMode::Paper, 1e-5)] {
        let params = QualityParams { mode, ..QualityParams::default() };
        let estimator = Estimator::new(profile.clone(), &priors(&expected.models), &params);
        let (mut n_near, mut n_cells) = (0, 0);
        for (i, query) in expected.queries.iter().enumerate() {
            let (prompt, embedding) = (&prompts[6 * i], &embeddings[6 * i]);
            assert_eq!(prompt.id, query.id);
            let estimate = estimator.predict(embedding, &format_numbers(&prompt.text), &mut scratch);
            let expected = if mode == EstimatorMode::Paper { &query.paper } else { &query.format_aware };
            for (got, expected) in estimate.prediction.quality.iter().zip(expected) {
                n_cells += 1;
                n_near += usize::from((got.0 - expected).abs() < tolerance);
            }
        }
        // Prompts at nearly the same distance may change places at the K-th.
        assert!(n_cells == 360 && n_near * 100 >= n_cells * 99, "{mode}: {n_near} of {n_cells}");
    }
}

#[test]
fn embeddings_are_those_of_the_reference() {
    let Some(params) = embedder_or_skip("embeddings_are_those_of_the_reference") else { return };
    let mut embedder = embedder::load(&params).unwrap();
    let mut n_compared = 0;
    for ReferenceText { text, embedding, .. } in reference().texts {
        let Some(expected) = embedding else { continue };
        let got = embedder.workers[0].embed(&text).unwrap();
        for (got, expected) in got.iter().zip(&expected) {
            assert!((got - expected).abs() < 1e-4, "{got}, expected {expected}, for {text:.60?}");
        }
        n_compared += 1;
    }
    assert_eq!(n_compared, 7);
}

#[test]
fn thirty_megabytes_are_embedded_by_their_end() {
    let Some(params) = embedder_or_skip("thirty_megabytes_are_embedded_by_their_end") else { return };
    let mut embedder = embedder::load(&params).unwrap();
    let end = "and the end tells them apart ".repeat(100);
    let long = "lorem ipsum ".repeat(2_500_000) + &end;
    let worker = &mut embedder.workers[1];
    assert_eq!(worker.embed(&long).unwrap(), worker.embed(&end).unwrap());
}

/// The import command on `trace`, without a terminal.
fn import_command(store: &Path, trace: &Path, params: &EmbedderParams) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cema-router"));
    command.args(["quality", "import", "--threads", "2"]);
    command.arg("--store").arg(store).arg("--trace").arg(trace);
    command.arg("--library").arg(params.cache_dir.join("lib/libonnxruntime.so"));
    command.arg("--model").arg(params.cache_dir.join("model"));
    command
}

fn stats(store: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cema-router"));
    command.args(["quality", "stats", "--format", "json", "--store"]).arg(store).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `n` rows: sums that only `large` gets right and greetings that both do.
fn trace(n: usize) -> String {
    (0..n).fold(String::new(), |mut text, i| {
        let (prompt, small) = if i % 2 == 0 {
            (format!("What is {i} plus {}?", 3 * i), 0)
        } else {
            (format!("Say hello to guest {i}"), 1)
        };
        let scores = format!(
            r#"{{"small":{{"score":{small}}},"large":{{"score":1,"completion_tokens":{}}}}}"#,
            10 + i % 2
        );
        writeln!(text, r#"{{"id":"q{i}","prompt":"{prompt}","benchmark":"b{}","models":{scores}}}"#, i % 2)
            .unwrap();
        text
    })
}

fn predicted(predicting: Predicting) -> Arc<Prediction> {
    match predicting {
        Predicting::Known(prediction) => prediction,
        Predicting::Pending(receiver) => Arc::new(receiver.blocking_recv().unwrap()),
    }
}

#[test]
fn from_a_trace_to_a_prediction() {
    let Some(params) = embedder_or_skip("from_a_trace_to_a_prediction") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("store"), dir.path().join("trace.jsonl"));
    std::fs::write(&file, trace(60) + "{\"id\":\"bad\"}\nnot json\n").unwrap();
    let output = import_command(&store, &file, &params).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("line 61: missing field `prompt`"), "{}", stderr(&output));
    assert!(stdout(&output).contains("60 new, 0 changed, 0 unchanged, 2 faulty"), "{}", stdout(&output));
    let stats: serde_json::Value = serde_json::from_slice(&stats(&store).stdout).unwrap();
    assert_eq!((&stats["prompts"], &stats["models"][1]["mean_score"]), (&60.into(), &0.5.into()));

    let quality = QualityParams { store, ..QualityParams::default() };
    let models = ["small", "large", "unprofiled"].map(String::from);
    let registry = prometheus::Registry::new();
    let service = QualityService::start(&quality, &params, priors(&models), &registry).unwrap();
    assert!(service.is_active(), "{}", service.status());
    let sum = predicted(service.predict("What is 7 plus 5?"));
    let greeting = predicted(service.predict("Say hello to guest 7"));
    for prediction in [&sum, &greeting] {
        assert_eq!(prediction.source, QualitySource::Store);
        assert!((prediction.quality[1].0 - 1.0).abs() < 1e-6, "{prediction:?}");
        assert_eq!(prediction.quality[2], Quality(0.5));
    }
    assert!(sum.quality[0].0 < 0.25 && greeting.quality[0].0 > 0.75, "{sum:?} {greeting:?}");
}

#[test]
fn a_trace_without_a_usable_row_fails() {
    let Some(params) = embedder_or_skip("a_trace_without_a_usable_row_fails") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.jsonl");
    std::fs::write(&file, "[]\n").unwrap();
    let output = import_command(&dir.path().join("store"), &file, &params).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no line of"), "{}", stderr(&output));
}

#[test]
fn unusable_embedder_files_are_named() {
    let Some(params) = embedder_or_skip("unusable_embedder_files_are_named") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("store"), dir.path().join("trace.jsonl"));
    std::fs::write(&file, trace(1)).unwrap();
    for (broken, key) in
        [("lib/libonnxruntime.so", "embedder.library"), ("model/model.onnx", "embedder.model")]
    {
        let cache = dir.path().join(key);
        for name in ["lib/libonnxruntime.so", "model/model.onnx", "model/tokenizer.json"] {
            let path = cache.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            if name == broken {
                std::fs::write(&path, "neither library nor model").unwrap();
            } else {
                std::os::unix::fs::symlink(params.cache_dir.join(name), &path).unwrap();
            }
        }
        let params = EmbedderParams { cache_dir: cache.clone(), ..params.clone() };
        let output = import_command(&store, &file, &params).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(said.contains(cache.join(broken).to_str().unwrap()) && said.contains(key), "{said}");
        assert!(!store.exists(), "nothing is made before the embedder is known to work");
    }
}

#[test]
fn a_killed_import_keeps_whole_chunks_and_can_go_on() {
    let Some(params) = embedder_or_skip("a_killed_import_keeps_whole_chunks_and_can_go_on") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("store"), dir.path().join("trace.jsonl"));
    std::fs::write(&file, trace(400)).unwrap();
    let mut child =
        import_command(&store, &file, &params).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut progress = BufReader::new(child.stderr.take().unwrap()).lines();
    // The first acknowledged chunk is told at once; the kill falls into the work on a later one.
    let line = progress.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("64 prompts stored"), "{line}");
    let prompts = QualityStore::open(&store).unwrap().stats().unwrap().prompts;
    assert!(prompts >= 64 && (prompts % 64 == 0 || prompts == 400), "{prompts}");

    let output = import_command(&store, &file, &params).output().unwrap();
    let expected = format!("{} new, 0 changed, {prompts} unchanged, 0 faulty", 400 - prompts);
    assert!(stdout(&output).contains(&expected), "{}", stdout(&output));
}

#[test]
fn stats_of_no_store_say_how_to_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let output = stats(dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("quality import --store"), "{}", stderr(&output));
}
