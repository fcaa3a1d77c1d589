//! Flows through the verbs API on a real soft NIC: spreading, precedence, matching, counting, copying and
//! dropping.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::verbs_support::*;
use packet::build::FrameBuilder;
use packet::{FlowKey, RssKey, Toeplitz};
use verbs::{
    ActionSpec, CounterValues, Counters, FlowAttr, FlowHandle, FlowKind, FlowSpec, FlowTag, FlowTarget,
    HashConfig, HashFields, RssQueuePair,
};

#[test]
fn rss_sends_each_packet_to_the_queue_of_its_hash() {
    const FIELDS: HashFields = HashFields::SRC_IPV4
        .union(HashFields::DST_IPV4)
        .union(HashFields::SRC_PORT_UDP)
        .union(HashFields::DST_PORT_UDP);
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receivers: Vec<_> = (0..3).map(|_| Receiver::new(&domain, 128)).collect();
    // Eight entries over three queues, unevenly.
    let entries = [0, 1, 2, 0, 1, 0, 2, 2];
    let queues: Vec<_> = entries.iter().map(|&entry: &usize| &receivers[entry].queue).collect();
    let pair = RssQueuePair::new(&domain, &table(&queues), &HashConfig { key: KEY, fields: FIELDS }).unwrap();
    let _flow = FlowHandle::create(&FlowTarget::Rss(pair), &ipv4_flow()).unwrap();

    let frames: Vec<_> = (0..120).map(|i| udp(1024 + i * 7, 53)).collect();
    let toeplitz = Toeplitz::new(&RssKey(KEY));
    let fields = packet::HashFields::from_bits_truncate(FIELDS.bits() as u32);
    let mut expected = vec![Vec::new(); 3];
    for frame in &frames {
        let hash = toeplitz.hash_key(&FlowKey::of(frame), fields);
        expected[entries[hash as usize % entries.len()]].push(frame.clone());
    }
    rig.deliver(frames);
    for (receiver, expected) in receivers.iter_mut().zip(expected) {
        assert!(!expected.is_empty(), "the packets reach every queue");
        let found: Vec<_> = receiver.drain().into_iter().map(|packet| packet.bytes).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn precedence_is_by_priority_and_a_removed_flow_matches_nothing() {
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, 16);
    let target = single(&domain, &receiver.queue);
    let low =
        FlowHandle::create(&target, &ipv4_flow().priority(5).action(ActionSpec::Tag(FlowTag(50)))).unwrap();
    let high = FlowHandle::create(&target, &udp_flow(53, 10).priority(1)).unwrap();
    let rest = FlowAttr::new(FlowKind::AllDefault, PORT).action(ActionSpec::Tag(FlowTag(99)));
    let _rest = FlowHandle::create(&target, &rest).unwrap();
    let arp = FrameBuilder::new().arp_request(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).build();
    let tags = |receiver: &mut Receiver| {
        rig.deliver([udp(1, 53), udp(1, 80), arp.clone()]);
        receiver.drain().into_iter().map(|packet| packet.tag).collect::<Vec<_>>()
    };
    assert_eq!(tags(&mut receiver), [10, 50, 99]);
    drop(high);
    assert_eq!(tags(&mut receiver), [50, 50, 99]);
    assert!(low.destroy().is_ok());
    assert_eq!(tags(&mut receiver), [99, 99, 99]);
}

#[test]
fn every_kind_of_match_reaches_the_device_in_the_right_byte_order() {
    use verbs::{EthernetMatch, Ipv4ExtMatch, Ipv4Match, Ipv6Match, PortMatch};
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, 16);
    let target = single(&domain, &receiver.queue);
    let normal = || FlowAttr::new(FlowKind::Normal, PORT);
    let (v6a, v6b) = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::LOCALHOST);
    let tagged =
        FrameBuilder::new().vlan(packet::EtherType::VLAN, 0x6123).ipv4(v4(1), v4(2)).udp(1, 2).build();
    let tcp6 = FrameBuilder::new().ipv6(v6a, v6b).flow_label(0xabcde).tcp(443, 0x1234, 2).build();
    let tos = FrameBuilder::new().ipv4(v4(1), v4(9)).tos(0xb8).udp(5, 6).build();
    let plain = FrameBuilder::new().ipv4(v4(7), v4(8)).tcp(22, 23, 0).build();

    let vlan = EthernetMatch { vlan_tag: 0x123, ether_type: 0x0800, ..EthernetMatch::default() };
    let vlan_mask = EthernetMatch { vlan_tag: 0xfff, ether_type: 0xffff, ..EthernetMatch::default() };
    let v6 = Ipv6Match { src: v6a.octets(), flow_label: 0xabcde, next_hdr: 6, ..Ipv6Match::default() };
    let v6_mask = Ipv6Match { src: [255; 16], flow_label: 0xfffff, next_hdr: 255, ..Ipv6Match::default() };
    let ext = Ipv4ExtMatch { dst: v4(9).to_bits(), tos: 0xb8, proto: 17, ..Ipv4ExtMatch::default() };
    let ext_mask = Ipv4ExtMatch { dst: !0, tos: 0xfc, proto: 0xff, ..Ipv4ExtMatch::default() };
    let pair = Ipv4Match { src: v4(7).to_bits(), dst: v4(8).to_bits() };
    let ports = PortMatch { src_port: 443, dst_port: 0x1234 };
    let all = PortMatch { src_port: !0, dst_port: !0 };
    let flows = [
        normal().spec(FlowSpec::Ethernet { value: vlan, mask: vlan_mask }),
        normal()
            .spec(FlowSpec::Ipv6 { value: v6, mask: v6_mask })
            .spec(FlowSpec::Tcp { value: ports, mask: all }),
        normal().spec(FlowSpec::Ipv4Ext { value: ext, mask: ext_mask }),
        normal().spec(FlowSpec::Ipv4 { value: pair, mask: Ipv4Match { src: !0, dst: !0 } }),
    ];
    let _flows: Vec<_> = (1..)
        .zip(flows)
        .map(|(tag, attr)| FlowHandle::create(&target, &attr.action(ActionSpec::Tag(FlowTag(tag)))).unwrap())
        .collect();
    rig.deliver([tagged, tcp6, tos, plain, udp(1, 2)]);
    let tags: Vec<_> = receiver.drain().into_iter().map(|packet| packet.tag).collect();
    assert_eq!(tags, [1, 2, 3, 4]);
    assert_eq!(rig.stats().unmatched, 1);
}

#[test]
fn counters_sum_the_flows_that_share_them_and_outlive_them() {
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, 16);
    let target = single(&domain, &receiver.queue);
    let counters = Counters::new(&rig.context).unwrap();
    assert_eq!(counters.read().unwrap(), CounterValues::default());
    let counting = |attr: FlowAttr| attr.action(ActionSpec::Count(Arc::clone(&counters)));
    let flows =
        [udp_flow(53, 1), udp_flow(54, 2)].map(|attr| FlowHandle::create(&target, &counting(attr)).unwrap());
    rig.deliver([udp(1, 53), udp(1, 54), udp(1, 55)]);
    assert_eq!(receiver.drain().len(), 2);
    let bytes = 2 * udp(1, 53).len() as u64;
    assert_eq!(counters.read().unwrap(), CounterValues { packets: 2, bytes });
    drop(flows);
    rig.deliver([udp(1, 53)]);
    assert_eq!(counters.read().unwrap(), CounterValues { packets: 2, bytes });
}

#[test]
fn a_drop_flow_drops_and_counts() {
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, 16);
    let target = single(&domain, &receiver.queue);
    let _all = FlowHandle::create(&target, &ipv4_flow().priority(2)).unwrap();
    let counters = Counters::new(&rig.context).unwrap();
    let attr = udp_flow(53, 1).action(ActionSpec::Drop).action(ActionSpec::Count(Arc::clone(&counters)));
    let dropping = FlowHandle::create(&target, &attr.priority(1)).unwrap();
    rig.deliver([udp(1, 53), udp(1, 54)]);
    assert_eq!(receiver.drain().len(), 1);
    assert_eq!(rig.stats().flow_dropped, 1);
    assert_eq!(counters.read().unwrap().packets, 1);
    drop(dropping);
    rig.deliver([udp(1, 53)]);
    assert_eq!(receiver.drain().len(), 1);
}

#[test]
fn a_refused_flow_names_its_place_and_changes_nothing() {
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, 16);
    let target = single(&domain, &receiver.queue);
    let bad_port = FlowAttr::new(FlowKind::Normal, verbs::PortNumber(7)).priority(4);
    let error = FlowHandle::create(&target, &bad_port).err().expect("no such port");
    assert!(error.to_string().contains("port 7 of softnic0 at priority 4"), "{error}");
    let trap = FlowAttr::new(FlowKind::AllDefault, PORT).dont_trap(true);
    let error = FlowHandle::create(&target, &trap).err().expect("not with a default flow");
    assert_eq!(error.errno(), Some(libc::EINVAL));
    rig.deliver([udp(1, 53)]);
    assert!(receiver.drain().is_empty());
    assert_eq!(rig.stats().unmatched, 1);
}

#[test]
fn a_sniffer_has_a_copy_of_everything_whatever_its_fate() {
    let rig = Rig::new();
    let domain = rig.domain();
    let [mut receiver, mut sniffer] = [0, 1].map(|_| Receiver::new(&domain, 16));
    let target = single(&domain, &receiver.queue);
    let _taken = FlowHandle::create(&target, &udp_flow(53, 1)).unwrap();
    let _dropped = FlowHandle::create(&target, &udp_flow(54, 2).action(ActionSpec::Drop)).unwrap();
    let copies =
        FlowHandle::create(&single(&domain, &sniffer.queue), &FlowAttr::new(FlowKind::Sniffer, PORT))
            .unwrap();
    let all = [udp(1, 53), udp(1, 54), udp(1, 55)];
    rig.deliver(all.clone());
    let bytes = |packets: Vec<Received>| packets.into_iter().map(|packet| packet.bytes).collect::<Vec<_>>();
    assert_eq!(bytes(sniffer.drain()), all);
    assert_eq!(bytes(receiver.drain()), all[..1]);
    drop(copies);
    rig.deliver(all.clone());
    assert!(sniffer.drain().is_empty());
    assert_eq!(bytes(receiver.drain()), all[..1]);
}

#[test]
fn a_flow_that_does_not_trap_lets_packets_go_on() {
    let rig = Rig::new();
    let domain = rig.domain();
    let [mut first, mut second] = [0, 1].map(|_| Receiver::new(&domain, 16));
    let (to_first, to_second) = (single(&domain, &first.queue), single(&domain, &second.queue));
    let passing = FlowHandle::create(&to_first, &udp_flow(53, 1).dont_trap(true)).unwrap();
    let _rest =
        FlowHandle::create(&to_second, &ipv4_flow().priority(1).action(ActionSpec::Tag(FlowTag(2)))).unwrap();
    let tags = |receiver: &mut Receiver| receiver.drain().iter().map(|packet| packet.tag).collect::<Vec<_>>();
    rig.deliver([udp(1, 53), udp(1, 54)]);
    assert_eq!((tags(&mut first), tags(&mut second)), (vec![1], vec![2, 2]));
    drop(passing);
    let _trapping = FlowHandle::create(&to_first, &udp_flow(53, 1)).unwrap();
    rig.deliver([udp(1, 53), udp(1, 54)]);
    assert_eq!((tags(&mut first), tags(&mut second)), (vec![1], vec![2]));
}

/// The engine looks at what is posted to a queue as rarely as it can; more copies than frames must not outrun
/// that.
#[test]
fn copies_for_one_queue_find_every_buffer_that_is_posted() {
    const POSTED: u32 = 256;
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, POSTED);
    let (copied, taken) = (single(&domain, &receiver.queue), single(&domain, &receiver.queue));
    let _copies = FlowHandle::create(&copied, &udp_flow(53, 1).dont_trap(true)).unwrap();
    let _takes = FlowHandle::create(&taken, &udp_flow(53, 2)).unwrap();
    // Each frame takes two buffers. What is left of them after the first round is more than a burst has
    // frames, and fewer than the next one has copies.
    for frames in [80, 64] {
        rig.deliver((0..frames).map(|port| udp(port, 53)));
        assert_eq!(receiver.drain().len(), 2 * usize::from(frames));
    }
    let stats = rig.stats();
    assert_eq!((stats.delivered, stats.replicated, stats.copies_lost), (144, 144, 0));
}
