//! The HTTP server: /metrics, /healthz, /readyz, /api/v1/state. Read only.
//!
//! The address is bound before anything is put on a device. One thread serves connections, another renders pages
//! ([`pages`]); a request never starts a thread and never waits for the device on the thread that serves the others.
//!
//! Whatever clients do, memory, descriptors and time per client are bounded, and a client that sends a request gets an
//! answer:
//! - One request per connection (`Connection: close`): pipelined requests behind it are not answered.
//! - At most [`CONNECTIONS_MAX`] connections. One more closes the oldest that has not sent its request yet, or else
//!   the oldest, so idle connections never block a scrape.
//! - The request's header must arrive within [`HEADER_TIMEOUT`] and be no larger than [`HEADER_BYTES_MAX`]; the
//!   whole exchange ends after [`EXCHANGE_TIMEOUT`], even if the client reads slowly or not at all.
//! - Without a free file descriptor (accept(2), EMFILE) the oldest connection is closed, and accepting goes on.

mod access;
mod pages;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::daemon::health::Health;
use crate::settings::Http;
use access::Access;
pub(crate) use pages::Source;
use pages::{Page, Pages};

/// How often `stop` checks whether the threads have ended.
const STOP_STEP: Duration = Duration::from_millis(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("http.listen: {address} cannot be used: {source}{}", hint(source))]
    Bind { address: SocketAddr, source: io::Error },
    #[error("http.token_file: {}: {reason} (hint: {})", path.display(), access::TOKEN_HINT)]
    Token { path: PathBuf, reason: String },
    #[error("the HTTP server cannot be started: {0}")]
    Start(#[source] io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (hint: another program listens there; --listen takes another address, or \"off\")"
        }
        io::ErrorKind::PermissionDenied => " (hint: ports below 1024 need CAP_NET_BIND_SERVICE)",
        io::ErrorKind::AddrNotAvailable => " (hint: no interface of this host has that address)",
        _ => "",
    }
}

/// A bound address that is not served yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
    access: Access,
}

/// Binds `address` and reads the token, if `settings` names one.
pub(crate) fn bind(address: SocketAddr, settings: &Http) -> Result<Bound, Error> {
    let access = Access::new(settings)?;
    let bind_error = |source| Error::Bind { address, source };
    let listener = TcpListener::bind(address).map_err(bind_error)?;
    listener.set_nonblocking(true).map_err(bind_error)?;
    let address = listener.local_addr().map_err(bind_error)?;
    if let Some(warning) = exposure(address.ip(), access.requires_token()) {
        tracing::warn!("http.listen: {address} {warning}");
    }
    Ok(Bound { listener, address, access })
}

/// A warning about an address that other hosts can reach.
fn exposure(address: IpAddr, requires_token: bool) -> Option<&'static str> {
    match (address.to_canonical().is_loopback(), requires_token) {
        (true, _) => None,
        (false, false) => Some(
            "is not a loopback address and no token is required: every host that reaches it can read rule \
             names, interfaces and counters (hint: set http.token_file)",
        ),
        (false, true) => Some(
            "is not a loopback address, and the bearer token is sent to it in clear text (hint: use a trusted \
             network, or listen on 127.0.0.1 behind a TLS proxy)",
        ),
    }
}

/// A running server; ends with `stop` or with the process.
#[derive(Debug)]
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    threads: [JoinHandle<()>; 2],
}

impl Bound {
    pub(crate) fn serve(self, source: Arc<dyn Source>, health: Arc<Health>) -> Result<Server, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(Error::Start)?;
        let (pages, renderer) = Pages::start(source).map_err(Error::Start)?;
        let answers = Arc::new(Answers { access: self.access, pages, health });
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = self.listener;
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::select! {
                () = accept_connections(&listener, answers) => Ok(()),
                // A dropped sender stops the server, too.
                _ = stopped => Ok::<(), io::Error>(()),
            }
        };
        let server = std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve) {
                    tracing::error!(%error, "the HTTP server failed");
                }
            })
            .map_err(Error::Start)?;
        Ok(Server { stop, threads: [server, renderer] })
    }
}

impl Server {
    /// Whether one of its threads has exited unexpectedly, so that pages are not served any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Closes open connections without waiting for them. `false`: a thread did not end within `timeout`, because it
    /// waits for the device to render a page; it is left to the end of the process.
    pub(crate) fn stop(self, timeout: Duration) -> bool {
        // Fails if the server thread has exited already.
        let _ = self.stop.send(());
        let deadline = Instant::now() + timeout;
        for thread in self.threads {
            while !thread.is_finished() {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(STOP_STEP);
            }
            if thread.join().is_err() {
                tracing::error!("a thread of the HTTP server panicked");
            }
        }
        true
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Debug)]
struct Answers {
    access: Access,
    pages: Pages,
    health: Arc<Health>,
}

type Answer = Response<Full<Bytes>>;

impl Answers {
    async fn answer(&self, request: &Parts) -> Answer {
        if let Err((status, why)) = self.access.check_host(request) {
            return text(status, why);
        }
        if ![Method::GET, Method::HEAD].contains(&request.method) {
            let answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
            return with(answer, ALLOW, "GET, HEAD");
        }
        match request.uri.path() {
            "/" => text(StatusCode::OK, "steerd: /metrics /healthz /readyz /api/v1/state\n"),
            // Whether the process need not be restarted.
            "/healthz" => verdict("ok\n", self.health.alive()),
            // Whether packets are steered.
            "/readyz" => verdict("ready\n", self.health.ready()),
            "/metrics" => self.page(request, Page::Metrics).await,
            "/api/v1/state" => self.page(request, Page::State).await,
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    /// These pages show traffic and rules and need the token; the probes above show only whether steerd works.
    async fn page(&self, request: &Parts, page: Page) -> Answer {
        if !self.access.check_token(request) {
            let answer = text(StatusCode::UNAUTHORIZED, "a bearer token is required: see http.token_file\n");
            return with(answer, WWW_AUTHENTICATE, "Bearer");
        }
        match self.pages.rendered(page).await {
            Ok(bytes) => with(Response::new(Full::new(bytes)), CONTENT_TYPE, page.content_type()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
}

fn verdict(good: &'static str, health: Result<(), String>) -> Answer {
    match health {
        Ok(()) => text(StatusCode::OK, good),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = with(Response::new(Full::new(body.into())), CONTENT_TYPE, TEXT);
    *answer.status_mut() = status;
    answer
}

fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}

/// Enough for several scrapers and users; systemd/steerd.service reserves descriptors for them.
const CONNECTIONS_MAX: usize = 64;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const HEADER_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// As long as Prometheus waits for a scrape by default.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// After the answer, what the client still sends is read, up to these limits: closing a socket with unread data resets
/// the connection, and the client may lose the end of the answer (RFC 9112, 9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 * 1024;
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// An open connection in the accept loop.
struct Connection {
    task: AbortHandle,
    /// Whether its request has arrived completely.
    asked: Arc<AtomicBool>,
}

/// Accepts connections until the task is cancelled.
async fn accept_connections(listener: &tokio::net::TcpListener, answers: Arc<Answers>) {
    let mut open = VecDeque::with_capacity(CONNECTIONS_MAX);
    let mut logged = None;
    loop {
        let accepted = listener.accept().await;
        open.retain(|connection: &Connection| !connection.task.is_finished());
        match accepted {
            Ok((stream, _)) => {
                if open.len() >= CONNECTIONS_MAX {
                    close_one(&mut open);
                }
                let asked = Arc::new(AtomicBool::new(false));
                let exchange = exchange(stream, Arc::clone(&answers), Arc::clone(&asked));
                let task = tokio::spawn(exchange).abort_handle();
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

async fn exchange(stream: TcpStream, answers: Arc<Answers>, asked: Arc<AtomicBool>) {
    let service = service_fn(move |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let answers = Arc::clone(&answers);
        async move { Ok::<_, Infallible>(answers.answer(&request.into_parts().0).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        // A client may close its sending side after the request.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .without_shutdown();
    match timeout(EXCHANGE_TIMEOUT, served).await {
        Ok(Ok(parts)) => {
            let _ = timeout(LINGER_TIMEOUT, linger(parts.io.into_inner())).await;
        }
        Ok(Err(error)) => tracing::debug!("an HTTP connection ended early: {error}"),
        Err(_) => tracing::debug!("an HTTP client took more than {EXCHANGE_TIMEOUT:?}"),
    }
}

async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(LINGER_BYTES_MAX);
    let mut unwanted = [0; 1024];
    while rest.read(&mut unwanted).await? > 0 {}
    Ok(())
}
