//! The admin listener over real sockets: metrics that Prometheus takes, the fleet, decisions that can be solved
//! again.

use std::collections::BTreeSet;
use std::io::Read as _;

use crate::support::answers::{chat, chat_stream, json};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Router, ask, ask_stream, llm, node, nowhere, priced};
use crate::support::metrics::Metrics;
use crate::support::raw_client::RawClient;
use cema_router::domain::DestinationOrd;
use cema_router::problem_file;
use cema_router::proxy::admin::ROUTES;
use cema_router::routing::Evaluator;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What `promtool check metrics` and the conventions behind it ask for.
fn lint(metrics: &Metrics) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, family) in &metrics.families {
        let mut expect = |is_right: bool, rule: &str| {
            if !is_right {
                faults.push(format!("{name} ({}): {rule}", family.kind));
            }
        };
        let is_counter = family.kind == "counter";
        expect(family.help.len() > 10 && family.help.ends_with('.'), "has a help text, a sentence");
        expect(matches!(&*family.kind, "counter" | "gauge" | "histogram"), "has a known type");
        expect(name.starts_with("cema_"), "is prefixed");
        let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        expect(name.chars().all(is_snake) && !name.contains("__"), "is in snake case");
        expect(is_counter == name.ends_with("_total"), "ends in _total if and only if it is a counter");
        for suffix in ["_count", "_sum", "_bucket"] {
            expect(!name.ends_with(suffix), "keeps clear of the suffixes of histograms");
        }
        for unit in ["milliseconds", "ms", "minutes", "percent", "milliwatts", "kilobytes"] {
            expect(!name.split('_').any(|word| word == unit), "is in base units");
        }
        for kind in ["counter", "gauge", "histogram"] {
            expect(!name.split('_').any(|word| word == kind), "does not repeat its type");
        }
    }
    let mut series = BTreeSet::new();
    for sample in &metrics.samples {
        let family = metrics.families.get(&sample.name).or_else(|| {
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| sample.name.strip_suffix(suffix))?;
            metrics.families.get(base).filter(|family| family.kind == "histogram")
        });
        let is_bucket =
            family.is_some_and(|family| family.kind == "histogram") && sample.name.ends_with("_bucket");
        if family.is_none() {
            faults.push(format!("{} belongs to no family", sample.name));
        }
        if sample.labels.contains_key("le") != is_bucket || sample.labels.contains_key("quantile") {
            faults.push(format!("{sample:?} misuses a label"));
        }
        if !series.insert((&sample.name, &sample.labels)) {
            faults.push(format!("{sample:?} comes twice"));
        }
    }
    faults
}

#[tokio::test]
async fn metrics_are_what_prometheus_expects() {
    let endpoint = llm(|request| match &*request.body {
        body if body.windows(13).any(|bytes| bytes == b"\"stream\":true") => chat_stream("m", &["a", "b"]),
        _ => chat("m", "hello"),
    })
    .await;
    let failing = llm(|_| json(500, "{}")).await;
    let nodes =
        [priced("a", failing.url(), 1), priced("b", endpoint.url(), 2), priced("c", nowhere().await, 3)];
    let router = Router::start(&nodes, CHEAPEST_FIRST).await;
    let fresh = router.metrics().await;
    assert_eq!(lint(&fresh), Vec::<String>::new());
    router.chat(&ask("auto")).await;
    router.chat(&ask_stream("auto")).await;
    router.chat("{").await;
    router.chat(&ask("nope")).await;
    let answer = router.admin_get("/metrics").await;
    assert_eq!(answer.head.header("content-type").unwrap(), "text/plain; version=0.0.4");
    let metrics = router.idle().await;
    assert_eq!(lint(&metrics), Vec::<String>::new());

    let b = ("destination", "b/m");
    for (name, labels, expected) in [
        ("cema_requests_total", &[b, ("outcome", "ok"), ("model", "m"), ("stream", "false")][..], 1),
        ("cema_requests_total", &[b, ("outcome", "ok"), ("stream", "true")], 1),
        ("cema_request_duration_seconds_count", &[b], 2),
        ("cema_time_to_first_token_seconds_count", &[b], 1),
        ("cema_upstream_attempts_total", &[("reason", "status_5xx")], 2),
        ("cema_rejected_total", &[("reason", "bad_request")], 2),
        ("cema_tokens_total", &[b, ("type", "completion")], 3 + 2),
        ("cema_window_size_count", &[], 4),
        // Failing over is no gathering.
        ("cema_window_wait_seconds_count", &[], 2),
        ("cema_hold_seconds_count", &[], 4),
        ("cema_execution_seconds_count", &[b], 2),
        ("cema_queue_depth", &[], 0),
        ("cema_circuit_state", &[("endpoint", "a")], 0),
        ("cema_solve_duration_seconds_count", &[("policy", "greedy")], 4),
        ("cema_endpoint_up", &[("endpoint", "b")], 1),
        ("cema_endpoint_up", &[("endpoint", "c")], 0),
        ("cema_inflight", &[], 0),
        ("cema_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1),
        ("cema_predicted_vs_actual_ratio_count", &[("quantity", "seconds")], 2),
    ] {
        assert_eq!(metrics.count(name, labels), expected, "{name} {labels:?}");
    }
    // Two requests at 2 USD each, whatever their tokens.
    assert!((metrics.sum("cema_cost_usd_total", &[b]) - 4.0).abs() < 1e-9);
    assert!(metrics.sum("cema_energy_joules_total", &[b, ("source", "modelled")]) > 0.0);
    assert!(metrics.sum("cema_objective", &[("term", "total")]) >= 0.0);
    assert_eq!(fresh.count("cema_requests_total", &[]), 0);
}

/// What llama.cpp answers on every path while it loads.
const LOADING: &str = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;

#[tokio::test]
async fn the_fleet_is_shown_as_it_is() {
    let (up, loading) = (
        llm(|_| chat("m", "a")).await,
        crate::support::fake_endpoint::FakeEndpoint::start(|_| json(503, LOADING)).await,
    );
    let nodes = [
        node("a", up.url()).cloud(),
        node("b", loading.url()).llamacpp().endpoint("max_inflight: 70"),
        node("c", nowhere().await),
    ];
    let router = Router::start(&nodes, "").await;
    let answer = router.admin_get("/admin/v1/destinations").await;
    assert_eq!(answer.head.header("content-type").unwrap(), "application/json");
    let shown = answer.json();
    let fleet = shown["destinations"].as_array().unwrap();
    let of = |key: &str| fleet.iter().map(|d| d[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(of("id"), ["a/m", "b/m", "c/m"]);
    assert_eq!(
        (of("class"), of("state")),
        (
            vec!["cloud".to_owned(), "edge".into(), "edge".into()],
            vec!["ready".to_owned(), "loading".into(), "down".into()]
        )
    );
    assert_eq!((&fleet[0]["max_concurrency"], &fleet[1]["max_inflight"]), (&64.into(), &70.into()));
    assert!(!answer.text().contains(&up.addr().to_string()), "addresses stay inside");
}

#[derive(Deserialize)]
struct Decision {
    request_id: String,
    batch: u64,
    policy: String,
    objective: f64,
    placements: Vec<PlacementShown>,
    problem: Box<RawValue>,
}

#[derive(Deserialize)]
struct PlacementShown {
    request_id: String,
    destination: String,
    runner_up: Option<String>,
    quality_source: String,
}

#[tokio::test]
async fn a_decision_can_be_read_back_and_valued_again() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let model = |quality: &str, usd: &str, tps: &str| {
        format!(
            "{{name: m, quality_prior: {quality}, price: {{completion_usd_per_mtok: {usd}}}, throughput: {{decode_tps: {tps}}}}}"
        )
    };
    let nodes = [
        node("a", endpoint.url()).model(&model("0.8", "1.5", "40")),
        node("b", endpoint.url()).model(&model("0.6", "0.2", "90")),
        node("c", endpoint.url()).cloud().model(&model("0.4", "0", "20")),
    ];
    let router = Router::start(&nodes, "window: {close: fixed, max_ms: 1000, max_requests: 6}\n").await;
    let mut clients = Vec::new();
    for n in 0..6 {
        let mut client = router.client().await;
        client.post(CHAT, &format!("x-request-id: r/{n}?x\r\nx-cema-debug: true\r\n"), &ask("auto")).await;
        clients.push(client);
    }
    let mut sent = Vec::new();
    for client in &mut clients {
        let head = client.answer().await.head;
        let header = |name: &str| head.header(name).unwrap();
        sent.push((
            header("x-request-id"),
            header("x-cema-destination"),
            header("x-cema-runner-up"),
            header("x-cema-batch"),
        ));
    }
    let answer = router.admin_get("/admin/v1/decisions/r%2F3%3Fx").await;
    assert_eq!(answer.head.status(), 200, "{}", answer.text());
    let decision: Decision = serde_json::from_slice(&answer.body()).unwrap();
    assert_eq!((decision.request_id.as_str(), decision.policy.as_str()), ("r/3?x", "memetic"));
    for (id, destination, runner_up, batch) in &sent {
        let placement = decision.placements.iter().find(|placement| placement.request_id == *id).unwrap();
        assert_eq!((&placement.destination, placement.runner_up.as_ref()), (destination, Some(runner_up)));
        assert_eq!((placement.quality_source.as_str(), batch), ("no_profile", &decision.batch.to_string()));
    }
    let file = problem_file::from_reader(decision.problem.get().as_bytes()).unwrap();
    let position = |id: &str| file.problem.destinations().iter().position(|d| d.id.as_str() == id).unwrap();
    let assignment: Vec<DestinationOrd> = decision
        .placements
        .iter()
        .map(|placement| DestinationOrd(u32::try_from(position(&placement.destination)).unwrap()))
        .collect();
    let value = Evaluator::new(&file.problem, &file.objective).objective(&assignment);
    assert!((value - decision.objective).abs() < 1e-9, "{value} and {}", decision.objective);

    let unknown = router.admin_get("/admin/v1/decisions/nobody").await;
    assert_eq!(
        (unknown.head.status(), unknown.json()["error"]["code"].as_str()),
        (404, Some("decision_not_found"))
    );
}

#[tokio::test]
async fn health_pages_answer_on_both_listeners() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let router = Router::start(&[node("a", endpoint.url()), node("b", nowhere().await)], "").await;
    for addr in [router.api(), router.admin()] {
        let mut client = RawClient::connect(addr).await;
        for (path, text) in [("/healthz", "ok\n"), ("/readyz", "1 of 2 endpoints ready\n")] {
            client.send(format!("HEAD {path} HTTP/1.1\r\nhost: t\r\n\r\n")).await;
            let head = client.answer_to_head().await.head;
            assert_eq!(
                (head.status(), head.header("content-length").unwrap()),
                (200, text.len().to_string())
            );
            client.get(path).await;
            let answer = client.answer().await;
            assert_eq!((answer.head.status(), answer.text().as_str()), (200, text));
            assert!(answer.head.header("x-request-id").is_some());
            client.post(path, "", "").await;
            let answer = client.answer().await;
            assert_eq!(answer.head.status(), 405);
            assert!(answer.head.header("allow").unwrap().starts_with("GET, HEAD"));
        }
    }
    let nothing = router.admin_get("/nothing").await;
    assert_eq!(
        (nothing.head.status(), nothing.json()["error"]["code"].as_str()),
        (404, Some("path_not_found"))
    );
    assert_eq!(router.admin_get(CHAT).await.head.status(), 404, "no API on the admin listener");
    assert_eq!(router.get("/metrics").await.head.status(), 404, "no metrics on the main one");
}

/// docs/admin-openapi.yaml has every path with its method, no others, and keys below /admin/v1 only.
#[tokio::test]
async fn the_openapi_file_says_what_is_served() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admin-openapi.yaml")).unwrap();
    let paths = text.split("\npaths:\n").nth(1).unwrap().split("\ncomponents:\n").next().unwrap();
    let mut documented = Vec::new();
    let mut path = "";
    for line in paths.lines() {
        if let Some(named) = line.strip_prefix("  /").filter(|_| line.ends_with(':')) {
            path = &line[2..line.len() - 1];
            assert_eq!(path.len(), named.len());
        } else if let Some(method) = line.strip_prefix("    ").filter(|line| !line.starts_with(' ')) {
            documented.push((path, method.trim_end_matches(':').to_uppercase()));
        }
    }
    let served: Vec<_> = ROUTES.iter().map(|(path, method)| (*path, (*method).to_owned())).collect();
    assert_eq!(documented, served);
    // They are there, under those methods.
    let router = Router::start(&[node("a", nowhere().await)], "").await;
    for (path, method) in ROUTES {
        let path = path.replace("{id}", "a%2Fm").replace("{request_id}", "x");
        let status = match *method {
            "GET" => router.admin_get(&path).await.head.status(),
            _ => router.admin_post(&path, "", "{}").await.head.status(),
        };
        assert!(status != 405, "{method} {path}");
        let other = match *method {
            "GET" => router.admin_post(&path, "", "{}").await,
            _ => router.admin_get(&path).await,
        };
        assert_eq!(other.head.status(), 405, "{path}");
    }
}

#[tokio::test]
async fn other_weights_are_tried_on_the_last_batches() {
    let endpoint = llm(|_| chat("m", "a")).await;
    let model = |quality: &str, usd: &str| {
        format!("{{name: m, quality_prior: {quality}, price: {{request_usd: {usd}}}}}")
    };
    let nodes = [
        node("good", endpoint.url()).model(&model("0.9", "2")),
        node("cheap", endpoint.url()).model(&model("0.2", "1")),
    ];
    let router = Router::start(&nodes, "routing: {policy: greedy, weights: {quality: 1}}\n").await;
    for _ in 0..5 {
        assert_eq!(router.chat(&ask("auto")).await.head.header("x-cema-destination").unwrap(), "good/m");
    }
    let ask_for = |weights: &str| format!("{{\"weights\": {weights}}}");
    let cost = ask_for(r#"{"quality": 0, "cost": 3, "energy": 0, "time": 0}"#);
    let answer = router.admin_post("/admin/v1/what-if", "", &cost).await;
    assert_eq!(answer.head.status(), 200, "{}", answer.text());
    let report = &answer.json()["report"];
    assert_eq!((&report["n_plans"], &report["n_moved"]), (&5.into(), &5.into()), "{report}");
    assert_eq!((&report["logged"]["usd"], &report["replayed"]["usd"]), (&10.0.into(), &5.0.into()));
    assert_eq!(answer.json()["weights"]["cost"], 1.0);
    // Nothing was put in force.
    assert_eq!(router.chat(&ask("auto")).await.head.header("x-cema-destination").unwrap(), "good/m");
    assert_eq!(router.admin_get("/admin/v1/destinations").await.json()["weights"]["quality"], 1.0);
    let listed = router.admin_get("/admin/v1/decisions").await.json();
    assert_eq!(listed["decisions"].as_array().unwrap().len(), 6);
    assert_eq!(listed["decisions"][0]["destination"], "good/m");
    for bad in ["", "{}", &ask_for(r#"{"quality": -1, "cost": 0, "energy": 0, "time": 0}"#)] {
        let refused = router.admin_post("/admin/v1/what-if", "", bad).await;
        assert_eq!(refused.head.status(), 400, "{bad}");
        assert!(refused.text().contains("weights"), "{}", refused.text());
    }
}

#[tokio::test]
async fn pages_come_in_gzip_for_whoever_takes_that() {
    let router = Router::start(&[node("a", nowhere().await)], CHEAPEST_FIRST).await;
    let mut client = RawClient::connect(router.admin()).await;
    client.send("GET /metrics HTTP/1.1\r\nhost: t\r\naccept-encoding: gzip\r\n\r\n").await;
    let packed = client.answer().await;
    assert_eq!(packed.head.header("content-encoding").as_deref(), Some("gzip"));
    assert_eq!(packed.head.header("content-type").unwrap(), "text/plain; version=0.0.4");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*packed.body()).read_to_string(&mut text).unwrap();
    assert_eq!(lint(&Metrics::parse(&text)), Vec::<String>::new());
    let plain = router.admin_get("/metrics").await;
    assert_eq!(plain.head.header("content-encoding"), None);
    assert!(
        packed.body().len() * 4 < plain.body().len(),
        "{} of {}",
        packed.body().len(),
        plain.body().len()
    );
}
