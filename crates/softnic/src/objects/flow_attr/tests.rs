//! Blocks as a C program would lay them out, right ones and wrong ones.

mod masks;
mod personalities;
mod tunnels;

use flow_table::MatchKey;
use ibverbs_sys::{
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_INNER,
    IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP,
    IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv6_filter,
    ibv_flow_spec_action_drop, ibv_flow_spec_action_handle, ibv_flow_spec_action_tag,
    ibv_flow_spec_counter_action, ibv_flow_spec_eth, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6,
    ibv_flow_spec_tcp_udp, ibv_flow_spec_type, ibv_flow_tcp_udp_filter,
};
use packet::FlowKey;

use super::*;
use crate::Personality;
use crate::errno::{EOPNOTSUPP, VerbErrno};

/// A block under construction: the head, then bytes.
struct Block {
    head: ibv_flow_attr,
    specs: Vec<u8>,
    personality: Personality,
}

impl Block {
    fn new() -> Self {
        let head = ibv_flow_attr { port: 1, ..ibv_flow_attr::default() };
        Self { head, specs: Vec::new(), personality: Personality::Ideal }
    }

    fn on(mut self, personality: Personality) -> Self {
        self.personality = personality;
        self
    }

    fn head(mut self, change: impl FnOnce(&mut ibv_flow_attr)) -> Self {
        change(&mut self.head);
        self
    }

    fn spec<T: Copy>(mut self, spec: T) -> Self {
        let from = (&raw const spec).cast::<u8>();
        // SAFETY: the whole spec, which is zeroed where it has padding (the bindings' `Default` zeroes).
        self.specs.extend_from_slice(unsafe { std::slice::from_raw_parts(from, size_of::<T>()) });
        self.head.num_of_specs += 1;
        self
    }

    fn read(self) -> Verb<FlowRequest> {
        self.read_resized(0)
    }

    /// Reads the block with its size off by `by`.
    fn read_resized(mut self, by: i32) -> Verb<FlowRequest> {
        let size = i32::try_from(size_of::<ibv_flow_attr>() + self.specs.len()).unwrap() + by;
        self.head.size = u16::try_from(size).unwrap();
        let head = (&raw const self.head).cast::<u8>();
        // SAFETY: the whole head.
        let mut bytes = unsafe { std::slice::from_raw_parts(head, size_of::<ibv_flow_attr>()) }.to_vec();
        bytes.extend(&self.specs);
        bytes.resize(bytes.len().max(self.head.size.into()), 0);
        // Odd on purpose: a block need not be aligned.
        bytes.insert(0, 0);
        // SAFETY: the block has `size` bytes.
        unsafe { read(bytes[1..].as_ptr().cast(), &self.personality.rules().flow) }
    }
}

fn ethernet_spec() -> ibv_flow_spec_eth {
    ibv_flow_spec_eth {
        type_: IBV_FLOW_SPEC_ETH,
        size: size_of::<ibv_flow_spec_eth>() as u16,
        ..ibv_flow_spec_eth::default()
    }
}

fn ipv4_spec(protocol: u8) -> ibv_flow_spec_ipv4_ext {
    ibv_flow_spec_ipv4_ext {
        type_: IBV_FLOW_SPEC_IPV4_EXT,
        size: size_of::<ibv_flow_spec_ipv4_ext>() as u16,
        val: ibv_flow_ipv4_ext_filter { proto: protocol, ..Default::default() },
        mask: ibv_flow_ipv4_ext_filter { proto: 0xff, ..Default::default() },
    }
}

fn ipv6_spec() -> ibv_flow_spec_ipv6 {
    ibv_flow_spec_ipv6 {
        type_: IBV_FLOW_SPEC_IPV6,
        size: size_of::<ibv_flow_spec_ipv6>() as u16,
        ..ibv_flow_spec_ipv6::default()
    }
}

fn port_spec(type_: ibv_flow_spec_type, port: u16) -> ibv_flow_spec_tcp_udp {
    ibv_flow_spec_tcp_udp {
        type_,
        size: size_of::<ibv_flow_spec_tcp_udp>() as u16,
        val: ibv_flow_tcp_udp_filter { dst_port: port.to_be(), src_port: 0 },
        mask: ibv_flow_tcp_udp_filter { dst_port: 0xffff, src_port: 0 },
    }
}

fn tag_spec(tag_id: u32) -> ibv_flow_spec_action_tag {
    let size = size_of::<ibv_flow_spec_action_tag>() as u16;
    ibv_flow_spec_action_tag { type_: IBV_FLOW_SPEC_ACTION_TAG, size, tag_id }
}

fn drop_spec() -> ibv_flow_spec_action_drop {
    let size = size_of::<ibv_flow_spec_action_drop>() as u16;
    ibv_flow_spec_action_drop { type_: IBV_FLOW_SPEC_ACTION_DROP, size }
}

fn refused(block: Block) -> VerbErrno {
    block.read().unwrap_err()
}

#[test]
fn a_chain_of_specs_becomes_matchers() {
    let mut ethernet = ethernet_spec();
    ethernet.val = ibv_flow_eth_filter { vlan_tag: 7u16.to_be(), ..Default::default() };
    ethernet.mask = ibv_flow_eth_filter { vlan_tag: 0x0fffu16.to_be(), ..Default::default() };
    let request = Block::new()
        .head(|head| head.priority = 9)
        .spec(tag_spec(77))
        .spec(ethernet)
        .spec(ipv4_spec(17))
        .spec(port_spec(IBV_FLOW_SPEC_UDP, 53))
        .read()
        .unwrap();
    assert_eq!((request.kind, request.port, request.priority), (FlowKind::Normal, 1, 9));
    assert_eq!((request.tag, request.drop, request.dont_trap), (Some(77), false, false));
    let frame = |vlan: u16, port: u16| {
        let frame = packet::build::FrameBuilder::new()
            .vlan(packet::EtherType(0x8100), vlan)
            .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            .udp(1, port);
        MatchKey::of(&FlowKey::of(&frame.build()))
    };
    assert!(request.matcher.matches(&frame(0x5007, 53)));
    assert!(!request.matcher.matches(&frame(0x0008, 53)));
    assert!(!request.matcher.matches(&frame(0x0007, 54)));
}

#[test]
fn sizes_must_add_up() {
    let block = || Block::new().spec(ethernet_spec());
    assert!(block().read().is_ok());
    for by in [-39, -2, -1, 1, 40] {
        assert_eq!(block().read_resized(by).unwrap_err(), EINVAL, "off by {by}");
    }
    // Each spec's own size.
    for size in [0, 1, 6, 7, 8, 38, 39, 41, u16::MAX] {
        let spec = ibv_flow_spec_eth { size, ..ethernet_spec() };
        assert_eq!(refused(Block::new().spec(spec)), EINVAL, "a size of {size}");
    }
    assert_eq!(refused(block().head(|head| head.num_of_specs = 2)), EINVAL, "one spec is missing");
    assert_eq!(refused(block().head(|head| head.num_of_specs = 0)), EINVAL, "one spec is too many");
    // SAFETY: NULL is what it must bear.
    assert_eq!(unsafe { read(std::ptr::null(), &Personality::Ideal.rules().flow) }.unwrap_err(), EINVAL);
}

/// pyverbs says the header's size and perftest none, which the stock library never looks at.
#[test]
fn specs_beyond_the_size_are_not_read() {
    for by in [-40, -41, -56] {
        let request = Block::new().spec(ethernet_spec()).read_resized(by).unwrap();
        assert_eq!(
            request.matcher,
            Block::new().spec(ethernet_spec()).read().unwrap().matcher,
            "off by {by}"
        );
        for size in [0, 1, 7, 39, 257, u16::MAX] {
            let spec = ibv_flow_spec_eth { size, ..ethernet_spec() };
            let refused = Block::new().spec(spec).read_resized(by).unwrap_err();
            assert_eq!(refused, EINVAL, "a size of {size}, off by {by}");
        }
    }
}

#[test]
fn there_are_at_most_ten_specs() {
    let block = |count| (0..count).fold(Block::new(), |block, _| block.spec(tag_spec(1)));
    assert_eq!(refused(block(11)), EINVAL);
    assert_eq!(refused(block(2)), EINVAL, "and one action of a kind");
    assert_eq!(refused(Block::new().spec(drop_spec()).spec(drop_spec())), EINVAL);
}

/// `ibv_create_flow(3)`: filters may come "un-ordered", each "well defined".
#[test]
fn layers_come_once_in_any_order() {
    let udp = || port_spec(IBV_FLOW_SPEC_UDP, 53);
    let ordered = Block::new().spec(ethernet_spec()).spec(ipv4_spec(17)).spec(udp()).read().unwrap();
    let unordered = Block::new().spec(udp()).spec(ipv4_spec(17)).spec(ethernet_spec()).read().unwrap();
    assert_eq!(ordered.matcher, unordered.matcher);
    assert!(Block::new().spec(udp()).read().is_ok());
    assert_eq!(refused(Block::new().spec(ethernet_spec()).spec(ethernet_spec())), EINVAL);
    assert_eq!(refused(Block::new().spec(ipv4_spec(17)).spec(ipv6_spec())), EINVAL);
    assert_eq!(refused(Block::new().spec(udp()).spec(port_spec(IBV_FLOW_SPEC_TCP, 1))), EINVAL);
}

#[test]
fn a_transport_must_agree_with_the_protocol() {
    let block = |protocol, kind| Block::new().spec(ipv4_spec(protocol)).spec(port_spec(kind, 53));
    assert!(block(6, IBV_FLOW_SPEC_TCP).read().is_ok());
    assert_eq!(refused(block(6, IBV_FLOW_SPEC_UDP)), EINVAL);
    assert_eq!(refused(block(17, IBV_FLOW_SPEC_TCP)), EINVAL);
}

/// The numbers are those of `enum ib_ipv4_flags`, in which "more fragments" is 4 and not 1.
#[test]
fn ipv4_flags_are_those_of_the_kernel() {
    let block = |value: u8, mask: u8| {
        let mut spec = ipv4_spec(17);
        (spec.val.flags, spec.mask.flags) = (value, mask);
        Block::new().spec(spec)
    };
    let frame = |flags: u8| {
        let frame = packet::build::FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        MatchKey::of(&FlowKey::of(&frame.udp(1, 2).ip_flags(flags).build()))
    };
    for (value, mask, matching) in [
        (4, 4, vec![1, 3]),
        (0, 4, vec![0, 2]),
        (2, 2, vec![2, 3]),
        (4, 6, vec![1]),
        (6, 6, vec![3]),
        (6, 0, vec![0, 1, 2, 3]),
    ] {
        let matcher = block(value, mask).read().unwrap().matcher;
        let found: Vec<u8> = (0..4).filter(|flags| matcher.matches(&frame(*flags))).collect();
        assert_eq!(found, matching, "value {value}, mask {mask}");
    }
    for mask in [1, 7, 8, 0xff] {
        assert_eq!(refused(block(0, mask)), EOPNOTSUPP, "mask {mask:#x}");
    }
}

#[test]
fn flow_labels_have_twenty_bits() {
    let block = |value: u32, mask: u32| {
        let mut spec = ipv6_spec();
        spec.val = ibv_flow_ipv6_filter { flow_label: value.to_be(), ..Default::default() };
        spec.mask = ibv_flow_ipv6_filter { flow_label: mask.to_be(), ..Default::default() };
        Block::new().spec(spec)
    };
    assert!(block(0xf_ffff, 0xf_ffff).read().is_ok());
    assert_eq!(refused(block(1 << 20, 0xf_ffff)), EINVAL);
    assert_eq!(refused(block(0, 1 << 20)), EINVAL);
}

#[test]
fn kinds_and_flags_are_known_or_refused() {
    let with = |kind, flags| {
        Block::new().head(|head| {
            head.type_ = kind;
            head.flags = flags;
        })
    };
    assert!(with(IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_FLAGS_DONT_TRAP).read().unwrap().dont_trap);
    assert!(with(IBV_FLOW_ATTR_NORMAL, 0).spec(drop_spec()).read().unwrap().drop);
    let both = with(IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_FLAGS_DONT_TRAP).spec(drop_spec());
    assert_eq!(refused(both), EINVAL, "a flow that drops what it lets go on");
    for kind in [IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_SNIFFER] {
        assert!(with(kind, 0).read().is_ok());
        assert_eq!(refused(with(kind, IBV_FLOW_ATTR_FLAGS_EGRESS)), EINVAL);
        assert_eq!(refused(with(kind, IBV_FLOW_ATTR_FLAGS_DONT_TRAP)), EINVAL);
        assert_eq!(refused(with(kind, 0).spec(ethernet_spec())), EINVAL, "hardware would ignore the match");
        assert!(with(kind, 0).spec(tag_spec(1)).read().is_ok());
    }
    assert_eq!(refused(with(4, 0)), EINVAL);
    assert_eq!(refused(with(IBV_FLOW_ATTR_NORMAL, 1)), EINVAL);
    assert_eq!(refused(with(IBV_FLOW_ATTR_NORMAL, 8)), EINVAL);
    assert!(with(IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_FLAGS_EGRESS).read().unwrap().egress);
    assert_eq!(refused(with(IBV_FLOW_ATTR_SNIFFER, 0).spec(drop_spec())), EINVAL);
    assert_eq!(refused(Block::new().head(|head| head.comp_mask = 1)), EINVAL);
}

#[test]
fn unknown_specs_are_refused() {
    for type_ in [0, 0x21, 0x33, 0x42, 0x52, 0x61, 0x1004, !IBV_FLOW_SPEC_INNER, IBV_FLOW_SPEC_INNER] {
        let unknown = ibv_flow_spec_eth { type_, ..ethernet_spec() };
        assert_eq!(refused(Block::new().spec(unknown)), EINVAL, "type {type_:#x}");
    }
    let handle = ibv_flow_spec_action_handle {
        type_: IBV_FLOW_SPEC_ACTION_HANDLE,
        size: size_of::<ibv_flow_spec_action_handle>() as u16,
        action: std::ptr::null(),
    };
    assert_eq!(refused(Block::new().spec(handle)), EOPNOTSUPP, "ESP offload is gone");
}

/// Every spec with every size but its own; the last three can be longer, with zeros that nobody knows.
#[test]
fn specs_of_a_wrong_size_are_refused() {
    for (type_, bytes) in [
        (IBV_FLOW_SPEC_ETH, 40),
        (ibverbs_sys::IBV_FLOW_SPEC_IPV4, 24),
        (IBV_FLOW_SPEC_TCP, 16),
        (IBV_FLOW_SPEC_UDP, 16),
        (IBV_FLOW_SPEC_ESP, 24),
        (IBV_FLOW_SPEC_GRE, 24),
        (IBV_FLOW_SPEC_MPLS, 16),
        (IBV_FLOW_SPEC_ACTION_TAG, 12),
        (IBV_FLOW_SPEC_ACTION_DROP, 8),
        (IBV_FLOW_SPEC_ACTION_COUNT, 16),
        (IBV_FLOW_SPEC_IPV4_EXT, 32),
        (IBV_FLOW_SPEC_IPV6, 88),
        (IBV_FLOW_SPEC_VXLAN_TUNNEL, 16),
    ] {
        let of = |size: usize| {
            let mut block = Block::new();
            block.specs = vec![0; size.max(8)];
            block.specs[..4].copy_from_slice(&type_.to_ne_bytes());
            block.specs[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
            block.specs.truncate(size);
            block.head.num_of_specs = 1;
            block.read()
        };
        let grows = [IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_VXLAN_TUNNEL].contains(&type_);
        assert!(of(bytes).is_ok(), "type {type_:#x}");
        // Size 0 is excluded: the bytes behind the spec would be read as the block.
        for size in 1..bytes + 24 {
            // The filter of IPv6 ends in a byte of padding, which need not be there.
            let fits =
                size == bytes || grows && size > bytes || type_ == IBV_FLOW_SPEC_IPV6 && size >= bytes - 2;
            assert_eq!(of(size).is_ok(), fits, "type {type_:#x}, {size} bytes");
        }
    }
}

#[test]
fn unknown_bytes_of_a_longer_spec_must_have_a_zero_mask() {
    let long = |at: usize| {
        let mut block = Block::new();
        block.specs = vec![0; 8 + 2 * 20];
        block.specs[..4].copy_from_slice(&IBV_FLOW_SPEC_IPV4_EXT.to_ne_bytes());
        block.specs[4..6].copy_from_slice(&48u16.to_ne_bytes());
        // A destination and its mask, each in its half.
        block.specs[12..16].copy_from_slice(&[10, 0, 0, 2]);
        block.specs[32..36].copy_from_slice(&[255; 4]);
        block.specs[at] = 0xff;
        block.head.num_of_specs = 1;
        block.read()
    };
    let frame = |last: u8| {
        let frame = packet::build::FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, last].into());
        MatchKey::of(&FlowKey::of(&frame.udp(1, 2).build()))
    };
    let request = long(27).unwrap();
    assert!(request.matcher.matches(&frame(2)) && !request.matcher.matches(&frame(3)));
    assert_eq!(long(47).unwrap_err(), EOPNOTSUPP, "a mask");
}

#[test]
fn counters_and_tags_are_handed_on() {
    let size = size_of::<ibv_flow_spec_counter_action>() as u16;
    let counters = std::ptr::without_provenance_mut(8);
    let spec = || ibv_flow_spec_counter_action { type_: IBV_FLOW_SPEC_ACTION_COUNT, size, counters };
    let request = Block::new().spec(spec()).spec(tag_spec(u32::MAX)).read().unwrap();
    assert_eq!((request.counters, request.tag), (Some(counters), Some(u32::MAX)));
    assert_eq!(refused(Block::new().spec(spec()).spec(spec())), EINVAL, "one COUNT per flow");
}

proptest::proptest! {
    /// Whatever bytes come, reading them answers; with the size right there is nothing else to go by.
    #[test]
    fn arbitrary_blocks_are_answered(
        kind in 0u32..6,
        count in 0u8..12,
        types in proptest::collection::vec((0usize..20, 0u16..100), 0..12),
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..400),
    ) {
        const TYPES: [u32; 20] = [
            0x20, 0x30, 0x31, 0x32, 0x34, 0x40, 0x41, 0x50, 0x51, 0x60, 0x120, 0x130, 0x131, 0x132, 0x140, 0x141,
            0x160, 0x1000, 0x1001, 0x1003,
        ];
        let mut block = Block::new().head(|head| {
            head.type_ = kind;
            head.num_of_specs = count;
        });
        block.specs = bytes;
        let mut at = 0;
        for (which, size) in types {
            if let Some(place) = block.specs.get_mut(at..at + 6) {
                place[..4].copy_from_slice(&TYPES[which].to_ne_bytes());
                place[4..].copy_from_slice(&size.to_ne_bytes());
            }
            at += usize::from(size);
        }
        for personality in Personality::ALL {
            let block = Block { head: block.head, specs: block.specs.clone(), personality };
            let _ = block.read();
        }
    }
}
