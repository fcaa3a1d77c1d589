//! The local API: JSON over HTTP/1.1 on a unix socket, for the commands that work on the running daemon and
//! for other programs of this host. docs/reference/api.md describes it.
//!
//! [`socket`] claims the path, [`request`] reads requests, [`router`] answers them; `steerd_client::api` is
//! the side of the commands. Who can connect can read; only root, the daemon's user and `api.admins` can
//! change what runs. The limits of connections and requests are those of [`server`](crate::server).

mod captures;
pub(crate) mod flows;
pub(crate) mod model;
pub(crate) mod request;
mod router;
pub(crate) mod rules;
pub(crate) mod socket;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::server::{Listener, Server};
use crate::settings;
pub(crate) use captures::Asked;
pub(crate) use router::{Daemon, InForce, Links, ReloadRequest, Waiter, Wanted};
use socket::SocketFile;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "api.socket: {} is in use by {owner} (hint: end it, or use another path: --api-socket PATH)",
        path.display()
    )]
    InUse { path: PathBuf, owner: String },
    #[error("api.socket: {} exists and is not a socket (hint: remove it, or use another path)", path.display())]
    NotASocket { path: PathBuf },
    #[error("api.socket: {} cannot be used: {operation}: {source}{}", path.display(), socket::hint(source))]
    Bind { path: PathBuf, operation: &'static str, source: io::Error },
    #[error("api.socket: {} cannot be used: {source}", path.display())]
    Names { path: PathBuf, source: shm::BindError },
    #[error("the server of the API cannot be started: {}{}", .0, crate::message::lacking(.0))]
    Start(#[source] io::Error),
}

/// A socket that is not served yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: std::os::unix::net::UnixListener,
    pub(crate) file: SocketFile,
    admins: Vec<u32>,
}

/// Claims the socket of the settings. `None`: the API is off, or no folder for the default socket is usable,
/// which is logged.
pub(crate) fn bind(settings: &settings::Api) -> Result<Option<Bound>, Error> {
    let Some((path, is_default)) = path_of(settings) else { return Ok(None) };
    if is_default {
        socket::make_folder(&path);
    }
    let claimed = socket::claim(&path, settings.mode);
    let bound = |(listener, file)| Bound { listener, file, admins: settings.admins.clone() };
    unless_default(is_default, claimed.map(bound))
}

/// Checks that [`bind`] would succeed, and logs what it would log. Nothing is made or removed.
///
/// # Errors
/// The errors of [`bind`].
pub(crate) fn check(settings: &settings::Api) -> Result<(), Error> {
    let Some((path, is_default)) = path_of(settings) else { return Ok(()) };
    unless_default(is_default, socket::check(&path, is_default)).map(drop)
}

/// The path of the socket, and whether it is the default. `None`: the API is off.
pub(crate) fn path_of(settings: &settings::Api) -> Option<(PathBuf, bool)> {
    let is_default = settings.socket.as_os_str() == settings::AUTO_SOCKET;
    let path = || if is_default { socket::default_path() } else { settings.socket.clone() };
    settings.enabled.then(|| (path(), is_default))
}

/// Where the default socket cannot be made, the API is off, which is logged.
fn unless_default<T>(is_default: bool, claimed: Result<T, Error>) -> Result<Option<T>, Error> {
    match claimed {
        Err(error @ (Error::Bind { .. } | Error::Names { .. })) if is_default => {
            tracing::warn!("the local API is off: {error} (hint: set api.socket, or api.enabled = false)");
            Ok(None)
        }
        claimed => claimed.map(Some),
    }
}

impl Bound {
    pub(crate) fn serve(self, links: Links) -> Result<Served, Error> {
        let router = router::Api::new(links, self.admins);
        let server = Server::start(Listener::Unix(self.listener), router).map_err(Error::Start)?;
        Ok(Served { server, file: self.file })
    }
}

/// The running server; its socket is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) server: Server,
    file: SocketFile,
}

impl Served {
    /// Stops the server as [`Server::stop`] does; the socket is removed first, so that nobody connects to a
    /// server that has ended.
    pub(crate) fn stop(self, timeout: Duration) -> bool {
        let Self { server, file } = self;
        drop(file);
        server.stop(timeout)
    }
}
