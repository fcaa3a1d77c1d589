//! `steerd healthcheck`: requests /healthz of the daemon, for a container's HEALTHCHECK. One HTTP request
//! over a plain socket: an HTTP client library would be a large dependency for it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::cli::HealthcheckArgs;
use crate::commands::Error;
use crate::settings::{self, Listen, Request};

/// For connecting, and for each read of the answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The part of the answer that is read: the status line and a short body.
const MAX_ANSWER_BYTES: u64 = 4096;

pub(crate) fn run(args: &HealthcheckArgs) -> Result<(), Error> {
    let request = Request { file: args.config.clone(), listen: args.listen.clone(), ..Request::default() };
    let loaded = settings::load(&request)?;
    let address = match loaded.settings.http.listen {
        Listen::On(address) if address.port() != 0 => reachable(address),
        Listen::On(_) => {
            return Err(Error::Unhealthy("http.listen has no fixed port: give it with --listen".into()));
        }
        Listen::Off => {
            return Err(Error::Unhealthy("http.listen is \"off\": the daemon has no HTTP server".into()));
        }
    };
    let answer = ask(address, "/healthz", "", MAX_ANSWER_BYTES)
        .map_err(|error| Error::Unhealthy(format!("{address} does not answer: {error}")))?;
    let status = answer.split_whitespace().nth(1).unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
    match status {
        "200" => Ok(()),
        _ => Err(Error::Unhealthy(format!("{address} answers {status}: {body}"))),
    }
}

/// The address to connect to if the daemon listens on all addresses of the host.
pub(super) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The answer to a request for a path, with its head. `token`: a bearer token; empty: none. `most`: the bytes
/// that are read.
///
/// # Errors
/// Nobody answers in time.
pub(super) fn ask(address: SocketAddr, path: &str, token: &str, most: u64) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let access = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{access}Connection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(most).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_on_all_addresses_is_reached_on_loopback() {
        let ask = |listen: &str| reachable(listen.parse().expect("address")).to_string();
        assert_eq!(ask("0.0.0.0:9464"), "127.0.0.1:9464");
        assert_eq!(ask("[::]:9464"), "[::1]:9464");
        assert_eq!(ask("192.0.2.1:80"), "192.0.2.1:80");
    }
}
