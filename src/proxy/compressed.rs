//! Answers in gzip for whoever takes them so: the admin listener's pages are long, and some are fetched all the time.

use std::convert::Infallible;

use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tower::{ServiceExt as _, service_fn};
use tower_http::compression::Compression;

use super::respond::ResponseBody;
use super::stack::Answers;

/// Has the answers of `A` compressed where their clients take that and it is worth while.
#[derive(Debug, Clone)]
pub struct Compressed<A>(pub A);

impl<A: Answers + Sync> Answers for Compressed<A> {
    async fn answer(self, request: Request<Incoming>, id: HeaderValue) -> Response<ResponseBody> {
        let inner = service_fn(move |request| {
            let (answers, id) = (self.0.clone(), id.clone());
            async move { Ok::<_, Infallible>(answers.answer(request, id).await) }
        });
        let Ok(response) = Compression::new(inner).oneshot(request).await;
        response.map(|body| body.map_err(Into::into).boxed_unsync())
    }
}
