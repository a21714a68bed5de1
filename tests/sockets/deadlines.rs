//! Deadlines that no destination can meet: served all the same, or refused early where that is configured.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::support::answers::chat;
use crate::support::app::{CHAT, Node, Router, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};

const REFUSING: &str = "routing: {refuse_infeasible_deadlines: true}\n";

/// 100 tokens a second, one request at a time.
fn slow(endpoint: &FakeEndpoint) -> Node {
    let throughput = "{prefill_tps: 100000, decode_tps: 100, max_concurrency: 1}";
    node("a", endpoint.url())
        .model(&format!("{{name: m, throughput: {throughput}}}"))
        .endpoint("max_inflight: 1")
}

fn ask(max_tokens: u32) -> String {
    format!(r#"{{"model":"auto","messages":[{{"role":"user","content":"hi"}}],"max_tokens":{max_tokens}}}"#)
}

#[tokio::test]
async fn a_deadline_nothing_can_meet_is_refused_where_that_is_configured() {
    let endpoint = llm(|_| chat("m", "hello")).await;
    let lenient = Router::start(&[slow(&endpoint)], "").await;
    assert_eq!(lenient.chat_with("x-cema-deadline-ms: 100\r\n", &ask(200)).await.head.status(), 200);

    let virtual_models = "virtual_models: [{name: auto}, {name: quick, deadline_ms: 100}]\n";
    let strict = Router::start(&[slow(&endpoint)], &format!("{REFUSING}{virtual_models}")).await;
    let within =
        async |headers: &str, model: &str| strict.chat_with(headers, &ask(200).replace("auto", model)).await;
    // Two seconds of work. The stricter of the two deadlines counts.
    for (headers, model) in
        [("x-cema-deadline-ms: 100\r\n", "auto"), ("", "quick"), ("x-cema-deadline-ms: 60000\r\n", "quick")]
    {
        let refused = within(headers, model).await;
        assert_eq!(refused.head.status(), 503, "{}", refused.text());
        let error = refused.json()["error"].take();
        assert_eq!((&error["code"], &error["type"]), (&"deadline_infeasible".into(), &"server_error".into()));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("0.10 s") && message.contains("not even an idle one"), "{message}");
        // A little more than two seconds, of which a tenth was given.
        assert_eq!(refused.head.header("retry-after").as_deref(), Some("2"));
        assert_eq!(refused.head.header("x-should-retry").as_deref(), Some("false"));
    }
    assert_eq!(within("x-cema-deadline-ms: 60000\r\n", "auto").await.head.status(), 200);
    let metrics = strict.idle().await;
    assert_eq!(metrics.count("cema_rejected_total", &[("reason", "deadline")]), 3);
    assert_eq!(metrics.count("cema_requests_total", &[("outcome", "rejected")]), 3);
    assert_eq!(endpoint.posts().len(), 2);
}

#[tokio::test]
async fn who_waits_in_vain_is_told_before_its_time_is_up() {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let endpoint = llm(move |_| [vec![Step::Gate(Arc::clone(&held))], chat("m", "hello")].concat()).await;
    let router = Router::start(&[slow(&endpoint)], REFUSING).await;
    let mut first = router.client().await;
    // It says it takes 0.3 s and takes for ever.
    first.post(CHAT, "", &ask(30)).await;
    endpoint.posts_reach(1).await;
    let mut second = router.client().await;
    second.post(CHAT, "x-cema-deadline-ms: 900\r\n", &ask(10)).await;
    let is_held = |metrics: &crate::support::metrics::Metrics| metrics.count("cema_held_requests", &[]) == 1;
    router.metrics_reach("it to be held", is_held).await;
    let refused = second.answer().await;
    assert_eq!((refused.head.status(), endpoint.posts().len()), (503, 1));
    assert_eq!(refused.json()["error"]["code"], "deadline_infeasible");
    assert_eq!(refused.head.header("x-should-retry").as_deref(), Some("true"), "it may be quicker next time");
    gate.add_permits(1);
    assert_eq!(first.answer().await.head.status(), 200);
    assert_eq!(router.idle().await.count("cema_rejected_total", &[("reason", "deadline")]), 1);
}
