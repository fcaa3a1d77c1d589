//! The kind `forward`: packets leave by a port of the device or of another one, in the frames that they were received in.
//! Another device gets a domain and a registration of the frames' memory for each worker.
//!
//! An endpoint changes the headers in the frame, queues it on its [`Transmitter`], and gives the frame back to the worker
//! when the send has completed. A packet is delivered when the device has sent it. The worker's [`FrameBudget`] limits the
//! frames in flight, so a port that stalls costs packets of this sink only.
//!
//! After a failed send, packets are counted as `tx_failed` until the [`Port`] has replaced the queue pair.

use std::sync::Arc;

use packet::rewrite::{self, MACS_BYTES};
use program::{ForwardMode, ForwardSink, VlanChange};
use verbs::{Context, Domain, PortNumber, RegisteredFrames, SendFlags};

use super::port::{self, ETHERNET_BYTES, Link, Port, TAGS_BYTES};
use super::{Environment, Failure, FrameBudget, Hub, Opened, SinkError};
use crate::sink::{Deliveries, FramesBack, Sink, SinkCounters, SinkDrop};
use crate::transmitter::{Pieces, SENDS_MAX, Transmitter};

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
        check(self.mtu_bytes, packet, pieces)
    }
}

/// Refuses what the device would answer with a failed queue pair: pieces of `packet` that are longer than `mtu_bytes` behind
/// the Ethernet header and tags, or shorter than the header.
#[inline]
pub(super) fn check(mtu_bytes: usize, packet: &[u8], pieces: Pieces) -> Result<Pieces, SinkDrop> {
    let bytes = pieces.bytes();
    if bytes < ETHERNET_BYTES {
        return Err(SinkDrop::TooShort);
    }
    if bytes > mtu_bytes + ETHERNET_BYTES {
        // Rare: the header is looked at only now. What was pushed or removed is the difference of the lengths.
        let header = rewrite::ethernet_bytes(packet) + bytes.saturating_sub(packet.len());
        let removed = packet.len().saturating_sub(bytes);
        let header = (header - removed).min(ETHERNET_BYTES + TAGS_BYTES);
        if bytes > mtu_bytes + header {
            return Err(SinkDrop::TooLong);
        }
    }
    Ok(pieces)
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

/// The sink on one worker.
struct Forward {
    rewriter: Arc<Rewriter>,
    /// `None` while the hub repairs it.
    transmitter: Option<Box<Transmitter>>,
    budget: Arc<FrameBudget>,
    counters: Arc<SinkCounters>,
    link: Arc<Link>,
}

impl Sink for Forward {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let Self { rewriter, transmitter, budget, counters, link } = self;
        let is_down = link.is_down();
        let (mut count, mut bytes) = (0, 0);
        let mut reasons = [0; SinkDrop::ALL.len()];
        packets.take_each(|pool, mut frame, taken| {
            count += 1;
            bytes += u64::from(taken.bytes);
            let mut dropped = |frame, reason: SinkDrop| {
                reasons[reason as usize] += 1;
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
        // After that: no packet is dropped that was not offered.
        counters.worker.all_dropped(&reasons);
    }

    fn poll(&mut self, frames: &mut FramesBack<'_>) -> bool {
        let Self { transmitter, budget, counters, link, .. } = self;
        let Some(sender) = transmitter else {
            link.take_repaired(transmitter);
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
            link.give_to_repair(transmitter);
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

impl Drop for Forward {
    /// What the device has not sent by now is not counted as sent.
    fn drop(&mut self) {
        if let Some(transmitter) = &self.transmitter {
            self.counters.worker.dropped(SinkDrop::TxFailed, transmitter.held() as u64);
        }
    }
}

impl Hub for Port {
    fn tick(&self, ports_down: &[u8]) {
        self.tick(ports_down);
    }

    fn status(&self) -> Vec<(String, String)> {
        self.status()
    }
}

pub(super) fn open(
    name: &str,
    options: &ForwardSink,
    environment: &Environment<'_>,
) -> Result<Opened, SinkError> {
    let (hub, endpoints) = build(name, options, environment)?;
    let counters = endpoints.iter().map(|endpoint| Arc::clone(&endpoint.counters)).collect();
    let endpoints = endpoints.into_iter().map(|endpoint| Box::new(endpoint) as Box<dyn Sink>).collect();
    Ok(Opened { hub: Box::new(hub), endpoints, counters, transmit: Vec::new() })
}

fn build(
    name: &str,
    options: &ForwardSink,
    environment: &Environment<'_>,
) -> Result<(Port, Vec<Forward>), SinkError> {
    let (port, mtu_bytes, transmitters) = match &options.device {
        Some(device) if device != environment.context.name() => {
            let refused =
                |source| SinkError::OtherDevice { sink: name.to_owned(), device: device.clone(), source };
            by_other_device(name, device, options.port, environment).map_err(refused)?
        }
        _ => by_own_device(name, options.port, environment)?,
    };
    let rewriter = Arc::new(Rewriter { options: options.clone(), mtu_bytes });
    let parts = transmitters.into_iter().zip(environment.budgets).zip(port.links());
    let endpoints = parts.map(|((transmitter, budget), link)| Forward {
        rewriter: Arc::clone(&rewriter),
        transmitter: Some(Box::new(transmitter)),
        budget: Arc::clone(budget),
        counters: Arc::default(),
        link: Arc::clone(link),
    });
    let endpoints = endpoints.collect();
    Ok((port, endpoints))
}

/// The port, the longest packet that it takes, and a transmitter for each worker.
type OpenPort = (Port, usize, Vec<Transmitter>);

fn by_own_device(name: &str, port: Option<u8>, environment: &Environment<'_>) -> Result<OpenPort, SinkError> {
    let number = port::choose(name, port, environment.ports)?;
    let refused = |source| SinkError::Send { sink: name.to_owned(), port: number, source: Box::new(source) };
    let attributes = environment.context.port(PortNumber(number)).map_err(refused)?;
    let open = |(domain, budget): (&Domain, &Arc<FrameBudget>)| {
        transmitter(environment.context, domain, number, budget)
    };
    let workers = environment.domains.iter().zip(environment.budgets);
    let transmitters = workers.map(open).collect::<Result<Vec<_>, _>>().map_err(refused)?;
    Ok((Port::new(number, &attributes, transmitters.iter()), port::mtu_bytes(&attributes), transmitters))
}

/// As [`by_own_device`], in domains of their own, where the workers' frames are registered, too.
fn by_other_device(
    name: &str,
    device: &str,
    port: Option<u8>,
    environment: &Environment<'_>,
) -> Result<OpenPort, Failure> {
    let others = environment.others.ok_or("only the device of the settings can be used")?;
    let context = (others.open)(device)?;
    let ports: Vec<u8> =
        (1..=u8::try_from(context.attributes()?.physical_ports).unwrap_or(u8::MAX)).collect();
    let number = match port {
        Some(port) if !ports.contains(&port) => {
            return Err(format!(
                "port {port} is not one of its ports, 1 to {} (hint: set `port`)",
                ports.len()
            )
            .into());
        }
        port => port::choose(name, port, &ports)?,
    };
    let attributes = context.port(PortNumber(number))?;
    let open = |(frames, budget): (&RegisteredFrames, &Arc<FrameBudget>)| {
        transmitter(&context, &port::domain(&context)?, number, budget)?.with_frames(frames)
    };
    let workers = others.frames.iter().zip(environment.budgets);
    let transmitters = workers.map(open).collect::<Result<Vec<_>, Failure>>()?;
    let port = Port::new(number, &attributes, transmitters.iter()).of_other(&context);
    Ok((port, port::mtu_bytes(&attributes), transmitters))
}

fn transmitter(
    context: &Arc<Context>,
    domain: &Domain,
    port: u8,
    budget: &FrameBudget,
) -> Result<Transmitter, verbs::Error> {
    Transmitter::open(context, domain, PortNumber(port), SENDS_MAX.min(budget.total()))
}

#[cfg(test)]
mod tests;
