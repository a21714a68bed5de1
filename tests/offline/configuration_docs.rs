//! docs/CONFIGURATION.md lists every key of the configuration. With `CEMA_WRITE_DOCS=1` in the environment the first test
//! writes it instead.

use std::collections::{BTreeMap, BTreeSet};

use cema_router::config::{Config, reference};
use saphyr_parser::{Event, Parser};

const REFERENCE: &str = include_str!("../fixtures/config/reference.yaml");
const CONFIG: &str = include_str!("../../config.yaml");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/CONFIGURATION.md");

#[test]
fn reference_is_that_of_the_reader() {
    let text = reference().unwrap_or_else(|faults| panic!("\n{faults}"));
    if std::env::var_os("CEMA_WRITE_DOCS").is_some() {
        std::fs::write(PATH, &text).unwrap();
    }
    let written = std::fs::read_to_string(PATH).unwrap();
    assert!(
        written == text,
        "docs/CONFIGURATION.md is not what is read; write it with CEMA_WRITE_DOCS=1:\n{text}"
    );
}

/// Section to its keys with the other cells of their rows.
fn documented() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let text = std::fs::read_to_string(PATH).unwrap();
    let mut sections = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## `") {
            section = heading.trim_end_matches('`').to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            let (key, rest) = row.split_once("` | ").unwrap();
            let cells = rest.trim_end_matches(" |").split(" | ").map(str::to_owned).collect();
            let keys: &mut BTreeMap<_, _> = sections.entry(section.clone()).or_default();
            assert!(keys.insert(key.to_owned(), cells).is_none(), "{key} stands twice in {section}");
        }
    }
    sections
}

/// The paths of all keys in a document, `[]` for each item of a list.
fn paths_in(text: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    // Path of each open collection, and, in a mapping, whether a key comes next.
    let mut open: Vec<(String, Option<bool>)> = Vec::new();
    let mut here = String::new();
    for event in Parser::new_from_str(text) {
        let event = event.unwrap().0;
        if let (Event::Scalar(key, ..), Some((path, Some(next_is_key @ true)))) = (&event, open.last_mut()) {
            *next_is_key = false;
            here = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            paths.insert(here.clone());
            continue;
        }
        match event {
            Event::MappingStart(..) => open.push((here.clone(), Some(true))),
            Event::SequenceStart(..) => {
                here += "[]";
                open.push((here.clone(), None));
            }
            Event::MappingEnd | Event::SequenceEnd => drop(open.pop()),
            Event::Scalar(..) => {}
            _ => continue,
        }
        // After a value: the next item of a list, or the next key of a mapping.
        if let (Event::Scalar(..) | Event::MappingEnd | Event::SequenceEnd, Some((path, next_is_key))) =
            (&event, open.last_mut())
        {
            here.clone_from(path);
            *next_is_key = next_is_key.map(|_| true);
        }
    }
    paths
}

#[test]
fn paths_are_found_in_both_styles() {
    let paths = paths_in("a: 1\nb:\n  - {c: [x, y], d: {e: 2}}\n  - f: []\n    g:\nh: 3\n");
    let expected = ["a", "b", "b[].c", "b[].d", "b[].d.e", "b[].f", "b[].g", "h"];
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn every_key_of_the_files_that_come_with_the_router_is_documented() {
    let documented: BTreeSet<String> = documented()
        .iter()
        .flat_map(|(section, keys)| keys.keys().map(|key| joined(section, key)).collect::<Vec<_>>())
        .collect();
    for text in [REFERENCE, CONFIG] {
        let paths = paths_in(text);
        assert!(paths.len() > 60, "{paths:?}");
        let missing: Vec<_> = paths.difference(&documented).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

fn joined(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// What a section accepts, as the fault of a key it does not know tells it.
fn accepted_in(section: &str) -> BTreeSet<String> {
    let parts = section.split('.').filter(|part| !part.is_empty());
    let document =
        parts.rev().fold("{zzz_unknown: 1}".to_owned(), |inner, part| match part.strip_suffix("[]") {
            Some(list) => format!("{{{list}: [{inner}]}}"),
            None => format!("{{{part}: {inner}}}"),
        });
    let faults = Config::parse(&document, &|_| None).unwrap_err();
    let place = section.replace("[]", "[0]");
    let unknown = faults.into_iter().find(|fault| {
        fault.problem.starts_with("unknown key")
            && fault.path.rsplit_once('.').map_or("", |(place, _)| place) == place
    });
    let allowed = unknown.unwrap_or_else(|| panic!("{document}")).allowed.unwrap();
    allowed.split(", ").map(str::to_owned).collect()
}

#[test]
fn every_key_that_is_accepted_is_documented_and_no_other() {
    let documented = documented();
    assert!(documented.len() > 20, "{:?}", documented.keys());
    for (section, keys) in &documented {
        assert_eq!(accepted_in(section), keys.keys().cloned().collect(), "{section}");
    }
}

#[test]
fn every_row_is_filled_in_and_every_section_is_there() {
    let documented = documented();
    for (section, keys) in &documented {
        for (key, cells) in keys {
            let [kind, allowed, default, meaning] = cells.as_slice() else {
                panic!("{section}.{key}: {cells:?}")
            };
            let is_section = kind.contains("mapping");
            assert!(
                is_section || ![allowed, default].iter().any(|cell| cell.trim().is_empty()),
                "{section}.{key}: {cells:?}"
            );
            assert!(!kind.is_empty() && meaning.len() > 5, "{section}.{key}: {cells:?}");
            let path = joined(section, key);
            let path = if kind.starts_with("list") { path + "[]" } else { path };
            assert_eq!(is_section, documented.contains_key(&path), "{path}");
        }
    }
}

/// A few cells by hand: a default that the reader has, one that depends on the class, one of the list.
#[test]
fn defaults_and_ranges_are_those_of_the_code() {
    let documented = documented();
    let cells = |section: &str, key: &str| documented[section][key][..3].to_vec();
    assert_eq!(cells("limits", "max_attempts"), ["whole number", "1 to 6", "3"]);
    assert_eq!(cells("nodes[].power", "board_watts"), ["number", "0.1 to 100000", "cloud 300, edge 65"]);
    assert_eq!(cells("nodes[].endpoints[]", "url")[2], "required");
    let slots = &cells("nodes[].endpoints[].models[].throughput", "max_concurrency")[2];
    assert_eq!(slots, "vllm 64, ollama 4, llamacpp 4, openai 32");
    assert_eq!(cells("window", "max_hold_ms"), ["number", "auto or 0 to 600000", "auto"]);
}

/// config.yaml says that it shows every key: each is named in it, in place or in a comment.
#[test]
fn config_yaml_names_every_key() {
    let named: BTreeSet<&str> = CONFIG.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for (section, keys) in documented() {
        let missing: Vec<_> = keys.keys().filter(|key| !named.contains(key.as_str())).collect();
        assert!(missing.is_empty(), "{section}: {missing:?}");
    }
}
