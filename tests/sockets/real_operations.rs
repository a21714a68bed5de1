//! What operators look at, with the real programs: Prometheus over the boards and alert rules, Chromium over the status
//! page. `make test` sets `CEMA_TEST_OPERATIONS` where Debian's prometheus and chromium are installed.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

/// This only turns a hang into a failure.
const SCRIPT_MAX: Duration = Duration::from_secs(300);

/// Runs a script of `scripts/` with this program; it fails with all that the script said.
async fn passes(script: &str) {
    let Some(python) = std::env::var_os("CEMA_TEST_OPERATIONS") else {
        // Not `eprintln!`: the harness would swallow that in a test that passes.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "!! SKIPPED {script}: CEMA_TEST_OPERATIONS is not set (make test sets it)").unwrap();
        return;
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let mut command = Command::new(python);
    command.arg("-B").arg(path).arg(env!("CARGO_BIN_EXE_cema-router")).kill_on_drop(true);
    let run = tokio::time::timeout(SCRIPT_MAX, command.output()).await.expect("it hangs").unwrap();
    let said = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn every_expression_of_boards_and_alerts_has_data() {
    passes("check_dashboards.py").await;
}

#[tokio::test]
async fn the_status_page_works_in_a_browser() {
    passes("check_status_page.py").await;
}
