//! A worker that is behind: its receive queue fills while it sleeps, then it takes what is there. On any
//! provider; the device works on another core.
//!
//! A worker that keeps up polls for each packet as it arrives, and its time for a packet is mostly that of
//! the cache line that comes from the other core. What limits its rate is this.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use control::{Device, DeviceSelector};
use program::{ForwardSink, SinkKind};
use softnic::Drive;
use softnic_verbs::SoftNic;
use worker::ReceiveKind;
use worker::sinks::Opened;

use crate::daemon::Provider;
use crate::{Dataplane, Rig, rig};

/// The frames of a worker.
const FRAMES: usize = 4096;
/// Packets that are sent in one go: no more than may be in flight, with those of the last step.
const SENDS: usize = 256;
/// The least packets in a full queue: the worker's batch, many times.
const FULL: usize = 1024;

/// The fields are declared in the order in which they must be dropped.
pub struct BackloggedWorker {
    sink: Option<Opened>,
    plane: Dataplane,
    /// The device, if it is one of this process.
    _nic: Option<SoftNic>,
    /// Until the device has filled the queue.
    fill_time: Duration,
}

impl BackloggedWorker {
    /// A worker with one rule, on a device of this process whose engine runs on `core`, or on the one that
    /// [`Provider::launcher`] has given to it.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn on(provider: Provider, frame_bytes: u32, core: usize, fill_time: Duration) -> Self {
        let receive = match provider {
            Provider::SoftNic => {
                let Rig { plane, nic } = Rig::new(frame_bytes, 1, Drive::Thread { core: Some(core) }, None);
                return Self { sink: None, plane, _nic: Some(nic), fill_time };
            }
            Provider::Mlx5 => ReceiveKind::Verbs,
            Provider::Mlx5Direct => ReceiveKind::Direct,
        };
        let device = Device::open(&DeviceSelector::named(provider.device()), None).expect("it opens");
        let mut plane = Dataplane::on(device, 1, None, receive);
        plane.install_one_rule();
        Self { sink: None, plane, _nic: None, fill_time }
    }

    /// Sends all packets again, with their MAC addresses swapped.
    ///
    /// # Panics
    /// If the device refuses the sink.
    #[must_use]
    pub fn forwarding(mut self) -> Self {
        let options = ForwardSink { port: Some(1), swap_macs: true, ..ForwardSink::default() };
        self.sink = Some(self.plane.open_sink(SinkKind::Forward(options)));
        self
    }

    /// Nanoseconds for a packet.
    ///
    /// # Errors
    /// The device did not fill the queue.
    pub fn packet_ns(&mut self, time: Duration) -> Result<f64, String> {
        let (begun, mut busy, mut packets, mut fills) = (Instant::now(), Duration::ZERO, 0, 0);
        while begun.elapsed() < time {
            self.wait();
            let start = Instant::now();
            packets += self.drain();
            busy += start.elapsed();
            fills += 1;
        }
        let each = packets / fills.max(1);
        match each >= self.goal().min(FULL) {
            true => Ok(busy.as_nanos() as f64 / packets as f64),
            false => Err(format!("the queue was not full: {each} packets")),
        }
    }

    /// Lets the device fill the queue.
    pub fn wait(&self) {
        std::thread::sleep(self.fill_time);
    }

    /// Takes what has arrived; returns the number of packets.
    pub fn drain(&mut self) -> usize {
        let goal = self.goal();
        let worker = &mut self.plane.workers[0];
        let mut taken = 0;
        while taken < goal {
            match worker.step() {
                0 => break,
                packets => taken += packets,
            }
        }
        taken
    }

    /// The most packets that are taken in one go.
    fn goal(&self) -> usize {
        if self.sink.is_some() { SENDS } else { FRAMES }
    }

    /// Packets that the sink has dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let counters = self.sink.iter().flat_map(|sink| &sink.counters);
        counters.flat_map(|counters| counters.read().dropped).map(|(_, count)| count).sum()
    }
}

/// Runs a program, `words`, as a process with the device, and returns what it prints.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run_client(
    provider: Provider,
    frame_bytes: u32,
    cores: &[usize; 2],
    words: &[String],
) -> Result<String, String> {
    let [engine, worker] = cores;
    // This thread is pinned, and a process inherits that.
    let output = Command::new("taskset")
        .args(["-c", &format!("{engine},{worker}")])
        .args(provider.launcher(&rig::generator_text(frame_bytes), *engine)?)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("taskset: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout) + &text(&output.stderr))
    } else {
        Err(format!("{words:?}: {}\n{}", output.status, text(&output.stderr)))
    }
}
