//! What is wrong with a configuration: one [`Fault`] each, and how the file as a whole may fail to load.

use std::fmt;
use std::path::PathBuf;

use super::tree::MAX_FILE_BYTES;

/// One thing wrong with a configuration, with all that is needed to mend it.
///
/// Never holds a secret: the value at fault is left out where it might be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Line in the file, from 1.
    pub line: usize,
    /// Where in the document, such as `nodes[0].endpoints[1].url`; empty for the document itself.
    pub path: String,
    /// What is wrong, in a few words.
    pub problem: String,
    /// The value found, shortened.
    pub got: Option<String>,
    /// What may stand there.
    pub allowed: Option<String>,
}

impl fmt::Display for Fault {
    /// `path: problem (got VALUE; allowed ...)`, without the line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.problem)?;
        match (&self.got, &self.allowed) {
            (Some(got), Some(allowed)) => write!(f, " (got {got}; allowed {allowed})"),
            (Some(got), None) => write!(f, " (got {got})"),
            (None, Some(allowed)) => write!(f, " (allowed {allowed})"),
            (None, None) => Ok(()),
        }
    }
}

/// Why a configuration file could not be used. All are the operator's to mend; none is worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be opened or read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is far larger than a configuration can be.
    #[error("cannot read {}: larger than {MAX_FILE_BYTES} bytes, which no configuration needs", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file was read and is wrong.
    #[error("{}", in_lines(path, faults))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Everything wrong with it, in order of lines; never empty.
        faults: Vec<Fault>,
    },
}

/// `FILE:LINE: path: problem (...)`, a line each, then the count.
fn in_lines(path: &std::path::Path, faults: &[Fault]) -> String {
    use fmt::Write as _;
    let mut text = String::new();
    for fault in faults {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}:{}: {fault}", path.display(), fault.line);
    }
    let noun = if faults.len() == 1 { "fault" } else { "faults" };
    let _ = write!(text, "{}: {} {noun}", path.display(), faults.len());
    text
}
