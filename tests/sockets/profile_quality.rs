//! `profile quality`: questions over real sockets, scores into a store, nothing asked twice and nothing unasked.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::profile::{config_of, in_virtual_time, on_disk, profile, run, texts};
use crate::support::answers::{chat_stream, json as answer_json};
use crate::support::app::llm;
use crate::support::embedder::embedder_or_skip;
use crate::support::fake_endpoint::{FakeEndpoint, Recorded, Step};
use crate::support::in_time;
use cema_router::app::{endpoint_spec, timeouts};
use cema_router::calibrate::quality::{Judge, Outcome, Run, Seat, Workload};
use cema_router::config::Config;
use cema_router::endpoint::EndpointPool;
use cema_router::profiler::quality::store::QualityStore;

/// What a request asks.
fn prompt(asked: &Recorded) -> String {
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    body["messages"][0]["content"].as_str().unwrap().to_owned()
}

/// Says what stands after `say ` in the prompt.
fn says_so(asked: &Recorded) -> Vec<Step> {
    let prompt = prompt(asked);
    chat_stream("m", &[prompt.split_once("say ").map_or("?", |(_, words)| words)])
}

/// Puts `rows` to the destinations of `config`, each of one question at a time, in virtual time; a line for each outcome.
async fn outcomes(config: &str, rows: &[Value], judge: Option<usize>) -> Vec<String> {
    let config = Config::parse(config, &|_| None).unwrap();
    let specs = config.fleet.endpoints.iter().map(|endpoint| endpoint_spec(endpoint).unwrap()).collect();
    let pool = EndpointPool::new(specs, timeouts(&config)).unwrap();
    let file = rows.iter().map(|row| row.to_string() + "\n").collect::<String>();
    let workload = Workload::read(file.as_bytes()).unwrap();
    assert!(workload.faults.is_empty(), "{:?}", workload.faults);
    let destinations = &config.fleet.destinations;
    let seats: Vec<_> = (0..destinations.len())
        .filter(|n| Some(*n) != judge)
        .map(|n| Seat { destination: &destinations[n], concurrency: 1 })
        .collect();
    let judge = judge.map(|n| Judge { pool: &pool, destination: &destinations[n] });
    let questions = workload.questions.iter().collect();
    let told = Mutex::new(Vec::new());
    let on_outcome = async |outcome: Outcome<'_>| {
        let line = match outcome {
            Outcome::Graded { question, graded, .. } => {
                format!("{} {} {:?}", question.id, graded.score, graded.answered.completion_tokens)
            }
            Outcome::Failed { question, reason, .. } => format!("{} failed: {reason}", question.id),
            Outcome::GivenUp { destination, .. } => format!("{} given up", destination.id),
        };
        told.lock().unwrap().push(line);
    };
    in_virtual_time(Run { pool: &pool, seats: &seats, judge, questions }.all(on_outcome)).await;
    told.into_inner().unwrap()
}

fn row(id: &str, say: &str) -> Value {
    json!({"id": id, "prompt": format!("say {say}"), "scorer": "contains", "answer": "yes"})
}

#[tokio::test]
async fn what_fails_for_a_moment_is_tried_again_and_what_is_refused_is_not() {
    let endpoint = llm(|asked| match (prompt(asked).as_str(), asked.ordinal) {
        ("say yes at last", 0..=1) => answer_json(503, r#"{"error":{"message":"no slot"}}"#),
        ("say too much", _) => answer_json(400, r#"{"error":{"message":"too long"}}"#),
        _ => says_so(asked),
    })
    .await;
    let config = config_of("openai", &[("n", endpoint.url())], "name: m");
    let rows = [row("late", "yes at last"), row("no", "too much"), row("wrong", "no"), row("right", "yes")];
    let told = outcomes(&config, &rows, None).await;
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].starts_with("no failed: answered 400") && told[0].contains("too long"), "{told:?}");
    assert_eq!(told[1..3], ["wrong 0 None", "right 1 None"], "it does not count tokens, which is no fault");
    assert_eq!(told[3], "late 1 None");
    let body: Value = serde_json::from_slice(&endpoint.posts()[0].body).unwrap();
    assert_eq!((&body["temperature"], &body["max_tokens"]), (&0.into(), &512.into()));
    assert_eq!(body.get("ignore_eos"), None);
}

#[tokio::test]
async fn a_destination_that_keeps_failing_is_left_alone_and_another_takes_its_questions() {
    let broken = llm(|_| answer_json(500, "{}")).await;
    let rows: Vec<_> = (0..9).map(|n| row(&format!("q{n}"), "yes")).collect();
    let alone = config_of("openai", &[("broken", broken.url())], "name: m");
    let told = outcomes(&alone, &rows, None).await;
    assert_eq!(told, ["broken/m given up"], "each question was tried once, none three times");
    assert_eq!(broken.posts().len(), 5);

    let well = llm(says_so).await;
    let both = config_of("openai", &[("broken", broken.url()), ("well", well.url())], "name: m");
    let told = outcomes(&both, &rows, None).await;
    assert_eq!(told.iter().filter(|line| line.ends_with(" 1 None")).count(), 9, "{told:?}");
}

#[tokio::test]
async fn a_judge_reads_question_answer_and_rubric() {
    let model = llm(says_so).await;
    let judge = llm(|asked| {
        let prompt = prompt(asked);
        assert!(prompt.contains("kindness") && prompt.contains("say something kind"), "{prompt}");
        chat_stream("m", &["Kind enough.\n", "Mark: 7"])
    })
    .await;
    let config = config_of("openai", &[("n", model.url()), ("j", judge.url())], "name: m");
    let rows = [json!({"id": "q", "prompt": "say something kind", "rubric": "kindness"})];
    assert_eq!(outcomes(&config, &rows, Some(1)).await, ["q 0.7 None"]);
    let mute = llm(|_| chat_stream("m", &["no comment"])).await;
    let config = config_of("openai", &[("n", model.url()), ("j", mute.url())], "name: m");
    let told = outcomes(&config, &rows, Some(1)).await;
    assert!(told[0].starts_with("q failed: the judge gave no mark"), "{told:?}");
}

/// A configuration with its store and a workload of `rows`, in a folder.
fn files(endpoint: &FakeEndpoint, rows: &[Value]) -> (tempfile::TempDir, PathBuf, String) {
    let model = "name: m, price: {completion_usd_per_mtok: 1000}";
    let (folder, config) = on_disk(&config_of("openai", &[("n", endpoint.url())], model));
    let workload = folder.path().join("workload.jsonl");
    std::fs::write(&workload, rows.iter().map(|row| row.to_string() + "\n").collect::<String>()).unwrap();
    let workload = workload.to_str().unwrap().to_owned();
    (folder, config, workload)
}

fn store_of(config: &Path) -> PathBuf {
    config.parent().unwrap().join("quality")
}

#[tokio::test]
async fn answers_are_stored_with_what_they_took_and_not_asked_for_again() {
    if embedder_or_skip("answers_are_stored_with_what_they_took_and_not_asked_for_again").is_none() {
        return;
    }
    let endpoint = llm(|asked| match prompt(asked).as_str() {
        "say too much" => answer_json(400, "{}"),
        _ => says_so(asked),
    })
    .await;
    let rows = [row("right", "yes"), row("wrong", "no"), row("bad", "too much")];
    let (_folder, config, workload) = files(&endpoint, &rows);
    let args = ["--workload", &workload, "--yes", "--format", "json"];
    let output = run("quality", &config, &args).await;
    let (results, said) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "one was refused: {said}");
    assert!(said.contains("m: 3 requests, ") && said.contains("question bad: answered 400"), "{said}");
    let results: Value = serde_json::from_str(&results).unwrap();
    let model = &results["models"][0];
    assert_eq!((&model["answered"], &model["failed"]), (&2.into(), &1.into()), "{results}");
    assert_eq!(model["mean_score"], 0.5);
    let stats = QualityStore::open(&store_of(&config)).unwrap().stats().unwrap();
    assert_eq!((stats.prompts, stats.scores), (2, 2));
    assert!((stats.models[0].mean_score - 0.5).abs() < 1e-12);

    let n_posts = endpoint.posts().len();
    let again = run("quality", &config, &args).await;
    assert!(texts(&again).1.contains("2 answers are in "), "{}", texts(&again).1);
    assert_eq!(endpoint.posts().len(), n_posts + 1, "what failed only");
    let all = run("quality", &config, &["--workload", &workload, "--yes", "--again", "--limit", "1"]).await;
    assert_eq!(all.status.code(), Some(0));
    assert!(texts(&all).0.contains("1/1"), "{}", texts(&all).0);
    assert_eq!(endpoint.posts().len(), n_posts + 2);
}

#[tokio::test]
async fn no_question_is_sent_without_consent_or_with_something_missing() {
    if embedder_or_skip("no_question_is_sent_without_consent_or_with_something_missing").is_none() {
        return;
    }
    let endpoint = llm(says_so).await;
    let judged = json!({"id": "q", "prompt": "p", "rubric": "truth"});
    let (_folder, config, workload) = files(&endpoint, &[row("a", "yes"), judged]);
    for (args, reason) in [
        (vec!["--workload", &workload], "--judge"),
        (vec!["--workload", &workload, "--limit", "1"], "--yes"),
        (vec!["--workload", "gsm8k,mmlu"], "m: 234 requests, "),
        (vec!["--workload", "gsm8k", "--limit", "30"], "and 12000 completion tokens"),
        (vec!["--workload", "no-such-file"], "gsm8k, mmlu or a file"),
        (vec!["--workload", "gsm8k,gsm8k"], "stands in two"),
        (vec!["--workload", "gsm8k", "--destination", "n/x"], "no destination `n/x`"),
    ] {
        let output = run("quality", &config, &args).await;
        let (_, said) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(reason), "{args:?}: {said}");
    }
    assert!(endpoint.posts().is_empty());
}

#[tokio::test]
async fn interrupted_it_keeps_what_is_answered_and_goes_on_from_there() {
    if embedder_or_skip("interrupted_it_keeps_what_is_answered_and_goes_on_from_there").is_none() {
        return;
    }
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let at_gate = std::sync::Arc::clone(&gate);
    let endpoint = llm(move |asked| {
        let mut steps = vec![Step::Gate(std::sync::Arc::clone(&at_gate))];
        steps.extend(says_so(asked));
        steps
    })
    .await;
    let rows: Vec<_> = (0..6).map(|n| row(&format!("q{n}"), &format!("yes {n}"))).collect();
    let (_folder, config, workload) = files(&endpoint, &rows);
    let args = ["--workload", &workload, "--yes", "--concurrency", "2", "--format", "jsonl"];
    let mut child = profile("quality", &config, &args).spawn().unwrap();
    gate.add_permits(3);
    let mut lines = {
        use tokio::io::AsyncBufReadExt as _;
        tokio::io::BufReader::new(child.stdout.take().unwrap()).lines()
    };
    for _ in 0..3 {
        let line = in_time("a stored answer", lines.next_line()).await.unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["score"], 1.0);
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = in_time("profile to end", child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", texts(&output).1);
    assert!(texts(&output).1.contains("run it again to go on"), "{}", texts(&output).1);
    let n_stored = || QualityStore::open(&store_of(&config)).unwrap().stats().unwrap().scores;
    assert_eq!(n_stored(), 3);
    gate.add_permits(100);
    let rest = run("quality", &config, &args).await;
    assert_eq!((rest.status.code(), texts(&rest).0.lines().count()), (Some(0), 3), "{}", texts(&rest).1);
    assert_eq!(n_stored(), 6);
}
