//! The kind `forward`: packets leave by a port of the device or of another one, in the frames that they were
//! received in. Another device gets a domain and a registration of the frames' memory for each worker.
//!
//! An endpoint changes the headers in the frame, queues it on its [`Transmitter`], and gives the frame back
//! to the worker when the send has completed. A packet is delivered when the device has sent it. The worker's
//! [`FrameBudget`] limits the frames in flight, so a port that stalls costs packets of this sink only.
//!
//! After a failed send, packets are counted as `tx_failed` until the [`Port`] has replaced the queue pair.

use std::sync::Arc;

use packet::rewrite::{self, MACS_BYTES};
use program::{ForwardMode, ForwardSink, VlanChange};
use verbs::{CompletionStatus, Context, Domain, Pieces, PortNumber, RegisteredFrames};

use super::port::{self, ETHERNET_BYTES, Link, Port, TAGS_BYTES};
use super::{
    CheckedPlace, Environment, Failure, FrameBudget, Hub, Opened, OtherDevice, OtherPorts, Ports, SinkError,
    SinkStatus,
};
use crate::sink::{Deliveries, FramesBack, Sink, SinkCounters, SinkDrop};
use crate::transmitter::{SENDS_MAX, Transmitter};

/// The changes of headers, and the limit of the port.
struct Rewriter {
    options: ForwardSink,
    /// There are no changes but, perhaps, swapped MACs: [`Rewriter::prepare_simply`] will do.
    is_simple: bool,
    /// The longest packet behind the Ethernet header.
    mtu_bytes: usize,
}

impl Rewriter {
    fn new(options: &ForwardSink, mtu_bytes: usize) -> Self {
        let ForwardSink { mode, src_mac, dst_mac, vlan, .. } = options;
        let is_simple =
            *mode != ForwardMode::Reflect && (src_mac, dst_mac).eq(&(&None, &None)) && vlan.is_none();
        Self { options: options.clone(), is_simple, mtu_bytes }
    }

    /// Changes the first `bytes` bytes of a frame. Returns what is to be sent, or why the packet cannot be.
    #[inline(never)]
    fn prepare(&self, frame: &mut [u8], bytes: u32) -> Result<Pieces, SinkDrop> {
        let bytes = bytes as usize;
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
        check(self.mtu_bytes, packet, pieces.bytes())?;
        Ok(pieces)
    }

    /// [`Rewriter::prepare`], if it is simple.
    #[inline]
    fn prepare_simply(&self, frame: &mut [u8], bytes: u32) -> Result<Pieces, SinkDrop> {
        let swaps = self.options.swap_macs;
        let lengths = ETHERNET_BYTES..=ETHERNET_BYTES + self.mtu_bytes;
        match frame.get_mut(..bytes as usize) {
            Some(packet) if lengths.contains(&packet.len()) && (!swaps || rewrite::is_unicast(packet)) => {
                if swaps {
                    rewrite::swap_macs(packet);
                }
                Ok(Pieces::start(bytes))
            }
            _ => self.prepare(frame, bytes),
        }
    }
}

/// Refuses what the device would answer with a failed queue pair: `bytes` made of `packet` that are longer
/// than `mtu_bytes` behind the Ethernet header and tags, or shorter than the header.
#[inline]
pub(super) fn check(mtu_bytes: usize, packet: &[u8], bytes: usize) -> Result<(), SinkDrop> {
    if bytes < ETHERNET_BYTES {
        return Err(SinkDrop::TooShort);
    }
    // Rare: the header is looked at only now.
    if bytes > mtu_bytes + ETHERNET_BYTES && is_too_long(mtu_bytes, packet, bytes) {
        return Err(SinkDrop::TooLong);
    }
    Ok(())
}

#[cold]
fn is_too_long(mtu_bytes: usize, packet: &[u8], bytes: usize) -> bool {
    // What was pushed or removed is the difference of the lengths.
    let header = rewrite::ethernet_bytes(packet) + bytes.saturating_sub(packet.len());
    let removed = packet.len().saturating_sub(bytes);
    let header = (header - removed).min(ETHERNET_BYTES + TAGS_BYTES);
    bytes > mtu_bytes + header
}

/// Puts the header of a packet with one tag more into the room behind it, so that the payload need not be
/// moved.
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
        let refusal = match transmitter {
            _ if link.is_down() => Some(SinkDrop::Down),
            Some(transmitter) if !transmitter.has_failed() => None,
            _ => Some(SinkDrop::TxFailed),
        };
        let room = transmitter.as_ref().map_or(0, |transmitter| transmitter.room() as u32);
        // For all packets at once; what is not used is given back.
        let allowed = budget.take(packets.most().min(room));
        let tally = match (refusal, transmitter) {
            (None, Some(transmitter)) if rewriter.is_simple => {
                let prepare = |frame: &mut [u8], bytes| rewriter.prepare_simply(frame, bytes);
                queue_each(packets, transmitter, allowed, prepare)
            }
            (None, Some(transmitter)) => {
                queue_each(packets, transmitter, allowed, |frame, bytes| rewriter.prepare(frame, bytes))
            }
            (reason, _) => refuse_each(packets, reason.unwrap_or(SinkDrop::TxFailed)),
        };
        budget.put(allowed - tally.queued);
        counters.offered(tally.packets, tally.bytes);
        // After that: no packet is dropped that was not offered.
        counters.worker.all_dropped(&tally.dropped);
    }

    fn poll(&mut self, frames: &mut FramesBack<'_>) -> bool {
        let Self { transmitter, budget, counters, link, .. } = self;
        let Some(sender) = transmitter else {
            link.take_repaired(transmitter);
            return false;
        };
        let (pool, back) = frames.split();
        let (mut packets, mut bytes, mut failed) = (0, 0, 0);
        let had_queued = sender.has_queued();
        sender.reap(pool, |done| {
            if done.status == CompletionStatus::Success {
                packets += 1;
                bytes += u64::from(done.bytes);
            } else {
                failed += 1;
            }
            back.push(done.frame);
        });
        let mut returned = packets + failed;
        if packets > 0 {
            counters.worker.delivered(packets, bytes);
        }
        if failed > 0 {
            counters.worker.dropped(SinkDrop::TxFailed, failed);
        }
        let worked = had_queued || returned > 0;
        sender.flush(pool, |frame, reason| {
            counters.worker.dropped(reason, 1);
            returned += 1;
            back.push(frame);
        });
        // No more than were in flight, at most `SENDS_MAX`.
        budget.put(returned as u32);
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

/// The outcomes of the packets of an iteration.
#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    queued: u32,
    dropped: [u64; SinkDrop::ALL.len()],
}

/// Queues what `prepare` makes of each packet, at most `allowed`.
#[inline]
fn queue_each(
    packets: &mut Deliveries<'_>,
    transmitter: &mut Transmitter,
    allowed: u32,
    prepare: impl Fn(&mut [u8], u32) -> Result<Pieces, SinkDrop>,
) -> Tally {
    let mut tally = Tally::default();
    let mut all_left = allowed;
    packets.take_runs(|pool, run| {
        // Of this run; in registers.
        let (mut bytes, mut left) = (0, all_left);
        run.each(|mut frame, taken| {
            bytes += u64::from(taken.bytes);
            let reason = match prepare(pool.bytes_mut(&mut frame), taken.bytes) {
                Ok(pieces) if left > 0 => {
                    left -= 1;
                    transmitter.push(frame, pieces);
                    return None;
                }
                Ok(_) => SinkDrop::TxFull,
                Err(reason) => reason,
            };
            tally.dropped[reason as usize] += 1;
            Some(frame)
        });
        tally.bytes += bytes;
        all_left = left;
    });
    tally.queued = allowed - all_left;
    tally.packets = u64::from(tally.queued) + tally.dropped.iter().sum::<u64>();
    tally
}

/// Drops all packets.
#[cold]
fn refuse_each(packets: &mut Deliveries<'_>, reason: SinkDrop) -> Tally {
    let mut tally = Tally::default();
    for packet in packets.iter() {
        tally.packets += 1;
        tally.bytes += packet.bytes.len() as u64;
    }
    tally.dropped[reason as usize] = tally.packets;
    tally
}

impl Drop for Forward {
    /// Ends the sends. A packet that the device has not sent by now is not counted as sent.
    fn drop(&mut self) {
        if let Some(transmitter) = &self.transmitter {
            self.counters.worker.dropped(SinkDrop::TxFailed, transmitter.held() as u64);
        }
    }
}

impl Hub for Port {
    fn tick(&self, ports: &Ports<'_>) {
        self.look(ports.down);
    }

    fn status(&self) -> SinkStatus {
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

/// Checks the port that packets would leave by.
pub(super) fn check_port(
    name: &str,
    options: &ForwardSink,
    place: &CheckedPlace<'_>,
) -> Result<(), SinkError> {
    match &options.device {
        Some(device) if device != place.device => {
            let of_other =
                || -> Result<u8, Failure> { other_port(name, options.port, (place.other)(device)?) };
            let refused =
                |source| SinkError::OtherDevice { sink: name.to_owned(), device: device.clone(), source };
            of_other().map(drop).map_err(refused)
        }
        _ => port::choose(name, options.port, place.ports).map(drop),
    }
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
    let rewriter = Arc::new(Rewriter::new(options, mtu_bytes));
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

/// Opens the ports as [`by_own_device`] does, in domains of their own, where the workers' frames are
/// registered, too.
fn by_other_device(
    name: &str,
    device: &str,
    port: Option<u8>,
    environment: &Environment<'_>,
) -> Result<OpenPort, Failure> {
    let others = environment.others.ok_or("only the device of the settings can be used")?;
    let OtherDevice { context, port: named } = (others.open)(device)?;
    let count = u8::try_from(context.attributes()?.physical_ports).unwrap_or(u8::MAX);
    let number = other_port(name, port, OtherPorts { count, named })?;
    let attributes = context.port(PortNumber(number))?;
    let open = |(frames, budget): (&RegisteredFrames, &Arc<FrameBudget>)| {
        Ok(transmitter(&context, &port::domain(&context)?, number, budget)?.with_frames(frames)?)
    };
    let workers = others.frames.iter().zip(environment.budgets);
    let transmitters = workers.map(open).collect::<Result<Vec<_>, Failure>>()?;
    let port = Port::new(number, &attributes, transmitters.iter()).of_other(&context);
    Ok((port, port::mtu_bytes(&attributes), transmitters))
}

/// The port of another device.
fn other_port(name: &str, port: Option<u8>, other: OtherPorts) -> Result<u8, Failure> {
    let OtherPorts { count, named } = other;
    let port = match (port, named) {
        (Some(port), Some(named)) if port != named => {
            return Err(format!("it is port {named}, and `port` is {port} (hint: leave `port` out)").into());
        }
        (port, named) => port.or(named),
    };
    let ports: Vec<u8> = (1..=count).collect();
    match port {
        Some(port) if !ports.contains(&port) => {
            Err(format!("port {port} is not one of its ports, 1 to {count} (hint: set `port`)").into())
        }
        port => Ok(port::choose(name, port, &ports)?),
    }
}

fn transmitter(
    context: &Arc<Context>,
    domain: &Domain,
    port: u8,
    budget: &FrameBudget,
) -> Result<Transmitter, verbs::VerbsError> {
    Transmitter::open(context, domain, PortNumber(port), SENDS_MAX.min(budget.total()))
}

#[cfg(test)]
mod tests;
