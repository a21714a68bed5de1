//! Progress on standard error: bars on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Time between lines where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(5);

/// Where and whether progress is shown.
pub(super) struct Progress {
    is_shown: bool,
    is_terminal: bool,
    bars: MultiProgress,
}

impl Progress {
    /// On standard error.
    pub(super) fn new() -> Self {
        Self { is_shown: true, is_terminal: std::io::stderr().is_terminal(), bars: MultiProgress::new() }
    }

    /// Nowhere.
    #[cfg(test)]
    pub(super) fn hidden() -> Self {
        Self { is_shown: false, is_terminal: false, bars: MultiProgress::new() }
    }

    /// Starts a stage of `n` steps; it ends when dropped. Several may be under way.
    pub(super) fn stage(&self, what: impl Into<String>, n: usize) -> Stage {
        let what = what.into();
        let bar = if self.is_shown && self.is_terminal {
            self.bars.add(ProgressBar::new(n as u64))
        } else {
            ProgressBar::hidden()
        };
        // The template is a constant; a wrong one would only leave the default style.
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}  {eta} left") {
            bar.set_style(style);
        }
        bar.set_message(what.clone());
        let lines = (self.is_shown && !self.is_terminal)
            .then(|| Mutex::new(Lines { done: 0, n, last: Instant::now() }));
        Stage { bar, what, lines }
    }

    /// A line of its own.
    pub(super) fn say(&self, line: &str) {
        if self.is_shown {
            // With standard error gone there is nobody to tell.
            self.bars.suspend(|| drop(writeln!(std::io::stderr(), "{line}")));
        }
    }
}

/// One stage under way; threads may share it.
pub(super) struct Stage {
    bar: ProgressBar,
    what: String,
    /// Where lines are printed.
    lines: Option<Mutex<Lines>>,
}

struct Lines {
    done: usize,
    n: usize,
    last: Instant,
}

impl Stage {
    /// One step is done.
    pub(super) fn advance(&self) {
        self.bar.inc(1);
        let Some(lines) = &self.lines else { return };
        let mut lines = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.done += 1;
        if lines.last.elapsed() >= LINE_PERIOD {
            lines.last = Instant::now();
            let _ = writeln!(std::io::stderr(), "{}: {} of {}", self.what, lines.done, lines.n);
        }
    }

    /// `n` steps will not be taken.
    pub(super) fn skip(&self, n: usize) {
        self.bar.set_length(self.bar.length().unwrap_or_default().saturating_sub(n as u64));
        if let Some(lines) = &self.lines {
            let mut lines = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            lines.n = lines.n.saturating_sub(n);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
