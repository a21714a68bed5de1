//! Content codings: what is compressed is decoded within bounds, so that the rest of the router sees plain bytes.
//!
//! Endpoints are asked for no coding at all (`accept-encoding: identity`); some compress all the same.

use std::io::{self, Read as _, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use flate2::write::MultiGzDecoder as MultiGzWriter;
use http::{HeaderMap, header};
use http_body::{Body, Frame};

/// Compressed bytes decoded at once. Deflate makes at most 1032 bytes of one, so a frame stays below 5 MiB
/// whatever an endpoint sends.
const STEP_BYTES: usize = 4 << 10;

/// Longest name of an unknown coding that is repeated.
const NAME_BYTES_MAX: usize = 64;

/// How the bytes of a body are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentCoding {
    /// As they are.
    Identity,
    /// gzip, RFC 1952.
    Gzip,
}

/// A content coding that cannot be decoded here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("content encoding `{0}`")]
pub struct UnknownCoding(pub String);

impl ContentCoding {
    /// The coding that `content-encoding` names; none is [`ContentCoding::Identity`].
    ///
    /// # Errors
    /// If it names another one, or several.
    pub fn of(headers: &HeaderMap) -> Result<Self, UnknownCoding> {
        let mut coding = Self::Identity;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            for name in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                    continue;
                }
                let is_gzip = name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip");
                if !is_gzip || coding == Self::Gzip {
                    let name = &name[..name.len().min(NAME_BYTES_MAX)];
                    return Err(UnknownCoding(name.escape_ascii().to_string()));
                }
                coding = Self::Gzip;
            }
        }
        Ok(coding)
    }
}

/// Why a body could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It would be larger than allowed.
    #[error("the decoded body is larger than {0} bytes")]
    TooLarge(usize),
    /// It is not what its coding says.
    #[error("the body is not valid gzip")]
    Corrupt(#[source] io::Error),
}

/// Decodes a whole gzip body of at most `bytes_max` decoded bytes; a bomb costs no more than that.
///
/// # Errors
/// See [`DecodeError`].
pub fn gunzip(body: &[u8], bytes_max: usize) -> Result<Bytes, DecodeError> {
    let mut decoded = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    MultiGzDecoder::new(body).take(limit).read_to_end(&mut decoded).map_err(DecodeError::Corrupt)?;
    if decoded.len() > bytes_max { Err(DecodeError::TooLarge(bytes_max)) } else { Ok(decoded.into()) }
}

/// Why an answer's body could not be read on.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The connection broke off.
    #[error("the body broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It is not what its coding says.
    #[error("the body is not valid gzip")]
    Corrupt(#[source] io::Error),
}

/// A body decoded as it comes: everything that can be decoded of a frame goes on before the next one is read.
#[derive(Debug)]
pub struct DecodedBody<B> {
    inner: B,
    gunzip: Option<Box<Gunzip>>,
}

#[derive(Debug)]
struct Gunzip {
    decoder: MultiGzWriter<Vec<u8>>,
    /// Received and not decoded yet.
    compressed: Bytes,
}

impl<B> DecodedBody<B> {
    /// Decodes `inner`, which is coded as `coding`.
    #[must_use]
    pub fn new(inner: B, coding: ContentCoding) -> Self {
        let gunzip = (coding == ContentCoding::Gzip)
            .then(|| Box::new(Gunzip { decoder: MultiGzWriter::new(Vec::new()), compressed: Bytes::new() }));
        Self { inner, gunzip }
    }
}

impl Gunzip {
    /// The next decoded bytes; `None` where more must be received first.
    fn decode(&mut self) -> io::Result<Option<Bytes>> {
        while !self.compressed.is_empty() {
            let step = self.compressed.split_to(self.compressed.len().min(STEP_BYTES));
            self.decoder.write_all(&step)?;
            self.decoder.flush()?;
            let decoded = std::mem::take(self.decoder.get_mut());
            if !decoded.is_empty() {
                return Ok(Some(decoded.into()));
            }
        }
        Ok(None)
    }

    /// What the end of the body leaves; an error if it came too early.
    fn finish(&mut self) -> io::Result<Bytes> {
        self.decoder.try_finish()?;
        Ok(std::mem::take(self.decoder.get_mut()).into())
    }
}

impl<B> Body for DecodedBody<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(gunzip) = &mut this.gunzip
                && let Some(decoded) = gunzip.decode().map_err(BodyError::Corrupt).transpose()
            {
                return Poll::Ready(Some(decoded.map(Frame::data)));
            }
            let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx)).transpose();
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => return Poll::Ready(Some(Err(BodyError::Broken(error.into())))),
            };
            match (&mut this.gunzip, frame) {
                (None, frame) => return Poll::Ready(frame.map(Ok)),
                // Trailers mean nothing here.
                (Some(gunzip), Some(frame)) => gunzip.compressed = frame.into_data().unwrap_or_default(),
                (Some(gunzip), None) => {
                    let rest = gunzip.finish().map_err(BodyError::Corrupt);
                    this.gunzip = None;
                    return match rest {
                        Ok(rest) if rest.is_empty() => Poll::Ready(None),
                        rest => Poll::Ready(Some(rest.map(Frame::data))),
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::stream;
    use http::HeaderValue;
    use http_body_util::{BodyExt as _, StreamBody};
    use proptest::prelude::*;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// The frames that `chunks` decode to, and whether the body ended well.
    fn decode(chunks: Vec<Bytes>) -> (Vec<Bytes>, bool) {
        let frames = chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
        let mut body = DecodedBody::new(StreamBody::new(stream::iter(frames)), ContentCoding::Gzip);
        let mut decoded = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let is_whole = runtime.block_on(async {
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return false };
                decoded.push(frame.into_data().unwrap());
            }
            true
        });
        (decoded, is_whole)
    }

    #[test]
    fn codings_are_told_apart() {
        let of = |values: &[&'static str]| {
            let pairs = values.iter().map(|v| (header::CONTENT_ENCODING, HeaderValue::from_static(v)));
            let mut headers = HeaderMap::new();
            pairs.for_each(|(name, value)| _ = headers.append(name, value));
            ContentCoding::of(&headers)
        };
        for identity in [&[][..], &[""], &["identity"], &["Identity, identity"]] {
            assert_eq!(of(identity), Ok(ContentCoding::Identity), "{identity:?}");
        }
        for gzip in [&["gzip"][..], &["GZIP"], &["x-gzip"], &["identity, gzip"]] {
            assert_eq!(of(gzip), Ok(ContentCoding::Gzip), "{gzip:?}");
        }
        for (unknown, name) in [
            (&["br"][..], "br"),
            (&["deflate"], "deflate"),
            (&["zstd, gzip"], "zstd"),
            (&["gzip, gzip"], "gzip"),
            (&["gzip", "br"], "br"),
        ] {
            assert_eq!(of(unknown), Err(UnknownCoding(name.to_owned())), "{unknown:?}");
        }
    }

    #[test]
    fn whole_bodies_are_decoded_within_their_bound() {
        let text = b"{\"a\":1.0}".repeat(100);
        let two_members = [gzip(&text), gzip(b"!")].concat();
        assert_eq!(gunzip(&two_members, 901).unwrap(), [&text[..], b"!"].concat());
        assert!(matches!(gunzip(&two_members, 900), Err(DecodeError::TooLarge(900))));
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert!(matches!(gunzip(&bomb, 1 << 20), Err(DecodeError::TooLarge(_))));
        for broken in [&b"plain"[..], &two_members[..20], b"", b"\x1f\x8b\x08"] {
            assert!(matches!(gunzip(broken, 901), Err(DecodeError::Corrupt(_))), "{broken:?}");
        }
    }

    #[test]
    fn what_was_flushed_comes_at_once_and_a_bomb_in_pieces() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut chunks = Vec::new();
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            encoder.write_all(event.as_bytes()).unwrap();
            encoder.flush().unwrap();
            chunks.push(std::mem::take(encoder.get_mut()).into());
        }
        chunks.push(encoder.finish().unwrap().into());
        let (frames, is_whole) = decode(chunks);
        assert!(is_whole && frames == ["data: 1\n\n", "data: 2\n\n"], "{frames:?}");

        let (frames, is_whole) = decode(vec![gzip(&vec![0; 64 << 20]).into()]);
        assert!(is_whole && frames.iter().all(|frame| frame.len() <= 1100 * STEP_BYTES));
        assert_eq!(frames.iter().map(Bytes::len).sum::<usize>(), 64 << 20);
    }

    #[test]
    fn a_body_that_is_cut_or_is_no_gzip_fails() {
        let whole = gzip(b"data: hello\n\n");
        for len in 1..whole.len() {
            assert!(!decode(vec![Bytes::copy_from_slice(&whole[..len])]).1, "{len} of {}", whole.len());
        }
        assert!(!decode(vec![Bytes::from_static(b"data: plain\n\n")]).1);
    }

    proptest! {
        #[test]
        fn any_split_decodes_to_the_same_bytes(
            text in prop::collection::vec(any::<u8>(), 0..3000),
            size in 1..2000_usize,
        ) {
            let chunks = gzip(&text).chunks(size).map(Bytes::copy_from_slice).collect();
            let (frames, is_whole) = decode(chunks);
            prop_assert!(is_whole);
            prop_assert_eq!(frames.concat(), text);
        }
    }
}
