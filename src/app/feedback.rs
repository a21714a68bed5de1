//! What clients say of answers, and who is told of it: metrics, the comparison of policies, the decision log.

use std::sync::Arc;

use prometheus::Registry;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::generation::stop_aware;
use crate::config::Config;
use crate::domain::Destination;
use crate::profiler::quality::QualityService;
use crate::profiler::quality::feedback::{Feedback, FeedbackStartError, Given};
use crate::request_manager::RequestManager;
use crate::telemetry::json_log::JsonLog;

/// The way for feedback into the store of `config`.
pub(super) fn start(
    config: &Config,
    (quality, destinations): (QualityService, &[Destination]),
    registry: &Registry,
) -> Result<Feedback, FeedbackStartError> {
    let params = config.quality.feedback.clone();
    Feedback::start(params, &config.quality.store, (quality, destinations), registry)
}

/// Tells whoever wants to know what clients say of answers, until `end`.
pub(super) fn spawn_readers(
    (tasks, end): (&TaskTracker, &CancellationToken),
    feedback: &Feedback,
    log: JsonLog,
    manager: &RequestManager,
) {
    tasks.spawn(stop_aware(end.clone(), manager.follow_feedback(feedback.given())));
    if log.is_on() {
        let writing = keep_writing(log, feedback.given(), Arc::clone(manager.destinations()));
        tasks.spawn(stop_aware(end.clone(), writing));
    }
    if let Some(switchback) = manager.switchback() {
        tasks.spawn(stop_aware(end.clone(), switchback.clone().follow_feedback(feedback.given())));
    }
}

/// A line in the decision log for each score, once it is stored.
async fn keep_writing(log: JsonLog, mut given: broadcast::Receiver<Given>, destinations: Arc<[Destination]>) {
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
