//! Connections and their limits. Whatever clients do, memory, descriptors and time per client are bounded, and one
//! that asks a question gets its answer.
//!
//! - One request per connection (`Connection: close`): what is pipelined behind it is not answered.
//! - At most [`CONNECTIONS_MAX`] connections. One more closes the oldest that has not sent its request yet, or else
//!   the oldest: idle connections never keep a scrape out.
//! - The request's header must come within [`HEADER_TIMEOUT`] and be no larger than [`HEADER_BYTES_MAX`]; the whole
//!   exchange, with a client that reads slowly or not at all, ends after [`EXCHANGE_TIMEOUT`].
//! - Without a free file descriptor (accept(2), EMFILE) the oldest connection is closed and accepting goes on.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::answers::Answers;

/// Enough for several scrapers and some people; systemd/steerd.service reserves descriptors for them.
pub(super) const CONNECTIONS_MAX: usize = 64;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const HEADER_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// As long as Prometheus waits for a scrape by default.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// After the answer, what the client still sends is read for so long and so much: to close a socket with unread
/// data resets the connection, and the client may lose the end of the answer (RFC 9112, 9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 * 1024;
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// An open connection, as the accept loop knows it.
struct Connection {
    task: AbortHandle,
    /// Whether its request has come as a whole.
    asked: Arc<AtomicBool>,
}

/// Accepts for ever.
pub(super) async fn serve(listener: &TcpListener, answers: Arc<Answers>) {
    let mut open = VecDeque::with_capacity(CONNECTIONS_MAX);
    let mut complained = None;
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
                complain(&error, &mut complained);
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

fn complain(error: &io::Error, complained: &mut Option<Instant>) {
    if complained.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL) {
        *complained = Some(Instant::now());
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
        // A client may close its side once it has asked.
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
