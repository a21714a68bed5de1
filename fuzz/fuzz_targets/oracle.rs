//! What splicing must give, by a reader of its own: the router's JSON code is not asked.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// `text` with `model` in place of its first `at_most` top-level `model` values; `None` if it is no JSON object.
pub fn with_model(text: &str, model: &str, at_most: usize) -> Option<String> {
    serde_json::from_str::<IgnoredAny>(text).ok()?; // stricter with keys than what follows
    let Members(members) = serde_json::from_str(text).ok()?;
    let quoted = serde_json::to_string(model).unwrap();
    let (mut expected, mut copied) = (String::new(), 0);
    for (_, value) in members.iter().filter(|(key, _)| key == b"model").take(at_most) {
        let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
        expected += &text[copied..start];
        expected += &quoted;
        copied = start + value.get().len();
    }
    Some(expected + &text[copied..])
}

/// The members of an object in order, duplicates included.
struct Members<'a>(Vec<(Vec<u8>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(Vec<u8>, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    members.push((key, value));
                }
                Ok(members)
            }
        }
        from.deserialize_map(Object).map(Members)
    }
}

/// A key as bytes: one with a lone surrogate is no string, yet JSON.
struct Key(Vec<u8>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Key, E> {
                Ok(Key(bytes.to_vec()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.into()))
            }
        }
        from.deserialize_bytes(Bytes)
    }
}
