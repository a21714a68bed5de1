//! Completion time, model `slots`: a slot timeline, one prefill server, decode at `rate(n)`.
//!
//! A destination runs S_d requests at once; the rest queue in order. Prompts are read one after the other, and
//! while one is read nobody's tokens are generated: engines process prompt and generation in the same steps, and
//! a step with a prompt in it takes as long as the prompt. Each of n running requests generates at
//! `rate(n) = r1 / (1 + a (n − 1))`, `a` from the speed-up at full slots, `k = S / (1 + a (S − 1))`.
//!
//! What runs there is known as a sum ([`SlotLoad`]), so a place on the timeline is found in constant time. The
//! company a request has is taken to stay as it is when it begins: who ends is replaced.

use super::timeline::ServiceTimes;
use crate::domain::{SlotLoad, SlotSpeed, Work};
use crate::units::Seconds;

/// Of a second in which a prompt is read, what each running request loses: less than all, since what ends in the
/// meantime loses nothing (fitted in simulation).
const READING_DELAY: f64 = 0.5;
/// The same for the slowdown of generation that one more request brings while it runs.
const COMPANY_DELAY: f64 = 0.7;

/// The slots of one destination with what is in them and before them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotTimeline {
    /// The slots.
    pub speed: SlotSpeed,
    /// What is there, in seconds at the speeds that work is counted in.
    pub load: SlotLoad,
    /// Progress per second relative to those speeds, positive.
    pub pace: f64,
}

impl SlotTimeline {
    /// When one more request would be served.
    #[must_use]
    pub fn predict(&self, work: Work) -> ServiceTimes {
        let company = self.load.running.min(self.slots() - 1);
        let start_s = self.start_s();
        // One that gets a slot at once waits for the prompts before its own; one that queues waits for all that is
        // before it.
        let read_from_s = start_s.max(self.load.prefill.0);
        let first_s = read_from_s + work.prefill.0;
        let finish_s = first_s + work.decode.0 * self.speed.stretch(company + 1);
        let seconds = |s: f64| Seconds(s / self.pace);
        ServiceTimes {
            start: seconds(start_s),
            reading: seconds(read_from_s),
            first_content: seconds(first_s),
            finish: seconds(finish_s),
        }
    }

    /// By how much one more request delays those it will run beside, all of them together.
    #[must_use]
    pub fn externality(&self, work: Work) -> Seconds {
        let others = self.load.running.min(self.slots() - 1);
        let slower = self.speed.slowdown() / self.speed.stretch(others + 1);
        let each_s = READING_DELAY * work.prefill.0 + COMPANY_DELAY * work.decode.0 * slower;
        Seconds(f64::from(others) * each_s / self.pace)
    }

    /// What a request takes of the destination's time when all of its slots are in use.
    #[must_use]
    pub fn saturated_work(&self, work: Work) -> Seconds {
        let shared_s = work.decode.0 / self.speed.speedup(self.slots());
        Seconds((work.prefill.0 + shared_s) / self.pace)
    }

    /// One more request is sent there.
    pub fn push(&mut self, work: Work) {
        let load = &mut self.load;
        if load.queued == 0 && load.running < self.speed.slots {
            load.soonest = if load.running == 0 { work.decode } else { load.soonest.min(work.decode) };
            load.prefill += work.prefill;
            load.decode += work.decode;
            load.running += 1;
        } else {
            load.queued_work += work;
            load.queued += 1;
        }
    }

    fn slots(&self) -> u32 {
        self.speed.slots.max(1)
    }

    /// When the next request gets a slot. As many must end before as queue, and one more: the first is known; the
    /// later ones end as fast as work is done, when all that is before it is done but for what is then left of the
    /// others that run.
    fn start_s(&self) -> f64 {
        let load = &self.load;
        let slots = f64::from(self.slots());
        if load.queued == 0 && load.running < self.slots() {
            return 0.0;
        }
        let first_s = load.prefill.0 + load.soonest.0 * self.speed.stretch(self.slots());
        if load.queued == 0 {
            return first_s;
        }
        // Of completions spread evenly the others have `S/(S+1)` of their mean left when the first one ends.
        let left_s = (slots - 1.0) * load.decode.0 / (slots + 1.0);
        let shared_s = (load.decode.0 + load.queued_work.decode.0 - left_s).max(0.0);
        let all_s = load.prefill.0 + load.queued_work.prefill.0 + shared_s / self.speed.speedup(self.slots());
        first_s.max(all_s)
    }
}

#[cfg(test)]
mod tests;
