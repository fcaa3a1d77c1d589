//! From a request's head to its answer; bodies of requests are not read.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use super::access::Access;
use super::pages::{Page, Pages};
use crate::health::Health;

const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Debug)]
pub(super) struct Answers {
    pub(super) access: Access,
    pub(super) pages: Pages,
    pub(super) health: Arc<Health>,
}

pub(super) type Answer = Response<Full<Bytes>>;

impl Answers {
    pub(super) async fn answer(&self, request: &Parts) -> Answer {
        if let Err((status, why)) = self.access.check_host(request) {
            return text(status, why);
        }
        if ![Method::GET, Method::HEAD].contains(&request.method) {
            let answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
            return with(answer, ALLOW, "GET, HEAD");
        }
        match request.uri.path() {
            "/" => text(StatusCode::OK, "steerd: /metrics /healthz /readyz /api/v1/state\n"),
            // Whether it makes sense to go on without a restart.
            "/healthz" => verdict("ok\n", self.health.alive()),
            // Whether packets are steered.
            "/readyz" => verdict("ready\n", self.health.ready()),
            "/metrics" => self.page(request, Page::Metrics).await,
            "/api/v1/state" => self.page(request, Page::State).await,
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    /// The probes above say only whether steerd works; these pages show what it does and want the token.
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
