//! Progress on standard error: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between lines where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(5);

/// Where and whether progress is shown.
pub(super) struct Progress {
    is_shown: bool,
    is_terminal: bool,
}

impl Progress {
    /// On standard error.
    pub(super) fn new() -> Self {
        Self { is_shown: true, is_terminal: std::io::stderr().is_terminal() }
    }

    /// Nowhere.
    #[cfg(test)]
    pub(super) fn hidden() -> Self {
        Self { is_shown: false, is_terminal: false }
    }

    /// Starts a stage of `n` steps; it ends when dropped.
    pub(super) fn stage(&self, what: &'static str, n: usize) -> Stage {
        let bar = if self.is_shown && self.is_terminal {
            ProgressBar::new(n as u64)
        } else {
            ProgressBar::hidden()
        };
        // The template is a constant; a wrong one would only leave the default style.
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}  {eta} left") {
            bar.set_style(style);
        }
        bar.set_message(what);
        let lines = (self.is_shown && !self.is_terminal).then(|| Mutex::new((0, Instant::now())));
        Stage { bar, what, n, lines }
    }

    /// A line of its own.
    pub(super) fn say(&self, line: &str) {
        if self.is_shown {
            // With standard error gone there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

/// One stage under way; threads may share it.
pub(super) struct Stage {
    bar: ProgressBar,
    what: &'static str,
    n: usize,
    /// Steps done and the time of the last line, where lines are printed.
    lines: Option<Mutex<(usize, Instant)>>,
}

impl Stage {
    /// One step is done.
    pub(super) fn advance(&self) {
        self.bar.inc(1);
        let Some(lines) = &self.lines else { return };
        let mut state = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.0 += 1;
        if state.1.elapsed() >= LINE_PERIOD {
            state.1 = Instant::now();
            let _ = writeln!(std::io::stderr(), "{}: {} of {}", self.what, state.0, self.n);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
