//! Traces of requests, at a collector that takes OTLP over HTTP.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::answers::{chat, chat_stream, json};
use crate::support::app::{CHAT, CHEAPEST_FIRST, Router, ask, ask_stream, llm, node, nowhere, priced};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SAMPLED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
const UNSAMPLED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";

async fn collector() -> FakeEndpoint {
    FakeEndpoint::start(|_| json(200, "{}")).await
}

fn traced(collector: &str, sample: f64) -> String {
    format!("tracing: {{otlp_endpoint: \"{collector}\", sample: {sample}}}\n")
}

/// What is left is sent before the router ends.
async fn end(router: Router) {
    router.stop();
    router.ended().await;
}

/// The spans that a collector got.
fn spans(collector: &FakeEndpoint) -> Vec<Value> {
    let mut spans = Vec::new();
    for post in collector.posts() {
        assert_eq!(post.head.path(), "/v1/traces");
        assert_eq!(post.head.header("content-type").unwrap(), "application/json");
        let body: Value = serde_json::from_slice(&post.body).unwrap();
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "cema-router");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    spans
}

/// The attributes of a span, as text.
fn attributes(span: &Value) -> BTreeMap<String, String> {
    let pairs = span["attributes"].as_array().unwrap().iter().map(|pair| {
        let value = pair["value"].as_object().unwrap().values().next().unwrap();
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (pair["key"].as_str().unwrap().to_owned(), value)
    });
    pairs.collect()
}

/// Name, kind and parent (by name) of each span, in the order of their beginnings.
fn tree(spans: &[Value]) -> Vec<(String, u64, String)> {
    let name_of = |id: &Value| {
        let found = spans.iter().find(|span| span["spanId"] == *id);
        found.map_or_else(
            || id.as_str().unwrap_or_default().to_owned(),
            |span| span["name"].as_str().unwrap().to_owned(),
        )
    };
    let row = |span: &Value| {
        (
            span["name"].as_str().unwrap().to_owned(),
            span["kind"].as_u64().unwrap(),
            name_of(&span["parentSpanId"]),
        )
    };
    spans.iter().map(row).collect()
}

fn nanos(span: &Value, key: &str) -> u128 {
    span[key].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_request_is_traced_from_its_client_to_each_endpoint() {
    let collector = collector().await;
    let failing = llm(|_| json(500, "{}")).await;
    let good = llm(|_| chat("m", "hello")).await;
    let sections = format!("{CHEAPEST_FIRST}{}", traced(&collector.url(), 0.0));
    let router = Router::start(&[priced("a", failing.url(), 1), priced("b", good.url(), 2)], &sections).await;
    let answer = router.chat_with(&format!("{SAMPLED}x-request-id: mine\r\n"), &ask("auto")).await;
    assert_eq!(answer.head.status(), 200);
    end(router).await;

    let spans = spans(&collector);
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let row = |name: &str, kind, parent: &str| (name.to_owned(), kind, parent.to_owned());
    let expected = [
        row("plan", 1, "chat auto"),
        row("window", 1, "plan"),
        row("hold", 1, "plan"),
        row("chat m", 3, "chat auto"),
        row("plan", 1, "chat auto"),
        row("chat m", 3, "chat auto"),
        row("chat auto", 2, "00f067aa0ba902b7"),
    ];
    assert_eq!(tree(&spans), expected);
    assert!(spans.iter().all(|span| nanos(span, "startTimeUnixNano") <= nanos(span, "endTimeUnixNano")));
    let request = spans.last().unwrap();
    let within = |span: &&Value| {
        nanos(request, "startTimeUnixNano") <= nanos(span, "startTimeUnixNano")
            && nanos(span, "endTimeUnixNano") <= nanos(request, "endTimeUnixNano")
    };
    assert_eq!(spans.iter().filter(within).count(), spans.len());

    // Each endpoint goes on with the span of its own call.
    for (endpoint, call) in [(&failing, &spans[3]), (&good, &spans[5])] {
        let sent = endpoint.posts()[0].head.all("traceparent");
        assert_eq!(sent, [format!("00-{TRACE}-{}-01", call["spanId"].as_str().unwrap())]);
    }
    let failed = attributes(&spans[3]);
    assert_eq!((failed["cema.destination"].as_str(), failed["error.type"].as_str()), ("a/m", "status_5xx"));
    assert_eq!(spans[3]["status"]["code"], 2);
    let told = attributes(request);
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "auto"),
        ("gen_ai.response.model", "m"),
        ("cema.request_id", "mine"),
        ("cema.destination", "b/m"),
        ("cema.attempts", "2"),
        ("cema.outcome", "ok"),
    ] {
        assert_eq!(told[key], value, "{key}");
    }
    assert!(told["gen_ai.usage.output_tokens"].parse::<u64>().unwrap() > 0);
    assert_eq!(attributes(&spans[5])["gen_ai.provider.name"], "vllm");
    assert!(attributes(&spans[0]).contains_key("cema.predicted.seconds"));
    // No content.
    assert!(!collector.posts().iter().any(|post| String::from_utf8_lossy(&post.body).contains("hello")));
}

#[tokio::test]
async fn a_stream_is_over_with_its_last_byte_and_a_client_that_leaves_ends_it() {
    let collector = collector().await;
    let good = llm(|_| chat_stream("m", &["a", "b"])).await;
    let hanging = llm(|_| vec![Step::WaitClientClose]).await;
    let nodes = [node("a", good.url()), node("b", hanging.url()).model("{name: n}")];
    let router = Router::start(&nodes, &traced(&collector.url(), 1.0)).await;
    assert_eq!(router.chat(&ask_stream("m")).await.head.status(), 200);
    let mut leaving = router.client().await;
    leaving.post(CHAT, "", ask("n")).await;
    hanging.posts_reach(1).await;
    drop(leaving);
    hanging.answers_cut_reach(1).await;
    end(router).await;
    let spans = spans(&collector);
    let outcome = |name: &str| {
        let span = spans.iter().find(|span| span["name"] == name && span["kind"] == 2).unwrap();
        let told = attributes(span);
        (told["cema.outcome"].clone(), told.contains_key("cema.first_content_s"))
    };
    assert_eq!(outcome("chat m"), ("ok".to_owned(), true));
    assert_eq!(outcome("chat n"), ("client_gone".to_owned(), false));
    let traces: BTreeSet<_> = spans.iter().map(|span| span["traceId"].to_string()).collect();
    assert_eq!(traces.len(), 2);
}

#[tokio::test]
async fn what_is_not_sampled_is_passed_on_as_it_came_and_not_told_of() {
    let collector = collector().await;
    let good = llm(|_| chat("m", "hello")).await;
    let router = Router::start(&[node("a", good.url())], &traced(&collector.url(), 0.0)).await;
    assert_eq!(router.chat_with(UNSAMPLED, &ask("m")).await.head.status(), 200);
    assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
    end(router).await;
    let sent: Vec<_> = good.posts().iter().map(|post| post.head.all("traceparent")).collect();
    assert_eq!(sent, [vec![UNSAMPLED.trim_end().split_once(": ").unwrap().1.to_owned()], Vec::new()]);
    assert_eq!(collector.posts().len(), 0);
}

#[tokio::test]
async fn without_a_collector_requests_go_on_and_lost_spans_are_counted() {
    let good = llm(|_| chat("m", "hello")).await;
    let router = Router::start(&[node("a", good.url())], &traced(&nowhere().await, 1.0)).await;
    for _ in 0..3 {
        assert_eq!(router.chat(&ask("m")).await.head.status(), 200);
    }
    let lost = |m: &Metrics| m.sum("cema_trace_spans_total", &[("outcome", "failed")]);
    // Three requests of five spans each.
    router.metrics_reach("spans to be lost", |metrics| lost(metrics) >= 15.0).await;
    end(router).await;
}
