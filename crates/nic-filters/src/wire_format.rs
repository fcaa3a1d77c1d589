//! Filters in the kernel's structure `struct ethtool_rxnfc` (linux/ethtool.h), both ways.
//!
//! The structure is 192 bytes: the command, `flow_type`, `data`, then `struct ethtool_rx_flow_spec` from byte
//! 16 on, then the number of an RSS context. The specification has a value and a mask, each of 52 bytes for
//! the fields of the kind and 20 bytes for additional ones. A set bit of a mask means that the bit is
//! compared. Fields are in network byte order, the numbers around them in that of the machine. A test
//! compares the bytes with those of a C compiler, and with those that ethtool(8) sends.

use packet::Field;
use wire::RXNFC_BYTES;

use crate::filter::{Destination, FieldBits, Filter, FilterKind, FilterMatch, is_of_tag};

/// `struct ethtool_rxnfc`.
pub(crate) type Block = [u8; RXNFC_BYTES];

/// Offsets in the structure.
const FLOW_TYPE: usize = 16;
const VALUE: usize = 20;
const VALUE_EXTRA: usize = 72;
const MASK: usize = 92;
const MASK_EXTRA: usize = 144;
const RING_COOKIE: usize = 168;
const LOCATION: usize = 176;
const RSS_CONTEXT: usize = 184;
/// Bytes of the fields of a kind, and of additional ones.
const UNION_BYTES: usize = 52;
const EXTRA_BYTES: usize = 20;
/// Offsets in the additional fields.
const EXTRA_MAC: usize = 2;
const EXTRA_VLAN: usize = 10;
/// The offset of `ip_ver` in `struct ethtool_usrip4_spec`, and its value.
const IP_VERSION: usize = 13;
const ETH_RX_NFC_IP4: u8 = 1;

const FLOW_EXT: u32 = 0x8000_0000;
const FLOW_MAC_EXT: u32 = 0x4000_0000;
const FLOW_RSS: u32 = 0x2000_0000;
const RX_CLS_FLOW_DISC: u64 = u64::MAX;
const RX_CLS_FLOW_WAKE: u64 = u64::MAX - 1;
/// The driver chooses the location.
const RX_CLS_LOC_ANY: u32 = u32::MAX;

/// The numbers of kinds in `flow_type`.
const KINDS: [(u32, FilterKind); 7] = [
    (0x01, FilterKind::Tcp4),
    (0x02, FilterKind::Udp4),
    (0x05, FilterKind::Tcp6),
    (0x06, FilterKind::Udp6),
    (0x0d, FilterKind::Ip4),
    (0x0e, FilterKind::Ip6),
    (0x12, FilterKind::Ether),
];

/// The place of a field in the bytes of a value or mask.
struct FieldPlace {
    field: Field,
    offset: usize,
    bytes: usize,
}

const fn place(field: Field, offset: usize, bytes: usize) -> FieldPlace {
    FieldPlace { field, offset, bytes }
}

/// The fields of a kind: `struct ethhdr`, `ethtool_tcpip4_spec`, `ethtool_usrip4_spec`,
/// `ethtool_tcpip6_spec`, `ethtool_usrip6_spec`.
fn places(kind: FilterKind) -> &'static [FieldPlace] {
    const ETHER: &[FieldPlace] =
        &[place(Field::DstMac, 0, 6), place(Field::SrcMac, 6, 6), place(Field::EtherType, 12, 2)];
    const PORTS4: &[FieldPlace] = &[
        place(Field::SrcV4, 0, 4),
        place(Field::DstV4, 4, 4),
        place(Field::SrcPort, 8, 2),
        place(Field::DstPort, 10, 2),
        place(Field::Tos, 12, 1),
    ];
    const IP4: &[FieldPlace] = &[
        place(Field::SrcV4, 0, 4),
        place(Field::DstV4, 4, 4),
        place(Field::Tos, 12, 1),
        place(Field::Protocol, 14, 1),
    ];
    const PORTS6: &[FieldPlace] = &[
        place(Field::SrcV6, 0, 16),
        place(Field::DstV6, 16, 16),
        place(Field::SrcPort, 32, 2),
        place(Field::DstPort, 34, 2),
        place(Field::Tos, 36, 1),
    ];
    const IP6: &[FieldPlace] = &[
        place(Field::SrcV6, 0, 16),
        place(Field::DstV6, 16, 16),
        place(Field::Tos, 36, 1),
        place(Field::Protocol, 37, 1),
    ];
    match kind {
        FilterKind::Ether => ETHER,
        FilterKind::Ip4 => IP4,
        FilterKind::Ip6 => IP6,
        FilterKind::Tcp4 | FilterKind::Udp4 => PORTS4,
        FilterKind::Tcp6 | FilterKind::Udp6 => PORTS6,
    }
}

/// Returns whether the structure has the field beside a kind.
pub(crate) fn has_place(kind: FilterKind, field: Field) -> bool {
    places(kind).iter().any(|place| place.field == field) || is_of_tag(field) || field == Field::DstMac
}

/// The shift of a field in the control information of the tag.
const fn shift_in_tag(field: Field) -> Option<u32> {
    match field {
        Field::VlanId => Some(0),
        Field::VlanPriority => Some(13),
        _ => None,
    }
}

/// The block that asks for the rule at a location.
pub(crate) fn block_of_location(location: u32) -> Block {
    let mut block = [0; RXNFC_BYTES];
    put(&mut block, LOCATION, &location.to_ne_bytes());
    block
}

/// The block that inserts a filter. `location`: `None` lets the driver choose one.
pub(crate) fn encode(filter: &Filter, location: Option<u32>) -> Block {
    let mut block = block_of_location(location.unwrap_or(RX_CLS_LOC_ANY));
    let kind = filter.matches.kind();
    let mut flow_type = KINDS.iter().find(|(_, known)| *known == kind).map_or(0, |(number, _)| *number);
    if kind == FilterKind::Ip4 {
        block[VALUE + IP_VERSION] = ETH_RX_NFC_IP4;
    }
    for FieldBits { field, value, mask } in filter.matches.fields() {
        if let Some(place) = places(kind).iter().find(|place| place.field == *field) {
            put_number(&mut block, VALUE + place.offset, place.bytes, *value);
            put_number(&mut block, MASK + place.offset, place.bytes, *mask);
        } else if let Some(shift) = shift_in_tag(*field) {
            flow_type |= FLOW_EXT;
            or_number(&mut block, VALUE_EXTRA + EXTRA_VLAN, value << shift);
            or_number(&mut block, MASK_EXTRA + EXTRA_VLAN, mask << shift);
        } else if *field == Field::DstMac {
            flow_type |= FLOW_MAC_EXT;
            put_number(&mut block, VALUE_EXTRA + EXTRA_MAC, 6, *value);
            put_number(&mut block, MASK_EXTRA + EXTRA_MAC, 6, *mask);
        }
    }
    let cookie = match filter.destination {
        Destination::Drop => RX_CLS_FLOW_DISC,
        Destination::Queue(queue) => queue.into(),
        Destination::Context(context) => {
            flow_type |= FLOW_RSS;
            put(&mut block, RSS_CONTEXT, &context.to_ne_bytes());
            0
        }
    };
    put(&mut block, FLOW_TYPE, &flow_type.to_ne_bytes());
    put(&mut block, RING_COOKIE, &cookie.to_ne_bytes());
    block
}

/// The location in a block.
pub(crate) fn location_of(block: &Block) -> u32 {
    word(block, LOCATION)
}

/// The filter in a block.
///
/// # Errors
/// The filter has something that this crate does not write, in a few words.
pub(crate) fn decode(block: &Block) -> Result<Filter, String> {
    let flow_type = word(block, FLOW_TYPE);
    let number = flow_type & !(FLOW_EXT | FLOW_MAC_EXT | FLOW_RSS);
    let kind = KINDS.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind);
    let kind = kind.ok_or_else(|| format!("flow type {number:#x}"))?;
    let (value, mask) = (&block[VALUE..][..UNION_BYTES], &block[MASK..][..UNION_BYTES]);
    let (value_extra, mask_extra) =
        (&block[VALUE_EXTRA..][..EXTRA_BYTES], &block[MASK_EXTRA..][..EXTRA_BYTES]);
    let mut known = [false; UNION_BYTES];
    let mut fields = Vec::new();
    for place in places(kind) {
        known[place.offset..][..place.bytes].fill(true);
        fields.push(FieldBits {
            field: place.field,
            value: number_of(&value[place.offset..][..place.bytes]),
            mask: number_of(&mask[place.offset..][..place.bytes]),
        });
    }
    if mask.iter().zip(known).any(|(byte, known)| *byte != 0 && !known) {
        return Err(format!("{} with other fields", kind.name()));
    }
    if flow_type & FLOW_MAC_EXT != 0 {
        let bits = FieldBits {
            field: Field::DstMac,
            value: number_of(&value_extra[EXTRA_MAC..][..6]),
            mask: number_of(&mask_extra[EXTRA_MAC..][..6]),
        };
        match (kind, bits.mask) {
            (_, 0) => {}
            (FilterKind::Ether, _) => return Err("ether with two destination addresses".to_owned()),
            _ => fields.push(bits),
        }
    }
    if flow_type & FLOW_EXT != 0 {
        let tag = number_of(&value_extra[EXTRA_VLAN..][..2]);
        let mut tag_mask = number_of(&mask_extra[EXTRA_VLAN..][..2]);
        for field in [Field::VlanId, Field::VlanPriority] {
            let Some(shift) = shift_in_tag(field) else { continue };
            fields.push(FieldBits { field, value: tag >> shift, mask: tag_mask >> shift });
            tag_mask &= !(field.max() << shift);
        }
        // The EtherType of the tag, and data of the driver.
        let others = mask_extra[EXTRA_VLAN - 2..EXTRA_VLAN].iter().chain(&mask_extra[EXTRA_VLAN + 2..]);
        if tag_mask != 0 || others.into_iter().any(|byte| *byte != 0) {
            return Err(format!("{} with user-defined data", kind.name()));
        }
    }
    Ok(Filter { matches: FilterMatch::new(kind, fields), destination: destination(block, flow_type)? })
}

fn destination(block: &Block, flow_type: u32) -> Result<Destination, String> {
    let cookie = u64::from_ne_bytes(std::array::from_fn(|at| block[RING_COOKIE + at]));
    match (cookie, flow_type & FLOW_RSS != 0) {
        (RX_CLS_FLOW_DISC, _) => Ok(Destination::Drop),
        (RX_CLS_FLOW_WAKE, _) => Err("to wake the machine".to_owned()),
        (0, true) => Ok(Destination::Context(word(block, RSS_CONTEXT))),
        (ring, true) => Err(format!("to an RSS context from queue {ring} on")),
        (ring, false) => match u32::try_from(ring) {
            Ok(queue) => Ok(Destination::Queue(queue)),
            Err(_) => Err(format!("to a virtual function ({ring:#x})")),
        },
    }
}

fn put(block: &mut Block, offset: usize, bytes: &[u8]) {
    block[offset..][..bytes.len()].copy_from_slice(bytes);
}

/// Writes the low bytes of a number in network byte order.
fn put_number(block: &mut Block, offset: usize, bytes: usize, number: u128) {
    put(block, offset, &number.to_be_bytes()[size_of::<u128>() - bytes..]);
}

/// Sets the bits of a number of two bytes.
fn or_number(block: &mut Block, offset: usize, number: u128) {
    let present = number_of(&block[offset..][..2]);
    put_number(block, offset, 2, present | number);
}

fn number_of(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn word(block: &Block, offset: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|at| block[offset + at]))
}
