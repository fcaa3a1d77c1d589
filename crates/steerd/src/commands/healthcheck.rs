//! `steerd healthcheck`: requests /healthz of the daemon, for a container's HEALTHCHECK. One HTTP request
//! over a plain socket: an HTTP client library would be a large dependency for it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::cli::HealthcheckArgs;
use crate::commands::Error;
use crate::settings::{self, Listen, Request};

/// The time of the whole exchange: connecting, the request, the answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The part of the answer that is read: the status line and a short body.
const MAX_ANSWER_BYTES: u64 = 4096;
/// The bytes of one read.
const READ_BYTES: usize = 4096;
/// The characters of an answer that are shown in an error.
const SHOWN_CHARS: usize = 200;

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
        _ => Err(Error::Unhealthy(format!("{address} answers {}: {}", shortened(status), shortened(body)))),
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

/// The beginning of an answer for an error, in one line.
pub(super) fn shortened(answer: &str) -> String {
    let shown = answer.trim().chars().take(SHOWN_CHARS);
    shown.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The time until a deadline.
///
/// # Errors
/// The deadline is over.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The answer to a request for a path, with its head. `token`: a bearer token; empty: none. `most`: the bytes
/// that are read.
///
/// # Errors
/// Nobody answers in time.
pub(super) fn ask(address: SocketAddr, path: &str, token: &str, most: u64) -> io::Result<String> {
    let deadline = Instant::now() + TIMEOUT;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_write_timeout(Some(left_until(deadline)?))?;
    let access = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{access}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut buffer) = (Vec::new(), [0; READ_BYTES]);
    let mut stream = stream.take(most);
    loop {
        stream.get_ref().set_read_timeout(Some(left_until(deadline)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_one_short_line_of_an_answer() {
        assert_eq!(shortened(" not\nready\r\n"), "not ready");
        assert_eq!(shortened(&"x".repeat(5000)).len(), SHOWN_CHARS);
    }

    #[test]
    fn a_daemon_on_all_addresses_is_reached_on_loopback() {
        let ask = |listen: &str| reachable(listen.parse().expect("address")).to_string();
        assert_eq!(ask("0.0.0.0:9464"), "127.0.0.1:9464");
        assert_eq!(ask("[::]:9464"), "[::1]:9464");
        assert_eq!(ask("192.0.2.1:80"), "192.0.2.1:80");
    }
}
