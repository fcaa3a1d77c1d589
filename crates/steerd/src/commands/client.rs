//! The client of the daemon that the flags, the settings or the default socket name.

use std::path::{Path, PathBuf};

use steerd_client::api::{ApiClient, ApiError};

use super::Error;
use crate::api::socket;
use crate::cli::ApiArgs;
use crate::message::NoThread;
use crate::settings::{self, AUTO_SOCKET};

pub(super) fn connect(args: &ApiArgs) -> Result<ApiClient, Error> {
    let request = settings::Request {
        file: args.config.clone(),
        api_socket: args.api_socket.clone(),
        ..settings::Request::default()
    };
    let socket = settings::load(&request)?.settings.api.socket;
    let path = if socket == Path::new(AUTO_SOCKET) { socket::path_of_daemon() } else { socket };
    client_at(path)
}

/// A client of the daemon with the socket of the flags, or with the default one: for settings that have
/// problems.
pub(super) fn connect_without_settings(args: &ApiArgs) -> Result<ApiClient, Error> {
    client_at(args.api_socket.clone().unwrap_or_else(socket::path_of_daemon))
}

fn client_at(path: PathBuf) -> Result<ApiClient, Error> {
    ApiClient::new(path).map_err(|error| match error {
        ApiError::Runtime(source) => NoThread(source).into(),
        error => error.into(),
    })
}
