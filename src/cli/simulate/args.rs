//! What `simulate` can be asked for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::quality::EmbedderArgs;
use crate::domain::Weights;
use crate::planning::WindowClose;
use crate::simulate::engine::EngineKind;

/// Try policies on recorded prompts, without a single model running
///
/// Two kinds of question:
///
///   How good are the assignments? Independent batches on an idle fleet, every
///   policy on the same ones (the paper's Tables V-VII):
///     cema-router simulate --scenario routerbench
///     cema-router simulate --scenario routerbench --copies 1,2,4,8 --plot charts
///     cema-router simulate --scenario six-node --batch-size 10,30,50
///
///   How does it feel under load? Requests that keep arriving, backlog carried
///   over from window to window, the router's own planner in virtual time:
///     cema-router simulate --scenario small-slots --load 0.3,0.6,0.8,0.95
///     cema-router simulate --scenario config.yaml --trace scored.jsonl --load 0.8
///   and, since latency can be bought with score, at equal true score:
///     cema-router simulate --scenario mixed-edge --load 0.8 --match-quality
///
/// A scenario is a fleet: `routerbench` and `six-node` (the paper's Tables II and
/// III; `routerbench-live` and `six-node-live` with engines as real ones behave),
/// `small-slots`, `mixed-edge`, a scenario file of your own (see scenarios/ of the
/// repository), or your router's configuration. Rows are scored prompts in the
/// format of `quality import`; shipped scenarios bring some. What the router
/// believes (quality, answer length) is predicted from --profile rows; what then
/// happens is taken from --trace rows. With one file given it is split, by hash of
/// the question.
///
/// One number of --batch-size, --copies, --arrivals-per-s or --load may be a list:
/// one comparison for each. Same seed, same output, but for decision times. J
/// scales each term over the compared policies, so it means nothing beyond its
/// table; read `greedy` first: it is what a good router without batches does.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SimulateArgs {
    /// Fleet: routerbench, six-node, small-slots, mixed-edge, six-node-live, routerbench-live, a scenario
    /// file, or a router configuration
    #[arg(long, value_name = "NAME|FILE", default_value = "routerbench")]
    pub(super) scenario: String,

    /// Rows to simulate [default: those of the scenario]
    #[arg(long, value_name = "F.jsonl[.gz]")]
    pub(super) trace: Option<PathBuf>,

    /// Rows, or a quality store, to predict from [default: two thirds of the trace, which are then not simulated]
    #[arg(long, value_name = "F|DIR")]
    pub(super) profile: Option<PathBuf>,

    /// What the router knows: predictions, or the truth itself
    #[arg(long, value_enum, default_value_t = Knowledge::Predicted)]
    pub(super) quality: Knowledge,

    /// Policies to compare, besides those of the configuration `quality_only` (memetic, all weight on
    /// quality), `per_request` (each request as if it were alone), `memetic_fixed` and
    /// `memetic_paper_fixed` (in fixed windows), and per-request policies as `greedy_plain_early` (bound on
    /// arrival, engines queue without limit) [default: those of the configuration but greedy_plain]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(super) policies: Vec<String>,

    /// Also compare memetic_paper with one parameter varied, such as population=10,60,240; one of
    /// population, generations, crossover, mutation, local_search, tournament, repair
    #[arg(long, value_name = "NAME=X,Y")]
    pub(super) sweep: Option<String>,

    /// What matters: of quality, cost, energy, time those not named count nothing [default: the scenario's]
    #[arg(long, value_name = "quality=X,time=Y", value_parser = parse_weights)]
    pub(super) weights: Option<Weights>,

    /// Seed of batches, arrivals and solvers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Scored assignments after which `memetic` stops; a count, so that results do not depend on the machine
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(super) evaluations: u64,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,

    /// Also draw charts (SVG) into this folder
    #[arg(long, value_name = "DIR")]
    pub(super) plot: Option<PathBuf>,

    #[command(flatten)]
    pub(super) batches: BatchArgs,

    #[command(flatten)]
    pub(super) live: LiveArgs,

    #[command(flatten)]
    pub(super) embedder: EmbedderArgs,
}

/// Independent batches.
#[derive(Debug, Args)]
#[command(next_help_heading = "Independent batches")]
pub(super) struct BatchArgs {
    /// Requests in a batch
    #[arg(long, value_name = "R", value_delimiter = ',', default_value = "30", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(super) batch_size: Vec<u32>,

    /// Batches to average over
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) batches: u32,

    /// How many times the fleet is there
    #[arg(long, value_name = "C", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) copies: Vec<u32>,
}

/// Arrivals over time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Arrivals over time")]
pub(super) struct LiveArgs {
    /// Mean arrivals a second
    #[arg(long, value_name = "X", value_delimiter = ',', conflicts_with = "load", value_parser = positive)]
    pub(super) arrivals_per_s: Vec<f64>,

    /// The same as a share of what the fleet serves when every engine is saturated
    #[arg(long, value_name = "X", value_delimiter = ',', value_parser = positive)]
    pub(super) load: Vec<f64>,

    /// Requests to simulate
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) requests: u32,

    /// poisson, bursty (30 at a time), onoff (6 s at twice the rate, 9 s at a third of it, on average), or a
    /// file: one arrival time in seconds per line, or the decision log of a router
    #[arg(long, value_name = "HOW|FILE.csv", default_value = "poisson")]
    pub(super) arrivals: String,

    /// How the windows of joint policies close [default: the scenario's]; per-request policies have none
    #[arg(long, value_name = "HOW", value_parser = window_close)]
    pub(super) window: Option<WindowClose>,

    /// Their length in milliseconds, 0 to 1000 [default: the scenario's]
    #[arg(long, value_name = "MS")]
    pub(super) window_ms: Option<f64>,

    /// How engines behave: slots (queue, one prompt at a time, shared decode) or fifo (Eq. 4)
    /// [default: the scenario's]
    #[arg(long, value_name = "HOW", value_parser = engine)]
    pub(super) engine: Option<EngineKind>,

    /// Compare at equal true score: run every policy at seven quality weights, for every seed with the same
    /// arrivals and rows, and read latency and energy where it answers as well as the reference
    #[arg(long)]
    pub(super) match_quality: bool,

    /// What policies are compared with at equal score
    #[arg(long, value_name = "POLICY", default_value = "greedy_plain", requires = "match_quality")]
    pub(super) reference: String,

    /// Seeds of a comparison at equal score, from --seed on
    #[arg(long, value_name = "K", default_value_t = 8, requires = "match_quality", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) seeds: u32,
}

/// What the router knows of quality and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Knowledge {
    /// What it predicts from the profile
    Predicted,
    /// The truth, as a bound on what better predictions could bring
    Oracle,
}

impl Knowledge {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Oracle => "oracle",
        }
    }
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
    Csv,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0 && *x <= 1e6);
    number.ok_or_else(|| "must be a number above 0, at most 1000000".to_owned())
}

fn window_close(text: &str) -> Result<WindowClose, String> {
    WindowClose::from_name(text).ok_or_else(|| "must be `fixed` or `adaptive`".to_owned())
}

fn engine(text: &str) -> Result<EngineKind, String> {
    EngineKind::from_name(text).ok_or_else(|| "must be `slots` or `fifo`".to_owned())
}

fn parse_weights(text: &str) -> Result<Weights, String> {
    let mut weights = Weights { quality: 0.0, cost: 0.0, energy: 0.0, time: 0.0 };
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=NUMBER"))?;
        let value: f64 = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
        match name {
            "quality" => weights.quality = value,
            "cost" => weights.cost = value,
            "energy" => weights.energy = value,
            "time" => weights.time = value,
            _ => return Err(format!("unknown weight `{name}`; there are quality, cost, energy, time")),
        }
    }
    weights.normalised().ok_or_else(|| "weights must not be negative, and one of them above 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_scaled_and_faults_named() {
        let weights = parse_weights("quality=3,time=1").unwrap();
        assert_eq!(weights, Weights { quality: 0.75, cost: 0.0, energy: 0.0, time: 0.25 });
        for (text, fault) in
            [("speed=1", "speed"), ("quality", "quality"), ("time=x", "x"), ("time=0", "above 0")]
        {
            assert!(parse_weights(text).unwrap_err().contains(fault), "{text}");
        }
    }
}
