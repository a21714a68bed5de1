//! Power sources and the energy of requests: a stand-in for NVML, exporters on sockets, and the agent itself.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::answers::{chat, json, with_type, write};
use crate::support::app::{CHAT, Router, ask, config_text, get, llm, node, nowhere};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::in_time;
use crate::support::metrics::Metrics;
use crate::support::nvml::{Board, Drawing};
use crate::support::process::Process;
use crate::support::raw_client::RawClient;
use tokio::sync::Semaphore;

const WATTS: &str = "cema_node_power_watts";
const JOULES: &str = "cema_energy_joules_total";
const NODE_JOULES: &str = "cema_node_energy_joules_total";

/// `power` of a node whose configured watts tell it from any meter: 80 serving, 20 idle.
fn power(sources: &str) -> String {
    format!("{{board_watts: 100, utilisation: 0.8, idle_watts: 20, source: {sources}}}")
}

fn nvml(board: &Board) -> String {
    format!("{{nvml: 0, library: {}}}", board.library().display())
}

async fn metrics_of(addr: SocketAddr) -> Metrics {
    let answer = get(addr, "/metrics").await;
    assert_eq!(answer.head.status(), 200);
    Metrics::parse(&answer.text())
}

async fn metrics_reach(addr: SocketAddr, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
    in_time(what, async {
        loop {
            let metrics = metrics_of(addr).await;
            if wanted(&metrics) {
                return metrics;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// The node's watts by sources; every source that is on the page.
fn watts(metrics: &Metrics) -> Vec<(&str, f64)> {
    let of_node = metrics.samples.iter().filter(|sample| sample.name == WATTS);
    of_node.map(|sample| (sample.labels["source"].as_str(), sample.value)).collect()
}

#[track_caller]
fn assert_close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance * expected, "{value} is not {expected}");
}

#[tokio::test]
async fn without_nvml_and_exporter_the_configured_watts_stand_and_the_exporter_comes_back() {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let exporter = FakeEndpoint::start(move |_| match up.load(Ordering::Relaxed) {
        true => with_type(200, "text/plain", "DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"a\"} 61.5\n"),
        false => json(503, "{}"),
    })
    .await;
    let endpoint = llm(|_| chat("m", "hi")).await;
    let sources = format!(
        "[{{nvml: 0, library: /nonexistent/libnvidia-ml.so.1}}, {{scrape: \"{}/metrics\"}}, {{scrape: \"{}\"}}]",
        nowhere().await,
        exporter.url()
    );
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    fs::write(&config, config_text(&[node("n", endpoint.url()).power(&power(&sources))], "")).unwrap();
    let mut router = Process::start(&["serve", "--config", config.to_str().unwrap()]);
    // What is logged of the sources may come before or after what it listens on.
    let (mut listening, mut errors) = (None, Vec::new());
    while listening.is_none() || errors.len() < 6 {
        let line = router.next_logged("its start").await;
        match line["message"].as_str().unwrap() {
            "listening" => listening = Some(line),
            text if text.starts_with("power source does not answer") => {
                errors.push(line["error"].as_str().unwrap().to_owned());
            }
            _ => {}
        }
    }
    // Each source is asked for an energy counter and for power.
    for (errors, expected) in
        errors.chunks(2).zip(["/nonexistent/libnvidia-ml.so.1", "cannot be reached", "status 503"])
    {
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
    let address =
        |name: &str| listening.as_ref().unwrap()[name].as_str().unwrap().parse::<SocketAddr>().unwrap();
    let (api, admin) = (address("listen"), address("admin"));
    let metrics = metrics_reach(admin, "the configured watts", |m| !watts(m).is_empty()).await;
    assert_eq!(watts(&metrics), [("static", 20.0)]);

    let mut client = RawClient::connect(api).await;
    client.post(CHAT, "", ask("m")).await;
    assert_eq!(client.answer().await.head.status(), 200);
    let metrics = metrics_of(admin).await;
    assert!(metrics.sum(JOULES, &[("source", "modelled")]) > 0.0);
    assert!(metrics.sum(JOULES, &[("source", "measured")]).abs() < 1e-12);

    is_up.store(true, Ordering::Relaxed);
    let metrics = metrics_reach(admin, "the exporter", |m| watts(m)[0].0 == "scrape").await;
    assert_eq!(watts(&metrics), [("scrape", 61.5)], "one source at a time");
    let changed = router.logged("power source").await;
    assert!(changed["to"].as_str().unwrap().contains("DCGM_FI_DEV_POWER_USAGE"), "{changed}");

    is_up.store(false, Ordering::Relaxed);
    let metrics = metrics_reach(admin, "the configured watts again", |m| watts(m)[0].0 == "static").await;
    assert_eq!(watts(&metrics), [("static", 20.0)]);
    assert_eq!(metrics.count("cema_power_readings_dropped_total", &[("reason", "missed")]), 3);
}

/// An endpoint that answers what it is asked once its gate is opened, each request with as many tokens as it asks for.
async fn gated() -> (FakeEndpoint, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let endpoint = llm(move |request| {
        let asked: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let body = format!(
            "{{\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"x\"}},\"finish_reason\":\"stop\"}}],\
             \"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{0},\"total_tokens\":0}}}}",
            asked["max_tokens"]
        );
        let len = body.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        vec![Step::Gate(Arc::clone(&opened)), write(format!("{head}content-length: {len}\r\n\r\n{body}"))]
    })
    .await;
    (endpoint, gate)
}

#[tokio::test]
async fn what_requests_drew_sums_to_what_the_board_counted() {
    const IDLE_MW: u64 = 100;
    let board = Arc::new(Board::build());
    let drawing = Drawing::start(Arc::clone(&board), IDLE_MW);
    let (endpoint, gate) = gated().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let fleet = [node("n", endpoint.url()).power(&power(&nvml(&board)))];
    fs::write(&config, config_text(&fleet, "")).unwrap();
    let log = "info,cema_router::profiler::power=debug";
    let mut router = Process::start(&["serve", "--config", config.to_str().unwrap(), "--log", log]);
    let listening = router.logged("listening").await;
    let address = |name: &str| listening[name].as_str().unwrap().parse::<SocketAddr>().unwrap();
    let (api, admin) = (address("listen"), address("admin"));
    let metrics = metrics_reach(admin, "idle energy", |m| m.sum(NODE_JOULES, &[("use", "idle")]) > 0.0).await;
    assert_eq!(watts(&metrics)[0].0, "nvml");
    assert!(watts(&metrics)[0].1 < 1.0, "far from 20 configured");

    let mut clients = Vec::new();
    for tokens in [20, 60, 120] {
        let mut client = RawClient::connect(api).await;
        let id = format!("x-request-id: r{tokens}\r\n");
        client.post(CHAT, &id, ask("m").replace(":8}", &format!(":{tokens}}}"))).await;
        clients.push(client);
    }
    endpoint.posts_reach(3).await;
    let before = drawing.set(250_000);
    let requests = |m: &Metrics| m.sum(NODE_JOULES, &[("use", "requests")]);
    metrics_reach(admin, "energy of requests", |m| requests(m) > 400.0).await;
    let drawn = drawing.set(IDLE_MW) - before;
    gate.add_permits(3);
    for client in &mut clients {
        assert_eq!(client.answer().await.head.status(), 200);
    }

    let mut of_requests = Vec::new();
    for _ in 0..3 {
        let settled = router.logged("energy settled").await;
        assert_eq!(settled["source"], "measured", "{settled}");
        of_requests
            .push((settled["request_id"].as_str().unwrap().to_owned(), settled["joules"].as_f64().unwrap()));
    }
    of_requests.sort_by(|a, b| a.1.total_cmp(&b.1));
    let names: Vec<_> = of_requests.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(names, ["r20", "r60", "r120"], "more tokens, more joules: {of_requests:?}");
    assert_close(of_requests.iter().map(|(_, joules)| joules).sum(), drawn, 0.01);
    let metrics = metrics_of(admin).await;
    assert_close(metrics.sum(JOULES, &[("source", "measured")]), drawn, 0.01);
    assert_close(requests(&metrics), drawn, 0.01);
    assert!(metrics.sum(JOULES, &[("source", "modelled")]).abs() < 1e-12);
}

#[tokio::test]
async fn a_board_without_a_counter_gives_its_power_and_one_without_either_is_not_at_0_watts() {
    let board = Board::build();
    board.set("power_mw", 42_000);
    let endpoint = llm(|_| chat("m", "hi")).await;
    let router = Router::start(&[node("n", endpoint.url()).power(&power(&nvml(&board)))], "").await;
    let metrics = router.metrics_reach("power by NVML", |m| !watts(m).is_empty()).await;
    assert_eq!(watts(&metrics), [("nvml", 42.0)]);
    board.unset("power_mw");
    let metrics = router.metrics_reach("the configured watts", |m| watts(m)[0].0 != "nvml").await;
    assert_eq!(watts(&metrics), [("static", 20.0)]);
}

#[tokio::test]
async fn nvml_that_hangs_holds_nothing_up() {
    let board = Board::build();
    board.set("energy_mj", 1_000);
    let stuck = board.stuck();
    let endpoint = llm(|_| chat("m", "hi")).await;
    let router = Router::start(&[node("n", endpoint.url()).power(&power(&nvml(&board)))], "").await;
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
    let metrics = router.metrics_reach("the configured watts", |m| !watts(m).is_empty()).await;
    assert_eq!(watts(&metrics), [("static", 20.0)]);
    router.stop();
    router.ended().await;
    drop(stuck);
}

#[tokio::test]
async fn an_absurd_counter_is_dropped() {
    // 50 J from one page to the next; the third is what DCGM writes where it knows nothing.
    let exporter = FakeEndpoint::start(|request| {
        let millijoules = match request.ordinal {
            2 => 9_223_372_036_854_775_794,
            n => 5_000_000 + 50_000 * n as u64,
        };
        let page = format!(
            "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n\
             DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu=\"0\",UUID=\"a\"}} {millijoules}\n"
        );
        with_type(200, "text/plain", &page)
    })
    .await;
    let endpoint = llm(|_| chat("m", "hi")).await;
    let source = format!("{{scrape: \"{}\"}}", exporter.url());
    let router = Router::start(&[node("n", endpoint.url()).power(&power(&source))], "").await;
    let idle = |m: &Metrics| m.sum(NODE_JOULES, &[("use", "idle")]);
    let metrics = router.metrics_reach("a reading after it", |m| idle(m) > 149.0).await;
    assert_eq!(metrics.count("cema_power_readings_dropped_total", &[("reason", "absurd")]), 1);
    // From the first page to the fourth, whatever the third said.
    assert_close(idle(&metrics), 150.0, 1e-9);
    assert_eq!(watts(&metrics)[0].0, "scrape");
    assert!((1.0..200.0).contains(&watts(&metrics)[0].1), "{:?}", watts(&metrics));
}

fn file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Never seen half written.
    let next = path.with_extension("next");
    fs::write(&next, format!("{text}\n")).unwrap();
    fs::rename(next, path).unwrap();
}

/// A Jetson that draws 12 W.
fn jetson(root: &Path) {
    for (name, text) in [
        ("name", "ina3221"),
        ("in1_label", "VDD_IN"),
        ("in1_input", "5000"),
        ("curr1_input", "2400"),
        ("in2_label", "VDD_SOC"),
        ("in2_input", "5000"),
        ("curr2_input", "600"),
    ] {
        file(&root.join("hwmon1").join(name), text);
    }
}

#[tokio::test]
async fn the_agent_exports_what_its_node_can_measure() {
    let board = Board::build();
    board.set("power_mw", 30_000);
    let root = tempfile::tempdir().unwrap();
    let (hwmon, powercap) = (root.path().join("hwmon"), root.path().join("powercap"));
    jetson(&hwmon);
    let package = powercap.join("intel-rapl:0");
    file(&package.join("name"), "package-0");
    file(&package.join("max_energy_range_uj"), "262143000000");
    file(&package.join("energy_uj"), "262142000000");
    let mut agent = Process::start(&[
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--hwmon-root",
        hwmon.to_str().unwrap(),
        "--powercap-root",
        powercap.to_str().unwrap(),
        "--nvml-library",
        board.library().to_str().unwrap(),
    ]);
    let addr = agent.logged_address("agent listening", "listen").await;
    let joules = |m: &Metrics, device: &str| m.sum("cema_agent_energy_joules_total", &[("device", device)]);
    let is_there =
        |m: &Metrics| m.samples.iter().any(|s| s.labels.get("device").is_some_and(|d| d == "package-0"));
    metrics_reach(addr, "the package", is_there).await;
    // 1 J to the end of its range and 3 after it.
    file(&package.join("energy_uj"), "3000000");
    let metrics = metrics_reach(addr, "energy of everything", |m| {
        joules(m, "package-0") > 0.0 && joules(m, "gpu0") > 0.0 && joules(m, "ina3221") > 0.0
    })
    .await;
    assert_close(joules(&metrics, "package-0"), 4.0, 1e-9);
    let power =
        |device, sensor| metrics.sum("cema_agent_power_watts", &[("device", device), ("sensor", sensor)]);
    assert_close(power("gpu0", "nvml"), 30.0, 1e-9);
    assert_close(power("ina3221", "VDD_IN"), 12.0, 1e-9);
    assert!(power("package-0", "rapl") > 0.0);
    let method = |device: &str| {
        let of = |s: &&crate::support::metrics::Sample| {
            s.labels.get("device").is_some_and(|d| d == device) && s.labels.contains_key("method")
        };
        metrics.samples.iter().find(of).unwrap().labels["method"].clone()
    };
    assert_eq!(
        [method("gpu0"), method("ina3221"), method("package-0")],
        ["integrated", "integrated", "counter"]
    );
    for (name, kind) in [("cema_agent_power_watts", "gauge"), ("cema_agent_energy_joules_total", "counter")] {
        let family = &metrics.families[name];
        assert!(family.kind == kind && !family.help.is_empty(), "{name}: {family:?}");
    }

    // Who says nothing any more is off the page.
    board.unset("power_mw");
    let gone = |m: &Metrics| !m.samples.iter().any(|s| s.labels.get("device").is_some_and(|d| d == "gpu0"));
    metrics_reach(addr, "the board to be gone", gone).await;
    assert_eq!(get(addr, "/healthz").await.text(), "ok\n");
    assert_eq!(get(addr, "/").await.head.status(), 404);
    agent.signal("TERM").await;
    let status = agent.ended().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn an_agent_with_nothing_to_measure_warns_and_says_what_to_do() {
    let nowhere = tempfile::tempdir().unwrap();
    let path = |name: &str| nowhere.path().join(name).display().to_string();
    let (hwmon, powercap, nvml) = (path("hwmon"), path("powercap"), path("libnvidia-ml.so.1"));
    let mut agent = Process::start(&[
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "warn",
        "--hwmon-root",
        &hwmon,
        "--powercap-root",
        &powercap,
        "--nvml-library",
        &nvml,
    ]);
    let line = agent.next_logged("a warning").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.starts_with("nothing to measure on this node"), "{message}");
    assert!(message.contains("run it as root"), "{message}");
    agent.signal("TERM").await;
    assert!(agent.ended().await.success());
}

#[tokio::test]
async fn a_router_takes_the_power_of_a_node_from_its_agent() {
    let root = tempfile::tempdir().unwrap();
    jetson(root.path());
    let mut agent = Process::start(&[
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--hwmon-root",
        root.path().to_str().unwrap(),
        "--powercap-root",
        "/nonexistent",
        "--nvml-library",
        "/nonexistent/libnvidia-ml.so.1",
    ]);
    let addr = agent.logged_address("agent listening", "listen").await;
    let energy = |m: &Metrics| m.sum("cema_agent_energy_joules_total", &[]);
    metrics_reach(addr, "the agent's first readings", |m| energy(m) > 0.0).await;
    let endpoint = llm(|_| chat("m", "hi")).await;
    let source = format!("{{scrape: \"http://{addr}\"}}");
    let router = Router::start(&[node("n", endpoint.url()).power(&power(&source))], "").await;
    let idle = |m: &Metrics| m.sum(NODE_JOULES, &[("use", "idle")]);
    let metrics = router.metrics_reach("energy by the agent", |m| idle(m) > 0.0).await;
    let of_node = watts(&metrics);
    assert!(of_node.len() == 1 && of_node[0].0 == "scrape", "{of_node:?}");
    // Adding up five times a second and looking once, a crowded machine may be off by much.
    assert!((1.0..60.0).contains(&of_node[0].1), "{of_node:?}");
}
