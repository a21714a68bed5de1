//! The rows of a trace file, whatever its form.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::profiler::quality::import::csv::CsvRows;
use crate::profiler::quality::import::lines::{LINE_BYTES_MAX, Line, TraceFile, TraceLines};
use crate::profiler::quality::import::row::parse_row;
use crate::profiler::quality::store::StoredPrompt;

/// A row's line with its prompt or its fault.
pub type TraceRow = (u64, Result<StoredPrompt, String>);

/// Reads rows one by one, so that a file of any size takes the memory of one row.
pub struct TraceRows {
    form: Form,
    position: Arc<AtomicU64>,
    row: u64,
    is_done: bool,
    is_cut: bool,
}

enum Form {
    JsonLines(TraceLines),
    Csv(CsvRows),
}

impl TraceRows {
    /// Opens `path`, plain or gzip: comma-separated values where its name ends in `.csv` or `.csv.gz`, else JSON lines.
    ///
    /// # Errors
    /// A file that cannot be read, or a header without what is needed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let TraceFile { reader, position } = TraceFile::over(File::open(path)?)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let form = if name.strip_suffix(".gz").unwrap_or(&name).ends_with(".csv") {
            Form::Csv(CsvRows::new(reader)?)
        } else {
            Form::JsonLines(TraceLines::of(reader))
        };
        Ok(Self { form, position, row: 0, is_done: false, is_cut: false })
    }

    /// Bytes of the file read so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Whether reading ended before the file did.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn read_row(&mut self) -> io::Result<Option<TraceRow>> {
        match &mut self.form {
            Form::Csv(rows) => {
                let row = rows.next_row()?;
                self.row = row.as_ref().map_or(self.row, |(line, _)| *line);
                Ok(row)
            }
            Form::JsonLines(lines) => loop {
                let Some(line) = lines.next_line()? else { return Ok(None) };
                self.row += 1;
                let parsed = match line {
                    Line::Bytes(line) if line.trim_ascii().is_empty() => continue,
                    Line::Bytes(line) => parse_row(&line),
                    Line::TooLong => Err(format!("longer than {LINE_BYTES_MAX} bytes")),
                };
                return Ok(Some((self.row, parsed)));
            },
        }
    }
}

impl Iterator for TraceRows {
    type Item = TraceRow;

    /// The next row, blank lines left out. Where the file cannot be read on, the last one is a fault that says so.
    fn next(&mut self) -> Option<TraceRow> {
        if self.is_done {
            return None;
        }
        match self.read_row() {
            Ok(Some(row)) => Some(row),
            Ok(None) => {
                self.is_done = true;
                None
            }
            Err(error) => {
                (self.is_done, self.is_cut) = (true, true);
                Some((self.row + 1, Err(format!("reading ends here: {error}"))))
            }
        }
    }
}
