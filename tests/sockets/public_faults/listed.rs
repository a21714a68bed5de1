//! docs/FAULTS.md names the test of every case, and every test it names exists.

use std::collections::BTreeSet;
use std::path::Path;

/// The cases that the list must have.
const CASES: [&str; 16] = [
    "P01", "P02", "P04", "P05", "P07", "P09", "P10", "P11", "P13", "P15", "P16", "P19", "P21", "P22", "P23",
    "P26",
];

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between backticks.
fn quoted(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2)
}

/// Whether `tests/sockets/{file}.rs` or `tests/offline/{file}.rs` has a test called `name`.
fn has_test(file: &str, name: &str) -> bool {
    let path = format!("{}.rs", file.replace("::", "/"));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let found =
        ["sockets", "offline"].map(|set| tests.join(set).join(&path)).into_iter().find(|p| p.is_file());
    let Some(text) = found.map(|path| read(&path)) else { return false };
    let head = format!("fn {name}()");
    text.match_indices(&head).any(|(at, _)| {
        let before = text[..at].trim_end().trim_end_matches("async").trim_end();
        before.ends_with("#[tokio::test]") || before.ends_with("#[test]")
    })
}

#[test]
fn every_case_has_a_test_that_exists() {
    let list = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/FAULTS.md"));
    let rows: Vec<&str> = list.lines().filter(|line| line.starts_with("| P")).collect();
    let mut missing = Vec::new();
    for row in &rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let &[case, fault, sources, tests] = &cells[..] else { panic!("four cells: {row}") };
        assert!(!fault.is_empty() && sources.contains('#') && sources.contains('/'), "{row}");
        let named: Vec<&str> = quoted(tests).collect();
        assert!(!named.is_empty(), "{case} names no test");
        for test in named {
            let (file, name) = test.rsplit_once("::").unwrap_or_else(|| panic!("{case}: {test}"));
            if !has_test(file, name) {
                missing.push(format!("{case}: {test}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let listed: BTreeSet<&str> = rows.iter().filter_map(|row| row.split_whitespace().nth(1)).collect();
    assert_eq!(listed, BTreeSet::from(CASES));
    assert!(!has_test("public_faults::listed", "no_such_test") && !has_test("public_faults::listed", "read"));
}
