//! What the personalities refuse and reorder, row by row.

use ibverbs_sys::{IBV_FLOW_SPEC_IPV4, ibv_flow_ipv4_filter, ibv_flow_spec_ipv4};

use super::*;
use crate::errno::ENOMEM;

const MLX5: Personality = Personality::Mlx5;
const MLX4: Personality = Personality::Mlx4;

fn at(priority: u16) -> Block {
    Block::new().head(|head| head.priority = priority)
}

fn to_group(group: bool) -> ibv_flow_spec_eth {
    let mut spec = ethernet_spec();
    spec.val.dst_mac = if group { [0x33, 0x33, 0, 0, 0, 1] } else { [2, 0, 0, 0, 0, 1] };
    spec.mask.dst_mac = [0xff; 6];
    spec
}

fn of_type(ether_type: u16, mask: u16) -> ibv_flow_spec_eth {
    let mut spec = ethernet_spec();
    (spec.val.ether_type, spec.mask.ether_type) = (ether_type.to_be(), mask.to_be());
    spec
}

fn address(dst_ip: [u8; 4], mask: [u8; 4]) -> ibv_flow_spec_ipv4 {
    ibv_flow_spec_ipv4 {
        type_: IBV_FLOW_SPEC_IPV4,
        size: size_of::<ibv_flow_spec_ipv4>() as u16,
        val: ibv_flow_ipv4_filter { src_ip: 0, dst_ip: u32::from_ne_bytes(dst_ip) },
        mask: ibv_flow_ipv4_filter { src_ip: 0, dst_ip: u32::from_ne_bytes(mask) },
    }
}

fn addresses(dst_ip: [u8; 4]) -> ibv_flow_spec_ipv4 {
    address(dst_ip, [255; 4])
}

#[test]
fn priorities_end_where_the_device_has_no_more() {
    assert_eq!(at(u16::MAX).read().unwrap().priority, u16::MAX);
    assert_eq!(at(15).on(MLX5).read().unwrap().priority, 15);
    assert_eq!(refused(at(16).on(MLX5)), ENOMEM);
    assert!(at(0xfff).on(MLX4).read().is_ok());
    assert_eq!(refused(at(0x1000).on(MLX4)), EINVAL);
}

#[test]
fn mlx5_puts_what_is_for_multicast_only_last() {
    let priority = |block: Block| block.on(MLX5).read().unwrap().priority;
    assert_eq!(priority(at(3).spec(to_group(true))), LAST_PRIORITY);
    assert_eq!(priority(at(3).spec(to_group(false))), 3);
    assert_eq!(priority(at(3).spec(addresses([224, 0, 0, 1]))), LAST_PRIORITY);
    let wider = address([224, 0, 0, 0], [224, 0, 0, 0]);
    assert_eq!(priority(at(3).spec(wider)), LAST_PRIORITY, "the value counts, not the mask");
    let second = at(3).spec(ethernet_spec()).spec(addresses([224, 0, 0, 1]));
    assert_eq!(priority(second), 3, "only the first spec");
    assert_eq!(priority(at(3).spec(tag_spec(1)).spec(to_group(true))), 3, "whatever that is");
    let passing = at(3).spec(to_group(true)).head(|head| head.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
    assert_eq!(priority(passing), 3);
    assert_eq!(at(3).spec(to_group(true)).read().unwrap().priority, 3, "the ideal device does not");
}

#[test]
fn mlx5_forgets_what_defaults_and_sniffers_say() {
    for kind in [IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_SNIFFER] {
        let specs = || at(7).spec(to_group(false)).spec(tag_spec(5)).spec(drop_spec());
        let block = || specs().head(|head| head.type_ = kind);
        let request = block().on(MLX5).read().unwrap();
        assert_eq!((request.priority, request.tag, request.drop), (0, None, false));
        assert_eq!(request.matcher, Matcher::any());
        assert_eq!(refused(block()), EINVAL, "the ideal device says so");
    }
    let unread = Block::new().spec(ibv_flow_spec_eth { size: 39, ..ethernet_spec() });
    let unread = unread.head(|head| head.type_ = IBV_FLOW_ATTR_SNIFFER).on(MLX5);
    assert_eq!(refused(unread), EINVAL, "but the kernel reads them");
}

#[test]
fn mlx5_cannot_match_some_fields() {
    let ipv4 = |ttl: u8, flags: u8, tos: u8| {
        let mut spec = ipv4_spec(17);
        (spec.mask.ttl, spec.mask.flags, spec.mask.tos) = (ttl, flags, tos);
        Block::new().spec(spec)
    };
    assert!(ipv4(0, 0, 0xff).on(MLX5).read().is_ok());
    assert_eq!(refused(ipv4(1, 0, 0).on(MLX5)), EOPNOTSUPP);
    assert_eq!(refused(ipv4(0, 2, 0).on(MLX5)), EOPNOTSUPP);
    assert!(ipv4(1, 2, 0).read().is_ok());
    let mut ipv6 = ipv6_spec();
    ipv6.mask.hop_limit = 1;
    assert_eq!(refused(Block::new().spec(ipv6).on(MLX5)), EOPNOTSUPP);
    assert!(Block::new().spec(ipv6).read().is_ok());
    assert!(Block::new().spec(tag_spec(0xff_ffff)).on(MLX5).read().is_ok());
    assert_eq!(refused(Block::new().spec(tag_spec(1 << 24)).on(MLX5)), EINVAL);
}

#[test]
fn mlx5_wants_protocols_and_types_whole_beside_what_implies_them() {
    let udp = port_spec(IBV_FLOW_SPEC_UDP, 53);
    let mut half = ipv4_spec(17);
    half.mask.proto = 0x1f;
    assert!(Block::new().spec(half).on(MLX5).read().is_ok());
    assert_eq!(refused(Block::new().spec(half).spec(udp).on(MLX5)), EINVAL);
    assert!(Block::new().spec(half).spec(udp).read().is_ok());
    let beside = |ether_type, mask| Block::new().spec(of_type(ether_type, mask)).spec(ipv4_spec(17));
    assert!(beside(0x0800, 0xffff).on(MLX5).read().is_ok());
    assert!(beside(0, 0).on(MLX5).read().is_ok());
    assert_eq!(refused(beside(0x0800, 0xff00).on(MLX5)), EINVAL);
    assert_eq!(refused(beside(0x86dd, 0xffff).on(MLX5)), EINVAL);
    assert!(beside(0x8847, 0xffff).on(MLX5).read().is_ok(), "the packet behind labels");
    assert!(beside(0x0800, 0xff00).read().is_ok());
}

#[test]
fn unknown_kinds_and_flags_have_the_errno_of_the_device() {
    let kind = |personality| refused(Block::new().head(|head| head.type_ = 9).on(personality));
    assert_eq!([Personality::Ideal, MLX5, MLX4].map(kind), [EINVAL, EOPNOTSUPP, EINVAL]);
    let flag = |personality| refused(Block::new().head(|head| head.flags = 1).on(personality));
    assert_eq!([Personality::Ideal, MLX5, MLX4].map(flag), [EINVAL, EINVAL, EOPNOTSUPP]);
    let egress = Block::new().head(|head| head.flags = IBV_FLOW_ATTR_FLAGS_EGRESS).on(MLX4);
    assert_eq!(refused(egress), EOPNOTSUPP);
    let both = IBV_FLOW_ATTR_FLAGS_EGRESS | IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    let passing = |personality| Block::new().head(|head| head.flags = both).on(personality).read().err();
    assert_eq!([Personality::Ideal, MLX5, MLX4].map(passing), [None, Some(EOPNOTSUPP), Some(EOPNOTSUPP)]);
}

#[test]
fn mlx4_knows_little() {
    assert!(Block::new().spec(to_group(false)).on(MLX4).read().is_ok());
    assert!(Block::new().spec(addresses([10, 0, 0, 1])).on(MLX4).read().is_ok());
    assert!(Block::new().spec(port_spec(IBV_FLOW_SPEC_TCP, 80)).on(MLX4).read().is_ok());
    let inner = ibv_flow_spec_eth { type_: IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER, ..ethernet_spec() };
    for block in [
        Block::new().spec(ipv6_spec()),
        Block::new().spec(ipv4_spec(17)),
        Block::new().spec(tag_spec(1)),
        Block::new().spec(drop_spec()),
        Block::new().spec(inner),
    ] {
        assert_eq!(refused(block.on(MLX4)), EINVAL);
    }
    for mask in [1, 2, 0xff] {
        let mut flags = ipv4_spec(0);
        (flags.mask.proto, flags.mask.flags) = (0, mask);
        assert_eq!(refused(Block::new().spec(flags).on(MLX4)), EINVAL, "flags {mask:#x}, known or not");
    }
    let typed = Block::new().spec(of_type(0x0806, 0xffff)).on(MLX4).read().unwrap();
    assert_eq!(typed.matcher, Matcher::any(), "types are forgotten");
}

#[test]
fn mlx4_lets_frames_go_on_from_promiscuous_flows_only() {
    let passing = |priority| at(priority).head(|head| head.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP).on(MLX4);
    let mut group_bit = ethernet_spec();
    group_bit.mask.dst_mac = [1, 0, 0, 0, 0, 0];
    assert!(passing(0).read().unwrap().dont_trap);
    assert!(passing(0).spec(group_bit).read().is_ok());
    assert_eq!(refused(passing(1)), EOPNOTSUPP);
    assert_eq!(refused(passing(0).spec(to_group(true))), EINVAL);
    assert_eq!(refused(passing(0).spec(addresses([10, 0, 0, 1]))), EINVAL);
    let two = passing(0).spec(group_bit).spec(addresses([10, 0, 0, 1]));
    assert_eq!(refused(two), EOPNOTSUPP);
    let tagged = passing(0).spec(group_bit).spec(tag_spec(1));
    assert_eq!(refused(tagged), EOPNOTSUPP, "actions are counted, too");
    assert_eq!(refused(passing(0).spec(tag_spec(1))), EINVAL);
    let sniffer = passing(0).head(|head| head.type_ = IBV_FLOW_ATTR_SNIFFER);
    assert_eq!(refused(sniffer), EOPNOTSUPP);
}
