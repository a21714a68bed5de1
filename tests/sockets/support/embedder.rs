//! The one place that decides what happens to a test that needs the real embedding model.

use std::io::Write as _;
use std::path::Path;

use cema_router::profiler::quality::EmbedderParams;
use cema_router::profiler::quality::embedder::locate;

/// Parameters of the model that `make setup` fetched.
///
/// Without it the test cannot run: it says so on standard error (past the test harness) and gets `None`,
/// or fails if `CEMA_REQUIRE_EMBEDDER` is 1, as `make test` sets it.
pub(crate) fn embedder_or_skip(test: &str) -> Option<EmbedderParams> {
    let cache_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/cema");
    let params = EmbedderParams { cache_dir, threads: 2, ..EmbedderParams::default() };
    let missing = match locate(&params) {
        Ok(_) if cfg!(feature = "onnx") => return Some(params),
        Ok(_) => "built without feature `onnx`".to_owned(),
        Err(error) => error.to_string(),
    };
    let is_required = std::env::var_os("CEMA_REQUIRE_EMBEDDER").is_some_and(|value| value == "1");
    assert!(!is_required, "{test} needs the embedder: {missing}");
    // Not `eprintln!`: the harness would swallow that in a test that passes.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "!! SKIPPED {test}: {missing}").unwrap();
    None
}
