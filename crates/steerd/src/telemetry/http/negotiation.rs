//! The format of /metrics that a request prefers (RFC 9110, 12.5.1). Prometheus asks for OpenMetrics first,
//! browsers and curl for anything, which is Prometheus' text format.

use hyper::HeaderMap;
use hyper::header::{ACCEPT, HeaderValue};

use crate::telemetry::pages::Page;

/// A format that can be sent.
struct OfferedFormat {
    media_type: (&'static str, &'static str),
    version: &'static str,
}

const TEXT: OfferedFormat = OfferedFormat { media_type: ("text", "plain"), version: "0.0.4" };
const OPEN_METRICS: OfferedFormat =
    OfferedFormat { media_type: ("application", "openmetrics-text"), version: "1.0.0" };

/// The preference for a format: the quality in thousandths, and how precisely the request names the format.
type Preference = (u16, u8);

/// The quality of the format that is named best; the format of the text if nothing is preferred to it.
/// OpenMetrics is preferred at the same quality only where the request names it more precisely.
pub(super) fn metrics_page(headers: &HeaderMap) -> Page {
    let values: Vec<&str> =
        headers.get_all(ACCEPT).iter().map(HeaderValue::to_str).filter_map(Result::ok).collect();
    let ranges: Vec<MediaRange> =
        values.iter().flat_map(|value| split(value, ',')).filter_map(MediaRange::parse).collect();
    let preference = |format: &OfferedFormat| -> Preference {
        let matching = ranges.iter().filter_map(|range| Some((range.precision(format)?, range.quality)));
        matching.max().map_or((0, 0), |(precision, quality)| (quality, precision))
    };
    let (text, open) = (preference(&TEXT), preference(&OPEN_METRICS));
    if open.0 > 0 && open > text { Page::OpenMetrics } else { Page::Metrics }
}

/// An element of the header field: the types that it stands for, and their quality.
struct MediaRange {
    kind: String,
    subtype: String,
    version: Option<String>,
    /// From 0 to 1000.
    quality: u16,
}

impl MediaRange {
    /// `None` for a malformed one, which is left out.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = split(text, ';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let mut range = Self {
            kind: kind.to_ascii_lowercase(),
            subtype: subtype.to_ascii_lowercase(),
            version: None,
            quality: 1000,
        };
        for part in parts.filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=')?;
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            match &*name.to_ascii_lowercase() {
                "q" => range.quality = quality(value)?,
                "version" => range.version = Some(value.to_owned()),
                // `charset` and `escaping`: the answers are UTF-8, and their names need no escapes.
                _ => {}
            }
        }
        Some(range)
    }

    /// How precisely the range names a format; `None` if it does not contain it.
    fn precision(&self, format: &OfferedFormat) -> Option<u8> {
        let (kind, subtype) = format.media_type;
        match (&*self.kind, &*self.subtype, &self.version) {
            ("*", "*", _) => Some(0),
            (of, "*", _) if of == kind => Some(1),
            (of, name, None) if of == kind && name == subtype => Some(2),
            (of, name, Some(version)) if of == kind && name == subtype && version == format.version => {
                Some(3)
            }
            _ => None,
        }
    }
}

/// A weight in thousandths (RFC 9110, 12.4.2): 0 to 1 with at most three decimals.
fn quality(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if !matches!(whole, "0" | "1") || decimals.len() > 3 || !decimals.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    format!("{whole}{decimals:0<3}").parse().ok().filter(|quality| *quality <= 1000)
}

/// The parts between separators that are not in quotation marks.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut is_quoted, mut is_escaped) = (false, false);
        let end = text.char_indices().find_map(|(at, c)| {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' if is_quoted => is_escaped = true,
                '"' => is_quoted = !is_quoted,
                c if c == separator && !is_quoted => return Some(at),
                _ => {}
            }
            None
        });
        rest = end.map(|end| &text[end + separator.len_utf8()..]);
        Some(end.map_or(text, |end| &text[..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(accept: &[&'static str]) -> Page {
        let mut headers = HeaderMap::new();
        accept.iter().for_each(|value| _ = headers.append(ACCEPT, HeaderValue::from_static(value)));
        metrics_page(&headers)
    }

    #[test]
    fn scrapers_get_open_metrics() {
        for accept in [
            // Prometheus 2.42 and 3.0.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "application/openmetrics-text",
            "APPLICATION/OpenMetrics-Text; Version=\"1.0.0\" ; charset=utf-8",
            "application/openmetrics-text, */*",
            "text/plain;q=0.5, application/*;q=0.501",
            "text/plain;q=0, */*",
        ] {
            assert_eq!(page(&[accept]), Page::OpenMetrics, "{accept}");
        }
        assert_eq!(page(&["text/plain;q=0.1", "application/openmetrics-text"]), Page::OpenMetrics);
    }

    #[test]
    fn others_get_the_text_format() {
        for accept in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "text/plain;version=0.0.4;q=0.6, application/openmetrics-text;q=0.599",
            "text/plain, application/openmetrics-text",
            "application/openmetrics-text;version=0.0.1,text/plain;q=0.1",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0, */*",
            "application/openmetrics-text;q=2, text/plain;q=0.1",
            "application/openmetrics-text;x=\"a,application/openmetrics-text;q=1\";q=0",
            "application/json",
            "application/openmetrics-text;q=0.0001",
        ] {
            assert_eq!(page(&[accept]), Page::Metrics, "{accept}");
        }
        assert_eq!(page(&[]), Page::Metrics);
    }

    #[test]
    fn weights_have_three_decimals_at_most() {
        let weights = ["0", "0.", "0.5", "0.999", "1", "1.000"].map(quality);
        assert_eq!(weights, [0, 0, 500, 999, 1000, 1000].map(Some));
        for wrong in ["", "2", "1.001", "0.1234", "-1", ".5", "0.5x", "00.5"] {
            assert_eq!(quality(wrong), None, "{wrong}");
        }
    }
}
