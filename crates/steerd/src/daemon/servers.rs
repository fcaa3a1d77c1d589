//! The servers of the daemon: monitoring over TCP and the local API, with the pages that both serve.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;

use crate::api::{self, ReloadRequest};
use crate::daemon::Error;
use crate::daemon::reload::Parts;
use crate::daemon::service::Service;
use crate::server::Server;
use crate::settings::{Listen, Settings};
use crate::telemetry::http;
use crate::telemetry::pages::{Pages, Renderer};

/// Addresses that are not served yet.
pub(super) struct Bound {
    http: Option<http::Bound>,
    api: Option<api::Bound>,
}

/// Takes the addresses of the settings.
pub(super) fn bind(settings: &Settings) -> Result<Bound, Error> {
    let http = match settings.http.listen {
        Listen::On(address) => Some(http::bind(address, &settings.http)?),
        Listen::Off => None,
    };
    let api = api::bind(&settings.api)?;
    if let Some(http) = &http {
        tracing::info!("http://{address}/metrics, for browsers http://{address}/", address = http.address);
    }
    if let Some(api) = &api {
        tracing::info!("API: {}", api.file.path().display());
    }
    Ok(Bound { http, api })
}

impl Bound {
    /// `reloads`: to the run loop.
    pub(super) fn serve(self, parts: &Parts, reloads: Sender<ReloadRequest>) -> Result<Servers, Error> {
        let address = self.http.as_ref().map(|http| http.address);
        let service = Arc::new(Service::new(parts.clone(), address));
        let (pages, renderer) = Pages::start(Arc::clone(&service) as Arc<_>)
            .map_err(|error| Error::Http(http::Error::Start(error)))?;
        let health = Arc::clone(&parts.observer.health) as Arc<_>;
        let http = self.http.map(|http| http.serve(Arc::clone(&pages), health)).transpose()?;
        let daemon = service as Arc<dyn api::Daemon>;
        let api = self.api.map(|api| api.serve(api::Links { daemon, pages, reloads }));
        Ok(Servers { http, api: api.transpose()?, renderer })
    }
}

/// The running servers.
pub(super) struct Servers {
    http: Option<Server>,
    api: Option<api::Served>,
    renderer: Renderer,
}

impl Servers {
    /// Whether a thread has exited unexpectedly.
    pub(super) fn has_ended(&self) -> bool {
        let http = self.http.as_ref().is_some_and(Server::has_ended);
        let api = self.api.as_ref().is_some_and(|api| api.server.has_ended());
        http || api || self.renderer.has_ended()
    }

    /// Closes all connections and removes the socket; returns whether all threads ended within `timeout`
    /// each.
    pub(super) fn stop(self, timeout: Duration) -> bool {
        let http = self.http.is_none_or(|server| server.stop(timeout));
        let api = self.api.is_none_or(|api| api.stop(timeout));
        let renderer = self.renderer.stop(timeout);
        http && api && renderer
    }
}
