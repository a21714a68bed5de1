//! Deadlines that nothing can meet any more: refused as soon as that is known, where it is so configured.

use super::Planner;
use crate::planning::held::Held;
use crate::planning::messages::{Action, Rejection, Ticket};
use crate::routing::{BatchItem, EarliestFinish, NoDestination, legal_set};
use crate::units::Seconds;

/// Least and longest time between two looks at one deadline. In between it is looked at again when what is to spare
/// now would be used up if nothing moved on.
const LOOK_AFTER: [Seconds; 2] = [Seconds(0.05), Seconds(1.0)];

impl Planner {
    /// Refuses those who are held, not in a plan, and cannot be served in time any more. What would start them may
    /// never come, so that no plan would tell.
    pub(super) fn look_at_deadlines(&mut self, now: Seconds, actions: &mut Vec<Action>) {
        let due = self.held.to_look_at(now);
        self.keep_feasible(now, due, actions);
    }

    /// Those of `tickets` whose deadlines can be met, as far as one knows, or do not matter. The others are refused.
    pub(super) fn keep_feasible(
        &mut self,
        now: Seconds,
        mut tickets: Vec<Ticket>,
        actions: &mut Vec<Action>,
    ) -> Vec<Ticket> {
        let wanted = |held: &Held| held.arrival.request.constraints.deadline;
        let has_deadline = |ticket: &Ticket| self.held.get(*ticket).and_then(wanted).is_some();
        if !self.params.refuses_infeasible || !tickets.iter().any(has_deadline) {
            return tickets;
        }
        let earliest = EarliestFinish::new(self.situation.at(now), self.params.completion);
        let spare = |ticket: &Ticket| self.held.get(*ticket).and_then(|held| spare(held, now, &earliest));
        let spares: Vec<_> = tickets.iter().map(|ticket| (*ticket, spare(ticket))).collect();
        for (ticket, spare) in spares {
            match spare {
                Some(Ok(spare)) => {
                    let look_at = Some(now + spare.max(LOOK_AFTER[0]).min(LOOK_AFTER[1]));
                    self.held.change(ticket, |held| held.look_at = look_at);
                }
                Some(Err(reason)) => {
                    self.let_go(now, ticket);
                    tickets.retain(|kept| *kept != ticket);
                    actions.push(Action::Reject { ticket, reason: Rejection::Impossible(reason) });
                }
                // Where no destination is left, its next plan says so.
                None => _ = self.held.change(ticket, |held| held.look_at = None),
            }
        }
        tickets
    }
}

/// Time to spare before its deadline if it were sent now; `None` without a deadline, or where the plan has another
/// constraint to name.
fn spare(held: &Held, now: Seconds, earliest: &EarliestFinish<'_>) -> Option<Result<Seconds, NoDestination>> {
    let arrival = &held.arrival;
    let deadline = arrival.request.constraints.deadline?;
    let (request, prediction) = (&arrival.request, &arrival.prediction);
    let legal = legal_set(request, Some(prediction), earliest.context(), &arrival.excluded).ok()?;
    let waited = now - arrival.arrived;
    let item = BatchItem { request, prediction, legal: &legal, waited };
    let done = waited + earliest.of(&item);
    if done.0 <= deadline.0 {
        return Some(Ok(deadline - done));
    }
    let is_hopeless = earliest.alone(&item).0 > deadline.0;
    Some(Err(NoDestination::Deadline { deadline, earliest: done, is_hopeless }))
}
