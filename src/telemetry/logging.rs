//! Logs to standard error, as text or as JSON lines.
//!
//! Levels: error = an operator must act, warn = degraded, info = lifecycle, debug = per batch, trace = per
//! request. Prompts and keys are never logged.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// What is logged where no filter is given.
const DEFAULT_FILTER: &str = "info";

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    #[default]
    Text,
    /// A JSON object per line, for log collectors.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter cannot be read.
    #[error(
        "log filter `{filter}` is not of the form LEVEL or MODULE=LEVEL,..., such as `info,cema_router=debug`"
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Something else set up logging in this process before.
    #[error("logging is set up already")]
    AlreadySet(#[from] TryInitError),
}

/// Sends the process's logs to standard error. `filter` takes directives such as `info,cema_router=debug`;
/// `None` = `info`.
///
/// # Errors
/// Where the filter cannot be read or logging was set up before.
pub fn init(format: LogFormat, filter: Option<&str>) -> Result<(), LoggingError> {
    let coloured = std::io::stderr().is_terminal();
    subscriber(format, filter, coloured, std::io::stderr)?.try_init()?;
    Ok(())
}

fn subscriber<W>(
    format: LogFormat,
    filter: Option<&str>,
    coloured: bool,
    writer: W,
) -> Result<impl Subscriber + Send + Sync, LoggingError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = filter.unwrap_or(DEFAULT_FILTER);
    let directives = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| LoggingError::Filter { filter: filter.into(), source })?;
    // The HTTP client logs addresses of endpoints; only who asks for it by name sees them.
    let quiet = (!filter.contains("hyper")).then(|| "hyper_util=warn".parse().ok()).flatten();
    let directives = match quiet {
        Some(quiet) => directives.add_directive(quiet),
        None => directives,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(coloured);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines.with_filter(directives)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: Option<&str>) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = subscriber(format, filter, false, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(batch_id = 7, "window closed");
            tracing::debug!("detail");
        });
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn info_is_the_default_and_a_filter_changes_it() {
        let text = logged(LogFormat::Text, None);
        assert!(text.contains("INFO") && text.contains("window closed batch_id=7"), "{text}");
        assert!(!text.contains("detail"), "{text}");
        assert!(logged(LogFormat::Text, Some("cema_router=debug")).contains("detail"));
        assert_eq!(logged(LogFormat::Text, Some("error")), "");
    }

    #[test]
    fn json_is_one_object_per_line() {
        let text = logged(LogFormat::Json, Some("debug"));
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["message"], &lines[0]["batch_id"]), (&"window closed".into(), &7.into()));
    }

    #[test]
    fn a_bad_filter_is_refused_with_its_text() {
        let error =
            subscriber(LogFormat::Text, Some("cema_router=loud"), false, std::io::sink).err().unwrap();
        assert!(error.to_string().contains("`cema_router=loud`"), "{error}");
    }
}
