//! Access control: the Host header is checked, and a bearer token if the settings name a file with one.
//!
//! A web page can let its own host name resolve to 127.0.0.1 and then read what listens there (DNS
//! rebinding); its requests carry that name in Host. So only addresses, `localhost` and the names in
//! `http.hosts` are served. The token is never printed: not in errors, logs or debug output.

use std::fmt;
use std::hint::black_box;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{StatusCode, Version};

use super::Error;
use crate::settings::Http;

const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;
const TOKEN_HINT: &str =
    "a file with one line of 16 to 4096 visible ASCII characters, e.g. of `openssl rand -hex 32`";

#[derive(Debug)]
pub(super) struct Access {
    hosts: Vec<String>,
    token: Option<Token>,
}

struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Access {
    pub(super) fn new(settings: &Http) -> Result<Self, Error> {
        let path = &settings.token_file;
        let token = (!path.as_os_str().is_empty()).then(|| Token::read(path)).transpose();
        let token = token.map_err(|reason| Error::Token { path: path.clone(), reason })?;
        Ok(Self { hosts: settings.hosts.clone(), token })
    }

    pub(super) fn requires_token(&self) -> bool {
        self.token.is_some()
    }

    /// Checks that the request is for this server; otherwise returns the status and text of the answer.
    pub(super) fn check_host(&self, request: &Parts) -> Result<(), (StatusCode, &'static str)> {
        let bad = |why| Err((StatusCode::BAD_REQUEST, why));
        // A request target in absolute form takes precedence over the header (RFC 9112, 3.2.2).
        let hosts: Vec<&HeaderValue> = request.headers.get_all(HOST).iter().collect();
        let authority = match (request.uri.authority(), hosts.as_slice()) {
            (Some(authority), _) => authority.clone(),
            (None, [host]) => match Authority::try_from(host.as_bytes()) {
                Ok(authority) => authority,
                Err(_) => return bad("the Host header is not a host name or address\n"),
            },
            // HTTP/1.0 has no Host header; browsers do not use it.
            (None, []) if request.version == Version::HTTP_10 => return Ok(()),
            (None, []) => return bad("the Host header is missing\n"),
            (None, _) => return bad("there is more than one Host header\n"),
        };
        if self.is_ours(authority.host()) {
            return Ok(());
        }
        Err((
            StatusCode::MISDIRECTED_REQUEST,
            "this host name is not served: use an address or localhost, or list the name in http.hosts of the settings\n",
        ))
    }

    fn is_ours(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_address =
            v6.map_or_else(|| host.parse::<IpAddr>().is_ok(), |v6| v6.parse::<Ipv6Addr>().is_ok());
        let is = |name: &str| name.eq_ignore_ascii_case(host);
        is_address || is("localhost") || self.hosts.iter().any(|name| is(name))
    }

    /// Whether the request carries the token, if one is required (RFC 6750, 2.1).
    pub(super) fn check_token(&self, request: &Parts) -> bool {
        let Some(token) = &self.token else { return true };
        let given = request.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|given| given.split_at_checked(b"Bearer ".len()));
        given.is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case(b"Bearer ") && token.is(given))
    }
}

/// Logs a warning if everybody can read the token.
pub(super) fn warn_of_file(settings: &Http) {
    let path = &settings.token_file;
    if !path.as_os_str().is_empty() && path.metadata().is_ok_and(|file| file.mode() & 0o004 != 0) {
        tracing::warn!("http.token_file: {} can be read by every user of this host", path.display());
    }
}

/// The reason why a token file cannot be read, with a hint.
fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            let file = path.display();
            format!("let the user of the daemon read it: chgrp steerd {file} && chmod 640 {file}")
        }
        _ => TOKEN_HINT.to_owned(),
    };
    format!("cannot be read: {error} (hint: {hint})")
}

impl Token {
    /// The token of a file, or why there is none, with a hint.
    fn read(path: &Path) -> Result<Self, String> {
        let cannot = |error: std::io::Error| unreadable(path, &error);
        let file = regular_file::open(path).map_err(|error| cannot(error.into()))?;
        let mut text = Vec::new();
        file.take(*TOKEN_BYTES.end() as u64 + 3).read_to_end(&mut text).map_err(cannot)?;
        let token = text.trim_ascii();
        if !TOKEN_BYTES.contains(&token.len()) {
            return Err(format!("does not hold a token of an allowed length (hint: {TOKEN_HINT})"));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(format!("holds characters that a token cannot have (hint: {TOKEN_HINT})"));
        }
        Ok(Self(token.to_vec()))
    }

    /// Takes a time that depends on the lengths only, so that it does not reveal how much of a guess was
    /// right.
    fn is(&self, given: &[u8]) -> bool {
        let different = |(a, b): (&u8, &u8)| a ^ b;
        self.0.len() == given.len()
            && black_box(self.0.iter().zip(given).map(different).fold(0, |sum, bits| black_box(sum | bits)))
                == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn access(hosts: &[&str]) -> Access {
        Access {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            token: Some(Token(b"0123456789abcdef".to_vec())),
        }
    }

    fn parts(version: Version, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::builder().version(version).uri(uri), |request, (name, value)| {
                request.header(*name, *value)
            });
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn only_addresses_localhost_and_listed_names_are_served() {
        let access = access(&["node7.example"]);
        let status = |host: &str| {
            let request = parts(Version::HTTP_11, "/metrics", &[("host", host)]);
            access.check_host(&request).map_or_else(|(status, _)| status.as_u16(), |()| 200)
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "10.1.2.3:1",
            "[::1]:9464",
            "[fe80::1]",
            "localhost",
            "LOCALHOST:80",
        ] {
            assert_eq!(status(host), 200, "{host}");
        }
        assert_eq!(["node7.example", "Node7.Example.:9464"].map(status), [200, 200]);
        for host in ["rebind.example", "localhost.rebind.example", "127.0.0.1.rebind.example:9464", "node7"] {
            assert_eq!(status(host), 421, "{host}");
        }
        assert_eq!(["", "a b", "http://x"].map(status), [400, 400, 400]);
    }

    #[test]
    fn the_request_target_takes_precedence_over_the_header() {
        let access = access(&[]);
        let version = Version::HTTP_11;
        let misled = parts(version, "http://rebind.example/metrics", &[("host", "127.0.0.1")]);
        assert_eq!(access.check_host(&misled).map_err(|(status, _)| status.as_u16()), Err(421));
        let twice = parts(version, "/", &[("host", "127.0.0.1"), ("host", "127.0.0.1")]);
        assert_eq!(access.check_host(&twice).map_err(|(status, _)| status.as_u16()), Err(400));
        assert!(access.check_host(&parts(version, "/", &[])).is_err());
        assert!(access.check_host(&parts(Version::HTTP_10, "/", &[])).is_ok());
    }

    #[test]
    fn only_the_complete_token_is_accepted() {
        let access = access(&[]);
        let fits =
            |value: &str| access.check_token(&parts(Version::HTTP_11, "/", &[("authorization", value)]));
        assert!(fits("Bearer 0123456789abcdef") && fits("bearer 0123456789abcdef"));
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!fits(value), "{value:?}");
        }
        assert!(!access.check_token(&parts(Version::HTTP_11, "/", &[])));
        assert_eq!(format!("{:?}", access.token), "Some(Token(..))", "it is not printed");
    }

    #[test]
    fn a_token_file_holds_one_token() {
        let folder = tempfile::tempdir().expect("folder");
        let read = |text: &[u8]| {
            let path = folder.path().join("token");
            std::fs::write(&path, text).expect("written");
            Token::read(&path).map(|token| token.0)
        };
        assert_eq!(read(b"0123456789abcdef\n"), Ok(b"0123456789abcdef".to_vec()));
        for text in [
            &b""[..],
            b"\n",
            b"short",
            b"0123456789 abcdef",
            b"0123456789abcdef\n0123456789abcdef",
            &[b'x'; 4097],
        ] {
            let error = read(text).expect_err("no token");
            assert!(!error.contains("0123"), "{error}");
        }
        let denied = unreadable(Path::new("/etc/token"), &std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.contains("chgrp steerd /etc/token") && !denied.contains("openssl"), "{denied}");
        assert!(Token::read(folder.path()).is_err());
        assert!(Token::read(Path::new("/dev/zero")).is_err());
        assert!(Token::read(&folder.path().join("none")).is_err());
    }
}
