//! What other weights would have done with the last batches. Nothing is put in force.

use http::Response;
use serde::Deserialize;
use serde_json::json;

use super::{AdminParts, shown};
use crate::decision::replay::report::CAVEAT;
use crate::decision::replay::{Change, Replay};
use crate::domain::Weights;
use crate::proxy::openai::ApiError;
use crate::proxy::respond::ResponseBody;

/// Plans that are decided again at most.
const PLANS_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    weights: Weights,
}

/// The last plans under the weights that `body` asks for.
pub(super) async fn answer(parts: &AdminParts, body: Vec<u8>) -> Result<Response<ResponseBody>, ApiError> {
    let form = r#"{"weights": {"quality": 0.25, "cost": 0.25, "energy": 0.25, "time": 0.25}}"#;
    let wrong = |detail: String| ApiError::bad_request(format!("{detail}; send {form}"), None, None);
    let asked: Asked = serde_json::from_slice(&body).map_err(|error| wrong(error.to_string()))?;
    let weights = asked.weights.normalised();
    let weights =
        weights.ok_or_else(|| wrong("weights are not negative, and one of them is positive".into()))?;
    let plans = parts.scheduler.decisions().latest(PLANS_MAX);
    let deciding = tokio::task::spawn_blocking(move || {
        let mut replay = Replay::new(Change { weights: Some(weights), ..Change::default() });
        let mut n_skipped = 0_u32;
        for plan in plans.iter().rev() {
            n_skipped += u32::from(replay.solved(plan).is_err());
        }
        (replay.report(), n_skipped)
    });
    let failed = |_| ApiError::internal("the batches could not be decided again");
    let (report, n_skipped) = deciding.await.map_err(failed)?;
    shown(&json!({ "weights": weights, "report": report, "n_skipped": n_skipped, "model_based": CAVEAT }))
}
