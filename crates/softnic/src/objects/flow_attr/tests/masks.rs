//! Values with a bit that their mask leaves out. The ideal device ignores such a bit, as the manual has it;
//! mlx5 refuses it in the fields that its driver hands on to the device, and never looks at the others.

use ibverbs_sys::IBV_FLOW_SPEC_IPV4;

use super::*;

/// A flow with one filter of `bytes` bytes: a value and a mask, each of one byte that is not zero.
fn flow(type_: u32, bytes: usize, value: (usize, u8), mask: (usize, u8)) -> Block {
    // Where the value begins: right behind type and size, or as its fields are aligned.
    let start = match type_ {
        IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => 6,
        _ => 8,
    };
    let mut block = Block::new();
    block.specs = vec![0; (start + 2 * bytes).next_multiple_of(4)];
    let size = block.specs.len() as u16;
    block.specs[..4].copy_from_slice(&type_.to_ne_bytes());
    block.specs[4..6].copy_from_slice(&size.to_ne_bytes());
    block.specs[start + value.0] = value.1;
    block.specs[start + bytes + mask.0] = mask.1;
    block.head.num_of_specs = 1;
    block
}

fn on_mlx5(type_: u32, bytes: usize, value: (usize, u8), mask: (usize, u8)) -> Option<VerbErrno> {
    assert!(flow(type_, bytes, value, mask).read().is_ok(), "type {type_:#x}, {value:?}: the ideal device");
    flow(type_, bytes, value, mask).on(Personality::Mlx5).read().err()
}

#[test]
fn mlx5_refuses_values_outside_their_masks_in_the_fields_that_it_hands_on() {
    // Of each filter: its bytes, and which of them count in a value without a mask.
    type Counts = fn(usize) -> bool;
    let filters: [(u32, usize, Counts); 10] = [
        // All but the VLAN tag.
        (IBV_FLOW_SPEC_ETH, 16, |byte| byte < 14),
        (IBV_FLOW_SPEC_IPV4, 8, |_| true),
        // The addresses and the type of service; not protocol, time to live and flags.
        (IBV_FLOW_SPEC_IPV4_EXT, 12, |byte| byte < 8 || byte == 9),
        // The addresses, the label and the traffic class; not next header, hop limit and padding.
        (IBV_FLOW_SPEC_IPV6, 40, |byte| byte < 36 || byte == 37),
        (IBV_FLOW_SPEC_TCP, 4, |_| true),
        (IBV_FLOW_SPEC_UDP, 4, |_| true),
        // The index, not the sequence number.
        (IBV_FLOW_SPEC_ESP, 8, |byte| byte < 4),
        // Protocol and key, not the flags.
        (IBV_FLOW_SPEC_GRE, 8, |byte| byte >= 2),
        (IBV_FLOW_SPEC_VXLAN_TUNNEL, 4, |_| true),
        (IBV_FLOW_SPEC_MPLS, 4, |_| true),
    ];
    for (type_, bytes, counts) in filters {
        // What is beyond the bits of a label or a network identifier is refused by every device.
        let too_much = |byte| match type_ {
            IBV_FLOW_SPEC_IPV6 => byte == 32,
            IBV_FLOW_SPEC_VXLAN_TUNNEL => byte == 0,
            _ => false,
        };
        for byte in (0..bytes).filter(|byte| !too_much(*byte)) {
            let expected = counts(byte).then_some(EINVAL);
            assert_eq!(on_mlx5(type_, bytes, (byte, 2), (0, 0)), expected, "type {type_:#x}, byte {byte}");
        }
    }
}

#[test]
fn tags_and_protocols_count_on_mlx5_once_they_have_a_mask() {
    const VLAN_TAG: usize = 14;
    const IPV4_PROTOCOL: usize = 8;
    const IPV6_NEXT_HEADER: usize = 36;
    for (type_, bytes, place) in [
        (IBV_FLOW_SPEC_ETH, 16, VLAN_TAG),
        (IBV_FLOW_SPEC_IPV4_EXT, 12, IPV4_PROTOCOL),
        (IBV_FLOW_SPEC_IPV6, 40, IPV6_NEXT_HEADER),
    ] {
        for (value, mask, expected) in
            [(0x80, 0, None), (0x80, 0x0f, Some(EINVAL)), (0x02, 0x0f, None), (0, 0xff, None)]
        {
            let answer = on_mlx5(type_, bytes, (place, value), (place, mask));
            assert_eq!(answer, expected, "type {type_:#x}, {value:#x} under {mask:#x}");
        }
    }
}
