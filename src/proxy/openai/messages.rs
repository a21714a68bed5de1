//! The `messages` of a chat request: their size, their images, the text of the last user message.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::prompt::{PromptSize, push_tail};
use crate::endpoint::json::{self, Key};

/// What is read of `messages`.
#[derive(Default)]
pub(super) struct Messages<'a> {
    /// Size of the text and images seen so far.
    pub(super) prompt: PromptSize,
    last_user_content: Option<&'a RawValue>,
    /// Index of the message being read.
    pub(super) reading: Option<usize>,
}

impl Messages<'_> {
    /// The last `max_bytes` of the last user message: its string, or its text parts, a line each.
    pub(super) fn last_user_text(&self, max_bytes: usize) -> String {
        let mut text = String::new();
        let content = self.last_user_content.map_or("null", RawValue::get);
        if let Some(body) = json::string_body(content) {
            push_tail(&mut text, body, max_bytes);
            return text;
        }
        for_each_part(content, |part| {
            if let Some(body) = part.text {
                if !text.is_empty() {
                    text.push('\n');
                }
                push_tail(&mut text, body, max_bytes);
            }
        });
        text
    }
}

impl<'de> DeserializeSeed<'de> for &mut Messages<'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Messages<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.reading = Some(0);
        let mut message = Message::default();
        while seq.next_element_seed(&mut message)?.is_some() {
            let message = std::mem::take(&mut message);
            self.prompt.messages += 1;
            self.reading = Some(self.prompt.messages);
            if let Some(content) = message.content.map(RawValue::get) {
                match json::string_body(content) {
                    Some(body) => self.prompt.add_raw(body),
                    None => for_each_part(content, |part| {
                        self.prompt.images += usize::from(part.is_image);
                        self.prompt.add_raw(part.text.unwrap_or_default());
                    }),
                }
            }
            if let Some(calls) = message.tool_calls.map(RawValue::get).filter(|calls| json::is_truthy(calls))
            {
                self.prompt.add_raw(calls);
            }
            if message.role.is_some_and(|role| json::string_is(role.get(), "user")) {
                self.last_user_content = message.content;
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Message<'a> {
    role: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
    tool_calls: Option<&'a RawValue>,
}

impl<'de> DeserializeSeed<'de> for &mut Message<'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Message<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Key)? {
            match &*key {
                b"role" => self.role = Some(map.next_value()?),
                b"content" => self.content = Some(map.next_value()?),
                b"tool_calls" => self.tool_calls = Some(map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// One element of an array content.
struct Part<'a> {
    /// Inside of the string `text`, escaped.
    text: Option<&'a str>,
    is_image: bool,
}

/// Calls `on` with each part if `content` is an array; parts that are no objects are the endpoint's to judge.
fn for_each_part<'a>(content: &'a str, mut on: impl FnMut(Part<'a>)) {
    // An error here is a content of another type: it has no parts.
    _ = json::elements(content, |element| {
        let mut part = Part { text: None, is_image: false };
        let read = json::members(element.get(), |key, value| match key {
            b"text" => part.text = json::string_body(value.get()),
            b"image_url" => part.is_image = true,
            b"type" => part.is_image |= json::string_is(value.get(), "image_url"),
            _ => {}
        });
        if read.is_ok() {
            on(part);
        }
    });
}
