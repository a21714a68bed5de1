//! The rules of the source tree that no lint knows: who may import whom, what the pure modules must not
//! mention, module documentation, file size.

use std::path::{Path, PathBuf};

/// Top-level modules and the top-level modules each may import. What is not listed is refused.
const LAYERS: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("cpu_time", &["units"]),
    ("domain", &["units"]),
    ("statistics", &[]),
    ("routing", &["units", "domain"]),
    ("planning", &["units", "domain", "routing"]),
    ("problem_file", &["units", "domain", "routing"]),
    ("plot", &[]),
    ("decision", &["units", "domain", "statistics", "routing", "planning", "problem_file"]),
    ("simulate", &["units", "domain", "statistics", "routing", "planning", "plot"]),
    ("endpoint", &["units", "domain", "telemetry"]),
    ("profiler", &["units", "domain", "statistics", "endpoint", "telemetry"]),
    (
        "scheduler",
        &[
            "units",
            "domain",
            "statistics",
            "routing",
            "planning",
            "profiler",
            "telemetry",
            "decision",
            "cpu_time",
        ],
    ),
    (
        "request_manager",
        &["units", "domain", "routing", "planning", "scheduler", "endpoint", "profiler", "telemetry"],
    ),
    (
        "proxy",
        &[
            "units",
            "domain",
            "decision",
            "request_manager",
            "scheduler",
            "endpoint",
            "routing",
            "profiler",
            "telemetry",
        ],
    ),
    ("calibrate", &["units", "domain", "endpoint"]),
    ("telemetry", &[]),
    ("config", &["units", "domain", "routing", "planning", "endpoint", "profiler", "telemetry", "simulate"]),
    (
        "app",
        &[
            "units",
            "domain",
            "routing",
            "planning",
            "decision",
            "endpoint",
            "profiler",
            "scheduler",
            "request_manager",
            "proxy",
            "telemetry",
            "config",
        ],
    ),
    (
        "cli",
        &[
            "units",
            "domain",
            "routing",
            "planning",
            "problem_file",
            "decision",
            "statistics",
            "endpoint",
            "profiler",
            "scheduler",
            "request_manager",
            "proxy",
            "telemetry",
            "config",
            "app",
            "cpu_time",
            "simulate",
            "plot",
            "calibrate",
        ],
    ),
    ("main", &["cli"]),
];

/// Modules above the scheduler see routing's errors and nothing else of it.
const ERRORS_ONLY: &[(&str, &str)] = &[("request_manager", "routing"), ("proxy", "routing")];

/// Modules whose outcome depends on their arguments alone.
const PURE: &[&str] = &["units", "domain", "statistics", "routing", "planning", "plot", "simulate"];

/// What a pure module must not mention.
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "tracing",
    "prometheus",
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
];

/// Most lines of code in a file; tests, comments and blank lines do not count.
const MAX_CODE_LINES: usize = 400;

#[test]
fn the_source_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = rust_files(root, "src");
    assert!(files.iter().any(|(path, _)| path == "src/lib.rs"), "{:?}", files.len());
    let found: Vec<String> = files.iter().flat_map(|(path, text)| source_violations(path, text)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn no_test_is_skipped_and_nothing_is_left_to_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "tests", "benches", "examples"];
    let files = folders.iter().flat_map(|folder| rust_files(root, folder));
    let found: Vec<String> = files.flat_map(|(path, text)| leftovers(&path, &text)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Every violation in one file of `src/`, as `path:line: what`.
fn source_violations(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with("//!")) {
        found.push(format!("{path}:1: starts without module documentation (`//!`)"));
    }
    let whole_file_is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    let production = if whole_file_is_test { "" } else { before_tests(text) };
    let code_lines = code(production).count();
    if code_lines > MAX_CODE_LINES {
        found.push(format!("{path}:1: {code_lines} lines of code, more than {MAX_CODE_LINES}"));
    }
    let module = top_level_module(path);
    // lib.rs declares modules and imports nothing.
    let allowed = LAYERS.iter().find(|(name, _)| *name == module).map(|(_, allowed)| *allowed);
    if allowed.is_none() && module != "lib" {
        found.push(format!("{path}:1: module `{module}` is not in the layer table of tests/offline/tidy.rs"));
    }
    for (number, line) in code(text) {
        found.extend(
            import_violations(module, allowed.unwrap_or(&[]), line).map(|v| format!("{path}:{number}: {v}")),
        );
    }
    for (number, line) in code(production) {
        let is_top_level_file = path.ends_with("/mod.rs") && path.matches('/').count() == 2;
        let escapes = (is_top_level_file || path.matches('/').count() == 1) && line.contains("super::");
        if escapes {
            found.push(format!(
                "{path}:{number}: `super::` leads out of the top-level module; write `crate::`"
            ));
        }
        if PURE.contains(&module) {
            found.extend(impurities(line).map(|v| format!("{path}:{number}: a pure module mentions {v}")));
        }
    }
    found
}

/// What is wrong with the cross-module paths in one line of `module`.
fn import_violations(module: &str, allowed: &[&str], line: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    if line.contains("super::super") {
        found.push("`super::super` hides where a path leads; write `crate::`".to_owned());
    }
    let root = if module == "main" { "cema_router::" } else { "crate::" };
    for (at, _) in line.match_indices(root).filter(|(at, _)| starts_word(line, *at)) {
        let rest = &line[at + root.len()..];
        let target: String = rest.chars().take_while(|c| is_word(*c)).collect();
        if target.is_empty() {
            found.push("a group after `crate::` hides imports; one module per line".to_owned());
        } else if target != module && !allowed.contains(&target.as_str()) {
            found.push(format!("`{module}` must not import `{target}`"));
        } else if ERRORS_ONLY.contains(&(module, target.as_str())) && !names_errors_only(rest) {
            found.push(format!("`{module}` may import only error types of `{target}`"));
        }
    }
    found.into_iter()
}

/// Whether a path such as `routing::error::RoutingError;` or `routing::{AError, BError}` ends in error types.
fn names_errors_only(path: &str) -> bool {
    let path: String = path.chars().take_while(|c| is_word(*c) || ":{}, ".contains(*c)).collect();
    let (_, leaves) = path.split_once('{').unwrap_or_else(|| path.rsplit_once("::").unwrap_or(("", &path)));
    let names = leaves.split(|c| !is_word(c)).filter(|name| !name.is_empty());
    // An inline path goes on after the type: `routing::RoutingError::NoDestination`.
    names.clone().count() > 0 && names.into_iter().all(|n| n.ends_with("Error")) || path.contains("Error::")
}

fn impurities(line: &str) -> impl Iterator<Item = &'static str> {
    let hidden = line.contains("std::{").then_some("a group after `std::`, which hides what is imported");
    let named = IMPURE.iter().copied().filter(move |word| {
        line.match_indices(word)
            .any(|(at, _)| starts_word(line, at) && !line[at + word.len()..].starts_with(is_word))
    });
    named.chain(hidden).collect::<Vec<_>>().into_iter()
}

/// Skipped tests and unfinished code.
fn leftovers(path: &str, text: &str) -> Vec<String> {
    let marks = [
        concat!("#[", "ignore"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[", "allow("),
    ];
    let lines = code(text).flat_map(|(number, line)| {
        marks.iter().filter(|mark| line.contains(**mark)).map(move |mark| format!("{path}:{number}: {mark}"))
    });
    lines.collect()
}

/// Lines of code with their numbers: no blank lines, no comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(idx, line)| (idx + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with("//")).map(|(number, line)| {
        // A trailing comment; ` // ` within a string would only hide the rest of that string.
        (number, line.split(" // ").next().unwrap_or(line))
    })
}

/// The text up to the test module at the end of the file.
fn before_tests(text: &str) -> &str {
    let tests = text
        .match_indices("#[cfg(test)]")
        .find(|(at, mark)| text[at + mark.len()..].trim_start().starts_with("mod "));
    tests.map_or(text, |(at, _)| &text[..at])
}

/// `routing` for `src/routing/memetic/repair.rs`, `units` for `src/units.rs`.
fn top_level_module(path: &str) -> &str {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs")
}

fn starts_word(line: &str, at: usize) -> bool {
    !line[..at].ends_with(is_word)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every Rust file below `root/folder`, as path from `root` and text; a missing folder has none.
fn rust_files(root: &Path, folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let relative = path.strip_prefix(root).unwrap().components();
                let relative: Vec<_> = relative.map(|part| part.as_os_str().to_str().unwrap()).collect();
                files.push((relative.join("/"), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

mod planted {
    //! Each rule finds a violation planted in a string, and leaves alone what only looks like one.
    use super::*;

    fn violations(path: &str, body: &str) -> Vec<String> {
        source_violations(path, &format!("//! Documented.\n{body}\n"))
    }

    #[track_caller]
    fn assert_found(path: &str, body: &str, what: &str) {
        let found = violations(path, body);
        assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}:")), "{found:?}");
    }

    #[track_caller]
    fn assert_clean(path: &str, body: &str) {
        assert_eq!(violations(path, body), Vec::<String>::new());
    }

    #[test]
    fn imports_go_down_the_layers_only() {
        assert_clean("src/routing/a.rs", "use crate::domain::request::Weights;\nuse crate::routing::b::C;");
        assert_found(
            "src/routing/a.rs",
            "use crate::profiler::X;",
            "a.rs:2: `routing` must not import `profiler`",
        );
        assert_found("src/routing/a.rs", "pub(crate) use crate::config::X;", "must not import `config`");
        assert_found("src/units.rs", "use crate::domain::X;", "`units` must not import `domain`");
        assert_found("src/domain/a/b.rs", "fn f() { crate::routing::g() }", "must not import `routing`");
        assert_found(
            "src/scheduler/mod.rs",
            "#[cfg(test)]\nmod tests { use crate::proxy::X; }",
            "import `proxy`",
        );
        assert_found("src/app.rs", "use crate::cli::X;", "`app` must not import `cli`");
        assert_clean("src/cli/serve.rs", "use crate::app::run;");
        assert_found("src/main.rs", "use cema_router::app::run;", "`main` must not import `app`");
        assert_clean("src/main.rs", "fn main() { cema_router::cli::run() }");
    }

    #[test]
    fn a_module_without_a_layer_is_refused() {
        assert_found("src/helpers.rs", "", "`helpers` is not in the layer table");
        assert_clean("src/lib.rs", "pub mod units;");
    }

    #[test]
    fn the_upper_layers_see_routing_errors_only() {
        assert_clean("src/proxy/respond.rs", "use crate::routing::RoutingError;");
        assert_clean("src/proxy/respond.rs", "use crate::routing::error::{LegalityError, RoutingError};");
        assert_clean("src/proxy/respond.rs", "match e { crate::routing::RoutingError::Empty => 1 }");
        assert_found("src/proxy/respond.rs", "use crate::routing::Evaluator;", "only error types");
        assert_found(
            "src/request_manager/a.rs",
            "use crate::routing::{RoutingError, Policy};",
            "only error types",
        );
        assert_clean("src/scheduler/mod.rs", "use crate::routing::Evaluator;");
    }

    #[test]
    fn paths_say_where_they_lead() {
        assert_found("src/routing/a.rs", "use crate::{domain, units};", "group after `crate::`");
        assert_found("src/routing/a/b.rs", "use super::super::c;", "`super::super`");
        assert_found("src/routing/mod.rs", "use super::profiler::X;", "leads out of the top-level module");
        assert_found("src/units.rs", "use super::profiler::X;", "leads out of the top-level module");
        assert_clean("src/routing/a.rs", "use super::b;");
        assert_clean("src/units.rs", "#[cfg(test)]\nmod tests {\n    use super::*;\n}");
    }

    #[test]
    fn pure_modules_touch_nothing_outside() {
        for line in [
            "use tokio::sync::mpsc;",
            "use std::time::Instant;",
            "fn f() { std::fs::read(p); }",
            "let m: HashMap<u8, u8>;",
            "tracing::info!(x);",
            "use std::{env, fmt};",
            "use std::time::SystemTime;",
        ] {
            assert_found("src/planning/a.rs", line, "a pure module mentions");
            assert_clean("src/profiler/a.rs", line);
        }
        assert_clean(
            "src/planning/a.rs",
            "// tokio is not used here\n/// nor HashMap\nlet hyperbola = 1; // hyper",
        );
        assert_clean("src/planning/a.rs", "#[cfg(test)]\nmod tests { use std::collections::HashMap; }");
    }

    #[test]
    fn files_are_documented_and_short() {
        let undocumented = source_violations("src/units.rs", "pub struct A;\n");
        assert_eq!(undocumented.len(), 1, "{undocumented:?}");
        assert!(undocumented[0].contains("module documentation"));
        let line = "fn f() {}\n";
        assert_clean("src/units.rs", &line.repeat(MAX_CODE_LINES));
        assert_found("src/units.rs", &line.repeat(MAX_CODE_LINES + 1), "401 lines of code");
        let padded = format!("{}{}", "// why\n\n".repeat(300), line.repeat(MAX_CODE_LINES));
        assert_clean("src/units.rs", &padded);
        assert_clean("src/units.rs", &format!("{line}#[cfg(test)]\nmod tests {{\n{}}}", line.repeat(500)));
        // A test-only item in the middle does not hide the rest of the file.
        let hidden = format!("#[cfg(test)]\nconst A: u8 = 1;\n{}", line.repeat(MAX_CODE_LINES));
        assert_found("src/units.rs", &hidden, "402 lines of code");
    }

    #[test]
    fn skipped_tests_and_unfinished_code_are_found() {
        for mark in [concat!("#[", "ignore]"), concat!("todo", "!()"), concat!("#[", "allow(dead_code)]")] {
            assert_eq!(leftovers("tests/a.rs", &format!("fn f() {{}}\n{mark}\n")).len(), 1, "{mark}");
        }
        assert!(leftovers("tests/a.rs", "// todo: none\n#[test]\nfn f() {}\n").is_empty());
    }
}
