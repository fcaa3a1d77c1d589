//! The values of a packet that predicates test, as numbers that are aligned to the left whatever the width of
//! their field, so that an index of predicates compares all of them alike.

use packet::{Field, FlowKey, TunnelKey};

/// The value of a packet that is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Question {
    Packet(Value),
    Tunnel(Field),
    /// A value of the packet inside the tunnel.
    Inner(Value),
}

/// A value of a packet's own headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Value {
    Field(Field),
    Src,
    Dst,
}

/// Ranges of values, both ends included; sorted and disjoint. Values are aligned to the left.
pub(crate) type Ranges = Vec<(u128, u128)>;

/// How far the values of a field are from the left.
pub(crate) fn alignment(field: Field) -> u32 {
    u128::BITS - field.row().bits
}

impl Value {
    pub(crate) const PROTOCOL: Self = Self::Field(Field::Protocol);
    pub(crate) const SRC_PORT: Self = Self::Field(Field::SrcPort);
    pub(crate) const DST_PORT: Self = Self::Field(Field::DstPort);

    /// The value, aligned to the left.
    #[inline]
    pub(crate) fn of(self, key: &FlowKey) -> u128 {
        match self {
            Self::Field(field) => field.in_packet(key) << alignment(field),
            // Zero without an IP header: no step that tests them matches.
            Self::Src => u128::from_be_bytes(key.src_ip),
            Self::Dst => u128::from_be_bytes(key.dst_ip),
        }
    }
}

impl Question {
    /// The value of a packet. Without a tunnel those of the tunnel are 0: no step that tests them matches.
    #[inline]
    pub(crate) fn answer(self, key: &FlowKey, tunnel: Option<&TunnelKey>) -> u128 {
        match self {
            Self::Packet(value) => value.of(key),
            Self::Tunnel(field) => tunnel.map_or(0, |tunnel| field.in_tunnel(tunnel) << alignment(field)),
            Self::Inner(value) => tunnel.map_or(0, |tunnel| value.of(&tunnel.inner)),
        }
    }
}
