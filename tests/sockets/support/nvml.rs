//! A library that stands in for NVML, built by the C compiler of this machine.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

/// One board whose figures are files.
#[derive(Debug)]
pub(crate) struct Board {
    folder: tempfile::TempDir,
}

impl Board {
    /// Builds the library; the board supports nothing yet.
    pub(crate) fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvidia-ml.so.1");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/nvml_stub.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", source, "-o"])
            .arg(&library)
            .arg(format!("-DFIGURES=\"{}\"", folder.path().display()))
            .output();
        let built = built.unwrap_or_else(|error| panic!("a C compiler called cc is needed: {error}"));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { folder }
    }

    /// Where the library is.
    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// Sets a figure: `energy_mj` or `power_mw`.
    pub(crate) fn set(&self, figure: &str, value: u64) {
        // Never seen half written.
        let next = self.folder.path().join(format!("{figure}.next"));
        std::fs::write(&next, value.to_string()).unwrap();
        std::fs::rename(next, self.folder.path().join(figure)).unwrap();
    }

    /// The board does not support the figure any more.
    pub(crate) fn unset(&self, figure: &str) {
        std::fs::remove_file(self.folder.path().join(figure)).unwrap();
    }

    /// Calls do not come back until the guard is dropped.
    pub(crate) fn stuck(&self) -> Stuck {
        let path = self.folder.path().join("stuck");
        std::fs::write(&path, "").unwrap();
        Stuck(path)
    }
}

/// Keeps calls from coming back.
#[derive(Debug)]
pub(crate) struct Stuck(PathBuf);

impl Drop for Stuck {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Keeps the energy counter of a board going.
#[derive(Debug)]
pub(crate) struct Drawing {
    milliwatts: Arc<AtomicU64>,
    drawn_mj: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drawing {
    /// The board draws so much from now on.
    pub(crate) fn start(board: Arc<Board>, milliwatts: u64) -> Self {
        const STEP: Duration = Duration::from_millis(10);
        let milliwatts = Arc::new(AtomicU64::new(milliwatts));
        // As if it had run for a while.
        let drawn_mj = Arc::new(AtomicU64::new(7_000_000));
        board.set("energy_mj", drawn_mj.load(Ordering::Relaxed));
        let (rate, drawn) = (Arc::clone(&milliwatts), Arc::clone(&drawn_mj));
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(STEP).await;
                let step = rate.load(Ordering::Relaxed) * STEP.as_millis() as u64 / 1_000;
                board.set("energy_mj", drawn.fetch_add(step, Ordering::Relaxed) + step);
            }
        });
        Self { milliwatts, drawn_mj, task }
    }

    /// It draws so much from now on; what it has drawn up to now, in joules.
    pub(crate) fn set(&self, milliwatts: u64) -> f64 {
        self.milliwatts.store(milliwatts, Ordering::Relaxed);
        self.drawn_mj.load(Ordering::Relaxed) as f64 / 1e3
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        self.task.abort();
    }
}
