//! A complete dataplane in one process: generator, engine, flows, workers. Driven manually to measure one part at a time,
//! or by its threads to measure the whole.

use std::fmt::Write as _;
use std::sync::Arc;

use control::{Controller, Device, DeviceSelector};
use device_model::DeviceProfile;
use policy::{NoFiles, Source};
use program::{Program, SinkId, SinkKind, WorkerId};
use softnic::wire::WireConfig;
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNic, SoftNicConfig};
use worker::sinks::{Environment, Opened, SinkError};
use worker::{Idle, SinkMap, Slot, Worker, WorkerConfig};

/// Flows that the generator cycles through.
const FLOWS: u32 = 1024;

/// The fields are declared in the order in which they must be dropped.
pub struct Rig {
    /// Keeps the flows installed.
    pub controller: Controller,
    /// Not yet running.
    pub workers: Vec<Worker>,
    device: Device,
    /// Used by all of the above.
    pub nic: SoftNic,
}

impl Rig {
    /// `workers` workers behind a policy of `rules` rules, of which the last one matches all packets:
    /// UDP frames of `frame_bytes` from memory, as fast as they are taken.
    ///
    /// # Panics
    /// If the dataplane cannot be set up.
    #[must_use]
    pub fn new(frame_bytes: u32, rules: usize, workers: u32, drive: Drive, core: Option<usize>) -> Self {
        let mut rig = Self::bare(frame_bytes, workers, drive, core);
        rig.install(program(rules, workers as usize));
        rig
    }

    /// The same without a policy: every frame is left to the kernel, which discards it.
    ///
    /// # Panics
    /// As [`Rig::new`].
    #[must_use]
    pub fn bare(frame_bytes: u32, workers: u32, drive: Drive, core: Option<usize>) -> Self {
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".to_owned(),
            personality: Personality::Ideal,
            ports: vec![PortConfig { wire: generator(frame_bytes), mtu_bytes: 1500 }],
            drive,
        })
        .expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("softnic0"), Some(&nic)).expect("it opens");
        let workers: Vec<_> = (0..workers).map(|id| worker(&device, WorkerId(id), core)).collect();
        let queues: Vec<_> = workers.iter().map(Worker::work_queue).collect();
        let controller = Controller::new(&device, vec![1], queues).expect("a controller");
        Self { controller, workers, device, nic }
    }

    /// Replaces the program.
    ///
    /// # Panics
    /// If the device refuses it.
    pub fn install(&mut self, program: Arc<Program>) {
        let controls: Vec<_> = self.workers.iter().map(Worker::control).collect();
        self.controller
            .install(program, &mut |band, program| {
                for control in &controls {
                    control.publish(band, Arc::clone(&program));
                }
                Ok(())
            })
            .expect("it installs");
    }

    /// Gives the packets of all rules to a sink, on every worker. What it returns must be dropped before the rig.
    ///
    /// # Panics
    /// If the sink cannot be opened.
    #[must_use]
    pub fn open_sink(&mut self, kind: SinkKind) -> Opened {
        self.try_open_sink(kind).expect("it opens")
    }

    /// Like [`Rig::open_sink`].
    ///
    /// # Errors
    /// The sink cannot be opened.
    ///
    /// # Panics
    /// If the device refuses the program.
    pub fn try_open_sink(&mut self, kind: SinkKind) -> Result<Opened, SinkError> {
        let sink = program::Sink { name: "bench".to_owned(), kind };
        let mut opened = self.open(&sink)?;
        let mut program = (*program(1, self.workers.len())).clone();
        program.sinks.push(sink);
        program.rules.iter_mut().for_each(|rule| rule.sinks = vec![SinkId::of(0)]);
        let program = Arc::new(program);
        let slot = Slot::of(0).expect("the first place");
        let map = Arc::new(SinkMap::new(1, &program, &[slot]));
        opened.hub.announce(1, &program);
        let controls: Vec<_> = self.workers.iter().map(Worker::control).collect();
        for (control, endpoint) in controls.iter().zip(opened.endpoints.drain(..)) {
            control.place_sink(slot, Some(endpoint));
        }
        let mut publish = |band, program: Arc<Program>| {
            for control in &controls {
                control.publish_with_sinks(band, Arc::clone(&program), Arc::clone(&map));
            }
            Ok(())
        };
        self.controller.install(program, &mut publish).expect("it installs");
        Ok(opened)
    }

    /// Opens a sink for the workers without giving it packets. What it returns must be dropped before the rig.
    ///
    /// # Errors
    /// The sink cannot be opened.
    pub fn open(&self, sink: &program::Sink) -> Result<Opened, SinkError> {
        let domains: Vec<_> = self.workers.iter().map(Worker::domain).collect();
        let budgets: Vec<_> = self.workers.iter().map(Worker::frame_budget).collect();
        let context = Arc::clone(self.device.context());
        let environment = Environment {
            context: &context,
            domains: &domains,
            budgets: &budgets,
            ports: &[1],
            stations: &[],
        };
        worker::sinks::open(sink, &environment)
    }

    /// The counters of the port.
    #[must_use]
    pub fn port(&self) -> PortStats {
        self.nic.port_stats(1)
    }
}

fn worker(device: &Device, id: WorkerId, core: Option<usize>) -> Worker {
    let mut config = WorkerConfig::new(id);
    config.core = core;
    config.idle = Idle::Spin;
    Worker::new(device.context(), config).expect("a worker")
}

fn generator(frame_bytes: u32) -> Box<dyn softnic::wire::Wire> {
    let text = format!(
        "kind = 'generator'\nflows = [{{ src = '10.1.0.0/16', dst = '192.0.2.53', protocol = 'udp', \
         dst_ports = '53', frame_bytes = {frame_bytes}, count = {FLOWS} }}]"
    );
    let config: WireConfig = toml::from_str(&text).expect("a generator");
    config.open().expect("it opens")
}

fn program(rules: usize, workers: usize) -> Arc<Program> {
    let mut text = "version = 1\ndefault = 'kernel'\n[groups.every]\nworkers = 'all'\n".to_owned();
    for index in 0..rules.saturating_sub(1) {
        let (high, low) = (index / 250, index % 250);
        writeln!(text, "[[rules]]\nname = 'host-{index}'\nmatch = {{ dst = '198.18.{high}.{low}', protocol = 'udp', dst_port = 53 }}\naction = 'drop'")
            .expect("writing to a String");
    }
    text.push_str("[[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'every' }\n");
    let (policy, _) = policy::parse(&Source::new("bench.toml", text), &NoFiles).expect("a policy");
    Arc::new(compiler::compile(&policy, &DeviceProfile::ideal(), workers).expect("a program"))
}
