//! Flows on tunnel headers and on the packets inside, through the verbs API on a real soft NIC.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::verbs_support::*;
use packet::EtherType;
use packet::build::FrameBuilder;
use verbs::{
    ActionSpec, EspMatch, FlowAttr, FlowHandle, FlowKind, FlowSpec, FlowTag, GreMatch, Ipv4Match, MplsMatch,
    PortMatch, VxlanMatch,
};

const ANY: Ipv4Match = Ipv4Match { src: 0, dst: 0 };

fn flow(specs: impl IntoIterator<Item = FlowSpec>, tag: u32) -> FlowAttr {
    let attr = FlowAttr::new(FlowKind::Normal, PORT);
    specs.into_iter().fold(attr, FlowAttr::spec).action(ActionSpec::Tag(FlowTag(tag)))
}

fn ipv4() -> FlowSpec {
    FlowSpec::Ipv4 { value: ANY, mask: ANY }
}

fn outer() -> FrameBuilder {
    FrameBuilder::new().ipv4(v4(1), v4(2))
}

#[test]
fn each_tunnel_header_is_matched_by_its_own_spec() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 32);
    let target = single(&rig.domain(), &receiver.queue);
    let udp_any = PortMatch::default();
    let vxlan =
        |vni| FlowSpec::VxlanTunnel { value: VxlanMatch { vni }, mask: VxlanMatch { vni: 0x00ff_ffff } };
    let key = GreMatch { key: u32::MAX, ..GreMatch::default() };
    let label = MplsMatch { label: 0xffff_f000 };
    let spi = EspMatch { spi: u32::MAX, seq: 0 };
    let flows = [
        flow([ipv4(), FlowSpec::Udp { value: udp_any, mask: udp_any }, vxlan(77)], 1),
        flow([ipv4(), FlowSpec::Gre { value: GreMatch { key: 5, ..key }, mask: key }], 2),
        flow([FlowSpec::Mpls { value: MplsMatch { label: 9 << 12 }, mask: label }], 3),
        flow([ipv4(), FlowSpec::Esp { value: EspMatch { spi: 4, seq: 0 }, mask: spi }], 4),
    ];
    let _flows: Vec<_> = flows.iter().map(|attr| FlowHandle::create(&target, attr).unwrap()).collect();
    let inner = udp(1, 53);
    let label_9 = packet::build::mpls_label(9, 0);
    rig.deliver([
        outer().vxlan(77, &inner).build(),
        outer().vxlan(78, &inner).build(),
        outer().gre(EtherType(0x6558), Some(5), &inner).build(),
        outer().gre(EtherType(0x6558), None, &inner).build(),
        FrameBuilder::new().mpls(&[label_9], &inner[14..]).build(),
        outer().esp(4, 1, &[0; 40]).build(),
        outer().esp(5, 1, &[0; 40]).build(),
    ]);
    let tags: Vec<_> = receiver.drain().into_iter().map(|packet| packet.tag).collect();
    assert_eq!(tags, [1, 2, 3, 4]);
}

#[test]
fn inner_specs_are_about_the_packet_inside() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 32);
    let target = single(&rig.domain(), &receiver.queue);
    let none = PortMatch::default();
    let port = |dst_port| PortMatch { src_port: 0, dst_port };
    let inner = FlowSpec::Udp { value: port(53), mask: port(u16::MAX) };
    let vni = VxlanMatch::default();
    let attr = flow([ipv4(), FlowSpec::Udp { value: none, mask: none }], 6)
        .spec(FlowSpec::VxlanTunnel { value: vni, mask: vni })
        .inner(ipv4())
        .inner(inner);
    let _flow = FlowHandle::create(&target, &attr).unwrap();
    rig.deliver([outer().vxlan(1, &udp(1, 53)).build(), outer().vxlan(1, &udp(1, 54)).build(), udp(1, 53)]);
    let packets = receiver.drain();
    assert_eq!(packets.iter().map(|packet| packet.tag).collect::<Vec<_>>(), [6]);
}

#[test]
fn nonsense_is_refused() {
    let rig = Rig::new();
    let receiver = Receiver::new(&rig.domain(), 4);
    let target = single(&rig.domain(), &receiver.queue);
    let vni = VxlanMatch { vni: 1 << 24 };
    let wrong = [
        flow([ipv4(), FlowSpec::VxlanTunnel { value: vni, mask: vni }], 1),
        flow([ipv4()], 1).inner(FlowSpec::Gre { value: GreMatch::default(), mask: GreMatch::default() }),
        FlowAttr::new(FlowKind::AllDefault, PORT).egress(true),
        FlowAttr::new(FlowKind::AllDefault, PORT).dont_trap(true),
    ];
    for (index, attr) in wrong.iter().enumerate() {
        let error = FlowHandle::create(&target, attr).err().unwrap_or_else(|| panic!("{index} was taken"));
        assert_eq!(error.errno(), Some(libc::EINVAL), "{index}: {error}");
    }
}
