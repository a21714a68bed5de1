//! Credentials that cannot be printed by accident.

use std::fmt;

use sha2::{Digest, Sha256};

/// A credential in clear. `Debug` and `Display` never reveal it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a credential.
    #[must_use]
    pub fn new(credential: String) -> Self {
        Self(credential)
    }

    /// The credential itself, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// SHA-256 of a client's API key: all the router keeps of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of a key in clear.
    #[must_use]
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Reads 64 hexadecimal digits. `None` for anything else.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(digest))
    }

    /// The 32 bytes, for a constant-time comparison.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_printed_reveals_a_credential() {
        let secret = Secret::new("sk-123".into());
        assert_eq!(format!("{secret:?} {secret}"), "Secret(not shown) (not shown)");
        assert_eq!(format!("{:?}", KeyDigest::of("sk-123")), "KeyDigest(not shown)");
        assert_eq!(secret.expose(), "sk-123");
    }

    #[test]
    fn digests_are_sha_256() {
        // The example of FIPS 180-2, "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyDigest::from_hex(abc), Some(KeyDigest::of("abc")));
        assert_eq!(KeyDigest::from_hex(&abc.to_uppercase()), Some(KeyDigest::of("abc")));
        assert_eq!(KeyDigest::from_hex(&abc[1..]), None);
        assert_eq!(KeyDigest::from_hex(&abc.replace('b', "g")), None);
        assert_eq!(KeyDigest::from_hex(&"é".repeat(32)), None);
    }
}
