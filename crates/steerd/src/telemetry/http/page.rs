//! The page for browsers at `/`: one file of HTML, CSS and JavaScript, without data. Its script gets the data
//! from the paths below `/api/v1`.
//!
//! Names of rules, packets and policies are input that the operator of the browser does not control, so the
//! headers forbid what could make markup or code of them: every script but that of this file, the
//! interpretation of text as HTML (`require-trusted-types-for`), and requests to other hosts.

use std::sync::LazyLock;

use hyper::Uri;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN, REFERER,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use sha2::{Digest, Sha256};

use crate::server::{Answer, whole, with};

const HTML: &str = include_str!("page.html");

static CONTENT_POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |element| Sha256::digest(content(HTML, element));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        base64(&hash("script")),
        base64(&hash("style")),
    );
    HeaderValue::from_str(&policy).expect("ASCII")
});

const SAME_ORIGIN: &str = "same-origin";
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The page itself.
pub(super) fn html() -> Answer {
    let mut answer = with(private(whole(HTML)), CONTENT_TYPE, "text/html; charset=utf-8");
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, CONTENT_POLICY.clone());
    with(with(answer, OPENER_POLICY, SAME_ORIGIN), REFERRER_POLICY, "no-referrer")
}

/// Keeps an answer from caches, from other sites and from being taken for another type.
pub(super) fn private(answer: Answer) -> Answer {
    let answer = with(answer, CACHE_CONTROL, "no-store");
    with(with(answer, RESOURCE_POLICY, SAME_ORIGIN), X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// Whether a browser sends this request for a page of another site, which could not read the answer, but take
/// places and time.
///
/// Browsers send Sec-Fetch-Site (Fetch Metadata, W3C) only to trustworthy addresses: those of loopback, and
/// https. To others they may send Origin or Referer, unless the other page forbids it.
pub(super) fn is_of_other_site(request: &Parts) -> bool {
    let values = |name: HeaderName| request.headers.get_all(name).iter();
    let is_other_site = |site: &HeaderValue| site != SAME_ORIGIN && site != "none";
    let host = || request.uri.authority().cloned().or_else(|| authority(request.headers.get(HOST)?));
    let is_other_host = |url: &HeaderValue| {
        let uri = Uri::try_from(url.as_bytes());
        uri.ok().and_then(|uri| uri.into_parts().authority).is_none_or(|of| host() != Some(of))
    };
    values(FETCH_SITE).any(is_other_site) || values(ORIGIN).chain(values(REFERER)).any(is_other_host)
}

fn authority(host: &HeaderValue) -> Option<Authority> {
    Authority::try_from(host.as_bytes()).ok()
}

/// The content of the only element of this name, which has no attributes.
fn content<'h>(html: &'h str, element: &str) -> &'h str {
    let (_, rest) = html.split_once(&format!("<{element}>")).expect("the element is there");
    rest.split_once(&format!("</{element}>")).expect("it ends").0
}

/// RFC 4648, 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0, |bits: u32, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 0x3f;
            text.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use hyper::http::request::Builder;

    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    /// The headers permit one script and one style sheet; any other would be without effect in a browser.
    #[test]
    fn the_page_has_no_code_or_style_that_its_headers_forbid() {
        let html = HTML.to_lowercase();
        assert_eq!((html.matches("<script").count(), html.matches("<style").count()), (1, 1));
        let markup = html.replace(content(&html, "script"), "").replace(content(&html, "style"), "");
        for forbidden in [" style=", " src=", " onclick=", " onload=", "javascript:", "http://", "https://"] {
            assert!(!markup.contains(forbidden), "{forbidden}");
        }
        let script = content(HTML, "script");
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
        {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn requests_for_pages_of_other_sites_are_known() {
        let of = |headers: &[(HeaderName, &str)]| {
            let request = Request::builder().uri("/").header(HOST, "node7.example:9464");
            let add = |request: Builder, (name, value): &(HeaderName, &str)| request.header(name, *value);
            let request = headers.iter().fold(request, add).body(()).expect("a request");
            is_of_other_site(&request.into_parts().0)
        };
        assert!(!of(&[]));
        for (name, own, others) in [
            (FETCH_SITE, ["same-origin", "none"], ["cross-site", "same-site", ""]),
            (
                ORIGIN,
                ["http://node7.example:9464", "https://Node7.example:9464"],
                ["http://node7.example", "https://other.example:9464", "null"],
            ),
            (
                REFERER,
                ["http://node7.example:9464/", "http://node7.example:9464/api?x=1"],
                ["http://node7.example:80/", "http://other.example/node7.example:9464", "/"],
            ),
        ] {
            for value in own {
                assert!(!of(&[(name.clone(), value)]), "{name}: {value}");
            }
            for value in others {
                assert!(of(&[(name.clone(), value)]), "{name}: {value}");
                assert!(of(&[(name.clone(), own[0]), (name.clone(), value)]), "{name}: {value}");
            }
        }
    }
}
