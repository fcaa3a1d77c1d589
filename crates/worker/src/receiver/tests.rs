//! Every completion that a receive can have, passed to a receiver whose frames the test holds.

use program::{Band, ClassId, ClassTag, WorkerId};
use softnic::wire::NullWire;
use softnic::{Drive, Personality, PortConfig, SoftNic, SoftNicConfig};
use verbs::{Context, DeviceList};

use super::*;
use crate::assembly::{Parts, assemble};
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
pub(crate) const FRAME_BYTES: u32 = 1536;

/// Two ports, and no packets.
pub(crate) fn nic(name: &str, mtu_bytes: u32) -> (SoftNic, Arc<Context>) {
    let port = || PortConfig { wire: Box::new(NullWire), mtu_bytes };
    let nic = SoftNic::create(SoftNicConfig {
        name: name.to_owned(),
        personality: Personality::Ideal,
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

    fn complete(&mut self, completed: Completed, with_frame: bool) -> Option<u32> {
        let frame = with_frame.then(|| self.receiver.pool.take().expect("enough frames"));
        accept_completion(completed, frame, FRAME_BYTES, &mut self.batch, &self.stats)
    }

    fn refill(&mut self) {
        self.batch.take_frames_back();
        self.receiver.refill(&mut self.batch, &self.stats);
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.stats.reasons()[reason.index()].1
    }

    fn failed(&self, failure: Failure) -> u64 {
        self.stats.failures()[failure.index()].1
    }
}

fn received(bytes: Option<u32>) -> Completed {
    Completed { status: Status::Success, bytes, tag: Some(FlowTag(1)), timestamp: None }
}

fn failed(status: Status) -> Completed {
    Completed { status, bytes: None, tag: None, timestamp: None }
}

#[test]
fn every_success_is_received_and_becomes_a_packet_or_a_drop_with_its_reason() {
    let mut bench = Bench::new("sorts0");
    assert_eq!(bench.complete(received(Some(60)), true), Some(60));
    assert_eq!(bench.complete(received(Some(FRAME_BYTES)), true), Some(FRAME_BYTES));
    assert_eq!(bench.batch.packets.len(), 2);
    assert_eq!(bench.complete(received(Some(FRAME_BYTES + 1)), true), Some(0));
    assert_eq!(bench.complete(received(None), true), Some(0));
    assert_eq!(bench.dropped(DropReason::BadLength), 2);
    assert_eq!(bench.complete(received(Some(60)), false), Some(60));
    assert_eq!(bench.dropped(DropReason::BadFrame), 1);
    assert_eq!((bench.batch.packets.len(), bench.batch.frames.len()), (2, 2));
    bench.batch.take_frames_back();
    assert_eq!((bench.batch.packets.len(), bench.batch.frames.len()), (0, 4));
    assert_eq!(bench.stats.failures().iter().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn no_failure_is_received_and_each_is_counted_by_its_status() {
    let mut bench = Bench::new("sorts1");
    for status in [
        Status::LocalLength,
        Status::LocalQueuePairOperation,
        Status::LocalProtection,
        Status::LocalAccess,
        Status::General,
        Status::Unknown(99),
    ] {
        assert_eq!(bench.complete(failed(status), true), None);
    }
    assert_eq!(bench.complete(failed(Status::LocalLength), false), None, "of an unknown frame");
    let counts = Failure::ALL.iter().map(|&failure| bench.failed(failure)).collect::<Vec<_>>();
    assert_eq!(counts, [2, 1, 2, 0, 0, 2]);
    assert_eq!(bench.stats.reasons().iter().map(|(_, count)| count).sum::<u64>(), 0);
    assert!(bench.batch.packets.is_empty() && !bench.stats.queue_failed());
    bench.refill();
    assert_eq!((bench.stats.posted.read(), bench.batch.frames.len()), (6, 0), "the frames are of use still");
}

#[test]
fn a_flushed_or_broken_queue_is_failed_and_gets_no_frames_back() {
    for (name, status) in [("sorts2", Status::Flushed), ("sorts3", Status::Fatal)] {
        let mut bench = Bench::new(name);
        for _ in 0..FRAMES {
            assert_eq!(bench.complete(failed(status), true), None);
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
        bench.complete(received(Some(60)), true);
        bench.refill();
        assert_eq!((posted(&bench), bench.batch.frames.len()), (0, held), "half a batch is 4");
    }
    bench.complete(received(Some(60)), true);
    bench.refill();
    assert_eq!((posted(&bench), bench.batch.frames.len()), (4, 0));

    bench.complete(received(Some(60)), true);
    bench.batch.take_frames_back();
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
    let control = WorkerControl::new(WorkerId(0), Vec::new());
    let mut classifier = Classifier::new(FRAMES);
    control.publish(Band::A, crate::tests::program(&["web"]));
    classifier.refresh(&control.shared().mailbox, &bench.batch);
    let class = |band, class| ClassTag { band, class: ClassId(class) }.encode().expect("few classes");
    // No tag, an invalid tag, and a tag of a band without a program.
    let unknown = [None, Some(0), Some(1 << 23), Some(class(Band::B, 0))];
    // Beyond the program's classes.
    let beyond = [Some(class(Band::A, 1)), Some(class(Band::A, 1000))];
    let known = Some(class(Band::A, 0));
    for tag in unknown.into_iter().chain(beyond).chain([known]) {
        bench.complete(Completed { tag: tag.map(FlowTag), ..received(Some(60)) }, true);
    }
    classifier.classify(&mut bench.batch, &bench.receiver.pool, &bench.stats);
    assert_eq!(bench.dropped(DropReason::UnknownTag), 4);
    assert_eq!(bench.dropped(DropReason::UnknownClass), 2);
    let decided = bench.batch.packets.iter().filter(|packet| packet.outcome.is_some());
    assert_eq!(decided.map(|packet| packet.tag.map(|tag| tag.0)).collect::<Vec<_>>(), [known]);
    assert_eq!(control.snapshot().rule("web", Disposition::Delivered).packets, 1);
}
