//! Logs of JSON lines, decisions and access, each a file written by a thread of its own.
//!
//! Nothing waits for them. Records go through a bounded queue as closures that make them, so that even putting
//! them into JSON is the thread's work; what does not fit is dropped and counted. Files are bounded in size, age and
//! number.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use serde::Serialize;
use tracing::{info, warn};

/// Records that may wait to be written.
const QUEUE_MAX: usize = 8_192;
/// Records that may be in the buffer while more come; without work the buffer is written out at once.
const UNFLUSHED_MAX: u64 = 256;

/// Which log, with the version of its records' form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogName {
    /// Its configuration key, `decision_log` or `access_log`.
    pub key: &'static str,
    /// What messages call it.
    pub title: &'static str,
    /// `v` of each record.
    pub version: u32,
}

impl LogName {
    /// Plans and finished requests.
    pub const DECISIONS: Self = Self { key: "decision_log", title: "decision log", version: 2 };
    /// Requests of clients.
    pub const ACCESS: Self = Self { key: "access_log", title: "access log", version: 1 };
}

/// Where a log goes and how large it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonLogParams {
    /// The file that is written; older ones stand beside it as `PATH.1`, `PATH.2`, …
    pub path: PathBuf,
    /// A file that has this many bytes is put aside.
    pub file_bytes_max: u64,
    /// So is one that was begun so long ago.
    pub age_max: Duration,
    /// Files kept, the one that is written included; at least 1.
    pub files_max: u32,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum JsonLogError {
    /// The file cannot be opened.
    #[error("cannot write the {} `{}`; mend `{}.path` or the rights of its folder", name.title, path.display(), name.key)]
    Open {
        /// The log.
        name: LogName,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The writer needs a thread.
    #[error("cannot start the thread of a log")]
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
pub struct JsonLog {
    queue: Option<Queue>,
}

#[derive(Debug, Clone)]
struct Queue {
    messages: SyncSender<Message>,
    dropped: IntCounter,
    version: u32,
    /// Tells runs of the router apart, whose plans are numbered anew.
    run: Arc<str>,
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
    run: Arc<str>,
    #[serde(flatten)]
    record: R,
}

impl JsonLog {
    /// Opens the file, to append to it, and starts the writer.
    ///
    /// # Errors
    /// See [`JsonLogError`].
    pub fn start(
        name: LogName,
        params: JsonLogParams,
        registry: &Registry,
    ) -> Result<(Self, LogWriter), JsonLogError> {
        let records = IntCounterVec::new(
            Opts::new(
                format!("cema_{}_records_total", name.key),
                format!("Records of the {} by what became of them.", name.title),
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(records.clone()))?;
        let open_error = |source| JsonLogError::Open { name, path: params.path.clone(), source };
        let file = LogFile::open(&params.path).map_err(open_error)?;
        info!(path = %params.path.display(), "{} is on", name.title);
        let (messages, inbox) = sync_channel(QUEUE_MAX);
        let outcomes = Outcomes {
            written: records.with_label_values(&["written"]),
            failed: records.with_label_values(&["failed"]),
        };
        let dropped = records.with_label_values(&["dropped"]);
        let (title, file) = (name.title, Some(file));
        let writer = Writer { title, params, file, unflushed: 0, outcomes, is_failing: false };
        let thread = std::thread::Builder::new().name("cema-log".to_owned()).spawn(|| writer.run(inbox));
        let thread = thread.map_err(JsonLogError::Thread)?;
        let run = format!("{:08x}", rand::random::<u32>()).into();
        let version = name.version;
        let log = Self { queue: Some(Queue { messages: messages.clone(), dropped, version, run }) };
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
        let (v, run) = (queue.version, Arc::clone(&queue.run));
        let line = move || serde_json::to_vec(&Stamped { v, unix_s, run, record: make() });
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
            warn!("the writer of a log panicked");
        }
    }
}

struct Outcomes {
    written: IntCounter,
    failed: IntCounter,
}

struct Writer {
    title: &'static str,
    params: JsonLogParams,
    /// `None` after it could not be written.
    file: Option<LogFile>,
    /// Records that only its buffer has.
    unflushed: u64,
    outcomes: Outcomes,
    /// Whether the last records could not be written, which is said once.
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
                    self.flush();
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
        self.flush();
    }

    fn write(&mut self, line: Line) {
        self.unflushed += 1;
        match line().map_err(io::Error::from).and_then(|line| self.append(line)) {
            Ok(()) if self.unflushed < UNFLUSHED_MAX => {}
            Ok(()) => self.flush(),
            Err(error) => self.lost(&error),
        }
    }

    fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        match file.out.flush() {
            Ok(()) if self.unflushed > 0 => {
                self.outcomes.written.inc_by(std::mem::take(&mut self.unflushed));
                if std::mem::take(&mut self.is_failing) {
                    info!("the {} is written again", self.title);
                }
            }
            Ok(()) => {}
            Err(error) => self.lost(&error),
        }
    }

    /// What the buffer had is counted as failed, though the disk may have taken a part of it.
    fn lost(&mut self, error: &io::Error) {
        self.outcomes.failed.inc_by(std::mem::take(&mut self.unflushed));
        // A new one is opened with the next record.
        self.file = None;
        if !std::mem::replace(&mut self.is_failing, true) {
            let path = self.params.path.display();
            warn!(%path, %error, "the {} cannot be written; requests go on without", self.title);
        }
    }

    fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        let mut file = match self.file.take() {
            Some(file) => file,
            None => LogFile::open(&self.params.path)?,
        };
        let is_full = file.bytes + line.len() as u64 > self.params.file_bytes_max;
        if file.bytes > 0 && (is_full || file.age() >= self.params.age_max) {
            file.out.flush()?;
            put_aside(&self.params.path, self.params.files_max)?;
            file = LogFile::open(&self.params.path)?;
        }
        file.out.write_all(&line)?;
        file.bytes += line.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}

struct LogFile {
    out: BufWriter<File>,
    bytes: u64,
    begun: SystemTime,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = metadata.len();
        // File systems that do not tell when a file was begun have it begin anew with each run.
        let begun = metadata.created().unwrap_or_else(|_| SystemTime::now());
        if bytes > 0 && !ends_a_line(&mut file)? {
            // The disk was full, or the router was killed: what was being written stays a line of its own.
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok(Self { out: BufWriter::new(file), bytes, begun })
    }

    /// Zero where the clock was set back.
    fn age(&self) -> Duration {
        self.begun.elapsed().unwrap_or_default()
    }
}

/// Whether the last byte of a file ends a line.
fn ends_a_line(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == [b'\n'])
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

    fn params(folder: &Path) -> JsonLogParams {
        JsonLogParams {
            path: folder.join("decisions.jsonl"),
            file_bytes_max: 1 << 20,
            age_max: Duration::from_secs(3_600),
            files_max: 3,
        }
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
            let (log, writer) =
                JsonLog::start(LogName::DECISIONS, params(folder.path()), &Registry::new()).unwrap();
            (0..5).for_each(|n| log.record(move || Numbered { n }));
            writer.close();
        }
        let records = read(&params(folder.path()).path);
        let numbers: Vec<_> = records.iter().map(|record| record["n"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        assert!(records.iter().all(|record| record["v"] == 2 && record["unix_s"].as_f64().unwrap() > 1.7e9));
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let folder = tempfile::tempdir().unwrap();
        let params = JsonLogParams { file_bytes_max: 200, ..params(folder.path()) };
        let registry = Registry::new();
        let (log, writer) = JsonLog::start(LogName::DECISIONS, params.clone(), &registry).unwrap();
        (0..100).for_each(|n| log.record(move || Numbered { n }));
        writer.close();
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(files.len(), 3);
        assert!(files.iter().all(|file| file.metadata().unwrap().len() <= 200));
        assert_eq!(read(&params.path).last().unwrap()["n"], 99);
        assert!((count(&registry, "written") - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_file_that_is_old_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let params = JsonLogParams { age_max: Duration::ZERO, ..params(folder.path()) };
        let (log, writer) = JsonLog::start(LogName::DECISIONS, params.clone(), &Registry::new()).unwrap();
        (0..2).for_each(|n| log.record(move || Numbered { n }));
        writer.close();
        assert_eq!(read(&params.path)[0]["n"], 1);
        assert_eq!(read(&folder.path().join("decisions.jsonl.1"))[0]["n"], 0);
    }

    #[test]
    fn a_line_that_was_cut_off_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let params = params(folder.path());
        std::fs::write(&params.path, "{\"n\":").unwrap();
        let (log, writer) = JsonLog::start(LogName::DECISIONS, params.clone(), &Registry::new()).unwrap();
        log.record(|| Numbered { n: 7 });
        writer.close();
        let text = std::fs::read_to_string(&params.path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, "{\"n\":"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(lines[1]).unwrap()["n"], 7);
    }

    #[test]
    fn a_writer_that_lags_costs_records_and_no_time() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::new();
        let (log, writer) = JsonLog::start(LogName::DECISIONS, params(folder.path()), &registry).unwrap();
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
    fn what_a_full_disk_does_not_take_is_counted_and_a_disk_with_room_again_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let params = params(folder.path());
        // A device without room that takes what fits into a buffer.
        std::os::unix::fs::symlink("/dev/full", &params.path).unwrap();
        let registry = Registry::new();
        let (log, writer) = JsonLog::start(LogName::DECISIONS, params.clone(), &registry).unwrap();
        (0..1_000).for_each(|n| log.record(move || Numbered { n }));
        let path = params.path.clone();
        log.record(move || {
            std::fs::remove_file(path).unwrap();
            Numbered { n: 1_000 }
        });
        // The file that is open is still the full one: all until it is written out are lost.
        (1_001..2_000).for_each(|n| log.record(move || Numbered { n }));
        writer.close();
        let (failed, written) = (count(&registry, "failed"), count(&registry, "written"));
        assert!(failed >= 1_000.0 && written > 0.0, "{failed} {written}");
        assert!((failed + written - 2_000.0).abs() < 1e-9, "{failed} {written}");
        let records = read(&params.path);
        assert_eq!(records.len(), written as usize);
        assert_eq!(records.last().unwrap()["n"], 1_999);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/decisions.jsonl");
        let refused = JsonLog::start(
            LogName::DECISIONS,
            JsonLogParams { path, ..params(folder.path()) },
            &Registry::new(),
        );
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("missing/decisions.jsonl") && message.contains("decision_log.path"),
            "{message}"
        );
    }

    #[test]
    fn a_log_that_is_off_takes_everything() {
        let log = JsonLog::default();
        assert!(!log.is_on());
        log.record(|| Numbered { n: 1 });
    }
}
