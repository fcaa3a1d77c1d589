//! The kind `kernel`: packets are given to the host's network stack by a TAP interface, which has a queue for
//! each worker. A worker copies its packets into a [ring](super::handoff); a thread for each queue ([`pump`])
//! writes them to the interface, and sends what the host sends by it ([`back`]).
//!
//! Back-pressure: a packet that does not fit into the ring is dropped as `ring_full`. The thread drops
//! packets that are longer than the MTU (`too_long`), while the interface is down (`down`) or removed
//! (`closed`), and those that the kernel refuses (`write_failed`). It attaches to a removed interface again,
//! or creates it again.

mod back;
mod pump;
mod tap;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking::{Wakeup, join_within};
use program::{KernelSink, TapMac};
use verbs::PortNumber;

use self::back::Back;
use self::pump::{Condition, OtherQueues, Pump, Shared};
pub use self::tap::TapError;
use self::tap::{Interface, MTU_DEFAULT, Queue, Wanted};
use super::handoff::{self, Consumer, PACKET_BYTES_MAX, Producer, record_bytes};
use super::{CheckedPlace, Environment, Hub, Opened, Ports, SinkStatus, Station};
use crate::FRAME_BYTES_MAX;
use crate::sink::{Deliveries, Sink, SinkCounters, SinkDrop};

const _: () = assert!(FRAME_BYTES_MAX as usize <= PACKET_BYTES_MAX);

/// Attaches to the interface, or creates it, and starts the threads.
pub(super) fn open(
    name: &str,
    options: &KernelSink,
    environment: &Environment<'_>,
) -> Result<Opened, TapError> {
    let port = port_of(options, environment.ports)?;
    let interface = Arc::new(interface(options, port, environment.stations)?);
    let queues = interface.attach_all(environment.workers())?;
    let counters: Vec<Arc<SinkCounters>> = (0..environment.workers()).map(|_| Arc::default()).collect();
    let threads = queues.len();
    let mut hub = KernelHub::new(&interface, options, port, threads);
    let (mut pumps, endpoints) = pumps(name, options, &interface, &hub.shared, queues, &counters)?;
    if options.transmit {
        let failed = |source| TapError::Transmit { port, source };
        let attributes = environment.context.port(PortNumber(port)).map_err(|error| failed(error.into()))?;
        for pump in &mut pumps {
            let mtu = pump.queue.as_ref().map_or(MTU_DEFAULT, Queue::mtu);
            let back = Back::open(environment.context, port, &attributes, mtu, name).map_err(failed)?;
            hub.mtu_max = Some(back.mtu_max());
            hub.sent.push(Arc::clone(back.counters()));
            pump.back = Some(back);
        }
    }
    pumps.into_iter().try_for_each(|pump| hub.start(pump))?;
    let transmit = hub.sent.clone();
    Ok(Opened { hub: Box::new(hub), endpoints, counters, transmit })
}

/// Checks that the interface can be attached to, and attaches to none.
pub(super) fn check(options: &KernelSink, place: &CheckedPlace<'_>) -> Result<(), TapError> {
    let port = port_of(options, place.ports)?;
    interface(options, port, place.stations)?.check()
}

/// The port that the interface stands for.
fn port_of(options: &KernelSink, ports: &[u8]) -> Result<u8, TapError> {
    let port = options.port.or_else(|| ports.first().copied()).unwrap_or(1);
    if ports.contains(&port) { Ok(port) } else { Err(TapError::NoPort { port }) }
}

fn interface(options: &KernelSink, port: u8, stations: &[Station]) -> Result<Interface, TapError> {
    let wanted = wanted(options, port, stations);
    if options.mac == TapMac::Port && wanted.mac.is_none() {
        return Err(TapError::NoStation { port });
    }
    let (name, made, offloads) = (options.interface.clone(), Mutex::default(), OnceLock::new());
    Ok(Interface { name, wanted: Mutex::new(wanted), made, offloads })
}

/// The address and the MTU of the interface: those of the port as it is now, unless the policy has others.
fn wanted(options: &KernelSink, port: u8, stations: &[Station]) -> Wanted {
    let station = stations.iter().find(|station| station.port == port);
    let mac = match options.mac {
        TapMac::Port => station.and_then(|station| station.mac),
        TapMac::Keep => None,
        TapMac::Address(address) => Some(address),
    };
    let (least, most) = KernelSink::MTU.into_inner();
    let of_port = station
        .and_then(|station| station.mtu_bytes)
        .map(|bytes| u16::try_from(bytes).unwrap_or(most).clamp(least, most));
    Wanted { mac, mtu: options.mtu.or(of_port) }
}

type Endpoints = Vec<Box<dyn Sink>>;

/// A pump for each queue, with the rings of its workers: of one, or of all if the interface has one queue.
fn pumps(
    name: &str,
    options: &KernelSink,
    interface: &Arc<Interface>,
    shared: &Arc<Shared>,
    queues: Vec<Queue>,
    counters: &[Arc<SinkCounters>],
) -> Result<(Vec<Pump>, Endpoints), TapError> {
    let mut pumps = Vec::with_capacity(queues.len());
    for (index, queue) in queues.into_iter().enumerate() {
        let failed = |source| TapError::Thread { interface: interface.name.clone(), source };
        pumps.push(Pump {
            sink: name.to_owned(),
            interface: Arc::clone(interface),
            multi_queue: queue.multi_queue,
            shared: Arc::clone(shared),
            index,
            queue: Some(queue),
            rings: Vec::new(),
            wakeup: Wakeup::new().map(Arc::new).map_err(failed)?,
            back: None,
            given: interface.wanted(),
            refusal: None,
            others: OtherQueues::default(),
        });
    }
    let threads = pumps.len();
    let endpoint = |(worker, counters): (usize, &Arc<SinkCounters>)| {
        let pump = &mut pumps[worker % threads];
        let ring = handoff::ring(options.ring_bytes as usize, FRAME_BYTES_MAX as usize, &pump.wakeup);
        let (producer, consumer): (Producer, Consumer) = ring;
        pump.rings.push((consumer, Arc::clone(counters)));
        Box::new(Endpoint { producer, counters: Arc::clone(counters) }) as Box<dyn Sink>
    };
    let endpoints = counters.iter().enumerate().map(endpoint).collect();
    Ok((pumps, endpoints))
}

/// A worker's end.
struct Endpoint {
    producer: Producer,
    counters: Arc<SinkCounters>,
}

impl Sink for Endpoint {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let (mut count, mut bytes, mut room) = (0, 0, 0);
        for delivery in packets.iter() {
            count += 1;
            bytes += delivery.bytes.len() as u64;
            room += record_bytes(delivery.bytes.len());
        }
        self.counters.offered(count, bytes);
        if self.producer.is_abandoned() {
            return self.counters.worker.dropped(SinkDrop::Closed, count);
        }
        let mut batch = self.producer.batch(room);
        for delivery in packets.iter() {
            batch.push(delivery.bytes);
        }
        let pushed = batch.finish();
        if pushed.full > 0 {
            self.counters.worker.dropped(SinkDrop::RingFull, pushed.full);
        }
    }
}

/// How long closing the sink waits for its threads, which write for a second at most ([`pump`]).
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Owns the threads.
struct KernelHub {
    interface: Arc<Interface>,
    options: KernelSink,
    /// The port that the interface belongs to.
    port: u8,
    /// The longest MTU that what the host sends can be sent with.
    mtu_max: Option<u16>,
    /// The log has a line that the MTU of the port is longer.
    is_limited: AtomicBool,
    /// The counters of what each thread has sent by the port.
    sent: Vec<Arc<SinkCounters>>,
    shared: Arc<Shared>,
    threads: Mutex<Vec<(Arc<Wakeup>, JoinHandle<()>)>>,
}

impl KernelHub {
    fn new(interface: &Arc<Interface>, options: &KernelSink, port: u8, threads: usize) -> Self {
        Self {
            interface: Arc::clone(interface),
            options: options.clone(),
            port,
            mtu_max: None,
            is_limited: AtomicBool::new(false),
            sent: Vec::new(),
            shared: Shared::new(threads),
            threads: Mutex::default(),
        }
    }

    fn start(&mut self, pump: Pump) -> Result<(), TapError> {
        let wakeup = Arc::clone(&pump.wakeup);
        // The name of a thread has at most 15 bytes (pthread_setname_np(3)).
        let named = thread::Builder::new().name(format!("tap{}", pump.index));
        let failed = |source| TapError::Thread { interface: self.interface.name.clone(), source };
        let thread = named.spawn(move || pump.run()).map_err(failed)?;
        self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push((wakeup, thread));
        Ok(())
    }
}

impl Hub for KernelHub {
    fn status(&self) -> SinkStatus {
        let reports = &self.shared.reports;
        // The threads see the same interface; one that cannot be used by a single thread is worth showing.
        let conditions = reports.iter().map(pump::Report::condition);
        let worst = conditions.max_by_key(|condition| match condition {
            Condition::Up { others, .. } => (*others > 0).into(),
            Condition::Down => 2,
            Condition::Closed(_) => 3,
        });
        let state = match worst {
            Some(Condition::Up { mtu, others: 0 }) => format!("up, MTU {mtu}"),
            Some(Condition::Up { mtu, .. }) => format!("up, MTU {mtu}, shared with another process"),
            Some(Condition::Down) | None => "down".to_owned(),
            Some(Condition::Closed(reason)) => format!("cannot be used: {reason}"),
        };
        let has_offloads = self.interface.offloads.get() == Some(&true);
        SinkStatus::default()
            .with("interface", &*self.interface.name)
            .with("state", state)
            .with("queues", reports.len())
            .with("offloads", if has_offloads { "checksums, segmentation" } else { "none" })
            .with_some("port", self.options.transmit.then_some(self.port))
    }

    /// The interface follows the address and the MTU of its port, as far as the frames of the way back have
    /// room.
    fn tick(&self, ports: &Ports<'_>) {
        let Wanted { mac, mtu } = wanted(&self.options, self.port, ports.stations);
        let before = self.interface.wanted();
        let most = self.mtu_max.filter(|_| self.options.mtu.is_none()).unwrap_or(u16::MAX);
        if mtu.is_some_and(|mtu| mtu > most) && !self.is_limited.swap(true, Relaxed) {
            let (name, port) = (&self.interface.name, self.port);
            tracing::warn!(
                "{name} does not follow the MTU of port {port} beyond {most}, for which its frames were made: start again"
            );
        }
        // What is not known now stays as it was.
        self.interface
            .follow(Wanted { mac: mac.or(before.mac), mtu: mtu.map(|mtu| mtu.min(most)).or(before.mtu) });
    }
}

impl Drop for KernelHub {
    fn drop(&mut self) {
        self.shared.stop();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        threads.iter().for_each(|(wakeup, _)| wakeup.wake());
        let deadline = Instant::now() + END_TIMEOUT;
        for (_, thread) in threads.drain(..) {
            let name = &self.interface.name;
            match join_within(thread, deadline.saturating_duration_since(Instant::now())) {
                Some(Ok(())) => {}
                None => tracing::error!("a thread of the TAP interface {name} does not end"),
                Some(Err(_)) => tracing::error!("a thread of the TAP interface {name} has panicked"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
