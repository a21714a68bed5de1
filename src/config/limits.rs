//! Bounds and clocks of the data plane (`limits`, `timeouts`, `response_model`).

use std::time::Duration;

use super::reader::Section;
use crate::domain::named::named_enum;
use crate::profiler::node::{BreakerParams, CoolingParams};
use crate::telemetry::json_log::JsonLogParams;

/// Longest time any one clock may be set to: a day.
const DAY_MS: f64 = 86_400_000.0;

/// `limits`: what one request and the whole router may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `max_body_bytes`: largest request body, 1 KiB to 1 GiB; default 33554432 (32 MiB).
    pub max_body_bytes: usize,
    /// `max_body_bytes_total`: request bodies in memory at once, all together, those up to 64 KiB not counted; at
    /// least `max_body_bytes`, at most 1 TiB; default 536870912 (512 MiB). Beyond it clients get 503 with Retry-After.
    pub max_body_bytes_total: usize,
    /// `max_queued_requests`: requests in the router that no endpoint has taken yet, 1 to 1000000;
    /// default 4096. Beyond it clients get 429 with Retry-After.
    pub max_queued_requests: usize,
    /// `max_attempts`: endpoints one request may be sent to, the first included, 1 to 6; default 3. Clients
    /// try again by themselves (twice, with OpenAI's SDKs), and the two multiply.
    pub max_attempts: u32,
    /// `request_deadline_ms`: longest life of a request in the router, 1 ms to a day; default 600000.
    pub request_deadline: Duration,
    /// `max_connections`: open connections of clients, 1 to 1000000; default 10000. Further ones wait in the
    /// system's backlog. The limit on open files may lower it.
    pub max_connections: usize,
    /// `drain_ms`: how long requests under way may take to finish once the router is asked to stop, 0 to a day;
    /// default 30000.
    pub drain: Duration,
}

impl Limits {
    /// `max_connections` where none is configured.
    pub const MAX_CONNECTIONS_DEFAULT: u32 = 10_000;

    pub(super) fn read(s: &mut Section<'_>) -> Self {
        let max_body_bytes = s.whole("max_body_bytes", 1_024..=1 << 30, 32 << 20);
        let total_default = max_body_bytes.max(512 << 20);
        let max_body_bytes_total =
            s.whole("max_body_bytes_total", max_body_bytes.max(64 << 10)..=1 << 40, total_default);
        Self {
            max_body_bytes: max_body_bytes as usize,
            max_body_bytes_total: max_body_bytes_total as usize,
            max_queued_requests: s.count("max_queued_requests", 1..=1_000_000, 4_096) as usize,
            max_attempts: s.count("max_attempts", 1..=6, 3),
            request_deadline: s.ms("request_deadline_ms", 1.0..=DAY_MS, 600_000.0),
            max_connections: s.count("max_connections", 1..=1_000_000, Self::MAX_CONNECTIONS_DEFAULT)
                as usize,
            drain: s.ms("drain_ms", 0.0..=DAY_MS, 30_000.0),
        }
    }
}

/// `timeouts`: the clocks of one attempt at an endpoint, and those of a client's connection. Each 1 ms to a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// `connect_ms`: until a connection stands; default 3000.
    pub connect: Duration,
    /// `first_byte_ms`: until the endpoint's status line; default 120000.
    pub first_byte: Duration,
    /// `first_token_ms`: until the first content event of a stream; default 300000.
    pub first_token: Duration,
    /// `load_ms`: added to `first_byte_ms` and `first_token_ms` where the endpoint has said that it must load the model
    /// first; default 300000.
    pub load: Duration,
    /// `idle_ms`: between two reads of an answer that has begun; default 60000.
    pub idle: Duration,
    /// `commit_after_ms`: until a stream without content is committed and kept alive with comments;
    /// default 20000.
    pub commit_after: Duration,
    /// `keep_alive_ms`: how long a client's connection is kept without a request; default 75000, longer than the
    /// 60 s of common connection pools, so that the client is the one to close.
    pub keep_alive: Duration,
    /// `head_ms`: from the first byte of a request's head to its last; default 30000.
    pub head: Duration,
    /// `write_idle_ms`: how long a client may take nothing of an answer that is there for it; default 60000.
    pub write_idle: Duration,
}

impl Timeouts {
    pub(super) fn read(s: &mut Section<'_>) -> Self {
        let clock = 1.0..=DAY_MS;
        Self {
            connect: s.ms("connect_ms", clock.clone(), 3_000.0),
            first_byte: s.ms("first_byte_ms", clock.clone(), 120_000.0),
            first_token: s.ms("first_token_ms", clock.clone(), 300_000.0),
            load: s.ms("load_ms", clock.clone(), 300_000.0),
            idle: s.ms("idle_ms", clock.clone(), 60_000.0),
            commit_after: s.ms("commit_after_ms", clock.clone(), 20_000.0),
            keep_alive: s.ms("keep_alive_ms", clock.clone(), 75_000.0),
            head: s.ms("head_ms", clock.clone(), 30_000.0),
            write_idle: s.ms("write_idle_ms", clock, 60_000.0),
        }
    }
}

/// `breaker`: when an endpoint that keeps failing is left alone.
pub(super) fn read_breaker(s: &mut Section<'_>) -> BreakerParams {
    let failures = s.count("failures", 1..=1_000, 5);
    let open = s.ms("open_ms", 1.0..=DAY_MS, 5_000.0);
    let default_max_ms = (open.as_secs_f64() * 1e3).max(60_000.0);
    let open_max = s.ms("open_max_ms", 1.0..=DAY_MS, default_max_ms);
    if open_max < open {
        s.fault("open_max_ms", "below `open_ms`", &format!("{} to {DAY_MS}", open.as_millis()));
    }
    BreakerParams { failures, open, open_max }
}

/// `cooling`: for how long an endpoint that answered 429 or 503 is left alone. A `max_ms` below the default of
/// `default_ms` lowers it.
pub(super) fn read_cooling(s: &mut Section<'_>) -> CoolingParams {
    let default_given = s.has("default_ms");
    let default = s.ms("default_ms", 0.0..=DAY_MS, 1_000.0);
    let max = s.ms("max_ms", 0.0..=DAY_MS, (default.as_secs_f64() * 1e3).max(120_000.0));
    if default_given && max < default {
        s.fault("max_ms", "below `default_ms`", &format!("{} to {DAY_MS}", default.as_millis()));
    }
    CoolingParams { default: default.min(max), max }
}

/// `decision_log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionLogConfig {
    /// Where it goes.
    pub log: JsonLogParams,
    /// `situations`: whether plans are written with all it takes to make them again; default true.
    pub situations: bool,
}

/// Reads `decision_log`: the keys of [`read_log`], and `situations`.
pub(super) fn read_decision_log(s: &mut Section<'_>) -> Option<DecisionLogConfig> {
    let situations = s.flag("situations", true);
    read_log(s).map(|log| DecisionLogConfig { log, situations })
}

/// A log of JSON lines: `path` (without it there is none), `file_mb` after which a file is put aside, 1 to 100000 (256),
/// `file_hours` after which it is put aside too, 1 to 8784 (24), `files` kept, 1 to 1000 (4).
pub(super) fn read_log(s: &mut Section<'_>) -> Option<JsonLogParams> {
    let path = s.get("path").and_then(|field| field.path("a file that can be written"));
    let file_mb = s.whole("file_mb", 1..=100_000, 256);
    let file_hours = s.whole("file_hours", 1..=8_784, 24);
    let files_max = s.count("files", 1..=1_000, 4);
    let age_max = Duration::from_secs(file_hours * 3_600);
    path.map(|path| JsonLogParams { path, file_bytes_max: file_mb << 20, age_max, files_max })
}

named_enum! {
    /// `response_model`: what the `model` of a response says.
    pub enum ResponseModel {
        /// As the endpoint wrote it (the default).
        Resolved = "resolved",
        /// As the client asked.
        Echo = "echo",
    }
}
