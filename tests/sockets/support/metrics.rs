//! The text of `/metrics`, read back.

use std::collections::BTreeMap;

/// One sample of the exposition format.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// Name, `_bucket`, `_sum` and `_count` included.
    pub(crate) name: String,
    /// Labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Value.
    pub(crate) value: f64,
}

/// One metric family.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Family {
    /// `# HELP`.
    pub(crate) help: String,
    /// `# TYPE`.
    pub(crate) kind: String,
}

/// A scrape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Metrics {
    /// By name.
    pub(crate) families: BTreeMap<String, Family>,
    /// In order.
    pub(crate) samples: Vec<Sample>,
}

impl Metrics {
    /// Reads a scrape; a line it does not understand is a panic.
    pub(crate) fn parse(text: &str) -> Self {
        let mut metrics = Self { families: BTreeMap::new(), samples: Vec::new() };
        assert!(text.ends_with('\n'), "the last line is not ended");
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                metrics.families.entry(name.to_owned()).or_default().help = help.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                metrics.families.entry(name.to_owned()).or_default().kind = kind.to_owned();
            } else {
                metrics.samples.push(sample(line));
            }
        }
        metrics
    }

    /// Sum of the samples called `name` whose labels include `labels`; 0 if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|own| own == value))
        };
        self.samples.iter().filter(fits).map(|sample| sample.value).sum()
    }

    /// [`Metrics::sum`] of something that is counted.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let sum = self.sum(name, labels);
        assert!(sum >= 0.0 && sum.fract().abs() < 1e-9, "{name} is no count: {sum}");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        let count = sum.round() as u64;
        count
    }
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
        None => (series, ""),
    };
    let pairs = labels.split_terminator("\",").map(|pair| {
        let (key, value) = pair.trim_end_matches('"').split_once("=\"").unwrap();
        (key.to_owned(), value.to_owned())
    });
    let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    Sample { name: name.to_owned(), labels: pairs.collect(), value }
}
