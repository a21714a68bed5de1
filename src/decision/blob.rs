//! What is too large to be read in a line of the log: JSON, compressed (gzip) and written as base64 (RFC 4648).

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Most that a blob may come to; the largest batch over the largest fleet stays below.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// Why text is no blob.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Not base64.
    #[error(
        "not base64: its characters come in fours, from A to Z, a to z, 0 to 9, `+` and `/`, with `=` at the end"
    )]
    Base64,
    /// Not gzip, or cut off.
    #[error("not gzip data: {0}")]
    Gzip(#[from] std::io::Error),
    /// Not what it should hold.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

/// `value` as a blob.
///
/// # Errors
/// When it cannot be written as JSON.
pub(super) fn pack(value: &impl Serialize) -> serde_json::Result<String> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    serde_json::to_writer(&mut gzip, value)?;
    gzip.flush().map_err(serde_json::Error::io)?;
    Ok(to_base64(&gzip.finish().map_err(serde_json::Error::io)?))
}

/// The value that `text` holds.
///
/// # Errors
/// See [`BlobError`].
pub(super) fn unpack<T: DeserializeOwned>(text: &str) -> Result<T, BlobError> {
    let bytes = from_base64(text).ok_or(BlobError::Base64)?;
    let mut json = Vec::new();
    GzDecoder::new(bytes.as_slice()).take(JSON_BYTES_MAX).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let n_padding = text.iter().rev().take_while(|c| **c == b'=').count();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (digits, _) = text.split_at_checked(text.len() - n_padding)?;
    for chunk in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in chunk {
            bits = bits << 6 | value_of(*digit)?;
        }
        bits <<= 6 * (4 - chunk.len());
        let whole = bits.to_be_bytes();
        bytes.extend_from_slice(&whole[1..chunk.len().max(1)]);
    }
    (n_padding <= 2).then_some(bytes)
}

fn value_of(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(to_base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        for bad in ["Zg=", "Z===", "Zm9v!bar", "====", "Zg==Zg=="] {
            assert_eq!(from_base64(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_no_blob_is_refused() {
        assert!(matches!(unpack::<u32>("!"), Err(BlobError::Base64)));
        assert!(matches!(unpack::<u32>("Zm9v"), Err(BlobError::Gzip(_))));
        assert!(matches!(unpack::<u32>(&pack(&"text").unwrap()), Err(BlobError::Json(_))));
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(values in prop::collection::vec(-1e300..1e300_f64, 0..50)) {
            let back: Vec<f64> = unpack(&pack(&values).unwrap()).unwrap();
            prop_assert!(values.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
            prop_assert_eq!(values.len(), back.len());
        }
    }
}
