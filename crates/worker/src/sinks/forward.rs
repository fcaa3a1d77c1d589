//! The kind `forward`: packets leave by a port of the device, in the frames that they were received in.
//!
//! An endpoint changes the headers in the frame, queues it on its [`Transmitter`], and gives the frame back to the worker
//! when the send has completed. A packet is delivered when the device has sent it. The worker's [`FrameBudget`] limits the
//! frames in flight, so a port that stalls costs packets of this sink only.
//!
//! After a failed send, the endpoint passes its transmitter to the [`Hub`] once all frames are back; the next tick
//! replaces the queue pair and returns it. Until then packets are counted as `tx_failed`.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use packet::rewrite::{self, MACS_BYTES, TAG_BYTES};
use program::{ForwardMode, ForwardSink, VlanChange};
use verbs::{Domain, PortAttributes, PortNumber, PortState, RawQueuePairHandle, SendFlags};

use super::{Environment, FrameBudget, Hub, Opened, SinkError};
use crate::sink::{Deliveries, FramesBack, Sink, SinkCounters, SinkDrop};
use crate::transmitter::{Pieces, SENDS_MAX, Transmitter};

/// The shortest Ethernet frame that devices take: its header. They pad it.
const ETHERNET_BYTES: usize = 14;
/// Tags of a frame that the MTU does not cover.
const TAGS_BYTES: usize = 2 * TAG_BYTES;
/// The largest MTU of `enum ibv_mtu`, which stands for every larger one.
const VERBS_MTU_MAX: u32 = 4096;
/// A longest message beyond this is not that of an Ethernet port.
const FRAME_MAX: u32 = 1 << 16;

/// The changes of headers, and the limit of the port.
struct Rewriter {
    options: ForwardSink,
    /// The longest packet behind the Ethernet header.
    mtu_bytes: usize,
}

impl Rewriter {
    /// Changes the first `bytes` bytes of a frame. Returns what is to be sent, or why the packet cannot be.
    #[inline]
    fn prepare(&self, frame: &mut [u8], bytes: usize) -> Result<Pieces, SinkDrop> {
        let Some((packet, room)) = frame.split_at_mut_checked(bytes) else { return Err(SinkDrop::TooLong) };
        let ForwardSink { mode, swap_macs, src_mac, dst_mac, vlan, .. } = &self.options;
        let swaps = *swap_macs || *mode == ForwardMode::Reflect;
        if swaps && !rewrite::is_unicast(packet) {
            return Err(SinkDrop::NotUnicast);
        }
        if *mode == ForwardMode::Reflect {
            rewrite::reflect(packet);
        } else if swaps {
            rewrite::swap_macs(packet);
        }
        if let Some(address) = src_mac {
            rewrite::set_source(packet, *address);
        }
        if let Some(address) = dst_mac {
            rewrite::set_destination(packet, *address);
        }
        let pieces = match vlan {
            None => Pieces::one(0..bytes),
            Some(VlanChange::Pop) => Pieces::one(rewrite::pop_vlan(packet)..bytes),
            Some(VlanChange::Set(vlan)) if rewrite::set_vlan(packet, *vlan) => Pieces::one(0..bytes),
            Some(VlanChange::Set(vlan) | VlanChange::Push(vlan)) => push(packet, room, *vlan)?,
        };
        self.check(packet, pieces)
    }

    /// Refuses what the device would answer with a failed queue pair.
    #[inline]
    fn check(&self, packet: &[u8], pieces: Pieces) -> Result<Pieces, SinkDrop> {
        let bytes = pieces.bytes();
        if bytes < ETHERNET_BYTES {
            return Err(SinkDrop::TooShort);
        }
        if bytes > self.mtu_bytes + ETHERNET_BYTES {
            // Rare: the header is looked at only now. What was pushed or removed is the difference of the lengths.
            let header = rewrite::ethernet_bytes(packet) + bytes.saturating_sub(packet.len());
            let removed = packet.len().saturating_sub(bytes);
            let header = (header - removed).min(ETHERNET_BYTES + TAGS_BYTES);
            if bytes > self.mtu_bytes + header {
                return Err(SinkDrop::TooLong);
            }
        }
        Ok(pieces)
    }
}

/// Puts the header of a packet with one tag more into the room behind it, so that the payload need not be moved.
#[inline]
fn push(packet: &[u8], room: &mut [u8], vlan: u16) -> Result<Pieces, SinkDrop> {
    let Some(header) = rewrite::pushed_vlan(packet, vlan) else { return Err(SinkDrop::TooShort) };
    let bytes = packet.len();
    let Some(place) = room.get_mut(..header.len()) else { return Err(SinkDrop::TooLong) };
    place.copy_from_slice(&header);
    Ok(Pieces::two(bytes..bytes + header.len(), MACS_BYTES..bytes))
}

/// What an endpoint shares with the hub.
#[derive(Default)]
struct Shared {
    is_down: AtomicBool,
    /// A transmitter that has failed, for the hub.
    failed: Mutex<Option<Box<Transmitter>>>,
    /// It, when it sends again.
    repaired: Mutex<Option<Box<Transmitter>>>,
    has_repaired: AtomicBool,
}

/// The sink on one worker.
struct Forward {
    rewriter: Arc<Rewriter>,
    /// `None` while the hub repairs it.
    transmitter: Option<Box<Transmitter>>,
    budget: Arc<FrameBudget>,
    counters: Arc<SinkCounters>,
    shared: Arc<Shared>,
}

impl Sink for Forward {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let Self { rewriter, transmitter, budget, counters, shared } = self;
        let is_down = shared.is_down.load(Relaxed);
        let (mut count, mut bytes) = (0, 0);
        packets.take_each(|pool, mut frame, taken| {
            count += 1;
            bytes += u64::from(taken.bytes);
            let dropped = |frame, reason| {
                counters.worker.dropped(reason, 1);
                Some(frame)
            };
            if is_down {
                return dropped(frame, SinkDrop::Down);
            }
            let Some(transmitter) = transmitter else { return dropped(frame, SinkDrop::TxFailed) };
            let pieces = match rewriter.prepare(pool.bytes_mut(&mut frame), taken.bytes as usize) {
                Ok(pieces) => pieces,
                Err(reason) => return dropped(frame, reason),
            };
            if !budget.take() {
                return dropped(frame, SinkDrop::TxFull);
            }
            match transmitter.queue(frame, pieces, SendFlags::empty()) {
                Ok(()) => None,
                Err((frame, reason)) => {
                    budget.put();
                    dropped(frame, reason)
                }
            }
        });
        counters.offered(count, bytes);
    }

    fn poll(&mut self, frames: &mut FramesBack<'_>) -> bool {
        let Self { transmitter, budget, counters, .. } = self;
        let Some(sender) = transmitter else {
            self.take_repaired();
            return false;
        };
        let (pool, back) = frames.split();
        let (mut packets, mut bytes) = (0, 0);
        let mut worked = sender.has_queued();
        sender.reap(pool, |done| {
            worked = true;
            if done.is_sent {
                packets += 1;
                bytes += u64::from(done.bytes);
            } else {
                counters.worker.dropped(SinkDrop::TxFailed, 1);
            }
            budget.put();
            back.push(done.frame);
        });
        if packets > 0 {
            counters.worker.delivered(packets, bytes);
        }
        sender.flush(pool, |frame, reason| {
            counters.worker.dropped(reason, 1);
            budget.put();
            back.push(frame);
        });
        if sender.has_failed() && sender.held() == 0 {
            self.give_to_repair();
        }
        worked
    }

    fn needs_poll(&self) -> bool {
        true
    }

    fn takes_frames(&self) -> bool {
        true
    }

    fn holds_frames(&self) -> bool {
        self.transmitter.as_ref().is_some_and(|transmitter| transmitter.held() > 0)
    }
}

impl Forward {
    #[cold]
    fn give_to_repair(&mut self) {
        if let Ok(mut place) = self.shared.failed.try_lock() {
            *place = self.transmitter.take();
        }
    }

    #[cold]
    fn take_repaired(&mut self) {
        if self.shared.has_repaired.load(Acquire)
            && let Ok(mut place) = self.shared.repaired.try_lock()
        {
            self.transmitter = place.take();
            self.shared.has_repaired.store(false, Relaxed);
        }
    }
}

/// Watches the port and replaces failed queue pairs.
struct ForwardHub {
    port: u8,
    shared: Vec<Arc<Shared>>,
    repairs: AtomicU64,
    /// The reason why the last repair failed.
    error: Mutex<Option<String>>,
    /// Of the queue pairs in use.
    handles: Mutex<Vec<Arc<RawQueuePairHandle>>>,
}

impl ForwardHub {
    fn repair(&self, index: usize, shared: &Shared) {
        let mut failed = match shared.failed.try_lock() {
            Ok(failed) => failed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(mut transmitter) = failed.take() else { return };
        if let Err(error) = transmitter.recover() {
            *lock(&self.error) = Some(error.to_string());
            *failed = Some(transmitter);
            return;
        }
        if let Some(handle) = lock(&self.handles).get_mut(index) {
            *handle = transmitter.handle();
        }
        *lock(&self.error) = None;
        self.repairs.fetch_add(1, Relaxed);
        *lock(&shared.repaired) = Some(transmitter);
        shared.has_repaired.store(true, Release);
    }
}

impl Hub for ForwardHub {
    fn tick(&self, ports_down: &[u8]) {
        let is_down = ports_down.contains(&self.port);
        for (index, shared) in self.shared.iter().enumerate() {
            shared.is_down.store(is_down, Relaxed);
            self.repair(index, shared);
        }
    }

    fn status(&self) -> Vec<(String, String)> {
        let is_down = self.shared.iter().any(|shared| shared.is_down.load(Relaxed));
        let state = if is_down { "down" } else { "up" };
        let mut status = vec![
            ("port".to_owned(), self.port.to_string()),
            ("state".to_owned(), state.to_owned()),
            ("queue_pairs_replaced".to_owned(), self.repairs.load(Relaxed).to_string()),
        ];
        status.extend(lock(&self.error).clone().map(|error| ("error".to_owned(), error)));
        status
    }
}

impl Drop for ForwardHub {
    /// Sends that are still in flight fail, so that workers get the frames back also from a port that stalls.
    fn drop(&mut self) {
        for handle in lock(&self.handles).drain(..) {
            if let Err(error) = handle.to_error() {
                tracing::warn!("the queue pair of a sink on port {} cannot be stopped: {error}", self.port);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn open(
    name: &str,
    options: &ForwardSink,
    environment: &Environment<'_>,
) -> Result<Opened, SinkError> {
    let (hub, endpoints) = build(name, options, environment)?;
    let counters = endpoints.iter().map(|endpoint| Arc::clone(&endpoint.counters)).collect();
    let endpoints = endpoints.into_iter().map(|endpoint| Box::new(endpoint) as Box<dyn Sink>).collect();
    Ok(Opened { hub: Box::new(hub), endpoints, counters })
}

fn build(
    name: &str,
    options: &ForwardSink,
    environment: &Environment<'_>,
) -> Result<(ForwardHub, Vec<Forward>), SinkError> {
    let port = port(name, options, environment.ports)?;
    let refused = |source| SinkError::Send { sink: name.to_owned(), port, source: Box::new(source) };
    let attributes = environment.context.port(PortNumber(port)).map_err(refused)?;
    let rewriter = Arc::new(Rewriter { options: options.clone(), mtu_bytes: mtu_bytes(&attributes) });
    let is_down = attributes.state == PortState::Down;
    let endpoint = |(domain, budget): (&Domain, &Arc<FrameBudget>)| {
        let limit = SENDS_MAX.min(budget.total());
        let transmitter = Transmitter::open(environment.context, domain, PortNumber(port), limit)?;
        Ok(Forward {
            rewriter: Arc::clone(&rewriter),
            transmitter: Some(Box::new(transmitter)),
            budget: Arc::clone(budget),
            counters: Arc::default(),
            shared: Arc::new(Shared { is_down: AtomicBool::new(is_down), ..Shared::default() }),
        })
    };
    let workers = environment.domains.iter().zip(environment.budgets);
    let endpoints = workers.map(endpoint).collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let sending = endpoints.iter().filter_map(|endpoint| endpoint.transmitter.as_ref());
    let handles = sending.map(|transmitter| transmitter.handle()).collect();
    let hub = ForwardHub {
        port,
        shared: endpoints.iter().map(|endpoint| Arc::clone(&endpoint.shared)).collect(),
        repairs: AtomicU64::new(0),
        error: Mutex::default(),
        handles: Mutex::new(handles),
    };
    Ok((hub, endpoints))
}

/// The port of the options, if the daemon uses it.
fn port(name: &str, options: &ForwardSink, ports: &[u8]) -> Result<u8, SinkError> {
    let sink = name.to_owned();
    let list = || ports.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    match (options.port, ports) {
        (Some(port), _) if ports.contains(&port) => Ok(port),
        (Some(port), _) => Err(SinkError::UnknownPort { sink, port, ports: list() }),
        (None, [port]) => Ok(*port),
        (None, _) => Err(SinkError::NoPort { sink, ports: list() }),
    }
}

/// The port's MTU, or what it may be at most: verbs round an MTU down to a power of two. The software NIC reports its
/// longest frame. Packets that are too long for another device are dropped there.
fn mtu_bytes(attributes: &PortAttributes) -> usize {
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
mod tests;
