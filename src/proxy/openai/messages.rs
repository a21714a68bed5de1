//! The `messages` of a chat request: their size, their images, the text of the last user message.

use super::chain::ChainReader;
use super::prompt::{PromptSize, push_tail};
use crate::endpoint::json::{self, Cursor};

/// What is read of `messages`.
#[derive(Debug, Default)]
pub(super) struct Messages<'a> {
    /// Size of the text and images.
    pub(super) prompt: PromptSize,
    /// Their beginnings.
    pub(super) chain: ChainReader,
    /// What has another type than it should.
    pub(super) wrong: Option<Wrong>,
    last_user_content: Option<&'a str>,
}

/// `messages` is to be an array, each of its elements an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wrong {
    /// It is no array.
    NoArray,
    /// The element at this index is no object.
    NoObject(usize),
}

impl Wrong {
    /// The path of what is wrong.
    pub(super) fn param(self) -> String {
        match self {
            Self::NoArray => "messages".to_owned(),
            Self::NoObject(idx) => format!("messages[{idx}]"),
        }
    }
}

impl<'a> Messages<'a> {
    /// Reads the value of `messages`, at which `cursor` is, and steps over it.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        let mut messages = Self::default();
        if !cursor.is_at_array() {
            cursor.value()?;
            messages.wrong = Some(Wrong::NoArray);
            return Some(messages);
        }
        cursor.array(|message| {
            if message.is_at_object() {
                messages.add(message)?;
            } else {
                message.value()?;
                messages.wrong.get_or_insert(Wrong::NoObject(messages.prompt.messages));
            }
            messages.prompt.messages += 1;
            messages.chain.message_ends(&messages.prompt);
            Some(())
        })?;
        Some(messages)
    }

    /// The last `max_bytes` of the last user message: its string, or its text parts, a line each.
    pub(super) fn last_user_text(&self, max_bytes: usize) -> String {
        let mut text = String::new();
        let content = self.last_user_content.unwrap_or("null");
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

    fn add(&mut self, message: &mut Cursor<'a>) -> Option<()> {
        let (mut role, mut content, mut tool_calls) = (None, None, None);
        message.object(|key, value| {
            let value = value.value()?;
            match key {
                "role" => role = Some(value),
                "content" => content = Some(value),
                "tool_calls" => tool_calls = Some(value),
                _ => {}
            }
            Some(())
        })?;
        if let Some(content) = content {
            match json::string_body(content) {
                Some(body) => self.prompt.add_raw(body),
                None => for_each_part(content, |part| {
                    self.prompt.images += usize::from(part.is_image);
                    self.prompt.add_raw(part.text.unwrap_or_default());
                }),
            }
        }
        if let Some(calls) = tool_calls.filter(|calls| json::is_truthy(calls)) {
            self.prompt.add_raw(calls);
        }
        self.chain.message([role, content, tool_calls]);
        if role.is_some_and(|role| json::string_is(role, "user")) {
            self.last_user_content = content;
        }
        Some(())
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
        let read = json::members(element, |key, value| match key {
            "text" => part.text = json::string_body(value),
            "image_url" => part.is_image = true,
            "type" => part.is_image |= json::string_is(value, "image_url"),
            _ => {}
        });
        if read.is_ok() {
            on(part);
        }
    });
}
