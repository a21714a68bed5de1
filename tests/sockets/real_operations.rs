//! What operators look at and install, with the real programs: Prometheus over the boards and alert rules, Chromium over
//! the status page, and the Debian package in a clean root. `make test` sets `CEMA_TEST_OPERATIONS` where Debian's prometheus and
//! chromium are installed; `CEMA_TEST_PACKAGE` is for whoever has made a package, as root.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

/// This only turns a hang into a failure.
const SCRIPT_MAX: Duration = Duration::from_secs(300);

/// What the variable says; `None`, said aloud, where it is not set.
fn wanted(variable: &str, script: &str) -> Option<OsString> {
    let value = std::env::var_os(variable);
    if value.is_none() {
        // Not `eprintln!`: the harness would swallow that in a test that passes.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "!! SKIPPED {script}: {variable} is not set").unwrap();
    }
    value
}

/// Runs a script of `scripts/` by `program` with these arguments; it fails with all that the script said.
async fn passes(program: &OsStr, script: &str, arguments: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let mut command = Command::new(program);
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(path).args(arguments).kill_on_drop(true);
    let run = tokio::time::timeout(SCRIPT_MAX, command.output()).await.expect("it hangs").unwrap();
    let said = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// A script that takes the binary.
async fn passes_with_binary(script: &str) {
    if let Some(python) = wanted("CEMA_TEST_OPERATIONS", script) {
        passes(&python, script, &[env!("CARGO_BIN_EXE_cema-router")]).await;
    }
}

#[tokio::test]
async fn every_expression_of_boards_and_alerts_has_data() {
    passes_with_binary("check_dashboards.py").await;
}

#[tokio::test]
async fn the_status_page_works_in_a_browser() {
    passes_with_binary("check_status_page.py").await;
}

#[tokio::test]
async fn the_package_works_in_a_clean_root() {
    let script = "package_test.sh";
    if wanted("CEMA_TEST_PACKAGE", script).is_some() {
        passes(OsStr::new("bash"), script, &[]).await;
    }
}
