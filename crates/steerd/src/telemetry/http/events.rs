//! The stream of server-sent events: the state, once a second, rendered once for all clients.
//!
//! A client that reads slowly gets fewer events, never old ones: the next event is made when the connection
//! takes it. One that does not read is disconnected by the limit of the server, and one that has gone when an
//! event cannot be written. Streams have few of the places of the server, so that scrapers and probes have
//! the others: one more ends the oldest, so that nobody keeps others out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderName};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::server::{Answer, Endless, with};
use crate::telemetry::pages::{LIFE, Page, Pages};

/// The most streams at once.
pub(crate) const STREAMS_MAX: usize = 16;
/// Tells a proxy to pass events on at once.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The streams of one server, the oldest first. A stream ends when its sender is dropped.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<VecDeque<watch::Sender<()>>>);

impl Streams {
    /// The answer to a request for a stream, which ends the oldest one if there are too many.
    pub(super) fn start(&self, pages: &Arc<Pages>) -> Answer {
        let mark = Endless(self.add());
        let pages = Arc::clone(pages);
        let events = Events { next: Box::pin(first(Arc::clone(&pages))), pages, mark: mark.clone() };
        let mut answer = Response::new(events.boxed());
        answer.extensions_mut().insert(mark);
        with(with(answer, CONTENT_TYPE, Page::Live.content_type()), BUFFERING, "no")
    }

    fn add(&self) -> watch::Receiver<()> {
        let (stream, receiver) = watch::channel(());
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The connections of the others are closed.
        streams.retain(|stream| !stream.is_closed());
        if streams.len() == STREAMS_MAX {
            streams.pop_front();
        }
        streams.push_back(stream);
        receiver
    }
}

type NextEvent = Pin<Box<dyn Future<Output = Bytes> + Send + Sync>>;

/// The body of a stream.
struct Events {
    pages: Arc<Pages>,
    next: NextEvent,
    mark: Endless,
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
        if self.mark.has_ended() {
            return Poll::Ready(None);
        }
        self.next = Box::pin(later(Arc::clone(&self.pages)));
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_stream_leaves_its_place_to_the_next() {
        let streams = Streams::default();
        let mut open: Vec<Endless> = (0..STREAMS_MAX).map(|_| Endless(streams.add())).collect();
        open.remove(3);
        open.push(Endless(streams.add()));
        assert!(!open.iter().any(Endless::has_ended));
        open.push(Endless(streams.add()));
        assert!(open[0].has_ended() && !open[1..].iter().any(Endless::has_ended));
    }
}
