//! The port of the device that a sink sends by: which one it is, the longest packet that it takes, its link,
//! and the replacement of queue pairs whose sends have failed.
//!
//! After a failed send, an endpoint passes its transmitter to the [`Port`] once all frames are back
//! ([`Link::give_to_repair`]); the next [`Port::look`] replaces the queue pair and returns it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use packet::rewrite::TAG_BYTES;
use verbs::{
    Context, Domain, ParentDomain, PortAttributes, PortNumber, PortState, ProtectionDomain,
    RawQueuePairHandle, ThreadDomain, VerbsErrno,
};

use super::{SinkError, SinkStatus};
use crate::transmitter::Transmitter;

/// The header of Ethernet.
pub(super) const ETHERNET_BYTES: usize = 14;
/// Tags of a frame that the MTU does not cover.
pub(super) const TAGS_BYTES: usize = 2 * TAG_BYTES;
/// The largest MTU of `enum ibv_mtu`, which stands for every larger one.
const VERBS_MTU_MAX: u32 = 4096;
/// A longest message beyond this is not that of an Ethernet port.
const FRAME_MAX: u32 = 1 << 16;

/// The state that the endpoint of one worker shares with the [`Port`].
#[derive(Default)]
pub(super) struct Link {
    is_down: AtomicBool,
    /// A transmitter that has failed, for the port.
    failed: Mutex<Option<Box<Transmitter>>>,
    /// It, when it sends again.
    repaired: Mutex<Option<Box<Transmitter>>>,
    has_repaired: AtomicBool,
}

impl Link {
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Relaxed)
    }

    /// Passes on a transmitter that has failed and holds no frame; it stays if the port uses the place now.
    #[cold]
    pub(super) fn give_to_repair(&self, transmitter: &mut Option<Box<Transmitter>>) {
        if let Ok(mut place) = self.failed.try_lock() {
            *place = transmitter.take();
        }
    }

    /// Takes the transmitter back if it sends again.
    #[cold]
    pub(super) fn take_repaired(&self, transmitter: &mut Option<Box<Transmitter>>) {
        if self.has_repaired.load(Acquire)
            && let Ok(mut place) = self.repaired.try_lock()
        {
            *transmitter = place.take();
            self.has_repaired.store(false, Relaxed);
        }
    }
}

/// Why the port cannot be used, if it cannot.
#[derive(Default)]
struct Errors {
    /// The last query of its state failed.
    query: Option<String>,
    /// The last repair failed.
    repair: Option<String>,
}

/// Watches the port and replaces failed queue pairs. Part of the sink's hub.
pub(super) struct Port {
    pub(super) number: u8,
    /// The device, if it is not the one that the daemon watches.
    other: Option<Arc<Context>>,
    links: Vec<Arc<Link>>,
    repairs: AtomicU64,
    errors: Mutex<Errors>,
    /// The handles of the queue pairs in use, by worker.
    handles: Mutex<Vec<Arc<RawQueuePairHandle>>>,
}

impl Port {
    /// The port with a link for each transmitter, in their order.
    pub(super) fn new<'t>(
        number: u8,
        attributes: &PortAttributes,
        transmitters: impl Iterator<Item = &'t Transmitter>,
    ) -> Self {
        let handles: Vec<_> = transmitters.map(Transmitter::handle).collect();
        let is_down = attributes.state == PortState::Down;
        let link = |_| Arc::new(Link { is_down: AtomicBool::new(is_down), ..Link::default() });
        Self {
            number,
            other: None,
            links: handles.iter().map(link).collect(),
            repairs: AtomicU64::new(0),
            errors: Mutex::default(),
            handles: Mutex::new(handles),
        }
    }

    /// The port is one of this device, which the daemon does not watch.
    pub(super) fn of_other(mut self, device: &Arc<Context>) -> Self {
        self.other = Some(Arc::clone(device));
        self
    }

    /// One for each transmitter.
    pub(super) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// Called about once a second, with the ports of the daemon's device whose link is down. Queries another
    /// device, which may block.
    pub(super) fn look(&self, ports_down: &[u8]) {
        let is_down = match &self.other {
            None => ports_down.contains(&self.number),
            Some(device) => self.is_down_after(device.port(PortNumber(self.number))),
        };
        for (index, link) in self.links.iter().enumerate() {
            link.is_down.store(is_down, Relaxed);
            self.repair(index, link);
        }
    }

    /// A port that cannot be asked for its state counts as down.
    fn is_down_after(&self, queried: Result<PortAttributes, verbs::VerbsError>) -> bool {
        let state = queried.map(|attributes| attributes.state);
        lock(&self.errors).query = state.as_ref().err().map(ToString::to_string);
        state.map_or(true, |state| state == PortState::Down)
    }

    fn repair(&self, index: usize, link: &Link) {
        let mut failed = match link.failed.try_lock() {
            Ok(failed) => failed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(mut transmitter) = failed.take() else { return };
        if let Err(error) = transmitter.recover() {
            lock(&self.errors).repair = Some(error.to_string());
            *failed = Some(transmitter);
            return;
        }
        if let Some(handle) = lock(&self.handles).get_mut(index) {
            *handle = transmitter.handle();
        }
        lock(&self.errors).repair = None;
        self.repairs.fetch_add(1, Relaxed);
        *lock(&link.repaired) = Some(transmitter);
        link.has_repaired.store(true, Release);
    }

    /// For [`Hub::status`](super::Hub::status).
    pub(super) fn status(&self) -> SinkStatus {
        let is_down = self.links.iter().any(|link| link.is_down());
        let errors = lock(&self.errors);
        let error = errors.query.as_ref().or(errors.repair.as_ref());
        SinkStatus::default()
            .with_some("device", self.other.as_ref().map(|device| device.name()))
            .with("port", self.number)
            .with("state", if is_down { "down" } else { "up" })
            .with("queue_pairs_replaced", self.repairs.load(Relaxed))
            .with_some("error", error.cloned())
    }
}

impl Port {
    /// Ends all sends: those in flight fail.
    pub(super) fn fail_all(&self) {
        for handle in lock(&self.handles).iter() {
            if let Err(error) = handle.to_error() {
                tracing::warn!("the queue pair of a sink on port {} cannot be stopped: {error}", self.number);
            }
        }
    }
}

impl Drop for Port {
    /// Ends the sends, so that workers get the frames back also from a port that stalls.
    fn drop(&mut self) {
        self.fail_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The port of a sink's options, if the daemon uses it.
pub(super) fn choose(sink: &str, port: Option<u8>, ports: &[u8]) -> Result<u8, SinkError> {
    let sink = sink.to_owned();
    let list = || ports.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    match (port, ports) {
        (Some(port), _) if ports.contains(&port) => Ok(port),
        (Some(port), _) => Err(SinkError::UnknownPort { sink, port, ports: list() }),
        (None, [port]) => Ok(*port),
        (None, _) => Err(SinkError::NoPort { sink, ports: list() }),
    }
}

/// A domain that one thread uses, without locks where the device has thread domains (mlx4 has none).
pub(super) fn domain(context: &Arc<Context>) -> Result<Domain, verbs::VerbsError> {
    let protection = ProtectionDomain::new(context)?;
    match ThreadDomain::new(context) {
        Ok(thread) => Ok(Domain::from(&ParentDomain::new(&protection, Some(&thread), None)?)),
        Err(error) if error.errno() == Some(VerbsErrno::EOPNOTSUPP.0) => Ok(Domain::from(protection)),
        Err(error) => Err(error),
    }
}

/// The port's MTU, or what it may be at most: verbs round an MTU down to a power of two. The software NIC
/// reports its longest frame. Packets that are too long for another device are dropped there.
pub(super) fn mtu_bytes(attributes: &PortAttributes) -> usize {
    let longest = attributes.max_message_bytes;
    if (ETHERNET_BYTES as u32..FRAME_MAX).contains(&longest) {
        return longest as usize - ETHERNET_BYTES;
    }
    match attributes.active_mtu_bytes {
        Some(mtu_bytes) if mtu_bytes < VERBS_MTU_MAX => 2 * mtu_bytes as usize - 1,
        _ => FRAME_MAX as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_fails_is_shown_until_one_succeeds() {
        let (_nic, context) = crate::receiver::tests::nic("query0", 1500);
        let attributes = context.port(PortNumber(1)).expect("attributes");
        let port = Port::new(1, &attributes, std::iter::empty()).of_other(&context);
        let error = || port.status().text("error").map(ToOwned::to_owned);
        let refused = context.port(PortNumber(9)).expect_err("no such port");
        let text = refused.to_string();
        assert!(port.is_down_after(Err(refused)));
        assert_eq!(error(), Some(text));
        port.look(&[]);
        assert_eq!(error(), None);
    }
}
