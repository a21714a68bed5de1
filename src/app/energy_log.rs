//! Energy in the decision log: a line per request and destination, once it is known.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::domain::Destination;
use crate::profiler::power::{PowerProfiler, Settled};
use crate::telemetry::json_log::JsonLog;

/// Writes down what requests drew, once that is known.
pub(super) fn write(
    log: JsonLog,
    power: &PowerProfiler,
    destinations: &Arc<[Destination]>,
) -> impl Future<Output = ()> + Send + use<> {
    keep_writing(log, power.settled(), Arc::clone(destinations))
}

async fn keep_writing(
    log: JsonLog,
    mut settled: broadcast::Receiver<Settled>,
    destinations: Arc<[Destination]>,
) {
    loop {
        match settled.recv().await {
            Ok(settled) => {
                let destination = destinations[settled.destination.idx()].id.clone();
                log.record(move || {
                    serde_json::json!({
                        "kind": "energy",
                        "id": &*settled.request_id,
                        "destination": destination.as_str(),
                        "joules": settled.joules.0,
                        "source": settled.source.as_str(),
                    })
                });
            }
            // Some were missed; those that follow are not.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
