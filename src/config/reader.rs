//! A typed cursor over the YAML tree that collects every fault instead of stopping at the first.
//!
//! [`Section`] is a mapping that knows which of its keys were asked for, so that the others can be
//! reported as unknown; [`Field`] is one value. A reader that meets a fault notes it in the shared
//! [`Report`] and carries on with the default: a configuration with faults is never handed out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use super::fault::Fault;
use super::nearest::nearest;
use super::report::Report;
use super::tree::{Entry, Node, Value};

/// Longest piece of a value that a fault repeats, in characters.
const MAX_SHOWN: usize = 60;
/// Longest text value, in bytes.
const MAX_TEXT: usize = 4_096;

/// A place in the document.
#[derive(Debug, Clone)]
struct Spot {
    path: String,
    line: usize,
}

/// One value that is present and not null.
#[derive(Clone)]
pub(super) struct Field<'a> {
    spot: Spot,
    node: &'a Node,
    report: &'a Report<'a>,
    /// Whether faults must not repeat the value.
    private: bool,
}

impl<'a> Field<'a> {
    /// The document itself.
    pub(super) fn root(node: &'a Node, report: &'a Report<'a>) -> Self {
        Self { spot: Spot { path: String::new(), line: node.line }, node, report, private: false }
    }

    /// The same value, never to be repeated in a fault because it may be a secret.
    pub(super) fn private(self) -> Self {
        Self { private: true, ..self }
    }

    /// The key in the environment variable this text names, which must be set and fit a header.
    ///
    /// A name that does not look like one is not repeated: it may be the credential itself.
    pub(super) fn env(&self) -> Option<String> {
        const ALLOWED: &str = "the name of a set environment variable, such as APP1_KEY";
        if self.is_outlined("variable", ALLOWED) {
            return None;
        }
        let name = self.clone().private().text(ALLOWED)?;
        let name_like = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if !name.chars().all(name_like) || name.starts_with(|c: char| c.is_ascii_digit()) {
            self.clone().private().fault("must name an environment variable in capitals", ALLOWED);
            return None;
        }
        match (self.report.env)(name) {
            Some(value) if value.is_empty() => {
                self.fault(format!("environment variable {name} is empty"), ALLOWED)
            }
            Some(value) if value.bytes().all(|b| b.is_ascii_graphic()) => return Some(value),
            // Keys travel in headers; a blank or line end at the end is a common slip.
            Some(_) => {
                self.fault(format!("environment variable {name} holds more than visible ASCII"), ALLOWED)
            }
            // Keys must differ, so what stands for them does; nobody can send it.
            None if self.may_lack(format!("environment variable {name} is not set")) => {
                return Some(format!("{name}:{:032x}", rand::random::<u128>()));
            }
            None => self.fault(format!("environment variable {name} is not set"), ALLOWED),
        }
        None
    }

    /// Whether only an outline is wanted: then notes that this value is a `kind`, and that `allowed` may stand there.
    fn is_outlined(&self, kind: &'static str, allowed: &str) -> bool {
        if let Some(outline) = &self.report.outline {
            outline.read_as(&self.spot.path, kind, allowed);
        }
        self.report.outline.is_some()
    }

    /// Whether what this value names may be absent, being a secret; it is noted then.
    pub(super) fn may_lack(&self, secret: String) -> bool {
        self.report.may_lack(format!("{}: {secret}", self.spot.path))
    }

    /// Notes that this value is wrong.
    pub(super) fn fault(&self, problem: impl Into<String>, allowed: &str) {
        self.report.push(Fault {
            line: self.spot.line,
            path: self.spot.path.clone(),
            problem: problem.into(),
            got: Some(if self.private { "a value not shown".into() } else { shown(self.node) }),
            allowed: (!allowed.is_empty()).then(|| allowed.into()),
        });
    }

    /// Reads a mapping with `read`, then reports its unknown and duplicate keys.
    pub(super) fn section<T>(&self, read: impl FnOnce(&mut Section<'a>) -> T) -> Option<T> {
        let entries = match &self.node.value {
            _ if self.is_outlined("mapping", "") => [].as_slice(),
            Value::Mapping(entries) => entries,
            _ => {
                self.fault("must be a mapping of keys to values", "");
                return None;
            }
        };
        let mut section = Section {
            spot: self.spot.clone(),
            entries,
            known: Vec::new(),
            report: self.report,
            private: self.private,
        };
        let value = read(&mut section);
        section.finish();
        Some(value)
    }

    /// Whether it is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.value, Value::Sequence(_))
    }

    /// The items of a list; faults name them by index from 0.
    pub(super) fn items(&self, allowed: &str) -> Vec<Self> {
        if self.is_outlined("list", allowed) {
            let spot = Spot { path: format!("{}[]", self.spot.path), line: 0 };
            return vec![Self { spot, ..self.clone() }];
        }
        let Value::Sequence(items) = &self.node.value else {
            self.fault("must be a list", allowed);
            return Vec::new();
        };
        let numbered = items.iter().enumerate();
        let item = |(idx, node): (usize, &'a Rc<Node>)| Self {
            spot: Spot { path: format!("{}[{idx}]", self.spot.path), line: node.line },
            node,
            ..self.clone()
        };
        numbered.map(item).collect()
    }

    /// The items of a list that must have some.
    pub(super) fn filled_list(&self, allowed: &str) -> Vec<Self> {
        if matches!(&self.node.value, Value::Sequence(items) if items.is_empty()) {
            self.fault("must not be empty", allowed);
        }
        self.items(allowed)
    }

    /// The text under `key` of a mapping, without noting faults.
    pub(super) fn peek(&self, key: &str) -> Option<&'a str> {
        let Value::Mapping(entries) = &self.node.value else { return None };
        match &entries.iter().find(|entry| entry.key == key)?.node.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The keys of a mapping that may have any, with their values; null ones are left out.
    pub(super) fn free_keys(&self) -> Vec<(&'a str, Self)> {
        let Value::Mapping(entries) = &self.node.value else {
            self.fault("must be a mapping of keys to values", "");
            return Vec::new();
        };
        let mut fields: Vec<(&'a str, Self)> = Vec::new();
        for entry in entries.iter().filter(|entry| !entry.node.is_null()) {
            let spot = Spot { path: joined(&self.spot.path, &entry.key), line: entry.line };
            let field = Self { spot, node: &entry.node, ..self.clone() };
            if fields.iter().any(|(key, _)| *key == entry.key) {
                field.fault("given twice", "each key once");
            } else {
                fields.push((&entry.key, field));
            }
        }
        fields
    }

    /// A scalar's text, whatever its type in YAML; not empty and free of control characters.
    pub(super) fn text(&self, allowed: &str) -> Option<&'a str> {
        if self.is_outlined("text", allowed) {
            return None;
        }
        let text = match &self.node.value {
            Value::Scalar { text, .. } if !self.node.is_null() => text.as_str(),
            _ => {
                self.fault("must be text", allowed);
                return None;
            }
        };
        if text.trim() != text
            || text.is_empty()
            || text.len() > MAX_TEXT
            || text.chars().any(char::is_control)
        {
            self.fault("must be one line of text without blanks at its ends", allowed);
            return None;
        }
        Some(text)
    }

    /// A finite number within `range`; `or_else` names what else may stand there, such as `auto or `.
    pub(super) fn float(&self, range: &RangeInclusive<f64>, or_else: &str) -> Option<f64> {
        let allowed = format!("{or_else}{} to {}", range.start(), range.end());
        if self.is_outlined("number", &allowed) {
            return None;
        }
        // The parser of the standard library also takes `inf` and `nan`.
        let number = self.plain().and_then(|text| text.parse::<f64>().ok()).filter(|n| n.is_finite());
        match number {
            None => self.fault("must be a number", &allowed),
            Some(n) if !range.contains(&n) => self.fault("out of range", &allowed),
            Some(n) => return Some(n),
        }
        None
    }

    /// A whole number within `range`; `1000.0` and `1e3` are the whole number 1000.
    pub(super) fn whole(&self, range: &RangeInclusive<u64>) -> Option<u64> {
        let allowed = format!("whole numbers from {} to {}", range.start(), range.end());
        if self.is_outlined("whole number", &allowed) {
            return None;
        }
        let text = self.plain().unwrap_or_default();
        let number = text.parse::<u64>().ok().or_else(|| whole_from_float(text));
        match number {
            Some(n) if range.contains(&n) => return Some(n),
            Some(_) => self.fault("out of range", &allowed),
            // A negative or huge number is a number all the same.
            None if text.parse::<f64>().is_ok_and(|n| n.is_finite() && n.fract() == 0.0) => {
                self.fault("out of range", &allowed);
            }
            None => self.fault("must be a whole number", &allowed),
        }
        None
    }

    /// A whole number that fits 32 bits.
    pub(super) fn count(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let number = self.whole(&(u64::from(*range.start())..=u64::from(*range.end())))?;
        u32::try_from(number).ok()
    }

    /// A path; a relative one starts at the folder of the configuration.
    pub(super) fn path(&self, allowed: &str) -> Option<PathBuf> {
        if self.is_outlined("path", allowed) {
            return None;
        }
        self.text(allowed).map(|text| self.report.folder.join(text))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self) -> Option<bool> {
        if self.is_outlined("flag", "true, false") {
            return None;
        }
        match self.plain() {
            Some("true" | "True" | "TRUE") => Some(true),
            Some("false" | "False" | "FALSE") => Some(false),
            _ => {
                self.fault("must be true or false", "true, false");
                None
            }
        }
    }

    /// One of `all`, by the name each displays as.
    pub(super) fn choice<T: Copy + Display>(&self, all: &[T]) -> Option<T> {
        let names: Vec<String> = all.iter().map(T::to_string).collect();
        let allowed = names.join(", ");
        let named =
            |text: &str| all.iter().zip(&names).find(|(_, name)| *name == text).map(|(choice, _)| *choice);
        if self.is_outlined("choice", &allowed) {
            return self.report.outline.as_ref()?.assumed(&self.spot.path).and_then(named);
        }
        let text = self.text(&allowed)?;
        let chosen = named(text);
        if chosen.is_none() {
            self.fault(not_one_of("choice", text, names.iter().map(String::as_str)), &allowed);
        }
        chosen
    }

    /// Whether the value is the plain word `word`.
    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(&self.node.value, Value::Scalar { text, .. } if text == word)
    }

    /// The text of an unquoted scalar; quotes would make it text and nothing else.
    fn plain(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, quoted: false } => Some(text),
            _ => None,
        }
    }
}

/// A mapping being read.
pub(super) struct Section<'a> {
    spot: Spot,
    entries: &'a [Entry],
    known: Vec<&'static str>,
    report: &'a Report<'a>,
    private: bool,
}

impl<'a> Section<'a> {
    /// The value of `key`, if it is there and not null.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        if let Some(outline) = &self.report.outline {
            let spot = Spot { path: joined(&self.spot.path, key), line: 0 };
            outline.asked(&spot.path);
            return Some(Field { spot, node: &outline.anything, report: self.report, private: self.private });
        }
        let entry = self.entries.iter().find(|entry| entry.key == key && !entry.node.is_null())?;
        let spot = Spot { path: joined(&self.spot.path, key), line: entry.line };
        Some(Field { spot, node: &entry.node, report: self.report, private: self.private })
    }

    /// The value of `key`, which must be there.
    pub(super) fn require(&mut self, key: &'static str, allowed: &str) -> Option<Field<'a>> {
        let field = self.get(key);
        self.defaults_to(key, &"required");
        if field.is_none() {
            self.fault(key, "required and missing", allowed);
        }
        field
    }

    /// Notes a fault about `key`, which may be absent: then it points at the section.
    pub(super) fn fault(&self, key: &str, problem: impl Into<String>, allowed: &str) {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        self.report.push(Fault {
            line: entry.map_or(self.spot.line, |entry| entry.line),
            path: joined(&self.spot.path, key),
            problem: problem.into(),
            got: entry.filter(|e| !e.node.is_null() && !self.private).map(|e| shown(&e.node)),
            allowed: (!allowed.is_empty()).then(|| allowed.into()),
        });
    }

    /// The section under `key`; an absent one is read as an empty one, so that every default applies.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl Fn(&mut Section<'a>) -> T) -> T {
        let given = self.get(key).and_then(|field| field.section(&read));
        given.unwrap_or_else(|| {
            let spot = Spot { path: joined(&self.spot.path, key), line: self.spot.line };
            read(&mut Section {
                spot,
                entries: &[],
                known: Vec::new(),
                report: self.report,
                private: self.private,
            })
        })
    }

    /// Faults noted so far, so that what depends on several values is judged only where none of them is faulty.
    pub(super) fn fault_count(&self) -> usize {
        self.report.fault_count()
    }

    /// Whether `key` stands in the file, even as null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// What `read` makes of the value of `key`, or `default` where it is absent.
    fn defaulted<T: Display>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(Field<'a>) -> Option<T>,
    ) -> T {
        let given = self.get(key).and_then(read);
        self.defaults_to(key, &default);
        given.unwrap_or(default)
    }

    /// Notes what counts where `key` is absent, if that is wanted.
    fn defaults_to(&self, key: &str, default: &dyn Display) {
        if let Some(outline) = &self.report.outline {
            outline.defaults_to(&joined(&self.spot.path, key), default);
        }
    }

    /// A number, or `default` where the key is absent.
    pub(super) fn float(&mut self, key: &'static str, range: RangeInclusive<f64>, default: f64) -> f64 {
        self.defaulted(key, default, |field| field.float(&range, ""))
    }

    /// A whole number, or `default` where the key is absent.
    pub(super) fn whole(&mut self, key: &'static str, range: RangeInclusive<u64>, default: u64) -> u64 {
        self.defaulted(key, default, |field| field.whole(&range))
    }

    /// A count that fits memory, or `default` where the key is absent.
    pub(super) fn count(&mut self, key: &'static str, range: RangeInclusive<u32>, default: u32) -> u32 {
        self.defaulted(key, default, |field| field.count(range))
    }

    /// A span given in milliseconds, or `default_ms` where the key is absent.
    pub(super) fn ms(&mut self, key: &'static str, range: RangeInclusive<f64>, default_ms: f64) -> Duration {
        Duration::from_secs_f64(self.float(key, range, default_ms) / 1e3)
    }

    /// A path, or `default` where the key is absent; a relative one starts at the folder of the configuration.
    pub(super) fn path(&mut self, key: &'static str, default: &str) -> PathBuf {
        let given = self.get(key).and_then(|field| field.path("a path"));
        self.defaults_to(key, &default);
        given.unwrap_or_else(|| self.report.folder.join(default))
    }

    /// `true` or `false`, or `default` where the key is absent.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.defaulted(key, default, |field| field.flag())
    }

    /// One of `all`, or `default` where the key is absent.
    pub(super) fn choice<T: Copy + Display>(&mut self, key: &'static str, all: &[T], default: T) -> T {
        self.defaulted(key, default, |field| field.choice(all))
    }

    /// Reports keys nobody asked for and keys given twice.
    fn finish(self) {
        let mut first_lines: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in self.entries {
            if let Some(line) = first_lines.get(entry.key.as_str()) {
                self.key_fault(entry, format!("given twice, already on line {line}"), None);
                continue;
            }
            first_lines.insert(&entry.key, entry.line);
            if !self.known.contains(&entry.key.as_str()) {
                let problem = not_one_of("key", &entry.key, self.known.iter().copied());
                self.key_fault(entry, problem, Some(self.known.join(", ")));
            }
        }
    }

    fn key_fault(&self, entry: &Entry, problem: String, allowed: Option<String>) {
        // In a private section even a mistyped key may be a secret in the wrong place.
        let hidden = self.private && nearest(&entry.key, self.known.iter().copied()).is_none();
        let key = match entry.key.as_str() {
            _ if hidden => "(key not shown)",
            "" => "\"\"",
            key => &shortened(key),
        };
        let path = joined(&self.spot.path, key);
        self.report.push(Fault { line: entry.line, path, problem, got: None, allowed });
    }
}

/// `unknown WHAT`, with the nearest of `known` where one is near.
pub(super) fn not_one_of<'k>(what: &str, name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    match nearest(name, known) {
        Some(near) => format!("unknown {what}, did you mean `{near}`?"),
        None => format!("unknown {what}"),
    }
}

fn whole_from_float(text: &str) -> Option<u64> {
    // 2^53: up to here every whole number is exact as f64.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = text.parse::<f64>().ok()?;
    let whole = (0.0..=EXACT).contains(&number) && number.fract() == 0.0;
    whole.then_some(number as u64)
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}

fn shown(node: &Node) -> String {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => "nothing".into(),
        Value::Scalar { text, quoted: false } if text.parse::<f64>().is_ok() => shortened(text),
        Value::Scalar { text, .. } => format!("\"{}\"", shortened(text)),
        Value::Sequence(_) => "a list".into(),
        Value::Mapping(_) => "a mapping".into(),
    }
}

fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
