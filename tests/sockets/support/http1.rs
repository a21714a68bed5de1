//! The little HTTP/1.1 that a scripted server and a raw client need; it never normalises what it read.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Largest head a test message may have.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// The head of a request or an answer, as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Every byte up to and including the blank line.
    pub(crate) bytes: Vec<u8>,
}

impl Head {
    /// The request line or status line.
    pub(crate) fn first_line(&self) -> String {
        self.lines().next().unwrap_or_default()
    }

    /// Method of a request.
    pub(crate) fn method(&self) -> String {
        self.word(0)
    }

    /// Path and query of a request.
    pub(crate) fn path(&self) -> String {
        self.word(1)
    }

    /// Status of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.word(1).parse().unwrap()
    }

    /// Values of every header called `name`, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let fields = self.lines().skip(1).filter_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        });
        fields.collect()
    }

    /// Value of the only header called `name`.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut values = self.all(name);
        assert!(values.len() < 2, "{name} came more than once: {values:?}");
        values.pop()
    }

    /// How the body that follows ends.
    pub(crate) fn framing(&self) -> Framing {
        if self.all("transfer-encoding").iter().any(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return Framing::Chunked;
        }
        match self.header("content-length") {
            Some(length) => Framing::Length(length.parse().unwrap()),
            None => Framing::None,
        }
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        lines.into_iter()
    }

    fn word(&self, idx: usize) -> String {
        self.first_line().split(' ').nth(idx).unwrap_or_default().to_owned()
    }
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// By `content-length`.
    Length(usize),
    /// By `transfer-encoding: chunked`.
    Chunked,
    /// Neither: a request has no body, an answer ends with the connection.
    None,
}

/// Bytes of one direction of a connection, read ahead of need.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    stream: R,
    ahead: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    /// The next head; `None` if the peer closed before its first byte.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = self.ahead.windows(4).position(|window| window == b"\r\n\r\n") {
                return Ok(Some(Head { bytes: self.take(end + 4) }));
            }
            assert!(self.ahead.len() <= HEAD_BYTES_MAX, "a head without an end");
            if !self.fill().await? {
                return if self.ahead.is_empty() { Ok(None) } else { Err(cut("in the head")) };
            }
        }
    }

    /// Exactly `len` bytes.
    pub(crate) async fn exact(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < len {
            if !self.fill().await? {
                return Err(cut("in the body"));
            }
        }
        Ok(self.take(len))
    }

    /// Data of the next chunk of a chunked body; `None` after the last one.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = String::from_utf8(self.line().await?).unwrap();
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16).unwrap();
        if size == 0 {
            while !self.line().await?.is_empty() {}
            return Ok(None);
        }
        let data = self.exact(size).await?;
        assert_eq!(self.exact(2).await?, b"\r\n", "a chunk ends with CR LF");
        Ok(Some(data))
    }

    /// Waits until at least one byte is there, or the end of the connection; takes nothing.
    pub(crate) async fn wait(&mut self) -> io::Result<()> {
        if self.ahead.is_empty() {
            self.fill().await?;
        }
        Ok(())
    }

    /// Whatever has come, at least one byte; empty at the end of the connection.
    pub(crate) async fn some(&mut self) -> io::Result<Vec<u8>> {
        if self.ahead.is_empty() {
            self.fill().await?;
        }
        Ok(std::mem::take(&mut self.ahead))
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|window| window == b"\r\n") {
                let mut line = self.take(end + 2);
                line.truncate(end);
                return Ok(line);
            }
            if !self.fill().await? {
                return Err(cut("in a line"));
            }
        }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        Ok(self.stream.read_buf(&mut self.ahead).await? > 0)
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let rest = self.ahead.split_off(len);
        std::mem::replace(&mut self.ahead, rest)
    }
}

fn cut(place: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the peer closed {place}"))
}
