//! HTTP/1.1 on one listener, a TCP address or a unix socket: below `telemetry::http` and `api`, whose routers answer the
//! requests. A server has one thread; a request never waits for the device on it.
//!
//! Whatever clients do, memory, descriptors and time per client are bounded, and a client that sends a request gets an
//! answer:
//! - One request per connection (`Connection: close`): pipelined requests behind it are not answered.
//! - At most [`CONNECTIONS_MAX`] connections. One more closes the oldest that has not sent its request yet, or else
//!   the oldest, so idle connections never block a request.
//! - The request's header must arrive within [`HEADER_TIMEOUT`] and be no larger than [`HEADER_BYTES_MAX`]. A router
//!   limits the body that it reads, and with [`Limits`] the whole exchange.
//! - A client that does not read its answer for some time ([`Limits`]) is disconnected.
//! - Without a free file descriptor (accept(2), EMFILE) the oldest connection is closed, and accepting goes on.

mod write_limit;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
/// After the answer, what the client still sends is read, up to these limits: closing a socket with unread data resets
/// the connection, and the client may lose the end of the answer (RFC 9112, 9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 * 1024;
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The most threads for requests that compute for long.
const BLOCKING_THREADS_MAX: usize = 4;

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

/// What distinguishes one server from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The name of the thread.
    pub(crate) name: &'static str,
    /// The longest exchange; `None`: the router limits the parts of an exchange itself.
    pub(crate) exchange: Option<Duration>,
    /// How long a client may leave what it is sent unread.
    pub(crate) write: Duration,
    /// Whether a client may close its sending side before it has read the answer. If not, closing it ends the exchange,
    /// so that an answer without an end is not made for a client that has gone.
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
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let listener = Accepting::new(listener)?;
            tokio::select! {
                () = accept_connections(&listener, Arc::new(router)) => Ok(()),
                // A dropped sender stops the server, too.
                _ = stopped => Ok::<(), io::Error>(()),
            }
        };
        let thread = std::thread::Builder::new().name(R::LIMITS.name.into()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the server of {} failed", R::LIMITS.name);
            }
            // A computation for a client may take long, and nobody waits for it any more.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop, thread })
    }

    /// Whether its thread has exited unexpectedly, so that requests are not answered any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes open connections without waiting for them. `false`: the thread did not end within `timeout`; it is left to
    /// the end of the process.
    pub(crate) fn stop(self, timeout: Duration) -> bool {
        // Fails if the thread has exited already.
        let _ = self.stop.send(());
        joined(self.thread, timeout)
    }
}

/// Waits for the end of a thread; `false`: it has not ended within `timeout`.
pub(crate) fn joined(thread: JoinHandle<()>, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(STOP_STEP);
    }
    if thread.join().is_err() {
        tracing::error!("a thread of a server panicked");
    }
    true
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

/// An open connection in the accept loop.
struct Connection {
    task: AbortHandle,
    /// Whether its request has arrived completely.
    asked: Arc<AtomicBool>,
}

/// Accepts connections until the task is cancelled.
async fn accept_connections<R: Router>(listener: &Accepting, router: Arc<R>) {
    let mut open = VecDeque::with_capacity(CONNECTIONS_MAX);
    let mut logged = None;
    loop {
        let accepted = listener.accept().await;
        open.retain(|connection: &Connection| !connection.task.is_finished());
        match accepted {
            Ok(stream) => {
                if open.len() >= CONNECTIONS_MAX {
                    close_one(&mut open);
                }
                let asked = Arc::new(AtomicBool::new(false));
                let task = begin(stream, Arc::clone(&router), Arc::clone(&asked));
                open.push_back(Connection { task, asked });
            }
            // The client went away before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                log_accept_error(&error, &mut logged);
                close_one(&mut open);
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn begin<R: Router>(stream: Stream, router: Arc<R>, asked: Arc<AtomicBool>) -> AbortHandle {
    let task = match stream {
        Stream::Tcp(stream) => tokio::spawn(exchange(stream, None, router, asked)),
        Stream::Unix(stream) => {
            let peer = stream.peer_cred().ok().map(|peer| Peer { uid: peer.uid() });
            tokio::spawn(exchange(stream, peer, router, asked))
        }
    };
    task.abort_handle()
}

fn close_one(open: &mut VecDeque<Connection>) {
    let idle = open.iter().position(|connection| !connection.asked.load(Ordering::Relaxed));
    if let Some(connection) = open.remove(idle.unwrap_or(0)) {
        connection.task.abort();
    }
}

fn log_accept_error(error: &io::Error, logged: &mut Option<Instant>) {
    if logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
        *logged = Some(Instant::now());
        tracing::warn!(
            "HTTP connections cannot be accepted: {error} (hint: raise LimitNOFILE= if file descriptors run out)"
        );
    }
}

async fn exchange<S, R>(stream: S, peer: Option<Peer>, router: Arc<R>, asked: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    R: Router,
{
    let service = service_fn(move |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let router = Arc::clone(&router);
        async move { Ok::<_, Infallible>(router.answer(request, peer).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
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

async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(LINGER_BYTES_MAX);
    let mut unwanted = [0; 1024];
    while rest.read(&mut unwanted).await? > 0 {}
    Ok(())
}

#[cfg(test)]
impl Server {
    /// The same server with another thread.
    pub(crate) fn with_thread(self, thread: JoinHandle<()>) -> Self {
        Self { thread, ..self }
    }
}
