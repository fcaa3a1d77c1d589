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
        let start = Instant::now();
        let bytes = frame(1, 60).build();
        while burst(&mut right).is_empty() {
            send(&mut left, std::slice::from_ref(&bytes));
            assert!(start.elapsed() < PATIENCE);
        }
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
        ip("link set left up").unwrap();
        until(WireState::Live, &mut right);
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
        let bytes = frame(1, 60).build();
        send(&mut left, std::slice::from_ref(&bytes));
        assert_eq!(receive(&mut right, 1)[0].0, bytes);
    });
}

#[test]
fn a_removed_interface_stays_gone_even_if_one_of_its_name_comes_back() {
    in_namespace("a_removed_interface", || {
        let mut right = open("right").unwrap();
        ip("link del right").unwrap();
        ip("link add left type veth peer name right").unwrap();
        ip("link set left up").unwrap();
        ip("link set right up").unwrap();
        until_running().unwrap();
        until(WireState::Down, &mut right);
        for _ in 0..3 * EMPTY_BURSTS_PER_CHECK {
            assert_eq!(burst(&mut right).len(), 0);
            assert_eq!(right.state(), WireState::Down);
        }
        assert!(
            right.describe().starts_with("right (af_packet; the interface is gone"),
            "{}",
            right.describe()
        );
        assert_eq!(right.transmit(&frame(1, 60).build()), Err(TransmitError::Down));
    });
}
