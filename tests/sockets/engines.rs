//! What engines say of themselves, as a router reads it from scripted servers: pages as vLLM and llama.cpp write them
//! (recorded) and a *fake Ollama front*, which loads models on demand as its published source does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::answers::{chat, chat_body, chat_events, chat_stream, healthy, json, with_type};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Node, Router, ask, ask_stream, node};
use crate::support::fake_endpoint::{FakeEndpoint, Recorded, Step};
use crate::support::in_time;
use crate::support::metrics::Metrics;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const VLLM: &str = include_str!("../fixtures/engines/vllm-metrics.txt");
const LLAMACPP: &str = include_str!("../fixtures/engines/llamacpp-metrics.txt");

/// A model of 5 GB, which is expected to load in 20 s on an edge box.
const TAGS: &str = r#"{"models":[{"name":"m:latest","model":"m:latest","size":5000000000}]}"#;
const LOADED: &str =
    r#"{"models":[{"name":"m:latest","model":"m:latest","size":6000000000,"size_vram":6000000000}]}"#;

/// A load takes at least this long here, which is longer than a router waits for models that are loaded: its clocks
/// are set to as little as the 20 s of the model are to its usual ones.
const LOAD: Duration = Duration::from_millis(800);

/// The state of a fake Ollama front.
#[derive(Debug)]
struct Ollama {
    load: Duration,
    loads_until: Option<Instant>,
    n_loads: usize,
    /// Has a permit for every request that may be answered.
    may_answer: Arc<Semaphore>,
}

impl Ollama {
    /// A request comes: the first one makes the model load, and all wait until it has.
    fn wait(&mut self) -> Vec<Step> {
        let now = Instant::now();
        let until = *self.loads_until.get_or_insert_with(|| {
            self.n_loads += 1;
            now + self.load
        });
        vec![Step::Pause(until.saturating_duration_since(now)), Step::Gate(Arc::clone(&self.may_answer))]
    }

    /// Its `/api/ps`, which lists a model as soon as it begins to load.
    fn ps(&self) -> &'static str {
        if self.loads_until.is_some() { LOADED } else { r#"{"models":[]}"# }
    }
}

/// A fake Ollama front whose model is not loaded; it answers `n_answers` requests.
async fn cold_ollama(load: Duration, n_answers: usize) -> (FakeEndpoint, Arc<Mutex<Ollama>>) {
    let may_answer = Arc::new(Semaphore::new(n_answers));
    let state = Arc::new(Mutex::new(Ollama { load, loads_until: None, n_loads: 0, may_answer }));
    let inside = Arc::clone(&state);
    let endpoint = FakeEndpoint::start(move |request| match &*request.head.path() {
        "/api/version" => json(200, r#"{"version":"0.33.0"}"#),
        "/api/tags" => json(200, TAGS),
        "/api/ps" => json(200, inside.lock().unwrap().ps()),
        _ => [inside.lock().unwrap().wait(), says_hello(request)].concat(),
    })
    .await;
    (endpoint, state)
}

fn says_hello(request: &Recorded) -> Vec<Step> {
    let body = String::from_utf8_lossy(&request.body);
    if body.contains(r#""stream":true"#) { chat_stream("m", &["hello"]) } else { chat("m", "hello") }
}

/// A node with a fake Ollama front at this price.
fn ollama(name: &str, endpoint: &FakeEndpoint, usd: u32) -> Node {
    let model = format!(
        "{{name: m, price: {{request_usd: {usd}}}, throughput: {{prefill_tps: 1000, decode_tps: 1000, max_concurrency: 8}}}}"
    );
    node(name, endpoint.url()).ollama().model(&model)
}

/// The destinations as soon as `wanted` is true of them.
async fn destinations(
    router: &Router,
    what: &str,
    wanted: fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    in_time(what, async {
        loop {
            let shown = router.admin_get("/admin/v1/destinations").await.json()["destinations"].take();
            if wanted(&shown) {
                return shown;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_cold_model_is_priced_and_waited_for_and_loads_once() {
    let ((cheap, cheap_state), (dear, dear_state)) = (cold_ollama(LOAD, 0).await, cold_ollama(LOAD, 0).await);
    let limits = "timeouts: {first_byte_ms: 200, first_token_ms: 300, load_ms: 20000}\n";
    let nodes = [ollama("cheap", &cheap, 1), ollama("dear", &dear, 2)];
    let router = Router::start(&nodes, &format!("{CHEAPEST_FIRST}{limits}")).await;
    let cold = destinations(&router, "both to be known as cold, to plans too", |shown| {
        let is_cold = |d: usize| shown[d]["loaded"] == false && shown[d]["warm_up_s"] == 20.0;
        is_cold(0) && is_cold(1) && shown[0]["load_s"] == 20.0
    })
    .await;
    assert_eq!((&cold[0]["state"], &cold[0]["loading"]), (&"ready".into(), &false.into()));

    let mut first = router.client().await;
    first.post(CHAT, "x-cema-debug: true\r\n", &ask("m")).await;
    cheap.posts_reach(1).await;
    let loading = destinations(&router, "the load to be known", |shown| shown[0]["loading"] == true).await;
    assert_eq!(loading[1]["loading"], false);
    // Another one for the same model waits for the same load.
    let mut second = router.client().await;
    second.post(CHAT, "", &ask("m")).await;
    cheap.posts_reach(2).await;
    cheap_state.lock().unwrap().may_answer.add_permits(2);
    let answer = first.answer().await;
    assert_eq!(answer.text(), chat_body("m", "hello"));
    // It was told to take the load's 20 s, and a quarter of a second for what is usual to be answered.
    let predicted = answer.head.header("x-cema-predicted").unwrap();
    let seconds = predicted.split("seconds=").nth(1).and_then(|rest| rest.split([',', ';', ' ']).next());
    let seconds: f64 = seconds.and_then(|seconds| seconds.parse().ok()).unwrap();
    assert!((20.0..21.0).contains(&seconds), "{predicted}");
    assert_eq!(second.answer().await.text(), chat_body("m", "hello"));

    let count = |state: &Mutex<Ollama>| state.lock().unwrap().n_loads;
    assert_eq!((count(&cheap_state), count(&dear_state)), (1, 0));
    assert_eq!((cheap.posts().len(), dear.posts().len()), (2, 0));
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_upstream_attempts_total", &[]), 0);
    let of_cheap = [("destination", "cheap/m")];
    assert_eq!(metrics.count("cema_model_loaded", &of_cheap), 1);
    let load_s = metrics.sum("cema_model_load_seconds", &of_cheap);
    // Its own work, nine tokens in and three out, is no part of it.
    assert!((0.7..20.0).contains(&load_s), "{load_s}");
}

#[tokio::test]
async fn a_stream_from_a_cold_model_is_kept_alive_until_it_is_loaded() {
    let (endpoint, _) = cold_ollama(LOAD, 1).await;
    let limits =
        "timeouts: {commit_after_ms: 100, first_byte_ms: 200, first_token_ms: 300, load_ms: 20000}\n";
    let router = Router::start(&[ollama("a", &endpoint, 1)], &format!("{CHEAPEST_FIRST}{limits}")).await;
    destinations(&router, "it to be known as cold", |shown| shown[0]["loaded"] == false).await;
    let answer = router.chat(&ask_stream("m")).await;
    let text = answer.text();
    assert!(answer.is_complete && text.contains(": ping\n"), "{text}");
    assert_eq!(text.replace(": ping\n", ""), chat_events("m", &["hello"]));
    let load_s = router.idle().await.sum("cema_model_load_seconds", &[]);
    assert!((0.7..20.0).contains(&load_s), "{load_s}");
}

#[tokio::test]
async fn the_time_to_load_has_a_bound() {
    let (endpoint, state) = cold_ollama(Duration::from_secs(3600), 0).await;
    let limits = "timeouts: {first_byte_ms: 100, first_token_ms: 100, load_ms: 300}\n";
    let router = Router::start(&[ollama("a", &endpoint, 1)], &format!("{CHEAPEST_FIRST}{limits}")).await;
    destinations(&router, "it to be known as cold", |shown| shown[0]["loaded"] == false).await;
    let began = Instant::now();
    let answer = router.chat(&ask("m")).await;
    assert_eq!(answer.head.status(), 504, "{}", answer.text());
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    assert_eq!(state.lock().unwrap().n_loads, 1);
    // Nobody waits for it any more.
    destinations(&router, "the load to be given up", |shown| shown[0]["loading"] == false).await;
}

#[tokio::test]
async fn a_model_that_is_loaded_has_no_time_to_load() {
    let slow = FakeEndpoint::start(|request| match &*request.head.path() {
        "/api/version" => json(200, r#"{"version":"0.33.0"}"#),
        "/api/tags" => json(200, TAGS),
        "/api/ps" => json(200, LOADED),
        _ => vec![Step::WaitClientClose],
    })
    .await;
    let (other, other_state) = cold_ollama(Duration::ZERO, 1).await;
    let limits = "timeouts: {first_byte_ms: 200, load_ms: 60000}\n";
    let nodes = [ollama("slow", &slow, 1), ollama("other", &other, 2)];
    let router = Router::start(&nodes, &format!("{CHEAPEST_FIRST}{limits}")).await;
    destinations(&router, "both to be known", |shown| {
        shown[0]["loaded"] == true && shown[1]["loaded"] == false
    })
    .await;
    let answer = router.chat(&ask("m")).await;
    assert_eq!(answer.head.header("x-cema-destination").as_deref(), Some("other/m"));
    assert_eq!(other_state.lock().unwrap().n_loads, 1);
}

/// A server of any kind with these pages and an empty health page.
async fn with_pages(page: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> FakeEndpoint {
    FakeEndpoint::start(move |request| match &*request.head.path() {
        "/health" => healthy(),
        path if request.head.method() == "GET" => match page(path) {
            Some(text) => with_type(200, "text/plain; version=1.0.0; charset=utf-8", &text),
            None => json(404, r#"{"detail":"Not Found"}"#),
        },
        _ => chat("m", "hello"),
    })
    .await
}

#[tokio::test]
async fn the_queue_of_a_vllm_is_shown_while_it_tells() {
    let tells = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&tells);
    let page = VLLM
        .replace(
            "vllm:num_requests_running{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 0.0",
            "vllm:num_requests_running{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 4.0",
        )
        .replace(
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 0.0",
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 3.0",
        )
        .replace(
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 0.0",
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 0.5",
        );
    // Beyond what a page may have, nothing is read of it.
    let endless = format!("{page}{}", "# padding\n".repeat(200_000));
    let endpoint = with_pages(move |path| {
        (path == "/metrics")
            .then(|| if still.load(Ordering::Relaxed) { page.clone() } else { endless.clone() })
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    let at = [("endpoint", "a")];
    let is_shown = |metrics: &Metrics| metrics.count("cema_engine_running", &[]) > 0;
    let metrics = router.metrics_reach("its page to be read", is_shown).await;
    assert_eq!(metrics.count("cema_engine_running", &at), 4);
    assert_eq!(metrics.count("cema_engine_waiting", &at), 3);
    assert!((metrics.sum("cema_engine_kv_usage_ratio", &at) - 0.5).abs() < 1e-9);
    assert_eq!(metrics.count("cema_requests_total", &[]), 0, "pages are no traffic");
    tells.store(false, Ordering::Relaxed);
    let is_gone =
        |metrics: &Metrics| metrics.samples.iter().all(|sample| !sample.name.starts_with("cema_engine"));
    router.metrics_reach("it to be forgotten", is_gone).await;
    assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "hello"));
}

/// The page of a vLLM that runs and keeps waiting so many.
fn vllm_page(running: u32, waiting: u32) -> String {
    let labels = "{engine=\"0\",model_name=\"smollm2-135m-instruct\"}";
    let set = |page: &str, name: &str, value: u32| {
        let before = format!("vllm:{name}{labels} 0.0");
        assert!(page.contains(&before), "{before}");
        page.replace(&before, &format!("vllm:{name}{labels} {value}.0"))
    };
    set(&set(VLLM, "num_requests_running", running), "num_requests_waiting", waiting)
}

#[tokio::test]
async fn a_cap_that_is_wrong_is_said_and_gives_way_where_it_was_a_default() {
    let vllm =
        |running, waiting| with_pages(move |path| (path == "/metrics").then(|| vllm_page(running, waiting)));
    let (declared, right, default) = (vllm(2, 3).await, vllm(4, 3).await, vllm(70, 0).await);
    let tells = with_pages(|path| {
        let props = include_str!("../fixtures/engines/llamacpp-props.json");
        (path == "/props").then(|| props.replace("\"total_slots\":4", "\"total_slots\":8"))
    })
    .await;
    let four = "{name: m, throughput: {max_concurrency: 4}}";
    let nodes = [
        node("declared", declared.url()).model(four),
        node("right", right.url()).model(four),
        node("default", default.url()).model("{name: m}"),
        node("tells", tells.url()).llamacpp().model("{name: m}"),
    ];
    let router = Router::start(&nodes, CHEAPEST_FIRST).await;
    let shown = destinations(&router, "all of it to be seen", |shown| {
        !shown[0]["slot_cap_mismatch"].is_null()
            && shown[2]["max_concurrency"] == 70
            && shown[3]["max_concurrency"] == 8
    })
    .await;
    let wrong = serde_json::json!({"believed": 4, "observed": 2, "sign": "queueing_below"});
    assert_eq!((&shown[0]["slot_cap_mismatch"], &shown[0]["max_concurrency"]), (&wrong, &4.into()));
    assert_eq!((&shown[1]["slot_cap_mismatch"], &shown[1]["max_concurrency"]), (&().into(), &4.into()));
    assert_eq!((&shown[2]["slot_cap_mismatch"], &shown[2]["max_inflight"]), (&().into(), &140.into()));
    let source = |d: usize| shown[d]["figures"]["max_concurrency"]["source"].as_str().unwrap();
    assert_eq!([source(0), source(1), source(2), source(3)], ["configured", "configured", "live", "engine"]);
    let metrics = router.metrics().await;
    let gauge = |id: &str| {
        let of = |s: &&crate::support::metrics::Sample| {
            s.name == "cema_slot_cap_mismatch" && s.labels["destination"] == id
        };
        metrics.samples.iter().find(of).map(|s| s.value)
    };
    assert_eq!(["declared/m", "right/m", "default/m"].map(gauge), [Some(1.0), Some(0.0), Some(0.0)]);
}

#[tokio::test]
async fn what_is_sent_while_a_page_is_read_is_not_taken_for_others_when_the_cache_is_full() {
    let (page_gate, chat_gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (page_passes, chat_passes) = (Arc::clone(&page_gate), Arc::clone(&chat_gate));
    let full = vllm_page(2, 0).replace(
        "kv_cache_usage_perc{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 0.0",
        "kv_cache_usage_perc{engine=\"0\",model_name=\"smollm2-135m-instruct\"} 1.0",
    );
    let endpoint = FakeEndpoint::start(move |request| match &*request.head.path() {
        "/health" => healthy(),
        "/metrics" => {
            [vec![Step::Gate(Arc::clone(&page_passes))], with_type(200, "text/plain; version=0.0.4", &full)]
                .concat()
        }
        _ => [vec![Step::Gate(Arc::clone(&chat_passes))], chat("m", "hello")].concat(),
    })
    .await;
    let model = "{name: m, throughput: {max_concurrency: 4}}";
    let router = Router::start(&[node("a", endpoint.url()).model(model)], CHEAPEST_FIRST).await;
    let is_page = |request: &Recorded| request.head.path() == "/metrics";
    let mut n_seen = 1;
    while !endpoint.requests_reach(n_seen).await.iter().any(is_page) {
        n_seen += 1;
    }
    let body = ask("m");
    let asked = async { tokio::join!(router.chat(&body), router.chat(&body)) };
    let looked = async {
        endpoint.posts_reach(2).await;
        page_gate.add_permits(1);
        let shown =
            destinations(&router, "the page to be read", |shown| shown[0]["max_concurrency"] != 4).await;
        chat_gate.add_permits(2);
        shown
    };
    let (_, shown) = tokio::join!(asked, looked);
    assert_eq!(shown[0]["max_concurrency"], 2, "both that run are the router's own");
}

#[tokio::test]
async fn a_llamacpp_that_may_sleep_is_asked_for_its_queue_only_while_it_works() {
    let is_asleep = Arc::new(AtomicBool::new(true));
    let asleep = Arc::clone(&is_asleep);
    let endpoint = FakeEndpoint::start(move |request| match &*request.head.path() {
        "/health" => json(200, r#"{"status":"ok"}"#),
        "/props" => {
            json(200, &format!(r#"{{"total_slots":4,"is_sleeping":{}}}"#, asleep.load(Ordering::Relaxed)))
        }
        "/metrics" => with_type(200, "text/plain; version=0.0.4", LLAMACPP),
        _ => {
            asleep.store(false, Ordering::Relaxed);
            vec![Step::WaitClientClose]
        }
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url()).llamacpp()], CHEAPEST_FIRST).await;
    destinations(&router, "it to be known as asleep", |shown| shown[0]["loaded"] == false).await;
    let asked = |path: &str| endpoint.requests().iter().filter(|request| request.head.path() == path).count();
    assert_eq!(asked("/metrics") + asked("/slots"), 0);
    let mut client = router.client().await;
    client.post(CHAT, "", &ask("m")).await;
    let is_shown = |metrics: &Metrics| metrics.samples.iter().any(|s| s.name == "cema_engine_running");
    router.metrics_reach("its queue to be read", is_shown).await;
    client.reset();
    let is_gone = |metrics: &Metrics| !is_shown(metrics);
    router.metrics_reach("it to be left alone", is_gone).await;
    assert_eq!(asked("/slots"), 0);
    assert!(!is_asleep.load(Ordering::Relaxed));
}

#[tokio::test]
async fn an_endpoint_that_is_silent_at_work_is_busy_and_takes_more() {
    let is_jammed = Arc::new(AtomicBool::new(false));
    let jammed = Arc::clone(&is_jammed);
    let endpoint = FakeEndpoint::start(move |request| {
        let id = request.head.header("x-request-id");
        match &*request.head.path() {
            "/health" if jammed.load(Ordering::Relaxed) => vec![Step::WaitClientClose],
            "/health" => healthy(),
            "/metrics" => json(404, "{}"),
            _ if id.as_deref() == Some("long") => vec![Step::WaitClientClose],
            _ => chat("m", "hello"),
        }
    })
    .await;
    let router = Router::start(&[node("a", endpoint.url())], CHEAPEST_FIRST).await;
    let mut client = router.client().await;
    client.post(CHAT, "x-request-id: long\r\n", &ask("m")).await;
    endpoint.posts_reach(1).await;
    is_jammed.store(true, Ordering::Relaxed);
    let at = [("endpoint", "a")];
    let is_busy = |metrics: &Metrics| metrics.count("cema_endpoint_busy", &[("endpoint", "a")]) == 1;
    let metrics = router.metrics_reach("it to be busy", is_busy).await;
    assert_eq!(metrics.count("cema_endpoint_up", &at), 1);
    destinations(&router, "that to be shown", |shown| shown[0]["state"] == "busy").await;
    assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "hello"));
    is_jammed.store(false, Ordering::Relaxed);
    destinations(&router, "it to answer again", |shown| shown[0]["state"] == "ready").await;
    // Without work there is nothing to be busy with.
    is_jammed.store(true, Ordering::Relaxed);
    client.reset();
    destinations(&router, "it to be down", |shown| shown[0]["state"] == "down").await;
}
