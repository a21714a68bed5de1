//! Pythons with packages that tests need.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

/// The Python that `variable` names. Without it the test cannot run: it says so past the harness and gets
/// `None`, or fails where `make test` promised to bring it.
pub(crate) fn python_or_skip(variable: &str) -> Option<OsString> {
    let named = std::env::var_os(variable);
    if let Some(python) = &named {
        assert!(
            Path::new(python).exists(),
            "{variable} is {}, which is not there: run `make setup`",
            python.display()
        );
        return named;
    }
    let is_required = std::env::var_os("CEMA_REQUIRE_EMBEDDER").is_some_and(|value| value == "1");
    assert!(!is_required, "{variable} is not set");
    // Not `eprintln!`: the harness would swallow that in a test that passes.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "!! SKIPPED a test against real servers: {variable} is not set (make test sets it)")
        .unwrap();
    None
}
