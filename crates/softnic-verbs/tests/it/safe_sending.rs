//! The sending interface of raw queue pairs, `ibv_qp_ex` and the work requests beside it, on a real soft NIC.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::verbs_support::*;
use packet::build::FrameBuilder;
use verbs::{
    CompletionFields, CompletionQueue, CompletionStatus, Frame, FramePool, Opcode, Pieces, QueuedSend,
    RawQueuePair, RawQueuePairBuilder, SendFlags, SendOperations, WorkCompletion,
};

/// Bytes of Ethernet, IPv4 and TCP headers without options.
const HEADERS: u16 = 14 + 20 + 20;

/// A raw queue pair in RTS and what it completes into.
struct Sender {
    pair: RawQueuePair,
    cq: CompletionQueue,
    pool: FramePool,
}

impl Sender {
    fn new(rig: &Rig, set: impl FnOnce(RawQueuePairBuilder) -> RawQueuePairBuilder) -> Self {
        let fields = CompletionFields::BYTE_LEN | CompletionFields::QP_NUM;
        let cq = CompletionQueue::builder(&rig.context, 256).fields(fields).build().unwrap();
        let builder = RawQueuePair::builder(&rig.domain(), &cq.handle(), &cq.handle()).max_sends(16);
        let pair = set(builder).build().unwrap().to_rts(PORT).unwrap();
        Self { pair, cq, pool: rig.pool(64) }
    }

    /// One whose batches send and segment, and take data along.
    fn whole(rig: &Rig) -> Self {
        Self::new(rig, |builder| {
            let operations = SendOperations::SEND | SendOperations::TSO;
            builder.send_operations(operations).max_inline_bytes(128).max_send_parts(4).max_tso_header(128)
        })
    }

    fn frame(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.pool.take().expect("free");
        self.pool.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        frame
    }

    /// A batch of these packets, of which the marked ones are signalled.
    fn send_batch(&mut self, packets: &[(&[u8], bool)]) {
        let frames: Vec<_> = packets.iter().map(|(packet, _)| self.frame(packet)).collect();
        let mut batch = self.pair.start_send(&mut self.pool).expect("the interface is there");
        for (frame, (packet, is_signalled)) in frames.into_iter().zip(packets) {
            let flags = if *is_signalled { SendFlags::empty() } else { SendFlags::UNSIGNALLED };
            batch.send(flags).frame(frame, packet.len()).expect("room");
        }
        assert_eq!(batch.complete().unwrap(), packets.len());
    }

    /// These packets, in a frame each.
    fn queued(&mut self, packets: &[Vec<u8>]) -> Vec<QueuedSend> {
        let queued = |packet: &Vec<u8>| QueuedSend {
            frame: self.frame(packet),
            pieces: Pieces::start(packet.len() as u32),
        };
        packets.iter().map(queued).collect()
    }

    fn send_each(&mut self, queued: &mut Vec<QueuedSend>) -> usize {
        self.pair.send_each(&mut self.pool, queued)
    }

    fn last_errno(&self) -> Option<i32> {
        self.pair.last_refusal()?.raw_os_error()
    }

    /// The lengths and statuses of the sends that each completion reports; frames are back in the pool.
    fn reports(&mut self) -> Vec<Vec<(usize, CompletionStatus)>> {
        let mut reports = Vec::new();
        let Some(mut batch) = self.cq.poll() else { return reports };
        while let Some(completion) = batch.next() {
            let (mut report, mut frames) = (Vec::new(), Vec::new());
            let named = self.pair.reclaim(&mut self.pool, completion, |send| {
                report.push((send.bytes as usize, send.status));
                frames.push(send.frame);
            });
            assert!(named.is_ok(), "it names a frame");
            frames.into_iter().for_each(|frame| self.pool.release(frame));
            reports.push(report);
        }
        reports
    }

    /// Everything that completed, by value; frames are back in the pool.
    fn completions(&mut self) -> Vec<(CompletionStatus, Opcode, Option<u32>)> {
        let mut list: Vec<WorkCompletion> = Vec::new();
        self.cq.poll_classic(&mut list, 100);
        list.into_iter()
            .map(|completion| {
                let seen = (completion.status(), completion.opcode(), completion.token());
                match self.pool.reclaim_classic(completion) {
                    Ok(frame) => self.pool.release(frame),
                    Err(_) => assert!(seen.2.is_some(), "what is no frame has a token"),
                }
                seen
            })
            .collect()
    }
}

fn tcp_stream(bytes: usize) -> Vec<u8> {
    FrameBuilder::new().ipv4(v4(1), v4(2)).tcp(1, 2, 0x10).payload(&vec![0x5a; bytes]).build()
}

#[test]
fn a_batch_leaves_as_a_whole_when_it_is_complete() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let (one, two, three) = (udp(1, 7), udp(2, 7), udp(3, 7));
    let (first, second) = (sender.frame(&one), sender.frame(&two));
    let mut batch = sender.pair.start_send(&mut sender.pool).expect("the interface is there");
    assert!(batch.is_empty());
    batch.send(SendFlags::empty()).frame(first, one.len()).expect("room");
    let middle = two.len() / 2;
    batch.send(SendFlags::empty()).gather(second, &[0..middle, middle..two.len()]).expect("room");
    let (head, tail) = three.split_at(20);
    assert!(batch.send(SendFlags::empty()).inline_list(77, &[head, tail]));
    assert_eq!(batch.len(), 3);
    rig.pump();
    assert_eq!(rig.sent().len(), 0, "nothing leaves before the batch is complete");
    assert_eq!(batch.complete().unwrap(), 3);
    rig.pump();
    assert_eq!(rig.sent(), [one, two, three]);
    let sent = (CompletionStatus::Success, Opcode::Send);
    assert_eq!(
        sender.completions(),
        [(sent.0, sent.1, None), (sent.0, sent.1, None), (sent.0, sent.1, Some(77))]
    );
    assert_eq!(sender.pool.free_count(), 64);
}

#[test]
fn an_aborted_or_dropped_batch_sends_nothing_and_gives_its_frames_back() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    for abort in [true, false] {
        let frame = sender.frame(&udp(1, 7));
        let mut batch = sender.pair.start_send(&mut sender.pool).unwrap();
        batch.send(SendFlags::empty()).frame(frame, 82).unwrap();
        if abort {
            batch.abort();
        } else {
            drop(batch);
        }
        assert_eq!(sender.pool.free_count(), 64);
    }
    rig.pump();
    assert!(rig.sent().is_empty() && sender.completions().is_empty());
    assert!(
        sender.pair.send_inline(5, &udp(1, 7), SendFlags::empty()),
        "refused: longer than it takes along?"
    );
}

#[test]
fn a_batch_with_a_request_too_many_is_refused_as_a_whole() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let room = sender.pair.caps().max_sends;
    assert!(room >= 16);
    let mut batch = sender.pair.start_send(&mut sender.pool).unwrap();
    for token in 0..=room {
        batch.send(SendFlags::empty()).inline(token, &[0x33; 60]);
    }
    assert_eq!(batch.complete().expect_err("one too many").raw_os_error(), Some(libc::ENOMEM));
    rig.pump();
    assert!(rig.sent().is_empty());
    assert_eq!(sender.pair.last_refusal().unwrap().raw_os_error(), Some(libc::ENOMEM));
}

#[test]
fn nothing_else_happens_while_a_batch_is_open() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let batch = sender.pair.start_send(&mut sender.pool).unwrap();
    assert!(sender.cq.poll().is_none());
    batch.abort();
    let none = Sender::new(&rig, |builder| builder);
    let Sender { mut pair, mut pool, .. } = none;
    assert!(pair.start_send(&mut pool).is_none(), "made without operations");
    assert_eq!(pair.last_refusal().unwrap().raw_os_error(), Some(libc::EOPNOTSUPP));
}

#[test]
fn a_stream_is_cut_into_segments_by_a_batch_and_by_a_work_request() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let stream = tcp_stream(1000);
    for batched in [true, false] {
        let frame = sender.frame(&stream);
        if batched {
            let mut batch = sender.pair.start_send(&mut sender.pool).unwrap();
            batch.tso(SendFlags::IP_CSUM, HEADERS, 400).frame(frame, stream.len()).expect("room");
            batch.complete().unwrap();
        } else {
            let Sender { pair, pool, .. } = &mut sender;
            pair.send_tso(pool, frame, HEADERS, stream.len(), 400, SendFlags::IP_CSUM).expect("room");
        }
        rig.pump();
        let sent = rig.sent();
        let lengths: Vec<_> = sent.iter().map(|frame| frame.len() - usize::from(HEADERS)).collect();
        assert_eq!(lengths, [400, 400, 200]);
        let sequence = |frame: &[u8]| u32::from_be_bytes(frame[38..42].try_into().unwrap());
        let first = sequence(&stream);
        assert_eq!(sent.iter().map(|frame| sequence(frame) - first).collect::<Vec<_>>(), [0, 400, 800]);
        assert!(sent.iter().all(|frame| frame[usize::from(HEADERS)..].iter().all(|byte| *byte == 0x5a)));
        let completions = sender.completions();
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].0, CompletionStatus::Success);
    }
    assert_eq!(sender.pool.free_count(), 64);
}

#[test]
fn data_taken_along_need_not_complete() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let bytes = udp(1, 7);
    assert!(sender.pair.send_inline(1, &bytes, SendFlags::UNSIGNALLED));
    assert!(sender.pair.send_inline(2, &bytes, SendFlags::empty()));
    rig.pump();
    assert_eq!(rig.sent(), [bytes.clone(), bytes.clone()]);
    assert_eq!(sender.completions(), [(CompletionStatus::Success, Opcode::Send, Some(2))]);

    let mut all = Sender::new(&rig, |builder| builder.signal_all(true).max_inline_bytes(128));
    assert!(all.pair.send_inline(3, &bytes, SendFlags::UNSIGNALLED));
    rig.pump();
    assert_eq!(
        all.completions(),
        [(CompletionStatus::Success, Opcode::Send, Some(3))],
        "the queue pair signals all"
    );
}

#[test]
fn a_completion_gives_the_frames_of_the_unsignalled_sends_before_it() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let packets: Vec<_> = (1..=3).map(|port| udp(port, port)).collect();
    let sizes: Vec<_> = packets.iter().map(|packet| (packet.len(), CompletionStatus::Success)).collect();
    // More often than the queue is long.
    for _ in 0..20 {
        sender.send_batch(&[(&packets[0], false), (&packets[1], false), (&packets[2], true)]);
        sender.send_batch(&[(&packets[0], true)]);
        rig.pump();
        assert_eq!(rig.sent().len(), 4);
        assert_eq!(sender.reports(), [sizes.clone(), vec![sizes[0]]]);
        assert_eq!((sender.pool.free_count(), sender.pair.in_flight()), (64, 0));
    }
    // Signalled ones may come back by the pool, those before them then by a later send.
    for _ in 0..20 {
        sender.send_batch(&[(&packets[0], true)]);
        rig.pump();
        assert_eq!(sender.completions().len(), 1);
    }
    sender.send_batch(&[(&packets[0], false), (&packets[1], true)]);
    rig.pump();
    assert_eq!(sender.completions().len(), 1);
    assert_eq!(sender.pool.free_count(), 63, "the unsignalled one");
    sender.send_batch(&[(&packets[2], true)]);
    rig.pump();
    assert_eq!(sender.reports(), [[sizes[0], sizes[2]]]);
    assert_eq!(sender.pool.free_count(), 64);
}

#[test]
fn an_unsignalled_send_that_fails_has_a_completion() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let (packet, too_short) = (udp(1, 7), [0; 8]);
    sender.send_batch(&[(&packet, false), (&too_short, false), (&packet, false), (&packet, true)]);
    rig.pump();
    rig.pump();
    let bytes = packet.len();
    assert_eq!(
        sender.reports(),
        [
            vec![(bytes, CompletionStatus::Success), (8, CompletionStatus::LocalLength)],
            vec![(bytes, CompletionStatus::Flushed)],
            vec![(bytes, CompletionStatus::Flushed)]
        ]
    );
    assert_eq!(sender.pool.free_count(), 64);
}

#[test]
fn unsignalled_frames_are_not_mistaken() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig, |builder| {
        builder.send_operations(SendOperations::SEND).signal_all(true).max_send_parts(1)
    });
    let packet = udp(1, 7);
    sender.send_batch(&[(&packet, false)]);
    let mut other = rig.pool(4);
    assert!(sender.pair.start_send(&mut other).is_none(), "frames of one pool at a time");
    assert_eq!(sender.pair.last_refusal().unwrap().raw_os_error(), Some(libc::EBUSY));
    rig.pump();
    let mut stranger = Sender::whole(&rig);
    let mut batch = sender.cq.poll().expect("the queue pair signals all");
    let completion = batch.next().expect("one");
    let completion = sender.pool.reclaim(completion).expect_err("its queue pair gives it back");
    let completion = stranger.pair.reclaim(&mut sender.pool, completion, |_| ()).expect_err("another pair");
    let completion = sender.pair.reclaim(&mut other, completion, |_| ()).expect_err("another pool");
    let mut frames = Vec::new();
    assert!(sender.pair.reclaim(&mut sender.pool, completion, |send| frames.push(send.frame)).is_ok());
    drop(batch);
    frames.into_iter().for_each(|frame| sender.pool.release(frame));
    assert_eq!(sender.pool.free_count(), 64);

    let frame = sender.frame(&packet);
    let mut batch = sender.pair.start_send(&mut sender.pool).unwrap();
    batch.send(SendFlags::UNSIGNALLED).frame(frame, packet.len()).expect("room");
    batch.abort();
    assert_eq!((sender.pool.free_count(), sender.pair.in_flight()), (64, 0));
    assert!(sender.pair.start_send(&mut other).is_some(), "none is in flight");
}

/// Packets of different lengths.
fn packets(count: u16) -> Vec<Vec<u8>> {
    (0..count).map(|number| [udp(number, 7), vec![0; usize::from(number)]].concat()).collect()
}

#[test]
fn packets_sent_together_leave_in_order_with_a_completion_for_every_32nd_and_the_last() {
    let rig = Rig::new();
    for signal_all in [false, true] {
        let mut sender =
            Sender::new(&rig, |builder| builder.max_sends(64).signal_all(signal_all).max_send_parts(2));
        let packets = packets(40);
        // More than once around the ring of sends.
        for round in 0..5 {
            let mut queued = sender.queued(&packets);
            let middle = packets[1].len() / 2;
            queued[1].pieces = Pieces::two(0..middle, middle..packets[1].len());
            assert_eq!((sender.send_each(&mut queued), queued.len()), (40, 0));
            assert_eq!((sender.pair.in_flight(), sender.pool.free_count()), (40, 24));
            rig.pump();
            assert_eq!(rig.sent(), packets);
            let reports = sender.reports();
            let counts: Vec<_> = reports.iter().map(Vec::len).collect();
            if signal_all {
                assert_eq!(counts, [1; 40]);
            } else if round == 0 {
                assert_eq!(counts, [32, 8]);
            } else {
                assert!(counts.len() <= 3 && counts.iter().all(|count| *count <= 32), "{counts:?}");
            }
            let lengths: Vec<_> =
                packets.iter().map(|packet| (packet.len(), CompletionStatus::Success)).collect();
            assert_eq!(reports.concat(), lengths);
            assert_eq!((sender.pair.in_flight(), sender.pool.free_count()), (0, 64));
        }
    }
}

#[test]
fn packets_that_cannot_be_sent_together_stay_with_those_behind_them() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let mut other = rig.pool(4);
    let packets = packets(3);
    let wrong = [Pieces::one(0..FRAME_BYTES as usize + 1), Pieces::two(0..8, usize::MAX - 1..usize::MAX)];
    for pieces in wrong.into_iter().map(Some).chain([None]) {
        let mut queued = sender.queued(&packets);
        let own = match pieces {
            Some(pieces) => {
                queued[1].pieces = pieces;
                None
            }
            None => Some(std::mem::replace(&mut queued[1].frame, other.take().expect("free"))),
        };
        assert_eq!((sender.send_each(&mut queued), queued.len()), (1, 2));
        assert_eq!(sender.last_errno(), Some(libc::EINVAL));
        let refused = queued.remove(0).frame;
        match own {
            Some(own) => {
                other.release(refused);
                sender.pool.release(own);
            }
            None => sender.pool.release(refused),
        }
        assert_eq!(sender.send_each(&mut queued), 1, "the next one is sent");
        rig.pump();
        assert_eq!(rig.sent(), [packets[0].clone(), packets[2].clone()]);
        assert_eq!(sender.reports().concat().len(), 2);
        assert_eq!((sender.pool.free_count(), other.free_count()), (64, 4));
    }
    let frame = other.take().expect("free");
    let mut foreign = vec![QueuedSend { frame, pieces: Pieces::start(60) }];
    let mut own = sender.queued(&packets);
    assert_eq!(sender.send_each(&mut own), 3);
    rig.pump();
    assert_eq!(sender.pair.send_each(&mut other, &mut foreign), 0, "frames of one pool at a time");
    assert_eq!((sender.last_errno(), foreign.len()), (Some(libc::EBUSY), 1));
}

#[test]
fn what_a_full_queue_does_not_take_stays_and_the_rest_comes_back() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let room = sender.pair.caps().max_sends as usize;
    let packets = packets(u16::try_from(room).expect("few") + 4);
    // The queue takes a part of the second call, so no completion is asked for that part.
    let mut first = sender.queued(&packets[..6]);
    assert_eq!(sender.send_each(&mut first), 6);
    let mut queued = sender.queued(&packets[..room]);
    assert_eq!((sender.send_each(&mut queued), queued.len()), (room - 6, 6));
    assert_eq!(sender.last_errno(), Some(libc::ENOMEM));
    rig.pump();
    assert_eq!(sender.reports().concat().len(), 6);
    assert_eq!(sender.pair.in_flight(), room - 6);
    assert_eq!(sender.send_each(&mut queued), 6);
    rig.pump();
    assert_eq!(sender.reports().concat().len(), room, "with the next completion");
    assert_eq!((sender.pair.in_flight(), sender.pool.free_count()), (0, 64));
    let mut queued = sender.queued(&packets);
    assert_eq!((sender.send_each(&mut queued), queued.len()), (room, 4));
    assert_eq!(sender.last_errno(), Some(libc::ENOMEM));
    rig.pump();
    let back = sender.reports().concat().len();
    assert_eq!(back + sender.pair.in_flight(), room);
    assert_eq!(sender.send_each(&mut queued), 4);
    rig.pump();
    assert_eq!(back + sender.reports().concat().len(), room + 4);
    assert_eq!((sender.pair.in_flight(), sender.pool.free_count()), (0, 64));
}

#[test]
fn the_own_completion_of_an_unsignalled_frame_does_not_give_it_back() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig, |builder| {
        builder.send_operations(SendOperations::SEND).signal_all(true).max_send_parts(1)
    });
    let packet = udp(1, 7);
    sender.send_batch(&[(&packet, false), (&packet, true)]);
    rig.pump();
    // The first send has a completion because the queue pair signals all. It is kept, and the frame comes
    // back by the second.
    let mut own: Vec<WorkCompletion> = Vec::new();
    assert_eq!(sender.cq.poll_classic(&mut own, 1), 1);
    assert_eq!(sender.reports().concat().len(), 2);
    // Whatever frame is in the device's hands now, the kept completion names none.
    sender.send_batch(&[(&packet, true), (&packet, true)]);
    let own = own.pop().expect("one");
    assert!(sender.pool.reclaim_classic(own).is_err());
    rig.pump();
    assert_eq!(sender.reports().concat().len(), 2);
    assert_eq!(sender.pool.free_count(), 64);
}

#[test]
fn ranges_outside_of_the_frame_are_refused() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let size = FRAME_BYTES as usize;
    #[allow(clippy::reversed_empty_ranges, clippy::single_range_in_vec_init)] // ranges are what is tested
    let wrong = [vec![0..size + 1], vec![10..5], vec![], vec![0..1; verbs::MAX_SEND_PARTS + 1]];
    for parts in wrong {
        let frame = sender.frame(&[0; 60]);
        let flags = SendFlags::empty();
        let frame = sender.pair.send_gathered(&mut sender.pool, frame, &parts, flags).expect_err("wrong");
        let mut batch = sender.pair.start_send(&mut sender.pool).unwrap();
        let frame = batch.send(flags).gather(frame, &parts).expect_err("wrong");
        batch.release(frame);
        assert_eq!(batch.complete().unwrap(), 0, "what was refused is not part of the batch");
        assert_eq!(sender.pair.last_refusal().unwrap().raw_os_error(), Some(libc::EINVAL));
    }
    assert_eq!(sender.pool.free_count(), 64);
}

#[test]
fn a_queue_pair_in_error_flushes_and_starts_anew_from_reset() {
    let rig = Rig::new();
    let mut sender = Sender::whole(&rig);
    let frame = sender.frame(&udp(1, 7));
    sender.pair.to_error().unwrap();
    assert_eq!(sender.pair.handle().query().unwrap().state, verbs::QueuePairState::Error);
    sender.pair.send(&mut sender.pool, frame, 82, SendFlags::empty()).expect("room");
    rig.pump();
    assert_eq!(
        sender.completions().iter().map(|seen| seen.0).collect::<Vec<_>>(),
        [CompletionStatus::Flushed]
    );
    assert!(rig.sent().is_empty());
    let Ok(idle) = sender.pair.reset() else { panic!("a queue pair can always be reset") };
    assert_eq!(idle.handle().query().unwrap().state, verbs::QueuePairState::Reset);
    sender.pair = idle.to_rts(PORT).unwrap();
    let frame = sender.frame(&udp(2, 7));
    sender.pair.send(&mut sender.pool, frame, 82, SendFlags::empty()).expect("room");
    rig.pump();
    assert_eq!(rig.sent(), [udp(2, 7)]);
}
