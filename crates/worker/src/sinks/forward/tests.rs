//! The frames that a sink of each configuration sends.

use packet::MacAddr;
use packet::build::FrameBuilder;
use packet::{EtherType, parse};

use super::*;
use crate::sinks::{OtherDevice, Others};

const MTU: usize = 1500;
const FRAME: usize = 2048;

#[allow(clippy::needless_pass_by_value, reason = "made for the call")]
fn rewriter(options: ForwardSink) -> Rewriter {
    Rewriter::new(&options, MTU)
}

fn vlan(change: VlanChange) -> Rewriter {
    rewriter(ForwardSink { vlan: Some(change), ..ForwardSink::default() })
}

/// The packet as the device gathers it, in a frame of `room` bytes.
fn sent_in(rewriter: &Rewriter, packet: &[u8], room: usize) -> Result<Vec<u8>, SinkDrop> {
    let mut frame = packet.to_vec();
    frame.resize(room, 0xee);
    let mut other = frame.clone();
    let pieces = rewriter.prepare(&mut frame, packet.len() as u32);
    if rewriter.is_simple {
        assert_eq!(rewriter.prepare_simply(&mut other, packet.len() as u32), pieces);
        assert_eq!(other, frame);
    }
    Ok(pieces?.ranges().into_iter().flat_map(|piece| frame[piece].to_vec()).collect())
}

fn sent(rewriter: &Rewriter, packet: &[u8]) -> Result<Vec<u8>, SinkDrop> {
    sent_in(rewriter, packet, FRAME)
}

fn builder() -> FrameBuilder {
    let macs = [MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1])];
    FrameBuilder::new().ethernet(macs[0], macs[1]).ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(5, 7)
}

fn tagged(vlan: u16) -> Vec<u8> {
    builder().vlan(EtherType::VLAN, 0xa000 | vlan).build()
}

fn outer_tag(frame: &[u8]) -> u16 {
    assert!(EtherType(u16::from_be_bytes([frame[12], frame[13]])).is_vlan_tag());
    u16::from_be_bytes([frame[14], frame[15]])
}

#[test]
fn without_options_the_packet_is_sent_as_it_is() {
    let plain = rewriter(ForwardSink::default());
    assert_eq!(sent(&plain, &builder().build()), Ok(builder().build()));
    assert_eq!(sent(&plain, &tagged(3)), Ok(tagged(3)));
}

#[test]
fn addresses_are_exchanged_first_and_then_set() {
    let station = MacAddr([2, 0, 0, 0, 0, 9]);
    let options = ForwardSink { swap_macs: true, src_mac: Some(station), ..ForwardSink::default() };
    let frame = sent(&rewriter(options), &builder().build()).expect("it is sent");
    assert_eq!(parse(&frame).key.dst_mac, MacAddr([2, 0, 0, 0, 0, 1]));
    assert_eq!(parse(&frame).key.src_mac, station);
    assert_eq!(frame[12..], builder().build()[12..]);
}

#[test]
fn a_packet_for_several_stations_is_not_answered() {
    let frame = builder().ethernet(MacAddr::BROADCAST, MacAddr([2, 0, 0, 0, 0, 1])).build();
    for options in [
        ForwardSink { swap_macs: true, ..ForwardSink::default() },
        ForwardSink { mode: ForwardMode::Reflect, ..ForwardSink::default() },
    ] {
        assert_eq!(sent(&rewriter(options), &frame), Err(SinkDrop::NotUnicast));
    }
    assert_eq!(sent(&rewriter(ForwardSink::default()), &frame).as_ref(), Ok(&frame), "but it is forwarded");
}

#[test]
fn a_reflected_packet_goes_back_to_its_sender() {
    let options = ForwardSink { mode: ForwardMode::Reflect, ..ForwardSink::default() };
    let frame = sent(&rewriter(options), &tagged(3)).expect("it is sent");
    let key = parse(&frame).key;
    assert_eq!((key.src_port, key.dst_port, outer_tag(&frame)), (7, 5, 0xa003));
    assert_eq!(key.dst_ip, parse(&tagged(3)).key.src_ip);
}

#[test]
fn tags_are_set_pushed_and_popped() {
    let plain = builder().build();
    let pushed = sent(&vlan(VlanChange::Push(7)), &plain).expect("it is sent");
    assert_eq!((outer_tag(&pushed), pushed.len()), (7, plain.len() + 4));
    assert_eq!(sent(&vlan(VlanChange::Pop), &pushed), Ok(plain.clone()));
    assert_eq!(sent(&vlan(VlanChange::Pop), &plain), Ok(plain.clone()), "there is none");
    let set = sent(&vlan(VlanChange::Set(9)), &tagged(3)).expect("it is sent");
    assert_eq!((outer_tag(&set), set.len()), (0xa009, plain.len() + 4));
    assert_eq!(outer_tag(&sent(&vlan(VlanChange::Set(9)), &plain).expect("it is sent")), 9, "it gets one");
    let twice = sent(&vlan(VlanChange::Push(7)), &tagged(3)).expect("it is sent");
    assert_eq!((outer_tag(&twice), &twice[12..14]), (0xa007, &[0x88, 0xa8][..]));
    assert_eq!(sent(&vlan(VlanChange::Pop), &twice), Ok(tagged(3)));
}

#[test]
fn a_frame_without_room_for_the_new_header_is_too_long() {
    let packet = builder().build();
    let push = vlan(VlanChange::Push(7));
    assert_eq!(sent_in(&push, &packet, packet.len() + 15), Err(SinkDrop::TooLong));
    assert!(sent_in(&push, &packet, packet.len() + 16).is_ok());
}

#[test]
fn the_mtu_is_that_of_what_is_behind_the_tags() {
    let plain = rewriter(ForwardSink::default());
    let long = |bytes: usize| builder().frame_bytes(bytes).build();
    let long_tagged = |bytes: usize| builder().vlan(EtherType::VLAN, 3).frame_bytes(bytes).build();
    let push = vlan(VlanChange::Push(7));
    let pop = vlan(VlanChange::Pop);
    for (rewriter, frame, is_sent) in [
        (&plain, long(MTU + 14), true),
        (&plain, long(MTU + 15), false),
        (&plain, long_tagged(MTU + 18), true),
        (&plain, long_tagged(MTU + 19), false),
        (&push, long(MTU + 14), true),
        (&push, long(MTU + 15), false),
        (&push, long_tagged(MTU + 18), true),
        (&push, long_tagged(MTU + 19), false),
        (&pop, long_tagged(MTU + 18), true),
        (&pop, long_tagged(MTU + 19), false),
        (&pop, long(MTU + 14), true),
    ] {
        let result = sent(rewriter, &frame);
        let vlan = rewriter.options.vlan;
        assert_eq!(result.is_ok(), is_sent, "{vlan:?}, {} bytes: {:?}", frame.len(), result.err());
    }
    // A third tag counts against the MTU, as for the device.
    let twice = sent(&push, &long_tagged(MTU + 18)).expect("two tags");
    assert_eq!(sent(&push, &twice), Err(SinkDrop::TooLong));
}

#[test]
fn what_is_shorter_than_an_ethernet_header_is_not_sent() {
    let tagged = tagged(3);
    assert_eq!(sent(&vlan(VlanChange::Pop), &tagged[..17]), Err(SinkDrop::TooShort));
    assert_eq!(sent(&vlan(VlanChange::Pop), &tagged[..18]).map(|frame| frame.len()), Ok(14));
    let plain = rewriter(ForwardSink::default());
    assert_eq!(sent(&plain, &tagged[..13]), Err(SinkDrop::TooShort));
    assert_eq!(sent(&vlan(VlanChange::Push(1)), &tagged[..11]), Err(SinkDrop::TooShort));
}

#[test]
fn the_port_is_one_that_the_daemon_uses() {
    assert_eq!(port::choose("out", Some(2), &[1, 2]).ok(), Some(2));
    assert_eq!(port::choose("out", None, &[3]).ok(), Some(3));
    let unknown = port::choose("out", Some(4), &[1, 2]).expect_err("there is no such port").to_string();
    assert!(
        unknown.contains("`out`: port 4 is not one of the device's ports in use, 1, 2 (hint: "),
        "{unknown}"
    );
    let none = port::choose("out", None, &[1, 2]).expect_err("it could be either").to_string();
    assert!(none.contains("the device has the ports 1, 2 (hint: set `port`"), "{none}");
}

#[test]
fn a_failed_queue_pair_is_replaced_when_its_frames_are_back() {
    a_failed_queue_pair_is_replaced(None);
    a_failed_queue_pair_is_replaced(Some("mend1"));
}

/// On the device that the frames come from, or on another one.
fn a_failed_queue_pair_is_replaced(device: Option<&str>) {
    let (own_nic, context) = crate::receiver::tests::nic("mend0", MTU as u32);
    let (other_nic, other) = crate::receiver::tests::nic("mend1", MTU as u32);
    let nic = if device.is_some() { other_nic } else { own_nic };
    let parts = crate::assembly::assemble(&context, &crate::receiver::tests::config()).expect("parts");
    let mut pool = parts.receiver.pool;
    let open = |_: &str| Ok(OtherDevice { context: Arc::clone(&other), port: None });
    let environment = Environment {
        context: &context,
        domains: &[parts.domain],
        budgets: &[Arc::new(FrameBudget::new(16))],
        ports: &[1, 2],
        stations: &[],
        others: Some(Others { frames: &[pool.registered()], open: &open }),
    };
    let device = device.map(str::to_owned);
    let options = ForwardSink { device, port: Some(2), ..ForwardSink::default() };
    let (hub, mut endpoints) = build("out", &options, &environment).expect("it opens");
    let endpoint = &mut endpoints[0];
    let mut back = Vec::new();
    let mut poll = |endpoint: &mut Forward, pool: &mut verbs::FramePool| {
        endpoint.poll(&mut FramesBack { pool, frames: &mut back });
        back.drain(..).map(|frame| pool.release(frame)).count()
    };

    let frame = pool.take().expect("free");
    let sender = endpoint.transmitter.as_mut().expect("it sends");
    sender.queue(frame, Pieces::one(0..60)).expect("room");
    assert_eq!(endpoint.budget.take(1), 1);
    sender.handle().to_error().expect("to ERR");
    assert_eq!(poll(endpoint, &mut pool), 0, "posted");
    assert!(endpoint.holds_frames());
    hub.tick(&Ports::default());
    nic.pump(8);
    assert_eq!(poll(endpoint, &mut pool), 1, "flushed");
    assert!(endpoint.transmitter.is_none() && !endpoint.holds_frames());
    assert_eq!(endpoint.budget.total(), 8);
    assert_eq!(endpoint.counters.read().dropped[SinkDrop::TxFailed as usize].1, 1);

    poll(endpoint, &mut pool);
    assert!(endpoint.transmitter.is_none(), "not before the tick");
    hub.tick(&Ports::default());
    assert!(hub.status().number("queue_pairs_replaced") == Some(1));
    poll(endpoint, &mut pool);
    let frame = pool.take().expect("free");
    let sender = endpoint.transmitter.as_mut().expect("it sends again");
    sender.queue(frame, Pieces::one(0..60)).expect("room");
    assert_eq!(endpoint.budget.take(1), 1);
    poll(endpoint, &mut pool);
    nic.pump(8);
    assert_eq!(poll(endpoint, &mut pool), 1);
    assert_eq!(endpoint.counters.read().delivered.packets, 1);
    assert_eq!(nic.port_stats(2).tx_frames, 1);
}
