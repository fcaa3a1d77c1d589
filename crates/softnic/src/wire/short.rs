//! A wire in one word, for command lines and environment variables: `link:x:a`, `af_packet:eth0`, `pcap:day.pcap`.
//!
//! What no short form says is written as in the settings file: `{ kind = "pcap", path = "day.pcap", mode = "loop" }`.

use std::path::PathBuf;
use std::str::FromStr;

use packet::MacAddr;
use serde::Deserialize as _;

use super::{AfPacketConfig, LinkConfig, PcapConfig, PcapMode, SOFT_MAC, WireConfig};

/// The generator without a word about its traffic: UDP packets from 64 senders.
const PLAIN_GENERATOR: &str = "{ kind = \"generator\", rate = 100000, flows = [{}] }";

/// How wires are written in one word.
pub const SHORT_FORMS: [(&str, &str); 6] = [
    ("null", "nothing arrives, what is sent vanishes"),
    ("loopback", "what is sent is received, as with a loopback plug"),
    ("generator[:RATE]", "made-up UDP packets, RATE per second or `flat-out`"),
    ("pcap:FILE", "a capture, or a folder of them, once"),
    ("af_packet:INTERFACE", "a live interface; the kernel still sees every packet"),
    ("link:NAME:a|b", "the end `a` or `b` of a link to a soft NIC in another process"),
];

impl FromStr for WireConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            return from_table(text);
        }
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        match (kind, rest) {
            ("null", None) => Ok(Self::Null {}),
            ("loopback", None) => Ok(Self::Loopback {}),
            ("generator", rate) => {
                let mut wire = from_table(PLAIN_GENERATOR)?;
                if let (Self::Generator(generator), Some(rate)) = (&mut wire, rate) {
                    generator.rate = rate.parse()?;
                }
                Ok(wire)
            }
            ("pcap", Some(path)) if !path.is_empty() => {
                let path = PathBuf::from(path);
                Ok(Self::Pcap(PcapConfig { path, mode: PcapMode::Once, speed: 1.0, output: None }))
            }
            ("af_packet", Some(interface)) if !interface.is_empty() => Ok(Self::AfPacket(AfPacketConfig {
                interface: interface.to_owned(),
                promiscuous: false,
                ring_frames: 4096,
            })),
            ("link", Some(rest)) => {
                let (name, end) =
                    rest.rsplit_once(':').ok_or("a link is written `link:NAME:a` or `link:NAME:b`")?;
                Ok(Self::Link(LinkConfig { name: name.parse()?, end: end.parse()? }))
            }
            _ => {
                let forms = SHORT_FORMS.map(|(form, _)| form).join(", ");
                Err(format!("write {forms}, or a table as in the settings file, {{ kind = .. }}"))
            }
        }
    }
}

impl WireConfig {
    /// The station address of the wire as far as it is known before it is opened.
    #[must_use]
    pub fn station(&self) -> MacAddr {
        match self {
            Self::Link(link) => link.station(),
            Self::AfPacket(live) => live.station().unwrap_or(SOFT_MAC),
            _ => SOFT_MAC,
        }
    }
}

fn from_table(text: &str) -> Result<WireConfig, String> {
    let value = toml::de::ValueDeserializer::parse(text).map_err(|error| error.message().to_owned())?;
    WireConfig::deserialize(value).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{LinkEnd, Rate};

    fn wire(text: &str) -> WireConfig {
        text.parse().unwrap()
    }

    #[test]
    fn every_short_form_is_the_wire_it_says() {
        assert_eq!(wire("null"), WireConfig::Null {});
        assert_eq!(wire("loopback"), WireConfig::Loopback {});
        let WireConfig::Pcap(pcap) = wire("pcap:/var/a:b.pcap") else { panic!("a capture") };
        assert_eq!(pcap.path, PathBuf::from("/var/a:b.pcap"));
        let WireConfig::AfPacket(live) = wire("af_packet:eth0") else { panic!("an interface") };
        assert_eq!(live.interface, "eth0");
        let WireConfig::Generator(traffic) = wire("generator:flat-out") else { panic!("a generator") };
        assert_eq!((traffic.rate, traffic.flows.len()), (Rate::FlatOut, 1));
        let WireConfig::Link(link) = wire("link:left-right:b") else { panic!("a link") };
        assert_eq!((&*link.name, link.end), ("left-right", LinkEnd::B));
    }

    #[test]
    fn the_form_of_the_settings_file_says_the_rest() {
        let WireConfig::Pcap(pcap) = wire(r#"{ kind = "pcap", path = "x", mode = "loop" }"#) else {
            panic!("a capture")
        };
        assert_eq!(pcap.mode, PcapMode::Loop);
    }

    #[test]
    fn a_live_interface_has_its_own_address_before_it_is_opened() {
        assert_eq!(wire("af_packet:lo").station(), MacAddr([0; 6]));
        assert_eq!(wire("af_packet:no-such-interface").station(), SOFT_MAC);
    }

    #[test]
    fn nonsense_is_answered_with_what_would_make_sense() {
        for (text, hint) in [
            ("", "null"),
            ("carrier-pigeon", "af_packet:INTERFACE"),
            ("pcap:", "pcap:FILE"),
            ("generator:0", "above 0"),
            ("link:x", "link:NAME:a"),
            ("link:x:c", "`a` or `b`"),
            ("link::a", "1 to"),
            ("{ kind = \"pcap\" }", "path"),
            ("{ kind", "expected"),
        ] {
            let problem = text.parse::<WireConfig>().unwrap_err();
            assert!(problem.contains(hint), "{text}: {problem}");
        }
    }
}
