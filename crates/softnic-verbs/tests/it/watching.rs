//! Watching the frames that no receive queue gets.

use crate::verbs_support::*;
use packet::{DeepKey, FlowKey, FrameHead};
use softnic::{FrameEnd, WatchFilter, WatchedFrame, WatchedFrames};
use verbs::{ActionSpec, FlowHandle};

fn all() -> WatchFilter {
    Box::new(|frame, _| Some(DeepKey::of(frame)))
}

/// The frames since the last call, and how many were missed.
fn watched(rig: &Rig) -> (Vec<WatchedFrame>, u64) {
    let mut frames = WatchedFrames::default();
    let missed = rig.nic.watched(PORT.0, &mut frames);
    (frames.iter().map(|(frame, _)| *frame).collect(), missed)
}

#[test]
fn each_frame_without_a_queue_is_shown_with_its_end() {
    let rig = Rig::new();
    let domain = rig.domain();
    // Two buffers.
    let mut receiver = Receiver::new(&domain, 2);
    let target = single(&domain, &receiver.queue);
    let _steered = FlowHandle::create(&target, &udp_flow(53, 1)).unwrap();
    let _dropped = FlowHandle::create(&target, &udp_flow(54, 2).action(ActionSpec::Drop)).unwrap();
    let frames = [udp(1, 53), udp(2, 54), udp(3, 55), udp(4, 53), udp(5, 53), vec![0; 10], vec![0; 1600]];
    rig.deliver([udp(3, 55)]);
    assert!(watched(&rig).0.is_empty(), "nobody watches");

    assert!(rig.nic.watch(PORT.0, all(), 0));
    rig.deliver(frames.clone());
    assert_eq!(receiver.drain().len(), 2);
    let (shown, missed) = watched(&rig);
    let expected = [
        (1, FrameEnd::FlowDropped),
        (2, FrameEnd::Unmatched),
        (4, FrameEnd::OutOfBuffer),
        (5, FrameEnd::Runt),
        (6, FrameEnd::Oversize),
    ];
    assert_eq!(shown.len(), expected.len(), "{shown:?}");
    for (shown, (place, end)) in shown.iter().zip(expected) {
        let frame = &frames[place];
        assert_eq!((shown.end, shown.head, shown.key), (end, FrameHead::of(frame), DeepKey::of(frame)));
        assert!(shown.received_ns > 0);
    }
    assert_eq!(missed, 0);
}

#[test]
fn frames_are_chosen_and_beyond_the_room_counted() {
    let rig = Rig::new();
    assert!(rig.nic.watch(
        PORT.0,
        Box::new(|frame, _| Some(DeepKey::of(frame)).filter(|key| key.outer.dst_port == 9)),
        0
    ));
    assert!(!rig.nic.watch(PORT.0, all(), 0), "somebody watches already");
    assert!(!rig.nic.watch(7, all(), 0), "there is no such port");
    rig.deliver((0..1000).flat_map(|port| [udp(port, 9), udp(port, 10)]));
    let (shown, missed) = watched(&rig);
    assert!(shown.iter().all(|frame| frame.key.outer == FlowKey::of(&udp(frame.key.outer.src_port, 9))));
    assert_eq!((shown.len(), missed), (256, 744));
    rig.deliver([udp(7, 9)]);
    assert_eq!((watched(&rig).0.len(), watched(&rig).0.len()), (1, 0));
    rig.deliver((0..300).map(|port| udp(port, 9)));
    rig.nic.end_watch(PORT.0);
    rig.deliver([udp(7, 9)]);
    let mut frames = WatchedFrames::default();
    assert!(watched(&rig).0.is_empty());
    assert!(rig.nic.watch(PORT.0, all(), 0), "another one can");
    assert_eq!((rig.nic.watched(PORT.0, &mut frames), frames.iter().count()), (0, 0), "and begins anew");
}

#[test]
fn the_bytes_of_frames_are_kept_as_far_as_asked() {
    let rig = Rig::new();
    let frames: Vec<Vec<u8>> = (0..300).map(|port| [udp(port, 9), vec![port as u8; 1400]].concat()).collect();
    let mut watched = WatchedFrames::default();
    for kept in [0, 20, 9000] {
        assert!(rig.nic.watch(PORT.0, all(), kept));
        for _ in 0..2 {
            rig.deliver(frames.clone());
            assert_eq!(rig.nic.watched(PORT.0, &mut watched), 300 - 256);
            let expected = |frame: &[u8]| frame[..frame.len().min(kept as usize)].to_vec();
            for ((_, bytes), frame) in watched.iter().zip(&frames) {
                assert_eq!(bytes, expected(frame));
            }
        }
        rig.nic.end_watch(PORT.0);
    }
    let long: Vec<Vec<u8>> = (0..256).map(|_| [udp(1, 9), vec![0; 8000]].concat()).collect();
    assert!(rig.nic.watch(PORT.0, all(), 9000));
    rig.deliver(long);
    let missed = rig.nic.watched(PORT.0, &mut watched);
    assert!(
        missed > 0 && watched.iter().count() as u64 + missed == 256,
        "the bytes have a limit as well: {missed}"
    );
}

#[test]
fn frames_are_shown_or_counted_while_another_thread_takes_them() {
    let rig = Rig::new();
    assert!(rig.nic.watch(PORT.0, all(), 0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut shown, mut missed) = (0, 0);
            while shown + missed < 20_000 {
                let (frames, more) = watched(&rig);
                (shown, missed) = (shown + frames.len() as u64, missed + more);
            }
            shown + missed
        });
        rig.deliver((0..20_000).map(|number| udp(number as u16, 9)));
        assert_eq!(reader.join().unwrap(), 20_000, "each frame is shown or counted");
    });
}
