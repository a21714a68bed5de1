//! What a node can measure of itself, for `cema-router agent` to export.
//!
//! NVML, INA3221 rails and RAPL are read on threads of their own, since any of them can stall. What is exported adds
//! up: no sample is part of another, so the sum over a node is what is measured of it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use prometheus::{CounterVec, GaugeVec, IntCounterVec, Opts, Registry};
use tracing::{info, warn};

use super::nvml::Library;
use super::series::{Figure, Reading, Series};
use super::source::{Quantity, SourceError};
use super::{hwmon, rapl};
use crate::units::{Joules, Seconds};

/// Time between readings: short beside the second in which routers look at the sums.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Where NVML cannot be loaded, it is tried again after this.
const NVML_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Where the meters are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentParams {
    /// The NVML library; `None` = wherever the system has it.
    pub nvml_library: Option<PathBuf>,
    /// Where the kernel has hwmon.
    pub hwmon_root: PathBuf,
    /// Where the kernel has powercap.
    pub powercap_root: PathBuf,
}

impl Default for AgentParams {
    fn default() -> Self {
        Self {
            nvml_library: None,
            hwmon_root: hwmon::DEFAULT_ROOT.into(),
            powercap_root: rapl::DEFAULT_ROOT.into(),
        }
    }
}

/// The threads that read; they end when it is dropped.
#[derive(Debug)]
pub struct AgentMeters {
    _running: Vec<Sender<()>>,
}

/// Why the agent cannot measure.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A meter needs a thread.
    #[error("cannot start a thread for power readings")]
    Thread(#[from] io::Error),
    /// Its metrics are there already.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

impl AgentMeters {
    /// Starts to read, and to export to `registry`.
    ///
    /// # Errors
    /// When the metrics are registered already or a thread cannot be started.
    pub fn start(params: &AgentParams, registry: &Registry) -> Result<Self, AgentError> {
        let metrics = AgentMetrics::register(registry)?;
        let kinds = [
            Kind::Nvml { library: Library::new(params.nvml_library.as_ref()), again_at: None },
            Kind::Rails { root: params.hwmon_root.clone() },
            Kind::Rapl { root: params.powercap_root.clone() },
        ];
        let first_looks = Arc::new(FirstLooks::of(kinds.len()));
        let mut running = Vec::new();
        for kind in kinds {
            let (run, stop) = channel();
            let mut meter = Meter::new(kind, metrics.clone(), Arc::clone(&first_looks));
            let thread = std::thread::Builder::new().name(format!("cema-{}", meter.kind.name()));
            thread.spawn(move || meter.run(&stop))?;
            running.push(run);
        }
        Ok(Self { _running: running })
    }
}

/// What the meters found when they first looked, told together.
#[derive(Debug)]
struct FirstLooks {
    n_pending: AtomicUsize,
    has_found: AtomicBool,
}

impl FirstLooks {
    fn of(n_meters: usize) -> Self {
        Self { n_pending: AtomicUsize::new(n_meters), has_found: AtomicBool::new(false) }
    }

    /// A meter has looked; the last one warns where none of them found anything.
    fn looked(&self, has_found: bool) {
        self.has_found.fetch_or(has_found, Ordering::AcqRel);
        if self.n_pending.fetch_sub(1, Ordering::AcqRel) == 1 && !self.has_found.load(Ordering::Acquire) {
            warn!(
                "nothing to measure on this node: no NVIDIA board, no INA3221 rails, no RAPL counter that can be read. For \
                 RAPL run it as root; for others see --nvml-library, --hwmon-root and --powercap-root. Until one is \
                 there, routers use the configured watts"
            );
        }
    }
}

#[derive(Debug, Clone)]
struct AgentMetrics {
    watts: GaugeVec,
    energy: CounterVec,
    dropped: IntCounterVec,
}

impl AgentMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let watts = Opts::new("cema_agent_power_watts", "Power drawn now; no sample is part of another.");
        let energy = Opts::new(
            "cema_agent_energy_joules_total",
            "Energy drawn since the agent started, by a counter of the device or integrated from its power.",
        );
        let dropped =
            Opts::new("cema_agent_readings_dropped_total", "Readings not used: absurd, or after a reset.");
        let metrics = Self {
            watts: GaugeVec::new(watts, &["device", "sensor"])?,
            energy: CounterVec::new(energy, &["device", "sensor", "method"])?,
            dropped: IntCounterVec::new(dropped, &["device", "sensor", "reason"])?,
        };
        registry.register(Box::new(metrics.watts.clone()))?;
        registry.register(Box::new(metrics.energy.clone()))?;
        registry.register(Box::new(metrics.dropped.clone()))?;
        Ok(metrics)
    }
}

/// A kind of meter.
#[derive(Debug)]
enum Kind {
    Nvml { library: Library, again_at: Option<Instant> },
    Rails { root: PathBuf },
    Rapl { root: PathBuf },
}

/// What a device says, a counter before its power.
#[derive(Debug)]
struct DeviceReading {
    device: String,
    sensor: String,
    counter: Option<Figure>,
    power: Option<Figure>,
}

impl Kind {
    const fn name(&self) -> &'static str {
        match self {
            Self::Nvml { .. } => "nvml",
            Self::Rails { .. } => "hwmon",
            Self::Rapl { .. } => "rapl",
        }
    }

    /// Reads every device; what is wrong goes to `problems`.
    fn read(&mut self, problems: &mut Vec<String>) -> Vec<DeviceReading> {
        match self {
            Self::Nvml { library, again_at } => {
                if again_at.is_some_and(|at| Instant::now() < at) {
                    return Vec::new();
                }
                let n_boards = library.n_boards().unwrap_or_else(|error| {
                    *again_at = Some(Instant::now() + NVML_AGAIN_AFTER);
                    problems.push(error.to_string());
                    0
                });
                (0..n_boards).filter_map(|index| read_board(library, index, problems)).collect()
            }
            Self::Rails { root } => {
                let board = hwmon::board_power(root);
                if board.is_none() {
                    problems.push(format!("no INA3221 rails under {}", root.display()));
                }
                let reading = |board: hwmon::BoardPower| DeviceReading {
                    device: "ina3221".to_owned(),
                    sensor: board.rail,
                    counter: None,
                    power: Some(Figure::Power(board.watts)),
                };
                board.map(reading).into_iter().collect()
            }
            Self::Rapl { root } => {
                let zones = rapl::zones(root);
                if zones.is_empty() {
                    problems.push(format!("no intel-rapl packages under {}", root.display()));
                }
                zones.iter().filter_map(|zone| read_zone(zone, problems)).collect()
            }
        }
    }
}

fn read_board(library: &mut Library, index: u32, problems: &mut Vec<String>) -> Option<DeviceReading> {
    let [counter, power] = Quantity::ALL.map(|quantity| match library.read(index, quantity) {
        Ok(reading) => Some(reading.figure),
        // The other quantity may be there.
        Err(SourceError::NotSupported { .. }) => None,
        Err(error) => {
            problems.push(error.to_string());
            None
        }
    });
    if counter.is_none() && power.is_none() {
        problems.push(format!("board {index} has neither an energy counter nor power"));
        return None;
    }
    Some(DeviceReading { device: format!("gpu{index}"), sensor: "nvml".to_owned(), counter, power })
}

fn read_zone(zone: &rapl::Zone, problems: &mut Vec<String>) -> Option<DeviceReading> {
    match zone.read() {
        Ok(figure) => Some(DeviceReading {
            device: zone.name.clone(),
            sensor: "rapl".to_owned(),
            counter: Some(figure),
            power: None,
        }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mend = "only root may read it: run the agent as root, or with CAP_DAC_READ_SEARCH";
            problems.push(format!("{}: {mend}", zone.name));
            None
        }
        Err(error) => {
            problems.push(format!("{}: {error}", zone.name));
            None
        }
    }
}

/// Reads one kind of meter.
#[derive(Debug)]
struct Meter {
    kind: Kind,
    metrics: AgentMetrics,
    devices: BTreeMap<[String; 2], Device>,
    problems: Vec<String>,
    started: Instant,
    first_looks: Arc<FirstLooks>,
}

#[derive(Debug)]
struct Device {
    /// Whether energy is counted by the device itself.
    has_counter: bool,
    series: Series,
    energy: Joules,
}

impl Meter {
    fn new(kind: Kind, metrics: AgentMetrics, first_looks: Arc<FirstLooks>) -> Self {
        let (devices, problems) = (BTreeMap::new(), Vec::new());
        Self { kind, metrics, devices, problems, started: Instant::now(), first_looks }
    }

    fn run(&mut self, stop: &Receiver<()>) {
        self.read();
        self.first_looks.looked(!self.devices.is_empty());
        loop {
            match stop.recv_timeout(READ_EVERY) {
                Err(RecvTimeoutError::Timeout) => self.read(),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn read(&mut self) {
        let mut problems = Vec::new();
        let readings = self.kind.read(&mut problems);
        let now = Seconds(self.started.elapsed().as_secs_f64());
        let mut silent: Vec<_> = self.devices.keys().cloned().collect();
        for reading in readings {
            silent.retain(|key| *key != [reading.device.clone(), reading.sensor.clone()]);
            self.device_read(now, reading);
        }
        for key in silent {
            self.device_silent(&key);
        }
        // Told once, also where it goes away between two tries.
        if !problems.is_empty() && problems != self.problems {
            for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
                info!(meter = self.kind.name(), problem, "not measured");
            }
            self.problems = problems;
        }
    }

    fn device_read(&mut self, now: Seconds, reading: DeviceReading) {
        let DeviceReading { device, sensor, counter, power } = reading;
        let labels = [device.as_str(), sensor.as_str()];
        let key = [device.clone(), sensor.clone()];
        let known = self.devices.entry(key).or_insert_with(|| {
            info!(device, sensor, has_counter = counter.is_some(), "measuring");
            Device { has_counter: counter.is_some(), series: Series::default(), energy: Joules::ZERO }
        });
        let figure = if known.has_counter { counter } else { power };
        let mut watts = None;
        match figure.map(|figure| known.series.read(now, Reading { figure, n_boards: 1 })) {
            Some(Ok(Some(interval))) => {
                known.energy += interval.energy;
                watts = Some(interval.watts());
            }
            Some(Ok(None)) | None => {}
            Some(Err(dropped)) => {
                let reason = dropped.as_str();
                self.metrics.dropped.with_label_values(&[&device, &sensor, reason]).inc();
            }
        }
        let method = if known.has_counter { "counter" } else { "integrated" };
        let counted = self.metrics.energy.with_label_values(&[&device, &sensor, method]);
        counted.inc_by((known.energy.0 - counted.get()).max(0.0));
        let sampled = power.map(|figure| Reading { figure, n_boards: 1 }).filter(Reading::is_plausible);
        if let Some(Figure::Power(sampled)) = sampled.map(|reading| reading.figure) {
            watts = Some(sampled);
        }
        if let Some(watts) = watts {
            self.metrics.watts.with_label_values(&labels).set(watts.0);
        }
    }

    /// Takes a device that says nothing off the page: an old figure would be taken for a new one.
    fn device_silent(&mut self, key: &[String; 2]) {
        let [device, sensor] = key;
        // An error says that it is off the page already.
        let _ = self.metrics.watts.remove_label_values(&[device, sensor]);
        for method in ["counter", "integrated"] {
            let _ = self.metrics.energy.remove_label_values(&[device, sensor, method]);
        }
    }
}
