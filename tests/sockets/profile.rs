//! `profile`: against engines of exactly known speed over real sockets the figures come out; nothing is sent without
//! consent, and never more than announced.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::answers::json;
use crate::support::engine::{Engine, Speed};
use crate::support::fake_endpoint::FakeEndpoint;
use crate::support::in_time;
use cema_router::app::{endpoint_spec, timeouts};
use cema_router::calibrate::throughput::{Bench, Step, measure};
use cema_router::calibrate::{Course, Figures, Measured};
use cema_router::config::Config;
use cema_router::endpoint::EndpointPool;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

/// Virtual time moves in steps of this; every duration of an engine is a multiple of it.
const TICK: Duration = Duration::from_millis(5);

/// Turns of all tasks between two ticks: enough for bytes to get through the sockets and be acted on.
const TURNS: usize = 40;

/// The outcome of `future` in virtual time, which stands still until everything sent has arrived. (The clock that
/// tokio moves by itself does not wait for sockets.)
pub(crate) async fn in_virtual_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::pause();
    // While a blocking task runs, the clock does not move by itself.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let holder = tokio::task::spawn_blocking(move || _ = held.recv());
    let ticking = async {
        loop {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(TICK).await;
        }
    };
    let outcome = tokio::select! {
        outcome = future => outcome,
        () = ticking => unreachable!("ticks for ever"),
    };
    drop(release);
    holder.await.unwrap();
    tokio::time::resume();
    outcome
}

pub(crate) fn config_of(kind: &str, nodes: &[(&str, String)], model: &str) -> String {
    let node = |(name, url): &(&str, String)| {
        format!(
            "  - name: {name}\n    endpoints:\n      - {{url: \"{url}\", kind: {kind}, models: [{{{model}}}]}}\n"
        )
    };
    format!("listen: 127.0.0.1:8080\nnodes:\n{}", nodes.iter().map(node).collect::<String>())
}

/// Measures the only destination of `config` in virtual time; also the steps told, answered and skipped.
async fn measured(config: &str, course: &Course) -> (Measured, [u64; 2]) {
    let (measured, steps, _) = measured_at_pace(config, course).await;
    (measured, steps)
}

/// And the pace that was told, if it was.
async fn measured_at_pace(config: &str, course: &Course) -> (Measured, [u64; 2], Option<f64>) {
    let config = Config::parse(config, &|_| None).unwrap();
    let specs = config.fleet.endpoints.iter().map(|endpoint| endpoint_spec(endpoint).unwrap()).collect();
    let pool = EndpointPool::new(specs, timeouts(&config)).unwrap();
    let steps = [AtomicU64::new(0), AtomicU64::new(0)];
    let paces = Mutex::new(Vec::new());
    let on_step = |step| match step {
        Step::Request => _ = steps[0].fetch_add(1, Ordering::Relaxed),
        Step::Skipped(n) => _ = steps[1].fetch_add(n, Ordering::Relaxed),
        Step::Pace(pace) => paces.lock().unwrap().push(pace),
    };
    let destination = &config.fleet.destinations[0];
    let bench = Bench { pool: &pool, destination, course, on_step: &on_step };
    let mut measured = Measured::default();
    in_virtual_time(measure(&bench, &mut measured)).await;
    let steps = steps.map(AtomicU64::into_inner);
    let paces = paces.into_inner().unwrap();
    assert!(paces.len() <= 1, "{paces:?}");
    (measured, steps, paces.first().copied())
}

fn course() -> Course {
    Course {
        prompt_tokens: vec![64, 128, 256],
        repeats: 2,
        completion_tokens: 11,
        max_concurrency: 1,
        seed: 7,
    }
}

/// 100 prompt tokens a second after 50 ms, 20 tokens a second.
const SLOW: Speed = Speed {
    overhead: Duration::from_millis(50),
    per_prompt_token: Duration::from_millis(10),
    per_token: Duration::from_millis(50),
    slowdown: 0.0,
    slots: 4,
};

fn near(value: f64, wanted: f64) -> bool {
    (value / wanted - 1.0).abs() < 0.01
}

/// Default speeds of an edge node, 2,375 and 37.5 tokens a second, say 448 / 2375 + 33 / 37.5 = 1.07 s for the first
/// request of each length; it takes up to 3 × 0.05 + 4.48 + 3 × 0.55 = 6.28 s.
#[tokio::test]
async fn how_far_off_the_announced_time_is_shows_in_the_first_answers() {
    let engine = Engine::start(SLOW, true).await;
    let config = config_of("llamacpp", &[("n", engine.url())], "name: m");
    let (measured, _, pace) = measured_at_pace(&config, &course()).await;
    assert_eq!(measured.failure, None);
    assert!(pace.is_some_and(|pace| (5.2..=5.95).contains(&pace)), "{pace:?}");
}

#[tokio::test]
async fn prefill_and_decode_are_those_of_the_engine() {
    let engine = Engine::start(SLOW, true).await;
    let config = config_of("llamacpp", &[("n", engine.url())], "name: m");
    let (measured, steps) = measured(&config, &course()).await;
    assert_eq!((&measured.failure, &measured.notes, measured.slots), (&None, &Vec::new(), Some(4)));
    let figures = Figures::of(&measured);
    let prefill = figures.prefill.unwrap();
    assert!(near(prefill.speed.get(), 100.0), "{prefill:?}");
    // Within the two ticks that a request and its answer may take.
    assert!((prefill.overhead.get() - 0.05).abs() <= 0.011, "{prefill:?}");
    assert!(near(figures.decode.unwrap().median, 20.0), "{figures:?}");

    // All that was announced has been sent, and nothing else: 2 + 3 × 2 + 4.
    let chats = engine.chats();
    let announced = course().volume();
    assert_eq!((chats.len() as u64, steps), (announced.requests, [announced.requests, 0]));
    assert_eq!(announced.requests, 12);
    assert!(chats.iter().map(|chat| chat.prompt_tokens).sum::<u64>() <= announced.prompt_tokens);
    assert_eq!(chats.iter().map(|chat| chat.completion_tokens).sum::<u64>(), announced.completion_tokens);
    let longest = chats.iter().map(|chat| chat.prompt_tokens).max().unwrap();
    assert!((230..=256).contains(&longest), "close to what was asked for, not above: {longest}");

    // What the servers are asked.
    let mut prompts: Vec<_> =
        chats.iter().map(|chat| chat.body["messages"][0]["content"].to_string()).collect();
    prompts.sort();
    prompts.dedup();
    assert_eq!(prompts.len(), chats.len(), "every prompt is a new one");
    let body = &chats[0].body;
    assert_eq!([&body["ignore_eos"], &body["stream"]], [&Value::Bool(true); 2]);
    assert_eq!((&body["cache_prompt"], &body["temperature"]), (&Value::Bool(false), &Value::from(0)));
}

#[tokio::test]
async fn other_servers_are_asked_for_nothing_they_may_refuse() {
    let engine = Engine::start(SLOW, false).await;
    let config = config_of("openai", &[("n", engine.url())], "name: m, upstream: other");
    let course = Course { prompt_tokens: vec![64], repeats: 1, ..course() };
    measured(&config, &course).await;
    let body = &engine.chats()[0].body;
    assert_eq!(
        (&body["model"], body.get("ignore_eos"), body.get("cache_prompt")),
        (&"other".into(), None, None)
    );
}

/// Prompts cost nothing, so that the ladder is that of generation alone: n / (1 + 0.1 (n − 1)).
const BATCHING: Speed =
    Speed { overhead: Duration::ZERO, per_prompt_token: Duration::ZERO, slowdown: 0.1, ..SLOW };

#[tokio::test]
async fn the_speed_up_is_that_of_the_engine() {
    let engine = Engine::start(BATCHING, true).await;
    let config = config_of("llamacpp", &[("n", engine.url())], "name: m");
    let course = Course { prompt_tokens: vec![64], repeats: 1, max_concurrency: 4, ..course() };
    let (measured, _) = measured(&config, &course).await;
    let rungs: Vec<_> = measured.rungs.iter().map(|rung| (rung.concurrency, rung.running_max())).collect();
    assert_eq!(rungs, [(1, 1), (2, 2), (4, 4)]);
    let fit = Figures::of(&measured).ladder.unwrap();
    assert_eq!((fit.max_concurrency, fit.slots), (4, Some(4)));
    assert!((fit.batch_speedup / (4.0 / 1.3) - 1.0).abs() < 0.05, "{fit:?}");
    assert_eq!(Figures::of(&measured).prefill, None, "all prompts take the same time");
}

#[tokio::test]
async fn slots_nobody_told_of_are_found_and_the_ladder_ends_there() {
    let engine = Engine::start(BATCHING, false).await;
    let config = config_of("vllm", &[("n", engine.url())], "name: m");
    let course = Course { prompt_tokens: vec![64], repeats: 1, max_concurrency: 64, ..course() };
    let (measured, _) = measured(&config, &course).await;
    // 8 and 16 at once bring nothing over 4: 32 and 64 are not tried.
    assert_eq!(measured.rungs.last().unwrap().concurrency, 16);
    let fit = Figures::of(&measured).ladder.unwrap();
    assert_eq!((fit.slots, fit.max_concurrency), (Some(4), 4), "{fit:?}");
    assert!((fit.batch_speedup / (4.0 / 1.3) - 1.0).abs() < 0.05, "{fit:?}");
    assert!((engine.chats().len() as u64) < course.volume().requests);
}

#[tokio::test]
async fn no_more_is_sent_than_announced_whatever_the_server_counts() {
    // After the warm-up every word is suddenly five tokens.
    let engine = Engine::start_with(SLOW, true, |chat| if chat < 2 { 1 } else { 5 }).await;
    let config = config_of("llamacpp", &[("n", engine.url())], "name: m");
    let (measured, _) = measured(&config, &course()).await;
    let failure = measured.failure.unwrap();
    assert!(failure.contains("announced"), "{failure}");
    let sent: u64 = engine.chats().iter().map(|chat| chat.prompt_tokens).sum();
    // The request that shows it is the only one beyond.
    let before: u64 = engine.chats().iter().rev().skip(1).map(|chat| chat.prompt_tokens).sum();
    let announced = course().volume();
    assert!(before <= announced.prompt_tokens, "{before} of {announced:?}, then {sent}");
    assert!((engine.chats().len() as u64) < announced.requests);
}

#[tokio::test]
async fn an_endpoint_that_refuses_long_prompts_is_measured_with_short_ones() {
    let too_long = r#"{"error":{"message":"too long for me","type":"invalid_request_error","code":400}}"#;
    let endpoint = FakeEndpoint::start(move |request| {
        let words = String::from_utf8_lossy(&request.body).split_whitespace().count();
        if request.head.method() != "POST" {
            return json(404, "{}");
        }
        if words > 150 {
            return json(400, too_long);
        }
        let events = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\"}}}}]}}\n\n\
             data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{words},\"completion_tokens\":11}}}}\n\ndata: [DONE]\n\n"
        );
        crate::support::answers::with_type(200, "text/event-stream", &events)
    })
    .await;
    let config = config_of("vllm", &[("n", endpoint.url())], "name: m");
    let (measured, steps) = measured(&config, &course()).await;
    assert_eq!((measured.failure, measured.singles.len()), (None, 4));
    assert_eq!(measured.notes, ["256 prompt tokens: answered 400 Bad Request: too long for me"]);
    assert_eq!(steps, [11, 1], "one is asked and refused, one is left out");
}

/// A configuration file in a folder of its own.
pub(crate) fn on_disk(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

pub(crate) fn profile(what: &str, config: &PathBuf, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cema-router"));
    command.args(["profile", what, "--config"]).arg(config).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

pub(crate) async fn run(what: &str, config: &PathBuf, args: &[&str]) -> Output {
    in_time("profile to end", profile(what, config, args).output()).await.unwrap()
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Short enough for real time.
const QUICK: &[&str] = &["--prompt-tokens", "64,256", "--completion-tokens", "4", "--repeats", "2", "--yes"];

#[tokio::test]
async fn nothing_is_sent_without_consent() {
    let engine = Engine::start(Speed::FAST, true).await;
    let model = "name: m, price: {completion_usd_per_mtok: 1000}";
    let (_folder, config) = on_disk(&config_of("llamacpp", &[("n", engine.url())], model));
    let output = run("throughput", &config, &[]).await;
    let (_, said) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    // 2 + 3 × 3 + 4 × 1 + 2 × 2 requests: 16 + 17 × 64 completion tokens of 0.001 USD.
    assert!(said.contains("n/m: 19 requests, ") && said.contains(" and 1104 completion tokens"), "{said}");
    assert!(said.contains("1.1040 USD") && said.contains("--yes"), "{said}");
    assert!(engine.chats().is_empty());
}

#[tokio::test]
async fn a_destination_that_is_down_costs_the_others_nothing() {
    let engine = Engine::start(Speed::FAST, true).await;
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nodes = [("down", format!("http://{nowhere}")), ("up", engine.url())];
    let (folder, config) = on_disk(&config_of("llamacpp", &nodes, "name: m, upstream: u"));
    let (out, plots) = (folder.path().join("out.yaml"), folder.path().join("plots"));
    let mut args = QUICK.to_vec();
    args.extend(["--out", out.to_str().unwrap(), "--plot", plots.to_str().unwrap(), "--format", "json"]);
    let output = run("throughput", &config, &args).await;
    let (results, said) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("down/m: cannot connect"), "{said}");
    let results: Value = serde_json::from_str(&results).unwrap();
    let [down, up] = [&results["destinations"][0], &results["destinations"][1]];
    assert!(down["failure"].is_string() && down["figures"]["decode_tps"].is_null());
    assert!(up["failure"].is_null(), "{up}");

    // Two rungs, 4 × 1 and 2 × 2.
    assert_eq!(engine.chats().len(), 2 + 2 * 2 + 4 + 4);
    assert_eq!(up["rungs"].as_array().unwrap().len(), 2);

    // The fragment is a configuration with these figures once it says where to listen.
    let yaml = std::fs::read_to_string(&out).unwrap();
    let merged = Config::parse(&format!("listen: 127.0.0.1:8080\n{yaml}"), &|_| None).unwrap();
    let [destination] = merged.fleet.destinations.as_slice() else { panic!("{yaml}") };
    assert_eq!((destination.id.as_str(), &*destination.upstream_model), ("up/m", "u"));
    let figure = |path: &str| up["figures"].pointer(path).unwrap().as_f64().unwrap();
    let throughput = destination.throughput;
    assert!((throughput.decode.get() / figure("/decode_tps/median") - 1.0).abs() < 1e-3);
    assert!((throughput.batch_speedup / figure("/ladder/batch_speedup") - 1.0).abs() < 1e-3);
    assert!((f64::from(throughput.max_concurrency) - figure("/ladder/max_concurrency")).abs() < 1e-9);
    let chart = std::fs::read_to_string(plots.join("throughput-up-m.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("Time to first token"), "{chart}");
    assert!(!plots.join("throughput-down-m.svg").exists());
}

#[tokio::test]
async fn copied_under_its_model_the_fragment_passes_check_config() {
    let engine = Engine::start(Speed::FAST, true).await;
    let config = format!(
        "listen: 127.0.0.1:8080\nnodes:\n  - name: n\n    endpoints:\n      - url: \"{}\"\n        kind: llamacpp\n        models:\n          - name: m\n            parameters_b: 0.135\n",
        engine.url()
    );
    let (folder, path) = on_disk(&config);
    let output = run("throughput", &path, QUICK).await;
    let (results, said) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let section = &results[results.find("            throughput:\n").unwrap()..];
    let merged = folder.path().join("merged.yaml");
    std::fs::write(&merged, config + section).unwrap();
    let check = Command::new(env!("CARGO_BIN_EXE_cema-router"))
        .arg("check-config")
        .arg(&merged)
        .output()
        .await
        .unwrap();
    assert!(check.status.success(), "{}", texts(&check).0);
}

#[tokio::test]
async fn interrupted_it_tells_what_it_has() {
    // An answer takes 64 tokens of 50 ms: there is time to interrupt.
    let engine = Engine::start(Speed { per_token: Duration::from_millis(50), ..Speed::FAST }, true).await;
    let (_folder, config) = on_disk(&config_of("llamacpp", &[("n", engine.url())], "name: m"));
    let child = profile("throughput", &config, &["--yes", "--completion-tokens", "4"]).spawn().unwrap();
    in_time("some requests", async {
        while engine.chats().len() < 6 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::INT)
        .unwrap();
    let output = in_time("profile to end", child.wait_with_output()).await.unwrap();
    let (results, said) = texts(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(results.contains("tokens/s alone") && results.contains("decode_tps: "), "{results}");
    assert!(!results.contains("batch_speedup"), "{results}");
}

#[tokio::test]
async fn unknown_destinations_are_named() {
    let (_folder, config) = on_disk(&config_of("vllm", &[("n", "http://127.0.0.1:1".to_owned())], "name: m"));
    let output = run("throughput", &config, &["--destination", "n/x", "--yes"]).await;
    let (_, said) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("no destination `n/x`; there are n/m"), "{said}");
}

#[tokio::test]
async fn connects_are_timed_and_nothing_is_sent() {
    let endpoint = FakeEndpoint::start(|_| json(500, "{}")).await;
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nodes = [("near", endpoint.url()), ("down", format!("http://{nowhere}"))];
    let (_folder, config) = on_disk(&config_of("vllm", &nodes, "name: m"));
    let output = run("network", &config, &["--count", "3"]).await;
    let (results, _) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(results.contains("FAILED: cannot connect"), "{results}");
    endpoint.connections_reach(3).await;
    assert_eq!((endpoint.connections(), endpoint.requests().len()), (3, 0));
    assert!(results.contains("- name: \"near\"\n    network:\n      rtt_ms: "), "{results}");
    assert!(!results.contains("- name: \"down\""), "{results}");

    let output = run("network", &config, &["--count", "3", "--format", "json"]).await;
    let results: Value = serde_json::from_str(&texts(&output).0).unwrap();
    assert_eq!(results["endpoints"][0]["tcp"]["n"], 3);
    assert!(results["endpoints"][0]["tcp"]["median_s"].as_f64().unwrap() > 0.0);
}
