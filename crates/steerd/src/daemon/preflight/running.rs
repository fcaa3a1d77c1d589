//! The daemon that runs with the same settings, and what it holds: the checks meet its address, its links and
//! its interfaces, which are free before the next start.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use steerd_client::api::ApiClient;
use wire::WireError;
use worker::sinks::{SinkError, TapError};
use xdp::XdpError;

use crate::api::{model::Status, socket};
use crate::daemon::carving::{CarvingError, StoreError};
use crate::daemon::{Error, sinks};
use crate::settings::{AUTO_SOCKET, Settings};
use crate::telemetry::http;
use crate::terminal::numbers::bytes;

/// A sentence about something that the running daemon holds.
pub(super) struct Held(pub(super) String);

/// A daemon whose API answers at the socket of the settings.
pub(super) struct Running {
    status: Status,
    socket: String,
}

impl Running {
    /// `None`: there is none, or its API does not answer this user.
    pub(super) fn with(settings: &Settings) -> Option<Self> {
        if !settings.api.enabled {
            return None;
        }
        let is_default = settings.api.socket == Path::new(AUTO_SOCKET);
        let path = if is_default { socket::default_path() } else { settings.api.socket.clone() };
        let status = ApiClient::new(&path).ok()?.get::<Status>("/v1/status").ok()?;
        Some(Self { status, socket: path.display().to_string() })
    }

    pub(super) fn name(&self) -> String {
        format!("the running steerd (process {})", self.status.pid)
    }

    /// The sentence about its socket, which may be the default of a daemon with other settings.
    pub(super) fn of_socket(&self) -> String {
        format!("api.socket: {} is that of {}, which has to end before a start", self.socket, self.name())
    }

    /// The sentence about its memory, if so much is not free beside it.
    pub(super) fn of_memory(&self, needed_bytes: usize) -> String {
        format!(
            "workers.pages: the workers need {}, not all of which is free as long as {} has memory for its own",
            bytes(needed_bytes as u64),
            self.name()
        )
    }

    /// Whether its sink of this kind has this value in its status.
    pub(super) fn has_sink(&self, kind: &str, key: &str, value: &str) -> bool {
        let mut sinks = self.status.sinks.iter().filter(|sink| sink.kind == kind);
        sinks.any(|sink| sink.status.text(key) == Some(value))
    }

    /// The sentence about what an error is due to, if the daemon holds it.
    pub(super) fn holds(&self, error: &Error) -> Option<Held> {
        let holds = |what: String| Some(Held(format!("{what} is held by {}", self.name())));
        let is_it = |holder: &str| {
            let own = format!("process {}", self.status.pid);
            holder.strip_prefix(&own).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        match error {
            Error::Http(http::Error::Bind { address, source })
                if source.kind() == io::ErrorKind::AddrInUse && self.keeps_from(*address) =>
            {
                holds(format!("http.listen: {address}"))
            }
            Error::Wire { source: WireError::LinkTaken { link, end, holder }, .. } if is_it(holder) => {
                holds(format!("link `{link}`: end `{end}`"))
            }
            // It runs as another user than the one that is checked for.
            Error::Wire { source: WireError::LinkForeign { link, end, holder, .. }, .. }
                if u32::try_from(holder.process) == Ok(self.status.pid) =>
            {
                holds(format!("link `{link}`: end `{end}`"))
            }
            Error::Wire {
                source: WireError::Xdp { source: XdpError::Occupied { interface, .. } }, ..
            } if self.has_wire(interface) => holds(format!("the XDP program of `{interface}`")),
            Error::NicDrops { source: CarvingError::Store(StoreError::Held { interface, .. }), .. }
                if self.has_wire(interface) =>
            {
                holds(format!("the lock of the filters of `{interface}`"))
            }
            Error::Sink(sinks::Error::Open(SinkError::Kernel {
                sink,
                source: TapError::Shared { interface, holder },
            })) if is_it(holder) => holds(format!("sink `{sink}`: the TAP interface `{interface}`")),
            _ => None,
        }
    }

    /// Whether its listener keeps others from an address.
    fn keeps_from(&self, wanted: SocketAddr) -> bool {
        let held = self.status.http.as_deref().and_then(|held| held.parse().ok());
        held.is_some_and(|held| overlap(held, wanted))
    }

    /// Whether one of its ports is this interface.
    fn has_wire(&self, interface: &str) -> bool {
        self.status.wires.iter().any(|wire| wire.split(" (").next() == Some(interface))
    }
}

/// Whether a listener on one of these addresses keeps one on the other from being.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // [::] stands for all addresses of IPv4, too (ipv6(7), IPV6_V6ONLY).
    let covers = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    let [ip, other_ip] = [one, other].map(|address| address.ip().to_canonical());
    one.port() == other.port() && (ip == other_ip || covers(ip, other_ip) || covers(other_ip, ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_held_if_the_listener_is_what_keeps_others_from_it() {
        let is_held = |held: &str, wanted: &str, why: io::ErrorKind| {
            let status = Status { http: Some(held.to_owned()), ..Status::default() };
            let running = Running { status, socket: String::new() };
            let address = wanted.parse().expect("an address");
            let source = io::Error::from(why);
            running.holds(&Error::Http(http::Error::Bind { address, source })).is_some()
        };
        for (held, wanted) in [
            ("127.0.0.1:9100", "127.0.0.1:9100"),
            ("127.0.0.1:9100", "0.0.0.0:9100"),
            ("0.0.0.0:9100", "10.0.0.1:9100"),
            ("[::]:9100", "10.0.0.1:9100"),
            ("127.0.0.1:9100", "[::]:9100"),
            ("[::ffff:10.0.0.1]:9100", "10.0.0.1:9100"),
        ] {
            assert!(is_held(held, wanted, io::ErrorKind::AddrInUse), "{held} {wanted}");
            assert!(!is_held(held, wanted, io::ErrorKind::AddrNotAvailable), "{held} {wanted}");
        }
        for (held, wanted) in [
            ("127.0.0.1:9100", "127.0.0.1:9101"),
            ("127.0.0.1:9100", "10.0.0.1:9100"),
            ("0.0.0.0:9100", "[::1]:9100"),
        ] {
            assert!(!is_held(held, wanted, io::ErrorKind::AddrInUse), "{held} {wanted}");
        }
    }
}
