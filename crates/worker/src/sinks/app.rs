//! The kind `app`: packets go to unprivileged local processes through shared memory, by the memif protocol
//! ([`shm::memif`]; `net_memif` of DPDK and libmemif are clients).
//!
//! Clients connect to a unix socket; a thread of the sink serves it ([`server`]). Each client allocates
//! memory with rings and buffers, into which workers copy packets directly ([`endpoint`]). In mode `copy`
//! each client gets every packet, in mode `share` each gets whole flows ([`roster`]). With fewer rings than
//! workers, a ring is used by several in turns. Workers also take what clients send ([`taker`]), and send it
//! by a port if the options ask for it.
//!
//! Back-pressure: a client whose ring is full loses the packet (`ring_full`). A client that breaks the
//! protocol is disconnected. Both concern that client only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use program::AppSink;
use shm::{Closer, Listener, Peer};
use verbs::PortNumber;

use self::client::{Client, ThreadWakeup};
use self::endpoint::{Endpoint, sum};
use self::roster::{RosterSlot, WorkerPosition};
use self::server::{GoneClient, Server, Shared};
use self::taker::{FRAME_BYTES_MAX, Transmit};
use super::outgoing::Outgoing;
use super::port::{self, Port};
use super::{CheckedPlace, Environment, Hub, Opened, Ports, SinkError, SinkStatus};
use crate::sink::Sink;

mod client;
mod endpoint;
mod roster;
mod server;
mod taker;
#[cfg(test)]
mod tests;

/// How long closing the sink waits for its thread.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The owner of the sink's thread.
struct App {
    options: AppSink,
    shared: Arc<Shared>,
    /// The port that frames of clients are sent by.
    port: Option<Port>,
    thread: Option<JoinHandle<()>>,
}

/// Checks its port and its socket.
pub(super) fn check(name: &str, options: &AppSink, place: &CheckedPlace<'_>) -> Result<(), SinkError> {
    if options.transmit {
        port::choose(name, options.port, place.ports)?;
    }
    let failed = |source| SinkError::App { sink: name.to_owned(), operation: "starting its thread", source };
    let closer = Closer::start().map_err(failed)?;
    let listen = |source| SinkError::Listen { sink: name.to_owned(), source };
    Listener::check(&options.socket, &closer).map_err(listen)
}

/// Opens the sink: listens and starts its thread.
pub(super) fn open(
    name: &str,
    options: &AppSink,
    environment: &Environment<'_>,
) -> Result<Opened, SinkError> {
    let workers = environment.workers();
    let (port, transmits) = match options.transmit {
        true => transmits(name, options, environment).map(|(port, transmits)| (Some(port), transmits))?,
        false => (None, (0..workers).map(|_| None).collect()),
    };
    let sending = transmits.iter().flatten();
    let transmit = sending.map(|transmit| Arc::clone(&transmit.outgoing.counters)).collect();
    let (app, endpoints) = start(name, options, port, transmits)?;
    let counters = endpoints.iter().map(|endpoint| Arc::clone(&endpoint.counters)).collect();
    let endpoints = endpoints.into_iter().map(|endpoint| Box::new(endpoint) as Box<dyn Sink>).collect();
    Ok(Opened { hub: Box::new(app), endpoints, counters, transmit })
}

/// The port that frames of clients are sent by, with a queue pair for each worker.
fn transmits(
    name: &str,
    options: &AppSink,
    environment: &Environment<'_>,
) -> Result<(Port, Vec<Option<Transmit>>), SinkError> {
    let number = port::choose(name, options.port, environment.ports)?;
    let refused = |source| SinkError::Transmit { sink: name.to_owned(), port: number, source };
    let context = environment.context;
    let attributes = context.port(PortNumber(number)).map_err(|error| refused(error.into()))?;
    let station = environment.stations.iter().find(|station| station.port == number);
    let mtu_bytes = station.and_then(|station| station.mtu_bytes).map_or(usize::MAX, |mtu| mtu as usize);
    let mtu_bytes = mtu_bytes.min(port::mtu_bytes(&attributes)).min(FRAME_BYTES_MAX);
    let domains = environment.domains.iter();
    let outgoing: Vec<_> = domains
        .map(|domain| Outgoing::open(context, domain, number, mtu_bytes, name))
        .collect::<Result<_, _>>()
        .map_err(refused)?;
    let transmitters = outgoing.iter().filter_map(|outgoing| outgoing.transmitter.as_deref());
    let port = Port::new(number, &attributes, transmitters);
    let each = outgoing.into_iter().zip(port.links());
    let transmits =
        each.map(|(outgoing, link)| Some(Transmit { outgoing, link: Arc::clone(link) })).collect();
    Ok((port, transmits))
}

/// With what each worker sends by.
fn start(
    name: &str,
    options: &AppSink,
    port: Option<Port>,
    transmits: Vec<Option<Transmit>>,
) -> Result<(App, Vec<Endpoint>), SinkError> {
    let workers = transmits.len();
    let failed = |source| SinkError::App { sink: name.to_owned(), operation: "starting its thread", source };
    let wakeup = Arc::new(ThreadWakeup::new().map_err(failed)?);
    let shared = Arc::new(Shared::new(Arc::clone(&wakeup)));
    let slots: Vec<Arc<RosterSlot>> = (0..workers).map(|_| Arc::default()).collect();
    let closer = Closer::start().map_err(failed)?;
    let server = Server::new(name, options, Arc::clone(&shared), slots.clone(), closer)
        .map_err(|source| SinkError::Listen { sink: name.to_owned(), source })?;
    let thread = std::thread::Builder::new().name(format!("app-{name}")).spawn(move || server.run());
    let thread = Some(thread.map_err(failed)?);
    let each = slots.into_iter().zip(transmits).enumerate();
    let endpoint = |(worker, (slot, transmit))| {
        let position = WorkerPosition { index: worker, count: workers };
        Endpoint::new(position, options.mode, slot, Arc::clone(&wakeup), transmit)
    };
    let endpoints = each.map(endpoint).collect();
    Ok((App { options: options.clone(), shared, port, thread }, endpoints))
}

impl Drop for App {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wakeup.wake();
        if let Some(thread) = self.thread.take() {
            let _ = parking::join_within(thread, END_TIMEOUT);
        }
    }
}

impl Hub for App {
    fn tick(&self, ports: &Ports<'_>) {
        if let Some(port) = &self.port {
            port.look(ports.down);
        }
    }

    fn status(&self) -> SinkStatus {
        let clients = self.shared.clients().clone();
        let events = &self.shared.events;
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut status = SinkStatus::default()
            .with("socket", self.options.socket.display().to_string())
            .with("clients", clients.len())
            .with("connected", number(&events.connected))
            .with("left", number(&events.left))
            .with("violations", number(&events.violations))
            .with("denied", number(&events.denied))
            .with("failed_handshakes", number(&events.failed))
            .with("returned", sum(clients.iter(), |client| &client.counters.returned));
        if let Some(port) = &self.port {
            status.append(port.status());
        }
        let connected: Vec<SinkStatus> = clients.iter().map(|client| describe(client)).collect();
        let gone: Vec<SinkStatus> = self.shared.gone().iter().map(describe_gone).collect();
        status.with("connected_clients", connected).with("gone_clients", gone)
    }
}

fn describe(client: &Client) -> SinkStatus {
    let counters = &client.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    named(client.id, &client.name, &client.peer)
        .with("rings", client.rings())
        .with("ring_size", u32::from(client.ring_size))
        .with("memory_kib", client.bytes / 1024)
        .with("delivered", read(&counters.delivered))
        .with("ring_full", read(&counters.ring_full))
        .with("contended", read(&counters.contended))
        .with("too_long", read(&counters.too_long))
        .with("returned", read(&counters.returned))
        .with("returned_too_long", read(&counters.returned_too_long))
}

fn describe_gone(gone: &GoneClient) -> SinkStatus {
    named(gone.id, &gone.name, &gone.peer).with("reason", &*gone.reason)
}

fn named(id: u64, name: &str, peer: &Peer) -> SinkStatus {
    // A process of a namespace that is not visible has no number.
    let process = u32::try_from(peer.process).ok().filter(|process| *process > 0);
    SinkStatus::default()
        .with("id", id)
        .with("name", name)
        .with_some("process", process)
        .with("user", peer.user)
}
