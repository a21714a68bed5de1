//! Where plans are written down.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::decision::SolvedPlan;
use crate::decision::record::PlanRecord;
use crate::telemetry::json_log::JsonLog;

/// The decision log, with what it takes to write plans into it.
#[derive(Debug)]
pub(super) struct PlanLog {
    pub(super) log: JsonLog,
    /// Whether plans are written with all it takes to make them again.
    pub(super) with_situations: bool,
}

impl PlanLog {
    /// Writes a plan down, if plans are.
    pub(super) fn plan(&self, solved: &Arc<SolvedPlan>) {
        if self.log.is_on() {
            let (solved, with_situation) = (Arc::clone(solved), self.with_situations);
            self.log.record(move || PlanEntry { solved, with_situation });
        }
    }
}

/// What a [`PlanRecord`] is made of, on its way to the log's thread.
struct PlanEntry {
    solved: Arc<SolvedPlan>,
    with_situation: bool,
}

impl Serialize for PlanEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line {
            kind: &'static str,
            #[serde(flatten)]
            record: PlanRecord,
        }
        let record = PlanRecord::new(&self.solved, self.with_situation);
        Line { kind: "plan", record }.serialize(serializer)
    }
}
