//! Boards of this host, by NVML.
//!
//! The library is loaded at run time. Its calls can stall for seconds, so each library has a thread of its own:
//! no async thread ever waits for one, and a thread stuck in the driver does not keep the process from ending.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::series::Reading;
use super::source::{Quantity, SourceError};
use crate::units::{Joules, Watts};

/// Where the library is where nothing else is said.
const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";
/// A call has this long until its board counts as not answering.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// Calls that may wait for the thread of a library; further ones find it stuck.
const CALLS_MAX: usize = 64;

/// NVML, loaded when first needed. Its methods may block.
#[derive(Debug)]
pub(super) struct Library {
    path: PathBuf,
    /// Boxed: a table of some 400 functions.
    nvml: Option<Box<Nvml>>,
}

impl Library {
    /// The library at `path`, or wherever the system has it.
    pub(super) fn new(path: Option<&PathBuf>) -> Self {
        Self { path: path.cloned().unwrap_or_else(|| DEFAULT_LIBRARY.into()), nvml: None }
    }

    /// Boards of this host.
    pub(super) fn n_boards(&mut self) -> Result<u32, SourceError> {
        let counted = self.loaded()?.device_count();
        counted.map_err(|error| self.failed(&error))
    }

    /// Asks the board at `index`.
    pub(super) fn read(&mut self, index: u32, quantity: Quantity) -> Result<Reading, SourceError> {
        let nvml = self.loaded()?;
        let read = nvml.device_by_index(index).and_then(|board| match quantity {
            // NVML counts in mJ and mW.
            Quantity::Energy => {
                let counted = board.total_energy_consumption();
                counted.map(|mj| Reading::counters([Joules(mj as f64 / 1e3)]))
            }
            Quantity::Power => board.power_usage().map(|mw| Reading::powers([Watts(f64::from(mw) / 1e3)])),
        });
        match read {
            Ok(reading) => reading.ok_or(SourceError::Absurd),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {
                Err(SourceError::NotSupported { index, quantity })
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn loaded(&mut self) -> Result<&Nvml, SourceError> {
        let nvml = match self.nvml.take() {
            Some(nvml) => nvml,
            None => {
                let loaded = Nvml::builder().lib_path(self.path.as_os_str()).init();
                Box::new(loaded.map_err(|error| SourceError::NoLibrary {
                    library: self.path.clone(),
                    reason: error.to_string(),
                })?)
            }
        };
        Ok(self.nvml.insert(nvml))
    }

    /// NVML is loaded anew with the next call: a driver that was reloaded, or a board that fell off the bus, needs it.
    fn failed(&mut self, error: &NvmlError) -> SourceError {
        self.nvml = None;
        SourceError::Nvml { reason: error.to_string() }
    }
}

/// The threads that call NVML, one for each library.
#[derive(Debug, Default)]
pub(super) struct NvmlThreads {
    by_library: BTreeMap<Option<PathBuf>, SyncSender<Call>>,
}

impl NvmlThreads {
    /// A board, by the thread of its library.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn board(&mut self, path: Option<&PathBuf>, index: u32) -> io::Result<Board> {
        let key = path.cloned();
        let calls = match self.by_library.get(&key) {
            Some(calls) => calls.clone(),
            None => {
                let (calls, queue) = sync_channel(CALLS_MAX);
                let library = Library::new(path);
                let thread = std::thread::Builder::new().name("cema-nvml".to_owned());
                thread.spawn(move || answer_calls(library, &queue))?;
                self.by_library.insert(key, calls.clone());
                calls
            }
        };
        Ok(Board { calls, index })
    }
}

/// A board of this host.
#[derive(Debug, Clone)]
pub(super) struct Board {
    calls: SyncSender<Call>,
    pub(super) index: u32,
}

#[derive(Debug)]
struct Call {
    index: u32,
    quantity: Quantity,
    answer: oneshot::Sender<Result<Reading, SourceError>>,
}

impl Board {
    /// Asks the board.
    pub(super) async fn read(&self, quantity: Quantity) -> Result<Reading, SourceError> {
        let (answer, answered) = oneshot::channel();
        let call = Call { index: self.index, quantity, answer };
        self.calls.try_send(call).map_err(|_| SourceError::Stuck)?;
        match timeout(CALL_LIMIT, answered).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) | Err(_) => Err(SourceError::Stuck),
        }
    }
}

/// Answers until nobody can ask any more.
fn answer_calls(mut library: Library, calls: &Receiver<Call>) {
    for Call { index, quantity, answer } in calls {
        // Whoever asked may have given up while a call before was stuck.
        if !answer.is_closed() {
            let _ = answer.send(library.read(index, quantity));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_library_that_is_not_there_is_named() {
        let mut threads = NvmlThreads::default();
        let path = PathBuf::from("/nonexistent/libnvidia-ml.so");
        let board = threads.board(Some(&path), 0).unwrap();
        for quantity in Quantity::ALL {
            let error = board.read(quantity).await.unwrap_err();
            assert!(error.to_string().contains("/nonexistent/libnvidia-ml.so"), "{error}");
            assert!(error.is_final());
        }
        assert_eq!(threads.by_library.len(), 1);
        threads.board(Some(&path), 1).unwrap();
        assert_eq!(threads.by_library.len(), 1, "boards share the thread of their library");
    }
}
