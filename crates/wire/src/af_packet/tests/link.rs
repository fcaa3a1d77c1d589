//! What a wire says while its interface goes down, loses its carrier, is renamed or goes away.

use super::*;

/// Empty bursts until the wire is in this state.
fn until(state: WireState, wire: &mut AfPacketWire) {
    let start = Instant::now();
    while wire.state() != state {
        assert_eq!(burst(wire).len(), 0);
        assert!(start.elapsed() < PATIENCE, "still {:?}", wire.state());
    }
}

#[test]
fn going_down_and_up_is_noticed() {
    in_namespace("going_down_and_up", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        until(WireState::Live, &mut right);
        ip("link set right down").unwrap();
        until(WireState::Down, &mut right);
        let error = open("right").unwrap_err();
        assert!(matches!(&error, WireError::InterfaceDown { .. }), "{error}");
        assert!(error.to_string().contains("ip link set right up"));
        ip("link set right up").unwrap();
        until(WireState::Live, &mut right);
        until(WireState::Live, &mut left);
        let bytes = frame(1, 60).build();
        send_until_received(&mut left, &mut right, &bytes);
        ip("link set left down").unwrap();
        // The state may be older than the interface's: the frame is lost, and said to be.
        if left.transmit(&bytes).is_ok() {
            let before = left.transmit_losses();
            left.flush();
            assert_eq!(left.transmit_losses(), before + 1);
        }
        assert_eq!(left.state(), WireState::Down);
        assert_eq!(left.transmit(&bytes), Err(TransmitError::Down));
    });
}

#[test]
fn an_interface_without_a_carrier_is_down() {
    in_namespace("without_a_carrier", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        ip("link set left down").unwrap();
        until(WireState::Down, &mut right);
        assert_eq!(right.transmit(&frame(1, 60).build()), Err(TransmitError::Down));
        assert_eq!(open("right").unwrap().state(), WireState::Down, "from the first moment on");
        let has_carrier = |wire: &str| wire.parse::<crate::WireConfig>().unwrap().has_carrier();
        assert!(!has_carrier("af_packet:right") && !has_carrier("af_xdp:right"));
        assert!(has_carrier("af_packet:left"), "it is down, which is another error");
        ip("link set left up").unwrap();
        until(WireState::Live, &mut right);
        assert!(has_carrier("af_packet:right"));
        until(WireState::Live, &mut left);
    });
}

#[test]
fn a_renamed_interface_goes_on() {
    in_namespace("a_renamed_interface", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        ip("link set right down").unwrap();
        until(WireState::Down, &mut right);
        ip("link set right name other").unwrap();
        ip("link set other up").unwrap();
        until(WireState::Live, &mut right);
        until(WireState::Live, &mut left);
        send_until_received(&mut left, &mut right, &frame(1, 60).build());
    });
}

/// Sends a frame again until it arrives: an interface that is up may still drop what it is to send, because
/// the kernel starts its queue a moment later (net/core/link_watch.c, `linkwatch_do_dev`).
fn send_until_received(from: &mut AfPacketWire, to: &mut AfPacketWire, bytes: &Vec<u8>) {
    let start = Instant::now();
    loop {
        send(from, std::slice::from_ref(bytes));
        if let Some((received, ..)) = burst(to).first() {
            return assert_eq!(received, bytes);
        }
        assert!(start.elapsed() < PATIENCE);
    }
}

/// Makes the veth pair anew, with another MTU.
fn make_again() {
    ip("link add left mtu 1400 type veth peer name right mtu 1400").unwrap();
    for end in ["left", "right"] {
        ip(&format!("link set {end} addrgenmode none")).unwrap();
        ip(&format!("link set {end} up")).unwrap();
    }
    until_running().unwrap();
}

#[test]
fn a_removed_interface_is_attached_to_again_when_one_of_its_name_is_up() {
    in_namespace("a_removed_interface", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        let before = frame(1, 60).build();
        // Slots hold 128: 72 of the 200 are lost, and stay lost when the rings are new ones. Blocks hold all.
        let held = if HAND_OVER.get() == HandOver::Frames { 128 } else { 200 };
        let lost = 200 - held as u64;
        let burst_of_200: Vec<Vec<u8>> = std::iter::repeat_n(before.clone(), 200).collect();
        send(&mut left, &burst_of_200);
        assert_eq!(left.transmit(&before), Ok(()), "queued, and not flushed");
        ip("link del right").unwrap();

        // What arrived before is still there.
        let received = receive(&mut right, held);
        assert!(received.iter().all(|(bytes, ..)| *bytes == before));
        until(WireState::Down, &mut right);
        until(WireState::Down, &mut left);
        assert!(
            right.describe().starts_with("right (af_packet; the interface is gone"),
            "{}",
            right.describe()
        );
        assert_eq!(right.transmit(&before), Err(TransmitError::Down));
        assert_eq!((right.receive_counters().lost, left.transmit_losses()), (lost, 1));

        make_again();
        until(WireState::Live, &mut right);
        until(WireState::Live, &mut left);
        assert_eq!((left.mtu_bytes(), right.mtu_bytes()), (1400, 1400));
        assert_eq!(right.mac(), Interface::find("right").unwrap().mac, "of the new interface");
        let after = frame(2, 100).build();
        send(&mut left, std::slice::from_ref(&after));
        assert_eq!(receive(&mut right, 1)[0].0, after);
        send(&mut right, std::slice::from_ref(&before));
        assert_eq!(receive(&mut left, 1)[0].0, before);
        assert_eq!((right.receive_counters().lost, left.transmit_losses()), (lost, 1));
    });
}

#[test]
fn an_interface_that_cannot_be_attached_to_is_retried_and_logged_once() {
    in_namespace("cannot_be_attached_to", || {
        let mut right = open("right").unwrap();
        ip("link del right").unwrap();
        until(WireState::Down, &mut right);
        // Not Ethernet, and so no interface for this wire.
        if let Err(reason) = ip("tuntap add dev right mode tun") {
            return not_run("an interface that is not Ethernet", &format!("it needs /dev/net/tun: {reason}"));
        }
        ip("link set right up").unwrap();
        let start = Instant::now();
        while right.gone.as_ref().is_none_or(|gone| gone.obstacle.is_empty()) {
            assert_eq!(burst(&mut right).len(), 0);
            assert!(start.elapsed() < PATIENCE);
        }
        ip("link del right").unwrap();
        make_again();
        until(WireState::Live, &mut right);
    });
}
