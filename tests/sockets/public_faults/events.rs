//! Events: split anywhere, with text that looks like framing, with comments and ids, compressed.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Semaphore;
use tracing_subscriber::fmt::MakeWriter;

use super::{AT_ONCE, ECHO, over};
use crate::support::answers::{
    DONE_EVENT, chunk, delta_event, finish_event, gzip, last_chunk, role_event, stream_head,
    stream_in_chunks, write,
};
use crate::support::app::{CHAT, ask_stream};
use crate::support::fake_endpoint::Step;
use crate::support::in_time;
use crate::support::llama::path_or_skip;

const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":33,\"completion_tokens\":5,\"total_tokens\":38}}\n\n";
const COMMENT: &str = ": OPENROUTER PROCESSING\n\n";
const PING: &str = ": ping\n";

/// A streamed request that asks for the token counts.
fn ask_counted() -> String {
    ask_stream("auto").replace("true}", r#"true,"stream_options":{"include_usage":true}}"#)
}

/// A stream that says `content` in one event, with its counts.
fn said(content: &str) -> String {
    let parts = [role_event("m"), delta_event("m", content), finish_event("m"), USAGE.into()];
    parts.concat() + DONE_EVENT
}

/// The log of this thread, which is where the router of a test runs, from warnings up.
#[derive(Debug, Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Warnings {
    fn gather(&self) -> tracing::subscriber::DefaultGuard {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(self.clone());
        tracing::subscriber::set_default(log.finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Warnings {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// Sends `script`, which is `events` split somehow: they must arrive whole, counted, without a warning.
async fn arrives_whole(script: Vec<Step>, events: &str, what: &str) {
    for (sections, model) in [(AT_ONCE, "m"), (ECHO, "auto")] {
        let (_endpoint, router) = over(script.clone(), sections).await;
        let warnings = Warnings::default();
        let _gathering = warnings.gather();
        tracing::warn!("the log is read");
        let answer = router.chat(&ask_counted()).await;
        let expected = events.replace(r#""model":"m""#, &format!(r#""model":"{model}""#));
        assert_eq!((answer.is_complete, answer.text()), (true, expected), "{what} {sections}");
        let metrics = router.idle().await;
        let tokens = |kind| metrics.count("cema_tokens_total", &[("type", kind)]);
        assert_eq!((tokens("prompt"), tokens("completion")), (33, 5), "{what}");
        assert_eq!(metrics.count("cema_time_to_first_token_seconds_count", &[]), 1, "{what}");
        assert_eq!(metrics.count("cema_requests_total", &[("outcome", "ok")]), 1, "{what}");
        assert_eq!(warnings.text().matches("WARN").count(), 1, "{what}: {}", warnings.text());
    }
}

#[tokio::test]
async fn characters_that_chunks_split_arrive_and_count() {
    // katanemo/plano#980, xberg-io/liter-llm#152, graniet/llm#90.
    let events = said("日本語🙂é");
    let in_the_emoji = events.find('🙂').unwrap() + 2;
    let (before, after) = events.as_bytes().split_at(in_the_emoji);
    let pause = Step::Pause(Duration::from_millis(10));
    let halves = vec![stream_head(), chunk(before), pause, chunk(after), last_chunk()];
    arrives_whole(halves, &events, "two bytes into the emoji").await;
    for size in [1, 2, 7] {
        let script = stream_in_chunks(&events, size, Duration::ZERO);
        arrives_whole(script, &events, &format!("chunks of {size}")).await;
    }
}

#[tokio::test]
async fn text_that_looks_like_framing_is_text() {
    // BerriAI/litellm#30224, vllm-project/aibrix#2653.
    for content in
        ["a\"}\n\n{\"b", "x\r\n\r\ndata: [DONE]\r\n\r\ndata: {\"error\":{}}", "\u{2028}\u{85}\n: c\n\n"]
    {
        let events = said(content);
        for size in [1, 2, 7, 1 << 20] {
            let script = stream_in_chunks(&events, size, Duration::ZERO);
            arrives_whole(script, &events, &format!("{content:?} in chunks of {size}")).await;
        }
    }
}

#[tokio::test]
async fn compressed_events_that_chunks_split_arrive_as_plain_ones() {
    // BerriAI/litellm#25624, agentgateway/agentgateway#3040, sgl-project/sglang#27523.
    let events = said("日本語🙂é");
    let members: Vec<u8> = events.split_inclusive("\n\n").flat_map(gzip).collect();
    for (what, coded) in [("one member", gzip(&events)), ("a member for each event", members)] {
        for size in [1, 2, 7, 1 << 20] {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nContent-Encoding: GZIP\r\ntransfer-encoding: chunked\r\n\r\n";
            let chunks = coded.chunks(size).map(chunk);
            let script = std::iter::once(write(head)).chain(chunks).chain([last_chunk()]).collect();
            arrives_whole(script, &events, &format!("{what} in chunks of {size}")).await;
        }
    }
}

#[tokio::test]
async fn comments_pass_as_comments_and_are_no_first_token() {
    // mnfst/llm-gateway#2053, Wei-Shaw/sub2api#2021.
    let rest = said("done");
    let gate = Arc::new(Semaphore::new(0));
    let mut script = vec![stream_head()];
    for _ in 0..20 {
        script.extend([Step::Pause(Duration::from_millis(50)), chunk(COMMENT)]);
    }
    script.extend([Step::Gate(Arc::clone(&gate)), chunk(&rest), last_chunk()]);
    let expected = COMMENT.repeat(20) + &rest;
    for (limits, is_committed) in [("commit_after_ms: 100", true), ("commit_after_ms: 60000", false)] {
        let (_endpoint, router) = over(script.clone(), &format!("{AT_ONCE}timeouts: {{{limits}}}\n")).await;
        let mut client = router.client().await;
        client.post(CHAT, "", &ask_counted()).await;
        let mut text = String::new();
        if is_committed {
            // They come while the endpoint has nothing else to say.
            assert_eq!(client.head().await.status(), 200);
            while text.matches(COMMENT).count() < 20 {
                text.push_str(&String::from_utf8(client.chunk().await.unwrap().unwrap()).unwrap());
            }
            gate.add_permits(1);
            while let Some(chunk) = client.chunk().await.unwrap() {
                text.push_str(&String::from_utf8(chunk).unwrap());
            }
        } else {
            gate.add_permits(1);
            text = client.answer().await.text();
        }
        assert_eq!(text.replace(PING, ""), expected, "{limits}");
        let metrics = router.idle().await;
        assert_eq!(metrics.count("cema_time_to_first_token_seconds_count", &[]), 1);
        let first_token_s = metrics.sum("cema_time_to_first_token_seconds_sum", &[]);
        assert!(first_token_s >= 1.0, "20 times 50 ms come before it: {first_token_s}");
    }
}

/// Reads events as openai-python does: a blank line ends an event as soon as an id was ever seen, and the data
/// of every event must be JSON.
#[derive(Debug, Default)]
struct PythonDecoder {
    data: Vec<String>,
    has_id: bool,
}

impl PythonDecoder {
    /// The data of every event of `text`.
    fn events(text: &str) -> Vec<String> {
        let mut decoder = Self::default();
        text.lines().filter_map(|line| decoder.line(line)).collect()
    }

    fn line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            let is_event = self.has_id || !self.data.is_empty();
            return is_event.then(|| std::mem::take(&mut self.data).join("\n"));
        }
        match line.split_once(':')? {
            ("data", value) => self.data.push(value.strip_prefix(' ').unwrap_or(value).to_owned()),
            ("id", _) => self.has_id = true,
            _ => {}
        }
        None
    }
}

/// A stream whose events have ids, with silence before and after its first content.
fn with_ids(gate: &Arc<Semaphore>) -> Vec<Step> {
    let numbered = |n: u32, event: String| chunk(format!("id: {n}\n{event}"));
    vec![
        stream_head(),
        numbered(1, role_event("m")),
        Step::Gate(Arc::clone(gate)),
        numbered(2, delta_event("m", "one")),
        Step::Pause(Duration::from_millis(300)),
        numbered(3, delta_event("m", "two")),
        numbered(4, finish_event("m")),
        numbered(5, DONE_EVENT.into()),
        last_chunk(),
    ]
}

const QUICK_PINGS: &str = "window: {max_ms: 0}\ntimeouts: {commit_after_ms: 50}\n";

#[tokio::test]
async fn pings_are_no_events_after_an_id() {
    // theopenco/llmgateway#2334, openai-python#2722: a comment with a blank line made an event without data.
    assert_eq!(PythonDecoder::events("id: 1\ndata: {}\n\n: ping\n\n"), ["{}", ""], "that is the fault");
    let gate = Arc::new(Semaphore::new(0));
    let (_endpoint, router) = over(with_ids(&gate), QUICK_PINGS).await;
    let mut client = router.client().await;
    client.post(CHAT, "", &ask_stream("m")).await;
    assert_eq!(client.head().await.status(), 200);
    let mut text = String::new();
    while text.matches(PING).count() < 3 {
        text.push_str(&String::from_utf8(client.chunk().await.unwrap().unwrap()).unwrap());
    }
    gate.add_permits(1);
    while let Some(chunk) = client.chunk().await.unwrap() {
        text.push_str(&String::from_utf8(chunk).unwrap());
    }
    let events = PythonDecoder::events(&text);
    assert_eq!(events.len(), 5, "{text}");
    for data in &events[..4] {
        serde_json::from_str::<serde_json::Value>(data).unwrap_or_else(|_| panic!("{data:?} in {text}"));
    }
    assert_eq!(events[4], "[DONE]");
}

#[tokio::test]
async fn no_ping_comes_between_cr_and_lf() {
    let gate = Arc::new(Semaphore::new(0));
    let events = format!("id: 1\n{}id: 2\n{}", role_event("m"), said("two")).replace('\n', "\r\n");
    let (before, after) = events.split_at(events.find("\r\n\r\n").unwrap() + 3);
    let script =
        vec![stream_head(), chunk(before), Step::Gate(Arc::clone(&gate)), chunk(after), last_chunk()];
    let (_endpoint, router) = over(script, QUICK_PINGS).await;
    let mut client = router.client().await;
    client.post(CHAT, "", &ask_counted()).await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.chunk().await.unwrap().unwrap(), before.as_bytes());
    assert!(client.stays_silent(Duration::from_millis(300)).await);
    gate.add_permits(1);
    let mut text = before.to_owned();
    while let Some(chunk) = client.chunk().await.unwrap() {
        text.push_str(&String::from_utf8(chunk).unwrap());
    }
    assert_eq!(text, events);
}

#[tokio::test]
async fn the_openai_sdk_reads_through_pings() {
    let Some(python) = path_or_skip("CEMA_TEST_SDK") else { return };
    let gate = Arc::new(Semaphore::new(0));
    let mut script = with_ids(&gate);
    // The SDK cannot tell how many pings it has passed over.
    script[2] = Step::Pause(Duration::from_millis(500));
    let (_endpoint, router) = over(script, QUICK_PINGS).await;
    let code = "import sys, openai\n\
                client = openai.OpenAI(base_url=sys.argv[1], api_key='none', max_retries=0)\n\
                ask = [{'role': 'user', 'content': 'hi'}]\n\
                stream = client.chat.completions.create(model='m', messages=ask, stream=True)\n\
                print(''.join(event.choices[0].delta.content or '' for event in stream))\n";
    let url = format!("http://{}/v1", router.api());
    let run = Command::new(python).args(["-B", "-c", code, &url]).kill_on_drop(true).output();
    let output = in_time("the SDK", run).await.unwrap();
    let (said, wrong) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), "onetwo", "{wrong}");
}
