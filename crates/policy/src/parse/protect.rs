//! `[protect]`: packets that must reach the host, as matches. The tables of all files are read one by one and
//! their packets added up, so that an included file can protect more, and none less.

use std::ops::Range;

use packet::{EtherType, Field, IpProtocol};
use program::{Addresses, Family, Match, RangeSet};

use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::MAX_PROTECTED_MATCHES;
use crate::protect::{DEFAULT_KINDS, Kind as NamedKind, ProtectedMatch, destinations_of_host};

use super::matches;
use super::reader::{Key, Reader, Table, Value, nearest};
use super::sets::{Parts, Sets};
use super::values::{Kind, Parsed, Refused, hints};

/// Reads the `[protect]` of one file and adds its packets to `protected`.
pub(super) fn read(
    reader: &mut Reader,
    key: &Key<'_>,
    value: &Value<'_>,
    sets: &mut Sets,
    protected: &mut Vec<ProtectedMatch>,
) {
    let Some(table) = reader.table(value, "`protect`") else { return };
    reader.refuse_unknown_keys(table, keys::PROTECT, "`protect`");
    let before = reader.diagnostics.error_count();
    let mut of_tag = Match::default();
    if let Some(value) = table.get("vlan") {
        matches::vlan(reader, value, sets, &mut of_tag);
    }
    let own = table.get(OWN).and_then(|value| own_addresses(reader, value, sets));
    let mut list = List { reader, sets, of_tag, own, found: Vec::new() };
    list.protocols(table, key.span());
    list.addresses_and_ports(table);
    list.matches(table);
    let found = list.found;
    if reader.diagnostics.error_count() == before {
        let is_discovery = |found: &ProtectedMatch| {
            NamedKind::named(&found.name).is_some_and(|kind| kind.is_to_own_addresses)
        };
        if let Some(value) = table.get(OWN).filter(|_| !found.iter().any(is_discovery)) {
            let message = format!("`{OWN}` has no effect");
            let hint = "add \"nd\" or \"ra\" to `protocols`, or remove it";
            let place = reader.place(value.span());
            reader.push(place.warning(message, "neither nd nor ra is protected").hint(hint));
        }
        protected.extend(found);
    }
}

/// The key of the addresses of the host.
const OWN: &str = "own_addresses";

/// The destinations of neighbour discovery for the addresses of this key.
fn own_addresses(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets) -> Option<Addresses> {
    let own = matches::addresses(reader, value, OWN, sets)?;
    if own.v6.is_empty() {
        let message = format!("`{OWN}` has no IPv6 address");
        let hint = "add those of the interface, link-local ones too: neighbour discovery is about IPv6";
        reader.error_with(value.span(), message, "IPv4 alone", hint);
        return None;
    }
    Some(destinations_of_host(&own.v6))
}

/// The packets of one table.
struct List<'r> {
    reader: &'r mut Reader,
    sets: &'r mut Sets,
    /// The tag that protected packets have, for all but `matches`.
    of_tag: Match,
    /// The destinations of neighbour discovery that is protected; `None`: any.
    own: Option<Addresses>,
    found: Vec<ProtectedMatch>,
}

impl List<'_> {
    fn add(&mut self, name: &str, matches: Match, span: Range<usize>) {
        let place = self.reader.place(span);
        self.found.push(ProtectedMatch { name: name.to_owned(), matches, place });
    }

    /// The match with the condition on the tag.
    fn tagged(&self, mut matches: Match) -> Match {
        matches.vlan = self.of_tag.vlan;
        for (field, values) in self.of_tag.values() {
            matches.set(field, values.clone());
        }
        matches
    }

    /// The match of a protocol with the conditions on the tag and on the destination.
    fn of_host(&self, name: &str, mut matches: Match) -> Match {
        if NamedKind::named(name).is_some_and(|kind| kind.is_to_own_addresses) {
            matches.dst.clone_from(&self.own);
        }
        self.tagged(matches)
    }

    /// `protocols`, or the default ones.
    fn protocols(&mut self, table: &Table<'_>, header: Range<usize>) {
        let Some(value) = table.get("protocols") else {
            for kind in DEFAULT_KINDS.into_iter().filter_map(NamedKind::named) {
                let matches = self.of_host(kind.name, kind.matches());
                self.add(kind.name, matches, header.clone());
            }
            return;
        };
        if value.get_ref().as_array().is_some_and(|list| list.is_empty()) {
            return;
        }
        let Some(parts) = self.sets.values(self.reader, value, "protocols", &ProtocolKind) else { return };
        if !parts.excluded.is_empty() {
            let hint = "list the protocols to protect";
            let message = "`protocols` cannot exclude any";
            return self.reader.error_with(value.span(), message, "with `not`", hint);
        }
        for (name, matches) in parts.included.into_iter().flatten() {
            let matches = self.of_host(&name, matches);
            if self.found.iter().all(|found| found.name != name) {
                self.add(&name, matches, value.span());
            }
        }
    }

    /// `ports` and `remote_ports`, at `addresses` and from `sources`; without ports, all packets of these
    /// addresses.
    fn addresses_and_ports(&mut self, table: &Table<'_>) {
        let mut base = self.tagged(Match::default());
        let mut of_addresses = None;
        for (key, is_source) in [("sources", true), ("addresses", false)] {
            let Some(value) = table.get(key) else { continue };
            of_addresses = Some((key, value.span()));
            let addresses = matches::addresses(self.reader, value, key, self.sets);
            *(if is_source { &mut base.src } else { &mut base.dst }) = addresses;
        }
        let mut has_ports = false;
        for (key, is_source) in [("ports", false), ("remote_ports", true)] {
            let Some(value) = table.get(key) else { continue };
            has_ports = true;
            let Some(parts) = self.sets.values(self.reader, value, key, &PortKind) else { continue };
            for (protocol, ports) in by_protocol(parts) {
                let [src, dst] = Field::ports_of(protocol.unwrap_or(IpProtocol::TCP));
                let mut matches = base.clone().with(if is_source { src } else { dst }, ports);
                if let Some(IpProtocol(protocol)) = protocol {
                    matches.set(Field::Protocol, RangeSet::single(protocol.into()));
                }
                self.add(key, matches, value.span());
            }
        }
        if let (Some((key, span)), false) = (of_addresses, has_ports) {
            self.add(key, base, span);
        }
    }

    /// `matches`: as in rules.
    fn matches(&mut self, table: &Table<'_>) {
        let Some(value) = table.get("matches") else { return };
        let Some(list) = self.reader.array(value, "`matches`") else { return };
        if list.len() > MAX_PROTECTED_MATCHES {
            let message = format!("`matches` has more than {MAX_PROTECTED_MATCHES} items");
            return self.reader.error(value.span(), message, "too many");
        }
        for value in list {
            if let Some(matches) = matches::read(self.reader, value, self.sets) {
                self.add("matches", matches, value.span());
            }
        }
    }
}

/// Ports with the protocols that have them.
#[derive(Clone, Copy)]
struct ProtectedPorts {
    protocols: &'static [IpProtocol],
    range: (u32, u32),
}

/// The protocols whose ports can be protected, each by its name; without a name, the first two.
static WITH_PORTS: [IpProtocol; 3] = [IpProtocol::TCP, IpProtocol::UDP, IpProtocol::SCTP];

/// The largest port.
const MAX_PORT: u32 = u16::MAX as u32;

/// The ports by protocol: one row without a protocol if TCP and UDP have the same.
fn by_protocol(parts: Parts<ProtectedPorts>) -> Vec<(Option<IpProtocol>, RangeSet<u32>)> {
    let Parts { included, excluded } = parts;
    let all = || vec![ProtectedPorts { protocols: &WITH_PORTS[..2], range: (0, MAX_PORT) }];
    let included = included.unwrap_or_else(all);
    let of = |list: &[ProtectedPorts], protocol: IpProtocol| {
        let ports = list.iter().filter(|ports| ports.protocols.contains(&protocol));
        RangeSet::of(ports.map(|ports| ports.range).collect())
    };
    let ports = |protocol| of(&included, protocol).intersect(&of(&excluded, protocol).complement(MAX_PORT));
    let [tcp, udp, sctp] = WITH_PORTS.map(|protocol| (Some(protocol), ports(protocol)));
    let rows = if tcp.1 == udp.1 { vec![(None, tcp.1), sctp] } else { vec![tcp, udp, sctp] };
    rows.into_iter().filter(|(_, ports)| !ports.is_empty()).collect()
}

/// A port or a range of ports, of TCP and UDP or one protocol: `22`, `"22/tcp"`, `"6000-6010/udp"`,
/// `"2905/sctp"`.
struct PortKind;

impl Kind for PortKind {
    type Value = ProtectedPorts;

    fn name(&self) -> &'static str {
        "a port of TCP, UDP or SCTP"
    }

    fn hint(&self) -> &'static str {
        "write a port or a range with its protocol, like \"22/tcp\", \"6000-6010/udp\" or \"2905/sctp\", or without for \
         TCP and UDP"
    }

    fn parse(&self, text: &str) -> Parsed<ProtectedPorts> {
        let (ports, protocol) = match text.split_once('/') {
            Some((ports, protocol)) => (ports.trim(), Some(protocol.trim())),
            None => (text, None),
        };
        let range = super::values::Numbers::of(Field::DstPort).parse(ports)?;
        let protocols = match protocol {
            None => Some(&WITH_PORTS[..2]),
            Some(name) => WITH_PORTS.chunks(1).find(|one| one[0].to_string().eq_ignore_ascii_case(name)),
        };
        let refused = || Refused(Some(format!("write {ports}/tcp, {ports}/udp or {ports}/sctp").into()));
        Ok(ProtectedPorts { protocols: protocols.ok_or_else(refused)?, range })
    }

    fn hint_for(&self, text: &str) -> Option<ProblemHint> {
        let Some((first, second)) = text.split_once('/') else { return hints::port(text) };
        let is_reversed = WITH_PORTS.iter().any(|protocol| protocol.to_string().eq_ignore_ascii_case(first));
        is_reversed
            .then(|| ProblemHint::write(text, &format!("{second}/{}", first.to_ascii_lowercase())))
            .or_else(|| hints::port(first))
    }
}

/// A protocol by name or number: a kind of packet with a name of its own, an ethertype, or an IP protocol.
struct ProtocolKind;

impl Kind for ProtocolKind {
    type Value = (String, Match);

    fn name(&self) -> &'static str {
        "a protocol to protect"
    }

    fn hint(&self) -> &'static str {
        "write arp, nd, ra, dhcp, ssh, bfd, the name of an ethertype or of an IP protocol, or a number: up to 255 of an IP \
         protocol, from 1536 of an ethertype"
    }

    fn parse(&self, text: &str) -> Parsed<(String, Match)> {
        /// The least number that is an ethertype and not a length (IEEE 802.3, 3.2.6).
        const FIRST_ETHER_TYPE: u16 = 1536;
        let name = text.to_ascii_lowercase();
        if let Some(kind) = NamedKind::named(&name) {
            return Ok((name, kind.matches()));
        }
        let of = |field: Field, number: u32| Match::default().with(field, RangeSet::single(number));
        let is_number = text.starts_with(|first: char| first.is_ascii_digit());
        let ether_type =
            text.parse().ok().filter(|EtherType(number)| !is_number || *number >= FIRST_ETHER_TYPE);
        if let Some(EtherType(number)) = ether_type {
            return Ok((name, of(Field::EtherType, number.into())));
        }
        let protocol: IpProtocol = text.parse().map_err(|_| Refused(None))?;
        let family = match protocol {
            IpProtocol::ICMP | IpProtocol::IGMP => Some(Family::V4),
            IpProtocol::ICMPV6 => Some(Family::V6),
            _ => None,
        };
        Ok((name, Match { family, ..of(Field::Protocol, protocol.0.into()) }))
    }

    fn hint_for(&self, text: &str) -> Option<ProblemHint> {
        let lower = text.to_ascii_lowercase();
        let kinds = crate::protect::KINDS.iter();
        let other = match &*lower {
            "ndp" | "neighbor" | "neighbour" | "ipv6-nd" => Some("nd"),
            "slaac" | "rd" | "router" => Some("ra"),
            "dhcpv6" | "dhcpv4" | "bootp" => Some("dhcp"),
            _ => None,
        };
        let service = || hints::service(text).map(|port| format!("write ports = [{port}]").into());
        other
            .map(|name| ProblemHint::meant(text, name))
            .or_else(service)
            .or_else(|| {
                nearest(&lower, kinds.map(|kind| kind.name)).map(|name| ProblemHint::meant(text, name))
            })
            .or_else(|| hints::protocol(text))
            .or_else(|| hints::ether_type(text))
    }
}
