//! Paths of files as URIs, and back.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use lsp_types::Uri;
use policy::plain_path;

/// The path of a document, which names it here: that of a file, else the URI itself.
pub(crate) fn path_of(uri: &Uri) -> PathBuf {
    file_path(uri.as_str()).unwrap_or_else(|| PathBuf::from(uri.as_str()))
}

/// The path of a URI of a file on this host.
fn file_path(uri: &str) -> Option<PathBuf> {
    let (scheme, rest) = uri.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("file") {
        return None;
    }
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
        None => rest,
    };
    path.starts_with('/').then(|| plain_path(Path::new(&OsString::from_vec(decoded(path.as_bytes())))))
}

/// The bytes of a text with `%XX`.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        let escaped = (*byte == b'%').then(|| Some(digit(at + 1)? * 16 + digit(at + 2)?)).flatten();
        match escaped.and_then(|byte| u8::try_from(byte).ok()) {
            Some(byte) => {
                bytes.push(byte);
                at += 3;
            }
            None => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    bytes
}

/// The URI of a path that [`path_of`] has made.
pub(crate) fn uri_of(path: &Path) -> Option<Uri> {
    if !path.is_absolute() {
        return path.to_str()?.parse().ok();
    }
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            _ => {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_a_round_trip() {
        for path in ["/a/b.toml", "/a b/ü#?%.toml", "/a/%41"] {
            let uri = uri_of(Path::new(path)).expect("a URI");
            assert_eq!(path_of(&uri), Path::new(path), "{}", uri.as_str());
        }
        let not_utf8 = PathBuf::from(OsString::from_vec(b"/\xff/p.toml".to_vec()));
        assert_eq!(path_of(&uri_of(&not_utf8).expect("a URI")), not_utf8);
    }

    #[test]
    fn names_of_clients_are_understood() {
        let path = |uri: &str| path_of(&uri.parse().expect("a URI"));
        assert_eq!(path("file:///a/./b/../c%20d.toml"), Path::new("/a/c d.toml"));
        assert_eq!(path("file://localhost/a"), Path::new("/a"));
        assert_eq!(path("untitled:Untitled-1"), Path::new("untitled:Untitled-1"));
    }
}
