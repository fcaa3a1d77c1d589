//! The path of a packet on one thread: a wire, the soft NIC's engine under the real libibverbs, flows,
//! workers. A sink records the packets of each worker.

use std::path::Path;
use std::sync::{Arc, Mutex};

use control::{Controller, Device, DeviceSelector};
use device_model::DeviceModel;
use policy::Source;
use program::{Program, WorkerId};
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{PcapConfig, PcapMode, WireConfig};
use worker::{Worker, WorkerSnapshot};

use crate::support::notebook::{Seen, worker};

/// The fields are declared in the order in which they must be dropped: flows, workers, device.
pub(crate) struct Chain {
    controller: Controller,
    workers: Vec<Worker>,
    seen: Arc<Mutex<Vec<Seen>>>,
    nic: SoftNic,
}

pub(crate) fn compile(text: &str, workers: usize) -> Arc<Program> {
    let source = Source::new("captures.toml", text);
    let (policy, _) = policy::parse(&source, &policy::NoFiles).unwrap_or_else(|bad| panic!("{bad}"));
    let program = compiler::compile(&policy, &DeviceModel::ideal(), workers);
    Arc::new(program.unwrap_or_else(|bad| panic!("{bad}")))
}

impl Chain {
    /// Puts the capture on the wire and `program` on the device.
    pub(crate) fn new(capture: &Path, program: &Arc<Program>, workers: u32) -> Self {
        let wire = WireConfig::Pcap(PcapConfig {
            path: capture.to_path_buf(),
            mode: PcapMode::Once,
            speed: 1.0,
            output: None,
        });
        let wire = wire.open().unwrap_or_else(|error| panic!("{error}"));
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".to_owned(),
            personality: Personality::Ideal,
            ports: vec![PortConfig { wire, mtu_bytes: 9000 }],
            drive: Drive::Manual,
        })
        .expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("softnic0"), Some(&nic)).expect("it opens");
        let seen = Arc::default();
        let workers: Vec<_> = (0..workers).map(|id| worker(&device, WorkerId(id), 256, &seen)).collect();
        let queues = workers.iter().map(Worker::work_queue).collect();
        let mut controller = Controller::new(&device, vec![1], queues).expect("a controller");
        let controls: Vec<_> = workers.iter().map(Worker::control).collect();
        controller
            .install(Arc::clone(program), &mut |stage| {
                for control in &controls {
                    control.publish(stage);
                }
                Ok(())
            })
            .expect("it installs");
        Self { controller, workers, seen, nic }
    }

    /// Receives one frame; returns the delivery if a worker got it.
    pub(crate) fn one(&mut self) -> Option<Seen> {
        assert_eq!(self.nic.pump(1), 1, "the capture has one more packet");
        self.workers.iter_mut().for_each(|worker| while worker.step() > 0 {});
        let mut seen = std::mem::take(&mut *self.seen.lock().expect("nobody panics with it"));
        assert!(seen.len() <= 1, "one packet was delivered {} times", seen.len());
        seen.pop()
    }

    /// Receives all frames of the capture.
    pub(crate) fn all(&mut self) {
        while !self.nic.wires_finished() {
            self.nic.pump(64);
            self.workers.iter_mut().for_each(|worker| while worker.step() > 0 {});
        }
        self.check_accounting();
    }

    pub(crate) fn port(&self) -> PortStats {
        self.nic.port_stats(1)
    }

    pub(crate) fn snapshots(&self) -> Vec<WorkerSnapshot> {
        self.workers.iter().map(|worker| worker.control().snapshot()).collect()
    }

    /// Packets that the flows of a drop rule dropped.
    pub(crate) fn dropped(&mut self, rule: &str) -> u64 {
        let totals = self.controller.drop_counters();
        totals.iter().filter(|total| total.rule == rule).map(|total| total.packets).sum()
    }

    /// Every packet is in exactly one counter.
    pub(crate) fn check_accounting(&self) {
        let port = self.port();
        assert_eq!(port.rx_frames, port.dispositions(), "{port:?}");
        let received: u64 = self.snapshots().iter().map(|worker| worker.received.packets).sum();
        assert_eq!(port.delivered, received, "what the device delivered is what workers received");
        assert!(self.snapshots().iter().all(|worker| worker.imbalance() == 0));
    }
}
