//! Endpoints that ask to be left alone are: each for its own time, and clients learn when to come again.

use std::time::{Duration, SystemTime};

use crate::support::answers::{chat, chat_body, chat_stream, chunk, last_chunk, stream_head, write};
use crate::support::app::{CHEAPEST_FIRST, Node, Router, ask, ask_stream, llm, node, priced};
use crate::support::fake_endpoint::{FakeEndpoint, Step};
use crate::support::metrics::Metrics;
use crate::support::raw_client::Answer;
use tokio::time::Instant;

const BUSY: &str = r#"{"error":{"message":"slow down","type":"rate_limit_error","param":null,"code":null}}"#;

fn refusal(status: u16, headers: &str) -> Vec<Step> {
    let len = BUSY.len();
    vec![write(format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n{headers}content-length: {len}\r\n\r\n{BUSY}"
    ))]
}

async fn refusing(status: u16, headers: &str) -> FakeEndpoint {
    let headers = headers.to_owned();
    llm(move |_| refusal(status, &headers)).await
}

/// The endpoints in order of preference, called `n1`, `n2` and so on.
async fn over(endpoints: &[FakeEndpoint], sections: &str) -> Router {
    let nodes: Vec<Node> =
        (1..).zip(endpoints).map(|(usd, endpoint)| priced(&format!("n{usd}"), endpoint.url(), usd)).collect();
    Router::start(&nodes, &format!("{CHEAPEST_FIRST}{sections}")).await
}

fn header(answer: &Answer, name: &str) -> String {
    answer.head.header(name).unwrap_or_default()
}

fn retry_after_ms(answer: &Answer) -> u64 {
    header(answer, "retry-after-ms").parse().unwrap()
}

fn n_posts(endpoints: &[FakeEndpoint]) -> Vec<usize> {
    endpoints.iter().map(|endpoint| endpoint.posts().len()).collect()
}

#[tokio::test]
async fn the_earliest_return_of_all_is_what_the_client_is_told() {
    // BerriAI/litellm#27823, #7669.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(30));
    let endpoints = [
        refusing(429, "retry-after: 70\r\n").await,
        refusing(429, &format!("retry-after: {date}\r\n")).await,
        refusing(503, "retry-after-ms: 20000\r\n").await,
    ];
    let router = over(&endpoints, "").await;
    let first = router.chat(&ask("m")).await;
    assert_eq!((first.head.status(), header(&first, "retry-after-ms")), (429, "20000".into()));
    assert_eq!((header(&first, "retry-after"), header(&first, "x-cema-attempts")), ("20".into(), "3".into()));
    let error = first.json()["error"].take();
    assert_eq!((&error["message"], &error["type"]), (&"slow down".into(), &"rate_limit_error".into()));
    assert!(error["code"].is_string() && error["param"].is_null(), "{error}");

    // All cool now: nothing is sent, and the wait is what is left of it.
    for body in [ask("m"), ask_stream("m")] {
        let again = router.chat(&body).await;
        assert_eq!((again.head.status(), header(&again, "x-should-retry")), (429, "true".into()));
        assert!((10_000..=20_000).contains(&retry_after_ms(&again)), "{}", retry_after_ms(&again));
        let seconds = retry_after_ms(&again).div_ceil(1000).to_string();
        assert_eq!(header(&again, "retry-after"), seconds);
    }
    assert_eq!(n_posts(&endpoints), [1, 1, 1]);
    let metrics = router.idle().await;
    assert_eq!(metrics.count("cema_upstream_attempts_total", &[("reason", "status_429")]), 2);
    assert_eq!(metrics.count("cema_upstream_attempts_total", &[("reason", "status_503")]), 1);
    assert_eq!(metrics.count("cema_rejected_total", &[("reason", "unavailable")]), 2);
    assert_eq!(metrics.count("cema_circuit_state", &[]), 0, "that is no failure");
    assert_eq!(metrics.count("cema_endpoint_up", &[]), 0);
}

#[tokio::test]
async fn an_endpoint_is_back_when_its_own_time_is_over() {
    let cools = llm(|request| match request.head.header("x-request-id").as_deref() {
        Some("first") => refusal(429, "retry-after-ms: 300\r\n"),
        _ => chat("m", "back"),
    });
    let endpoints = [cools.await, refusing(503, "retry-after: 60\r\n").await];
    let router = over(&endpoints, "").await;
    let began = Instant::now();
    assert_eq!(router.chat_with("x-request-id: first\r\n", &ask("m")).await.head.status(), 429);
    let is_back = |metrics: &Metrics| metrics.count("cema_endpoint_up", &[("endpoint", "n1")]) == 1;
    router.metrics_reach("the first endpoint to be back", is_back).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!(router.chat(&ask("m")).await.text(), chat_body("m", "back"));
    assert_eq!(n_posts(&endpoints), [2, 1], "the other one cools for its own time");
}

#[tokio::test]
async fn clients_are_told_the_whole_wait_and_nonsense_is_ignored() {
    for (status, headers, expected_ms) in [
        (429, "retry-after: 600\r\n", 600_000),
        (429, "retry-after: -1\r\n", 1_000),
        (429, "retry-after: abc\r\n", 1_000),
        (429, "", 1_000),
        (503, "", 1_000),
        (503, "retry-after-ms: nan\r\nretry-after: 2.5\r\n", 2_500),
    ] {
        let endpoints = [refusing(status, headers).await];
        let router = over(&endpoints, "").await;
        let answer = router.chat(&ask("m")).await;
        assert_eq!((answer.head.status(), retry_after_ms(&answer)), (status, expected_ms), "{headers}");
        let again = router.chat(&ask("m")).await;
        assert_eq!(again.head.status(), status, "{headers}");
        assert!(retry_after_ms(&again) <= expected_ms, "{headers}");
        assert_eq!(n_posts(&endpoints), [1], "{headers}");
    }
    // What the router keeps is bounded, what clients are told is not.
    let endpoints = [refusing(429, "retry-after: 60\r\n").await];
    let router = over(&endpoints, "cooling: {max_ms: 300}\n").await;
    assert_eq!(retry_after_ms(&router.chat(&ask("m")).await), 60_000);
    assert!(retry_after_ms(&router.chat(&ask("m")).await) > 50_000);
    assert_eq!(n_posts(&endpoints), [1]);
    router.metrics_reach("it to be back", |metrics| metrics.count("cema_endpoint_up", &[]) == 1).await;
    let endpoints = [refusing(429, "retry-after: 0\r\n").await];
    let router = over(&endpoints, "").await;
    for n_sent in 1..3 {
        assert_eq!(router.chat(&ask("m")).await.head.status(), 429);
        assert_eq!(n_posts(&endpoints), [n_sent], "it asked for no wait");
    }
}

#[tokio::test]
async fn the_others_serve_while_one_cools() {
    let endpoints = [refusing(429, "retry-after: 60\r\n").await, llm(|_| chat("m", "b")).await];
    let router = over(&endpoints, "").await;
    for attempts in ["2", "1", "1"] {
        let answer = router.chat(&ask("m")).await;
        assert_eq!(
            (answer.text(), header(&answer, "x-cema-attempts")),
            (chat_body("m", "b"), attempts.into())
        );
    }
    assert_eq!(n_posts(&endpoints), [1, 3]);
}

#[tokio::test]
async fn overload_said_inside_a_200_cools_as_well() {
    let busy = || {
        let event = "data: {\"error\":{\"message\":\"busy\",\"type\":\"overloaded_error\"}}\n\n";
        vec![stream_head(), chunk(": a\n\n: b\n\n"), chunk(event), last_chunk()]
    };
    let endpoints = [llm(move |_| busy()).await, llm(|_| chat_stream("m", &["fine"])).await];
    let router = over(&endpoints, "cooling: {default_ms: 60000}\n").await;
    for _ in 0..2 {
        assert_eq!(router.chat(&ask_stream("m")).await.head.status(), 200);
    }
    assert_eq!(n_posts(&endpoints), [1, 2]);
}

#[tokio::test]
async fn what_is_worse_than_contention_is_a_503() {
    // One fails for good, the other one cools: trying again may help, but there is more than too much to do.
    let endpoints = [refusing(429, "retry-after: 60\r\n").await];
    let nodes = [priced("a", endpoints[0].url(), 1), priced("b", crate::support::app::nowhere().await, 2)];
    let router = Router::start(&nodes, CHEAPEST_FIRST).await;
    assert_eq!(router.chat(&ask("m")).await.head.status(), 429, "the last failure");
    let answer = router.chat(&ask("m")).await;
    assert_eq!((answer.head.status(), header(&answer, "x-should-retry")), (503, "true".into()));
    assert!(retry_after_ms(&answer) > 50_000);
    assert!(answer.text().contains("1 down"), "{}", answer.text());
}

#[tokio::test]
async fn an_api_that_limits_its_callers_is_not_probed_while_it_cools() {
    let api = FakeEndpoint::start(|request| match request.head.path().as_str() {
        "/v1/models" => crate::support::answers::models(&["m"]),
        _ => refusal(429, "retry-after-ms: 2500\r\n"),
    })
    .await;
    let router = Router::start(&[node("a", format!("{}/v1", api.url())).openai()], CHEAPEST_FIRST).await;
    let n_probes = || api.requests().len() - api.posts().len();
    assert_eq!(router.chat(&ask("m")).await.head.status(), 429);
    let before = n_probes();
    let is_back = |metrics: &Metrics| metrics.count("cema_endpoint_up", &[]) == 1;
    router.metrics_reach("the API to be back", is_back).await;
    // One may have been on its way; there is one each second otherwise.
    assert!(n_probes() <= before + 1, "{} probes", n_probes() - before);
}

#[tokio::test]
async fn whether_to_retry_is_said_and_the_endpoints_own_word_is_passed_on() {
    for (status, headers, expected) in [
        (400, "", "false"),
        (422, "", "false"),
        (400, "x-should-retry: true\r\n", "true"),
        (404, "", "false"),
        (406, "", "false"),
        (408, "", "true"),
        (409, "", "true"),
        (410, "", "false"),
        (425, "", "true"),
        (431, "", "false"),
        (451, "", "false"),
        (409, "x-should-retry: false\r\n", "false"),
        (429, "x-should-retry: false\r\n", "false"),
        (503, "", "true"),
        (500, "", "true"),
        (500, "x-should-retry: false\r\n", "false"),
        (401, "", "false"),
        (402, "", "false"),
        (401, "x-should-retry: true\r\n", "true"),
    ] {
        let endpoints = [refusing(status, headers).await];
        let router = over(&endpoints, "").await;
        let answer = router.chat(&ask("m")).await;
        assert_eq!(header(&answer, "x-should-retry"), expected, "{status} {headers}");
    }
}

#[tokio::test]
async fn a_router_at_fault_with_one_endpoint_may_still_be_served_by_another() {
    for (first, last, expected) in
        [(500, 404, "true"), (429, 401, "true"), (404, 401, "false"), (500, 400, "false")]
    {
        let endpoints = [refusing(first, "").await, refusing(last, "").await];
        let router = over(&endpoints, "").await;
        let answer = router.chat(&ask("m")).await;
        assert_eq!(header(&answer, "x-should-retry"), expected, "{first}, {last}");
    }
    let endpoints = [refusing(409, "retry-after: 3\r\n").await];
    let answer = over(&endpoints, "").await.chat(&ask("m")).await;
    assert_eq!((answer.head.status(), header(&answer, "retry-after-ms")), (409, "3000".into()));
}
