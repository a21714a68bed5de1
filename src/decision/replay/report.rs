//! What a replay comes to, side by side with what was logged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use super::{Actual, Placed};
use crate::statistics::{mean, quantile};

/// What every reader of the figures is told.
pub const CAVEAT: &str = "Quality, USD, joules and seconds of `logged` and `replayed` are the router's predictions \
                          (its model), each plan decided in the situation that was logged: what other decisions would \
                          have changed in later queues and prices is not followed. Only `actual` was measured, its \
                          joules excepted, which are modelled at the tokens counted.";

/// Logged and replayed decisions of the same requests.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Plans decided again.
    pub n_plans: u64,
    /// Those that came out exactly as logged: every destination and J to the last bit.
    pub n_reproduced: u64,
    /// Those with every destination as logged, whatever J is by the weights of now.
    pub n_same_places: u64,
    /// Numbers of the first that have another.
    pub differing: Vec<u64>,
    /// Requests that would have gone elsewhere.
    pub n_moved: usize,
    /// Requests that would have had no destination.
    pub n_impossible: usize,
    /// As it was.
    pub logged: Sums,
    /// As it would be.
    pub replayed: Sums,
    /// What answered requests came to.
    pub actual: ActualSums,
}

/// Predictions summed over requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sums {
    /// Requests.
    pub requests: usize,
    /// Mean q̂.
    pub quality: f64,
    /// US dollars, all requests.
    pub usd: f64,
    /// Joules, all requests.
    pub joules: f64,
    /// Mean seconds from departure to the last byte.
    pub mean_s: f64,
    /// The 95th percentile of them.
    pub p95_s: f64,
    /// Mean J of a plan under the changed objective, over plans whose logged assignment is still legal.
    pub objective: Option<f64>,
    /// Requests by destination.
    pub by_destination: BTreeMap<String, usize>,
}

/// What answered requests came to, summed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ActualSums {
    /// Requests.
    pub requests: usize,
    /// US dollars at configured prices.
    pub usd: f64,
    /// Joules by the model, at the tokens counted.
    pub modelled_joules: f64,
    /// Mean seconds from dispatch to the last byte.
    pub mean_s: f64,
    /// The 95th percentile of them.
    pub p95_s: f64,
}

impl Sums {
    pub(super) fn of<'a>(placed: impl Iterator<Item = &'a Placed>, objective: Option<f64>) -> Self {
        let placed: Vec<&Placed> = placed.collect();
        let all = |part: fn(&Placed) -> f64| placed.iter().map(|placed| part(placed)).collect::<Vec<f64>>();
        let mut by_destination: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for placed in &placed {
            *by_destination.entry(Arc::clone(&placed.destination)).or_default() += 1;
        }
        let mut seconds = all(|placed| placed.seconds);
        seconds.sort_by(f64::total_cmp);
        Self {
            requests: placed.len(),
            quality: mean(&all(|placed| placed.quality)),
            usd: all(|placed| placed.usd).iter().sum(),
            joules: all(|placed| placed.joules).iter().sum(),
            mean_s: mean(&seconds),
            p95_s: quantile(&seconds, 0.95),
            objective,
            by_destination: by_destination.into_iter().map(|(id, n)| (id.to_string(), n)).collect(),
        }
    }
}

impl ActualSums {
    pub(super) fn of<'a>(actual: impl Iterator<Item = &'a Actual>) -> Self {
        let actual: Vec<&Actual> = actual.collect();
        let mut seconds: Vec<f64> = actual.iter().map(|actual| actual.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        Self {
            requests: actual.len(),
            usd: actual.iter().map(|actual| actual.usd).sum(),
            modelled_joules: actual.iter().map(|actual| actual.joules).sum(),
            mean_s: mean(&seconds),
            p95_s: quantile(&seconds, 0.95),
        }
    }
}

/// Text in lines of at most 100 columns.
fn wrapped(text: &str, out: &mut String) -> std::fmt::Result {
    let mut column = 0;
    for word in text.split_whitespace() {
        if column > 0 && column + 1 + word.len() > 100 {
            writeln!(out)?;
            column = 0;
        }
        let gap = if column > 0 { " " } else { "" };
        write!(out, "{gap}{word}")?;
        column += gap.len() + word.len();
    }
    writeln!(out)
}

impl Report {
    /// The figures of [`Sums`] by name and unit: logged, replayed.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, &'static str, f64, f64)> {
        let (was, is) = (&self.logged, &self.replayed);
        let mut figures = vec![
            ("quality", "mean predicted score", was.quality, is.quality),
            ("money", "USD", was.usd, is.usd),
            ("energy", "J", was.joules, is.joules),
            ("latency", "mean s", was.mean_s, is.mean_s),
            ("latency p95", "s", was.p95_s, is.p95_s),
        ];
        if let (Some(was), Some(is)) = (was.objective, is.objective) {
            figures.push(("objective", "mean J of a plan", was, is));
        }
        figures
    }

    /// For people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_to(&mut text);
        text
    }

    fn write_to(&self, out: &mut String) -> std::fmt::Result {
        let Self { n_plans, n_reproduced, n_same_places, n_moved, n_impossible, logged, .. } = self;
        writeln!(
            out,
            "{n_plans} plans decided again, {n_reproduced} exactly as logged and {n_same_places} to the same destinations;\n\
             of {} requests {n_moved} would have gone elsewhere, {n_impossible} nowhere",
            logged.requests
        )?;
        if !self.differing.is_empty() {
            writeln!(out, "first plans that go elsewhere: {:?}", self.differing)?;
        }
        let unit_width = 20;
        writeln!(out, "\n{:12} {:unit_width$} {:>14} {:>14} {:>10}", "", "", "logged", "replayed", "change")?;
        for (name, unit, was, is) in self.figures() {
            let change =
                if was.abs() > 0.0 { format!("{:+.1} %", (is / was - 1.0) * 100.0) } else { "-".into() };
            writeln!(out, "{name:12} {unit:unit_width$} {was:>14.6} {is:>14.6} {change:>10}")?;
        }
        let a = &self.actual;
        if a.requests > 0 {
            writeln!(
                out,
                "\nactual, {} answered requests: {:.6} USD, {:.1} J (modelled at counted tokens), {:.3} s mean, {:.3} s p95",
                a.requests, a.usd, a.modelled_joules, a.mean_s, a.p95_s
            )?;
        }
        writeln!(out, "\n{:40} {:>10} {:>10}", "destination", "logged", "replayed")?;
        let ids: BTreeSet<_> =
            self.logged.by_destination.keys().chain(self.replayed.by_destination.keys()).collect();
        for id in ids {
            let n = |sums: &Sums| sums.by_destination.get(id).copied().unwrap_or(0);
            writeln!(out, "{id:40} {:>10} {:>10}", n(&self.logged), n(&self.replayed))?;
        }
        writeln!(out)?;
        wrapped(CAVEAT, out)
    }
}
