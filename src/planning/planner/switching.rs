//! Another policy takes over: how it gathers and whether it pays prices changes, who waits stays.

use super::{Gathering, Planner, PlannerParams};
use crate::units::Seconds;

impl Planner {
    /// Goes on with other parameters from `now` on, whoever plans: see [`Planner::follow`]. Those who wait keep their
    /// place in the order. How outstanding work drains stays as it was: `completion` of `params` is passed over.
    pub fn reconfigure(&mut self, now: Seconds, params: PlannerParams, pays_prices: bool) {
        self.params = PlannerParams { completion: self.params.completion, ..params };
        self.situation.reconfigure(now, &self.params);
        self.follow(now, params.gather, pays_prices);
    }

    /// Plans are made by another policy from `now` on, which gathers or not and pays congestion prices or not.
    ///
    /// Nobody loses its place: the waiting set, its order and the books of what is outstanding stay. Who was passed over
    /// waits by the rules of the policy before, so everyone of them is planned anew now. Who gathers is planned when it
    /// wanted to be, and a plan under way is taken in when it is there.
    pub fn follow(&mut self, now: Seconds, gather: bool, pays_prices: bool) {
        self.params.gather = gather;
        self.gathering = Gathering::of(&self.params);
        self.situation.set_pays_prices(pays_prices);
        for ticket in self.held.passed_over() {
            self.held.change(ticket, |held| held.plan_at = Some(now));
        }
    }
}
