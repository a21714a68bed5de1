//! The metrics of the whole process, over all configurations it has had.
//!
//! Each configuration with a fleet of its own registers its metrics on a registry of its own. What has been counted stays
//! counted: a registry that is no longer in use leaves its counters and histograms behind, and whoever reads sees the
//! sums.

use std::collections::{BTreeMap, btree_map};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::Registry;
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};

/// Gauges that count what is there: that of a configuration on its way out is there too.
const SUMMED_GAUGES: [&str; 4] =
    ["cema_inflight", "cema_held_requests", "cema_queue_depth", "cema_backlog_seconds"];

/// All registries. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MetricsBook {
    registries: Arc<Mutex<Registries>>,
}

#[derive(Debug, Default)]
struct Registries {
    in_force: Vec<(u64, Registry)>,
    leaving: Vec<(u64, Registry)>,
    /// Of registries that are gone.
    past: Families,
    n_added: u64,
}

/// A registry in the book.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry(u64);

impl MetricsBook {
    /// From now on `registry` counts.
    #[must_use]
    pub fn add(&self, registry: Registry) -> Entry {
        let mut registries = self.lock();
        registries.n_added += 1;
        let number = registries.n_added;
        registries.in_force.push((number, registry));
        Entry(number)
    }

    /// The registry is on its way out: its gauges say nothing any more, but for those of what is there still.
    pub fn leaves(&self, entry: &Entry) {
        let mut registries = self.lock();
        if let Some(at) = registries.in_force.iter().position(|(number, _)| *number == entry.0) {
            let leaving = registries.in_force.remove(at);
            registries.leaving.push(leaving);
        }
    }

    /// Nothing is counted there any more.
    pub fn close(&self, entry: Entry) {
        self.leaves(&entry);
        let mut registries = self.lock();
        if let Some(at) = registries.leaving.iter().position(|(number, _)| *number == entry.0) {
            let (_, registry) = registries.leaving.remove(at);
            registries.past.add(registry.gather(), Keeping::Counts);
        }
    }

    /// Every family, by name.
    #[must_use]
    pub fn gather(&self) -> Vec<MetricFamily> {
        let registries = self.lock();
        let mut all = Families::default();
        for (_, registry) in &registries.in_force {
            all.add(registry.gather(), Keeping::All);
        }
        for (_, registry) in &registries.leaving {
            all.add(registry.gather(), Keeping::WhatIsThere);
        }
        all.join(&registries.past);
        all.into_list()
    }

    fn lock(&self) -> MutexGuard<'_, Registries> {
        // Whoever panicked with the lock left lists that are as good as any.
        self.registries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is taken over of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeping {
    All,
    /// Counters, histograms and [`SUMMED_GAUGES`].
    WhatIsThere,
    /// Counters and histograms.
    Counts,
}

impl Keeping {
    fn keeps(self, family: &MetricFamily) -> bool {
        match (self, family.get_field_type()) {
            (Self::All, _) | (_, MetricType::COUNTER | MetricType::HISTOGRAM) => true,
            (Self::WhatIsThere, MetricType::GAUGE) => SUMMED_GAUGES.contains(&family.name()),
            _ => false,
        }
    }
}

/// Names and values of labels.
type Labels = Vec<(String, String)>;

#[derive(Debug, Default)]
struct Families(BTreeMap<String, (MetricFamily, BTreeMap<Labels, Metric>)>);

impl Families {
    fn add(&mut self, families: Vec<MetricFamily>, keeping: Keeping) {
        for mut family in families.into_iter().filter(|family| keeping.keeps(family)) {
            let metrics = family.take_metric();
            let (head, metrics_of) =
                self.0.entry(family.name().to_owned()).or_insert_with(|| (family, BTreeMap::new()));
            let kind = head.get_field_type();
            for metric in metrics {
                match metrics_of.entry(labels(&metric)) {
                    btree_map::Entry::Vacant(place) => {
                        place.insert(metric);
                    }
                    btree_map::Entry::Occupied(mut place) => {
                        add_up(kind, place.get_mut(), &metric);
                    }
                }
            }
        }
    }

    fn join(&mut self, other: &Self) {
        for (head, metrics) in other.0.values() {
            let mut family = head.clone();
            family.set_metric(metrics.values().cloned().collect());
            self.add(vec![family], Keeping::All);
        }
    }

    fn into_list(self) -> Vec<MetricFamily> {
        let whole = |(mut family, metrics): (MetricFamily, BTreeMap<Labels, Metric>)| {
            family.set_metric(metrics.into_values().collect());
            family
        };
        self.0.into_values().map(whole).collect()
    }
}

fn labels(metric: &Metric) -> Labels {
    metric.get_label().iter().map(|pair| (pair.name().to_owned(), pair.value().to_owned())).collect()
}

/// Adds `more` to `sum`, both of one kind and with the same labels.
fn add_up(kind: MetricType, sum: &mut Metric, more: &Metric) {
    match kind {
        MetricType::COUNTER => {
            let mut counter = sum.get_counter().clone();
            counter.set_value(counter.get_value() + more.get_counter().get_value());
            sum.set_counter(counter);
        }
        MetricType::GAUGE => {
            let mut gauge = sum.get_gauge().clone();
            gauge.set_value(gauge.get_value() + more.get_gauge().get_value());
            sum.set_gauge(gauge);
        }
        MetricType::HISTOGRAM => sum.set_histogram(both(sum.get_histogram(), more.get_histogram())),
        _ => {}
    }
}

/// Buckets are the same in every version of a family: they are part of the program.
fn both(a: &Histogram, b: &Histogram) -> Histogram {
    let mut sum = Histogram::default();
    sum.set_sample_count(a.get_sample_count() + b.get_sample_count());
    sum.set_sample_sum(a.get_sample_sum() + b.get_sample_sum());
    let bucket = |(a, b): (&Bucket, &Bucket)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(a.upper_bound());
        bucket.set_cumulative_count(a.cumulative_count() + b.cumulative_count());
        bucket
    };
    sum.set_bucket(a.get_bucket().iter().zip(b.get_bucket()).map(bucket).collect());
    sum
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

    use super::*;

    /// A registry with two requests of `destination` counted, the gauge at 3 and one second observed.
    fn registry(destination: &str) -> Registry {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("cema_requests_total", "Requests."), &["destination"]);
        let gauge = IntGaugeVec::new(Opts::new("cema_inflight", "There."), &["destination"]);
        let price = IntGaugeVec::new(Opts::new("cema_destination_price", "Price."), &["destination"]);
        let opts = HistogramOpts::new("cema_hold_seconds", "Held.").buckets(vec![0.5, 2.0]);
        let histogram = HistogramVec::new(opts, &["destination"]).unwrap();
        let (counter, gauge, price) = (counter.unwrap(), gauge.unwrap(), price.unwrap());
        counter.with_label_values(&[destination]).inc_by(2);
        gauge.with_label_values(&[destination]).set(3);
        price.with_label_values(&[destination]).set(5);
        histogram.with_label_values(&[destination]).observe(1.0);
        registry.register(Box::new(counter)).unwrap();
        registry.register(Box::new(gauge)).unwrap();
        registry.register(Box::new(price)).unwrap();
        registry.register(Box::new(histogram)).unwrap();
        registry
    }

    fn text(book: &MetricsBook) -> String {
        let text = prometheus::TextEncoder::new().encode_to_string(&book.gather()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_was_counted_stays_counted_and_gauges_are_of_now() {
        let book = MetricsBook::default();
        let first = book.add(registry("a"));
        book.leaves(&first);
        let _second = book.add(registry("a"));
        let leaving = text(&book);
        assert!(leaving.contains("cema_requests_total{destination=\"a\"} 4"), "{leaving}");
        assert!(leaving.contains("cema_inflight{destination=\"a\"} 6"), "{leaving}");
        assert!(leaving.contains("cema_destination_price{destination=\"a\"} 5"), "{leaving}");
        book.close(first);
        let closed = text(&book);
        assert!(closed.contains("cema_requests_total{destination=\"a\"} 4"), "{closed}");
        assert!(closed.contains("cema_inflight{destination=\"a\"} 3"), "{closed}");
        assert!(closed.contains("cema_hold_seconds_bucket{destination=\"a\",le=\"0.5\"} 0"), "{closed}");
        assert!(closed.contains("cema_hold_seconds_bucket{destination=\"a\",le=\"2\"} 2"), "{closed}");
        assert!(closed.contains("cema_hold_seconds_sum{destination=\"a\"} 2"), "{closed}");
    }

    #[test]
    fn a_thousand_that_left_take_no_more_room_than_one() {
        let book = MetricsBook::default();
        let mut last = book.add(registry("a"));
        for _ in 0..1_000 {
            let next = book.add(registry("a"));
            book.close(std::mem::replace(&mut last, next));
        }
        let text = text(&book);
        assert!(text.contains("cema_requests_total{destination=\"a\"} 2002"), "{text}");
        assert_eq!(text.lines().count(), 1 + 1 + 1 + 5, "{text}");
    }
}
