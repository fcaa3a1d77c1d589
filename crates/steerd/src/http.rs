//! The HTTP side: /metrics, /healthz, /readyz, /api/v1/state. Read only: nothing here changes anything.
//!
//! The address is bound before anything is put on a device; serving runs on a thread of its own with
//! a single-threaded runtime, so a scrape never meets a worker. State comes from a `Snapshot`.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use prometheus::Registry;
use tokio::sync::oneshot;

use crate::health::Health;
use crate::metrics::{self, Snapshot};
use crate::output::Versioned;

/// How often the end looks whether the server's thread has ended.
const STOP_STEP: Duration = Duration::from_millis(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("http.listen: {address} cannot be used: {source}{}", hint(source))]
    Bind { address: SocketAddr, source: io::Error },
    #[error("the HTTP server cannot be started: {0}")]
    Start(#[source] io::Error),
    #[error("the metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
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

/// A bound address; nobody is served yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

pub(crate) fn bind(address: SocketAddr) -> Result<Bound, Error> {
    let bind_error = |source| Error::Bind { address, source };
    let listener = TcpListener::bind(address).map_err(bind_error)?;
    listener.set_nonblocking(true).map_err(bind_error)?;
    let address = listener.local_addr().map_err(bind_error)?;
    Ok(Bound { listener, address })
}

/// A running server; stopped by `stop`, or with the process.
#[derive(Debug)]
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

#[derive(Clone)]
struct Pages {
    registry: Registry,
    snapshot: Snapshot,
    health: Arc<Health>,
}

impl Bound {
    pub(crate) fn serve(self, snapshot: Snapshot, health: Arc<Health>) -> Result<Server, Error> {
        let registry = metrics::registry(Arc::clone(&snapshot))?;
        let pages = Pages { registry, snapshot, health };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(Error::Start)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let until = async {
                // A dropped sender means the same as a sent stop.
                let _ = stopped.await;
            };
            tokio::select! {
                served = async { axum::serve(listener, router(pages)).await } => served,
                () = until => Ok(()),
            }
        };
        let thread = std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve) {
                    tracing::error!(%error, "the HTTP server has failed");
                }
            })
            .map_err(Error::Start)?;
        Ok(Server { stop, thread })
    }
}

impl Server {
    /// Open connections are closed, not waited for. `false`: the thread did not end within `patience`, because a
    /// page that it was making does not come to its end.
    pub(crate) fn stop(self, patience: Duration) -> bool {
        let _ = self.stop.send(());
        let deadline = Instant::now() + patience;
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(STOP_STEP);
        }
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread has panicked");
        }
        true
    }
}

fn router(pages: Pages) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(health_page))
        .route("/readyz", get(ready_page))
        .route("/api/v1/state", get(state_page))
        .with_state(pages)
}

async fn index() -> &'static str {
    "steerd: /metrics /healthz /readyz /api/v1/state\n"
}

async fn metrics_page(Shared(pages): Shared<Pages>) -> Response {
    aside(move || match metrics::render(&pages.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    })
    .await
}

/// A device may take its time to answer; the other pages do not wait for it.
async fn aside(page: impl FnOnce() -> Response + Send + 'static) -> Response {
    let made = tokio::task::spawn_blocking(page).await;
    made.unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response())
}

/// Whether it makes sense to go on without a restart.
async fn health_page(Shared(pages): Shared<Pages>) -> (StatusCode, String) {
    verdict("ok", pages.health.alive())
}

/// Whether packets are steered.
async fn ready_page(Shared(pages): Shared<Pages>) -> (StatusCode, String) {
    verdict("ready", pages.health.ready())
}

fn verdict(good: &str, health: Result<(), String>) -> (StatusCode, String) {
    match health {
        Ok(()) => (StatusCode::OK, format!("{good}\n")),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn state_page(Shared(pages): Shared<Pages>) -> Response {
    aside(move || Json(Versioned::new(&*(pages.snapshot)())).into_response()).await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::state::State;

    fn ask(address: SocketAddr, page: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        write!(stream, "GET {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("request");
        stream
    }

    fn answer(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    #[test]
    fn a_device_that_takes_its_time_holds_up_nobody_else() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let slow = move || {
            let _ = held.lock().expect("nobody panics with it").recv();
            Arc::new(State::default())
        };
        let bound = bind("127.0.0.1:0".parse().expect("address")).expect("bound");
        let address = bound.address;
        let server = bound.serve(Arc::new(slow), Arc::default()).expect("served");
        let scrape = ask(address, "/metrics");
        assert!(answer(ask(address, "/healthz")).contains("200 OK"));
        release.send(()).expect("still waiting");
        assert!(answer(scrape).contains("200 OK"));
        assert!(server.stop(Duration::from_secs(30)));
    }
}
