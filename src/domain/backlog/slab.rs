//! Outstanding requests in reusable slots, and first-in-first-out lists through them.
//!
//! Every operation takes constant time, wherever in a list a request stands; a slot is allocated once and used
//! again.

/// A place in a [`Slab`].
pub(super) type Index = u32;

/// One outstanding request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    /// Part of its work that is done one request after the other, not yet done, seconds.
    pub(super) serial_s: f64,
    /// Part of its work that is done along with others', as predicted, seconds.
    pub(super) shared_s: f64,
    /// What it owes at least while it is outstanding, seconds.
    pub(super) floor_s: f64,
    /// What is left of the shared part when it turns overdue, seconds.
    pub(super) turn_s: f64,
    /// On the destination's virtual clock: when the shared part would be done.
    pub(super) due_s: f64,
    pub(super) stage: Stage,
    /// The serial part waits in the list of prefills.
    pub(super) is_serial: bool,
    pub(super) previous: Option<Index>,
    pub(super) next: Option<Index>,
}

/// Where an outstanding request stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Behind the slots.
    #[default]
    Queued,
    /// In a slot, and on time.
    OnTime,
    /// In a slot, and almost or more than the predicted work has been done.
    Overdue,
}

/// Slots by index.
#[derive(Debug, Clone, Default)]
pub(super) struct Slab {
    slots: Vec<Slot>,
    free: Vec<Index>,
}

impl Slab {
    pub(super) fn insert(&mut self, slot: Slot) -> Index {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = slot;
            return index;
        }
        self.slots.push(slot);
        // Fewer than 2^32 requests are outstanding.
        Index::try_from(self.slots.len() - 1).unwrap_or(Index::MAX)
    }

    pub(super) fn remove(&mut self, index: Index) {
        self.free.push(index);
    }

    pub(super) fn get(&self, index: Index) -> &Slot {
        &self.slots[index as usize]
    }

    pub(super) fn get_mut(&mut self, index: Index) -> &mut Slot {
        &mut self.slots[index as usize]
    }
}

/// A list through the slots of a slab; a slot is in one list at most.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct List {
    first: Option<Index>,
    last: Option<Index>,
}

impl List {
    pub(super) const fn first(&self) -> Option<Index> {
        self.first
    }

    pub(super) fn push(&mut self, slab: &mut Slab, index: Index) {
        let slot = slab.get_mut(index);
        (slot.previous, slot.next) = (self.last, None);
        match self.last.replace(index) {
            Some(last) => slab.get_mut(last).next = Some(index),
            None => self.first = Some(index),
        }
    }

    pub(super) fn unlink(&mut self, slab: &mut Slab, index: Index) {
        let Slot { previous, next, .. } = *slab.get(index);
        match previous {
            Some(previous) => slab.get_mut(previous).next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => slab.get_mut(next).previous = previous,
            None => self.last = previous,
        }
    }
}
