//! Power and energy from the metrics page of an exporter.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;

use super::params::ScrapedMetric;
use super::series::Reading;
use super::source::{Quantity, SourceError};
use crate::endpoint::page::PageClient;
use crate::profiler::exposition::{Sample, samples};
use crate::units::{Joules, Watts};

/// An exporter has this long; some run a program for every page.
const SCRAPE_LIMIT: Duration = Duration::from_secs(3);

/// Metrics that are known, in order of preference, each with the factor that makes it joules or watts.
const KNOWN: [(&str, Quantity, f64); 5] = [
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Quantity::Energy, 1e-3),
    ("cema_agent_energy_joules_total", Quantity::Energy, 1.0),
    ("DCGM_FI_DEV_POWER_USAGE", Quantity::Power, 1.0),
    ("nvidia_smi_power_draw_watts", Quantity::Power, 1.0),
    ("cema_agent_power_watts", Quantity::Power, 1.0),
];
/// Labels that name a board: dcgm-exporter lists one once for every pod or MIG instance that uses it.
const BOARD_LABELS: [&str; 2] = ["UUID", "uuid"];

/// One quantity of an exporter.
#[derive(Debug)]
pub(super) struct Scrape {
    client: PageClient,
    page: Uri,
    /// What it may be called, in order of preference.
    metrics: Vec<Metric>,
    quantity: Quantity,
}

#[derive(Debug, Clone, PartialEq)]
struct Metric {
    name: String,
    scale: f64,
}

impl Scrape {
    /// What can be asked of an exporter, energy before power.
    pub(super) fn quantities(client: &PageClient, url: &Uri, metric: Option<&ScrapedMetric>) -> Vec<Self> {
        let of_quantity =
            |quantity, metrics| Self { client: client.clone(), page: page_of(url), metrics, quantity };
        let Some(metric) = metric else {
            let known = |quantity| {
                let fitting = KNOWN.iter().filter(|(_, q, _)| *q == quantity);
                fitting.map(|(name, _, scale)| Metric { name: (*name).to_owned(), scale: *scale }).collect()
            };
            return Quantity::ALL.map(|quantity| of_quantity(quantity, known(quantity))).into();
        };
        let known = KNOWN.iter().find(|(name, ..)| *name == metric.name);
        let is_counter = metric.name.ends_with("_total");
        let assumed = if is_counter { Quantity::Energy } else { Quantity::Power };
        let (quantity, scale) = known.map_or((assumed, 1.0), |(_, quantity, scale)| (*quantity, *scale));
        let metric = Metric { name: metric.name.clone(), scale: metric.scale.unwrap_or(scale) };
        vec![of_quantity(quantity, vec![metric])]
    }

    /// For logs.
    pub(super) fn describe(&self) -> String {
        let names: Vec<_> = self.metrics.iter().map(|metric| metric.name.as_str()).collect();
        format!("{} ({})", self.page, names.join(", "))
    }

    /// Gets the page and reads it.
    pub(super) async fn read(&self) -> Result<Reading, SourceError> {
        let page = self.client.get(&self.page, SCRAPE_LIMIT).await?;
        let text = String::from_utf8_lossy(&page);
        reading(&text, &self.metrics, self.quantity).ok_or_else(|| SourceError::NoMetric {
            names: self.metrics.iter().map(|m| m.name.clone()).collect(),
        })
    }
}

/// `/metrics` where the URL names no page.
fn page_of(url: &Uri) -> Uri {
    let mut parts = url.clone().into_parts();
    if url.path().trim_end_matches('/').is_empty() {
        parts.path_and_query = Some(PathAndQuery::from_static("/metrics"));
    }
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// The first of `metrics` that the page has, its boards added up.
fn reading(page: &str, metrics: &[Metric], quantity: Quantity) -> Option<Reading> {
    let mut found: Vec<BTreeMap<Board, f64>> = vec![BTreeMap::new(); metrics.len()];
    for sample in samples(page) {
        if let Some(idx) = metrics.iter().position(|metric| metric.name == sample.name) {
            let boards = &mut found[idx];
            boards.insert(Board::of(&sample, boards.len()), sample.value * metrics[idx].scale);
        }
    }
    let boards = found.into_iter().find(|boards| !boards.is_empty())?;
    match quantity {
        Quantity::Energy => Reading::counters(boards.into_values().map(Joules)),
        Quantity::Power => Reading::powers(boards.into_values().map(Watts)),
    }
}

/// Tells boards apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Board {
    Named(String),
    /// Whatever has no name is a board of its own.
    Unnamed(usize),
}

impl Board {
    fn of(sample: &Sample<'_>, n_before: usize) -> Self {
        let name = BOARD_LABELS.iter().find_map(|label| sample.label(label));
        name.map_or(Self::Unnamed(n_before), |name| Self::Named(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::power::series::Figure;

    fn metric(name: &str, scale: Option<f64>) -> ScrapedMetric {
        ScrapedMetric { name: name.to_owned(), scale }
    }

    fn scrapes(metric: Option<&ScrapedMetric>) -> Vec<Scrape> {
        let url = Uri::from_static("http://h:9400/metrics");
        Scrape::quantities(&PageClient::new([&url]).unwrap(), &url, metric)
    }

    /// What each quantity reads of `page`: figure and boards.
    fn read(page: &str, metric: Option<&ScrapedMetric>) -> Vec<Option<(Figure, usize)>> {
        let one = |s: &Scrape| reading(page, &s.metrics, s.quantity).map(|r| (r.figure, r.n_boards));
        scrapes(metric).iter().map(one).collect()
    }

    fn counter(joules: f64) -> Figure {
        Figure::Counter { total: Joules(joules), wraps_at: None }
    }

    #[test]
    fn energy_of_dcgm_is_in_millijoules_and_boards_are_added_up() {
        let page = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\",UUID=\"a\"} 1000\n\
            DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"1\",UUID=\"b\"} 2000\n\
            DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"a\"} 60\n\
            DCGM_FI_DEV_POWER_USAGE{gpu=\"1\",UUID=\"b\"} 70.5\n";
        assert_eq!(read(page, None), [Some((counter(3.0), 2)), Some((Figure::Power(Watts(130.5)), 2))]);
    }

    #[test]
    fn a_board_listed_for_every_pod_counts_once() {
        let page = "DCGM_FI_DEV_POWER_USAGE{UUID=\"a\",pod=\"x\"} 60\n\
            DCGM_FI_DEV_POWER_USAGE{UUID=\"a\",pod=\"y\"} 60\nDCGM_FI_DEV_POWER_USAGE{UUID=\"b\"} 5\n";
        assert_eq!(read(page, None), [None, Some((Figure::Power(Watts(65.0)), 2))]);
    }

    #[test]
    fn other_exporters_are_known_and_the_first_known_name_counts() {
        let smi = "nvidia_smi_power_draw_watts{uuid=\"x\"} 31.5\n";
        assert_eq!(read(smi, None), [None, Some((Figure::Power(Watts(31.5)), 1))]);
        let agent = "cema_agent_power_watts{device=\"a\",sensor=\"s\"} 7\ncema_agent_power_watts{device=\"b\",sensor=\"s\"} 8\n\
            cema_agent_energy_joules_total{device=\"a\",sensor=\"s\",method=\"counter\"} 70\n";
        let both = format!("{agent}{smi}");
        assert_eq!(read(&both, None), [Some((counter(70.0), 1)), Some((Figure::Power(Watts(31.5)), 1))]);
        assert_eq!(read(agent, None)[1], Some((Figure::Power(Watts(15.0)), 2)));
    }

    #[test]
    fn a_named_metric_is_power_or_energy_by_its_name() {
        let page = "plug_milliwatts 4000\nplug_wh_total 2\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION 5000\n";
        let watts = Some((Figure::Power(Watts(4.0)), 1));
        assert_eq!(read(page, Some(&metric("plug_milliwatts", Some(1e-3)))), [watts]);
        assert_eq!(read(page, Some(&metric("plug_wh_total", Some(3600.0)))), [Some((counter(7200.0), 1))]);
        let known = metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", None);
        assert_eq!(read(page, Some(&known)), [Some((counter(5.0), 1))]);
        assert_eq!(read(page, Some(&metric("absent", None))), [None]);
    }

    #[test]
    fn a_url_without_a_page_means_metrics() {
        for (url, page) in [
            ("http://h:9400", "http://h:9400/metrics"),
            ("http://h:9400/", "http://h:9400/metrics"),
            ("https://h/gpu/m", "https://h/gpu/m"),
        ] {
            assert_eq!(page_of(&url.parse().unwrap()).to_string(), page);
        }
    }
}
