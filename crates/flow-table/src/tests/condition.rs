//! What a rule asks for and which frames meet it, said without [`Matcher`], and the matcher held against
//! that.

use packet::cube::{self, Slot};
use packet::{FlowKey, Layers, MacAddr};
use proptest::prelude::*;

use crate::{MatchKey, Matcher};

/// One condition of a test rule, one kind for each setter, kept apart from [`Matcher`] so that the reference
/// shares nothing with it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    Layer(Layers),
    DstMac([u8; 6], [u8; 6]),
    SrcMac([u8; 6], [u8; 6]),
    EtherType(u16, u16),
    Vlan(u16, u16),
    SrcIpv4([u8; 4], [u8; 4]),
    DstIpv4([u8; 4], [u8; 4]),
    SrcIpv6([u8; 16], [u8; 16]),
    DstIpv6([u8; 16], [u8; 16]),
    Protocol(u8, u8),
    Tos(u8, u8),
    Ttl(u8, u8),
    IpFlags(u8, u8),
    FlowLabel(u32, u32),
    SrcPort(u16, u16),
    DstPort(u16, u16),
}

impl Condition {
    pub(super) fn write(self, matcher: &mut Matcher) {
        if let Self::Layer(layers) = self {
            matcher.require(layers);
            return;
        }
        let slots: &[Slot] = match self {
            Self::Layer(_) => &[],
            Self::DstMac(..) => &[cube::DST_MAC],
            Self::SrcMac(..) => &[cube::SRC_MAC],
            Self::EtherType(..) => &[cube::ETHER_TYPE],
            Self::Vlan(..) => &[cube::VLAN_TCI],
            Self::SrcIpv4(..) => &[cube::SRC_IPV4],
            Self::DstIpv4(..) => &[cube::DST_IPV4],
            Self::SrcIpv6(..) => &[cube::SRC_HIGH, cube::SRC_LOW],
            Self::DstIpv6(..) => &[cube::DST_HIGH, cube::DST_LOW],
            Self::Protocol(..) => &[cube::PROTOCOL],
            Self::Tos(..) => &[cube::TOS],
            Self::Ttl(..) => &[cube::TTL],
            Self::IpFlags(..) => &[cube::IP_FLAGS],
            Self::FlowLabel(..) => &[cube::FLOW_LABEL],
            Self::SrcPort(..) => &[cube::SRC_PORT],
            Self::DstPort(..) => &[cube::DST_PORT],
        };
        let (_, value, mask) = self.asks();
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
        matcher.field(slots, number(&value), number(&mask));
    }

    /// The comparison, byte by byte: which field, the values, the mask.
    pub(super) fn asks(self) -> (&'static str, Vec<u8>, Vec<u8>) {
        let short = |value: u16, mask: u16| (value.to_be_bytes().to_vec(), mask.to_be_bytes().to_vec());
        let (field, (value, mask)) = match self {
            Self::Layer(layers) => ("layers", short(layers.bits(), layers.bits())),
            Self::DstMac(value, mask) => ("dst_mac", (value.to_vec(), mask.to_vec())),
            Self::SrcMac(value, mask) => ("src_mac", (value.to_vec(), mask.to_vec())),
            Self::EtherType(value, mask) => ("ether_type", short(value, mask)),
            Self::Vlan(value, mask) => ("vlan", short(value, mask)),
            // One place for both families, as in the key; the layer says which it is.
            Self::SrcIpv4(value, mask) => ("src", (value.to_vec(), mask.to_vec())),
            Self::DstIpv4(value, mask) => ("dst", (value.to_vec(), mask.to_vec())),
            Self::SrcIpv6(value, mask) => ("src", (value.to_vec(), mask.to_vec())),
            Self::DstIpv6(value, mask) => ("dst", (value.to_vec(), mask.to_vec())),
            Self::Protocol(value, mask) => ("protocol", (vec![value], vec![mask])),
            Self::Tos(value, mask) => ("tos", (vec![value], vec![mask])),
            Self::Ttl(value, mask) => ("ttl", (vec![value], vec![mask])),
            Self::IpFlags(value, mask) => ("ip_flags", (vec![value], vec![mask])),
            Self::FlowLabel(value, mask) => {
                ("label", (value.to_be_bytes().to_vec(), mask.to_be_bytes().to_vec()))
            }
            Self::SrcPort(value, mask) => ("src_port", short(value, mask)),
            Self::DstPort(value, mask) => ("dst_port", short(value, mask)),
        };
        (field, value, mask)
    }

    pub(super) fn holds(self, key: &FlowKey) -> bool {
        let (field, value, mask) = self.asks();
        let is_c_vlan = key.layers.contains(Layers::VLAN) && key.vlan_tpid == 0x8100;
        let found = match field {
            "layers" => key.layers.bits().to_be_bytes().to_vec(),
            "dst_mac" => key.dst_mac.0.to_vec(),
            "src_mac" => key.src_mac.0.to_vec(),
            "ether_type" => key.ether_type.to_be_bytes().to_vec(),
            "vlan" if mask == [0, 0] => return true,
            "vlan" if !is_c_vlan => return false,
            "vlan" => key.vlan_tci.to_be_bytes().to_vec(),
            "src" => key.src_ip.to_vec(),
            "dst" => key.dst_ip.to_vec(),
            "protocol" => vec![key.protocol],
            "tos" => vec![key.tos],
            "ttl" => vec![key.ttl],
            "ip_flags" => vec![key.ip_flags],
            "label" => key.flow_label.to_be_bytes().to_vec(),
            "src_port" => key.src_port.to_be_bytes().to_vec(),
            "dst_port" => key.dst_port.to_be_bytes().to_vec(),
            field => panic!("{field}"),
        };
        (0..value.len()).all(|at| (found[at] ^ value[at]) & mask[at] == 0)
    }

    /// The frame with just those bits changed that this asks for.
    pub(super) fn met_by(self, mut key: FlowKey) -> FlowKey {
        let (field, value, mask) = self.asks();
        if field == "vlan" && mask != [0, 0] {
            key.layers |= Layers::VLAN;
            key.vlan_tpid = 0x8100;
        }
        map_field(&mut key, field, |at, byte| match (value.get(at), mask.get(at)) {
            (Some(value), Some(mask)) => byte & !mask | value & mask,
            _ => byte,
        });
        key
    }

    /// Whether both can hold of no frame because they ask for different values of one bit.
    pub(super) fn contradicts(self, other: Self) -> bool {
        let ((field, value, mask), (other_field, other_value, other_mask)) = (self.asks(), other.asks());
        let bytes = value.len().min(other_value.len());
        field == other_field
            && (0..bytes).any(|at| (value[at] ^ other_value[at]) & mask[at] & other_mask[at] != 0)
    }
}

/// Changes a field, as [`Condition::asks`] names it, byte by byte.
pub(super) fn map_field(key: &mut FlowKey, field: &str, change: impl Fn(usize, u8) -> u8) {
    pub(super) fn all<const N: usize>(bytes: [u8; N], change: impl Fn(usize, u8) -> u8) -> [u8; N] {
        std::array::from_fn(|at| change(at, bytes[at]))
    }
    let short = |value: u16| u16::from_be_bytes(all(value.to_be_bytes(), &change));
    let byte = |value: u8| change(0, value);
    match field {
        "layers" => key.layers = Layers::from_bits_truncate(short(key.layers.bits())),
        "dst_mac" => key.dst_mac.0 = all(key.dst_mac.0, &change),
        "src_mac" => key.src_mac.0 = all(key.src_mac.0, &change),
        "ether_type" => key.ether_type = short(key.ether_type),
        "vlan" => key.vlan_tci = short(key.vlan_tci),
        "src" => key.src_ip = all(key.src_ip, &change),
        "dst" => key.dst_ip = all(key.dst_ip, &change),
        "protocol" => key.protocol = byte(key.protocol),
        "tos" => key.tos = byte(key.tos),
        "ttl" => key.ttl = byte(key.ttl),
        "ip_flags" => key.ip_flags = byte(key.ip_flags),
        "label" => key.flow_label = u32::from_be_bytes(all(key.flow_label.to_be_bytes(), &change)),
        "src_port" => key.src_port = short(key.src_port),
        "dst_port" => key.dst_port = short(key.dst_port),
        field => panic!("{field}"),
    }
}

/// A value and a mask of few different bytes, so that frames often meet them; all bytes differ in place.
fn bytes<const N: usize>() -> impl Strategy<Value = ([u8; N], [u8; N])> {
    let mask = prop::sample::select(vec![0u8, 1, 2, 3, 0xff]);
    (prop::array::uniform(0u8..4), prop::array::uniform::<_, N>(mask), 0usize..=N).prop_map(
        |(value, mut mask, known)| {
            // Often a prefix only, as policies have it.
            mask[known..].fill(0);
            (value, mask)
        },
    )
}

pub(super) fn condition() -> impl Strategy<Value = Condition> {
    let short = || bytes::<2>().prop_map(|(v, m)| (u16::from_be_bytes(v), u16::from_be_bytes(m)));
    let byte = || bytes::<1>().prop_map(|([v], [m])| (v, m));
    let layers = vec![Layers::IPV4, Layers::IPV6, Layers::TCP, Layers::UDP];
    prop_oneof![
        prop::sample::select(layers).prop_map(Condition::Layer),
        bytes().prop_map(|(v, m)| Condition::DstMac(v, m)),
        bytes().prop_map(|(v, m)| Condition::SrcMac(v, m)),
        short().prop_map(|(v, m)| Condition::EtherType(v, m)),
        short().prop_map(|(v, m)| Condition::Vlan(v, m)),
        bytes().prop_map(|(v, m)| Condition::SrcIpv4(v, m)),
        bytes().prop_map(|(v, m)| Condition::DstIpv4(v, m)),
        bytes().prop_map(|(v, m)| Condition::SrcIpv6(v, m)),
        bytes().prop_map(|(v, m)| Condition::DstIpv6(v, m)),
        byte().prop_map(|(v, m)| Condition::Protocol(v, m)),
        byte().prop_map(|(v, m)| Condition::Tos(v, m)),
        byte().prop_map(|(v, m)| Condition::Ttl(v, m)),
        // Three bits and twenty: fields have no more.
        byte().prop_map(|(v, m)| Condition::IpFlags(v, m & 7)),
        bytes()
            .prop_map(|(v, m)| Condition::FlowLabel(u32::from_be_bytes(v), u32::from_be_bytes(m) & 0xf_ffff)),
        short().prop_map(|(v, m)| Condition::SrcPort(v, m)),
        short().prop_map(|(v, m)| Condition::DstPort(v, m)),
    ]
}

/// Any fields beside any layers: the table takes keys as they are.
pub(super) fn key() -> impl Strategy<Value = FlowKey> {
    let layers = prop::sample::select(vec![
        Layers::empty(),
        Layers::IPV4,
        Layers::IPV4 | Layers::TCP,
        Layers::IPV4 | Layers::UDP,
        Layers::IPV6 | Layers::TCP,
        Layers::VLAN | Layers::IPV4 | Layers::UDP,
        Layers::VLAN | Layers::IPV6,
    ]);
    let tpid = prop::sample::select(vec![0x8100u16, 0x88a8]);
    (layers, tpid, prop::array::uniform::<_, 60>(0u8..4)).prop_map(|(layers, vlan_tpid, bytes)| {
        let mut rest = &bytes[..];
        let mut short = || {
            let value;
            (value, rest) = rest.split_first_chunk().unwrap();
            u16::from_be_bytes(*value)
        };
        let [ether_type, vlan_tci, src_port, dst_port] = std::array::from_fn(|_| short());
        let (dst_mac, rest) = rest.split_first_chunk().unwrap();
        let (src_mac, rest) = rest.split_first_chunk().unwrap();
        let (src_ip, rest) = rest.split_first_chunk().unwrap();
        let (dst_ip, rest) = rest.split_first_chunk().unwrap();
        let (label, rest) = rest.split_first_chunk().unwrap();
        FlowKey {
            layers,
            dst_mac: MacAddr(*dst_mac),
            src_mac: MacAddr(*src_mac),
            ether_type,
            vlan_tpid,
            vlan_tci,
            src_ip: *src_ip,
            dst_ip: *dst_ip,
            protocol: rest[0],
            tos: rest[1],
            ttl: rest[2],
            ip_flags: rest[3],
            flow_label: u32::from_be_bytes(*label),
            src_port,
            dst_port,
            ..FlowKey::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Each setter alone and beside others, without a table around it.
    #[test]
    fn a_matcher_holds_where_its_conditions_do(
        conditions in prop::collection::vec(condition(), 1..4),
        key in key(),
        meets in any::<bool>(),
    ) {
        // Most frames miss something; half of these meet all that can be met.
        let key = if meets { conditions.iter().fold(key, |key, condition| condition.met_by(key)) } else { key };
        let mut matcher = Matcher::any();
        conditions.iter().for_each(|condition| condition.write(&mut matcher));
        let expected = conditions.iter().all(|condition| condition.holds(&key));
        prop_assert_eq!(matcher.matches(&MatchKey::of(&key)), expected);
        let contradictory = conditions.iter().any(|a| conditions.iter().any(|b| a.contradicts(*b)));
        prop_assert_eq!(matcher.is_contradictory(), contradictory);
    }

    /// One bit of one field more or less in a frame that a rule is about, and it is about it no longer.
    #[test]
    fn every_bit_that_a_condition_names_counts(condition in condition(), key in key(), bit in 0usize..128) {
        let mut matcher = Matcher::any();
        condition.write(&mut matcher);
        let (field, _, mask) = condition.asks();
        let bit = bit % (mask.len() * 8);
        let (at, flip) = (bit / 8, 0x80u8 >> (bit % 8));
        let meets = condition.met_by(key);
        let mut misses = meets;
        map_field(&mut misses, field, |place, byte| if place == at { byte ^ flip } else { byte });
        for key in [meets, misses] {
            prop_assert_eq!(matcher.matches(&MatchKey::of(&key)), condition.holds(&key));
        }
        prop_assert!(condition.holds(&meets));
    }
}
