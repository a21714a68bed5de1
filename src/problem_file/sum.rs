//! `sum` of a problem file: what the time term `sum` needs beside the tables.

use serde::{Deserialize, Serialize};

use crate::domain::{SlotLoad, SlotSpeed, Work};
use crate::problem_file::ProblemFileError;
use crate::problem_file::read::Table;
use crate::routing::SumTables;
use crate::routing::completion::slots::SlotTimeline;
use crate::routing::completion::timeline::{FifoTimeline, Timeline};
use crate::units::Seconds;

/// As it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSum {
    others_time_weight: f64,
    destinations: Vec<FileDestination>,
    prefill_s: Table<f64>,
    decode_s: Table<f64>,
}

/// As it is written.
#[derive(Serialize)]
pub(super) struct FileSum {
    others_time_weight: f64,
    destinations: Vec<FileDestination>,
    prefill_s: Vec<Vec<f64>>,
    decode_s: Vec<Vec<f64>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDestination {
    rtt_s: f64,
    #[serde(default)]
    price_per_s: f64,
    timeline: FileTimeline,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "lowercase", deny_unknown_fields)]
enum FileTimeline {
    Fifo {
        backlog_s: f64,
        batch_speedup: f64,
        #[serde(default = "usual")]
        pace: f64,
    },
    Slots {
        slots: u32,
        batch_speedup: f64,
        #[serde(default = "usual")]
        pace: f64,
        #[serde(default)]
        running: u32,
        #[serde(default)]
        prefill_s: f64,
        #[serde(default)]
        decode_s: f64,
        #[serde(default)]
        soonest_s: f64,
        #[serde(default)]
        queued: u32,
        #[serde(default)]
        queued_prefill_s: f64,
        #[serde(default)]
        queued_decode_s: f64,
    },
}

fn usual() -> f64 {
    1.0
}

impl RawSum {
    /// The tables of a problem with `n` requests and `m` destinations; their figures are not checked.
    pub(super) fn tables(self, n: usize, m: usize) -> Result<SumTables, ProblemFileError> {
        if self.destinations.len() != m {
            let detail = format!("{} entries for {m} destinations", self.destinations.len());
            return Err(ProblemFileError::Shape { table: "sum.destinations", detail });
        }
        let prefill_s = self.prefill_s.cells("sum.prefill_s", n, m)?;
        let decode_s = self.decode_s.cells("sum.decode_s", n, m)?;
        let work = |(prefill_s, decode_s)| Work { prefill: Seconds(prefill_s), decode: Seconds(decode_s) };
        Ok(SumTables {
            work: prefill_s.into_iter().zip(decode_s).map(work).collect(),
            rtt_s: self.destinations.iter().map(|d| d.rtt_s).collect(),
            price_per_s: self.destinations.iter().map(|d| d.price_per_s).collect(),
            timelines: self.destinations.into_iter().map(|d| d.timeline.into()).collect(),
            others_time_weight: self.others_time_weight,
        })
    }
}

impl From<&SumTables> for FileSum {
    fn from(sum: &SumTables) -> Self {
        let m = sum.timelines.len();
        let part = |of: fn(&Work) -> f64| {
            sum.work.chunks_exact(m).map(move |row| row.iter().map(of).collect()).collect()
        };
        let figures = sum.rtt_s.iter().zip(&sum.price_per_s).zip(&sum.timelines);
        let destination = |((rtt_s, price_per_s), timeline): ((&f64, &f64), &Timeline)| FileDestination {
            rtt_s: *rtt_s,
            price_per_s: *price_per_s,
            timeline: timeline.into(),
        };
        Self {
            others_time_weight: sum.others_time_weight,
            destinations: figures.map(destination).collect(),
            prefill_s: part(|work| work.prefill.0),
            decode_s: part(|work| work.decode.0),
        }
    }
}

impl From<&Timeline> for FileTimeline {
    fn from(timeline: &Timeline) -> Self {
        match *timeline {
            Timeline::Fifo(FifoTimeline { busy_s, batch_speedup, pace }) => {
                Self::Fifo { backlog_s: busy_s, batch_speedup, pace }
            }
            Timeline::Slots(SlotTimeline { speed, load, pace }) => Self::Slots {
                slots: speed.slots,
                batch_speedup: speed.batch_speedup,
                pace,
                running: load.running,
                prefill_s: load.prefill.0,
                decode_s: load.decode.0,
                soonest_s: load.soonest.0,
                queued: load.queued,
                queued_prefill_s: load.queued_work.prefill.0,
                queued_decode_s: load.queued_work.decode.0,
            },
        }
    }
}

impl From<FileTimeline> for Timeline {
    fn from(file: FileTimeline) -> Self {
        match file {
            FileTimeline::Fifo { backlog_s, batch_speedup, pace } => {
                Self::Fifo(FifoTimeline { busy_s: backlog_s, batch_speedup, pace })
            }
            FileTimeline::Slots {
                slots,
                batch_speedup,
                pace,
                running,
                prefill_s,
                decode_s,
                soonest_s,
                queued,
                queued_prefill_s,
                queued_decode_s,
            } => Self::Slots(SlotTimeline {
                speed: SlotSpeed { slots, batch_speedup },
                load: SlotLoad {
                    running,
                    queued,
                    prefill: Seconds(prefill_s),
                    decode: Seconds(decode_s),
                    soonest: Seconds(soonest_s),
                    queued_work: Work {
                        prefill: Seconds(queued_prefill_s),
                        decode: Seconds(queued_decode_s),
                    },
                },
                pace,
            }),
        }
    }
}
