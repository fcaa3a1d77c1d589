//! A transmitter on a soft NIC that runs only when the test says so.

use std::sync::Mutex;

use packet::build::FrameBuilder;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{DeviceList, SENDS_PER_COMPLETION};
use wire::{Burst, TransmitError, Wire};

use super::*;
use crate::WorkerConfig;
use crate::assembly::assemble;
use crate::receiver::tests::config;

type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

/// Keeps what is sent.
struct Keeper {
    sent: Sent,
    /// How many frames there is room for, until the test takes them.
    room: usize,
    /// Frames that it took, and lost when it was flushed.
    losing: u64,
    lost: u64,
}

/// The source ports of datagrams that the wire refuses, and of those that it takes and loses.
const REFUSED_PORT: u16 = 0xdead;
const LOST_PORT: u16 = 0xdeaf;

impl Wire for Keeper {
    fn receive<'w>(&'w mut self, _: &mut Burst<'w>) {}

    fn has_room(&mut self) -> bool {
        self.sent.lock().expect("frames").len() < self.room
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        let mut frames = self.sent.lock().expect("frames");
        if frames.len() >= self.room {
            return Err(TransmitError::QueueFull);
        }
        if frame.get(34..36) == Some(&REFUSED_PORT.to_be_bytes()) {
            return Err(TransmitError::TooLong);
        }
        if frame.get(34..36) == Some(&LOST_PORT.to_be_bytes()) {
            self.losing += 1;
        } else {
            frames.push(frame.to_vec());
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.lost += std::mem::take(&mut self.losing);
    }

    fn transmit_losses(&self) -> u64 {
        self.lost
    }

    fn describe(&self) -> String {
        "keeper".to_owned()
    }
}

struct Bench {
    transmitter: Transmitter,
    pool: FramePool,
    sent: Sent,
    nic: SoftNic,
}

const LIMIT: u32 = 4;

impl Bench {
    fn new(personality: Personality) -> Self {
        Self::with_limit(personality, LIMIT)
    }

    fn with_limit(personality: Personality, limit: u32) -> Self {
        Self::on_wire(personality, limit, usize::MAX)
    }

    /// On a wire that has room for so many frames.
    fn on_wire(personality: Personality, limit: u32, room: usize) -> Self {
        let sent = Sent::default();
        let wire = Keeper { sent: Arc::clone(&sent), room, losing: 0, lost: 0 };
        let name = "send0".to_owned();
        let ports = vec![PortConfig { wire: Box::new(wire), mtu_bytes: 1500 }];
        let nic = SoftNic::create(SoftNicConfig { name, personality, ports, drive: Drive::Manual });
        let nic = nic.expect("a soft NIC");
        let list = DeviceList::of(&nic).expect("a list");
        let context = list.find("send0").expect("the soft NIC").open().expect("it opens");
        let config = WorkerConfig { frames: 2 * limit, ..config() };
        let parts = assemble(&context, &config).expect("a worker's parts");
        let transmitter = Transmitter::open(&context, &parts.domain, PortNumber(1), limit).expect("it sends");
        Self { transmitter, pool: parts.receiver.pool, sent, nic }
    }

    fn frame(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.pool.take().expect("a free frame");
        self.pool.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        frame
    }

    fn queue(&mut self, bytes: &[u8]) -> Result<(), SinkDrop> {
        let frame = self.frame(bytes);
        let refused = self.transmitter.queue(frame, Pieces::one(0..bytes.len()));
        refused.map_err(|(frame, reason)| {
            self.pool.release(frame);
            reason
        })
    }

    /// The reasons of the frames that the device did not take.
    fn flush(&mut self) -> Vec<SinkDrop> {
        let (mut frames, mut reasons) = (Vec::new(), Vec::new());
        self.transmitter.flush(&mut self.pool, |frame, reason| {
            frames.push(frame);
            reasons.push(reason);
        });
        frames.into_iter().for_each(|frame| self.pool.release(frame));
        reasons
    }

    /// The length and the success of each completed send.
    fn reap(&mut self) -> Vec<(u32, bool)> {
        let (mut frames, mut completed) = (Vec::new(), Vec::new());
        self.transmitter.reap(&mut self.pool, |done| {
            frames.push(done.frame);
            completed.push((done.bytes, done.status == CompletionStatus::Success));
        });
        frames.into_iter().for_each(|frame| self.pool.release(frame));
        completed
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent.lock().expect("frames"))
    }

    fn all_frames_are_back(&self) -> bool {
        self.transmitter.held() == 0 && self.pool.free_count() == self.pool.frame_count()
    }
}

fn udp(port: u16) -> Vec<u8> {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(port, 53).build()
}

#[test]
fn queued_packets_are_sent_in_order_and_their_frames_come_back() {
    for personality in [Personality::Ideal, Personality::Mlx5, Personality::Mlx4] {
        let mut bench = Bench::new(personality);
        for port in 1..=3 {
            bench.queue(&udp(port)).expect("room");
        }
        assert_eq!((bench.transmitter.room(), bench.sent().len()), (1, 0), "nothing is posted yet");
        assert_eq!(bench.flush(), []);
        assert_eq!(bench.reap(), [], "the device has not run");
        bench.nic.pump(8);
        assert_eq!(bench.sent(), [udp(1), udp(2), udp(3)], "{personality:?}");
        let bytes = udp(1).len() as u32;
        assert_eq!(bench.reap(), [(bytes, true); 3]);
        assert!(bench.all_frames_are_back());
    }
}

#[test]
fn a_packet_in_two_pieces_is_sent_as_one() {
    let mut bench = Bench::new(Personality::Ideal);
    let packet = udp(7);
    let mut parts = packet[14..].to_vec();
    parts.extend(&packet[..14]);
    let frame = bench.frame(&parts);
    let (rest, bytes) = (packet.len() - 14, packet.len());
    let pieces = Pieces::two(rest..bytes, 0..rest);
    assert_eq!(pieces.bytes(), bytes);
    bench.transmitter.queue(frame, pieces).expect("room");
    assert_eq!(bench.flush(), []);
    bench.nic.pump(8);
    assert_eq!(bench.sent(), [packet]);
    assert_eq!(bench.reap(), [(bytes as u32, true)]);
}

#[test]
fn no_more_than_the_limit_is_queued_or_in_flight() {
    let mut bench = Bench::new(Personality::Ideal);
    for turn in 0..3 {
        for port in 0..2 {
            bench.queue(&udp(port)).expect("room");
        }
        assert_eq!(bench.flush(), []);
        bench.queue(&udp(2)).expect("room");
        bench.queue(&udp(3)).expect("room");
        assert_eq!(bench.queue(&udp(4)), Err(SinkDrop::TxFull), "turn {turn}");
        assert_eq!(bench.flush(), []);
        bench.nic.pump(8);
        assert_eq!(bench.reap().len(), LIMIT as usize);
        assert!(bench.all_frames_are_back());
    }
}

#[test]
fn a_request_that_the_device_cannot_take_comes_back_and_the_others_are_sent() {
    let mut bench = Bench::new(Personality::Ideal);
    bench.queue(&udp(1)).expect("room");
    let frame = bench.frame(&udp(2));
    let beyond = bench.pool.frame_bytes() as usize + 1;
    bench.transmitter.queue(frame, Pieces::one(0..beyond)).expect("room");
    bench.queue(&udp(3)).expect("room");
    assert_eq!(bench.flush(), [SinkDrop::TxFailed]);
    bench.nic.pump(8);
    assert_eq!(bench.sent(), [udp(1), udp(3)]);
    assert_eq!(bench.reap().len(), 2);
    assert!(bench.all_frames_are_back());
}

#[test]
fn when_the_last_request_is_refused_those_before_it_are_sent_and_come_back() {
    let mut bench = Bench::new(Personality::Ideal);
    bench.queue(&udp(1)).expect("room");
    let frame = bench.frame(&udp(2));
    let beyond = bench.pool.frame_bytes() as usize + 1;
    bench.transmitter.queue(frame, Pieces::one(0..beyond)).expect("room");
    assert_eq!(bench.flush(), [SinkDrop::TxFailed]);
    bench.nic.pump(8);
    assert_eq!(bench.sent(), [udp(1)]);
    assert_eq!(bench.reap().len(), 1);
    assert!(bench.all_frames_are_back());
    bench.queue(&udp(3)).expect("it sends");
    assert_eq!(bench.flush(), []);
    bench.nic.pump(8);
    assert_eq!(bench.sent(), [udp(3)]);
    assert_eq!(bench.reap().len(), 1);
}

#[test]
fn sends_beyond_one_completion_come_back_in_order() {
    const COUNT: u16 = 2 * SENDS_PER_COMPLETION as u16 + 5;
    for personality in [Personality::Ideal, Personality::Mlx5, Personality::Mlx4] {
        let mut bench = Bench::with_limit(personality, u32::from(COUNT));
        // Twice around the queue, with other lengths.
        for turn in 1..=3 {
            let packet = |port: u16| [udp(port), vec![0; usize::from(port + turn)]].concat();
            for port in 1..=COUNT {
                bench.queue(&packet(port)).expect("room");
            }
            assert_eq!(bench.flush(), []);
            let mut reaped = Vec::new();
            while reaped.len() < usize::from(COUNT) {
                bench.nic.pump(8);
                reaped.extend(bench.reap());
            }
            let sent: Vec<_> = (1..=COUNT).map(packet).collect();
            let sizes: Vec<_> = sent.iter().map(|packet| (packet.len() as u32, true)).collect();
            assert_eq!((bench.sent(), reaped), (sent, sizes), "{personality:?}");
            assert!(bench.all_frames_are_back());
        }
    }
}

#[test]
fn after_a_failed_send_nothing_is_sent_until_the_queue_pair_is_replaced() {
    let mut bench = Bench::new(Personality::Ideal);
    bench.queue(&udp(1)).expect("room");
    // Too short for Ethernet: the device fails the queue pair.
    bench.queue(&[0; 8]).expect("room");
    bench.queue(&udp(3)).expect("room");
    assert_eq!(bench.flush(), []);
    bench.nic.pump(8);
    bench.nic.pump(8);
    let bytes = udp(1).len() as u32;
    assert_eq!(bench.reap(), [(bytes, true), (8, false), (bytes, false)]);
    assert!(bench.transmitter.has_failed() && bench.all_frames_are_back());
    assert_eq!(bench.queue(&udp(4)), Err(SinkDrop::TxFailed));
    bench.transmitter.recover().expect("a new queue pair");
    bench.queue(&udp(5)).expect("it sends again");
    bench.flush();
    bench.nic.pump(8);
    assert_eq!(bench.sent(), [udp(1), udp(5)]);
    assert_eq!(bench.reap(), [(bytes, true)]);
}

#[test]
fn another_thread_can_end_the_sends_in_flight() {
    let mut bench = Bench::new(Personality::Ideal);
    bench.queue(&udp(1)).expect("room");
    assert_eq!(bench.flush(), []);
    bench.transmitter.handle().to_error().expect("to ERR");
    bench.nic.pump(8);
    assert_eq!(bench.reap(), [(udp(1).len() as u32, false)]);
    assert!(bench.all_frames_are_back() && bench.sent().is_empty());
}

/// The last byte is in another piece where `is_gathered`: such a send takes the general path of the device.
fn sends(ports: &[u16], is_gathered: bool) -> Bench {
    let mut bench = Bench::with_limit(Personality::Ideal, 8);
    for &port in ports {
        let bytes = udp(port);
        let frame = bench.frame(&bytes);
        let last = bytes.len() - 1;
        let pieces =
            if is_gathered { Pieces::two(0..last, last..last + 1) } else { Pieces::one(0..last + 1) };
        assert!(bench.transmitter.queue(frame, pieces).is_ok());
    }
    assert_eq!(bench.flush(), []);
    bench.nic.pump(8);
    bench
}

fn sends_with_a_refused_one(is_gathered: bool) {
    let mut bench = sends(&[1, REFUSED_PORT, 2], is_gathered);
    let bytes = udp(1).len() as u32;
    assert_eq!(bench.reap(), [(bytes, true), (bytes, false), (bytes, true)]);
    assert!(!bench.transmitter.has_failed() && bench.all_frames_are_back());
    assert_eq!(bench.sent(), [udp(1), udp(2)]);
    let stats = bench.nic.port_stats(1);
    assert_eq!((stats.tx_frames, stats.tx_errors), (2, 1));
}

#[test]
fn a_frame_that_the_wire_refuses_fails_alone() {
    sends_with_a_refused_one(false);
    sends_with_a_refused_one(true);
}

#[test]
fn a_frame_that_is_lost_at_the_flush_is_reported_by_the_last_send() {
    for is_gathered in [false, true] {
        let mut bench = sends(&[LOST_PORT, 1, LOST_PORT, REFUSED_PORT, 2], is_gathered);
        let bytes = udp(1).len() as u32;
        assert_eq!(bench.reap(), [true, true, false, false, false].map(|is_sent| (bytes, is_sent)));
        assert!(!bench.transmitter.has_failed() && bench.all_frames_are_back());
        assert_eq!(bench.sent(), [udp(1), udp(2)]);
        let stats = bench.nic.port_stats(1);
        assert_eq!((stats.tx_frames, stats.tx_errors), (2, 3));
        bench.queue(&udp(3)).expect("room");
        assert_eq!(bench.flush(), []);
        bench.nic.pump(8);
        assert_eq!((bench.reap(), bench.sent()), (vec![(bytes, true)], vec![udp(3)]));
    }
}

#[test]
fn what_a_full_wire_cannot_take_waits_and_is_no_loss() {
    let mut bench = Bench::on_wire(Personality::Ideal, 64, 16);
    for port in 0..40 {
        bench.queue(&udp(port)).expect("room");
    }
    assert_eq!(bench.flush(), []);
    let mut sent = Vec::new();
    for frames in [16, 16, 8] {
        // The second pass finds no room.
        bench.nic.pump(8);
        bench.nic.pump(8);
        let taken = bench.sent();
        assert_eq!(taken.len(), frames);
        sent.extend(taken);
        bench.reap();
    }
    assert!(bench.all_frames_are_back() && !bench.transmitter.has_failed());
    assert_eq!(sent, (0..40).map(udp).collect::<Vec<_>>(), "in order");
    let stats = bench.nic.port_stats(1);
    assert_eq!((stats.tx_frames, stats.tx_errors), (40, 0));
}
