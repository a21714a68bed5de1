//! Reading a decision log back: its files in the order they were written, line by line.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::record::PlanRecord;

/// The newest version of the records' form.
pub const SCHEMA_VERSION: u32 = 2;
/// Longest line that is read.
const LINE_BYTES_MAX: usize = 64 << 20;

/// A line of the log.
#[derive(Debug)]
pub enum Entry {
    /// A plan.
    Plan(Box<PlanRecord>),
    /// A request that is over.
    Request(Box<RequestRecord>),
    /// Of another kind.
    Other,
    /// A plan of version 1, which does not say enough to make it again.
    OldPlan,
    /// Cut off, as the last line of a router that was killed may be, or not of this form.
    Unreadable,
}

/// A request that is over, as far as it is read back.
#[derive(Debug, Clone, Deserialize)]
pub struct RequestRecord {
    /// Its `x-request-id`.
    pub id: String,
    /// The plan that placed it last.
    pub plan: Option<u64>,
    /// Where it was served.
    pub destination: Option<String>,
    /// How it ended.
    pub outcome: String,
    /// Endpoints it was sent to.
    pub attempts: u32,
    /// What it took.
    pub actual: ActualRecord,
}

/// What a request took.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct ActualRecord {
    /// From dispatch to the last byte.
    pub seconds: Option<f64>,
    /// From arrival to the last byte.
    pub since_arrival_s: f64,
    /// From arrival to the first content of a stream.
    pub first_content_s: Option<f64>,
    /// Counted by the endpoint.
    pub completion_tokens: Option<f64>,
    /// By the model, at the tokens counted.
    pub modelled_joules: Option<f64>,
    /// At configured prices.
    pub usd: Option<f64>,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be read.
    #[error("cannot read the decision log {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It was written by a newer version.
    #[error("{} has records of schema {version}; this version reads up to {SCHEMA_VERSION}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u32,
    },
}

#[derive(Deserialize)]
struct Head {
    v: u32,
    kind: Box<RawValue>,
}

/// The files of the log at `path` that are there, oldest first: `path.2`, `path.1`, `path`.
#[must_use]
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    let numbered = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let mut files: Vec<PathBuf> = (1..).map(numbered).take_while(|file| file.is_file()).collect();
    files.reverse();
    files.push(path.to_owned());
    files
}

/// Reads one file; `on` sees every line.
///
/// # Errors
/// See [`LogError`], and what `on` says.
pub fn read<E: From<LogError>>(path: &Path, mut on: impl FnMut(Entry) -> Result<(), E>) -> Result<(), E> {
    let read_error = |source| LogError::Read { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(read_error)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let n_read = reader.read_until(b'\n', &mut line).map_err(read_error)?;
        if n_read == 0 {
            return Ok(());
        }
        on(entry(path, &line)?)?;
    }
}

fn entry(path: &Path, line: &[u8]) -> Result<Entry, LogError> {
    if line.len() > LINE_BYTES_MAX {
        return Ok(Entry::Unreadable);
    }
    let Ok(head) = serde_json::from_slice::<Head>(line) else { return Ok(Entry::Unreadable) };
    if head.v > SCHEMA_VERSION {
        return Err(LogError::Newer { path: path.to_owned(), version: head.v });
    }
    Ok(match (head.kind.get(), head.v) {
        ("\"plan\"", 1) => Entry::OldPlan,
        ("\"plan\"", _) => {
            serde_json::from_slice(line).map_or(Entry::Unreadable, |plan| Entry::Plan(Box::new(plan)))
        }
        ("\"request\"", _) => serde_json::from_slice(line)
            .map_or(Entry::Unreadable, |request| Entry::Request(Box::new(request))),
        _ => Entry::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Result<Vec<Entry>, LogError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, text).unwrap();
        let mut found = Vec::new();
        read(&path, |entry| {
            found.push(entry);
            Ok::<_, LogError>(())
        })?;
        Ok(found)
    }

    #[test]
    fn what_is_no_record_is_passed_over() {
        let text = "{\"v\":1,\"kind\":\"plan\"}\n{\"v\":2,\"kind\":\"energy\",\"joules\":1}\n{\"v\":2,\"ki";
        let found = entries(text).unwrap();
        assert!(matches!(found[..], [Entry::OldPlan, Entry::Other, Entry::Unreadable]), "{found:?}");
    }

    #[test]
    fn a_newer_log_is_refused() {
        let error = entries("{\"v\":3,\"kind\":\"plan\"}\n").unwrap_err().to_string();
        assert!(error.contains("schema 3"), "{error}");
    }

    #[test]
    fn files_come_oldest_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["log", "log.1", "log.2", "log.4"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let files = files_of(&folder.path().join("log"));
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["log.2", "log.1", "log"]);
    }
}
