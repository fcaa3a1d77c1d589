//! Events and the end of their objects.

use std::sync::mpsc;
use std::time::Duration;

use ibverbs_sys::{IBV_EVENT_CQ_ERR, ibv_cq};

use super::super::{cq, flow, qp};
use super::{LOCAL_WRITE, Raw, udp};

/// A device whose completion queue was overrun, and is used by nothing any more.
fn overrun() -> Raw {
    let raw = Raw::with_cq(4);
    let memory = raw.register(2048, LOCAL_WRITE);
    for index in 0..8 {
        raw.post_receive(index, &mut [memory.element(0, 2048)]);
    }
    raw.deliver((0..8).map(udp));
    // SAFETY: live handles, not used again.
    assert_eq!(unsafe { flow::destroy_flow(raw.flow) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { qp::destroy_qp(raw.qp) }, 0);
    raw
}

#[test]
fn an_unread_event_goes_with_its_object() {
    let raw = overrun();
    // SAFETY: a live handle, not used again.
    assert_eq!(unsafe { cq::destroy_cq(raw.cq) }, 0);
    assert!(raw.unacknowledged().is_none());
}

#[test]
fn an_object_waits_for_the_acknowledgement_of_what_was_read() {
    let raw = overrun();
    let mut event = raw.unacknowledged().unwrap();
    assert_eq!(event.event_type, IBV_EVENT_CQ_ERR);
    let (done, destroyed) = mpsc::channel();
    let address = raw.cq.expose_provenance();
    let thread = std::thread::spawn(move || {
        let cq: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: a live handle, used by the event only until it is acknowledged.
        done.send(unsafe { cq::destroy_cq(cq) }).unwrap();
    });
    assert!(destroyed.recv_timeout(Duration::from_millis(50)).is_err(), "destroyed under an event");
    // SAFETY: the event of above; its object still lives.
    unsafe { ibverbs_sys::ibv_ack_async_event(&raw mut event) };
    assert_eq!(destroyed.recv_timeout(Duration::from_secs(10)), Ok(0));
    thread.join().unwrap();
}
