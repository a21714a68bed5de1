//! Another configuration in the place of the one in force, endpoints taken out of service, and who may ask for that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::answers::{chat, chunk, delta_event, finish_event, last_chunk, stream_head};
use crate::support::app::{
    CHAT, CHEAPEST_FIRST, Node, Router, ask, ask_stream, config_text, llm, node, nowhere, priced,
};
use crate::support::fake_endpoint::Step;
use crate::support::process::Process;
use crate::support::raw_client::{Answer, RawClient};
use serde_json::Value;
use tokio::sync::Semaphore;

/// A configuration file that can be written anew.
struct ConfigFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl ConfigFile {
    fn new(nodes: &[Node], sections: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let file = Self { _folder: folder, path };
        file.write(nodes, sections);
        file
    }

    fn write(&self, nodes: &[Node], sections: &str) {
        self.write_text(&config_text(nodes, sections));
    }

    fn write_text(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

async fn reload(router: &Router) -> Answer {
    router.admin_post("/admin/v1/reload", "", "").await
}

async fn reloaded(router: &Router) -> Value {
    let answer = reload(router).await;
    assert_eq!(answer.head.status(), 200, "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn settings_are_exchanged_and_the_books_go_on() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let nodes = [priced("dear", endpoint.url(), 3), priced("cheap", endpoint.url(), 1).cloud()];
    let file = ConfigFile::new(&nodes, CHEAPEST_FIRST);
    let router = Router::start_from(file.path()).await;
    let went_to = |answer: &Answer| answer.head.header("x-cema-destination").unwrap();
    assert_eq!(went_to(&router.chat(&ask("m")).await), "cheap/m");
    assert_eq!(reloaded(&router).await["exchanged"], "nothing");

    file.write(
        &nodes,
        "routing: {policy: edge_only}\nvirtual_models: [{name: mine}]\nresponse_model: echo\n",
    );
    let outcome = reloaded(&router).await;
    assert_eq!(
        (&outcome["exchanged"], &outcome["needs_restart"]),
        (&"settings".into(), &serde_json::json!([]))
    );
    let answer = router.chat(&ask("mine")).await;
    assert_eq!((went_to(&answer), answer.json()["model"].as_str()), ("dear/m".to_owned(), Some("mine")));
    assert_eq!(answer.head.header("x-cema-policy").unwrap(), "edge_only");
    assert_eq!(router.chat(&ask("auto")).await.head.status(), 404, "it is not a name any more");
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 2);
    assert_eq!(metrics.count("cema_config_reload_success", &[]), 1);
    assert_eq!(metrics.count("cema_config_reloads_total", &[("outcome", "success")]), 2);

    file.write(&nodes, "routing: {policy: edge_only}\nlimits: {drain_ms: 77, max_body_bytes: 1024}\n");
    assert_eq!(reloaded(&router).await["needs_restart"], serde_json::json!(["limits.drain_ms"]));
    assert_eq!(reloaded(&router).await["needs_restart"], serde_json::json!(["limits.drain_ms"]), "still");
    let long = ask("m").replace("hi", &"long ".repeat(300));
    assert_eq!(router.chat(&long).await.head.status(), 413, "the rest is in force");
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_says_why() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let nodes = [node("a", endpoint.url())];
    let file = ConfigFile::new(&nodes, "");
    let router = Router::start_from(file.path()).await;
    file.write(&nodes, "routing: {policy: magic, budget_ms: -1}\n");
    let refused = reload(&router).await;
    assert_eq!(refused.head.status(), 422);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("routing.policy") && message.contains("routing.budget_ms"), "{message}");
    assert_eq!(refused.json()["error"]["code"], "invalid_configuration");
    std::fs::remove_file(file.path()).unwrap();
    let gone = reload(&router).await;
    assert_eq!(gone.head.status(), 422);
    assert!(gone.text().contains("cannot read"), "{}", gone.text());
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
    let metrics = router.metrics().await;
    assert_eq!(metrics.count("cema_config_reload_success", &[]), 0);
    assert_eq!(metrics.count("cema_config_reloads_total", &[("outcome", "failure")]), 2);
    file.write(&nodes, "");
    reloaded(&router).await;
    assert_eq!(router.metrics().await.count("cema_config_reload_success", &[]), 1);
}

#[tokio::test]
async fn a_router_without_a_file_cannot_reload() {
    let router = Router::start(&[node("a", nowhere().await)], "").await;
    let refused = reload(&router).await;
    assert_eq!(
        (refused.head.status(), refused.json()["error"]["code"].as_str()),
        (409, Some("no_configuration_file"))
    );
}

/// A stream that pauses until `go_on`.
fn paused_stream(go_on: &Arc<Semaphore>) -> Vec<Step> {
    vec![
        stream_head(),
        chunk(delta_event("m", "first")),
        Step::Gate(Arc::clone(go_on)),
        chunk(delta_event("m", "second")),
        chunk(finish_event("m")),
        chunk("data: [DONE]\n\n"),
        last_chunk(),
    ]
}

#[tokio::test]
async fn a_stream_outlives_its_fleet_and_everything_stays_counted() {
    let go_on = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&go_on);
    let old = llm(move |request| {
        if String::from_utf8_lossy(&request.body).contains("\"stream\":true") {
            paused_stream(&script)
        } else {
            chat("m", "old")
        }
    })
    .await;
    let new = llm(|_| chat("n", "new")).await;
    let file = ConfigFile::new(&[node("old", old.url())], "");
    let router = Router::start_from(file.path()).await;
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
    let mut stream = router.client().await;
    stream.post(CHAT, "", &ask_stream("m")).await;
    assert_eq!(stream.head().await.status(), 200);
    stream.chunk().await.unwrap().unwrap();

    file.write(&[node("new", new.url()).model("{name: n}")], "");
    assert_eq!(reloaded(&router).await["exchanged"], "fleet");
    assert_eq!(router.chat(&ask("m")).await.head.status(), 404, "the model is gone");
    assert_eq!(router.chat(&ask("n")).await.head.status(), 200);
    let under_way = router.metrics().await;
    assert_eq!(under_way.count("cema_inflight", &[("destination", "old/m")]), 1);
    go_on.add_permits(1);
    let mut rest = String::new();
    while let Some(bytes) = stream.chunk().await.unwrap() {
        rest.push_str(&String::from_utf8_lossy(&bytes));
    }
    assert!(rest.contains("second") && rest.contains("[DONE]"), "{rest}");
    let metrics = router
        .metrics_reach("the old fleet to be gone", |metrics| {
            !metrics.samples.iter().any(|s| s.name == "cema_endpoint_up" && s.labels["endpoint"] == "old")
                && metrics.count("cema_inflight", &[]) == 0
                && metrics.count("cema_requests_total", &[("outcome", "ok")]) == 3
        })
        .await;
    assert_eq!(metrics.count("cema_requests_total", &[("destination", "old/m"), ("outcome", "ok")]), 2);
    assert_eq!(metrics.count("cema_requests_total", &[("destination", "new/n"), ("outcome", "ok")]), 1);
    assert_eq!(metrics.count("cema_request_duration_seconds_count", &[("destination", "old/m")]), 2);
    router.stop();
    router.ended().await;
}

#[tokio::test]
async fn endpoints_are_drained_and_resumed_and_stay_so_over_reloads() {
    let (a, b) = (llm(|_| chat("m", "a")).await, llm(|_| chat("m", "b")).await);
    let nodes = [priced("a", a.url(), 1), priced("b", b.url(), 2)];
    let file = ConfigFile::new(&nodes, CHEAPEST_FIRST);
    let router = Router::start_from(file.path()).await;
    let went_to = |answer: &Answer| answer.head.header("x-cema-destination").unwrap();
    assert_eq!(went_to(&router.chat(&ask("m")).await), "a/m");
    let drained = router.admin_post("/admin/v1/destinations/a%2Fm/drain", "", "").await;
    assert_eq!(
        (drained.head.status(), &drained.json()["destinations"], &drained.json()["draining"]),
        (200, &serde_json::json!(["a/m"]), &true.into())
    );
    assert_eq!(went_to(&router.chat(&ask("m")).await), "b/m");
    let shown = router.admin_get("/admin/v1/destinations").await.json();
    assert_eq!(shown["destinations"][0]["state"], "draining");
    let more = [nodes[0].clone(), nodes[1].clone(), priced("c", b.url(), 3)];
    file.write(&more, CHEAPEST_FIRST);
    assert_eq!(reloaded(&router).await["exchanged"], "fleet");
    assert_eq!(went_to(&router.chat(&ask("m")).await), "b/m", "still drained");
    // Ids may be written with their slashes.
    let resumed = router.admin_post("/admin/v1/destinations/a/m/resume", "", "").await;
    assert_eq!(resumed.head.status(), 200, "{}", resumed.text());
    assert_eq!(went_to(&router.chat(&ask("m")).await), "a/m");
    let unknown = router.admin_post("/admin/v1/destinations/x/drain", "", "").await;
    assert_eq!(
        (unknown.head.status(), unknown.json()["error"]["code"].as_str()),
        (404, Some("destination_not_found"))
    );
}

#[tokio::test]
async fn the_admin_api_asks_for_its_own_key_where_it_has_one() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let sections = format!("admin_auth: {{sha256: {}}}\n", sha256_hex("admin-key"));
    let router = Router::start(&[node("a", endpoint.url())], &sections).await;
    let get = async |path: &str, headers: &str| {
        let mut client = RawClient::connect(router.admin()).await;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")).await;
        client.answer().await.head.status()
    };
    for open in ["/metrics", "/healthz", "/readyz", "/"] {
        assert_eq!(get(open, "").await, 200, "{open}");
    }
    for path in ["/admin/v1/destinations", "/admin/v1/decisions"] {
        assert_eq!(get(path, "").await, 401, "{path}");
        assert_eq!(get(path, "authorization: Bearer other\r\n").await, 401, "{path}");
        assert_eq!(get(path, "authorization: Bearer admin-key\r\n").await, 200, "{path}");
    }
    assert_eq!(router.admin_post("/admin/v1/reload", "", "").await.head.status(), 401);
    assert_eq!(
        router.admin_post("/admin/v1/reload", "authorization: Bearer admin-key\r\n", "").await.head.status(),
        409
    );
}

fn sha256_hex(text: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn pages_of_other_origins_are_not_listened_to() {
    let router = Router::start(&[node("a", nowhere().await)], "").await;
    let refused = router.admin_post("/admin/v1/reload", "origin: http://evil.example\r\n", "").await;
    assert_eq!(
        (refused.head.status(), refused.json()["error"]["code"].as_str()),
        (403, Some("admin_refused"))
    );
}

#[tokio::test]
async fn sighup_reloads() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let nodes = [node("a", endpoint.url())];
    let file = ConfigFile::new(&nodes, "");
    let mut process = Process::start(&["serve", "--config", file.path().to_str().unwrap()]);
    let admin = process.logged_address("listening", "admin").await;
    file.write(&nodes, "routing: {policy: round_robin}\n");
    process.signal("HUP").await;
    assert_eq!(process.logged("configuration reloaded").await["exchanged"], "settings");
    file.write(&nodes, "routing: {policy: wrong}\n");
    process.signal("HUP").await;
    let line = process.logged("configuration not reloaded").await;
    assert!(line["error"].as_str().unwrap().contains("routing.policy"), "{line}");
    let mut client = RawClient::connect(admin).await;
    client.get("/metrics").await;
    assert!(client.answer().await.text().contains("cema_config_reload_success 0"));
    process.signal("TERM").await;
    assert!(process.ended().await.success());
}

/// A short version of what docs/OPERATIONS.md measures with a thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_fail_no_request() {
    const RELOADS: usize = 60;
    let endpoints = [llm(|_| chat("m", "a")).await, llm(|_| chat("m", "b")).await];
    let nodes = [node("a", endpoints[0].url()), node("b", endpoints[1].url())];
    let file = ConfigFile::new(&nodes, "");
    let router = Router::start_from(file.path()).await;
    let over = tokio_util::sync::CancellationToken::new();
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let (api, over) = (router.api(), over.clone());
            tokio::spawn(async move {
                let (mut client, mut answered) = (RawClient::connect(api).await, 0_u32);
                let body = if n % 2 == 0 { ask("auto") } else { ask("m") };
                while !over.is_cancelled() {
                    client.post(CHAT, "", &body).await;
                    let answer = client.answer().await;
                    assert_eq!(answer.head.status(), 200, "{}", answer.text());
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    let mut outcomes = BTreeMap::<String, usize>::new();
    for n in 0..RELOADS {
        match n % 4 {
            0 => file.write(&nodes, "routing: {weights: {quality: 1, time: 1}}\n"),
            1 | 3 => file.write_text("listen: nonsense\n"),
            _ => file.write(&nodes[..1 + n / 4 % 2], ""),
        }
        let answer = reload(&router).await;
        let outcome = match answer.head.status() {
            200 => answer.json()["exchanged"].as_str().unwrap().to_owned(),
            _ => answer.json()["error"]["code"].as_str().unwrap().to_owned(),
        };
        *outcomes.entry(outcome).or_default() += 1;
        assert_eq!(router.chat(&ask("auto")).await.head.status(), 200);
    }
    over.cancel();
    for client in clients {
        assert!(client.await.unwrap() > 10);
    }
    assert_eq!(outcomes["invalid_configuration"], RELOADS / 2, "{outcomes:?}");
    assert!(outcomes["fleet"] > 5, "{outcomes:?}");
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "failed")]), 0);
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "rejected")]), 0);
    router.stop();
    router.ended().await;
}

#[tokio::test]
async fn who_waits_keeps_waiting_and_is_served_by_the_settings_of_now() {
    let gate = Arc::new(Semaphore::new(0));
    let inside = Arc::clone(&gate);
    let busy = llm(move |_| [vec![Step::Gate(Arc::clone(&inside))], chat("m", "a")].concat()).await;
    let nodes = [node("a", busy.url()).model("{name: m, throughput: {max_concurrency: 1}}")];
    let file = ConfigFile::new(&nodes, "");
    let router = Router::start_from(file.path()).await;
    let mut clients = [router.client().await, router.client().await];
    for client in &mut clients {
        client.post(CHAT, "", &ask("m")).await;
    }
    router.metrics_reach("one to be held", |metrics| metrics.count("cema_held_requests", &[]) == 1).await;
    file.write(&nodes, "routing: {weights: {time: 1}}\nlimits: {max_queued_requests: 1}\n");
    assert_eq!(reloaded(&router).await["exchanged"], "settings");
    let metrics = router.metrics().await;
    assert_eq!(metrics.count("cema_inflight", &[("destination", "a/m")]), 1, "the books go on");
    assert_eq!(metrics.count("cema_held_requests", &[]), 1, "it waits on");
    // A policy that gathers nothing lets it go to the engine's queue.
    file.write(&nodes, "routing: {policy: greedy}\n");
    assert_eq!(reloaded(&router).await["exchanged"], "settings");
    router
        .metrics_reach("it to leave", |metrics| {
            metrics.count("cema_inflight", &[]) == 2 && metrics.count("cema_held_requests", &[]) == 0
        })
        .await;
    gate.add_permits(2);
    for client in &mut clients {
        assert_eq!(client.answer().await.head.status(), 200);
    }
    let metrics = router.idle().await;
    assert!(metrics.count("cema_solve_duration_seconds_count", &[("policy", "greedy")]) > 0);
}
