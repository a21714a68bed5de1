//! Measurements as a table for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::calibrate::fit::Spread;
use crate::calibrate::ladder::{Ending, LadderFit};
use crate::calibrate::{Figures, Measured, PrefillFit, Rung};
use crate::domain::Destination;

/// One destination, measured.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) destination: &'a Destination,
    pub(super) measured: &'a Measured,
    pub(super) figures: &'a Figures,
}

/// A paragraph for each destination.
pub(super) fn table(rows: &[Row<'_>]) -> String {
    rows.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

fn paragraph(row: &Row<'_>) -> String {
    let Row { destination, measured, figures } = row;
    let mut lines = vec![destination.id.to_string()];
    lines.push(match figures.prefill {
        Some(fit) => prefill_line(&fit, figures.server_prefill),
        None if measured.singles.is_empty() => "  prefill      not measured".to_owned(),
        None => {
            "  prefill      too fast or too uneven to tell: give longer prompts or more --repeats".to_owned()
        }
    });
    lines.push(match figures.decode {
        Some(Spread { median, low, high, n }) => format!(
            "  decode       {median:8.1} tokens/s alone; 10 to 90 % of {n}: {low:.1} to {high:.1}{}",
            checked(figures.server_decode)
        ),
        None => "  decode       not measured".to_owned(),
    });
    if !measured.rungs.is_empty() {
        lines.push("  at once    tokens/s   gain   each tokens/s   first token s   running".to_owned());
    }
    let mut before = None;
    for rung in &measured.rungs {
        lines.push(rung_line(rung, before));
        before = Some(rung);
    }
    lines.extend(figures.ladder.map(|fit| ladder_line(&fit)));
    lines.extend(
        figures
            .cold_load
            .map(|load| format!("  loading      {:8.1} s, before the first request", load.get())),
    );
    lines.extend(measured.notes.iter().map(|note| format!("  note: {note}")));
    lines.extend(measured.failure.iter().map(|failure| format!("  FAILED: {failure}")));
    lines.join("\n") + "\n"
}

fn prefill_line(fit: &PrefillFit, server: Option<Spread>) -> String {
    format!(
        "  prefill      {:8.1} tokens/s; first token after {:.0} ms + {:.3} ms a token, ± {:.0} ms ({} requests){}",
        fit.speed.get(),
        fit.overhead.get() * 1e3,
        1e3 / fit.speed.get(),
        fit.residual.get() * 1e3,
        fit.n,
        checked(server)
    )
}

/// The server's own figure.
fn checked(server: Option<Spread>) -> String {
    server.map(|spread| format!("; the server says {:.1}", spread.median)).unwrap_or_default()
}

fn rung_line(rung: &Rung, before: Option<&Rung>) -> String {
    let aggregate = rung.aggregate().get();
    let gain = before.map(|before| 100.0 * (aggregate / before.aggregate().get() - 1.0));
    let gain = gain.filter(|gain| gain.is_finite()).map_or_else(String::new, |gain| format!("{gain:+.0} %"));
    let each = rung.decode().map_or_else(String::new, |each| format!("{:.1}", each.median));
    let failed = if rung.failures > 0 { format!("   {} failed", rung.failures) } else { String::new() };
    format!(
        "  {:7}    {aggregate:8.1} {gain:>6}   {each:>13}   {:13.2}   {:7}{failed}",
        rung.concurrency,
        rung.ttft().get(),
        rung.running_max()
    )
}

fn ladder_line(fit: &LadderFit) -> String {
    let slots = fit.slots.map(|slots| format!(", {slots} slots")).unwrap_or_default();
    let open = match fit.ending {
        Ending::Open if fit.slots.is_none() => "; more at once might bring more",
        Ending::Open | Ending::Saturated | Ending::Failed => "",
    };
    format!(
        "  knee at {}{slots}: max_concurrency {}, batch_speedup {:.2}{open}",
        fit.knee, fit.max_concurrency, fit.batch_speedup
    )
}

/// Everything, with the measurements it is made of.
pub(super) fn json(rows: &[Row<'_>]) -> Value {
    let row = |row: &Row<'_>| {
        let Row { destination, measured, figures } = row;
        json!({
            "id": destination.id.as_str(),
            "figures": figures,
            "singles": measured.singles.iter().map(|sample| json!({
                "prompt_tokens": sample.prompt_tokens,
                "completion_tokens": sample.completion_tokens,
                "ttft_s": sample.ttft(),
                "decode_tps": sample.decode(),
            })).collect::<Vec<_>>(),
            "rungs": measured.rungs.iter().map(|rung| json!({
                "concurrency": rung.concurrency,
                "aggregate_tps": rung.aggregate(),
                "decode_tps": rung.decode(),
                "ttft_s": rung.ttft(),
                "running_max": rung.running_max(),
                "requests": rung.samples.len(),
                "failures": rung.failures,
            })).collect::<Vec<_>>(),
            "notes": measured.notes,
            "failure": measured.failure,
        })
    };
    json!({ "destinations": rows.iter().map(row).collect::<Vec<_>>() })
}

/// Two columns of a table, the second aligned.
pub(super) fn aligned(lines: &[(String, String)]) -> String {
    let width = lines.iter().map(|(first, _)| first.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for (first, second) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{first:width$}  {second}");
    }
    text
}
