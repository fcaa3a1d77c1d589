//! Fields as they were given, "src=10.0.0.1,protocol=udp": their names, their texts, and these as values of some
//! type. `fields` and `tunnel` ask it; what they mean together is no matter of this file.

use packet::{EtherType, Flag};

use super::tunnel;

/// Of the Ethernet header and its tags.
const LINK_FIELDS: &[&str] = &[
    "src_mac",
    "dst_mac",
    "vlan",
    "vlan_priority",
    "vlan_tpid",
    "inner_vlan",
    "inner_vlan_tpid",
    "ethertype",
];
/// These say which IP version there is.
const ADDRESS_FIELDS: &[&str] = &["src", "dst", "family"];
/// What a packet has no place for without an IP header.
pub(super) const IP_FIELDS: &[&str] = &[
    "protocol",
    "src_port",
    "dst_port",
    "tcp_flags",
    "tos",
    "traffic_class",
    "dscp",
    "ecn",
    "ttl",
    "hop_limit",
    "flow_label",
    "ip_flags",
    "fragment",
    "ip_options",
];

/// Those that IPv6 alone has, by these names.
pub(super) const IPV6_FIELDS: &[&str] = &["traffic_class", "hop_limit", "flow_label"];

/// All that a packet's own headers have.
fn of_packet() -> impl Iterator<Item = &'static str> {
    [ADDRESS_FIELDS, IP_FIELDS, LINK_FIELDS].into_iter().flatten().copied()
}

fn is_of_packet(name: &str) -> bool {
    of_packet().any(|known| known == name)
}

/// The fields as they were given, each at most once.
#[derive(Clone, Default)]
pub(super) struct Given<'t>(pub(super) Vec<(&'t str, &'t str)>);

impl<'t> Given<'t> {
    pub(super) fn read(text: &'t str) -> Result<Self, String> {
        let mut given = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("\"{part}\" is not of the form field=value"))?;
            let (name, value) = (name.trim(), value.trim());
            let inside = name.strip_prefix(tunnel::INNER).is_some_and(is_of_packet);
            if !inside && !is_of_packet(name) && !tunnel::FIELDS.contains(&name) {
                return Err(format!(
                    "there is no field \"{name}\" (hint: {}; of tunnels {}; of the packet inside those of a packet \
                     with \"inner.\" before them)",
                    of_packet().collect::<Vec<_>>().join(", "),
                    tunnel::FIELDS.join(", ")
                ));
            }
            if given.text(name).is_some() {
                return Err(format!("{name} is given twice"));
            }
            given.0.push((name, value));
        }
        Ok(given)
    }

    pub(super) fn text(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    pub(super) fn value<T: std::str::FromStr>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, String> {
        let parse = |text: &str| text.parse().map_err(|_| format!("{name}: \"{text}\" is not {expected}"));
        self.text(name).map(parse).transpose()
    }

    /// A number as the language writes it, hexadecimal ones too.
    pub(super) fn number(&self, name: &str, most: u32) -> Result<Option<u32>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        match number.filter(|number| *number <= most) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name}: \"{text}\" is not a number from 0 to {most}")),
        }
    }

    pub(super) fn short(&self, name: &str, most: u16) -> Result<Option<u16>, String> {
        Ok(self.number(name, most.into())?.map(|number| u16::try_from(number).unwrap_or(u16::MAX)))
    }

    pub(super) fn byte(&self, name: &str, most: u8) -> Result<Option<u8>, String> {
        Ok(self.number(name, most.into())?.map(|number| u8::try_from(number).unwrap_or(u8::MAX)))
    }

    pub(super) fn ether_type(&self, name: &str) -> Result<Option<EtherType>, String> {
        self.value(name, "an ethertype such as arp or 0x88cc")
    }

    /// Names of bits joined by +, or their sum.
    pub(super) fn flags(&self, name: &str, known: &[Flag]) -> Result<Option<u8>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return self.byte(name, known.iter().map(|(_, bit)| bit).sum());
        }
        let flag = |flags: u8, flag: &str| {
            let bit = known.iter().find(|(known, _)| *known == flag).map(|(_, bit)| bit);
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            bit.map(|bit| flags | bit)
                .ok_or_else(|| format!("{name}: \"{flag}\" is none of {} (joined by +)", names.join(", ")))
        };
        text.split('+').filter(|flag| !flag.is_empty()).try_fold(0, flag).map(Some)
    }

    pub(super) fn any(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.text(name).is_some())
    }
}
