//! Flows on devices with a personality, through the verbs API: what is refused with which errno, and what
//! comes first.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use crate::verbs_support::*;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use softnic::Personality;
use verbs::{
    ActionSpec, CompletionFields, CompletionQueue, Counters, EthernetMatch, FlowAttr, FlowHandle, FlowKind,
    FlowSpec, FlowTag, FlowTarget, HashConfig, HashFields, PortMatch, RssQueuePair,
};

const MLX5: Personality = Personality::Mlx5;

fn errno(target: &FlowTarget, attr: &FlowAttr) -> Option<i32> {
    FlowHandle::create(target, attr).err().and_then(|error| error.errno())
}

/// A receiver that asks nothing of completions, which mlx4 could not answer.
fn plain_receiver(rig: &Rig) -> Receiver {
    let cq = CompletionQueue::builder(&rig.context, 64).fields(CompletionFields::BYTE_LEN).build().unwrap();
    Receiver::with_cq(&rig.domain(), cq, 4)
}

fn tag(tag: u32) -> ActionSpec {
    ActionSpec::Tag(FlowTag(tag))
}

fn to_mac(mac: [u8; 6]) -> FlowAttr {
    let value = EthernetMatch { dst_mac: mac, ..EthernetMatch::default() };
    let mask = EthernetMatch { dst_mac: [0xff; 6], ..EthernetMatch::default() };
    FlowAttr::new(FlowKind::Normal, PORT).spec(FlowSpec::Ethernet { value, mask })
}

fn tags(receiver: &mut Receiver) -> Vec<u32> {
    receiver.drain().into_iter().map(|packet| packet.tag).collect()
}

#[test]
fn on_mlx5_equal_matches_share_one_tag_and_each_queue_pair_gets_a_copy() {
    let rig = Rig::with_personality(MLX5);
    let [mut first, mut second] = [0, 1].map(|_| Receiver::new(&rig.domain(), 16));
    let (to_first, to_second) = (single(&rig.domain(), &first.queue), single(&rig.domain(), &second.queue));
    let _tagged = FlowHandle::create(&to_first, &udp_flow(53, 7)).unwrap();
    assert_eq!(errno(&to_second, &udp_flow(53, 8)), Some(libc::EEXIST), "another tag");
    assert_eq!(
        errno(&to_second, &udp_flow(53, 7).action(ActionSpec::Drop)),
        Some(libc::EEXIST),
        "another fate"
    );
    let _same = FlowHandle::create(&to_second, &udp_flow(53, 7)).unwrap();
    let _elsewhere = FlowHandle::create(&to_second, &udp_flow(53, 8).priority(1)).unwrap();
    rig.deliver([udp(1, 53)]);
    assert_eq!((tags(&mut first), tags(&mut second)), (vec![7], vec![7]));
    assert_eq!(rig.stats().replicated, 1);
}

#[test]
fn on_mlx5_multicast_comes_after_every_priority_but_before_defaults() {
    let rig = Rig::with_personality(MLX5);
    let mut receiver = Receiver::new(&rig.domain(), 16);
    let target = single(&rig.domain(), &receiver.queue);
    let group = [1, 0, 0x5e, 0, 0, 9];
    let mut frame = udp(1, 53);
    frame[..6].copy_from_slice(&group);
    let _default =
        FlowHandle::create(&target, &FlowAttr::new(FlowKind::AllDefault, PORT).action(tag(1))).unwrap();
    let deliver = |receiver: &mut Receiver| {
        rig.deliver([frame.clone()]);
        tags(receiver)
    };
    assert_eq!(deliver(&mut receiver), [0], "the tag of a default is forgotten");
    let _multicast = FlowHandle::create(&target, &to_mac(group).priority(0).action(tag(2))).unwrap();
    assert_eq!(deliver(&mut receiver), [2]);
    let _late = FlowHandle::create(&target, &udp_flow(53, 3).priority(15)).unwrap();
    assert_eq!(deliver(&mut receiver), [3], "priority 15 comes before a multicast flow of priority 0");
}

#[test]
fn errnos_are_those_of_the_devices() {
    let cases = |personality| {
        let rig = Rig::with_personality(personality);
        let receiver = plain_receiver(&rig);
        let target = single(&rig.domain(), &receiver.queue);
        let unbound = Counters::new(&rig.context).map(|counters| ActionSpec::Count(Arc::clone(&counters)));
        let default = FlowAttr::new(FlowKind::AllDefault, PORT);
        [
            errno(&target, &ipv4_flow().priority(16)),
            errno(&target, &ipv4_flow().priority(0x1000)),
            errno(&target, &to_mac([2; 6]).action(tag(1 << 24))),
            errno(&target, &to_mac([2; 6]).action(ActionSpec::Drop)),
            unbound.map_or(Some(libc::EOPNOTSUPP), |count| errno(&target, &to_mac([2; 6]).action(count))),
            errno(&target, &to_mac([2; 6]).egress(true)),
            errno(&target, &default.dont_trap(true)),
        ]
    };
    let (einval, enomem, none) = (Some(libc::EINVAL), Some(libc::ENOMEM), None);
    assert_eq!(cases(Personality::Ideal), [none, none, none, none, none, none, einval]);
    assert_eq!(cases(MLX5), [enomem, enomem, einval, none, none, none, einval]);
    let [priority, later, tag, drop, _, egress, trap] = cases(Personality::Mlx4);
    assert_eq!([priority, later, tag, drop, trap], [none, einval, einval, einval, einval]);
    assert_eq!(egress, Some(libc::EOPNOTSUPP));
}

#[test]
fn counters_are_made_and_read_where_the_device_lets_them() {
    let rig = Rig::with_personality(MLX5);
    let receiver = Receiver::new(&rig.domain(), 4);
    let target = single(&rig.domain(), &receiver.queue);
    let counters = Counters::new(&rig.context).unwrap();
    assert_eq!(counters.read().unwrap_err().errno(), Some(libc::EINVAL), "no flow is bound");
    let flow =
        FlowHandle::create(&target, &ipv4_flow().action(ActionSpec::Count(Arc::clone(&counters)))).unwrap();
    rig.deliver([udp(1, 2)]);
    assert_eq!(counters.read().unwrap().packets, 1);
    drop(flow);
    assert!(counters.read().is_err());
    let error = Counters::new(&Rig::with_personality(Personality::Mlx4).context).expect_err("none there");
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
}

#[test]
fn a_thread_without_the_capability_cannot_steer_what_a_real_device_receives() {
    let all = capabilities(None).unwrap();
    if !all.effective.contains(CapabilitySet::NET_RAW) {
        use std::io::Write;
        assert!(std::env::var_os("CI").is_none(), "CI has to have CAP_NET_RAW");
        writeln!(std::io::stderr(), "NOT RUN: the capability CAP_NET_RAW is not there to be dropped")
            .unwrap();
        return;
    }
    let results = [Personality::Ideal, MLX5, Personality::Mlx4].map(|personality| {
        let rig = Rig::with_personality(personality);
        let receiver = plain_receiver(&rig);
        let target = single(&rig.domain(), &receiver.queue);
        let mut without = all;
        without.effective.remove(CapabilitySet::NET_RAW);
        set_capabilities(None, without).unwrap();
        let answer = errno(&target, &to_mac([2; 6]));
        set_capabilities(None, all).unwrap();
        assert_eq!(errno(&target, &to_mac([2; 6])), None);
        answer
    });
    assert_eq!(results, [None, Some(libc::EPERM), Some(libc::EPERM)]);
}

#[test]
fn a_table_of_mlx5_has_six_long_runs_and_the_rest_one_by_one() {
    let rig = Rig::with_personality(MLX5);
    let receiver = Receiver::new(&rig.domain(), 4);
    let target = single(&rig.domain(), &receiver.queue);
    // Seven masks: all but the last have a run of their own.
    let flow = |mask: u16, port: u16| {
        let (value, mask) =
            (PortMatch { src_port: 0, dst_port: port }, PortMatch { src_port: mask, dst_port: !0 });
        ipv4_flow().spec(FlowSpec::Udp { value, mask })
    };
    let mut flows: Vec<_> =
        (1..=6).map(|mask| FlowHandle::create(&target, &flow(1 << mask, 1)).unwrap()).collect();
    const SINGLES: u16 = (65_536 - 6 * 9_362) as u16;
    for port in 0..SINGLES {
        flows.push(FlowHandle::create(&target, &flow(1 << 7, port)).unwrap());
    }
    assert_eq!(errno(&target, &flow(1 << 7, SINGLES)), Some(libc::ENOSPC), "no entry is left for this mask");
    flows.push(FlowHandle::create(&target, &flow(1 << 1, 2)).unwrap());
    flows.push(FlowHandle::create(&target, &flow(1 << 7, SINGLES).priority(1)).unwrap());
    drop(flows.remove(0));
    flows.pop();
    flows.pop();
    flows.push(FlowHandle::create(&target, &flow(1 << 7, SINGLES)).expect("the run that was given back"));
}

#[test]
fn rss_reaches_into_tunnels_on_the_ideal_device_only() {
    let fields = HashFields::SRC_IPV4 | HashFields::DST_IPV4 | HashFields::from_bits_retain(1 << 31);
    let rig = Rig::new();
    let mut receivers: Vec<_> = (0..4).map(|_| Receiver::new(&rig.domain(), 64)).collect();
    let queues: Vec<_> = receivers.iter().map(|receiver| &receiver.queue).collect();
    let config = HashConfig { key: KEY, fields };
    let pair = RssQueuePair::new(&rig.domain(), &table(&queues), &config).unwrap();
    let _flow = FlowHandle::create(&FlowTarget::Rss(pair), &ipv4_flow()).unwrap();
    let toeplitz = packet::Toeplitz::new(&packet::RssKey(KEY));
    let mut expected = [0; 4];
    for last in 0..40 {
        let inside = packet::build::FrameBuilder::new().ipv4(v4(last), v4(200)).udp(1, 2).build();
        let outer = packet::build::FrameBuilder::new().ipv4(v4(201), v4(202)).vxlan(5, &inside).build();
        let hash = toeplitz.hash_key(&packet::FlowKey::of(&inside), packet::HashFields::IPV4);
        expected[hash as usize % 4] += 1;
        rig.deliver([outer]);
    }
    let found: Vec<_> = receivers.iter_mut().map(|receiver| receiver.drain().len()).collect();
    assert_eq!(found, expected);
    assert!(expected.iter().all(|count| *count > 0));

    let rig = Rig::with_personality(MLX5);
    let receivers = [0, 1].map(|_| Receiver::new(&rig.domain(), 4));
    let table = table(&receivers.each_ref().map(|receiver| &receiver.queue));
    let error = RssQueuePair::new(&rig.domain(), &table, &config).err().expect("tunnel offloads");
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
}
