//! A complete dataplane in one process: generator, engine, flows, workers. Driven manually to measure one
//! part at a time, or by its threads to measure the whole.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use control::{Device, DeviceSelector};
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{PcapConfig, PcapMode, Wire, WireConfig};
use worker::ReceiveKind;

use crate::Dataplane;

/// Flows that the generator cycles through.
const FLOWS: u32 = 1024;
/// Frames of one pass of the engine, which sends as many.
const BURST: usize = 64;
/// Until buffers are posted and caches are warm.
const WARM_UP: Duration = Duration::from_millis(200);
/// Nanoseconds per frame.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// In the engine, which also sends what the worker sends.
    pub engine_ns: f64,
    /// In the worker.
    pub worker_ns: f64,
}

/// The fields are declared in the order in which they must be dropped.
pub struct Rig {
    /// The controller and the workers that use the soft NIC.
    pub plane: Dataplane,
    /// The device.
    pub nic: SoftNic,
}

impl Rig {
    /// `workers` workers that receive UDP frames of `frame_bytes` from memory, as fast as they are taken, by
    /// one rule.
    ///
    /// # Panics
    /// If the dataplane cannot be set up.
    #[must_use]
    pub fn new(frame_bytes: u32, workers: u32, drive: Drive, core: Option<usize>) -> Self {
        let mut rig = Self::bare(frame_bytes, workers, drive, core);
        rig.plane.install_one_rule();
        rig
    }

    /// The same without a policy: every frame is left to the kernel, which discards it.
    ///
    /// # Panics
    /// As [`Rig::new`].
    #[must_use]
    pub fn bare(frame_bytes: u32, workers: u32, drive: Drive, core: Option<usize>) -> Self {
        Self::on(generator(frame_bytes), Personality::Ideal, workers, drive, core)
    }

    /// A dataplane without a policy on a model of a device, driven manually.
    ///
    /// # Panics
    /// As [`Rig::new`].
    #[must_use]
    pub fn of(personality: Personality, workers: u32) -> Self {
        Self::on(generator(64), personality, workers, Drive::Manual, None)
    }

    /// The frames of a capture, over and over, with this policy.
    ///
    /// # Panics
    /// If the file is no capture or the policy is not valid.
    #[must_use]
    pub fn replaying(capture: &Path, policy: &str, drive: Drive, core: Option<usize>) -> Self {
        let config = PcapConfig { path: capture.to_owned(), mode: PcapMode::Loop, speed: 1.0, output: None };
        let wire = WireConfig::Pcap(config).open().expect("a capture");
        let mut rig = Self::on(wire, Personality::Ideal, 1, drive, core);
        rig.plane.install_policy(policy);
        rig
    }

    fn on(
        wire: Box<dyn Wire>,
        personality: Personality,
        workers: u32,
        drive: Drive,
        core: Option<usize>,
    ) -> Self {
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".to_owned(),
            personality,
            ports: vec![PortConfig { wire, mtu_bytes: 1500 }],
            drive,
        })
        .expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("softnic0"), Some(&nic)).expect("it opens");
        Self { plane: Dataplane::on(device, workers, core, ReceiveKind::Verbs), nic }
    }

    /// Lets the engine and the first worker run alternately on this thread for `time`, `pulse` frames at a
    /// time.
    pub fn alternate(&mut self, pulse: u64, time: Duration) -> Parts {
        let (mut engine, mut worker, mut frames) = (Duration::ZERO, Duration::ZERO, 0);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let start = Instant::now();
            let before = self.port().rx_frames;
            while self.port().rx_frames < before + pulse {
                self.nic.pump(BURST);
            }
            let between = Instant::now();
            while self.plane.workers[0].step() > 0 {}
            worker += between.elapsed();
            engine += between - start;
            frames += self.port().rx_frames - before;
        }
        let each = |time: Duration| time.as_nanos() as f64 / frames as f64;
        Parts { engine_ns: each(engine), worker_ns: each(worker) }
    }

    /// The frames per second that the first worker receives over `time`, on its core, while the engine runs
    /// on its own. Ends the dataplane.
    ///
    /// # Panics
    /// If a thread cannot be started.
    #[must_use]
    pub fn rate(mut self, time: Duration) -> f64 {
        let worker = self.plane.workers.remove(0).spawn().expect("a thread");
        std::thread::sleep(WARM_UP);
        let (before, start) = (self.port().delivered, Instant::now());
        std::thread::sleep(time);
        let rate = (self.port().delivered - before) as f64 / start.elapsed().as_secs_f64();
        self.nic.stop();
        let worker = worker.join().expect("the worker ends");
        drop(self.plane.controller);
        drop(worker);
        rate
    }

    /// The counters of the port.
    #[must_use]
    pub fn port(&self) -> PortStats {
        self.nic.port_stats(1)
    }
}

fn generator(frame_bytes: u32) -> Box<dyn Wire> {
    let text = format!("wire = {}", generator_text(frame_bytes));
    let settings: BTreeMap<String, WireConfig> = toml::from_str(&text).expect("a generator");
    settings["wire"].clone().open().expect("it opens")
}

/// The setting of the wire of a rig's generator, whose frames have `frame_bytes` bytes.
pub(crate) fn generator_text(frame_bytes: u32) -> String {
    format!(
        "{{ kind = 'generator', flows = [{{ src = '10.1.0.0/16', dst = '192.0.2.53', protocol = 'udp', \
         dst_ports = '53', frame_bytes = {frame_bytes}, count = {FLOWS} }}] }}"
    )
}
