//! Feedback in the decision log: a line per score, once it is stored.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::domain::Destination;
use crate::profiler::quality::feedback::{Feedback, Given};
use crate::telemetry::decision_log::DecisionLog;

/// Writes down what clients say of answers.
pub(super) fn write(
    log: DecisionLog,
    feedback: &Feedback,
    destinations: &Arc<[Destination]>,
) -> impl Future<Output = ()> + Send + use<> {
    keep_writing(log, feedback.given(), Arc::clone(destinations))
}

async fn keep_writing(
    log: DecisionLog,
    mut given: broadcast::Receiver<Given>,
    destinations: Arc<[Destination]>,
) {
    loop {
        match given.recv().await {
            Ok(given) => {
                let destination = destinations[given.answered.destination.idx()].id.clone();
                log.record(move || {
                    serde_json::json!({
                        "kind": "feedback",
                        "id": &*given.answered.id,
                        "destination": destination.as_str(),
                        "score": given.score.0,
                        "previous": given.previous.map(|score| score.0),
                        "predicted": given.answered.predicted.0,
                        "label": given.label.as_deref(),
                    })
                });
            }
            // Some were missed; those that follow are not.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
