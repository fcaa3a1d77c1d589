//! The kind `app`: packets go to unprivileged local processes through shared memory, by the memif protocol
//! ([`shm::memif`]; `net_memif` of DPDK and libmemif are clients).
//!
//! Clients connect to a unix socket; a thread of the sink serves it ([`server`]). Each client allocates memory with rings
//! and buffers, into which workers copy packets directly ([`endpoint`]). In mode `copy` each client gets every packet, in
//! mode `share` each gets whole flows ([`roster`]). With fewer rings than workers, a ring is used by several in turns.
//!
//! Back-pressure: a client whose ring is full loses the packet (`ring_full`). A client that breaks the protocol is
//! disconnected. Both concern that client only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use program::AppSink;
use shm::Closer;

use self::client::{Client, ThreadWakeup};
use self::endpoint::{Endpoint, sum};
use self::roster::RosterSlot;
use self::server::{Server, Shared};
use super::{Hub, Opened, SinkError};
use crate::sink::{Sink, SinkCounters};

mod client;
mod endpoint;
mod roster;
mod server;
#[cfg(test)]
mod tests;

/// How long closing the sink waits for its thread.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The owner of the sink's thread.
struct App {
    options: AppSink,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the sink: listens and starts its thread.
pub(super) fn open(name: &str, options: &AppSink, workers: usize) -> Result<Opened, SinkError> {
    let (app, endpoints) = start(name, options, workers)?;
    let counters = endpoints.iter().map(|endpoint| Arc::clone(&endpoint.counters)).collect();
    let endpoints = endpoints.into_iter().map(|endpoint| Box::new(endpoint) as Box<dyn Sink>).collect();
    Ok(Opened { hub: Box::new(app), endpoints, counters })
}

fn start(name: &str, options: &AppSink, workers: usize) -> Result<(App, Vec<Endpoint>), SinkError> {
    let failed = |source| SinkError::App { sink: name.to_owned(), operation: "starting its thread", source };
    let wakeup = Arc::new(ThreadWakeup::new().map_err(|errno| failed(errno.into()))?);
    let shared = Arc::new(Shared::new(Arc::clone(&wakeup)));
    let slots: Vec<Arc<RosterSlot>> = (0..workers).map(|_| Arc::default()).collect();
    let closer = Closer::start().map_err(failed)?;
    let server = Server::new(name, options, Arc::clone(&shared), slots.clone(), closer)
        .map_err(|source| SinkError::Listen { sink: name.to_owned(), source })?;
    let thread = std::thread::Builder::new().name(format!("app-{name}")).spawn(move || server.run());
    let thread = Some(thread.map_err(failed)?);
    let endpoint = |(worker, slot)| {
        let counters: Arc<SinkCounters> = Arc::default();
        Endpoint::new((worker, workers), options.mode, slot, Arc::clone(&wakeup), counters)
    };
    let endpoints = slots.into_iter().enumerate().map(endpoint).collect();
    Ok((App { options: options.clone(), shared, thread }, endpoints))
}

impl Drop for App {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wakeup.wake();
        if let Some(thread) = self.thread.take() {
            let _ = super::join_within(thread, END_TIMEOUT);
        }
    }
}

impl Hub for App {
    fn status(&self) -> Vec<(String, String)> {
        let clients = self.shared.clients().clone();
        let events = &self.shared.events;
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        let returned = sum(clients.iter(), |client| &client.counters.returned);
        let mut status = vec![
            ("socket".to_owned(), self.options.socket.display().to_string()),
            ("clients".to_owned(), clients.len().to_string()),
            ("connected".to_owned(), number(&events.connected)),
            ("left".to_owned(), number(&events.left)),
            ("violations".to_owned(), number(&events.violations)),
            ("denied".to_owned(), number(&events.denied)),
            ("failed_handshakes".to_owned(), number(&events.failed)),
            ("returned".to_owned(), returned.to_string()),
        ];
        status.extend(clients.iter().map(|client| (format!("client {}", client.id), describe(client))));
        let gone = self.shared.gone();
        status.extend(gone.iter().map(|(id, line)| (format!("gone {id}"), line.clone())));
        status
    }
}

fn describe(client: &Client) -> String {
    let (rings, size) = (client.rings(), client.ring_size);
    let counters = &client.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "{}, {}, rings: {rings} of {size}, {} KiB, delivered {}, ring_full {}, contended {}, too_long {}, returned {}, returned_too_long {}",
        client.name,
        client.peer,
        client.bytes / 1024,
        read(&counters.delivered),
        read(&counters.ring_full),
        read(&counters.contended),
        read(&counters.too_long),
        read(&counters.returned),
        read(&counters.returned_too_long),
    )
}
