//! HTTP/1.1 on one listener, a TCP address or a unix socket: below `telemetry::http` and `api`, whose routers
//! answer the requests. A server has one thread. It accepts, and serves TCP connections; their requests must
//! not compute for long.
//!
//! Each connection of a unix socket has a thread of its own, on which its requests may compute and wait. The
//! reason is that clients can send descriptors (SCM_RIGHTS in unix(7)). The kernel closes those that are not
//! received on the thread that reads or closes the connection, and that may block for long, such as a TCP
//! socket with SO_LINGER and unsent data (socket(7)). Then only that connection waits.
//!
//! Whatever clients do, memory, descriptors and time per client are bounded, and a client that sends a
//! request gets an answer:
//! - One request per connection (`Connection: close`): pipelined requests behind it are not answered.
//! - At most [`CONNECTIONS_MAX`] connections. One more closes the oldest that has not sent its request yet,
//!   or else the oldest, so idle connections never block a request. It waits until that one is
//!   [`REQUEST_TIME`] old: else many connections at once would close one whose request is on its way. So TCP
//!   connections are accepted at 2,000 a second and more as long as all are idle.
//! - At most [`THREADS_MAX`] threads of connections. A closed connection counts until its thread has ended.
//! - A user of a unix socket has at most [`USER_CONNECTIONS_MAX`] of the connections, where one more closes
//!   one of the user's own, and [`USER_THREADS_MAX`] of the threads. Root and the daemon's user have
//!   [`RESERVED`] of the connections and as many further threads for themselves: other users' connections
//!   close none of theirs. Connections beyond that wait without a thread, at most [`WAITING_MAX`] of all
//!   users; if there are more, nothing is accepted. So does one whose thread cannot be started; until it can
//!   be, nothing is accepted, and nothing is closed.
//! - The end of the server waits for no connection: their threads have only a weak reference to the router.
//! - The request's header must arrive within [`HEADER_TIMEOUT`] and be no larger than [`HEADER_BYTES_MAX`]. A
//!   router limits the body that it reads, and with [`Limits`] the whole exchange.
//! - A client that does not read its answer for some time ([`Limits`]) is disconnected.
//! - Without a free file descriptor (accept(2), EMFILE) the oldest connection is closed, and accepting goes
//!   on.

mod write_limit;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use write_limit::WriteLimit;

/// How often `stop` checks whether the thread has ended.
const STOP_STEP: Duration = Duration::from_millis(1);
/// Enough for several scrapers and users; systemd/steerd.service reserves descriptors for them.
pub(crate) const CONNECTIONS_MAX: usize = 64;
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
/// The most threads of connections, open and closed ones.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;
/// The most open connections of a user, and threads of them. Two users cannot have all that are for users.
const USER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4;
const USER_THREADS_MAX: usize = THREADS_MAX / 4;
/// Connections, and threads beyond those for everybody, of root and the daemon's user.
const RESERVED: usize = CONNECTIONS_MAX / 4;
/// The most connections that wait for a thread.
const WAITING_MAX: usize = 512;
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .thread_name(R::LIMITS.name)
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

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
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

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

/// A connection in the accept loop.
struct Connection {
    running: Running,
    /// The user at the other end of a unix socket.
    uid: Option<u32>,
    /// Whether its request has arrived completely.
    asked: Arc<AtomicBool>,
    /// When it was accepted.
    since: Instant,
}

/// Where a connection is served.
enum Running {
    /// `None` once it was aborted.
    Task(Option<AbortHandle>),
    /// `open` is dropped to close the connection.
    Thread { open: Option<oneshot::Sender<()>>, thread: JoinHandle<()> },
}

impl Connection {
    fn has_ended(&self) -> bool {
        match &self.running {
            Running::Task(task) => task.as_ref().is_none_or(AbortHandle::is_finished),
            Running::Thread { thread, .. } => thread.is_finished(),
        }
    }

    /// A closed one may still have a thread.
    fn is_open(&self) -> bool {
        match &self.running {
            Running::Task(task) => task.is_some(),
            Running::Thread { open, .. } => open.is_some(),
        }
    }

    fn close(&mut self) {
        match &mut self.running {
            Running::Task(task) => {
                if let Some(task) = task.take() {
                    task.abort();
                }
            }
            Running::Thread { open, .. } => *open = None,
        }
    }
}

/// The connections of the accept loop.
struct Connections<R> {
    router: Arc<R>,
    /// Oldest first.
    open: VecDeque<Connection>,
    /// The connections without a thread: their users have too many, or those that would make place are new,
    /// or it could not be started. They are not closed here, because that could block.
    waiting: VecDeque<(UnixStream, Option<u32>)>,
    spawn: Spawn,
    /// [`REQUEST_TIME`], but for tests.
    request_time: Duration,
}

/// Starts a thread; tests have one that fails.
type Spawn = fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

/// Whether the limits of a user do not apply.
fn is_privileged(uid: Option<u32>) -> bool {
    uid.is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
}

impl<R: Router> Connections<R> {
    fn new(router: R) -> Self {
        let open = VecDeque::with_capacity(THREADS_MAX + RESERVED);
        let (router, waiting) = (Arc::new(router), VecDeque::new());
        Self { router, open, waiting, spawn: Builder::spawn, request_time: REQUEST_TIME }
    }

    /// Accepts connections until the task is cancelled.
    async fn accept(&mut self, listener: &Accepting) {
        let mut logged = None;
        loop {
            if let Err(error) = self.begin_waiting() {
                log_rarely(&mut logged, || tracing::warn!("{NO_THREAD}: {error}"));
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
            if self.waiting.len() >= WAITING_MAX {
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
            // While some wait, threads that have ended must be noticed.
            let wait = if self.waiting.is_empty() { Duration::MAX } else { ACCEPT_RETRY };
            let Ok(accepted) = timeout(wait, listener.accept()).await else { continue };
            // Tasks that were aborted give their descriptors back only when they run.
            tokio::task::yield_now().await;
            self.open.retain(|connection| !connection.has_ended());
            match accepted {
                Ok(Stream::Tcp(stream)) => {
                    while !self.make_place(|_| true, CONNECTIONS_MAX, self.request_time) {
                        tokio::time::sleep(ACCEPT_RETRY).await;
                        self.open.retain(|connection| !connection.has_ended());
                    }
                    self.begin_task(stream);
                }
                Ok(Stream::Unix(stream)) => {
                    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                    // Without a thread it waits, and is the first one that the next round tries to begin.
                    let _ = self.begin_or_wait(stream, uid);
                }
                // The client went away before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    log_rarely(&mut logged, || tracing::warn!("{NO_ACCEPT}: {error} ({NO_ACCEPT_HINT})"));
                    if !self.close_one(|one| !is_privileged(one.uid)) {
                        self.close_one(|_| true);
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Whether there is a thread for a connection of this user.
    fn has_thread(&self, uid: Option<u32>) -> bool {
        if is_privileged(uid) {
            return self.open.len() < THREADS_MAX + RESERVED;
        }
        let others = self.open.iter().filter(|one| !is_privileged(one.uid));
        let own = self.open.iter().filter(|one| one.uid == uid);
        others.count() < THREADS_MAX && own.count() < USER_THREADS_MAX
    }

    /// Begins the connections whose users have a thread for them now.
    ///
    /// # Errors
    /// A thread cannot be started; its connection goes on waiting, and nothing is closed for it.
    fn begin_waiting(&mut self) -> io::Result<()> {
        self.open.retain(|connection| !connection.has_ended());
        for _ in 0..self.waiting.len() {
            let Some((stream, uid)) = self.waiting.pop_front() else { break };
            self.begin_or_wait(stream, uid)?;
        }
        Ok(())
    }

    fn begin_or_wait(&mut self, stream: UnixStream, uid: Option<u32>) -> io::Result<()> {
        if !self.has_thread(uid) {
            self.waiting.push_back((stream, uid));
            return Ok(());
        }
        // The own connections of a user with many that wait are not given time, which would keep others
        // waiting.
        let own_waiting = self.waiting.iter().filter(|(_, of)| *of == uid).count();
        let least_age = if own_waiting < USER_CONNECTIONS_MAX { self.request_time } else { Duration::ZERO };
        let has_place = is_privileged(uid) || {
            // Those of root and the daemon's user beyond theirs are taken from the ones for users.
            let privileged = self.open.iter().filter(|one| one.is_open() && is_privileged(one.uid)).count();
            let most = (CONNECTIONS_MAX - privileged.max(RESERVED)).max(1);
            self.make_place(|one| one.uid == uid, USER_CONNECTIONS_MAX, least_age)
                && self.make_place(|one| !is_privileged(one.uid), most, self.request_time)
        };
        if !has_place || !self.make_place(|_| true, CONNECTIONS_MAX, self.request_time) {
            self.waiting.push_back((stream, uid));
            return Ok(());
        }
        self.begin_thread(stream, uid)
    }

    fn begin_task(&mut self, stream: TcpStream) {
        let asked = Arc::new(AtomicBool::new(false));
        let served = exchange(stream, None, Arc::downgrade(&self.router), Arc::clone(&asked));
        let running = Running::Task(Some(tokio::spawn(served).abort_handle()));
        self.open.push_back(Connection { running, uid: None, asked, since: Instant::now() });
    }

    /// If there is no thread, the connection waits: closing it here could block.
    fn begin_thread(&mut self, stream: UnixStream, uid: Option<u32>) -> io::Result<()> {
        let asked = Arc::new(AtomicBool::new(false));
        let (open, closed) = oneshot::channel();
        let peer = uid.map(|uid| Peer { uid });
        let (router, is_asked) = (Arc::downgrade(&self.router), Arc::clone(&asked));
        // The server's thread drives its timers and waits for its socket; reads and writes are on its own
        // thread.
        let runtime = tokio::runtime::Handle::current();
        let stream = Arc::new(Mutex::new(Some(stream)));
        let place = Arc::clone(&stream);
        let serve = move || {
            if let Some(stream) = taken(&place) {
                runtime.block_on(until_closed(exchange(stream, peer, router, is_asked), closed));
            }
        };
        let builder = Builder::new().name(format!("{} client", R::LIMITS.name));
        let thread = match (self.spawn)(builder, Box::new(serve)) {
            Ok(thread) => thread,
            Err(error) => {
                self.waiting.extend(taken(&stream).map(|stream| (stream, uid)));
                return Err(error);
            }
        };
        let running = Running::Thread { open: Some(open), thread };
        self.open.push_back(Connection { running, uid, asked, since: Instant::now() });
        Ok(())
    }

    /// Closes a connection if so many of these are open. `false`: it is not yet that old.
    fn make_place(&mut self, is_one: impl Fn(&Connection) -> bool, most: usize, least_age: Duration) -> bool {
        let open = self.open.iter().filter(|one| one.is_open() && is_one(one));
        if open.count() < most {
            return true;
        }
        let chosen = self.next_to_close(is_one).filter(|one| one.since.elapsed() >= least_age);
        chosen.map(Connection::close).is_some()
    }

    /// Closes one of these connections. `false`: there is none.
    fn close_one(&mut self, is_one: impl Fn(&Connection) -> bool) -> bool {
        self.next_to_close(is_one).map(Connection::close).is_some()
    }

    /// The oldest idle connection of these, or else the oldest.
    fn next_to_close(&mut self, is_one: impl Fn(&Connection) -> bool) -> Option<&mut Connection> {
        let is_idle = |one: &Connection| !one.asked.load(Ordering::Relaxed);
        let is_one = |one: &Connection| one.is_open() && is_one(one);
        let idle = self.open.iter().position(|one| is_one(one) && is_idle(one));
        let place = idle.or_else(|| self.open.iter().position(is_one))?;
        self.open.get_mut(place)
    }

    /// Waits for their threads for a short time only: nobody waits any more for what is computed for a
    /// client.
    async fn close_all(mut self) {
        self.open.iter_mut().for_each(Connection::close);
        // Closing them could block; the process ends soon.
        self.waiting.drain(..).for_each(std::mem::forget);
        let deadline = Instant::now() + THREADS_END;
        let is_thread = |one: &Connection| matches!(one.running, Running::Thread { .. });
        while self.open.iter().any(|one| is_thread(one) && !one.has_ended()) && Instant::now() < deadline {
            tokio::time::sleep(STOP_STEP).await;
        }
    }
}

fn taken(place: &Mutex<Option<UnixStream>>) -> Option<UnixStream> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

async fn until_closed(served: impl Future<Output = ()>, closed: oneshot::Receiver<()>) {
    tokio::select! {
        // First: once it is closed, the runtime may end.
        biased;
        _ = closed => {}
        () = served => {}
    }
}

const NO_ACCEPT: &str = "HTTP connections cannot be accepted";
const NO_ACCEPT_HINT: &str = "hint: raise LimitNOFILE= if file descriptors run out";
const NO_THREAD: &str =
    "no thread can be started for a connection, which waits; no further ones are accepted";

fn log_rarely(logged: &mut Option<Instant>, log: impl FnOnce()) {
    if logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
        *logged = Some(Instant::now());
        log();
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
