//! Calibration: what a destination can do, measured (the paper's F_1 and F_B), and how far away its node is.
//!
//! A [`Course`] says beforehand how much it sends and an [`Allowance`] holds it to that. [`throughput::measure`]
//! fills a [`Measured`] as it goes, so that whatever ends it early leaves what there is; [`Figures`] are made from
//! that without any IO. The figures are those of `throughput` in the configuration:
//!
//! - *prefill*: prompts of several lengths, one at a time. A robust line through the times to the first token: its
//!   slope is the time per prompt token, its intercept what every request costs whatever its length.
//! - *decode*: of the same requests, `(tokens − 1) / (last − first)`.
//! - *speed-up*: 1, 2, 4, … clients at once, each sending one request after the other. Completion tokens over the
//!   wall time of a rung, over the same of one client, is `F_B / F_1`.
//!
//! What its answers are worth is the matter of [`quality`], which sends real questions.
//!
//! Reading order: `sample` (what is measured), `fit`, `ladder`, `figures` (pure), `course` (how much is sent),
//! `prompt`, `request` and `throughput` (the sockets), `network`, `fragment` (YAML).

mod course;
mod figures;
pub mod fit;
pub mod fragment;
pub mod ladder;
pub mod network;
mod prompt;
pub mod quality;
mod request;
mod sample;
pub mod server;
pub mod throughput;

pub use course::{Allowance, Course, Volume};
pub use figures::{Figures, PrefillFit};
pub use sample::{Measured, Rung, Sample};
