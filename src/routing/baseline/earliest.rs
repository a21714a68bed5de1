//! The seed of Algorithm 2: longest requests first, each to the destination that finishes it earliest.

use crate::domain::DestinationOrd;
use crate::routing::problem::Problem;

/// How much provisional load a request of service time s adds to L_d.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Division {
    /// s, as Algorithm 2 line 10 has it.
    Serial,
    /// s / k_d, what the evaluator charges.
    Batched,
}

/// Algorithm 2 lines 4–11 with batched work.
pub(crate) fn earliest_finish(problem: &Problem) -> Vec<DestinationOrd> {
    earliest_finish_with(problem, Division::Batched)
}

/// Algorithm 2 lines 4–11. `A_d = max(L_d + work, s) + ν_d`; with serial work that is line 8 as written.
pub(crate) fn earliest_finish_with(problem: &Problem, division: Division) -> Vec<DestinationOrd> {
    let (n, m, tables) = (problem.n_requests(), problem.n_destinations(), problem.tables());
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| tables.length_tokens[*b].total_cmp(&tables.length_tokens[*a]));
    let divisor = |d: usize| match division {
        Division::Serial => 1.0,
        Division::Batched => tables.destinations[d].batch_speedup,
    };
    let divisors: Vec<f64> = (0..m).map(divisor).collect();
    let mut load_s: Vec<f64> = tables.destinations.iter().map(|d| d.backlog_s).collect();
    let mut assignment = vec![DestinationOrd(0); n];
    let mut places = problem.places();
    for r in order {
        let finish_s = |d: &DestinationOrd| {
            let service_s = tables.service_s[r * m + d.idx()];
            let loaded_s = load_s[d.idx()] + service_s / divisors[d.idx()];
            loaded_s.max(service_s) + tables.destinations[d.idx()].network_s
        };
        let by_finish = |a: &DestinationOrd, b: &DestinationOrd| finish_s(a).total_cmp(&finish_s(b));
        places.look(r);
        let open = problem.legal_destinations(r).filter(|d| places.is_open(d.idx()));
        let Some(d) = open.min_by(by_finish) else { continue };
        places.take(r, d.idx());
        load_s[d.idx()] += tables.service_s[r * m + d.idx()] / divisors[d.idx()];
        assignment[r] = d;
    }
    assignment
}
