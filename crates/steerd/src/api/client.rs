//! The commands' side of the local API: finds the socket, sends one request per connection and reads the
//! answer.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::model::Failure;
use super::request::CaptureBody;
use super::router::CAPTURE_HEADER;
use super::socket;
use crate::cli::ApiArgs;
use crate::message::NoThread;
use crate::settings::{self, AUTO_SOCKET};
use crate::terminal::output::FORMAT;

/// For connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For an answer that takes the daemon no work.
pub(crate) const SHORT: Duration = Duration::from_secs(30);
/// For an answer that installs a policy; systemd's own limits are shorter (TimeoutStartSec= of the unit).
pub(crate) const LONG: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Settings(#[from] settings::Problems),
    #[error(transparent)]
    Thread(#[from] NoThread),
    #[error("{}: {source} (hint: {})", path.display(), unreachable(source))]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("{}: the daemon does not answer: {why}", path.display())]
    Silent { path: PathBuf, why: String },
    #[error("{}: the daemon refuses: {why}", path.display())]
    Refused { path: PathBuf, status: StatusCode, why: String, failure: Box<Failure> },
    #[error(
        "{}: the daemon's answer is not understood: {why} (hint: is it of the same version as this command?)",
        path.display()
    )]
    NotUnderstood { path: PathBuf, why: String },
}

fn unreachable(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the socket's permissions do not let this user connect: run it as root or as a member of the socket's group"
        }
        io::ErrorKind::ConnectionRefused => "the daemon has died; start it again",
        _ => {
            "no daemon runs with this socket; start one with `steerd run`, or name the socket of a running one with \
             --api-socket PATH or --config FILE"
        }
    }
}

/// How often a capture without packets looks whether it is over.
const STEP: Duration = Duration::from_millis(100);
/// How long the end of a capture is waited for after it was asked for.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The part that follows some bytes of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    More,
    Stop,
}

/// A daemon that commands talk to.
#[derive(Debug)]
pub(crate) struct Client {
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
}

/// An answer as the daemon sent it, with the number of its format.
#[derive(Deserialize)]
struct Received<T> {
    format: u32,
    #[serde(flatten)]
    value: T,
}

impl Client {
    /// The daemon of the flags, the settings or the default socket.
    pub(crate) fn new(args: &ApiArgs) -> Result<Self, Error> {
        let request = settings::Request {
            file: args.config.clone(),
            api_socket: args.api_socket.clone(),
            ..settings::Request::default()
        };
        let socket = settings::load(&request)?.settings.api.socket;
        let path = if socket == Path::new(AUTO_SOCKET) { socket::path_of_daemon() } else { socket };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        Ok(Self { path, runtime: runtime.map_err(NoThread)? })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let bytes = self.ask(Method::GET, path, Bytes::new(), SHORT)?;
        self.understood(&bytes)
    }

    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(body).map_err(|error| self.not_understood(&error))?;
        let bytes = self.ask(Method::POST, path, body.into(), limit)?;
        self.understood(&bytes)
    }

    fn understood<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Error> {
        let received: Received<T> =
            serde_json::from_slice(bytes).map_err(|error| self.not_understood(&error))?;
        if received.format != FORMAT {
            let why = format!("its format is {}, this command reads {FORMAT}", received.format);
            return Err(self.not_understood(&why));
        }
        Ok(received.value)
    }

    fn not_understood(&self, why: &dyn std::fmt::Display) -> Error {
        Error::NotUnderstood { path: self.path.clone(), why: why.to_string() }
    }

    fn silent(&self, why: &dyn std::fmt::Display) -> Error {
        Error::Silent { path: self.path.clone(), why: why.to_string() }
    }

    /// Sends a request and returns the whole body of its answer.
    fn ask(&self, method: Method, path: &str, body: Bytes, limit: Duration) -> Result<Bytes, Error> {
        let exchange = async {
            let answer = self.begin(method, path, body).await?;
            let body = answer.into_body().collect().await.map_err(|error| self.silent(&error))?;
            Ok(body.to_bytes())
        };
        self.runtime.block_on(self.within(limit, exchange))
    }

    async fn within<T>(
        &self,
        limit: Duration,
        exchange: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late = || self.silent(&format!("nothing came within {} s", limit.as_secs()));
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(late()))
    }

    /// Starts a capture and passes its bytes to `data` until `is_over` or `data` end it, or the daemon ends.
    /// The inner error is that of `data`.
    pub(crate) fn capture(
        &self,
        asked: &CaptureBody,
        is_over: impl Fn() -> bool,
        mut data: impl FnMut(&[u8]) -> io::Result<Next>,
    ) -> Result<io::Result<()>, Error> {
        let body = serde_json::to_vec(asked).map_err(|error| self.not_understood(&error))?;
        self.runtime.block_on(async {
            let begun = self.begin(Method::POST, "/v1/captures", body.into());
            let answer = self.within(SHORT, begun).await?;
            let id =
                answer.headers().get(CAPTURE_HEADER).and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
            let id = id.ok_or_else(|| self.not_understood(&"the number of the capture is missing"))?;
            let mut body = answer.into_body();
            let mut stopped: Option<Instant> = None;
            loop {
                if stopped.is_none() && is_over() {
                    stopped = Some(self.stop_capture(id));
                }
                if stopped.is_some_and(|stopped| stopped.elapsed() >= END_TIMEOUT) {
                    return Ok(Ok(()));
                }
                let Ok(frame) = timeout(STEP, body.frame()).await else { continue };
                let Some(frame) = frame else { return Ok(Ok(())) };
                let frame = frame.map_err(|error| self.silent(&error))?;
                match frame.data_ref().map_or(Ok(Next::More), |bytes| data(bytes)) {
                    Ok(Next::More) => {}
                    Ok(Next::Stop) if stopped.is_some() => {}
                    Ok(Next::Stop) => stopped = Some(self.stop_capture(id)),
                    Err(error) => return Ok(Err(error)),
                }
            }
        })
    }

    /// Asks for the end of a capture; the end of its bytes follows.
    fn stop_capture(&self, id: u64) -> Instant {
        let path = self.path.clone();
        tokio::spawn(async move {
            // If it fails, the capture ends with its connection.
            let _ = begin(&path, Method::DELETE, &format!("/v1/captures/{id}"), Bytes::new()).await;
        });
        Instant::now()
    }

    async fn begin(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Error> {
        begin(&self.path, method, path, body).await
    }
}

/// The head of the answer to a request, if it is a success.
async fn begin(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Error> {
    let silent = |error: hyper::Error| Error::Silent { path: socket.to_owned(), why: error.to_string() };
    let unreachable = |source| Error::Unreachable { path: socket.to_owned(), source };
    let connected = timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await;
    let stream = connected.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(silent)?;
    // Ends with the answer.
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    let request = request
        .body(Full::new(body))
        .map_err(|error| Error::Silent { path: socket.to_owned(), why: error.to_string() })?;
    let answer = sender.send_request(request).await.map_err(silent)?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(silent)?.to_bytes();
    let failure: Failure = serde_json::from_slice(&body).unwrap_or_default();
    let why = if failure.error.is_empty() { status.to_string() } else { failure.error.clone() };
    Err(Error::Refused { path: socket.to_owned(), status, why, failure: Box::new(failure) })
}
