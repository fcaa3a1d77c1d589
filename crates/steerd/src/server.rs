//! HTTP/1.1 on one listener, a TCP address or a unix socket: below `telemetry::http` and `api`, whose routers
//! answer the requests. A server has a thread with a runtime of its own. It accepts, and serves TCP
//! connections; their requests must not compute for long.
//!
//! Each connection of a unix socket has a thread of its own, on which its requests may compute and wait. The
//! reason is that clients can send descriptors (SCM_RIGHTS in unix(7)). The kernel closes those that are not
//! received on the thread that reads or closes the connection, and that may block for long, such as a TCP
//! socket with SO_LINGER and unsent data (socket(7)). Then only that connection waits. Its thread is started
//! before it is accepted, so the server's thread never has to close it. The listener stays open at the end of
//! the server, because closing it would close the connections in its queue on the server's thread.
//!
//! Whatever clients do, memory, threads, descriptors and time per client are bounded:
//! - One request per connection (`Connection: close`): pipelined requests behind it are not answered.
//! - At most [`CONNECTIONS_MAX`] connections. If another one waits, the oldest idle one is closed: it has not
//!   sent the header of its request, or has its answer. A connection is kept for [`REQUEST_TIME`]: else many
//!   at once would close one whose request is on its way. So about 2,000 connections a second are accepted
//!   while there are idle ones, and a request waits for those before it in the queue at this rate.
//! - If no connection is idle, the oldest busy one is closed, which is kept for [`Limits::busy`]. So clients
//!   that do not read their answers delay others by about that time for [`CONNECTIONS_MAX`] connections.
//! - A closed connection counts until its thread has closed it, which a client with descriptors, or a request
//!   that computes, can delay. While that takes all places, nothing is accepted, which is logged.
//! - Without a thread for a connection nothing is accepted; at most one connection is closed for its place.
//! - The end of the server waits for no connection: their threads have only a weak reference to the router.
//! - The limit of the exchange does not hold for an answer without an end ([`Endless`]): its router limits
//!   how many there are, and ends those that are too many.
//! - The request's header must arrive within [`HEADER_TIMEOUT`] and be no larger than [`HEADER_BYTES_MAX`]. A
//!   router limits the body that it reads, and with [`Limits`] the whole exchange.
//! - A client that does not read its answer for some time ([`Limits`]) is disconnected.
//! - Without a free file descriptor (accept(2), EMFILE) the oldest idle connection is closed, and accepting
//!   goes on.

mod write_limit;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{self, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::message::lacking;
use write_limit::WriteLimit;

/// Enough for several scrapers and users; systemd/steerd.service reserves descriptors for them.
pub(crate) const CONNECTIONS_MAX: u32 = 64;
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const HEADER_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// After the answer, what the client still sends is read, up to these limits: closing a socket with unread
/// data resets the connection, and the client may lose the end of the answer (RFC 9112, 9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 * 1024;
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How long an idle connection is kept at least while others need its place.
const REQUEST_TIME: Duration = Duration::from_millis(20);
/// How long the client of an answer that its router has ended ([`Endless`]) may take to read the rest.
const REST_TIME: Duration = Duration::from_secs(2);
/// How long threads of connections may take to end before the runtime that they use does.
const THREADS_END: Duration = Duration::from_millis(100);

pub(crate) type Body = BoxBody<Bytes, Infallible>;
pub(crate) type Answer = Response<Body>;

/// Marks an answer, as an extension of it, that ends when its router drops the sender: [`Limits::exchange`]
/// does not hold for it, [`Limits::write`] does.
#[derive(Clone, Debug)]
pub(crate) struct Endless(pub(crate) watch::Receiver<()>);

impl Endless {
    /// Whether the router has ended the answer: its body is to end, too.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Waits until the router has ended the answer, and its client could read the rest.
    async fn ended(&self) {
        let mut open = self.0.clone();
        while open.changed().await.is_ok() {}
        sleep(REST_TIME).await;
    }
}

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
    /// How long a connection whose request is being answered is kept at least while others need its place.
    pub(crate) busy: Duration,
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
        let runtime = runtime::Builder::new_current_thread()
            .thread_name(format!("{} computing", R::LIMITS.name))
            .enable_io()
            .enable_time()
            .build()?;
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
            match listener {
                Accepting::Tcp(_) => {}
                // Closing it closes the connections in its queue, with descriptors whose close may block.
                Accepting::Unix(listener) => std::mem::forget(listener),
            }
            Ok::<(), io::Error>(())
        };
        let thread = Builder::new().name(R::LIMITS.name.into()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the server of {} failed", R::LIMITS.name);
            }
            // Nobody waits any more for what other threads compute.
            runtime.shutdown_background();
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

impl AsFd for Accepting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Accepting {
    /// Whether a connection waits to be accepted.
    fn has_waiting(&self) -> bool {
        let mut listener = [PollFd::new(self, PollFlags::IN)];
        poll(&mut listener, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// A connection in the accept loop; it is closed when this is dropped.
struct Connection {
    /// Closed once the connection is.
    open: oneshot::Sender<()>,
    /// Whether the header of its request has arrived and its answer has not been written.
    is_busy: Arc<AtomicBool>,
    /// When it was accepted.
    since: Instant,
}

impl Connection {
    fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }
}

/// A thread that waits for the connection that is accepted next.
struct WaitingThread {
    accepted: oneshot::Sender<UnixClient>,
    connection: Connection,
}

struct UnixClient {
    stream: tokio::net::UnixStream,
    peer: Option<Peer>,
}

/// Limits a message to one in [`LOG_INTERVAL`].
#[derive(Default)]
struct RareMessage {
    logged: Option<Instant>,
}

impl RareMessage {
    fn is_due(&mut self) -> bool {
        let is_due = self.logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if is_due {
            self.logged = Some(Instant::now());
        }
        is_due
    }
}

/// The connections of the accept loop.
struct Connections<R> {
    router: Arc<R>,
    /// [`CONNECTIONS_MAX`] of them, one for each connection until it is closed, and for the waiting thread.
    places: Arc<Semaphore>,
    /// Oldest first; without those that the loop has closed.
    open: VecDeque<Connection>,
    /// The thread for which accepting failed.
    waiting: Option<WaitingThread>,
    spawn: Spawn,
    /// [`REQUEST_TIME`], but for tests.
    request_time: Duration,
    /// [`Limits::busy`], but for tests.
    busy_time: Duration,
    accept_failed: RareMessage,
    all_busy: RareMessage,
}

/// Starts a thread; tests have one that fails.
type Spawn = fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

impl<R: Router> Connections<R> {
    fn new(router: R) -> Self {
        Self {
            router: Arc::new(router),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX as usize)),
            open: VecDeque::new(),
            waiting: None,
            spawn: Builder::spawn,
            request_time: REQUEST_TIME,
            busy_time: R::LIMITS.busy,
            accept_failed: RareMessage::default(),
            all_busy: RareMessage::default(),
        }
    }

    /// Accepts connections until the task is cancelled.
    async fn accept(&mut self, listener: &Accepting) {
        loop {
            let Err(error) = self.accept_one(listener).await else { continue };
            // The client went away before it was accepted.
            if error.kind() == io::ErrorKind::ConnectionAborted {
                continue;
            }
            if self.accept_failed.is_due() {
                tracing::warn!("HTTP connections cannot be accepted: {error}{}", lacking(&error));
            }
            if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
                self.close_idle();
            }
            sleep(ACCEPT_RETRY).await;
        }
    }

    /// Waits for a place. While there is none, connections are closed for one that waits to be accepted.
    async fn place(&mut self, listener: &Accepting) -> OwnedSemaphorePermit {
        loop {
            self.open.retain(|connection| !connection.open.is_closed());
            if self.places.available_permits() == 0 && listener.has_waiting() {
                self.make_place();
            }
            let place = Arc::clone(&self.places).acquire_owned();
            if let Ok(Ok(place)) = timeout(ACCEPT_RETRY, place).await {
                return place;
            }
        }
    }

    fn make_place(&mut self) {
        if self.close_idle() || self.close_oldest(true, self.busy_time) {
            return;
        }
        if self.open.iter().all(Connection::is_busy) && self.all_busy.is_due() {
            tracing::warn!(
                "no HTTP connection can be accepted: {CONNECTIONS_MAX} are being answered or closed"
            );
        }
    }

    fn close_idle(&mut self) -> bool {
        self.close_oldest(false, self.request_time)
    }

    /// Closes the oldest connection that is busy or not, if it is old enough; returns whether there is one.
    fn close_oldest(&mut self, is_busy: bool, kept: Duration) -> bool {
        let may_be_closed = |one: &Connection| one.is_busy() == is_busy && one.since.elapsed() >= kept;
        let oldest = self.open.iter().position(may_be_closed);
        oldest.and_then(|oldest| self.open.remove(oldest)).is_some()
    }

    async fn accept_one(&mut self, listener: &Accepting) -> io::Result<()> {
        let connection = match listener {
            Accepting::Tcp(tcp) => {
                let place = self.place(listener).await;
                let (stream, _) = tcp.accept().await?;
                let (exchange, connection) = self.connection(place);
                tokio::spawn(exchange.serve(stream, None));
                connection
            }
            Accepting::Unix(unix) => {
                let thread = match self.waiting.take() {
                    Some(thread) => thread,
                    None => {
                        let place = self.place(listener).await;
                        self.start_thread(place)?
                    }
                };
                let stream = match unix.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        self.waiting = Some(thread);
                        return Err(error);
                    }
                };
                let peer = stream.peer_cred().ok().map(|peer| Peer { uid: peer.uid() });
                // The thread waits for it.
                let _ = thread.accepted.send(UnixClient { stream, peer });
                thread.connection
            }
        };
        self.open.push_back(Connection { since: Instant::now(), ..connection });
        Ok(())
    }

    /// The exchange of a connection, and the connection in the accept loop.
    fn connection(&self, place: OwnedSemaphorePermit) -> (Exchange<R>, Connection) {
        let is_busy = Arc::new(AtomicBool::new(false));
        let (open, closed) = oneshot::channel();
        let router = Arc::downgrade(&self.router);
        let exchange = Exchange { router, is_busy: Arc::clone(&is_busy), closed, place };
        (exchange, Connection { open, is_busy, since: Instant::now() })
    }

    fn start_thread(&self, place: OwnedSemaphorePermit) -> io::Result<WaitingThread> {
        let (exchange, connection) = self.connection(place);
        let (accepted, client) = oneshot::channel::<UnixClient>();
        // The server's thread drives its timers and waits for its socket; reads and writes are on its own
        // thread.
        let runtime = Handle::current();
        let serve = async {
            if let Ok(UnixClient { stream, peer }) = client.await {
                exchange.serve(stream, peer).await;
            }
        };
        let builder = Builder::new().name(format!("{} client", R::LIMITS.name));
        (self.spawn)(builder, Box::new(move || runtime.block_on(serve)))?;
        Ok(WaitingThread { accepted, connection })
    }

    /// Waits for their threads for a short time only: nobody waits any more for what is computed for a
    /// client.
    async fn close_all(mut self) {
        self.open.clear();
        self.waiting = None;
        let _ = timeout(THREADS_END, self.places.acquire_many(CONNECTIONS_MAX)).await;
    }
}

/// The one exchange of a connection.
struct Exchange<R> {
    router: Weak<R>,
    is_busy: Arc<AtomicBool>,
    closed: oneshot::Receiver<()>,
    place: OwnedSemaphorePermit,
}

impl<R: Router> Exchange<R> {
    /// Ends when the accept loop closes the connection.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, peer: Option<Peer>) {
        let Self { router, is_busy, closed, place } = self;
        tokio::select! {
            // First: once it is closed, the runtime may end.
            biased;
            _ = closed => {}
            () = exchange(stream, peer, router, &is_busy) => {}
        }
        // The stream is closed.
        drop(place);
    }
}

async fn exchange<S, R>(stream: S, peer: Option<Peer>, router: Weak<R>, is_busy: &AtomicBool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    R: Router,
{
    let endless = &OnceLock::<Endless>::new();
    let service = service_fn(move |request: Request<Incoming>| {
        is_busy.store(true, Ordering::Relaxed);
        let router = router.upgrade();
        async move {
            let Some(router) = router else {
                return Ok::<_, Infallible>(text(StatusCode::SERVICE_UNAVAILABLE, "steerd is ending\n"));
            };
            let mut answer = router.answer(request, peer).await;
            if let Some(mark) = answer.extensions_mut().remove::<Endless>() {
                // There is one request.
                let _ = endless.set(mark);
            }
            Ok(answer)
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
        let Some(limit) = limit else { return Ok(served.await) };
        let over = async {
            sleep(limit).await;
            if let Some(endless) = endless.get() {
                endless.ended().await;
            }
        };
        tokio::select! {
            ended = served => Ok(ended),
            () = over => Err(limit),
        }
    };
    match served.await {
        Ok(Ok(parts)) => {
            is_busy.store(false, Ordering::Relaxed);
            let _ = timeout(LINGER_TIMEOUT, linger(parts.io.into_inner())).await;
        }
        Ok(Err(error)) => tracing::debug!("an HTTP connection ended early: {error}"),
        Err(limit) => tracing::debug!("an HTTP exchange was ended after {limit:?} or more"),
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
