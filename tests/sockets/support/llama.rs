//! Real llama.cpp servers, and what `make setup` fetched for tests against real programs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::app::{Node, node};
use super::in_time;
use super::raw_client::RawClient;

const MODEL: &str = "{name: smol, upstream: smollm2-135m-instruct, context_tokens: 1024, \
                     throughput: {prefill_tps: 500, decode_tps: 50, batch_speedup: 1.5, max_concurrency: 2}}";

/// The program or folder that the environment variable `variable` names. Without it the test cannot run: it says so past the harness and gets
/// `None`, or fails where `make test` promised to bring it.
pub(crate) fn path_or_skip(variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    if let Some(path) = &named {
        assert!(path.exists(), "{variable} is {}, which is not there: run `make setup`", path.display());
        return named;
    }
    let is_required = std::env::var_os("CEMA_REQUIRE_EMBEDDER").is_some_and(|value| value == "1");
    assert!(!is_required, "{variable} is not set");
    // Not `eprintln!`: the harness would swallow that in a test that passes.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "!! SKIPPED a test against real servers: {variable} is not set (make test sets it)")
        .unwrap();
    None
}

/// A running llama.cpp server with two slots of 1024 tokens.
#[derive(Debug)]
pub(crate) struct Llama {
    /// Its process.
    pub(crate) process: Child,
    url: String,
}

impl Llama {
    /// Starts one and waits until it answers.
    pub(crate) async fn start(python: &Path) -> Self {
        let mut process = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/llamacpp_server.py"))
            .args(["--port", "0", "--parallel", "2", "--ctx-per-slot", "1024", "--end-with-parent"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = in_time("llama.cpp to be ready", async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Ok(ready) = serde_json::from_str::<serde_json::Value>(&line) {
                    return ready["ready"].as_str().unwrap().to_owned();
                }
            }
            panic!("llama.cpp did not start: {:?}", process.wait().await)
        })
        .await;
        Self { process, url }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A node with it as its endpoint; its model is `smol`.
    pub(crate) fn node(&self, name: &str) -> Node {
        node(name, self.url.as_str()).llamacpp().model(MODEL)
    }

    /// Its own metrics.
    pub(crate) async fn metrics(&self) -> String {
        let addr = self.url.trim_start_matches("http://").parse().unwrap();
        let mut client = RawClient::connect(addr).await;
        client.get("/metrics").await;
        client.answer().await.text()
    }
}
