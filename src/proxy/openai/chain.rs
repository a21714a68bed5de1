//! The beginnings of a conversation, hashed while its messages are read.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::LazyLock;

use foldhash::quality::RandomState;

use super::prompt::PromptSize;
use crate::domain::{Prefix, PrefixChain};
use crate::units::Tokens;

/// Ends of messages that are kept, the last ones: the turns of a conversation differ at its end.
pub(super) const PREFIXES_MAX: usize = 64;

/// A beginning shorter than this is not worth staying for.
pub(super) const PREFIX_MIN: Tokens = Tokens(64.0);

/// Other keys in every process: nobody outside can aim at a collision.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// Reads the chain of a prompt, message by message.
#[derive(Debug, Default)]
pub(super) struct ChainReader {
    /// Of all messages so far.
    hash: u64,
    prefixes: VecDeque<Prefix>,
}

impl ChainReader {
    /// Goes on with the raw values of a message; `None` where it has no such key.
    pub(super) fn message(&mut self, parts: [Option<&str>; 3]) {
        self.hash = chained(self.hash, parts.map(Option::unwrap_or_default));
    }

    /// The message ends; `size` is that of everything so far.
    pub(super) fn message_ends(&mut self, size: &PromptSize) {
        if self.prefixes.len() == PREFIXES_MAX {
            self.prefixes.pop_front();
        }
        self.prefixes.push_back(Prefix { hash: self.hash, tokens: size.tokens_so_far() });
    }

    /// The chain where chat templates put `tools` of `tools_size` before the messages.
    pub(super) fn finish(&self, tools: [Option<&str>; 2], tools_size: &PromptSize) -> PrefixChain {
        let tools_tokens = tools_size.tokens_so_far();
        let long = self.prefixes.iter().map(|prefix| (prefix.hash, prefix.tokens + tools_tokens));
        let long = long.skip_while(|(_, tokens)| *tokens < PREFIX_MIN);
        if tools == [None; 2] {
            return PrefixChain::new(long.map(|(hash, tokens)| Prefix { hash, tokens }).collect());
        }
        let tools = chained(0, tools.map(Option::unwrap_or_default));
        let prefix = |(hash, tokens)| Prefix { hash: KEYS.hash_one((tools, hash)), tokens };
        PrefixChain::new(long.map(prefix).collect())
    }
}

/// The hash of a session's name; none of a prompt's, but for a chance of one in 2^64.
pub(crate) fn session_hash(name: &[u8]) -> u64 {
    KEYS.hash_one(("session", name))
}

fn chained<const N: usize>(before: u64, parts: [&str; N]) -> u64 {
    let mut hasher = KEYS.build_hasher();
    hasher.write_u64(before);
    for part in parts {
        // Its length tells where it ends.
        hasher.write_usize(part.len());
        hasher.write(part.as_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::ApiCall;
    use crate::proxy::openai::parse_request;

    /// The chain of a request with these messages and further members.
    fn chain(messages: &[Value], further: &str) -> PrefixChain {
        let messages = Value::from(messages);
        let body = format!(r#"{{"model":"m","messages":{messages}{further}}}"#);
        parse_request(ApiCall::Chat, &Bytes::from(body)).unwrap().prefixes
    }

    fn hashes(chain: &PrefixChain) -> Vec<u64> {
        chain.prefixes().iter().map(|prefix| prefix.hash).collect()
    }

    /// A message of `n` × 4 bytes, so of `n` + 4 tokens.
    fn message(role: &str, n: usize) -> Value {
        json!({"role": role, "content": "word".repeat(n)})
    }

    #[test]
    fn each_message_that_ends_a_long_enough_beginning_is_in_the_chain() {
        let turn = [message("system", 30), message("user", 30), message("assistant", 10), message("user", 1)];
        let chain = chain(&turn, "");
        let tokens: Vec<_> = chain.prefixes().iter().map(|prefix| prefix.tokens).collect();
        // 34 are too few; 68, and 14 and 5 more.
        assert_eq!(tokens, [Tokens(68.0), Tokens(82.0), Tokens(87.0)]);
    }

    #[test]
    fn the_whole_prompt_is_what_is_estimated_but_for_the_start_of_the_answer() {
        let body =
            r#"{"model":"m","tools":[{"type":"function"}],"messages":[{"role":"user","content":"TEXT"}]}"#
                .replace("TEXT", &"word ".repeat(80));
        let request = parse_request(ApiCall::Chat, &Bytes::from(body)).unwrap();
        let whole = request.prefixes.whole().unwrap().tokens;
        assert!((request.prompt.tokens() - whole - Tokens(3.0)).0.abs() < 1e-9);
    }

    #[test]
    fn tools_come_before_all_messages_wherever_they_stand() {
        let turn = [message("user", 80)];
        let plain = chain(&turn, "");
        let tools = r#","tools":[{"type":"function","function":{"name":"add"}}]"#;
        let with_tools = chain(&turn, tools);
        assert_ne!(hashes(&plain), hashes(&with_tools));
        assert_eq!(hashes(&plain), hashes(&chain(&turn, r#","tools":[],"functions":null"#)));
        assert_eq!(hashes(&with_tools), hashes(&chain(&turn, tools)));
        let first = format!(r#"{{{},"messages":{},"model":"m"}}"#, &tools[1..], Value::from(&turn[..]));
        let first = parse_request(ApiCall::Chat, &Bytes::from(first)).unwrap().prefixes;
        assert_eq!(with_tools, first);
        let functions = tools.replace("tools", "functions");
        assert_ne!(hashes(&with_tools), hashes(&chain(&turn, &functions)));
        // Long tools make a short beginning long.
        let long = format!(r#","tools":["{}"]"#, "word".repeat(80));
        assert_eq!(chain(&[message("user", 1)], &long).prefixes().len(), 1);
    }

    #[test]
    fn calls_of_tools_are_part_of_their_message() {
        let calls = |name: &str| {
            json!({"role": "assistant", "content": "word".repeat(80),
                   "tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}]})
        };
        assert_ne!(chain(&[calls("add")], ""), chain(&[calls("sub")], ""));
    }

    #[test]
    fn prompts_and_inputs_have_no_messages() {
        let text = "word".repeat(100);
        let completion = Bytes::from(format!(r#"{{"model":"m","prompt":"{text}"}}"#));
        assert!(parse_request(ApiCall::Completions, &completion).unwrap().prefixes.is_empty());
        let embedding = Bytes::from(format!(r#"{{"model":"m","input":"{text}"}}"#));
        assert!(parse_request(ApiCall::Embeddings, &embedding).unwrap().prefixes.is_empty());
    }

    fn messages() -> impl Strategy<Value = Vec<Value>> {
        let role = prop::sample::select(vec!["system", "user", "assistant", "tool"]);
        let one = (role, ".{0,40}").prop_map(|(role, text)| json!({"role": role, "content": text}));
        prop::collection::vec(one, 1..120)
    }

    proptest! {
        #[test]
        fn a_conversation_that_goes_on_begins_as_it_did(
            mut before in messages(),
            after in messages(),
            further in prop::sample::select(vec!["", r#","tools":[1]"#]),
        ) {
            let first = chain(&before, further);
            let n_before = before.len();
            before.extend(after);
            let next = chain(&before, further);
            prop_assert!(next.prefixes().len() <= PREFIXES_MAX);
            let is_ascending = next.prefixes().is_sorted_by(|a, b| a.tokens < b.tokens);
            prop_assert!(is_ascending && next.prefixes().iter().all(|prefix| prefix.tokens >= PREFIX_MIN));
            // All of the first that the next still reaches back to.
            let n_dropped = before.len().saturating_sub(PREFIXES_MAX);
            let n_common = n_before.saturating_sub(n_dropped).min(first.prefixes().len());
            let common = &first.prefixes()[first.prefixes().len() - n_common..];
            let common = &common[..common.len().min(next.prefixes().len())];
            prop_assert_eq!(common, &next.prefixes()[..common.len()]);
        }

        #[test]
        fn a_changed_message_changes_every_beginning_with_it_and_none_before(
            mut turn in messages(),
            at in any::<prop::sample::Index>(),
            in_role in any::<bool>(),
        ) {
            turn.truncate(PREFIXES_MAX);
            // Long enough for every message to count.
            turn.insert(0, message("system", 80));
            turn.truncate(PREFIXES_MAX);
            let at = at.index(turn.len());
            let before = hashes(&chain(&turn, ""));
            let member = if in_role { "role" } else { "content" };
            let changed = format!("{}!", turn[at][member].as_str().unwrap());
            turn[at][member] = changed.into();
            let after = hashes(&chain(&turn, ""));
            prop_assert_eq!(before.len(), turn.len());
            prop_assert_eq!(&before[..at], &after[..at]);
            prop_assert!(before[at..].iter().zip(&after[at..]).all(|(before, after)| before != after));
        }

        #[test]
        fn text_that_moves_from_one_message_to_the_next_is_another_prompt(
            text in "[a-z]{2,20}",
            cut in any::<prop::sample::Index>(),
            moved in any::<prop::sample::Index>(),
        ) {
            let (cut, moved) = (cut.index(text.len()), moved.index(text.len()));
            prop_assume!(cut != moved);
            let turn = |cut: usize| {
                let (one, other) = text.split_at(cut);
                let said = |text| json!({"role": "user", "content": text});
                [message("system", 80), said(one), said(other)]
            };
            let (one, other) = (chain(&turn(cut), ""), chain(&turn(moved), ""));
            prop_assert_ne!(one.whole(), other.whole());
        }
    }
}
