//! Frames of a header stack, and of a cube: the plainest stack that the cube admits, with usual values where
//! it has none.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    Coordinate, HeaderStack, InnerLabel, InnerPacket, LabelPart, LabelStack, Level, Network, PacketHeaders,
    Transport, Tunnel,
};
use crate::build::FrameBuilder;
use crate::cube::{self, Cube, Slot};
use crate::tunnel::VNI_VALID;
use crate::{BOTTOM_OF_STACK, EtherType, FIELDS, Field, GRE_HAS_KEY, Header, IpProtocol};

impl HeaderStack {
    /// A frame of this stack with so many outer tags. `value` gives each number, which must be in its domain.
    ///
    /// ```
    /// use packet::stack::{Coordinate, HeaderStack, Level};
    /// use packet::{DeepKey, Field};
    ///
    /// let udp = HeaderStack::all()[1];
    /// let port = Coordinate::Field(Field::DstPort, Level::Outer);
    /// let frame = udp.frame(0, |number| if number == port { 53 } else { udp.usual(0, number) });
    /// assert!(DeepKey::of(&frame).describe().contains("protocol=udp"));
    /// assert!(DeepKey::of(&frame).describe().contains("dst_port=53"));
    /// ```
    pub fn frame(&self, outer_tags: u8, value: impl Fn(Coordinate) -> u128) -> Vec<u8> {
        Values { stack: self, outer_tags, value }.builder().build()
    }

    /// The plainest stack of a closed cube and its number of outer tags.
    fn of(cube: &Cube) -> (Self, u8) {
        let headers = |at: fn(Slot) -> Slot| {
            let has = |layer| cube.has(at(layer));
            let network = match (has(cube::HAS_IPV6), has(cube::HAS_IPV4)) {
                (true, _) => Network::V6,
                (_, true) => Network::V4,
                _ => return PacketHeaders::NONE,
            };
            let transport = match (has(cube::HAS_TCP), has(cube::HAS_UDP)) {
                (true, _) => Transport::Tcp,
                (_, true) => Transport::Udp,
                _ => Transport::None,
            };
            PacketHeaders::of(network, transport)
        };
        let is_masked = |slot| cube.mask_of(slot) != 0;
        let mut outer = headers(|slot| slot);
        let has_protocol = cube.mask_of(cube::PROTOCOL) == u64::from(u8::MAX);
        if outer.is_v6()
            && has_protocol
            && IpProtocol(cube.value_of(cube::PROTOCOL) as u8).is_extension_header()
        {
            outer.extended = Some(Transport::None);
        }
        // What carries a packet has an IP header, unless there is another type.
        if cube.has(cube::HAS_INNER) && outer == PacketHeaders::NONE && !is_masked(cube::ETHER_TYPE) {
            outer.network = Network::V4;
        }
        let has_key =
            is_masked(cube::GRE_KEY) || cube.value_of(cube::GRE_FLAGS) & u64::from(GRE_HAS_KEY) != 0;
        let is_bridged = [cube::DST_MAC, cube::SRC_MAC].iter().any(|slot| is_masked(slot.inside()));
        let tunnel = if cube.has(cube::HAS_ESP) {
            Tunnel::Esp
        } else if cube.has(cube::HAS_VXLAN) {
            Tunnel::Vxlan
        } else if cube.has(cube::HAS_GRE) {
            Tunnel::Gre { key: has_key }
        } else if cube.has(cube::HAS_MPLS) || !cube.has(cube::HAS_INNER) {
            Tunnel::None
        } else if is_bridged {
            outer.transport = Transport::Udp;
            Tunnel::Vxlan
        } else {
            Tunnel::IpInIp
        };
        let bottom_bit = u64::from(BOTTOM_OF_STACK);
        let bottom =
            cube.mask_of(cube::MPLS_TOP) & bottom_bit == 0 || cube.value_of(cube::MPLS_TOP) & bottom_bit != 0;
        let labels = cube.has(cube::HAS_MPLS).then_some(LabelStack { depth: 1, bottom });
        let tags = is_masked(cube::VLAN_TCI.inside()).into();
        let has_inner = cube.has(cube::HAS_INNER) || tunnel == Tunnel::Vxlan;
        let inner = has_inner.then(|| InnerPacket {
            tags: (tunnel == Tunnel::Vxlan).then_some(tags),
            headers: headers(Slot::inside),
            label: None,
        });
        (Self { outer, tunnel, labels, inner }, is_masked(cube::VLAN_TCI).into())
    }

    /// A number as a cube has it, its unmasked bits as usual.
    fn value_in(&self, outer_tags: u8, cube: &Cube, coordinate: Coordinate) -> u128 {
        let usual = self.usual(outer_tags, coordinate);
        let merged = |slot: Slot, usual: u64| cube.value_of(slot) | usual & !cube.mask_of(slot);
        match coordinate {
            Coordinate::Field(field, level) => {
                let slots = field.row().slots;
                let bits: u32 = slots.iter().map(|slot| slot.bits()).sum();
                if bits == 0 {
                    return usual;
                }
                let (mut value, mut left) = (0, bits);
                for slot in slots {
                    let place = if level == Level::Inner { slot.inside() } else { *slot };
                    left -= slot.bits();
                    let part = (usual >> left) as u64 & (u64::MAX >> (64 - slot.bits()));
                    value = value << slot.bits() | u128::from(merged(place, part));
                }
                value
            }
            Coordinate::FlagsAndFragment(level) => {
                let slot = if level == Level::Inner { cube::IP_FLAGS.inside() } else { cube::IP_FLAGS };
                cube.value_of(slot).into()
            }
            Coordinate::Label(part, Level::Outer, 0) => {
                let shift = match part {
                    LabelPart::Label => 12,
                    LabelPart::Class => 9,
                    LabelPart::Ttl => 0,
                };
                let entry = merged(cube::MPLS_TOP, (usual as u64) << shift);
                u128::from(entry >> shift) & coordinate.max()
            }
            _ => usual,
        }
    }
}

impl Cube {
    /// A frame of the cube, which must be closed, with usual values where the cube has none. It may not be in
    /// the cube if its layers contradict each other.
    pub fn frame(&self) -> Vec<u8> {
        let (stack, tags) = HeaderStack::of(self);
        stack.frame(tags, |coordinate| stack.value_in(tags, self, coordinate))
    }

    /// The outer headers of [`frame`](Self::frame).
    pub fn headers(&self) -> FrameBuilder {
        let (stack, outer_tags) = HeaderStack::of(self);
        let value = |coordinate| stack.value_in(outer_tags, self, coordinate);
        Values { stack: &stack, outer_tags, value }.headers(Level::Outer, stack.outer, outer_tags)
    }
}

/// A stack with a value for each number.
struct Values<'s, V> {
    stack: &'s HeaderStack,
    outer_tags: u8,
    value: V,
}

impl<V: Fn(Coordinate) -> u128> Values<'_, V> {
    /// A field of the tunnel header.
    fn tunnel(&self, field: Field) -> u32 {
        (self.value)(Coordinate::Field(field, Level::Outer)) as u32
    }

    fn builder(&self) -> FrameBuilder {
        let builder = self.headers(Level::Outer, self.stack.outer, self.outer_tags);
        match self.stack.tunnel {
            Tunnel::None => builder.payload(&self.labels()),
            Tunnel::Esp => builder.esp(self.tunnel(Field::EspSpi), self.tunnel(Field::EspSeq), &[]),
            Tunnel::Vxlan => {
                let mut payload = vec![VNI_VALID, 0, 0, 0];
                payload.extend((self.tunnel(Field::VxlanVni) << 8).to_be_bytes());
                payload.extend(self.inside());
                builder.payload(&payload)
            }
            Tunnel::Gre { .. } => builder.payload(&self.gre()),
            Tunnel::IpInIp => builder.payload(&self.inside()),
        }
    }

    /// A GRE header with the optional fields that its flags announce (RFC 2890), and what follows.
    fn gre(&self) -> Vec<u8> {
        let flags = self.tunnel(Field::GreFlags) as u8;
        let mut header = vec![flags, 0];
        header.extend((self.tunnel(Field::GreProtocol) as u16).to_be_bytes());
        for bit in [0x80, GRE_HAS_KEY, 0x10].into_iter().filter(|bit| flags & bit != 0) {
            let is_key = bit == GRE_HAS_KEY;
            header.extend(if is_key { self.tunnel(Field::GreKey) } else { 0 }.to_be_bytes());
        }
        header.extend(self.labels());
        header
    }

    /// The label stack, if there is one, and what is behind it.
    fn labels(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(labels) = self.stack.labels {
            for place in 0..labels.depth {
                let is_bottom = labels.bottom && place + 1 == labels.depth;
                bytes.extend(self.label(Level::Outer, place, is_bottom));
            }
        }
        bytes.extend(self.inside());
        bytes
    }

    fn label(&self, level: Level, place: u8, bottom: bool) -> [u8; 4] {
        let part = |part| (self.value)(Coordinate::Label(part, level, place)) as u32;
        let (label, class, ttl) = (part(LabelPart::Label), part(LabelPart::Class), part(LabelPart::Ttl));
        (label << 12 | class << 9 | u32::from(bottom) << 8 | ttl).to_be_bytes()
    }

    /// The packet inside, with its Ethernet header if it has one.
    fn inside(&self) -> Vec<u8> {
        let Some(inner) = self.stack.inner else { return Vec::new() };
        let mut builder = self.headers(Level::Inner, inner.headers, inner.tags.unwrap_or(0));
        if let Some(label) = inner.label {
            builder = builder.payload(&self.label(Level::Inner, 0, label == InnerLabel::Bottom));
        }
        if inner.tags.is_some() { builder.build() } else { builder.build_packet() }
    }

    /// The headers of one packet. Nothing follows them, so that no further header is read.
    fn headers(&self, level: Level, headers: PacketHeaders, tags: u8) -> FrameBuilder {
        let value = |coordinate| (self.value)(coordinate);
        let mut builder = FrameBuilder::new();
        for _ in 0..tags {
            builder = builder.vlan(EtherType::VLAN, 0);
        }
        builder = match headers.network {
            Network::None => builder,
            Network::V4 => builder.ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED),
            Network::V6 | Network::V6Fragment => builder.ipv6(Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED),
        };
        if headers.network == Network::V6 && headers.extended.is_some() {
            // Which one it is follows from the protocol.
            builder = builder.extension(IpProtocol::DESTINATION_OPTIONS);
        }
        builder = match headers.extended.unwrap_or(headers.transport) {
            Transport::None => builder,
            Transport::Tcp => builder.tcp(0, 0, 0),
            Transport::Udp => builder.udp(0, 0),
            Transport::Sctp => builder.sctp(0, 0),
            Transport::Icmp => builder.icmp(0, 0),
        };
        // Set from the flags, and from the fragment header.
        let is_set_below = |field| match field {
            Field::IpFlags => true,
            Field::Protocol => headers.network == Network::V6Fragment,
            _ => false,
        };
        let has = |header: Header| !header.is_tunnel() && self.stack.has(self.outer_tags, header, level);
        for row in FIELDS.iter().filter(|row| has(row.header) && !is_set_below(row.field)) {
            builder = builder.set(row.field, value(Coordinate::Field(row.field, level)));
        }
        match headers.network {
            Network::V4 => {
                let code = value(Coordinate::FlagsAndFragment(level));
                builder = builder.set(Field::IpFlags, code % 8);
                if code >= 8 {
                    builder = builder.fragment(u16::from(code >= 16), code % 2 == 1);
                }
                if value(Coordinate::Options(level)) == 1 {
                    // No operation, three times, and the end of the list (RFC 791, 3.1).
                    builder = builder.ip_options(&[1, 1, 1, 0]);
                }
                builder
            }
            Network::V6Fragment => {
                builder.fragment(u16::from(value(Coordinate::Fragment6(level)) == 1), true)
            }
            Network::None | Network::V6 => builder,
        }
    }
}
