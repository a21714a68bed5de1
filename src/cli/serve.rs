//! `cema-router serve`: run the router.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::app::App;
use crate::telemetry::logging::{self, LogFormat};

/// What to do with a running one.
const AFTER_HELP: &str = "\
Examples:
  cema-router serve --config config.yaml --log-format json --log warn,cema_router::scheduler=debug
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"auto\", \"messages\": [{\"role\": \"user\", \"content\": \"Name three colours.\"}]}'
  curl 127.0.0.1:9090/readyz      # 200 while it can take work; the status page is at /
  kill -HUP PID                   # reload the configuration; one with faults changes nothing";

/// Run the router in the foreground until SIGTERM or Ctrl-C
///
/// Applications use the address of the configuration's `listen` as their OpenAI base URL, with `/v1` at the end; status
/// page, metrics and admin API are on `admin_listen`. SIGHUP has it read the configuration again. At the end requests
/// under way may finish for `limits.drain_ms` (30 s); a second signal ends at once.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    /// The configuration file; `check-config` reports what is wrong with one.
    #[arg(long, value_name = "FILE", default_value = "config.yaml")]
    config: PathBuf,
    /// What log lines look like.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What is logged: a level, or levels by module such as `warn,cema_router::scheduler=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Runs the router.
///
/// # Errors
/// A configuration with faults, an address in use, a filter that cannot be read.
pub fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    logging::init(args.log_format, Some(&args.log))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let app = App::start_from(&args.config).await?;
        // Boxed: large, and one of its kind.
        Box::pin(app.run()).await
    })?;
    Ok(ExitCode::SUCCESS)
}
