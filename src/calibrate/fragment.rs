//! The figures as YAML, to be copied into the configuration.

use std::fmt::{self, Write as _};

use super::figures::Figures;
use super::network::TimeSpread;
use crate::domain::EndpointOrd;
use crate::endpoint::EndpointKind;
use crate::endpoint::json::quote;
use crate::units::Seconds;

/// What was measured at one destination, and where it stands in the configuration.
#[derive(Debug)]
pub struct ThroughputEntry<'a> {
    /// `nodes[].name`.
    pub node: &'a str,
    /// Its endpoint.
    pub endpoint: EndpointOrd,
    /// `endpoints[].name`, where it has one.
    pub endpoint_name: Option<&'a str>,
    /// `endpoints[].url`.
    pub url: String,
    /// `endpoints[].kind`.
    pub kind: EndpointKind,
    /// `models[].name`.
    pub model: &'a str,
    /// `models[].upstream`.
    pub upstream: &'a str,
    /// The figures.
    pub figures: &'a Figures,
}

/// What was measured of the path to one node.
#[derive(Debug)]
pub struct NetworkEntry<'a> {
    /// `nodes[].name`.
    pub node: &'a str,
    /// Host and port that were connected to.
    pub authority: &'a str,
    /// TCP connects.
    pub tcp: TimeSpread,
    /// How many.
    pub n: usize,
    /// TLS handshakes, where there were any.
    pub tls: Option<TimeSpread>,
}

/// `nodes[].endpoints[].models[].throughput` of the entries, which come in the order of the configuration. Entries
/// without any figure are left out; empty where none has one.
#[must_use]
pub fn throughput(date: &str, entries: &[ThroughputEntry<'_>]) -> String {
    let mut text = String::new();
    let mut before: Option<&ThroughputEntry<'_>> = None;
    for entry in entries {
        let Some(values) = throughput_of(entry.figures) else { continue };
        if before.is_none_or(|before| before.node != entry.node) {
            line(&mut text, 2, format_args!("- name: {}", quote(entry.node)));
            line(&mut text, 4, format_args!("endpoints:"));
        }
        if before.is_none_or(|before| before.endpoint != entry.endpoint) {
            line(&mut text, 6, format_args!("- url: {}", quote(&entry.url)));
            line(&mut text, 8, format_args!("kind: {}", entry.kind));
            if let Some(name) = entry.endpoint_name {
                line(&mut text, 8, format_args!("name: {}", quote(name)));
            }
            line(&mut text, 8, format_args!("models:"));
        }
        line(&mut text, 10, format_args!("- name: {}", quote(entry.model)));
        if entry.upstream != entry.model {
            line(&mut text, 12, format_args!("upstream: {}", quote(entry.upstream)));
        }
        if let Some(load) = entry.figures.cold_load {
            line(&mut text, 12, format_args!("# loading the model took {} s", significant(load.get())));
        }
        line(&mut text, 12, format_args!("throughput:"));
        for (value, comment) in values {
            line(&mut text, 14, format_args!("{value:24} # {comment}"));
        }
        before = Some(entry);
    }
    with_heading("profile throughput", date, "each `throughput` under its model", text)
}

/// `nodes[].network.rtt_ms` of the entries; empty where there are none.
#[must_use]
pub fn network(date: &str, entries: &[NetworkEntry<'_>]) -> String {
    let mut text = String::new();
    for entry in entries {
        let NetworkEntry { node, authority, tcp, n, tls } = entry;
        line(&mut text, 2, format_args!("- name: {}", quote(node)));
        line(&mut text, 4, format_args!("network:"));
        let value = format!("rtt_ms: {}", ms(tcp.median));
        let tls = tls.map(|tls| format!("; TLS on top {} ms", ms(tls.median))).unwrap_or_default();
        let comment = format!(
            "median of {n} TCP connects to {authority}, least {} ms, 95 % within {} ms{tls}",
            ms(tcp.min),
            ms(tcp.p95)
        );
        line(&mut text, 6, format_args!("{value:24} # {comment}"));
    }
    with_heading("profile network", date, "`rtt_ms` into the `network` of its node", text)
}

fn with_heading(command: &str, date: &str, copy: &str, nodes: String) -> String {
    if nodes.is_empty() {
        return nodes;
    }
    format!("# cema-router {command}, {date}. Copy {copy}.\nnodes:\n{nodes}")
}

/// Lines of a `throughput` section: key with value, and a comment.
fn throughput_of(figures: &Figures) -> Option<Vec<(String, String)>> {
    let mut lines = Vec::new();
    if let Some(fit) = &figures.prefill {
        lines.push((
            format!("prefill_tps: {}", significant(fit.speed.get())),
            format!(
                "{} prompts of {} to {} tokens; first token after {} ms and {} ms a token, ± {} ms",
                fit.n,
                fit.range_tokens[0],
                fit.range_tokens[1],
                ms(fit.overhead),
                significant(1e3 / fit.speed.get()),
                ms(fit.residual)
            ),
        ));
    }
    if let Some(spread) = &figures.decode {
        let [low, median, high] = [spread.low, spread.median, spread.high].map(significant);
        let comment = format!("median of {}, 10 % to 90 %: {low} to {high}", spread.n);
        lines.push((format!("decode_tps: {median}"), comment));
    }
    if let Some(fit) = &figures.ladder {
        let [serial, batch, best] = [fit.serial, fit.batch, fit.best].map(|tps| significant(tps.get()));
        let comment = format!("{batch} tokens/s together, {serial} one by one, {best} at best");
        lines.push((format!("batch_speedup: {}", significant(fit.batch_speedup)), comment));
        let slots = match fit.slots {
            Some(slots) => format!("it runs {slots} at once"),
            None => "no limit of its own was met".to_owned(),
        };
        let comment = format!("90 % of the best is reached at {}; {slots}", fit.knee);
        lines.push((format!("max_concurrency: {}", fit.max_concurrency), comment));
    }
    (!lines.is_empty()).then_some(lines)
}

fn ms(time: Seconds) -> String {
    significant(time.get() * 1e3)
}

/// Four significant digits, no exponent.
fn significant(x: f64) -> String {
    if x.abs() < 1e-9 {
        return "0".to_owned();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 9 decimals")]
    let decimals = (3.0 - x.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{x:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

fn line(text: &mut String, indent: usize, content: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{:indent$}{content}", "");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::PrefillFit;
    use crate::calibrate::fit::Spread;
    use crate::calibrate::ladder::{Ending, LadderFit};
    use crate::units::TokensPerSec;

    fn figures() -> Figures {
        Figures {
            prefill: Some(PrefillFit {
                speed: TokensPerSec(812.5),
                overhead: Seconds(0.0421),
                residual: Seconds(0.003),
                n: 9,
                range_tokens: [58, 960],
            }),
            decode: Some(Spread { median: 41.237, low: 40.0, high: 42.5, n: 9 }),
            ladder: Some(LadderFit {
                serial: TokensPerSec(38.0),
                best: TokensPerSec(112.0),
                batch: TokensPerSec(110.2),
                knee: 4,
                slots: Some(4),
                max_concurrency: 4,
                batch_speedup: 2.9,
                ending: Ending::Saturated,
            }),
            cold_load: None,
            server_prefill: None,
            server_decode: None,
        }
    }

    #[test]
    fn throughput_is_written_under_its_model() {
        let figures = figures();
        let entry = |model: &'static str, endpoint| ThroughputEntry {
            node: "edge-1",
            endpoint: EndpointOrd(endpoint),
            endpoint_name: None,
            url: "http://10.0.0.5:8080/v1".to_owned(),
            kind: EndpointKind::LlamaCpp,
            model,
            upstream: "smol",
            figures: &figures,
        };
        let text = throughput("today", &[entry("smol", 0), entry("other", 0)]);
        let first = "\
# cema-router profile throughput, today. Copy each `throughput` under its model.
nodes:
  - name: \"edge-1\"
    endpoints:
      - url: \"http://10.0.0.5:8080/v1\"
        kind: llamacpp
        models:
          - name: \"smol\"
            throughput:
              prefill_tps: 812.5       # 9 prompts of 58 to 960 tokens; first token after 42.1 ms and 1.231 ms a token, ± 3 ms
              decode_tps: 41.24        # median of 9, 10 % to 90 %: 40 to 42.5
              batch_speedup: 2.9       # 110.2 tokens/s together, 38 one by one, 112 at best
              max_concurrency: 4       # 90 % of the best is reached at 4; it runs 4 at once
          - name: \"other\"
            upstream: \"smol\"
";
        assert!(text.starts_with(first), "{text}");
        let nothing = Figures { prefill: None, decode: None, ladder: None, ..figures.clone() };
        assert_eq!(throughput("today", &[ThroughputEntry { figures: &nothing, ..entry("smol", 0) }]), "");
    }

    #[test]
    fn network_is_written_under_its_node() {
        let tcp = TimeSpread { min: Seconds(0.0031), median: Seconds(0.0042), p95: Seconds(0.009) };
        let entry = NetworkEntry { node: "n", authority: "h:1", tcp, n: 20, tls: Some(tcp) };
        let expected = "\
# cema-router profile network, today. Copy `rtt_ms` into the `network` of its node.
nodes:
  - name: \"n\"
    network:
      rtt_ms: 4.2              # median of 20 TCP connects to h:1, least 3.1 ms, 95 % within 9 ms; TLS on top 4.2 ms
";
        assert_eq!(network("today", &[entry]), expected);
    }

    #[test]
    fn numbers_have_four_digits() {
        let texts = [812.456, 41.2371, 0.004_213_7, 12_345.6, 4.0, 0.0, 100.0].map(significant);
        assert_eq!(texts, ["812.5", "41.24", "0.004214", "12346", "4", "0", "100"]);
    }
}
