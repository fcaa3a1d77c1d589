//! The stream of server-sent events: the state, once a second, rendered once for all clients.
//!
//! A client that reads slowly gets fewer events, never old ones: the next event is made when the connection
//! takes it. One that does not read is disconnected by the limit of the server, and one that has gone when an
//! event cannot be written. Streams have few of the places of the server, so that scrapers and probes have
//! the others.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::server::{Answer, Endless, text, with};
use crate::telemetry::pages::{LIFE, Page, Pages};

/// The most streams at once.
pub(crate) const STREAMS_MAX: usize = 16;
const RETRY_SECONDS: &str = "5";
/// Tells a proxy to pass events on at once.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The streams of one server.
#[derive(Debug)]
pub(super) struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// The answer to a request for a stream.
    pub(super) fn start(&self, pages: &Arc<Pages>) -> Answer {
        let Ok(place) = Arc::clone(&self.0).try_acquire_owned() else {
            let why = format!("{STREAMS_MAX} pages are open already: close one, or try again later\n");
            return with(text(StatusCode::SERVICE_UNAVAILABLE, why), RETRY_AFTER, RETRY_SECONDS);
        };
        let pages = Arc::clone(pages);
        let events = Events { next: Box::pin(first(Arc::clone(&pages))), pages, _place: place };
        let mut answer = Response::new(events.boxed());
        answer.extensions_mut().insert(Endless);
        with(with(answer, CONTENT_TYPE, Page::Live.content_type()), BUFFERING, "no")
    }
}

type NextEvent = Pin<Box<dyn Future<Output = Bytes> + Send + Sync>>;

/// The body of a stream.
struct Events {
    pages: Arc<Pages>,
    next: NextEvent,
    _place: OwnedSemaphorePermit,
}

async fn first(pages: Arc<Pages>) -> Bytes {
    let event = pages.rendered(Page::Live).await;
    // A comment, from which the client sees that the daemon is there.
    event.unwrap_or_else(|_| Bytes::from_static(b": the state is not available\n\n"))
}

async fn later(pages: Arc<Pages>) -> Bytes {
    sleep(LIFE).await;
    first(pages).await
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(later(Arc::clone(&self.pages)));
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}
