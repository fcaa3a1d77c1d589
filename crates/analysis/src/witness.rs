//! Packets that show what is claimed: one packet of a cell as a real frame. Only here do fields become bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::build::FrameBuilder;
use packet::{EtherType, IpProtocol};
use policy::Witness;

use super::axes::Axes;
use super::cell::Cell;
use super::domain::domain_of;
use super::field::{Field, Level};
use super::kind::{Kind, Network, Packet, Transport, Tunnel};
use super::mac;

/// A packet of a cell that is not empty.
pub(super) fn of(axes: &Axes, cell: &Cell) -> Option<Witness> {
    let (kind, tags) = cell.structure.first()?;
    let point = Point { axes, cell, kind, tags };
    Some(Witness { frame: point.frame() })
}

struct Point<'c> {
    axes: &'c Axes,
    cell: &'c Cell,
    kind: Kind,
    tags: u8,
}

impl Point<'_> {
    /// The value of a field: its usual one where that is possible, else the least.
    fn value(&self, field: Field) -> u128 {
        let domain = domain_of(&self.kind, self.tags, field).unwrap_or_default();
        let usual = usual(field);
        let Some(axis) = self.axes.position(field, 0) else {
            return pick(&domain, &[(0, field.most())], usual);
        };
        let Some(layout) = self.axes.layout(field) else {
            return pick(&domain, &self.axes.list[axis].values(&self.cell.sets[axis]), usual);
        };
        let mut address = 0;
        for part in 0..layout.parts.len() {
            let axis = axis + part;
            let values = self.axes.list[axis].values(&self.cell.sets[axis]);
            let usual = layout.gather(part, usual as u64);
            address |= layout.scatter(part, pick(&[(0, u128::MAX)], &values, usual.into()) as u64);
        }
        address.into()
    }

    fn frame(&self) -> Vec<u8> {
        let builder = self.packet(Level::Outer, self.kind.packet, Some(self.tags));
        let inside = || self.inside();
        match self.kind.tunnel {
            Tunnel::None => builder.payload(&self.stack()),
            Tunnel::Esp => {
                builder.esp(self.value(Field::EspSpi) as u32, self.value(Field::EspSeq) as u32, &[])
            }
            Tunnel::Vxlan => {
                let mut payload = vec![8, 0, 0, 0];
                payload.extend(((self.value(Field::Vni) as u32) << 8).to_be_bytes());
                payload.extend(inside());
                builder.payload(&payload)
            }
            Tunnel::Gre { .. } => builder.payload(&self.gre()),
            Tunnel::IpInIp => builder.payload(&inside()),
        }
        .build()
    }

    fn gre(&self) -> Vec<u8> {
        let flags = self.value(Field::GreFlags) as u8;
        let mut header = vec![flags, 0];
        header.extend((self.value(Field::GreProtocol) as u16).to_be_bytes());
        for (bit, value) in [(0x80, 0), (0x20, self.value(Field::GreKey) as u32), (0x10, 0)] {
            if flags & bit != 0 {
                header.extend(value.to_be_bytes());
            }
        }
        header.extend(if self.kind.stack.is_some() { self.stack() } else { self.inside() });
        header
    }

    /// The label stack and what is behind it.
    fn stack(&self) -> Vec<u8> {
        let Some(stack) = self.kind.stack else { return Vec::new() };
        let mut bytes = Vec::new();
        for place in 0..stack.depth {
            bytes.extend(self.label(Level::Outer, place, stack.bottom && place + 1 == stack.depth));
        }
        bytes.extend(self.inside());
        bytes
    }

    fn label(&self, level: Level, place: u8, bottom: bool) -> [u8; 4] {
        let label = self.value(Field::Label(level, place)) as u32;
        let class = self.value(Field::LabelClass(level, place)) as u32;
        let ttl = self.value(Field::LabelTtl(level, place)) as u32;
        (label << 12 | class << 9 | u32::from(bottom) << 8 | ttl).to_be_bytes()
    }

    /// The packet inside, with its Ethernet header if it has one.
    fn inside(&self) -> Vec<u8> {
        let Some(inside) = self.kind.inside else { return Vec::new() };
        let mut builder = self.packet(Level::Inner, inside.packet, inside.tags);
        if let Some(top) = inside.label {
            builder = builder.payload(&self.label(Level::Inner, 0, top == super::kind::TopLabel::Bottom));
        }
        if inside.tags.is_some() { builder.build() } else { builder.build_packet() }
    }

    /// The headers of one packet; nothing follows them, so that nothing is read that is not meant.
    fn packet(&self, level: Level, packet: Packet, tags: Option<u8>) -> FrameBuilder {
        let word = |field| self.value(field) as u16;
        let byte = |field| self.value(field) as u8;
        let address = |field| mac::address(self.value(field) as u64);
        let mut builder = FrameBuilder::new();
        if let Some(tags) = tags {
            builder = builder.ethernet(address(Field::DstMac(level)), address(Field::SrcMac(level)));
            if tags > 0 {
                let control = word(Field::VlanPriority(level)) << 13 | word(Field::VlanId(level));
                builder = builder.vlan(EtherType(word(Field::VlanTpid(level))), control);
            }
            if tags > 1 {
                builder =
                    builder.vlan(EtherType(word(Field::SecondTpid(level))), word(Field::SecondId(level)));
            }
        }
        match packet.network {
            Network::None => return builder.ether_type(EtherType(word(Field::EtherType(level)))),
            Network::V4 => {
                let code = byte(Field::FlagsAndFragment(level));
                let v4 = |field| Ipv4Addr::from(self.value(field) as u32);
                builder = builder.ipv4(v4(Field::Src4(level)), v4(Field::Dst4(level))).ip_flags(code % 8);
                if code >= 8 {
                    builder = builder.fragment(u16::from(code >= 16), code % 2 == 1);
                }
                if byte(Field::Options(level)) == 1 {
                    // No operation, three times, and the end of the list (RFC 791, 3.1).
                    builder = builder.ip_options(&[1, 1, 1, 0]);
                }
            }
            Network::V6 | Network::V6Fragment => {
                let v6 = |field| Ipv6Addr::from(self.value(field));
                builder = builder
                    .ipv6(v6(Field::Src6(level)), v6(Field::Dst6(level)))
                    .flow_label(self.value(Field::FlowLabel(level)) as u32);
            }
        }
        builder = builder.tos(byte(Field::Tos(level))).ttl(byte(Field::Ttl(level)));
        if packet.network == Network::V6Fragment {
            let is_later = byte(Field::Fragment6(level)) == 1;
            return builder.fragment(is_later.into(), true);
        }
        let (src_port, dst_port) = (word(Field::SrcPort(level)), word(Field::DstPort(level)));
        match packet.transport {
            Transport::Tcp => builder.tcp(src_port, dst_port, byte(Field::TcpFlags(level))),
            Transport::Udp => builder.udp(src_port, dst_port),
            Transport::None => builder.protocol(IpProtocol(byte(Field::Protocol(level)))),
        }
    }
}

/// A value that is in both, the usual one if possible.
fn pick(domain: &[(u128, u128)], values: &[(u128, u128)], usual: u128) -> u128 {
    let mut least = None;
    for (low, high) in domain {
        for (from, to) in values {
            let both = (*low.max(from), *high.min(to));
            if both.0 <= both.1 {
                if (both.0..=both.1).contains(&usual) {
                    return usual;
                }
                least = Some(least.map_or(both.0, |least: u128| least.min(both.0)));
            }
        }
    }
    least.unwrap_or(0)
}

/// What a field has in most packets (documentation addresses: RFC 5737, RFC 3849).
fn usual(field: Field) -> u128 {
    match field {
        Field::Src4(_) => 0xc000_0201,
        Field::Dst4(_) => 0xc633_6401,
        Field::Src6(_) => 0x2001_0db8 << 96 | 1,
        Field::Dst6(_) => 0x2001_0db8 << 96 | 2,
        Field::SrcPort(_) => 49_152,
        Field::DstPort(_) => 9,
        Field::SrcMac(_) => 0x0200_0000_0001,
        Field::DstMac(_) => 0x0200_0000_0002,
        // For experiments: IEEE 802 local, RFC 3692.
        Field::EtherType(_) | Field::GreProtocol => 0x88b5,
        Field::Protocol(_) => 253,
        Field::VlanTpid(_) | Field::SecondTpid(_) => EtherType::VLAN.0.into(),
        Field::VlanId(_) | Field::SecondId(_) => 1,
        Field::Ttl(_) | Field::LabelTtl(..) => 64,
        Field::TcpFlags(_) => 0x10,
        Field::Label(..) => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
