//! docs/CONFIGURATION.md: every key with type, range and default as the reader has them, and what keys.txt says of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use super::outline::{Key, Outline};
use super::read_config;
use super::reader::Field;
use super::report::Report;
use crate::domain::destination::NodeClass;
use crate::endpoint::EndpointKind;

/// Meanings, in a form told of in its head.
const KEYS: &str = include_str!("keys.txt");

const HEAD: &str = "# Configuration

Every key of the configuration, generated from what the router's reader accepts
(`CEMA_WRITE_DOCS=1 cargo nextest run reference_is_that_of_the_reader`); a test keeps it true.
[config.yaml](../config.yaml) shows them in place; `cema-router check-config FILE` says everything that is wrong with a
file, unknown keys included. `[]` stands for each item of a list. A key that is given as nothing (`key:`, `null`) is absent.
Sections that are absent have all their defaults. Relative paths start at the folder of the file. A `variable` is the name
of an environment variable: secrets never stand in the file. `*_ms` are milliseconds, `*_s` seconds, and may be fractions.
";

/// The reference of the configuration, in Markdown.
///
/// # Errors
/// Keys without a meaning or a default, and meanings without a key: each on a line.
pub fn reference() -> Result<String, String> {
    let (keys, notes) = (keys(), notes());
    let found = unexplained(&keys, &notes);
    if !found.is_empty() {
        return Err(found.join("\n"));
    }
    let mut text = HEAD.to_owned();
    // The document itself, then each mapping, in the order they are asked for.
    for section in std::iter::once("").chain(keys.iter().filter(|key| is_mapping(key)).map(|key| &*key.path))
    {
        write_section(&mut text, section, &keys, &notes);
    }
    Ok(text)
}

/// The keys as the reader asks for them with `assumed` chosen.
fn outline(assumed: Option<(&'static str, &'static str)>) -> Vec<Key> {
    let no_env = |_: &str| None;
    let report = Report::new(&no_env, Path::new("")).outlining(Outline::new(assumed));
    if let Some(outline) = &report.outline {
        Field::root(&outline.anything, &report).section(read_config);
    }
    report.into_outline().map(Outline::into_keys).unwrap_or_default()
}

/// What the default of some keys depends on: its path, and what it may be.
fn choices() -> [(&'static str, Vec<&'static str>); 2] {
    [
        ("nodes[].class", NodeClass::ALL.iter().map(|class| class.as_str()).collect()),
        ("nodes[].endpoints[].kind", EndpointKind::ALL.iter().map(|kind| kind.as_str()).collect()),
    ]
}

/// Every key. A default that depends on a choice is told for each.
fn keys() -> Vec<Key> {
    let mut keys = outline(None);
    for (path, choices) in choices() {
        let outlines: Vec<_> =
            choices.into_iter().map(|choice| (choice, outline(Some((path, choice))))).collect();
        for (idx, key) in keys.iter_mut().enumerate() {
            let defaults =
                outlines.iter().filter_map(|(choice, keys)| Some((*choice, keys[idx].default.clone()?)));
            let defaults: Vec<_> = defaults.collect();
            if defaults.iter().map(|(_, default)| default).collect::<BTreeSet<_>>().len() > 1 {
                let told =
                    defaults.iter().map(|(choice, default)| format!("{choice} {}", shortened(default)));
                key.default = Some(told.collect::<Vec<_>>().join(", "));
            }
        }
    }
    keys
}

/// A computed number with three digits of its fraction at most.
fn shortened(number: &str) -> String {
    match number.parse::<f64>() {
        Ok(value) => format!("{}", (value * 1e3).round() / 1e3),
        Err(_) => number.into(),
    }
}

/// What keys.txt says of a key.
struct Note {
    path: &'static str,
    default: Option<&'static str>,
    meaning: String,
}

impl Note {
    /// Whether it is about the key at `path`.
    fn is_of(&self, path: &str) -> bool {
        let any_start = self.path.strip_prefix('*');
        any_start.map_or(path == self.path, |end| path.ends_with(end))
    }
}

fn notes() -> Vec<Note> {
    let mut notes: Vec<Note> = Vec::new();
    for line in KEYS.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("    "), notes.last_mut()) {
            (Some(more), Some(note)) if note.meaning.is_empty() => note.meaning = more.into(),
            (Some(more), Some(note)) => note.meaning = format!("{} {more}", note.meaning),
            _ => {
                let (path, default) =
                    line.split_once(" = ").map_or((line, None), |(path, d)| (path, Some(d)));
                notes.push(Note { path, default, meaning: String::new() });
            }
        }
    }
    notes
}

fn note_of<'n>(path: &str, notes: &'n [Note]) -> Option<&'n Note> {
    notes.iter().find(|note| note.is_of(path))
}

/// What does not fit together.
fn unexplained(keys: &[Key], notes: &[Note]) -> Vec<String> {
    let mut found = Vec::new();
    for key in keys {
        let mut paths = vec![key.path.clone()];
        if key.kinds.first() == Some(&"list") && is_mapping(key) {
            paths.push(format!("{}[]", key.path));
        }
        for path in paths {
            let n_notes = notes.iter().filter(|note| note.is_of(&path) && !note.meaning.is_empty()).count();
            if n_notes != 1 {
                found.push(format!("{path}: {n_notes} meanings in keys.txt"));
            }
        }
        let noted = note_of(&key.path, notes).is_some_and(|note| note.default.is_some());
        if is_mapping(key) || noted != key.default.is_some() {
            continue;
        }
        found.push(format!("{}: a default in either the reader or keys.txt, in one of them", key.path));
    }
    let is_known =
        |note: &Note| keys.iter().any(|key| note.is_of(&key.path) || note.is_of(&format!("{}[]", key.path)));
    found.extend(
        notes.iter().filter(|note| !is_known(note)).map(|note| format!("{}: no such key", note.path)),
    );
    found
}

/// Whether a key is a section of its own, or a list of sections.
fn is_mapping(key: &Key) -> bool {
    key.kinds.last() == Some(&"mapping")
}

fn write_section(text: &mut String, section: &str, keys: &[Key], notes: &[Note]) {
    let is_list = keys.iter().any(|key| key.path == section && key.kinds.first() == Some(&"list"));
    let path = if is_list { format!("{section}[]") } else { section.to_owned() };
    // Writing to a string does not fail.
    if !path.is_empty() {
        let _ = write!(text, "\n## `{path}`\n\n");
        let meanings = [section, &path].into_iter().collect::<BTreeSet<_>>();
        for note in meanings.into_iter().filter_map(|path| note_of(path, notes)) {
            let default = note.default.map(|default| format!(" Default: {default}.")).unwrap_or_default();
            let _ = writeln!(text, "{}{default}", note.meaning);
        }
    }
    text.push_str("\n| key | type | may be | default | meaning |\n|---|---|---|---|---|\n");
    for key in keys {
        let Some(name) = name_in(&key.path, &path) else { continue };
        let note = note_of(&key.path, notes);
        let (kind, allowed) = (kind_of(key), key.allowed.join(": "));
        let allowed = allowed.trim_start_matches("whole numbers from ");
        let default = key.default.clone().or_else(|| note?.default.map(str::to_owned)).unwrap_or_default();
        let meaning = if is_mapping(key) {
            let anchor = key.path.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "");
            format!("[below](#{anchor})")
        } else {
            note.map(|note| note.meaning.clone()).unwrap_or_default()
        };
        let _ = writeln!(text, "| `{name}` | {kind} | {allowed} | {default} | {meaning} |");
    }
}

/// The last part of `path` where it stands directly in `section`.
fn name_in<'p>(path: &'p str, section: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(section)?;
    let name = if section.is_empty() { rest } else { rest.strip_prefix('.')? };
    (!name.contains('.')).then_some(name)
}

/// `list of mappings` for a list that was read as one of mappings.
fn kind_of(key: &Key) -> String {
    match key.kinds.as_slice() {
        ["list", of, ..] => format!("list of {of}s"),
        [kind, ..] => (*kind).to_owned(),
        [] => String::new(),
    }
}
