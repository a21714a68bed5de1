//! YAML text as a tree that remembers lines, bounded in size, depth and alias expansion.
//!
//! Built from parser events rather than with a ready-made loader so that every duplicate key is seen,
//! scalars keep their text (`name: 1.10` is the name `1.10`) and no input can exhaust stack or memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use super::fault::Fault;

/// Largest configuration file read.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Deepest nesting of mappings and lists; the schema itself needs seven.
const MAX_DEPTH: usize = 32;
/// Most nodes in a document once its aliases are expanded.
const MAX_NODES: usize = 100_000;

/// A YAML value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    /// Line of its first character, from 1.
    pub(super) line: usize,
    pub(super) value: Value,
    /// Nodes in this subtree with aliases expanded, itself included.
    pub(super) size: usize,
}

/// The three shapes of YAML.
#[derive(Debug)]
pub(super) enum Value {
    /// Plain or quoted text; what it means depends on who asks.
    Scalar {
        text: String,
        quoted: bool,
    },
    Sequence(Vec<Rc<Node>>),
    /// In order of the file; duplicate keys are kept.
    Mapping(Vec<Entry>),
}

/// A key of a mapping with its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// Line of the key.
    pub(super) line: usize,
    pub(super) node: Rc<Node>,
}

impl Node {
    /// Whether the value was left out: `key:`, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, quoted: false }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }
}

/// Parses the one document in `text`.
pub(super) fn parse(text: &str) -> Result<Rc<Node>, Fault> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|e| syntax_fault(e.marker(), text, e.info().to_owned()))?;
        builder
            .on_event(event, span.start.line())
            .map_err(|problem| syntax_fault(&span.start, text, problem))?;
    }
    builder.root.ok_or_else(|| Fault {
        line: 1,
        path: String::new(),
        problem: "the configuration is empty".into(),
        got: None,
        allowed: Some("a mapping with at least `listen` and `nodes`".into()),
    })
}

/// A fault of the YAML itself; the usual suspect of newcomers, a tab as indentation, is named as such.
fn syntax_fault(at: &Marker, text: &str, problem: String) -> Fault {
    let line = at.line().max(1);
    let near = text.lines().take(line).skip(line.saturating_sub(2));
    let tab = near.into_iter().any(|l| l.trim_start_matches([' ', '-']).starts_with('\t'));
    Fault {
        line,
        path: String::new(),
        problem: format!("not usable as YAML: {problem} at column {}", at.col() + 1),
        got: None,
        allowed: tab.then(|| "spaces, not tabs, as indentation".into()),
    }
}

/// A mapping or sequence whose end has not been seen yet.
struct Open {
    line: usize,
    anchor: usize,
    size: usize,
    value: Value,
    /// A mapping's key that waits for its value.
    key: Option<(String, usize)>,
}

#[derive(Default)]
struct Builder {
    stack: Vec<Open>,
    anchors: BTreeMap<usize, Rc<Node>>,
    root: Option<Rc<Node>>,
    documents: usize,
}

impl Builder {
    fn on_event(&mut self, event: Event<'_>, line: usize) -> Result<(), String> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err("a second document starts here; a configuration is one document".into());
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.is_some())?;
                let value = Value::Scalar { text: text.into_owned(), quoted: style != ScalarStyle::Plain };
                self.complete(Node { line, value, size: 1 }, anchor)?;
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.is_some())?;
                self.open(Value::Sequence(Vec::new()), anchor, line)?;
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.is_some())?;
                self.open(Value::Mapping(Vec::new()), anchor, line)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { line, anchor, size, value, .. }) = self.stack.pop() {
                    self.complete(Node { line, value, size }, anchor)?;
                }
            }
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                self.insert(node.ok_or("an alias refers to a value that contains it")?)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn open(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), String> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        if matches!(self.stack.last(), Some(Open { value: Value::Mapping(_), key: None, .. })) {
            return Err("a key must be plain text".into());
        }
        self.stack.push(Open { line, anchor, size: 1, value, key: None });
        Ok(())
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        let node = Rc::new(node);
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.insert(node)
    }

    fn insert(&mut self, node: Rc<Node>) -> Result<(), String> {
        let Some(parent) = self.stack.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.size += node.size;
        if parent.size > MAX_NODES {
            return Err(format!("more than {MAX_NODES} values once aliases are expanded"));
        }
        match &mut parent.value {
            Value::Sequence(items) => items.push(node),
            Value::Mapping(entries) => match (parent.key.take(), &node.value) {
                (Some((key, line)), _) => entries.push(Entry { key, line, node }),
                (None, Value::Scalar { text, .. }) => parent.key = Some((text.clone(), node.line)),
                (None, _) => return Err("a key must be plain text".into()),
            },
            // Scalars are never left open.
            Value::Scalar { .. } => {}
        }
        Ok(())
    }
}

fn refuse_tag(tagged: bool) -> Result<(), String> {
    if tagged { Err("tags such as `!name` are not supported".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> (usize, String) {
        let fault = parse(text).unwrap_err();
        (fault.line, fault.to_string())
    }

    #[test]
    fn scalars_keep_their_text_and_lines() {
        let root = parse("a: 1.10\nb:\n  - 'x'\n  -\n").unwrap();
        let Value::Mapping(entries) = &root.value else { panic!("{root:?}") };
        assert!(matches!(&entries[0].node.value, Value::Scalar { text, quoted: false } if text == "1.10"));
        let Value::Sequence(items) = &entries[1].node.value else { panic!("{root:?}") };
        assert_eq!((entries[1].line, items[0].line), (2, 3));
        assert!(!items[0].is_null() && items[1].is_null());
    }

    #[test]
    fn nothing_to_read_is_said_so() {
        for text in ["", "\n\n", "# only a comment\n", "---\n"] {
            let outcome = parse(text);
            assert!(outcome.is_err() || outcome.is_ok_and(|root| root.is_null()), "{text:?}");
        }
        assert!(problem("").1.contains("empty"));
    }

    #[test]
    fn a_second_document_is_refused_where_it_starts() {
        let (line, text) = problem("a: 1\n---\nb: 2\n");
        assert_eq!(line, 2);
        assert!(text.contains("one document"), "{text}");
    }

    #[test]
    fn depth_is_bounded_in_both_styles_without_recursion() {
        let flow = "[".repeat(100) + &"]".repeat(100);
        assert!(problem(&flow).1.contains("nested deeper than 32"));
        // Here the scanner's own bound speaks first.
        assert!(problem(&"[".repeat(MAX_FILE_BYTES)).1.contains("recursion limit"));
        assert!(parse(&"- ".repeat(MAX_FILE_BYTES / 2)).is_err());
        let block: String = (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(problem(&block).1.contains("nested deeper than 32"));
    }

    #[test]
    fn alias_bombs_end_early() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..20 {
            let refs = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        let (line, text) = problem(&bomb);
        assert!(text.contains("once aliases are expanded"), "{text}");
        assert!(line <= 6, "{line}");
    }

    #[test]
    fn aliases_work_but_not_within_themselves() {
        let root = parse("a: &x {k: 1}\nb: *x\n").unwrap();
        let Value::Mapping(entries) = &root.value else { panic!("{root:?}") };
        assert!(Rc::ptr_eq(&entries[0].node, &entries[1].node));
        assert!(problem("a: &x [*x]\n").1.contains("contains it"));
        assert!(problem("a: *nowhere\n").1.contains("not usable as YAML"));
    }

    #[test]
    fn tags_tabs_and_odd_keys_are_named() {
        assert!(problem("a: !secret b\n").1.contains("tags"));
        assert!(problem("? [a]\n: b\n").1.contains("key must be plain text"));
        let (line, text) = problem("window:\n\tmax_ms: 1\n");
        assert_eq!(line, 2);
        assert!(text.contains("spaces, not tabs"), "{text}");
    }
}
