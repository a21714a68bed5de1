//! Faults that users reported of other proxies, played over real bytes. docs/FAULTS.md lists all of them; here are
//! those that the tests of the parts do not prove already.

mod edges;
mod errors;
mod events;
mod listed;
mod load;

use crate::support::app::{Router, llm, node};
use crate::support::fake_endpoint::{FakeEndpoint, Step};

const AT_ONCE: &str = "window: {max_ms: 0}\n";
const ECHO: &str = "response_model: echo\nwindow: {max_ms: 0}\n";

/// A router over one endpoint that answers everything with `script`.
async fn over(script: Vec<Step>, sections: &str) -> (FakeEndpoint, Router) {
    let endpoint = llm(move |_| script.clone()).await;
    let router = Router::start(&[node("a", endpoint.url())], sections).await;
    (endpoint, router)
}
