//! `--arrivals`: a process by name, or times from a file.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::simulate::arrivals::Arrivals;
use crate::units::Seconds;

/// The arrivals called `name`, or those in the file of this name: one time in seconds per line, or the decision log
/// of a router.
pub(super) fn arrivals(name: &str) -> anyhow::Result<Arrivals> {
    let path = match name {
        "poisson" => return Ok(Arrivals::Poisson),
        "bursty" => return Ok(Arrivals::Bursty),
        "onoff" => return Ok(Arrivals::OnOff),
        path => Path::new(path),
    };
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("--arrivals is `{name}`: neither `poisson`, `bursty` nor `onoff` nor a file that can be read")
    })?;
    let is_log = text.trim_start().starts_with('{');
    let mut times = if is_log { logged(&text) } else { listed(&text) }.with_context(|| name.to_owned())?;
    if times.is_empty() {
        bail!(
            "{name}: no arrival times; one in seconds per line is wanted, or a decision log with `request` lines"
        );
    }
    times.sort_by(f64::total_cmp);
    // A log counts from 1970.
    let from = if is_log { times[0] } else { 0.0 };
    Ok(Arrivals::At(times.into_iter().map(|at| Seconds(at - from)).collect()))
}

fn listed(text: &str) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let first = line.split(',').next().unwrap_or_default().trim();
        match first.parse::<f64>() {
            Ok(at_s) if at_s.is_finite() && at_s >= 0.0 => times.push(at_s),
            // A line of titles.
            Err(_) if number == 1 => {}
            _ if first.is_empty() => {}
            _ => bail!("line {number}: `{first}` is not a time in seconds from 0 on"),
        }
    }
    Ok(times)
}

/// What is read of a line of a decision log.
#[derive(Deserialize)]
struct LogLine {
    kind: String,
    unix_s: f64,
    actual: Option<Actual>,
}

#[derive(Deserialize)]
struct Actual {
    since_arrival_s: f64,
}

/// The arrivals in a decision log: a `request` line is written when the request is over and says how long ago it
/// came, whatever became of it.
fn logged(text: &str) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let line: LogLine = serde_json::from_str(line)
            .with_context(|| format!("line {number} is not one of a decision log"))?;
        if line.kind == "request" {
            let actual = line.actual.with_context(|| format!("line {number} has no `actual`"))?;
            times.push(line.unix_s - actual.since_arrival_s);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> anyhow::Result<Vec<f64>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        match arrivals(&file.path().display().to_string())? {
            Arrivals::At(times) => Ok(times.into_iter().map(Seconds::get).collect()),
            other => bail!("{other:?}"),
        }
    }

    #[test]
    fn times_are_read_from_lists_and_from_decision_logs() {
        assert_eq!(of("arrival_s\n2\n0.5,ignored\n\n0.5\n").unwrap(), [0.5, 0.5, 2.0]);
        let log = r#"{"v":1,"unix_s":1000.5,"kind":"plan","plan":1}
{"v":1,"unix_s":1003.0,"kind":"request","id":"a","actual":{"seconds":2.0,"since_arrival_s":2.5,"usd":null}}
{"v":1,"unix_s":1003.5,"kind":"energy","id":"a","joules":7.0}
{"v":1,"unix_s":1002.0,"kind":"request","id":"b","outcome":"rejected","actual":{"seconds":null,"since_arrival_s":2.0}}
"#;
        assert_eq!(of(log).unwrap(), [0.0, 0.5]);
    }

    #[test]
    fn faults_name_their_line() {
        let fault = |text: &str| format!("{:#}", of(text).unwrap_err());
        assert!(fault("1\nsoon\n").contains("line 2: `soon`"));
        assert!(
            fault("{\"kind\":\"plan\",\"unix_s\":1}\n{\n").contains("line 2 is not one of a decision log")
        );
        assert!(fault("{\"kind\":\"plan\",\"unix_s\":1}\n").contains("no arrival times"));
    }
}
