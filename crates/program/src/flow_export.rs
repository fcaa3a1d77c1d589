//! The export of flows by a sink of kind `count` (IPFIX, RFC 7011): the collector and the times, as plain
//! data.

use std::fmt;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The port of collectors that IANA has assigned.
const COLLECTOR_PORT: u16 = 4739;
/// The longest host name (RFC 1035, 2.3.4), without the final dot.
const HOST_BYTES_MAX: usize = 253;

/// The protocol below IPFIX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CollectorTransport {
    /// UDP: messages can be lost on the way; templates are sent again and again.
    #[default]
    Udp,
    /// TCP.
    Tcp,
}

impl CollectorTransport {
    const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    const fn scheme(self) -> &'static str {
        match self {
            Self::Udp => "ipfix://",
            Self::Tcp => "ipfix+tcp://",
        }
    }
}

/// A collector of flows: `ipfix://192.0.2.7:4739`, `ipfix+tcp://[2001:db8::7]`.
///
/// ```
/// let collector: program::FlowCollector = "ipfix+tcp://[2001:db8::7]".parse()?;
/// assert_eq!((&*collector.host, collector.port), ("2001:db8::7", 4739));
/// assert_eq!(collector.to_string(), "ipfix+tcp://[2001:db8::7]:4739");
/// # Ok::<(), program::CollectorError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowCollector {
    /// The protocol below IPFIX.
    pub transport: CollectorTransport,
    /// A host name or an address, without brackets.
    pub host: String,
    /// The UDP or TCP port.
    pub port: u16,
}

/// A text that names no collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectorError {
    /// It begins otherwise.
    #[error("it begins with neither ipfix:// nor ipfix+tcp://")]
    Scheme,
    /// The host is no name and no address.
    #[error("its host is not a host name, an IPv4 address, or an IPv6 address in brackets")]
    Host,
    /// The port is no number of a port.
    #[error("its port is not a number from 1 to 65535")]
    Port,
}

impl FromStr for FlowCollector {
    type Err = CollectorError;

    fn from_str(text: &str) -> Result<Self, CollectorError> {
        let mut transports = CollectorTransport::ALL.into_iter();
        let found =
            transports.find_map(|transport| Some((transport, text.strip_prefix(transport.scheme())?)));
        let (transport, rest) = found.ok_or(CollectorError::Scheme)?;
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or(CollectorError::Host)?;
                address.parse::<Ipv6Addr>().map_err(|_| CollectorError::Host)?;
                (address, port)
            }
            None => {
                let (host, port) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
                let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
                if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(is_name) {
                    return Err(CollectorError::Host);
                }
                (host, port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => COLLECTOR_PORT,
            digits => {
                let digits = digits.filter(|digits| digits.bytes().all(|c| c.is_ascii_digit()));
                let port = digits.and_then(|digits| digits.parse().ok()).filter(|port| *port > 0);
                port.ok_or(CollectorError::Port)?
            }
        };
        Ok(Self { transport, host: host.to_owned(), port })
    }
}

impl fmt::Display for FlowCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, host, port } = self;
        let scheme = transport.scheme();
        if host.contains(':') {
            write!(f, "{scheme}[{host}]:{port}")
        } else {
            write!(f, "{scheme}{host}:{port}")
        }
    }
}

impl Serialize for FlowCollector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The export of the flows of a sink of kind `count`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowExport {
    /// The collector.
    #[serde(rename = "export")]
    pub collector: FlowCollector,
    /// The number of flows that each worker can have at once, in sets of 8. The number of
    /// sets is rounded up to a power of two.
    pub flows: u32,
    /// A flow is exported after so many seconds, though it goes on.
    pub active_seconds: u32,
    /// A flow without packets is exported after so many seconds.
    pub idle_seconds: u32,
    /// The seconds between two transmissions of the templates over UDP (RFC 7011, 8.4).
    pub template_seconds: u32,
    /// The number by which a collector tells the exporters of one address apart.
    pub observation_domain: u32,
}

impl FlowExport {
    /// The numbers of flows of a worker.
    pub const FLOWS: RangeInclusive<u32> = 64..=1 << 20;
    /// The seconds after which flows are exported.
    pub const FLOW_SECONDS: RangeInclusive<u32> = 1..=3600;
    /// The seconds between templates.
    pub const TEMPLATE_SECONDS: RangeInclusive<u32> = 1..=86_400;

    /// The export to a collector with the defaults of the other options.
    #[must_use]
    pub fn new(collector: FlowCollector) -> Self {
        Self {
            collector,
            flows: 1 << 14,
            active_seconds: 60,
            idle_seconds: 15,
            template_seconds: 60,
            observation_domain: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_read_and_printed() {
        for (text, printed) in [
            ("ipfix://192.0.2.7:2055", "ipfix://192.0.2.7:2055"),
            ("ipfix://flows.example.net", "ipfix://flows.example.net:4739"),
            ("ipfix://[::1]:9995", "ipfix://[::1]:9995"),
            ("ipfix+tcp://collector_1:65535", "ipfix+tcp://collector_1:65535"),
        ] {
            let collector: FlowCollector = text.parse().expect(text);
            assert_eq!(collector.to_string(), printed);
            assert_eq!(printed.parse(), Ok(collector));
        }
    }

    #[test]
    fn other_texts_name_no_collector() {
        let error = |text: &str| text.parse::<FlowCollector>().expect_err(text);
        for text in ["", "192.0.2.7:2055", "udp://192.0.2.7", "ipfix:192.0.2.7", "IPFIX://192.0.2.7"] {
            assert_eq!(error(text), CollectorError::Scheme, "{text}");
        }
        for text in [
            "ipfix://",
            "ipfix://:1",
            "ipfix://a b:1",
            "ipfix://[::1",
            "ipfix://[::g]:1",
            "ipfix://[192.0.2.7]:1",
            "ipfix://a/b:1",
        ] {
            assert_eq!(error(text), CollectorError::Host, "{text}");
        }
        for text in [
            "ipfix://a:",
            "ipfix://a:0",
            "ipfix://a:65536",
            "ipfix://a:+1",
            "ipfix://a:1x",
            "ipfix://::1",
            "ipfix://[::1]4739",
        ] {
            let error = error(text);
            assert!(matches!(error, CollectorError::Port | CollectorError::Host), "{text}: {error}");
        }
    }
}
