//! A soft NIC of some personality with workers and a sender, on one thread: a frame is received from the wire
//! or sent by a queue pair, and its outcome is returned. Programs replace each other as on a device. Used by
//! the trials.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use control::{Controller, Device, DeviceSelector};
use packet::MacAddr;
use program::{Program, WorkerId};
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{Burst, RxFrame, TransmitError, Wire, WireState};
use worker::Worker;

use super::sender::Sender;
use crate::support::notebook::{Seen, worker};

/// The outcome of a received frame.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "each trial reads its part")]
pub(crate) struct Arrival {
    /// All deliveries, copies included.
    pub(crate) seen: Vec<Seen>,
    /// The rule whose flows dropped it in the device, by the device's counters.
    pub(crate) dropped_by: Option<String>,
    /// The port's counters for this frame alone.
    pub(crate) unmatched: u64,
}

/// The outcome of a sent frame.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "each trial reads its part")]
pub(crate) struct Departure {
    /// The frames on the wire.
    pub(crate) out: Vec<Vec<u8>>,
    /// The rule whose flows counted it, by the device's counters.
    pub(crate) counted_by: Option<String>,
    /// The copies of sniffers.
    pub(crate) seen: Vec<Seen>,
}

/// The number of a worker's buffers.
const FRAMES: u32 = 64;

/// The fields are declared in the order in which they must be dropped: flows, workers, sender, device.
pub(crate) struct Rig {
    controller: Controller,
    workers: Vec<Worker>,
    sender: Sender,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// The packets that the device has counted for each rule.
    counted: BTreeMap<String, u64>,
    nic: SoftNic,
    line: Arc<Mutex<VecDeque<Vec<u8>>>>,
    out: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Rig {
    /// A device of the personality, with nothing installed. Frames come and go by the first of its ports.
    pub(crate) fn new(personality: Personality, workers: u32, ports: u8) -> Self {
        let line = Arc::<Mutex<VecDeque<Vec<u8>>>>::default();
        let out = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let (waiting, gone) = (Arc::clone(&line), Arc::clone(&out));
        let line_of = |waiting, gone| Line { waiting, handed_over: Vec::new(), gone };
        let lines = [line_of(waiting, gone)].into_iter();
        let lines = lines.chain((1..ports).map(|_| line_of(Arc::default(), Arc::default())));
        let ports: Vec<PortConfig> =
            lines.map(|line| PortConfig { wire: Box::new(line), mtu_bytes: 9000 }).collect();
        let numbers = (1..).take(ports.len()).collect();
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".to_owned(),
            personality,
            ports,
            drive: Drive::Manual,
        })
        .expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("softnic0"), Some(&nic)).expect("it opens");
        let seen = Arc::default();
        let workers: Vec<_> = (0..workers).map(|id| worker(&device, WorkerId(id), FRAMES, &seen)).collect();
        let queues = workers.iter().map(Worker::work_queue).collect();
        let controller = Controller::new(&device, numbers, queues).expect("a controller");
        let sender = Sender::new(&device);
        Self { controller, workers, sender, seen, counted: BTreeMap::new(), nic, line, out }
    }

    /// Replaces the program on the device.
    pub(crate) fn install(&mut self, program: &Arc<Program>) -> Result<(), control::ControlError> {
        let workers = &mut self.workers;
        let installed = self.controller.install(Arc::clone(program), &mut |stage| {
            for worker in workers.iter_mut() {
                let control = worker.control();
                let publication = control.publish(stage);
                while !control.acknowledged(publication) {
                    worker.step();
                }
            }
            Ok(())
        })?;
        assert!(installed.warning.is_none(), "{:?}", installed.warning);
        self.counted = self.counts();
        Ok(())
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The program that is on the device.
    #[allow(dead_code, reason = "each trial uses its part")]
    pub(crate) fn installed(&self) -> Option<Arc<Program>> {
        self.controller.installed().cloned()
    }

    /// Receives one frame.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Arrival {
        let before = self.nic.port_stats(1);
        self.line.lock().expect("nobody panics with it").push_back(frame.to_vec());
        assert_eq!(self.nic.pump(1), 1, "one frame was on the wire");
        let (seen, after) = self.settle();
        assert!(self.gone().is_empty(), "what comes in does not go out");
        let dropped_by = self.who_counted();
        let dropped = after.flow_dropped - before.flow_dropped;
        assert_eq!(dropped, u64::from(dropped_by.is_some()), "a drop of the port is one of a rule");
        Arrival { seen, dropped_by, unmatched: after.unmatched - before.unmatched }
    }

    /// Receives a frame repeatedly until the queue of worker `full` has no buffers left.
    #[allow(dead_code, reason = "each trial uses its part")]
    pub(crate) fn fill(&mut self, full: usize, frame: &[u8]) {
        for _ in 0..FRAMES {
            self.offer(frame, Some(full));
        }
    }

    /// Receives one frame while worker `asleep` does not poll; returns the port's counters before and after.
    #[allow(dead_code, reason = "each trial uses its part")]
    pub(crate) fn offer(&mut self, frame: &[u8], asleep: Option<usize>) -> (PortStats, PortStats) {
        let before = self.nic.port_stats(1);
        self.line.lock().expect("nobody panics with it").push_back(frame.to_vec());
        assert_eq!(self.nic.pump(1), 1, "one frame was on the wire");
        let awake = self.workers.iter_mut().enumerate().filter(|(index, _)| Some(*index) != asleep);
        awake.for_each(|(_, worker)| while worker.step() > 0 {});
        (before, self.nic.port_stats(1))
    }

    /// How many packets the device has counted for rules since the last call. Runs every worker, and checks
    /// that they received what the port delivered.
    #[allow(dead_code, reason = "each trial uses its part")]
    pub(crate) fn newly_counted(&mut self) -> u64 {
        self.workers.iter_mut().for_each(|worker| while worker.step() > 0 {});
        self.check_handed_over(&self.nic.port_stats(1));
        let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        let before = sum(&self.counted);
        self.counted = self.counts();
        sum(&self.counted) - before
    }

    /// Sends one frame as the host.
    pub(crate) fn send_out(&mut self, frame: &[u8]) -> Departure {
        let before = self.nic.port_stats(1);
        self.sender.post(frame);
        while self.nic.pump(1) > 0 {}
        self.sender.complete();
        let (seen, after) = self.settle();
        let out = self.gone();
        assert_eq!((after.rx_frames, after.tx_errors), (before.rx_frames, before.tx_errors), "{after:?}");
        let (sent, kept) =
            (after.tx_frames - before.tx_frames, after.tx_flow_dropped - before.tx_flow_dropped);
        assert_eq!((sent, sent + kept), (out.len() as u64, 1), "it leaves or is kept: {after:?}");
        Departure { out, counted_by: self.who_counted(), seen }
    }

    /// Runs the workers until they are idle, and checks the packet accounting.
    fn settle(&mut self) -> (Vec<Seen>, PortStats) {
        self.workers.iter_mut().for_each(|worker| while worker.step() > 0 {});
        let seen = std::mem::take(&mut *self.seen.lock().expect("nobody panics with it"));
        let stats = self.nic.port_stats(1);
        self.check_accounting(&stats);
        (seen, stats)
    }

    /// The frames that were sent on the wire.
    fn gone(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.out.lock().expect("nobody panics with it"))
    }

    fn counts(&mut self) -> BTreeMap<String, u64> {
        // A name has a total for drops and one for drops of sent packets.
        let mut sums = BTreeMap::new();
        for total in self.controller.drop_counters() {
            *sums.entry(total.rule).or_default() += total.packets;
        }
        sums
    }

    /// The rule whose counter went up, by one.
    fn who_counted(&mut self) -> Option<String> {
        let now = self.counts();
        let before = std::mem::replace(&mut self.counted, now);
        let was = |rule: &String| before.get(rule).copied().unwrap_or(0);
        let mut risen = self.counted.iter().filter(|(rule, packets)| **packets != was(rule));
        let (rule, packets) = risen.next()?;
        assert_eq!((*packets, risen.next()), (was(rule) + 1, None), "one counter counts one packet");
        Some(rule.clone())
    }

    /// Every packet is in exactly one counter.
    fn check_accounting(&self, port: &PortStats) {
        assert_eq!(port.copies_lost, 0, "{port:?}");
        self.check_handed_over(port);
    }

    fn check_handed_over(&self, port: &PortStats) {
        assert_eq!(port.rx_frames, port.dispositions(), "{port:?}");
        let snapshots: Vec<_> = self.workers.iter().map(|worker| worker.control().snapshot()).collect();
        let received: u64 = snapshots.iter().map(|worker| worker.received.packets).sum();
        assert_eq!(port.delivered + port.replicated, received, "what was delivered is what workers received");
        assert!(snapshots.iter().all(|worker| worker.imbalance() == 0 && worker.dropped_by_reason() == 0));
    }
}

/// A wire whose other end the test holds.
struct Line {
    waiting: Arc<Mutex<VecDeque<Vec<u8>>>>,
    handed_over: Vec<Vec<u8>>,
    gone: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Wire for Line {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut waiting = self.waiting.lock().expect("nobody panics with it");
        let count = waiting.len().min(burst.capacity_left());
        self.handed_over = waiting.drain(..count).collect();
        for frame in &self.handed_over {
            burst.push(RxFrame::new(frame));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        self.gone.lock().expect("nobody panics with it").push(frame.to_vec());
        Ok(())
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        WireState::Live
    }

    fn describe(&self) -> String {
        "a test".to_owned()
    }

    fn mac(&self) -> MacAddr {
        wire::SOFT_MAC
    }

    fn mtu_bytes(&self) -> u32 {
        9000
    }
}
