//! Every completion that a receive can have, passed to a receiver whose frames the test holds.

use program::{ChangeStage, ClassId, Outcome, RuleId, Verdict, WorkerId};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{Context, DeviceList, FlowTag};
use wire::NullWire;

use super::*;
use crate::assembly::{Parts, assemble};
use crate::batch::{Decision, Packet};
use crate::classifier::Classifier;
use crate::stats::Failure;
use crate::{Disposition, WorkerConfig, WorkerControl};

struct Bench {
    receiver: Receiver,
    batch: Batch,
    stats: Stats,
    _nic: SoftNic,
}

pub(crate) const FRAMES: u32 = 16;
pub(crate) const FRAME_BYTES: u32 = 1600;

/// Two ports, and no packets.
pub(crate) fn nic(name: &str, mtu_bytes: u32) -> (SoftNic, Arc<Context>) {
    nic_like(Personality::Ideal, name, mtu_bytes)
}

/// A soft NIC with these limits.
pub(crate) fn nic_like(personality: Personality, name: &str, mtu_bytes: u32) -> (SoftNic, Arc<Context>) {
    let port = || PortConfig { wire: Box::new(NullWire), mtu_bytes };
    let nic = SoftNic::create(SoftNicConfig {
        name: name.to_owned(),
        personality,
        ports: vec![port(), port()],
        drive: Drive::Manual,
    })
    .expect("a soft NIC");
    let list = DeviceList::of(&nic).expect("a list");
    let context = list.find(name).expect("the soft NIC").open().expect("it opens");
    (nic, context)
}

pub(crate) fn config() -> WorkerConfig {
    WorkerConfig {
        frames: FRAMES,
        frame_bytes: FRAME_BYTES,
        batch: 8,
        pages: vec![hugemem::PageKind::Plain],
        ..WorkerConfig::new(WorkerId(0))
    }
}

pub(crate) fn parts(name: &str, mtu_bytes: u32, config: &WorkerConfig) -> (SoftNic, Parts) {
    let (nic, context) = nic(name, mtu_bytes);
    let parts = assemble(&context, config).expect("a worker's parts");
    (nic, parts)
}

impl Bench {
    fn new(name: &str) -> Self {
        let (nic, Parts { receiver, .. }) = parts(name, 1500, &config());
        let batch = Batch::new(FRAMES as usize, receiver.limit);
        Self { receiver, batch, stats: Stats::default(), _nic: nic }
    }

    fn frame(&mut self) -> Frame {
        self.receiver.pool.take().expect("enough frames")
    }

    fn receive(&mut self, tag: Option<u32>) {
        let (frame, tag) = (self.frame(), tag.map(FlowTag));
        let arrival = Arrival { bytes: 60, tag, timestamp: None };
        accept(arrival, Some(frame), &mut self.batch, &self.stats);
    }

    /// Returns whether a packet is counted as received.
    fn reject(&mut self, status: CompletionStatus) -> bool {
        let frame = self.frame();
        reject(status, Some(frame), &mut self.batch, &self.stats)
    }

    fn refill(&mut self) {
        self.batch.end_packets();
        self.receiver.refill(&mut self.batch, &self.stats);
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.stats.reasons()[reason as usize].1
    }

    fn failed(&self, failure: Failure) -> u64 {
        self.stats.failures()[failure as usize].1
    }
}

#[test]
fn every_success_becomes_a_packet_or_a_drop_with_its_reason() {
    let mut bench = Bench::new("sorts0");
    bench.receive(Some(1));
    bench.receive(None);
    assert_eq!(bench.batch.packets.len(), 2);
    assert!(bench.reject(CompletionStatus::Success));
    assert_eq!(bench.dropped(DropReason::BadLength), 1);
    accept(Arrival { bytes: 60, tag: None, timestamp: Some(7) }, None, &mut bench.batch, &bench.stats);
    assert!(reject(CompletionStatus::Success, None, &mut bench.batch, &bench.stats));
    assert_eq!(bench.dropped(DropReason::BadFrame), 2);
    assert_eq!((bench.batch.packets.len(), bench.batch.frames.len()), (2, 3));
    assert!(bench.batch.timestamps.is_empty(), "one for each packet or none");
    bench.batch.end_packets();
    assert_eq!((bench.batch.packets.len(), bench.batch.frames.len()), (0, 3));
    assert_eq!(bench.stats.failures().iter().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn the_frames_of_packets_can_be_taken_and_given_back() {
    let mut bench = Bench::new("detach0");
    bench.reject(CompletionStatus::Success);
    (0..3).for_each(|_| bench.receive(Some(1)));
    let Bench { receiver, batch, .. } = &mut bench;
    batch.detach_frames();
    let outcome = Outcome { rule: RuleId::of(0), verdict: Verdict::Kernel };
    // The last names no packet.
    let decide = |packet| Decision { packet, outcome, sinks: 0, generation: 0 };
    batch.decisions.extend([0, 1, 3].map(decide));
    let mut taken = Vec::new();
    batch.take_runs(
        |decision| decision.packet > 0,
        |run| {
            run.take_each(|decision, _, timestamp, frame| {
                assert_eq!((decision.packet, timestamp), (1, None));
                taken.push(frame);
                None
            });
        },
    );
    assert_eq!(taken.len(), 1);
    let has_data =
        |batch: &Batch, index: usize| !batch.data(&batch.packets[index], &receiver.pool).is_empty();
    assert_eq!([0, 1, 2].map(|index| has_data(batch, index)), [true, false, true]);
    batch.reattach_frames();
    batch.end_packets();
    assert_eq!(batch.frames.len(), 3, "all but the one that was taken");
    taken.into_iter().for_each(|frame| receiver.pool.release(frame));
}

#[test]
fn one_sink_takes_the_frames_of_all_packets_or_of_some_without_a_step_before() {
    let mut bench = Bench::new("detach1");
    bench.reject(CompletionStatus::Success);
    let Bench { receiver, batch, .. } = &mut bench;
    for (decided, is_taken) in
        [(4, [true; 4]), (4, [true, false, true, true]), (3, [true, false, true, false])]
    {
        for length in 60..64 {
            let frame = receiver.pool.take().expect("free");
            batch.receive(frame, length, 0);
        }
        batch.timestamps.extend([5, 6, 7, 8]);
        let outcome = Outcome { rule: RuleId::of(0), verdict: Verdict::Kernel };
        let decide = |packet| Decision { packet, outcome, sinks: 0, generation: 0 };
        batch.decisions.extend((0..decided).map(decide));
        let (mut taken, mut seen) = (Vec::new(), Vec::new());
        let mut take = |decision: &Decision, packet: &Packet, timestamp, frame| {
            seen.push((decision.packet, packet.bytes, timestamp));
            if is_taken[decision.packet as usize] {
                taken.push(frame);
                return None;
            }
            Some(frame)
        };
        batch.take_runs(
            // Of the second case all, of the third not all packets are decided or chosen.
            |decision| is_taken == [true, false, true, true] || is_taken[decision.packet as usize],
            |run| run.take_each(&mut take),
        );
        let expected: Vec<_> = (0..decided)
            .filter(|packet| decided == 4 || is_taken[*packet as usize])
            .map(|packet| (packet, 60 + packet, Some(5 + u64::from(packet))))
            .collect();
        assert_eq!(seen, expected);
        let count = is_taken.iter().filter(|is_taken| **is_taken).count();
        assert_eq!((taken.len(), batch.frames.len()), (count, 1 + 4 - count));
        taken.into_iter().for_each(|frame| receiver.pool.release(frame));
        batch.frames.drain(1..).for_each(|frame| receiver.pool.release(frame));
        batch.end_packets();
        batch.clear();
    }
}

#[test]
fn no_failure_is_received_and_each_is_counted_by_its_status() {
    let mut bench = Bench::new("sorts1");
    for status in [
        CompletionStatus::LocalLength,
        CompletionStatus::LocalQueuePairOperation,
        CompletionStatus::LocalProtection,
        CompletionStatus::LocalAccess,
        CompletionStatus::General,
        CompletionStatus::Unknown(99),
    ] {
        assert!(!bench.reject(status));
    }
    assert!(
        !reject(CompletionStatus::LocalLength, None, &mut bench.batch, &bench.stats),
        "of an unknown frame"
    );
    let counts = Failure::ALL.iter().map(|&failure| bench.failed(failure)).collect::<Vec<_>>();
    assert_eq!(counts, [2, 1, 2, 0, 0, 2]);
    assert_eq!(bench.stats.reasons().iter().map(|(_, count)| count).sum::<u64>(), 0);
    assert!(bench.batch.packets.is_empty() && !bench.stats.queue_failed());
    bench.refill();
    assert_eq!((bench.stats.posted.read(), bench.batch.frames.len()), (6, 0), "the frames are of use still");
}

#[test]
fn a_flushed_or_broken_queue_is_failed_and_gets_no_frames_back() {
    for (name, status) in [("sorts2", CompletionStatus::Flushed), ("sorts3", CompletionStatus::Fatal)] {
        let mut bench = Bench::new(name);
        for _ in 0..FRAMES {
            assert!(!bench.reject(status));
            bench.refill();
        }
        assert!(bench.stats.queue_failed());
        assert_eq!((bench.stats.posted.read(), bench.batch.frames.len()), (0, FRAMES as usize));
    }
}

#[test]
fn frames_are_posted_half_a_batch_at_once_or_when_nothing_comes_any_more() {
    let mut bench = Bench::new("posts0");
    let posted = |bench: &Bench| bench.stats.posted.read();
    for held in 1..4 {
        bench.receive(Some(1));
        bench.refill();
        assert_eq!((posted(&bench), bench.batch.frames.len()), (0, held), "half a batch is 4");
    }
    bench.receive(Some(1));
    bench.refill();
    assert_eq!((posted(&bench), bench.batch.frames.len()), (4, 0));

    bench.receive(Some(1));
    bench.batch.end_packets();
    bench.receiver.poll(&mut bench.batch, &bench.stats);
    bench.refill();
    assert_eq!((posted(&bench), bench.batch.frames.len()), (4, 1), "empty once");
    bench.receiver.poll(&mut bench.batch, &bench.stats);
    bench.refill();
    assert_eq!((posted(&bench), bench.batch.frames.len()), (5, 0), "empty twice");
}

#[test]
fn few_frames_are_never_held_back_for_a_large_batch() {
    assert_eq!(refill_at(4096, 64), 32);
    assert_eq!(refill_at(64, 512), 16);
    assert_eq!((refill_at(3, 64), refill_at(1, 1)), (1, 1));
}

#[test]
fn what_no_published_class_claims_is_dropped_with_its_reason() {
    let mut bench = Bench::new("sorts4");
    let control = WorkerControl::new(WorkerId(0), crate::runtime_rules::runtime_rules().0);
    let mut classifier = Classifier::new(FRAMES);
    control.publish(&ChangeStage::Begin(crate::tests::program(&["web"])));
    classifier.refresh(&control.shared().mailbox, &bench.batch);
    let class = |class| ClassId(class).tag().expect("few classes");
    // No tag, and tags that are no class's.
    let unknown = [None, Some(0), Some(1 << 23), Some(1 << 22)];
    // Beyond the program's classes.
    let beyond = [Some(class(1)), Some(class(1000))];
    let known = Some(class(0));
    for tag in unknown.into_iter().chain(beyond).chain([known]) {
        bench.receive(tag);
    }
    classifier.classify(&mut bench.batch, &bench.receiver.pool, true, &bench.stats, &mut || 0, None);
    assert_eq!(bench.dropped(DropReason::UnknownTag), 4);
    assert_eq!(bench.dropped(DropReason::UnknownClass), 2);
    let decided = bench.batch.decisions.iter().map(|decision| &bench.batch.packets[decision.packet as usize]);
    assert_eq!(decided.map(|packet| Some(packet.tag)).collect::<Vec<_>>(), [known]);
    assert_eq!(control.snapshot().rule("web", Disposition::Delivered).packets, 1);
}
