//! Rows as comma-separated values.
//!
//! ```csv
//! id,prompt,benchmark,score:large,completion_tokens:large,score:small
//! gsm8k:472,"How many apples, …",gsm8k,1.0,154,0
//! ```
//!
//! `id`, `prompt` and one `score:MODEL` column are required; `benchmark`, `task`, `source`, `license`,
//! `completion_tokens:MODEL` and `cost_usd:MODEL` are kept, other columns are ignored. An empty field is an absent one.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::{ByteRecord, ReaderBuilder};

use crate::profiler::quality::import::LINE_BYTES_MAX;
use crate::profiler::quality::import::row::{RawRow, check_row};
use crate::profiler::quality::store::StoredPrompt;

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    Id,
    Prompt,
    Benchmark,
    Task,
    Source,
    License,
    Score(String),
    CompletionTokens(String),
    CostUsd(String),
    Other,
}

impl Column {
    fn named(name: &str) -> Self {
        let of_model = |(figure, model): (&str, &str)| match figure {
            "score" => Self::Score(model.to_owned()),
            "completion_tokens" => Self::CompletionTokens(model.to_owned()),
            "cost_usd" => Self::CostUsd(model.to_owned()),
            _ => Self::Other,
        };
        match name.trim() {
            "id" => Self::Id,
            "prompt" => Self::Prompt,
            "benchmark" => Self::Benchmark,
            "task" => Self::Task,
            "source" => Self::Source,
            "license" => Self::License,
            name => name.split_once(':').map_or(Self::Other, of_model),
        }
    }
}

/// The rows of a file with a header.
pub(super) struct CsvRows {
    reader: csv::Reader<Bounded>,
    columns: Vec<Column>,
    record: ByteRecord,
}

impl CsvRows {
    /// Reads the header.
    ///
    /// # Errors
    /// A header without a required column, or with one twice.
    pub(super) fn new(file: Box<dyn BufRead>) -> io::Result<Self> {
        let fault = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let bounded = Bounded { inner: file, of_record: Arc::default() };
        let mut reader = ReaderBuilder::new().flexible(true).from_reader(bounded);
        let header = reader.byte_headers()?.clone();
        let columns: Vec<Column> =
            header.iter().map(|name| Column::named(&String::from_utf8_lossy(name))).collect();
        let has = |column: &Column| columns.contains(column);
        if !has(&Column::Id) || !has(&Column::Prompt) {
            return Err(fault("its first line must name the columns id and prompt".to_owned()));
        }
        if !columns.iter().any(|column| matches!(column, Column::Score(_))) {
            return Err(fault("its first line names no column score:MODEL".to_owned()));
        }
        let twice =
            (1..columns.len()).find(|i| columns[*i] != Column::Other && columns[..*i].contains(&columns[*i]));
        if let Some(twice) = twice {
            let name = String::from_utf8_lossy(&header[twice]).into_owned();
            return Err(fault(format!("its first line names column `{name}` twice")));
        }
        Ok(Self { reader, columns, record: ByteRecord::new() })
    }

    /// The next row with the line it begins in; `None` at the end.
    ///
    /// # Errors
    /// What cannot be read: nothing follows.
    pub(super) fn next_row(&mut self) -> io::Result<Option<(u64, Result<StoredPrompt, String>)>> {
        self.reader.get_ref().of_record.store(0, Ordering::Relaxed);
        if !self.reader.read_byte_record(&mut self.record)? {
            return Ok(None);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        Ok(Some((line, self.row().and_then(check_row))))
    }

    fn row(&self) -> Result<RawRow, String> {
        let n = self.record.len();
        if n != self.columns.len() {
            return Err(format!("it has {n} fields where the first line has {}", self.columns.len()));
        }
        let mut row = RawRow::default();
        for (column, field) in self.columns.iter().zip(&self.record) {
            let text = std::str::from_utf8(field)
                .map_err(|e| format!("a field is not UTF-8 at byte {}", e.valid_up_to()))?;
            let some = || (!text.is_empty()).then(|| text.to_owned());
            match column {
                Column::Id => text.clone_into(&mut row.id),
                Column::Prompt => text.clone_into(&mut row.prompt),
                Column::Benchmark => row.benchmark = some(),
                Column::Task => row.task = some(),
                Column::Source => row.source = some(),
                Column::License => row.license = some(),
                Column::Score(model) => row.models.entry(model.clone()).or_default().score = number(text)?,
                Column::CompletionTokens(model) => {
                    row.models.entry(model.clone()).or_default().completion_tokens = number(text)?;
                }
                Column::CostUsd(model) => {
                    row.models.entry(model.clone()).or_default().cost_usd = number(text)?;
                }
                Column::Other => {}
            }
        }
        Ok(row)
    }
}

/// NaN is let through: the range checks of the row refuse it with the model's name.
fn number(text: &str) -> Result<Option<f64>, String> {
    match text.trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| format!("`{text:.40}` is not a number")),
    }
}

/// Ends a file in which one record (a quote that is never closed, say) does not end.
struct Bounded {
    inner: Box<dyn BufRead>,
    /// Bytes read since the record began, but for what was buffered then.
    of_record: Arc<AtomicUsize>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        if self.of_record.fetch_add(n, Ordering::Relaxed) > LINE_BYTES_MAX {
            let reason = format!("a row is longer than {LINE_BYTES_MAX} bytes; is a quote left open?");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> io::Result<CsvRows> {
        CsvRows::new(Box::new(io::Cursor::new(text.as_bytes().to_vec())))
    }

    fn rows(text: &str) -> Vec<(u64, Result<StoredPrompt, String>)> {
        let mut rows = open(text).unwrap();
        std::iter::from_fn(|| rows.next_row().unwrap()).collect()
    }

    #[test]
    fn quoted_fields_and_absent_figures_are_read() {
        let text = "prompt,id,score:a,cost_usd:a,score:b/c,note,completion_tokens:b/c\n\
                    \"say \"\"hi\"\",\nthen go\",q1,1,,0.5,whatever,12\n\
                    plain,q2,,,0,,\n";
        let rows = rows(text);
        let first = rows[0].1.as_ref().unwrap();
        assert_eq!((rows[0].0, first.text.as_str()), (2, "say \"hi\",\nthen go"));
        let figures: Vec<_> = first
            .scores
            .iter()
            .map(|s| (s.model.as_str(), s.score, s.completion_tokens, s.cost_usd))
            .collect();
        assert_eq!(figures, [("a", 1.0, None, None), ("b/c", 0.5, Some(12.0), None)]);
        let second = rows[1].1.as_ref().unwrap();
        assert_eq!((rows[1].0, second.scores.len()), (4, 1), "lines are those of the file");
    }

    #[test]
    fn bad_rows_are_told_by_line_and_the_good_ones_kept() {
        let text = "id,prompt,score:a\nq1,x,1\nq2,x\nq3,x,NaN\nq4,x,2\nq5,x,one\nq6,,1\nq7,x,\nq8,y,0\n";
        let reasons: Vec<_> = rows(text).into_iter().map(|(line, row)| (line, row.err())).collect();
        let expect = |line: u64, part: &str| {
            let reason = reasons.iter().find(|(at, _)| *at == line).unwrap().1.clone().unwrap();
            assert!(reason.contains(part), "{line}: {reason}");
        };
        expect(3, "2 fields where the first line has 3");
        expect(4, "NaN of model `a`");
        expect(5, "score 2 of model `a`");
        expect(6, "`one` is not a number");
        expect(7, "prompt is empty");
        expect(8, "no model has a score");
        assert!(reasons.iter().filter(|(_, reason)| reason.is_none()).map(|(line, _)| *line).eq([2, 9]));
    }

    #[test]
    fn headers_without_what_is_needed_are_refused() {
        let refusal = |text: &str| open(text).err().unwrap().to_string();
        assert!(refusal("prompt,score:a\n").contains("columns id and prompt"));
        assert!(refusal("id,prompt,a\n").contains("score:MODEL"));
        assert!(refusal("id,prompt,score:a,score:a\n").contains("`score:a` twice"));
        assert!(refusal("").contains("columns id and prompt"));
    }

    #[test]
    fn an_open_quote_does_not_swallow_the_memory() {
        let mut text = "id,prompt,score:a\nq1,x,1\nq2,\"".to_owned();
        text.extend(std::iter::repeat_n('y', 2 * LINE_BYTES_MAX));
        let mut rows = open(&text).unwrap();
        assert!(rows.next_row().unwrap().unwrap().1.is_ok());
        assert!(rows.next_row().unwrap_err().to_string().contains("quote left open"));
    }
}
