//! The HTTP server: /metrics, /healthz, /readyz, /api/v1/state. Read only: nothing here changes anything.
//!
//! The address is bound before anything is put on a device. Connections are served by one thread with a
//! single-threaded runtime (`connections` has the limits), pages are rendered by another (`pages`); a request
//! never starts a thread and never waits for the device on the thread that serves the others.

mod access;
mod answers;
mod connections;
mod pages;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::health::Health;
use crate::settings::Http;
use access::Access;
use answers::Answers;
use pages::Pages;
pub(crate) use pages::Source;

/// How often `stop` looks whether the threads have ended.
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

/// A bound address; nobody is served yet.
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
    if let Some(warning) = exposure(address.ip(), access.wants_token()) {
        tracing::warn!("http.listen: {address} {warning}");
    }
    Ok(Bound { listener, address, access })
}

/// What an operator should know of an address that other hosts can reach.
fn exposure(address: IpAddr, wants_token: bool) -> Option<&'static str> {
    match (address.to_canonical().is_loopback(), wants_token) {
        (true, _) => None,
        (false, false) => Some(
            "is not a loopback address and no token is required: every host that reaches it can read rule \
             names, interfaces and counters (hint: set http.token_file)",
        ),
        (false, true) => Some(
            "is not a loopback address, and the bearer token is sent over it in clear text (hint: use a trusted \
             network, or listen on 127.0.0.1 behind a proxy that speaks TLS)",
        ),
    }
}

/// A running server; stopped by `stop`, or with the process.
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
                () = connections::serve(&listener, answers) => Ok(()),
                // A dropped sender means the same as a sent stop.
                _ = stopped => Ok::<(), io::Error>(()),
            }
        };
        let server = std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve) {
                    tracing::error!(%error, "the HTTP server has failed");
                }
            })
            .map_err(Error::Start)?;
        Ok(Server { stop, threads: [server, renderer] })
    }
}

impl Server {
    /// Whether one of its threads has ended although nobody asked it to: pages are not served any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Open connections are closed, not waited for. `false`: a thread did not end within `patience`, because the
    /// page that it renders waits for the device; it is left to the end of the process.
    pub(crate) fn stop(self, patience: Duration) -> bool {
        // A server that has ended by itself does not listen to it.
        let _ = self.stop.send(());
        let deadline = Instant::now() + patience;
        for thread in self.threads {
            while !thread.is_finished() {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(STOP_STEP);
            }
            if thread.join().is_err() {
                tracing::error!("a thread of the HTTP server has panicked");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
