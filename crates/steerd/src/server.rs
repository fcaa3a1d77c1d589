//! HTTP/1.1 on one listener, a TCP address or a unix socket: below `telemetry::http` and `api`, whose routers
//! answer the requests. A server has a thread with a runtime of its own. It accepts, and serves TCP
//! connections; their requests must not compute for long.
//!
//! Each connection of a unix socket has a thread of its own, on which its requests may compute and wait. The
//! reason is that clients can send descriptors (SCM_RIGHTS in unix(7)). The kernel closes those that are not
//! received on the thread that reads or closes the connection, and that may block for long, such as a TCP
//! socket with SO_LINGER and unsent data (socket(7)). Then only that connection waits. Its thread is started
//! before it is accepted, so the server's thread never has to close it.
//!
//! Whatever clients do, memory, threads, descriptors and time per client are bounded:
//! - One request per connection (`Connection: close`): pipelined requests behind it are not answered.
//! - At most [`CONNECTIONS_MAX`] connections. One more closes the oldest that has not sent its request yet,
//!   so idle connections never block a request. If all have sent theirs, it waits until one ends. A
//!   connection is not closed before it is [`REQUEST_TIME`] old: else many connections at once would close
//!   one whose request is on its way. So connections are accepted at 3,000 a second as long as all are idle.
//!   A closed connection counts until its thread has closed it.
//! - Without a thread for a connection nothing is accepted, and nothing is closed.
//! - The end of the server waits for no connection: their threads have only a weak reference to the router.
//! - The request's header must arrive within [`HEADER_TIMEOUT`] and be no larger than [`HEADER_BYTES_MAX`]. A
//!   router limits the body that it reads, and with [`Limits`] the whole exchange.
//! - A client that does not read its answer for some time ([`Limits`]) is disconnected.
//! - Without a free file descriptor (accept(2), EMFILE) the oldest connection without a request is closed,
//!   and accepting goes on.

mod write_limit;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{self, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::message::lacking;
use write_limit::WriteLimit;

/// Enough for several scrapers and users; systemd/steerd.service reserves descriptors for them.
pub(crate) const CONNECTIONS_MAX: u32 = 64;
/// The open connections and the one that is accepted next.
const PLACES: u32 = CONNECTIONS_MAX + 1;
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const HEADER_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// After the answer, what the client still sends is read, up to these limits: closing a socket with unread
/// data resets the connection, and the client may lose the end of the answer (RFC 9112, 9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 * 1024;
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How long a connection is kept at least while others need its place.
const REQUEST_TIME: Duration = Duration::from_millis(20);
/// How long threads of connections may take to end before the runtime that they use does.
const THREADS_END: Duration = Duration::from_millis(100);

pub(crate) type Body = BoxBody<Bytes, Infallible>;
pub(crate) type Answer = Response<Body>;

/// A bound address or socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The process at the other end of a unix socket, when it connected (SO_PEERCRED in unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
}

/// The limits by which one server differs from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The name of the thread.
    pub(crate) name: &'static str,
    /// The longest exchange; `None`: the router limits the parts of an exchange itself.
    pub(crate) exchange: Option<Duration>,
    /// How long a client may leave what it is sent unread.
    pub(crate) write: Duration,
    /// Whether a client may close its sending side before it has read the answer. If not, closing it ends the
    /// exchange, so that an answer without an end is not made for a client that has gone.
    pub(crate) half_close: bool,
}

/// Answers the requests of one server.
pub(crate) trait Router: Send + Sync + 'static {
    const LIMITS: Limits;

    /// `peer`: the client of a unix socket.
    fn answer(&self, request: Request<Incoming>, peer: Option<Peer>) -> impl Future<Output = Answer> + Send;
}

/// A running server; ends with `stop` or with the process.
#[derive(Debug)]
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start<R: Router>(listener: Listener, router: R) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let listener = Accepting::new(listener)?;
            let mut connections = Connections::new(router);
            tokio::select! {
                () = connections.accept(&listener) => {}
                // A dropped sender stops the server, too.
                _ = stopped => {}
            }
            connections.close_all().await;
            Ok::<(), io::Error>(())
        };
        let thread = Builder::new().name(R::LIMITS.name.into()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the server of {} failed", R::LIMITS.name);
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Whether its thread has exited unexpectedly, so that requests are not answered any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes open connections without waiting for them. `false`: the thread did not end within `timeout`; it
    /// is left to the end of the process.
    pub(crate) fn stop(self, timeout: Duration) -> bool {
        // Fails if the thread has exited already.
        let _ = self.stop.send(());
        joined(self.thread, timeout)
    }
}

/// Waits for the end of a thread; `false`: it has not ended within `timeout`.
pub(crate) fn joined(thread: JoinHandle<()>, timeout: Duration) -> bool {
    let ended = parking::join_within(thread, timeout);
    if matches!(ended, Some(Err(_))) {
        tracing::error!("a thread of a server panicked");
    }
    ended.is_some()
}

pub(crate) fn whole(bytes: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(bytes.into()).boxed())
}

pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = with(whole(body), CONTENT_TYPE, "text/plain; charset=utf-8");
    *answer.status_mut() = status;
    answer
}

pub(crate) fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}

/// A listener of the server's own thread.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    fn new(listener: Listener) -> io::Result<Self> {
        match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener).map(Self::Tcp)
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                tokio::net::UnixListener::from_std(listener).map(Self::Unix)
            }
        }
    }
}

/// A connection in the accept loop; it is closed when this is dropped.
struct Connection {
    /// Closed once the connection is.
    open: oneshot::Sender<()>,
    /// Whether its request has arrived completely.
    asked: Arc<AtomicBool>,
    /// When it was accepted.
    since: Instant,
}

/// The connections of the accept loop.
struct Connections<R> {
    router: Arc<R>,
    /// [`PLACES`] of them, one for each connection until it is closed.
    places: Arc<Semaphore>,
    /// Oldest first; without those that the loop has closed.
    open: VecDeque<Connection>,
    spawn: Spawn,
    /// [`REQUEST_TIME`], but for tests.
    request_time: Duration,
}

/// Starts a thread; tests have one that fails.
type Spawn = fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

impl<R: Router> Connections<R> {
    fn new(router: R) -> Self {
        Self {
            router: Arc::new(router),
            places: Arc::new(Semaphore::new(PLACES as usize)),
            open: VecDeque::new(),
            spawn: Builder::spawn,
            request_time: REQUEST_TIME,
        }
    }

    /// Accepts connections until the task is cancelled.
    async fn accept(&mut self, listener: &Accepting) {
        let mut logged: Option<Instant> = None;
        loop {
            let place = self.place().await;
            let Err(error) = self.accept_one(listener, place).await else { continue };
            // The client went away before it was accepted.
            if error.kind() == io::ErrorKind::ConnectionAborted {
                continue;
            }
            if logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
                logged = Some(Instant::now());
                tracing::warn!("HTTP connections cannot be accepted: {error}{}", lacking(&error));
            }
            if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
                self.close_idle();
            }
            sleep(ACCEPT_RETRY).await;
        }
    }

    /// Waits for a place; while there is none, idle connections are closed.
    async fn place(&mut self) -> OwnedSemaphorePermit {
        loop {
            self.open.retain(|connection| !connection.open.is_closed());
            if self.places.available_permits() == 0 {
                self.close_idle();
            }
            let place = Arc::clone(&self.places).acquire_owned();
            if let Ok(Ok(place)) = timeout(ACCEPT_RETRY, place).await {
                return place;
            }
        }
    }

    /// Closes the oldest connection without a request, if it is old enough.
    fn close_idle(&mut self) {
        let may_be_closed =
            |one: &Connection| !one.asked.load(Ordering::Relaxed) && one.since.elapsed() >= self.request_time;
        if let Some(oldest) = self.open.iter().position(may_be_closed) {
            self.open.remove(oldest);
        }
    }

    async fn accept_one(&mut self, listener: &Accepting, place: OwnedSemaphorePermit) -> io::Result<()> {
        let asked = Arc::new(AtomicBool::new(false));
        let (open, closed) = oneshot::channel();
        let router = Arc::downgrade(&self.router);
        let exchange = Exchange { router, asked: Arc::clone(&asked), closed, place };
        match listener {
            Accepting::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(exchange.serve(stream, None));
            }
            Accepting::Unix(listener) => {
                let (accepted, stream) = oneshot::channel();
                // The server's thread drives its timers and waits for its socket; reads and writes are on its
                // own thread.
                let runtime = Handle::current();
                let serve = async {
                    if let Ok((stream, peer)) = stream.await {
                        exchange.serve(stream, peer).await;
                    }
                };
                let builder = Builder::new().name(format!("{} client", R::LIMITS.name));
                (self.spawn)(builder, Box::new(move || runtime.block_on(serve)))?;
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred().ok().map(|peer| Peer { uid: peer.uid() });
                // The thread waits for it.
                let _ = accepted.send((stream, peer));
            }
        }
        self.open.push_back(Connection { open, asked, since: Instant::now() });
        Ok(())
    }

    /// Waits for their threads for a short time only: nobody waits any more for what is computed for a
    /// client.
    async fn close_all(mut self) {
        self.open.clear();
        let _ = timeout(THREADS_END, self.places.acquire_many(PLACES)).await;
    }
}

/// The one exchange of a connection.
struct Exchange<R> {
    router: Weak<R>,
    asked: Arc<AtomicBool>,
    closed: oneshot::Receiver<()>,
    place: OwnedSemaphorePermit,
}

impl<R: Router> Exchange<R> {
    /// Ends when the accept loop closes the connection.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, peer: Option<Peer>) {
        let Self { router, asked, closed, place } = self;
        tokio::select! {
            // First: once it is closed, the runtime may end.
            biased;
            _ = closed => {}
            () = exchange(stream, peer, router, asked) => {}
        }
        // The stream is closed.
        drop(place);
    }
}

async fn exchange<S, R>(stream: S, peer: Option<Peer>, router: Weak<R>, asked: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    R: Router,
{
    let service = service_fn(move |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let router = router.upgrade();
        async move {
            let Some(router) = router else {
                return Ok::<_, Infallible>(text(StatusCode::SERVICE_UNAVAILABLE, "steerd is ending\n"));
            };
            Ok(router.answer(request, peer).await)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .auto_date_header(has_http_date(SystemTime::now()))
        .half_close(R::LIMITS.half_close)
        .serve_connection(TokioIo::new(WriteLimit::new(stream, R::LIMITS.write)), service)
        .without_shutdown();
    let limit = R::LIMITS.exchange;
    let served = async {
        match limit {
            Some(limit) => timeout(limit, served).await.map_err(|_| limit),
            None => Ok(served.await),
        }
    };
    match served.await {
        Ok(Ok(parts)) => {
            let _ = timeout(LINGER_TIMEOUT, linger(parts.io.into_inner())).await;
        }
        Ok(Err(error)) => tracing::debug!("an HTTP connection ended early: {error}"),
        Err(limit) => tracing::debug!("an HTTP client took more than {limit:?}"),
    }
}

/// Whether an answer can have a Date header at this time: HTTP has no dates before 1970, and the library that
/// writes them panics. A server without a clock sends none (RFC 9110, 6.6.1).
fn has_http_date(now: SystemTime) -> bool {
    now >= UNIX_EPOCH
}

async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(LINGER_BYTES_MAX);
    let mut unwanted = [0; 1024];
    while rest.read(&mut unwanted).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
impl Server {
    /// Returns the server with another thread.
    pub(crate) fn with_thread(self, thread: JoinHandle<()>) -> Self {
        Self { thread, ..self }
    }
}
