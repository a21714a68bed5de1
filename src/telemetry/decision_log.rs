//! The decision log: a file of JSON lines, written by a thread of its own.
//!
//! Nothing waits for it. Records go through a bounded queue as closures that make them, so that even putting
//! them into JSON is the thread's work; what does not fit is dropped and counted. Files are bounded in size and
//! number.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use serde::Serialize;
use tracing::{info, warn};

/// Version of the records' form, in each of them.
pub const SCHEMA_VERSION: u32 = 1;

/// Records that may wait to be written.
const QUEUE_MAX: usize = 8_192;

/// Where the log goes and how large it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionLogParams {
    /// The file that is written; older ones stand beside it as `PATH.1`, `PATH.2`, …
    pub path: PathBuf,
    /// A file that has this many bytes is put aside.
    pub file_bytes_max: u64,
    /// Files kept, the one that is written included; at least 1.
    pub files_max: u32,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum DecisionLogError {
    /// The file cannot be opened.
    #[error("cannot write the decision log `{}`: {source}; mend `decision_log.path` or the rights of its folder", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The writer needs a thread.
    #[error("cannot start the thread of the decision log")]
    Thread(#[source] io::Error),
    /// Its metrics are there already.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

type Line = Box<dyn FnOnce() -> serde_json::Result<Vec<u8>> + Send>;

enum Message {
    Line(Line),
    /// Write what is queued, and end.
    Close,
}

/// The way into the log; clones share it. One that is off takes everything and keeps nothing.
#[derive(Debug, Clone, Default)]
pub struct DecisionLog {
    queue: Option<Queue>,
}

#[derive(Debug, Clone)]
struct Queue {
    messages: SyncSender<Message>,
    dropped: IntCounter,
}

/// The writer, to be awaited at the end.
#[derive(Debug)]
pub struct LogWriter {
    messages: SyncSender<Message>,
    thread: JoinHandle<()>,
}

/// A record with what all of them have.
#[derive(Serialize)]
struct Stamped<R> {
    v: u32,
    unix_s: f64,
    #[serde(flatten)]
    record: R,
}

impl DecisionLog {
    /// Opens the file, to append to it, and starts the writer.
    ///
    /// # Errors
    /// See [`DecisionLogError`].
    pub fn start(
        params: DecisionLogParams,
        registry: &Registry,
    ) -> Result<(Self, LogWriter), DecisionLogError> {
        let records = IntCounterVec::new(
            Opts::new(
                "cema_decision_log_records_total",
                "Records of the decision log by what became of them.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(records.clone()))?;
        let open_error = |source| DecisionLogError::Open { path: params.path.clone(), source };
        let file = LogFile::open(&params.path).map_err(open_error)?;
        info!(path = %params.path.display(), "decision log is on");
        let (messages, inbox) = sync_channel(QUEUE_MAX);
        let outcomes = Outcomes {
            written: records.with_label_values(&["written"]),
            failed: records.with_label_values(&["failed"]),
        };
        let dropped = records.with_label_values(&["dropped"]);
        let writer = Writer { params, file: Some(file), outcomes, is_failing: false };
        let thread = std::thread::Builder::new().name("cema-log".to_owned()).spawn(|| writer.run(inbox));
        let thread = thread.map_err(DecisionLogError::Thread)?;
        let log = Self { queue: Some(Queue { messages: messages.clone(), dropped }) };
        Ok((log, LogWriter { messages, thread }))
    }

    /// Whether records are kept.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Queues the record that `make` will make on the writer's thread. Never waits.
    pub fn record<R: Serialize>(&self, make: impl FnOnce() -> R + Send + 'static) {
        let Some(queue) = &self.queue else { return };
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let line = move || serde_json::to_vec(&Stamped { v: SCHEMA_VERSION, unix_s, record: make() });
        if queue.messages.try_send(Message::Line(Box::new(line))).is_err() {
            queue.dropped.inc();
        }
    }
}

impl LogWriter {
    /// Has everything written that was queued. Blocks until that is done.
    pub fn close(self) {
        // A writer that is gone has nothing left to write.
        let _ = self.messages.send(Message::Close);
        if self.thread.join().is_err() {
            warn!("the writer of the decision log panicked");
        }
    }
}

struct Outcomes {
    written: IntCounter,
    failed: IntCounter,
}

struct Writer {
    params: DecisionLogParams,
    /// `None` after it could not be written.
    file: Option<LogFile>,
    outcomes: Outcomes,
    /// Whether the last record could not be written, which is said once.
    is_failing: bool,
}

impl Writer {
    fn run(mut self, inbox: Receiver<Message>) {
        loop {
            let message = match inbox.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // Nothing to do: let readers have what there is.
                    let flushed = self.file.as_mut().map_or(Ok(()), |file| file.out.flush());
                    self.note(flushed);
                    match inbox.recv() {
                        Ok(message) => message,
                        Err(_) => break,
                    }
                }
            };
            match message {
                Message::Line(line) => self.write(line),
                Message::Close => break,
            }
        }
        let flushed = self.file.as_mut().map_or(Ok(()), |file| file.out.flush());
        self.note(flushed);
    }

    fn write(&mut self, line: Line) {
        let written = line().map_err(io::Error::from).and_then(|line| self.append(line));
        let outcome = if written.is_ok() { &self.outcomes.written } else { &self.outcomes.failed };
        outcome.inc();
        self.note(written);
    }

    fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        let mut file = match self.file.take() {
            Some(file) => file,
            None => LogFile::open(&self.params.path)?,
        };
        if file.bytes > 0 && file.bytes + line.len() as u64 > self.params.file_bytes_max {
            file.out.flush()?;
            put_aside(&self.params.path, self.params.files_max)?;
            file = LogFile::open(&self.params.path)?;
        }
        file.out.write_all(&line)?;
        file.bytes += line.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    /// Says once that the log fails, and once that it is well again.
    fn note(&mut self, outcome: io::Result<()>) {
        match outcome {
            Err(error) => {
                // A new one is opened with the next record.
                self.file = None;
                if !std::mem::replace(&mut self.is_failing, true) {
                    let path = self.params.path.display();
                    warn!(%path, %error, "the decision log cannot be written; requests go on without");
                }
            }
            Ok(()) if self.file.is_some() => {
                if std::mem::take(&mut self.is_failing) {
                    info!("the decision log is written again");
                }
            }
            Ok(()) => {}
        }
    }
}

struct LogFile {
    out: BufWriter<File>,
    bytes: u64,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { out: BufWriter::new(file), bytes })
    }
}

/// Renames the file to `PATH.1`, what had that name to `PATH.2` and so on; the oldest one goes.
fn put_aside(path: &Path, files_max: u32) -> io::Result<()> {
    let numbered = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        if n > 0 {
            name.push(format!(".{n}"));
        }
        PathBuf::from(name)
    };
    for n in (0..files_max.saturating_sub(1)).rev() {
        match std::fs::rename(numbered(n), numbered(n + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if files_max <= 1 { std::fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(folder: &Path) -> DecisionLogParams {
        DecisionLogParams { path: folder.join("decisions.jsonl"), file_bytes_max: 1 << 20, files_max: 3 }
    }

    fn count(registry: &Registry, outcome: &str) -> f64 {
        let families = registry.gather();
        let family = families.iter().find(|f| f.name() == "cema_decision_log_records_total").unwrap();
        let is_it = |metric: &&prometheus::proto::Metric| metric.get_label()[0].value() == outcome;
        family.get_metric().iter().find(is_it).map_or(0.0, |metric| metric.get_counter().get_value())
    }

    #[derive(Serialize)]
    struct Numbered {
        n: u32,
    }

    fn read(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn what_was_queued_is_written_in_order_and_appended() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let (log, writer) = DecisionLog::start(params(folder.path()), &Registry::new()).unwrap();
            (0..5).for_each(|n| log.record(move || Numbered { n }));
            writer.close();
        }
        let records = read(&params(folder.path()).path);
        let numbers: Vec<_> = records.iter().map(|record| record["n"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        assert!(records.iter().all(|record| record["v"] == 1 && record["unix_s"].as_f64().unwrap() > 1.7e9));
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let folder = tempfile::tempdir().unwrap();
        let params = DecisionLogParams { file_bytes_max: 200, ..params(folder.path()) };
        let registry = Registry::new();
        let (log, writer) = DecisionLog::start(params.clone(), &registry).unwrap();
        (0..100).for_each(|n| log.record(move || Numbered { n }));
        writer.close();
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(files.len(), 3);
        assert!(files.iter().all(|file| file.metadata().unwrap().len() <= 200));
        assert_eq!(read(&params.path).last().unwrap()["n"], 99);
        assert!((count(&registry, "written") - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_writer_that_lags_costs_records_and_no_time() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::new();
        let (log, writer) = DecisionLog::start(params(folder.path()), &registry).unwrap();
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        log.record(move || {
            // The writer is held here while the queue fills.
            blocked.recv().unwrap();
            Numbered { n: 0 }
        });
        for n in 0..QUEUE_MAX as u32 + 10 {
            log.record(move || Numbered { n });
        }
        assert!(count(&registry, "dropped") >= 9.0);
        go_on.send(()).unwrap();
        writer.close();
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/decisions.jsonl");
        let refused =
            DecisionLog::start(DecisionLogParams { path, ..params(folder.path()) }, &Registry::new());
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("missing/decisions.jsonl") && message.contains("decision_log.path"),
            "{message}"
        );
    }

    #[test]
    fn a_log_that_is_off_takes_everything() {
        let log = DecisionLog::default();
        assert!(!log.is_on());
        log.record(|| Numbered { n: 1 });
    }
}
