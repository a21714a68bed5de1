//! Lines of a trace file, plain or gzip, with a bound on their length.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// Longest line, in bytes; longer ones are skipped as faulty.
pub const LINE_BYTES_MAX: usize = 8 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One line of a trace.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Its bytes, without the line end.
    Bytes(Vec<u8>),
    /// It was longer than [`LINE_BYTES_MAX`].
    TooLong,
}

/// Reads lines one by one, so that a file of any size takes the memory of one line.
pub struct TraceLines {
    reader: Box<dyn BufRead>,
}

/// A trace file under way, decompressed.
pub(super) struct TraceFile {
    pub(super) reader: Box<dyn BufRead>,
    /// Bytes of the file (not of what it decompresses to) read so far.
    pub(super) position: Arc<AtomicU64>,
}

impl TraceFile {
    /// `trace`, plain or gzip, which is recognised by its first bytes.
    pub(super) fn over(trace: impl Read + 'static) -> io::Result<Self> {
        let position = Arc::new(AtomicU64::new(0));
        let counted = CountingReader { inner: trace, position: Arc::clone(&position) };
        let mut file = BufReader::new(counted);
        let is_gzip = file.fill_buf()?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn BufRead> =
            if is_gzip { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) };
        Ok(Self { reader, position })
    }
}

impl TraceLines {
    /// The lines of `trace`, plain or gzip.
    ///
    /// # Errors
    /// Where its first bytes cannot be read.
    pub fn over(trace: impl Read + 'static) -> io::Result<Self> {
        Ok(Self { reader: TraceFile::over(trace)?.reader })
    }

    pub(super) fn of(reader: Box<dyn BufRead>) -> Self {
        Self { reader }
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// What cannot be read, such as the end of a truncated gzip file.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let limit = LINE_BYTES_MAX as u64 + 1;
        if (&mut self.reader).take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() > LINE_BYTES_MAX {
            self.reader.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Bytes(line)))
    }
}

struct CountingReader<R> {
    inner: R,
    position: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.position.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn lines(bytes: &[u8]) -> io::Result<Vec<Line>> {
        let mut lines = TraceLines::over(io::Cursor::new(bytes.to_vec()))?;
        std::iter::from_fn(|| lines.next_line().transpose()).collect()
    }

    #[test]
    fn plain_and_gzip_give_the_same_lines() {
        let text = b"one\n\ntwo";
        let expected = ["one", "", "two"].map(|line| Line::Bytes(line.into()));
        assert_eq!(lines(text).unwrap(), expected);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        let mut gzip = encoder.finish().unwrap();
        assert_eq!(lines(&gzip).unwrap(), expected);
        gzip.truncate(gzip.len() - 10);
        assert!(lines(&gzip).is_err());
    }

    #[test]
    fn a_line_over_the_bound_is_skipped_alone() {
        let mut text = vec![b'x'; LINE_BYTES_MAX];
        text.extend_from_slice(b"\n");
        text.resize(text.len() + LINE_BYTES_MAX + 10, b'y');
        text.extend_from_slice(b"\nlast\n");
        let lines = lines(&text).unwrap();
        assert!(matches!(&lines[0], Line::Bytes(line) if line.len() == LINE_BYTES_MAX));
        assert_eq!(lines[1..], [Line::TooLong, Line::Bytes(b"last".into())]);
    }
}
