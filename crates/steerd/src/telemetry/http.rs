//! The pages for monitoring, on a TCP address: /metrics, /healthz, /readyz, /api/v1/state, and a page for
//! browsers with what that asks for. Read only.
//!
//! The address is bound before anything is put on a device. The limits of connections and requests are those
//! of [`server`](crate::server); the whole exchange ends after [`EXCHANGE_TIMEOUT`], but for streams of
//! events.

mod access;
mod events;
mod negotiation;
mod page;
mod query;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, VARY, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use policy::policy::Direction;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::server::{Answer, Limits, Listener, Peer, Router, Server, text, whole, with};
use crate::settings::Http;
use crate::telemetry::carving::CarvingStatus;
use crate::telemetry::pages::{Page, Pages};
use access::Access;
use events::Streams;

/// The most time of an exchange: as long as Prometheus waits for a scrape by default.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request is not given up for others: the pages are usually rendered and sent in less time.
const BUSY_TIME: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("http.listen: {address} cannot be used: {source}{}", hint(source))]
    Bind { address: SocketAddr, source: io::Error },
    #[error("http.token_file: {}: {reason}", path.display())]
    Token { path: PathBuf, reason: String },
    #[error("the HTTP server cannot be started: {}{}", .0, crate::message::lacking(.0))]
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
    let address = listener.local_addr().map_err(bind_error)?;
    Ok(Bound { listener, address, access })
}

/// Checks that [`bind`] would succeed, and logs what is to be known about the token and the address. Nobody
/// is kept from the address.
pub(crate) fn check(address: SocketAddr, settings: &Http) -> Vec<Error> {
    let mut errors = Vec::new();
    match Access::new(settings) {
        Ok(access) => {
            access::warn_of_file(settings);
            if let Some(warning) = exposure(address.ip(), access.requires_token()) {
                tracing::warn!("http.listen: {address} {warning}");
            }
        }
        Err(error) => errors.push(error),
    }
    errors.extend(try_bind(address).err().map(|source| Error::Bind { address, source }));
    errors
}

/// Binds an address as a listener does, and does not listen: a socket that does not listen leaves the address
/// to others that set SO_REUSEADDR (socket(7)).
fn try_bind(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, &address)?)
}

/// A warning about an address that other hosts can reach.
fn exposure(address: IpAddr, requires_token: bool) -> Option<&'static str> {
    match (address.to_canonical().is_loopback(), requires_token) {
        (true, _) => None,
        (false, false) => Some(
            "is not a loopback address and no token is required: every host that reaches it can read rule \
             names, interfaces and counters, but not the policy (hint: set http.token_file)",
        ),
        (false, true) => Some(
            "is not a loopback address, and the bearer token is sent to it in clear text (hint: use a trusted \
             network, or listen on 127.0.0.1 behind a TLS proxy)",
        ),
    }
}

impl Bound {
    pub(crate) fn serve(self, pages: Arc<Pages>, health: Arc<dyn Probes>) -> Result<Server, Error> {
        self.serve_content(Content::Rendered(pages), health)
    }

    /// Serves the pages of a daemon that carves queues.
    pub(crate) fn serve_carving(self, status: Arc<CarvingStatus>) -> Result<Server, Error> {
        let health = Arc::clone(&status) as Arc<dyn Probes>;
        self.serve_content(Content::Carving(status), health)
    }

    fn serve_content(self, content: Content, health: Arc<dyn Probes>) -> Result<Server, Error> {
        let Self { listener, address, access } = self;
        let shows_policy = address.ip().to_canonical().is_loopback() || access.requires_token();
        let (streams, explaining) = (Streams::default(), Arc::new(Semaphore::new(1)));
        let answers = Answers { access, shows_policy, content, health, streams, explaining };
        Server::start(Listener::Tcp(listener), answers).map_err(Error::Start)
    }
}

/// The answers to the probes of a service manager.
pub(crate) trait Probes: fmt::Debug + Send + Sync {
    /// Checks that packets are steered.
    ///
    /// # Errors
    /// Why packets are not steered as they should be, in one line.
    fn ready(&self) -> Result<(), String>;

    /// Checks that the process need not be restarted.
    ///
    /// # Errors
    /// The parts that make no progress, in one line. Only a restart helps.
    fn alive(&self) -> Result<(), String>;

    /// The fault, although packets are steered, in one line.
    fn degraded(&self) -> Option<String>;
}

/// The source of the pages.
#[derive(Debug)]
enum Content {
    /// A thread renders them.
    Rendered(Arc<Pages>),
    /// They are a few figures.
    Carving(Arc<CarvingStatus>),
}

#[derive(Debug)]
struct Answers {
    access: Access,
    /// Whether the policy is shown: not to every host that reaches the address.
    shows_policy: bool,
    content: Content,
    health: Arc<dyn Probes>,
    streams: Streams,
    /// The place of the explanation that is being computed.
    explaining: Arc<Semaphore>,
}

impl Router for Answers {
    const LIMITS: Limits = Limits {
        name: "http",
        exchange: Some(EXCHANGE_TIMEOUT),
        busy: BUSY_TIME,
        write: EXCHANGE_TIMEOUT,
        half_close: true,
    };

    async fn answer(&self, request: Request<Incoming>, _peer: Option<Peer>) -> Answer {
        let request = request.into_parts().0;
        if let Err((status, why)) = self.access.check_host(&request) {
            return text(status, why);
        }
        if ![Method::GET, Method::HEAD].contains(&request.method) {
            let answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
            return with(answer, ALLOW, "GET, HEAD");
        }
        match request.uri.path() {
            "/" => self.index(),
            // Whether the process need not be restarted.
            "/healthz" => verdict(self.health.alive().map(|()| "ok".to_owned())),
            // Whether packets are steered.
            "/readyz" => verdict(self.health.ready().map(|()| ready(self.health.degraded()))),
            "/metrics" => {
                let format = negotiation::metrics_page(&request.headers);
                with(self.page(&request, format).await, VARY, "Accept")
            }
            "/api/v1/state" => self.page(&request, Page::State).await,
            path if path.starts_with("/api/v1/") => page::private(self.for_browsers(&request).await),
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }
}

impl Answers {
    /// The page for browsers, without data. A daemon that carves queues counts nothing that it could show.
    fn index(&self) -> Answer {
        match &self.content {
            Content::Rendered(_) => page::html(),
            Content::Carving(_) => text(StatusCode::OK, "steerd: /metrics /healthz /readyz /api/v1/state\n"),
        }
    }

    /// The data of the page for browsers.
    async fn for_browsers(&self, request: &Parts) -> Answer {
        let Content::Rendered(pages) = &self.content else {
            return text(StatusCode::NOT_FOUND, "filters count no packets, and have no page\n");
        };
        if page::is_of_other_site(request) {
            return text(StatusCode::FORBIDDEN, "this is not for pages of other sites\n");
        }
        if !self.access.check_token(request) {
            return without_token();
        }
        let page = match request.uri.path() {
            "/api/v1/events" => return self.streams.start(pages),
            "/api/v1/policy" => Some(Page::Policy),
            "/api/v1/policy/texts" => Some(Page::PolicyTexts),
            "/api/v1/history" => Some(Page::History),
            "/api/v1/explain" => None,
            _ => return text(StatusCode::NOT_FOUND, "no such page\n"),
        };
        if !self.shows_policy {
            let why =
                "the policy is shown on a loopback address, or to holders of a token: set http.token_file\n";
            return text(StatusCode::FORBIDDEN, why);
        }
        match page {
            Some(page) => self.rendered(page).await,
            None => self.explained(pages, request.uri.query().unwrap_or_default()).await,
        }
    }

    /// The explanation of the packet of a query. It takes time with the number of flows, so another thread
    /// computes it, one at a time: the thread of the server has the probes to answer.
    async fn explained(&self, pages: &Arc<Pages>, query: &str) -> Answer {
        let Ok(place) = Arc::clone(&self.explaining).try_acquire_owned() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "another packet is being explained: try again\n");
        };
        let (pages, query) = (Arc::clone(pages), query.to_owned());
        let explained = move || {
            let _place = place;
            explain(&pages, &query)
        };
        match spawn_blocking(explained).await {
            Ok(Ok(explained)) => with(whole(explained), CONTENT_TYPE, "application/json"),
            Ok(Err(why)) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("no explanation: {error}\n")),
        }
    }

    /// These pages show traffic and rules and need the token; the probes above show only whether steerd
    /// works.
    async fn page(&self, request: &Parts, page: Page) -> Answer {
        if self.access.check_token(request) { self.rendered(page).await } else { without_token() }
    }

    async fn rendered(&self, page: Page) -> Answer {
        let rendered = match &self.content {
            Content::Rendered(pages) => pages.rendered(page).await.map_err(str::to_owned),
            Content::Carving(status) => status.page(page),
        };
        match rendered {
            Ok(bytes) => with(whole(bytes), CONTENT_TYPE, page.content_type()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
}

/// The answer to a request without the token that it needs.
fn without_token() -> Answer {
    let answer = text(StatusCode::UNAUTHORIZED, "a bearer token is required: see http.token_file\n");
    with(answer, WWW_AUTHENTICATE, "Bearer")
}

fn explain(pages: &Pages, query: &str) -> Result<Vec<u8>, String> {
    let packet = query::parameter(query, "packet");
    let packet =
        packet.ok_or("a packet is needed: ?packet=FIELDS, as `steerd explain --packet` takes them")?;
    let direction = match query::parameter(query, "direction").as_deref() {
        None | Some("ingress") => Direction::Ingress,
        Some("egress") => Direction::Egress,
        Some(_) => return Err("the direction is ingress or egress".to_owned()),
    };
    pages.explain(&packet, direction)
}

fn ready(degraded: Option<String>) -> String {
    degraded.map_or_else(|| "ready".to_owned(), |why| format!("ready, {why}"))
}

fn verdict(health: Result<String, String>) -> Answer {
    match health {
        Ok(good) => text(StatusCode::OK, format!("{good}\n")),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
