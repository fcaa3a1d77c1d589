//! One request per connection to the socket of the local API, and its answer.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::rules::ApiFailure;
use super::{CAPTURE_HEADER, FORMAT, LONG, SHORT};

/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The runtime of the client cannot be made.
    #[error("the client cannot be set up: {0}")]
    Runtime(#[source] io::Error),
    /// No daemon has the socket, or this user may not connect.
    #[error("{}: {source} (hint: {})", path.display(), unreachable(source))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The error of connect(2).
        source: io::Error,
    },
    /// The daemon has taken the connection and does not answer.
    #[error("{}: the daemon does not answer: {why}", path.display())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The answer that came instead.
        why: String,
    },
    /// The daemon does nothing of what was asked.
    #[error("{}: the daemon refuses: {why}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The status of HTTP: 403 may not, 404 is not there, 409 not possible, 503 not now.
        status: u16,
        /// The reason in a sentence.
        why: String,
        /// The answer, with the rules that it is about.
        failure: Box<ApiFailure>,
    },
    /// The answer is not of this API.
    #[error(
        "{}: the daemon's answer is not understood: {why} (hint: is it of the same version as this program?)",
        path.display()
    )]
    NotUnderstood {
        /// The socket.
        path: PathBuf,
        /// The part that is not.
        why: String,
    },
}

fn unreachable(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the socket's permissions do not let this user connect: run it as root or as a member of the socket's group"
        }
        io::ErrorKind::ConnectionRefused => "the daemon has died; start it again",
        _ => {
            "no daemon runs with this socket; start one with `steerd run`, or name the socket of a running one (of \
             commands: --api-socket PATH or --config FILE)"
        }
    }
}

/// How often a capture without packets looks whether it is over.
const STEP: Duration = Duration::from_millis(100);
/// How long the end of a capture is waited for after it was asked for.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a capture goes on behind some of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureNext {
    /// Further bytes are wanted.
    More,
    /// The capture is to be stopped.
    Stop,
}

/// A client of the local API of a daemon. Its calls block.
#[derive(Debug)]
pub struct ApiClient {
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

impl ApiClient {
    /// A client of the daemon with this socket, which has to be there when a call is made.
    ///
    /// # Errors
    /// The system has no room for another descriptor.
    pub fn new(socket: impl Into<PathBuf>) -> Result<Self, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        Ok(Self { path: socket.into(), runtime: runtime.map_err(ApiError::Runtime)? })
    }

    /// Asks for a path of the API; `T` has the keys of the answer.
    ///
    /// # Errors
    /// The daemon refuses, does not answer, or answers something else.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let bytes = self.ask(Method::GET, path, Bytes::new(), SHORT)?;
        self.understood(&bytes)
    }

    /// Sends a body to a path of the API, and waits for the answer at most for `limit`.
    ///
    /// # Errors
    /// The daemon refuses, does not answer, or answers something else.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| self.not_understood(&error))?;
        let bytes = self.ask(Method::POST, path, body.into(), limit)?;
        self.understood(&bytes)
    }

    fn understood<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ApiError> {
        let received: Received<T> =
            serde_json::from_slice(bytes).map_err(|error| self.not_understood(&error))?;
        if received.format != FORMAT {
            let why = format!("its format is {}, this program reads {FORMAT}", received.format);
            return Err(self.not_understood(&why));
        }
        Ok(received.value)
    }

    fn not_understood(&self, why: &dyn std::fmt::Display) -> ApiError {
        ApiError::NotUnderstood { path: self.path.clone(), why: why.to_string() }
    }

    fn silent(&self, why: &dyn std::fmt::Display) -> ApiError {
        ApiError::Silent { path: self.path.clone(), why: why.to_string() }
    }

    /// Sends a request and returns the whole body of its answer.
    fn ask(&self, method: Method, path: &str, body: Bytes, limit: Duration) -> Result<Bytes, ApiError> {
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
        exchange: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let late = || self.silent(&format!("nothing came within {} s", limit.as_secs()));
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(late()))
    }

    /// Starts a capture and passes its bytes to `data` until `is_over` or `data` end it, or the daemon ends.
    /// The inner error is that of `data`. `asked` has the keys of POST /v1/captures.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer.
    pub fn capture(
        &self,
        asked: &impl Serialize,
        is_over: impl Fn() -> bool,
        data: impl FnMut(&[u8]) -> io::Result<CaptureNext>,
    ) -> Result<io::Result<()>, ApiError> {
        self.follow("/v1/captures", asked, SHORT, is_over, data)
    }

    /// Starts a trace as [`ApiClient::capture`] starts a capture; its bytes are JSON objects, a line each.
    /// `asked` has the keys of POST /v1/traces.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer.
    pub fn trace(
        &self,
        asked: &impl Serialize,
        is_over: impl Fn() -> bool,
        data: impl FnMut(&[u8]) -> io::Result<CaptureNext>,
    ) -> Result<io::Result<()>, ApiError> {
        self.follow("/v1/traces", asked, SHORT, is_over, data)
    }

    /// Passes the packets that the recorder has kept to `data`, as [`ApiClient::capture`] does. `asked` has
    /// the keys of POST /v1/records.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer.
    pub fn record(
        &self,
        asked: &impl Serialize,
        is_over: impl Fn() -> bool,
        data: impl FnMut(&[u8]) -> io::Result<CaptureNext>,
    ) -> Result<io::Result<()>, ApiError> {
        // The answer begins when the packets are copied.
        self.follow("/v1/records", asked, LONG, is_over, data)
    }

    /// Passes on the bytes of an answer that goes on until it is stopped, and that begins within `limit`.
    fn follow(
        &self,
        path: &str,
        asked: &impl Serialize,
        limit: Duration,
        is_over: impl Fn() -> bool,
        mut data: impl FnMut(&[u8]) -> io::Result<CaptureNext>,
    ) -> Result<io::Result<()>, ApiError> {
        let body = serde_json::to_vec(asked).map_err(|error| self.not_understood(&error))?;
        self.runtime.block_on(async {
            let begun = self.begin(Method::POST, path, body.into());
            let answer = self.within(limit, begun).await?;
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
                match frame.data_ref().map_or(Ok(CaptureNext::More), |bytes| data(bytes)) {
                    Ok(CaptureNext::More) => {}
                    Ok(CaptureNext::Stop) if stopped.is_some() => {}
                    Ok(CaptureNext::Stop) => stopped = Some(self.stop_capture(id)),
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

    async fn begin(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ApiError> {
        begin(&self.path, method, path, body).await
    }
}

/// The head of the answer to a request, if it is a success.
async fn begin(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, ApiError> {
    let silent = |error: hyper::Error| ApiError::Silent { path: socket.to_owned(), why: error.to_string() };
    let unreachable = |source| ApiError::Unreachable { path: socket.to_owned(), source };
    let connected = timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await;
    let stream = connected.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(silent)?;
    // Ends with the answer.
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    let request = request
        .body(Full::new(body))
        .map_err(|error| ApiError::Silent { path: socket.to_owned(), why: error.to_string() })?;
    let answer = sender.send_request(request).await.map_err(silent)?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(silent)?.to_bytes();
    let failure: ApiFailure = serde_json::from_slice(&body).unwrap_or_default();
    let why = if failure.error.is_empty() { status.to_string() } else { failure.error.clone() };
    Err(ApiError::Refused {
        path: socket.to_owned(),
        status: status.as_u16(),
        why,
        failure: Box::new(failure),
    })
}
