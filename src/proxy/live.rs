//! What answers requests now. With a new configuration another takes its place; requests under way stay with theirs.

use std::sync::{Arc, PoisonError, RwLock};

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;

use super::respond::ResponseBody;
use super::stack::Answers;

/// A place for an `A` that can be exchanged. Clones share it.
#[derive(Debug)]
pub struct Live<A>(Arc<RwLock<A>>);

impl<A: Clone> Live<A> {
    /// `first` answers, until another does.
    #[must_use]
    pub fn new(first: A) -> Self {
        Self(Arc::new(RwLock::new(first)))
    }

    /// Whoever answers now.
    #[must_use]
    pub fn get(&self) -> A {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has `next` answer from now on.
    pub fn set(&self, next: A) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

impl<A> Clone for Live<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Answers + Sync> Answers for Live<A> {
    async fn answer(self, request: Request<Incoming>, id: HeaderValue) -> Response<ResponseBody> {
        let current = self.get();
        drop(self);
        current.answer(request, id).await
    }
}
