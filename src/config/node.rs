//! What is true of a whole machine (`nodes[]`): its class, power and network path.

use std::sync::Arc;

use super::address::absolute_url;
use super::reader::{Field, Section};
use crate::domain::destination::{Network, NodeClass, Power, TransferEnergy};
use crate::domain::named::named_enum;
use crate::profiler::power::{PowerSource, ScrapedMetric};
use crate::units::{BytesPerSec, Joules, Seconds, Watts};

/// `nodes[]`: one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeConfig {
    /// `name`, unique; default host and port of its first endpoint's URL.
    pub name: Arc<str>,
    /// `class`; default `edge`.
    pub class: NodeClass,
    /// `power.source`: where measured power comes from, one or a list in order of preference, 8 at most; empty =
    /// the configured watts are all there is.
    pub power_sources: Vec<PowerSource>,
    /// `power`: the configured watts.
    pub power: Power,
    /// `network.measure`; default `auto`.
    pub measure: NetworkMeasure,
}

named_enum! {
    /// `network.measure`: whether the path to a node is measured.
    pub enum NetworkMeasure {
        /// Periodic connect times and the goodput of real transfers refine the configured figures.
        Auto = "auto",
        /// The configured figures stand, for paths whose delay a connect cannot see.
        Off = "off",
    }
}

/// What class a node is of decides what is assumed of it where the configuration is silent.
struct ClassDefaults {
    board_watts: f64,
    rtt_ms: f64,
    mbps: f64,
    joules_per_mb: f64,
}

const fn class_defaults(class: NodeClass) -> ClassDefaults {
    match class {
        // A data-centre board behind a wide-area path.
        NodeClass::Cloud => {
            ClassDefaults { board_watts: 300.0, rtt_ms: 45.0, mbps: 500.0, joules_per_mb: 1.0 }
        }
        // A small box on the same site.
        NodeClass::Edge => {
            ClassDefaults { board_watts: 65.0, rtt_ms: 5.0, mbps: 1_000.0, joules_per_mb: 0.2 }
        }
    }
}

/// Idle power where only board power is known, as a share of it.
const IDLE_SHARE: f64 = 0.2;

/// Reads `power`: `board_watts` 0.1 to 100000 (default 300 cloud, 65 edge), `utilisation` 0.01 to 1 (0.8),
/// `idle_watts` up to `board_watts × utilisation` (a fifth of the board's), `source` (none).
pub(super) fn read_power(s: &mut Section<'_>, class: NodeClass) -> (Power, Vec<PowerSource>) {
    let faults_before = s.fault_count();
    let board = s.float("board_watts", 0.1..=100_000.0, class_defaults(class).board_watts);
    let utilisation = s.float("utilisation", 0.01..=1.0, 0.8);
    let default_idle = board * IDLE_SHARE.min(utilisation);
    let idle = s.float("idle_watts", 0.0..=100_000.0, default_idle);
    let power = Power { board: Watts(board), idle: Watts(idle), utilisation };
    if s.fault_count() == faults_before && idle > power.active().get() {
        let problem = "more than the node draws while serving";
        s.fault("idle_watts", problem, &format!("0 to board_watts × utilisation = {}", power.active().get()));
    }
    (power, s.get("source").map_or_else(Vec::new, |field| read_sources(&field)))
}

/// What `power.source` may be.
const ALLOWED_SOURCE: &str = "{scrape: URL} with or without `metric` and `scale`, {nvml: 0} with or without `library`, or a list of these";
/// Most sources of one node.
const SOURCES_MAX: usize = 8;

fn read_sources(field: &Field<'_>) -> Vec<PowerSource> {
    let fields = if field.is_list() { field.filled_list(ALLOWED_SOURCE) } else { vec![field.clone()] };
    if fields.len() > SOURCES_MAX {
        field.fault(format!("{} sources", fields.len()), &format!("{SOURCES_MAX} at most"));
    }
    fields.iter().filter_map(read_source).collect()
}

fn read_source(field: &Field<'_>) -> Option<PowerSource> {
    field.section(|s| {
        let index = s.get("nvml").and_then(|field| field.whole(&(0..=63)));
        let library = s.get("library").and_then(|field| field.path("the path of libnvidia-ml.so.1"));
        let scrape = s.get("scrape").and_then(|field| absolute_url(&field));
        let metric = s.get("metric").and_then(|field| read_metric(&field));
        let scale = s.get("scale").and_then(|field| field.float(&(1e-12..=1e12), ""));
        match (s.has("nvml"), s.has("scrape")) {
            (true, false) => {
                for key in ["metric", "scale"].into_iter().filter(|key| s.has(key)) {
                    s.fault(key, "belongs to a scrape source", ALLOWED_SOURCE);
                }
                Some(PowerSource::Nvml { index: u32::try_from(index?).ok()?, library })
            }
            (false, true) => {
                if s.has("library") {
                    s.fault("library", "belongs to an nvml source", ALLOWED_SOURCE);
                }
                if s.has("scale") && !s.has("metric") {
                    s.fault(
                        "metric",
                        "required beside `scale` and missing",
                        "the name of a metric in watts, or of a counter of joules that ends in _total, once scaled",
                    );
                }
                let metric = metric.map(|name| ScrapedMetric { name, scale });
                Some(PowerSource::Scrape { url: scrape?, metric })
            }
            _ => {
                field.fault("must have either `scrape` or `nvml`", ALLOWED_SOURCE);
                None
            }
        }
    })?
}

fn read_metric(field: &Field<'_>) -> Option<String> {
    const ALLOWED: &str = "a Prometheus metric name such as DCGM_FI_DEV_POWER_USAGE";
    let name = field.text(ALLOWED)?;
    let name_like = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if !name.chars().all(name_like) || name.starts_with(|c: char| c.is_ascii_digit()) {
        field.fault("not a metric name", ALLOWED);
        return None;
    }
    Some(name.to_owned())
}

/// Reads `network`: `rtt_ms` 0 to 60000 (default 45 cloud, 5 edge), `uplink_mbps` and `downlink_mbps` 0.001 to
/// 1000000 (500 cloud, 1000 edge), `joules_per_mb` 0 to 1000000 (1 cloud, 0.2 edge) or in its place `tx_watts`
/// with `rx_watts`, `usd_per_gb` 0 to 1000000 (0), `measure` (auto).
pub(super) fn read_network(s: &mut Section<'_>, class: NodeClass) -> (Network, NetworkMeasure) {
    let defaults = class_defaults(class);
    let mbps = 1e-3..=1e6;
    let network = Network {
        rtt: Seconds::from_ms(s.float("rtt_ms", 0.0..=60_000.0, defaults.rtt_ms)),
        uplink: BytesPerSec::from_mbps(s.float("uplink_mbps", mbps.clone(), defaults.mbps)),
        downlink: BytesPerSec::from_mbps(s.float("downlink_mbps", mbps, defaults.mbps)),
        transfer_energy: read_transfer_energy(s, defaults.joules_per_mb),
        usd_per_gb: s.float("usd_per_gb", 0.0..=1e6, 0.0),
    };
    (network, s.choice("measure", NetworkMeasure::ALL, NetworkMeasure::Auto))
}

fn read_transfer_energy(s: &mut Section<'_>, default_joules_per_mb: f64) -> TransferEnergy {
    let per_mb = s.float("joules_per_mb", 0.0..=1e6, default_joules_per_mb);
    let tx = s.float("tx_watts", 0.0..=100_000.0, 0.0);
    let rx = s.float("rx_watts", 0.0..=100_000.0, 0.0);
    match (s.has("tx_watts"), s.has("rx_watts")) {
        (false, false) => return TransferEnergy::PerMegabyte(Joules(per_mb)),
        (true, true) => {}
        (true, false) => s.fault("rx_watts", "required beside `tx_watts` and missing", "0 to 100000"),
        (false, true) => s.fault("tx_watts", "required beside `rx_watts` and missing", "0 to 100000"),
    }
    if s.has("joules_per_mb") {
        s.fault(
            "joules_per_mb",
            "given beside `tx_watts` and `rx_watts`, which say the same",
            "one of the two",
        );
    }
    TransferEnergy::TxRx { tx: Watts(tx), rx: Watts(rx) }
}
