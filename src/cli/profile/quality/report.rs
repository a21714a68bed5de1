//! What came of it, by model.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::Task;
use super::writing::Written;

/// Answers by model and benchmark, and what failed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    stored: Vec<Written>,
    failed: BTreeMap<String, usize>,
    has_given_up: bool,
}

impl Tally {
    pub(super) fn stored(&mut self, written: Written) {
        self.stored.push(written);
    }

    /// A question failed at a destination of `model`, or the destination is given up; failures of all models so far.
    pub(super) fn failed(&mut self, model: &str, is_question: bool) -> usize {
        self.has_given_up |= !is_question;
        if is_question {
            *self.failed.entry(model.to_owned()).or_default() += 1;
        }
        self.failed.values().sum()
    }
}

/// The figures of one model.
struct Row<'a> {
    model: &'a str,
    asked: usize,
    answered: usize,
    failed: usize,
    score: Option<f64>,
    by_benchmark: BTreeMap<&'a str, (usize, f64)>,
    completion_tokens: Option<f64>,
    latency_s: Option<f64>,
    cut: usize,
    cost_usd: f64,
}

/// The figures of all models.
pub(super) struct Report<'a> {
    folder: &'a Path,
    rows: Vec<Row<'a>>,
    has_given_up: bool,
}

impl<'a> Report<'a> {
    pub(super) fn new(tally: &'a Tally, folder: &'a Path, tasks: &[Task<'a>]) -> Self {
        let row = |task: &Task<'a>| {
            let own: Vec<&Written> =
                tally.stored.iter().filter(|written| written.model == task.model).collect();
            let mut by_benchmark = BTreeMap::<&str, (usize, f64)>::new();
            for written in &own {
                let of = by_benchmark.entry(written.benchmark.as_deref().unwrap_or("-")).or_default();
                *of = (of.0 + 1, of.1 + written.score);
            }
            Row {
                model: task.model,
                asked: task.questions.len(),
                answered: own.len(),
                failed: tally.failed.get(task.model).copied().unwrap_or_default(),
                score: mean(own.iter().map(|written| written.score)),
                by_benchmark,
                completion_tokens: mean(own.iter().filter_map(|written| written.completion_tokens)),
                latency_s: median(own.iter().map(|written| written.latency_s).collect()),
                cut: own.iter().filter(|written| written.is_cut).count(),
                cost_usd: own.iter().map(|written| written.cost_usd).sum(),
            }
        };
        Self { folder, rows: tasks.iter().map(row).collect(), has_given_up: tally.has_given_up }
    }

    /// Whether something was asked for in vain.
    pub(super) fn has_failed(&self) -> bool {
        self.has_given_up || self.rows.iter().any(|row| row.failed > 0)
    }

    pub(super) fn json(&self) -> String {
        let model = |row: &Row<'_>| {
            let benchmarks: BTreeMap<_, _> = row
                .by_benchmark
                .iter()
                .map(|(name, (n, sum))| (*name, json!({"answered": n, "mean_score": sum / *n as f64})))
                .collect();
            json!({
                "model": row.model,
                "asked": row.asked,
                "answered": row.answered,
                "failed": row.failed,
                "mean_score": row.score,
                "benchmarks": benchmarks,
                "mean_completion_tokens": row.completion_tokens,
                "median_latency_s": row.latency_s,
                "cut": row.cut,
                "cost_usd": row.cost_usd,
            })
        };
        json!({"store": self.folder, "models": self.rows.iter().map(model).collect::<Vec<_>>()}).to_string()
    }

    pub(super) fn table(&self) -> String {
        if self.rows.is_empty() {
            return format!("{}: nothing was missing\n", self.folder.display());
        }
        let benchmarks: std::collections::BTreeSet<&str> =
            self.rows.iter().flat_map(|row| row.by_benchmark.keys().copied()).collect();
        let width = self.rows.iter().map(|row| row.model.chars().count()).max().unwrap_or(0).max(5);
        let mut lines = vec![format!(
            "{:width$}  {:>8}  {:>6}  {:>6}{}  {:>7}  {:>9}  {:>5}  {:>9}",
            "model",
            "answered",
            "failed",
            "score",
            benchmarks.iter().map(|name| format!("  {name:>8}")).collect::<String>(),
            "tokens",
            "median s",
            "cut",
            "USD"
        )];
        let number =
            |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
        for row in &self.rows {
            let of = |name: &&str| {
                let mean = row.by_benchmark.get(name).map(|(n, sum)| sum / *n as f64);
                let width = name.chars().count().max(8);
                format!("  {:>width$}", number(mean, 3))
            };
            lines.push(format!(
                "{:width$}  {:>8}  {:>6}  {:>6}{}  {:>7}  {:>9}  {:>5}  {:>9}",
                row.model,
                format!("{}/{}", row.answered, row.asked),
                row.failed,
                number(row.score, 3),
                benchmarks.iter().map(of).collect::<String>(),
                number(row.completion_tokens, 1),
                number(row.latency_s, 2),
                row.cut,
                number(Some(row.cost_usd), 4),
            ));
        }
        if self.rows.iter().any(|row| row.cut > 0) {
            lines.push(
                "cut: answers that ended at their token limit; --max-tokens gives more room".to_owned(),
            );
        }
        lines.push(format!("stored in {}", self.folder.display()));
        lines.join("\n") + "\n"
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    (n > 0.0).then(|| sum / n)
}

fn median(values: Vec<f64>) -> Option<f64> {
    crate::calibrate::fit::median(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(model: &str, benchmark: &str, score: f64) -> Written {
        Written {
            model: model.to_owned(),
            benchmark: Some(benchmark.to_owned()),
            score,
            completion_tokens: Some(10.0),
            cost_usd: 0.25,
            latency_s: 2.0,
            is_cut: score < 0.5,
        }
    }

    #[test]
    fn figures_are_those_of_each_model() {
        let mut tally = Tally::default();
        tally.stored(written("a", "gsm8k", 1.0));
        tally.stored(written("a", "mmlu", 0.0));
        tally.stored(written("b", "mmlu", 1.0));
        assert_eq!((tally.failed("b", true), tally.failed("b", true)), (1, 2));
        let task = |model| Task { model, seats: Vec::new(), questions: Vec::new() };
        let tasks = [task("a"), task("b")];
        let report = Report::new(&tally, Path::new("store"), &tasks);
        assert!(report.has_failed());
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(
            (&json["models"][0]["mean_score"], &json["models"][0]["cost_usd"]),
            (&0.5.into(), &0.5.into())
        );
        assert_eq!((&json["models"][1]["failed"], &json["models"][0]["cut"]), (&2.into(), &1.into()));
        assert_eq!(json["models"][0]["benchmarks"]["mmlu"]["mean_score"], 0.0);
        let table = report.table();
        assert!(
            table.contains("2/0") && table.contains("gsm8k") && table.contains("stored in store"),
            "{table}"
        );
        let nothing = Report::new(&tally, Path::new("store"), &[]);
        assert!(nothing.table().contains("nothing was missing"));
    }
}
