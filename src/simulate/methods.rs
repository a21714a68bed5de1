//! What is compared: the router's policies, and two straw men of the paper's figures.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use crate::domain::{Destination, DestinationOrd, Weights};
use crate::planning::{WindowClose, WindowParams};
use crate::routing::{
    CostModels, Objective, PolicyError, PolicyKind, PolicyParams, Problem, ProblemTables, RoutingPolicy,
    for_kind,
};
use crate::simulate::SimulateError;
use crate::units::Seconds;

/// Name of `memetic` with all weight on quality (Fig. 1).
pub const QUALITY_ONLY: &str = "quality_only";
/// Name of routing that decides on each request as if it were alone (Fig. 2).
pub const PER_REQUEST: &str = "per_request";

/// What is compared where nothing else is asked for.
pub const DEFAULT_METHODS: [&str; 8] = [
    "memetic",
    "memetic_paper",
    "greedy",
    "uniroute",
    "round_robin",
    "least_loaded",
    "cloud_only",
    "edge_only",
];

/// What is compared at equal score where nothing else is asked for.
pub const MATCHED_METHODS: [&str; 9] = [
    "memetic",
    "memetic_fixed",
    "memetic_paper",
    "greedy",
    "greedy_plain",
    "greedy_plain_early",
    "uniroute",
    "round_robin",
    "least_loaded",
];

/// Ends the name of a joint policy in fixed windows, whatever windows the scenario has.
const FIXED_SUFFIX: &str = "_fixed";
/// Ends the name of a per-request policy that binds every request on arrival: engines queue whatever is sent to them,
/// as they do behind routers that hold nothing back.
const EARLY_SUFFIX: &str = "_early";

const QUALITY_ALONE: Weights = Weights { quality: 1.0, cost: 0.0, energy: 0.0, time: 0.0 };

/// Policies that decide on several requests at once.
const JOINT: [PolicyKind; 2] = [PolicyKind::Memetic, PolicyKind::MemeticPaper];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Policy(PolicyKind),
    QualityOnly,
    PerRequest,
}

/// One compared method: a policy with its parameters under the name results carry.
#[derive(Debug, Clone, PartialEq)]
pub struct Method {
    name: String,
    kind: Kind,
    params: PolicyParams,
    /// How its windows close; `None` = as the scenario says.
    close: Option<WindowClose>,
    /// Whether it sends each request at once, however many its destination has.
    is_early: bool,
}

/// A name that is no method, or a parameter that is none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MethodNameError {
    /// No such method.
    #[error("unknown policy `{name}`; there are {known}")]
    Method {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// No such parameter of `memetic_paper`.
    #[error("unknown parameter `{name}` of memetic_paper; there are {known}")]
    Parameter {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// The value is out of range.
    #[error("{name} = {value} of memetic_paper is out of range: {range}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What was asked for.
        value: f64,
        /// What is allowed.
        range: &'static str,
    },
}

/// Whole parameters of `memetic_paper` and their largest value.
const WHOLE_MAX: f64 = 10_000.0;
const PARAMETERS: [&str; 7] =
    ["population", "generations", "crossover", "mutation", "local_search", "tournament", "repair"];

impl Method {
    /// The method called `name`: a policy's name, a joint policy's followed by `_fixed` (fixed windows), a per-request
    /// policy's followed by `_early` (bound on arrival), [`QUALITY_ONLY`] or [`PER_REQUEST`].
    ///
    /// # Errors
    /// [`MethodNameError::Method`] with the names there are.
    pub fn named(name: &str, params: PolicyParams) -> Result<Self, MethodNameError> {
        let unknown = || MethodNameError::Method { name: name.to_owned(), known: Self::names().join(", ") };
        let policy = |name: &str, is_joint: bool| {
            let kind = PolicyKind::from_name(name).filter(|kind| JOINT.contains(kind) == is_joint);
            kind.map(Kind::Policy).ok_or_else(unknown)
        };
        let mut method =
            Self { name: name.to_owned(), kind: Kind::QualityOnly, params, close: None, is_early: false };
        if let Some(joint) = name.strip_suffix(FIXED_SUFFIX) {
            (method.kind, method.close) = (policy(joint, true)?, Some(WindowClose::Fixed));
        } else if let Some(per_request) = name.strip_suffix(EARLY_SUFFIX) {
            (method.kind, method.is_early) = (policy(per_request, false)?, true);
        } else {
            method.kind = match name {
                QUALITY_ONLY => Kind::QualityOnly,
                PER_REQUEST => Kind::PerRequest,
                _ => policy(name, true).or_else(|_| policy(name, false))?,
            };
        }
        Ok(method)
    }

    /// Every name [`Method::named`] knows.
    #[must_use]
    pub fn names() -> Vec<String> {
        let policies = PolicyKind::ALL.iter().map(|kind| kind.as_str().to_owned());
        let variants = PolicyKind::ALL.iter().map(|kind| {
            let suffix = if JOINT.contains(kind) { FIXED_SUFFIX } else { EARLY_SUFFIX };
            format!("{kind}{suffix}")
        });
        policies.chain(variants).chain([QUALITY_ONLY, PER_REQUEST].map(str::to_owned)).collect()
    }

    /// `memetic_paper` with one parameter of Table IV set to `value`, called `memetic_paper(name=value)`.
    ///
    /// # Errors
    /// A name or value that is none.
    pub fn paper_variant(name: &str, value: f64) -> Result<Self, MethodNameError> {
        let known = PARAMETERS.iter().find(|known| **known == name).ok_or_else(|| {
            MethodNameError::Parameter { name: name.to_owned(), known: PARAMETERS.join(", ") }
        })?;
        let mut params = PolicyParams::default();
        let paper = &mut params.memetic_paper;
        match *known {
            "population" => paper.population = whole(known, value)?,
            "generations" => paper.generations = whole(known, value)?,
            "tournament" => paper.tournament = whole(known, value)?,
            "repair" => paper.repair_budget = whole(known, value)?,
            "crossover" => paper.crossover_rate = share(known, value)?,
            "mutation" => paper.mutation_rate = share(known, value)?,
            _ => paper.local_search_rate = share(known, value)?,
        }
        let kind = Kind::Policy(PolicyKind::MemeticPaper);
        let name = format!("{}({known}={value})", PolicyKind::MemeticPaper);
        Ok(Self { name, kind, params, close: None, is_early: false })
    }

    /// The name in results.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it decides on several requests at once and so gains from a window; the others are per-request
    /// routers and take each request as it comes.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        match self.kind {
            Kind::Policy(kind) => JOINT.contains(&kind),
            Kind::QualityOnly => true,
            Kind::PerRequest => false,
        }
    }

    /// The models it plans by where the scenario's are `configured`.
    #[must_use]
    pub fn models(&self, configured: CostModels) -> CostModels {
        match self.kind {
            Kind::Policy(kind) => kind.models(configured),
            Kind::QualityOnly | Kind::PerRequest => configured,
        }
    }

    /// Whether congestion prices are part of its objective.
    #[must_use]
    pub fn pays_prices(&self) -> bool {
        match self.kind {
            Kind::Policy(kind) => kind.pays_prices(),
            Kind::QualityOnly | Kind::PerRequest => false,
        }
    }

    /// How it gathers requests where the scenario's windows are `window`.
    #[must_use]
    pub fn window(&self, window: WindowParams) -> WindowParams {
        WindowParams {
            max_wait: if self.is_joint() { window.max_wait } else { Seconds::ZERO },
            close: self.close.unwrap_or(window.close),
            // Other routers have no such guard.
            finish_target: window.finish_target.filter(|_| !self.is_early),
            ..window
        }
    }

    /// The fleet as it uses it.
    #[must_use]
    pub fn fleet(&self, fleet: &Arc<[Destination]>) -> Arc<[Destination]> {
        if !self.is_early {
            return Arc::clone(fleet);
        }
        fleet.iter().map(|d| Destination { max_inflight: u32::MAX, ..d.clone() }).collect()
    }

    /// Whether it decides by prompt clusters.
    #[must_use]
    pub fn needs_clusters(&self) -> bool {
        self.kind == Kind::Policy(PolicyKind::Uniroute)
    }

    /// Whether what it decides depends on the weights, so that there is something to sweep.
    #[must_use]
    pub fn heeds_weights(&self) -> bool {
        use PolicyKind::{Greedy, GreedyPlain, Memetic, MemeticPaper};
        matches!(self.kind, Kind::Policy(Memetic | MemeticPaper | Greedy | GreedyPlain))
    }

    /// Whether it needs whole batches and cannot run live.
    #[must_use]
    pub fn is_batch_only(&self) -> bool {
        self.kind == Kind::PerRequest
    }

    /// The weights it decides by where `weights` are asked for.
    #[must_use]
    pub fn weights(&self, weights: Weights) -> Weights {
        if self.kind == Kind::QualityOnly { QUALITY_ALONE } else { weights }
    }

    /// The policy behind it.
    #[must_use]
    pub fn policy(&self) -> Box<dyn RoutingPolicy + Send + Sync> {
        let kind = match self.kind {
            Kind::Policy(kind) => kind,
            Kind::QualityOnly => PolicyKind::Memetic,
            Kind::PerRequest => PolicyKind::GreedyPlain,
        };
        for_kind(kind, &self.params)
    }

    /// Assigns a batch, judged by the batch's own bounds.
    ///
    /// # Errors
    /// What the policy needs and the problem lacks.
    pub fn assign(
        &self,
        problem: &Problem,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<DestinationOrd>, SimulateError> {
        let route = |problem: &Problem, rng: &mut ChaCha8Rng| -> Result<_, PolicyError> {
            let objective = Objective::batch(problem);
            Ok(self.policy().route(problem, &objective, rng, &mut || false)?.assignment)
        };
        match self.kind {
            Kind::Policy(_) => Ok(route(problem, rng)?),
            Kind::QualityOnly => {
                let weights = vec![QUALITY_ALONE; problem.n_requests()];
                Ok(route(&Problem::new(ProblemTables { weights, ..problem.tables().clone() })?, rng)?)
            }
            Kind::PerRequest => {
                let mut assignment = Vec::with_capacity(problem.n_requests());
                for r in 0..problem.n_requests() {
                    assignment.extend(route(&single(problem, r)?, rng)?);
                }
                Ok(assignment)
            }
        }
    }
}

/// The problem of request `r` alone.
fn single(problem: &Problem, r: usize) -> Result<Problem, SimulateError> {
    let (tables, m) = (problem.tables(), problem.n_destinations());
    let row = r * m..(r + 1) * m;
    let of_row = |table: &[f64]| table[row.clone()].to_vec();
    Ok(Problem::new(ProblemTables {
        quality_loss: of_row(&tables.quality_loss),
        cost_usd: of_row(&tables.cost_usd),
        energy_j: of_row(&tables.energy_j),
        service_s: of_row(&tables.service_s),
        transfer_s: of_row(&tables.transfer_s),
        legal: tables.legal[row.clone()].to_vec(),
        length_tokens: vec![tables.length_tokens[r]],
        destinations: tables.destinations.clone(),
        weights: vec![tables.weights[r]],
        first_request_number: tables.first_request_number,
        clusters: None,
        sum: None,
    })?)
}

fn whole<T: TryFrom<u64>>(name: &'static str, value: f64) -> Result<T, MethodNameError> {
    let error = MethodNameError::Value { name, value, range: "a whole number from 1 to 10000" };
    if !(1.0..=WHOLE_MAX).contains(&value) || value.fract() != 0.0 {
        return Err(error);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, from 1 to 10000")]
    T::try_from(value as u64).map_err(|_| error)
}

fn share(name: &'static str, value: f64) -> Result<f64, MethodNameError> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(MethodNameError::Value { name, value, range: "0 to 1" })
    }
}
