//! The body of an endpoint's answer, which brings its connection along.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection::EndpointConnection;
use super::idle::IdleConnections;

/// The body of an endpoint's answer. Reading it moves the connection; read to its end, it gives the connection
/// back; dropped before, it closes it, and the server stops working on the answer.
#[derive(Debug)]
pub struct AnswerBody {
    incoming: Incoming,
    /// `None` once it went back.
    connection: Option<Box<EndpointConnection>>,
    home: Arc<IdleConnections>,
}

impl AnswerBody {
    pub(super) fn new(
        incoming: Incoming,
        connection: Box<EndpointConnection>,
        home: Arc<IdleConnections>,
    ) -> Self {
        Self { incoming, connection: Some(connection), home }
    }

    /// What has come already. Only the connection moves the body, so nobody needs to be woken by it.
    fn poll_come(&mut self) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.incoming).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.put(connection);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        this.connection.iter().for_each(|connection| connection.mute());
        let mut come = this.poll_come();
        if come.is_pending()
            && let Some(connection) = &mut this.connection
        {
            connection.drive(cx);
            come = this.poll_come();
        }
        // Who got something asks again, and drives the connection then.
        if this.connection.as_ref().is_some_and(|connection| connection.unmute()) && come.is_pending() {
            cx.waker().wake_by_ref();
        }
        if matches!(come, Poll::Ready(None)) {
            this.give_back();
        }
        come
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.give_back();
        }
    }
}
