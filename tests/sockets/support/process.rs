//! The binary itself, its log as JSON lines.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::in_time;

/// A running `cema-router`; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Process {
    /// Starts it with these arguments.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// The same with these environment variables besides.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cema-router"))
            .envs(variables.iter().copied())
            .args(args)
            .args(["--log-format", "json"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log }
    }

    /// The next log line whose message starts so.
    pub(crate) async fn logged(&mut self, message: &str) -> serde_json::Value {
        loop {
            let line = self.next_logged(message).await;
            if line["message"].as_str().is_some_and(|text| text.starts_with(message)) {
                return line;
            }
        }
    }

    /// The next log line; `what` is hoped for.
    pub(crate) async fn next_logged(&mut self, what: &str) -> serde_json::Value {
        let line = in_time(what, self.log.next_line()).await.unwrap();
        let line = line.unwrap_or_else(|| panic!("the log ended without `{what}`"));
        let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["fields"].is_object() { line["fields"].take() } else { line }
    }

    /// The log lines up to its end.
    pub(crate) async fn rest(&mut self) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        while let Some(line) = in_time("the end of the log", self.log.next_line()).await.unwrap() {
            lines.push(serde_json::from_str(&line).unwrap());
        }
        lines
    }

    /// The address that the log line `message` has under `name`.
    pub(crate) async fn logged_address(&mut self, message: &str, name: &str) -> SocketAddr {
        self.logged(message).await[name].as_str().unwrap().parse().unwrap()
    }

    /// Sends it `TERM` or another signal.
    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().await.unwrap();
        assert!(status.success());
    }

    /// How it ends.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        in_time("the process to end", self.child.wait()).await.unwrap()
    }
}
