//! One power source of a node, ready to be read.

use std::io;
use std::path::PathBuf;

use super::nvml::{Board, NvmlThreads};
use super::params::PowerSource;
use super::scrape::Scrape;
use super::series::Reading;
use crate::endpoint::page::{PageClient, PageError};

/// What a meter gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    /// A counter of energy: what is drawn between two looks is in it.
    Energy,
    /// Power at the moment of looking.
    Power,
}

impl Quantity {
    /// In order of preference.
    pub(super) const ALL: [Self; 2] = [Self::Energy, Self::Power];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Energy => "energy counter",
            Self::Power => "power",
        }
    }
}

/// A quantity of a source.
#[derive(Debug)]
pub(super) enum Source {
    /// Of a board of this host.
    Nvml(Board, Quantity),
    /// Of an exporter.
    Scrape(Box<Scrape>),
    /// A script, by the number of readings before.
    #[cfg(test)]
    Scripted(std::sync::atomic::AtomicU32, fn(u32) -> Result<Reading, SourceError>),
}

/// Why a source has no reading.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    /// The library is not there, or does not find its driver.
    #[error("cannot use NVML by {}: {reason}", library.display())]
    NoLibrary {
        /// What was tried.
        library: PathBuf,
        /// What the loader or the library said.
        reason: String,
    },
    /// The board has no such reading.
    #[error("NVML has no {} of board {index} (NotSupported)", quantity.as_str())]
    NotSupported {
        /// Of the board.
        index: u32,
        /// What it lacks.
        quantity: Quantity,
    },
    /// Any other answer of NVML.
    #[error("NVML: {reason}")]
    Nvml {
        /// What it said.
        reason: String,
    },
    /// NVML is stuck in a call.
    #[error("NVML does not answer")]
    Stuck,
    /// The exporter has no page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The page lacks what is looked for.
    #[error("its page has none of: {}", names.join(", "))]
    NoMetric {
        /// What was looked for.
        names: Vec<String>,
    },
    /// What it said cannot be so.
    #[error("its reading is absurd")]
    Absurd,
    /// Its counter does not count.
    #[error("its energy counter stands still")]
    StandsStill,
}

impl SourceError {
    /// Whether asking again soon is pointless.
    pub(super) const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NoLibrary { .. } | Self::NotSupported { .. } | Self::NoMetric { .. } | Self::StandsStill
        )
    }
}

impl Source {
    /// Everything that can be asked of `configured`, in order of preference.
    ///
    /// # Errors
    /// When the thread that calls NVML cannot be started.
    pub(super) fn all(
        configured: &PowerSource,
        pages: &PageClient,
        nvml: &mut NvmlThreads,
    ) -> io::Result<Vec<Self>> {
        Ok(match configured {
            PowerSource::Nvml { index, library } => {
                let board = nvml.board(library.as_ref(), *index)?;
                Quantity::ALL.map(|quantity| Self::Nvml(board.clone(), quantity)).into()
            }
            PowerSource::Scrape { url, metric } => {
                let scrapes = Scrape::quantities(pages, url, metric.as_ref()).into_iter();
                scrapes.map(|scrape| Self::Scrape(Box::new(scrape))).collect()
            }
        })
    }

    /// Metric label.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Nvml(..) => "nvml",
            Self::Scrape(_) => "scrape",
            #[cfg(test)]
            Self::Scripted(..) => "scripted",
        }
    }

    /// For logs.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Nvml(board, quantity) => format!("NVML board {} ({})", board.index, quantity.as_str()),
            Self::Scrape(scrape) => scrape.describe(),
            #[cfg(test)]
            Self::Scripted(..) => "a script".to_owned(),
        }
    }

    /// Asks it.
    pub(super) async fn read(&self) -> Result<Reading, SourceError> {
        match self {
            Self::Nvml(board, quantity) => board.read(*quantity).await,
            Self::Scrape(scrape) => scrape.read().await,
            #[cfg(test)]
            Self::Scripted(n_read, script) => {
                script(n_read.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
            }
        }
    }
}
