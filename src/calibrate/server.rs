//! What a server says of itself without being given any work.

use std::time::Duration;

use http::StatusCode;

use crate::domain::EndpointOrd;
use crate::endpoint::{EndpointKind, EndpointPool};

/// Time for such a page.
const PAGE_LIMIT: Duration = Duration::from_secs(10);

/// Requests it runs at once; `None` where it does not say.
pub async fn slots(pool: &EndpointPool, endpoint: EndpointOrd) -> Option<u32> {
    let path = pool.spec(endpoint).kind.slots_path()?;
    let body = page(pool, endpoint, path).await?;
    EndpointKind::read_slots(&body)
}

/// Whether `model` is in memory; `None` where it does not say, as servers that load at their start.
pub async fn is_loaded(pool: &EndpointPool, endpoint: EndpointOrd, model: &str) -> Option<bool> {
    let path = pool.spec(endpoint).kind.loaded_models_path()?;
    let body = page(pool, endpoint, path).await?;
    EndpointKind::read_loaded(&body, model)
}

async fn page(pool: &EndpointPool, endpoint: EndpointOrd, path: &str) -> Option<bytes::Bytes> {
    // A server that cannot be reached will say so when it is measured.
    let (status, body) = pool.get_small(endpoint, path, PAGE_LIMIT).await.ok()?;
    (status == StatusCode::OK).then_some(body)
}
