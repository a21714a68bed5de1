//! What is outstanding at one destination, and how it drains.

use std::collections::BTreeSet;

use super::slab::{Index, List, Slab, Slot, Stage};
use super::{SlotLoad, Work};
use crate::domain::completion::CompletionModel;
use crate::domain::destination::Throughput;
use crate::units::Seconds;

/// A request that is outstanding owes at least this share of its predicted work, however long it has run: its
/// answer is longer than predicted, or its endpoint slower.
const OWED_SHARE: f64 = 0.2;

/// The outstanding requests of one destination.
///
/// The shared part of the work drains on a virtual clock, which advances by the progress of each running
/// request; a request is done when the clock reaches its `due_s`. So the passing of time is one addition,
/// whatever is outstanding, and the sums are kept with each event.
#[derive(Debug, Clone)]
pub(super) struct DestinationLedger {
    model: CompletionModel,
    throughput: Throughput,
    /// Progress per second relative to the figures that the work was predicted with.
    pace: f64,
    as_of: Seconds,
    slab: Slab,
    n_outstanding: u32,
    /// Behind the slots, oldest first.
    queue: List,
    n_queued: u32,
    queued: Work,
    /// Serial work of the running, oldest first.
    serial: List,
    serial_s: f64,
    /// The virtual clock.
    clock_s: f64,
    /// Running requests on time, by the moment of the virtual clock at which they turn overdue.
    on_time: BTreeSet<(u64, Index)>,
    due_sum_s: f64,
    /// Floors of all that is outstanding.
    floors_s: f64,
    /// Floors of the overdue.
    overdue_s: f64,
    n_overdue: u32,
}

impl DestinationLedger {
    pub(super) fn new(model: CompletionModel, throughput: Throughput, now: Seconds) -> Self {
        Self {
            model,
            throughput,
            pace: 1.0,
            as_of: now,
            slab: Slab::default(),
            n_outstanding: 0,
            queue: List::default(),
            n_queued: 0,
            queued: Work::default(),
            serial: List::default(),
            serial_s: 0.0,
            clock_s: 0.0,
            on_time: BTreeSet::new(),
            due_sum_s: 0.0,
            floors_s: 0.0,
            overdue_s: 0.0,
            n_overdue: 0,
        }
    }

    pub(super) const fn n_outstanding(&self) -> u32 {
        self.n_outstanding
    }

    /// Lets the work drain until `now`; a `now` in the past changes nothing.
    pub(super) fn advance(&mut self, now: Seconds) {
        let elapsed_s = (now - self.as_of).0;
        if elapsed_s <= 0.0 {
            return;
        }
        self.as_of = now;
        let span_s = elapsed_s * self.pace;
        let left_s = self.drain_serial(span_s);
        match self.model {
            CompletionModel::Fifo => self.run(span_s),
            // While a prompt is read, nobody's tokens are generated.
            CompletionModel::Slots => self.run(left_s / self.throughput.stretch(self.n_running())),
        }
    }

    /// New figures; what is outstanding keeps its predicted work.
    pub(super) fn set_figures(&mut self, throughput: Throughput, pace: f64) {
        (self.throughput, self.pace) = (throughput, pace);
        self.admit_while_free();
    }

    pub(super) fn dispatch(&mut self, work: Work) -> Index {
        let slot = self.slot(work);
        let index = self.slab.insert(slot);
        self.n_outstanding += 1;
        self.floors_s += slot.floor_s;
        if self.has_free_slot() {
            self.admit(index);
        } else {
            self.queue.push(&mut self.slab, index);
            self.n_queued += 1;
            self.queued += Work { prefill: Seconds(slot.serial_s), decode: Seconds(slot.shared_s) };
        }
        index
    }

    /// Its first content has come: its prompt has been read, and generation has just begun.
    pub(super) fn answering(&mut self, index: Index) {
        if self.model == CompletionModel::Fifo {
            return;
        }
        if self.slab.get(index).stage == Stage::Queued {
            // The engine runs more at once than was thought.
            self.leave_queue(index);
            self.admit(index);
        }
        self.leave_serial(index);
        self.leave_clock(index);
        self.enter_clock(index);
    }

    /// It is over: what it still owed is gone.
    pub(super) fn finish(&mut self, index: Index) {
        if self.slab.get(index).stage == Stage::Queued {
            self.leave_queue(index);
        } else {
            self.leave_serial(index);
            self.leave_clock(index);
        }
        self.floors_s -= self.slab.get(index).floor_s;
        self.slab.remove(index);
        self.n_outstanding -= 1;
        self.admit_while_free();
        if self.n_outstanding == 0 {
            // No rounding is carried on.
            (self.serial_s, self.clock_s, self.due_sum_s) = (0.0, 0.0, 0.0);
            (self.floors_s, self.overdue_s, self.queued) = (0.0, 0.0, Work::default());
        }
    }

    /// What is outstanding, summed up.
    pub(super) fn load(&self) -> SlotLoad {
        let on_time_s = (self.due_sum_s - self.on_time.len() as f64 * self.clock_s).max(0.0);
        let first_s = self.on_time.first().map(|(_, index)| self.slab.get(*index).due_s - self.clock_s);
        let overdue_s = (self.n_overdue > 0).then(|| (self.overdue_s / f64::from(self.n_overdue)).max(0.0));
        let soonest = [overdue_s, first_s].into_iter().flatten().reduce(f64::min);
        SlotLoad {
            running: self.n_running(),
            queued: self.n_queued,
            prefill: Seconds(self.serial_s.max(0.0)),
            decode: Seconds(on_time_s + self.overdue_s.max(0.0)),
            soonest: Seconds(soonest.unwrap_or(0.0).max(0.0)),
            queued_work: self.queued,
        }
    }

    /// B_d: see [`BacklogLedger::backlog`](super::BacklogLedger::backlog).
    pub(super) fn backlog(&self) -> Seconds {
        if self.n_outstanding == 0 {
            return Seconds::ZERO;
        }
        let drain_s = match self.model {
            // Behind the one server, or as long as the longest takes by itself.
            CompletionModel::Fifo => {
                let last = self.on_time.last().map(|(_, index)| self.slab.get(*index).due_s);
                let longest_s = last.map_or(0.0, |due_s| due_s - self.clock_s);
                let owed_s = self.floors_s / self.throughput.batch_speedup;
                self.serial_s.max(longest_s).max(owed_s)
            }
            // As fast as all of it together, or as long as the longest takes by itself.
            CompletionModel::Slots => {
                let last = self.on_time.last().map(|(_, index)| self.slab.get(*index).due_s);
                let longest_s = last.map_or(0.0, |due_s| due_s - self.clock_s);
                self.load().drain_time(&self.throughput).0.max(self.serial_s + longest_s)
            }
        };
        Seconds(drain_s / self.pace)
    }

    /// How the model splits this work.
    fn slot(&self, work: Work) -> Slot {
        let mut slot = Slot { serial_s: work.prefill.0, shared_s: work.decode.0, ..Slot::default() };
        if self.model == CompletionModel::Fifo {
            // All of it goes through one server, k times as fast, and takes its time besides.
            slot.shared_s = work.total().0;
            slot.serial_s = slot.shared_s / self.throughput.batch_speedup;
        }
        slot.floor_s = OWED_SHARE * slot.shared_s;
        if slot.shared_s <= 0.0 {
            // An embedding: the end of its reading is what it goes on owing.
            slot.floor_s = OWED_SHARE * slot.serial_s;
            (slot.serial_s, slot.shared_s) = (slot.serial_s - slot.floor_s, slot.floor_s);
        }
        slot.turn_s = if self.model == CompletionModel::Slots { slot.floor_s } else { 0.0 };
        slot
    }

    const fn n_running(&self) -> u32 {
        self.n_outstanding - self.n_queued
    }

    fn has_free_slot(&self) -> bool {
        match self.model {
            CompletionModel::Fifo => true,
            // The new one is counted as outstanding already, and as running while it is in no queue.
            CompletionModel::Slots => {
                self.n_queued == 0 && self.n_running() <= self.throughput.max_concurrency
            }
        }
    }

    fn admit_while_free(&mut self) {
        while self.n_running() < self.throughput.max_concurrency
            && let Some(index) = self.queue.first()
        {
            self.leave_queue(index);
            self.admit(index);
        }
    }

    fn admit(&mut self, index: Index) {
        let slot = self.slab.get_mut(index);
        slot.is_serial = slot.serial_s > 0.0;
        if slot.is_serial {
            self.serial_s += slot.serial_s;
            self.serial.push(&mut self.slab, index);
        }
        self.enter_clock(index);
    }

    fn leave_queue(&mut self, index: Index) {
        self.queue.unlink(&mut self.slab, index);
        let slot = self.slab.get(index);
        self.queued.prefill = Seconds((self.queued.prefill.0 - slot.serial_s).max(0.0));
        self.queued.decode = Seconds((self.queued.decode.0 - slot.shared_s).max(0.0));
        self.n_queued -= 1;
    }

    fn leave_serial(&mut self, index: Index) {
        let slot = self.slab.get_mut(index);
        if std::mem::take(&mut slot.is_serial) {
            self.serial_s -= std::mem::take(&mut slot.serial_s);
            self.serial.unlink(&mut self.slab, index);
        }
        if self.serial.first().is_none() {
            self.serial_s = 0.0;
        }
    }

    /// Work on the serial part for `span_s` seconds; what is left of them when there is none.
    fn drain_serial(&mut self, mut span_s: f64) -> f64 {
        while let Some(index) = self.serial.first() {
            let slot = self.slab.get_mut(index);
            if slot.serial_s > span_s {
                slot.serial_s -= span_s;
                self.serial_s -= span_s;
                return 0.0;
            }
            span_s -= slot.serial_s;
            self.leave_serial(index);
        }
        span_s
    }

    /// Lets the virtual clock advance.
    fn run(&mut self, progress_s: f64) {
        self.clock_s += progress_s;
        while let Some(&(turns_at, index)) = self.on_time.first()
            && f64::from_bits(turns_at) <= self.clock_s
        {
            self.leave_clock(index);
            let slot = self.slab.get_mut(index);
            slot.stage = Stage::Overdue;
            self.overdue_s += slot.floor_s;
            self.n_overdue += 1;
        }
    }

    /// The shared part begins.
    fn enter_clock(&mut self, index: Index) {
        let slot = self.slab.get_mut(index);
        slot.stage = Stage::OnTime;
        slot.due_s = self.clock_s + slot.shared_s;
        self.due_sum_s += slot.due_s;
        self.on_time.insert(turn(slot, index));
    }

    fn leave_clock(&mut self, index: Index) {
        let slot = *self.slab.get(index);
        match slot.stage {
            Stage::OnTime => {
                self.on_time.remove(&turn(&slot, index));
                self.due_sum_s -= slot.due_s;
            }
            Stage::Overdue => {
                self.overdue_s -= slot.floor_s;
                self.n_overdue -= 1;
            }
            Stage::Queued => {}
        }
    }
}

/// Its place in the order of turning overdue: not negative, so that the bits order as the numbers do.
fn turn(slot: &Slot, index: Index) -> (u64, Index) {
    ((slot.due_s - slot.turn_s).max(0.0).to_bits(), index)
}
