//! Policies that take turns in slices of fractions of a second.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::answers::chat;
use crate::support::app::{CHAT, Router, ask, llm, node};
use crate::support::fake_endpoint::Step;
use crate::support::in_time;
use crate::support::raw_client::RawClient;

const TURNS: &str = "switchback: {minutes: 0.004, policies: [memetic, round_robin], washout: 0.25}\n";
const MODEL: &str =
    "{name: m, price: {request_usd: 0.25}, throughput: {decode_tps: 100, max_concurrency: 1}}";

/// Asks again as soon as it is answered, until `stop`; the policies that answers name, and how many there were.
async fn keep_asking(router: SocketAddr, stop: Arc<AtomicBool>) -> (BTreeSet<String>, u64) {
    let (mut policies, mut n_answers) = (BTreeSet::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let mut client = RawClient::connect(router).await;
        client.post(CHAT, "", &ask("auto")).await;
        let answer = client.answer().await;
        assert_eq!(answer.head.status(), 200, "{}", answer.text());
        policies.insert(answer.head.header("x-cema-policy").unwrap());
        n_answers += 1;
    }
    (policies, n_answers)
}

#[tokio::test]
async fn policies_take_turns_and_are_compared_by_what_came_of_their_requests() {
    let slow = || llm(|_| [vec![Step::Pause(Duration::from_millis(10))], chat("m", "hello")].concat());
    let (a, b) = (slow().await, slow().await);
    let nodes = [node("a", a.url()).model(MODEL), node("b", b.url()).model(MODEL)];
    let router = Router::start(&nodes, TURNS).await;
    let stop = Arc::new(AtomicBool::new(false));
    // More of them than slots: some wait whenever the policy changes.
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        clients.spawn(keep_asking(router.api(), Arc::clone(&stop)));
    }
    let report = async || router.admin_get("/admin/v1/switchback").await.json();
    in_time("some rounds to be over", async {
        let n_rounds =
            |report: &Value| report["against_first"][0]["figures"]["objective"]["n_rounds"].as_u64();
        while n_rounds(&report().await) < Some(3) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    let (mut policies, mut n_answers) = (BTreeSet::new(), 0);
    while let Some(answered) = clients.join_next().await {
        let (named, n) = answered.unwrap();
        policies.extend(named);
        n_answers += n;
    }
    assert_eq!(policies, ["memetic", "round_robin"].map(str::to_owned).into());

    let metrics = router.idle().await;
    let report = report().await;
    let mut n_counted = 0;
    for (n, name) in ["memetic", "round_robin"].into_iter().enumerate() {
        let policy = &report["policies"][n];
        assert_eq!((&policy["policy"], &policy["failed"]), (&name.into(), &0.into()));
        let answered = policy["answered"].as_u64().unwrap();
        let shown = metrics.count("cema_switchback_requests", &[("policy", name), ("outcome", "ok")]);
        assert_eq!((shown, answered > 0), (answered, true));
        n_counted += answered;
        let figures = &policy["figures"];
        assert_eq!(figures["usd_per_request"]["mean"], 0.25);
        assert_eq!(figures["quality"]["mean"], 0.5);
        for figure in ["objective", "latency_s", "joules_per_request"] {
            let mean = figures[figure]["mean"].as_f64().unwrap();
            let [lo, hi] = [0, 1].map(|end| figures[figure]["slice_ci95"][end].as_f64().unwrap());
            assert!(mean > 0.0 && lo <= hi, "{figure}: {figures}");
        }
        let latency_s = figures["latency_s"]["mean"].as_f64().unwrap();
        let gauge =
            metrics.sum("cema_switchback_latency_seconds", &[("policy", name), ("statistic", "mean")]);
        assert!(latency_s >= 0.01 && (gauge - latency_s).abs() < 1e-9, "{gauge} {latency_s}");
    }
    assert!(
        n_counted < n_answers,
        "{n_counted} of {n_answers}: what came during the wash-outs does not count"
    );
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), n_answers);
    let slices = report["slices"].as_array().unwrap();
    let in_slices: u64 = slices.iter().map(|slice| slice["answered"].as_u64().unwrap()).sum();
    assert_eq!(in_slices, n_counted);
    for pair in slices.windows(2).filter(|pair| pair[0]["round"] == pair[1]["round"]) {
        assert_ne!(pair[0]["policy"], pair[1]["policy"], "each once in a round");
    }
    let difference = &report["against_first"][0]["figures"]["latency_s"];
    assert!(difference["difference"].is_f64() && difference["ci95"][1].is_f64(), "{difference}");
    let solved = |policy: &str| metrics.count("cema_solve_duration_seconds_count", &[("policy", policy)]);
    assert!(solved("memetic") > 0 && solved("round_robin") > 0);
}

#[tokio::test]
async fn without_turns_there_is_no_page_of_them() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let router = Router::start(&[node("a", endpoint.url())], "").await;
    let answer = router.admin_get("/admin/v1/switchback").await;
    assert_eq!(answer.head.status(), 404);
    assert_eq!(answer.json()["error"]["code"], "switchback_not_configured");
    let metrics = router.metrics().await;
    assert!(metrics.families.keys().all(|name| !name.starts_with("cema_switchback")));
}
