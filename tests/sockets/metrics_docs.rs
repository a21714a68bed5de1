//! docs/METRICS.md lists every metric that a router exports: name, type, labels and help text. With `CEMA_WRITE_DOCS=1`
//! in the environment the test writes it instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::support::answers::{chat, chat_stream, healthy, json, with_type};
use crate::support::app::{CLIENT_KEY, Router, ask, ask_stream, llm, node, nowhere};
use crate::support::fake_endpoint::FakeEndpoint;
use crate::support::metrics::Metrics;
use crate::support::raw_client::RawClient;

const VLLM: &str = include_str!("../fixtures/engines/vllm-metrics.txt");

const HEAD: &str = "# Metrics

Generated from a running router (`CEMA_WRITE_DOCS=1 cargo nextest run docs_of_metrics`); a test keeps it true. They are on
`admin_listen` at `/metrics`, in base units. Labels come from the configuration alone: nothing that a client sends becomes
one. A labelled metric appears with its first value. What has been counted stays counted over reloads; gauges are of the
configuration in force. `cema-router agent` has metrics of its own: see its `--help`.

| metric | type | labels | meaning |
|---|---|---|---|
";

/// Name to type, help and labels.
type Documented = BTreeMap<String, (String, String, BTreeSet<String>)>;

fn collect(metrics: &Metrics, found: &mut Documented) {
    for (name, family) in &metrics.families {
        let entry = found.entry(name.clone()).or_default();
        (entry.0, entry.1) = (family.kind.clone(), family.help.clone());
    }
    for sample in &metrics.samples {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| sample.name.strip_suffix(end));
        let name = base.filter(|base| found.contains_key(*base)).unwrap_or(&sample.name);
        let labels = sample.labels.keys().filter(|label| *label != "le");
        found.get_mut(name).unwrap().2.extend(labels.cloned());
    }
}

/// What shows with meters, TLS or large transfers only, from where it is registered.
fn collect_source(found: &mut Documented) {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                text.match_indices("\"cema_").for_each(|(at, _)| collect_registered(&text[at..], found));
            }
        }
    }
}

/// `text` begins with the literal of a metric's name, which its help text and its labels follow where it is registered.
fn collect_registered(text: &str, found: &mut Documented) {
    let mut literals = text.split('"');
    let (name, between, help) = (literals.nth(1).unwrap(), literals.next().unwrap(), literals.next());
    let is_registered = between.trim() == "," && !name.starts_with("cema_agent_");
    let Some(help) = help.filter(|_| is_registered && !found.contains_key(name)) else { return };
    let help = help.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join("");
    let rest = &text[..text.len().min(900)];
    let labels = rest.split("&[\"").nth(1).and_then(|labels| labels.split(']').next()).unwrap_or_default();
    let labels = labels.split(',').map(|label| label.trim().trim_matches('"').to_owned());
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    found
        .insert(name.to_owned(), (kind.to_owned(), help, labels.filter(|label| !label.is_empty()).collect()));
}

#[tokio::test]
async fn docs_of_metrics_are_those_exported() {
    // What vLLM and Ollama say of themselves, in one.
    let good = FakeEndpoint::start(|request| match &*request.head.path() {
        "/health" => healthy(),
        "/metrics" => with_type(200, "text/plain; version=0.0.4", VLLM),
        "/api/version" => json(200, r#"{"version":"0.33.0"}"#),
        "/api/tags" => json(200, r#"{"models":[{"name":"m:latest","model":"m:latest","size":5000000000}]}"#),
        "/api/ps" => json(
            200,
            r#"{"models":[{"name":"m:latest","model":"m:latest","size":6000000000,"size_vram":6000000000}]}"#,
        ),
        _ if String::from_utf8_lossy(&request.body).contains("\"stream\":true") => {
            chat_stream("m", &["a", "b"])
        }
        _ => chat("m", "hello"),
    })
    .await;
    let failing = llm(|_| json(500, "{}")).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let sections = format!(
        "decision_log: {{path: \"{}\"}}\naccess_log: {{path: \"{}\"}}\n\
         auth: {{keys: [{{name: app, key_env: CLIENT_KEY, max_concurrency: 9}}]}}\ntimeouts: {{head_ms: 1}}\n\
         switchback: {{minutes: 1, policies: [greedy, round_robin]}}\n",
        path("decisions"),
        path("access")
    );
    let nodes = [
        node("a", good.url()).measured(),
        node("b", failing.url()),
        node("c", nowhere().await),
        node("d", good.url()).ollama(),
    ];
    let router = Router::start(&nodes, &sections).await;
    let key = format!("authorization: Bearer {CLIENT_KEY}\r\n");
    for _ in 0..6 {
        router.chat_with(&key, &ask("auto")).await;
        router.chat_with(&key, &ask_stream("m")).await;
    }
    router.chat(&ask("m")).await;
    let mut slow = RawClient::connect(router.api()).await;
    slow.send("GET / HTTP/1.1\r\n").await;
    let metrics = router
        .metrics_reach("a slow client to be cut and figures to be there", |metrics| {
            metrics.sum("cema_connections_cut_total", &[]) > 0.0
                && metrics.sum("cema_node_rtt_seconds", &[]) > 0.0
                && ["cema_destination_pace_ratio", "cema_engine_kv_usage_ratio", "cema_model_vram_ratio"]
                    .iter()
                    .all(|name| metrics.families.contains_key(*name))
        })
        .await;
    let mut found = Documented::new();
    collect(&metrics, &mut found);

    collect_source(&mut found);
    let mut text = HEAD.to_owned();
    for (name, (kind, help, labels)) in &found {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/METRICS.md");
    if std::env::var_os("CEMA_WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written == text,
        "docs/METRICS.md is not what is exported; write it with CEMA_WRITE_DOCS=1:\n{text}"
    );
    for (name, (_, help, _)) in &found {
        assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
    }
}

/// Every metric that the boards and alert rules name is in docs/METRICS.md.
#[test]
fn boards_name_metrics_that_are_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(root.join("docs/METRICS.md")).unwrap();
    let mut n_named = 0;
    for entry in std::fs::read_dir(root.join("dashboards")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("cema_") {
            let name: String =
                text[at..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let is_there = |name: &str| docs.contains(&format!("| `{name}` |"));
            assert!(is_there(&name) || base.is_some_and(is_there), "{}: {name}", path.display());
            n_named += 1;
        }
    }
    assert!(n_named > 100, "{n_named}");
}
