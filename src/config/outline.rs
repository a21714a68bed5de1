//! What the reader would accept, found out by letting it read a document in which everything is there.
//!
//! A [`Report`](super::report::Report) with an [`Outline`] answers every question for a key with a value that is
//! nothing in particular, and notes how it was asked for: so keys, ranges and defaults have no second list that could
//! differ from the code that reads them.

use std::cell::RefCell;
use std::fmt::Display;

use super::tree::{Node, Value};

/// One key that the reader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// Where it stands, such as `nodes[].endpoints[].url`.
    pub(super) path: String,
    /// What it was read as, from the outside in: `list`, `choice`.
    pub(super) kinds: Vec<&'static str>,
    /// What may stand there, in the words of faults.
    pub(super) allowed: Vec<String>,
    /// What counts where it is absent, as far as the reader says.
    pub(super) default: Option<String>,
}

/// Notes what is asked for.
pub(super) struct Outline {
    /// The value of everything.
    pub(super) anything: Node,
    /// A choice that is taken to be made: its path and its value.
    assumed: Option<(&'static str, &'static str)>,
    keys: RefCell<Vec<Key>>,
}

impl Outline {
    pub(super) fn new(assumed: Option<(&'static str, &'static str)>) -> Self {
        Self { anything: Node::anything(), assumed, keys: RefCell::new(Vec::new()) }
    }

    /// The key at `path` was asked for.
    pub(super) fn asked(&self, path: &str) {
        let mut keys = self.keys.borrow_mut();
        if !keys.iter().any(|key| key.path == path) {
            keys.push(Key { path: path.into(), kinds: Vec::new(), allowed: Vec::new(), default: None });
        }
    }

    /// The value at `path`, or the items of the list there, were read as a `kind`.
    pub(super) fn read_as(&self, path: &str, kind: &'static str, allowed: &str) {
        self.with(path.trim_end_matches("[]"), |key| {
            key.kinds.push(kind);
            if !allowed.is_empty() && !key.allowed.iter().any(|known| known == allowed) {
                key.allowed.push(allowed.into());
            }
        });
    }

    /// Without the key at `path`, `default` counts.
    pub(super) fn defaults_to(&self, path: &str, default: &dyn Display) {
        self.with(path, |key| key.default = Some(default.to_string()));
    }

    /// The value that the choice at `path` is taken to have.
    pub(super) fn assumed(&self, path: &str) -> Option<&'static str> {
        self.assumed.filter(|(assumed, _)| *assumed == path).map(|(_, value)| value)
    }

    /// Every key, in the order asked for.
    pub(super) fn into_keys(self) -> Vec<Key> {
        self.keys.into_inner()
    }

    fn with(&self, path: &str, change: impl FnOnce(&mut Key)) {
        if let Some(key) = self.keys.borrow_mut().iter_mut().find(|key| key.path == path) {
            change(key);
        }
    }
}

impl Node {
    /// A scalar that is no word, number or null.
    fn anything() -> Self {
        Self { line: 0, value: Value::Scalar { text: String::new(), quoted: true }, size: 1 }
    }
}
