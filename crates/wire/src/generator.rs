//! Generated traffic: frames made once from a description, then replayed by a shuffled schedule at a rate.
//!
//! For demonstrations, tests and benches. The same settings give the same frames in the same order. Replaying
//! copies nothing and allocates nothing; a paced generator reads the clock once per burst. Sent frames
//! vanish.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use packet::build::FrameBuilder;
use packet::{EtherType, IpProtocol, MacAddr, TCP_FLAGS};

use super::store::{FrameStore, Place};
use super::{
    AddressRange, BURST_FRAMES, Burst, FrameSizes, GeneratorConfig, MAX_FRAME_BYTES, PortRange, Rate,
    SOFT_MAC, SleepHint, TrafficConfig, TrafficProtocol, TransmitError, Wire, WireError, WireState,
};

#[cfg(test)]
mod tests;

/// A port that receives generated traffic.
#[derive(Debug)]
pub struct GeneratorWire {
    replay: Replay,
    /// The next place of the schedule.
    place: usize,
    pacer: Pacer,
    /// The first burst's time, from which the pacer counts.
    started: Option<Instant>,
    /// Frames still to come; `None` without end.
    left: Option<u64>,
    description: String,
}

impl GeneratorWire {
    /// Builds the frames and the schedule.
    ///
    /// # Errors
    /// Which flow cannot be built and why.
    pub fn open(config: &GeneratorConfig) -> Result<Self, WireError> {
        if config.rate == Rate::FramesPerSecond(0) {
            return Err(WireError::Generator {
                problem: "`rate` is 0: write \"flat-out\" or a number".to_owned(),
            });
        }
        let flows = config.flows.len();
        let description = match config.rate {
            Rate::FlatOut => format!("generator ({flows} flows, flat-out)"),
            Rate::FramesPerSecond(rate) => format!("generator ({flows} flows, {rate}/s)"),
        };
        Ok(Self {
            replay: Replay::new(config)?,
            place: 0,
            pacer: Pacer::new(config.rate),
            started: None,
            left: config.total,
            description,
        })
    }

    fn elapsed_ns(&mut self) -> u128 {
        if !self.pacer.needs_clock() {
            return 0;
        }
        let now = Instant::now();
        now.duration_since(*self.started.get_or_insert(now)).as_nanos()
    }
}

impl Wire for GeneratorWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let room = burst.capacity_left();
        let wanted = self.left.map_or(room, |left| room.min(usize::try_from(left).unwrap_or(room)));
        let elapsed_ns = self.elapsed_ns();
        let frames = self.pacer.grant(elapsed_ns, wanted);
        if let Some(left) = &mut self.left {
            *left -= frames as u64;
        }
        let mut left = frames;
        while left > 0 {
            let taken = left.min(self.replay.schedule.len() - self.place);
            self.replay.fill(self.place, taken, burst);
            left -= taken;
            self.place = (self.place + taken) % self.replay.schedule.len();
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)
    }

    fn state(&self) -> WireState {
        if self.left == Some(0) { WireState::Finished } else { WireState::Live }
    }

    fn sleep_hint(&mut self) -> SleepHint {
        if self.left == Some(0) {
            return SleepHint::NEVER;
        }
        let elapsed_ns = self.elapsed_ns();
        self.pacer.next_after(elapsed_ns).map_or(SleepHint::Poll, SleepHint::Within)
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

// From a description of traffic to frames and a schedule, once, when the wire is opened.
//
// Nothing here runs while frames are replayed, so it may allocate; how much is limited by name.

/// The address and port combinations of a flow without a count.
const DEFAULT_COUNT: u128 = 64;
/// The length that represents the shortest frame: Ethernet's own minimum, beyond which headers may reach.
const SHORTEST_FRAME_BYTES: usize = 64;
/// The most distinct frames of one generator, over all its flows.
const MAX_FRAMES: usize = 1 << 20;
/// The most bytes that its frames occupy.
const MAX_STORE_BYTES: usize = 256 << 20;
/// The most entries of its schedule; each takes eight bytes.
const MAX_SCHEDULE: usize = 1 << 22;
/// Short mixes are repeated up to this length, so that shuffling shows.
const MIN_SCHEDULE: usize = 4096;
/// How many lengths a spread of lengths is made of, at least.
const SIZE_VARIANTS: usize = 64;
/// The most hosts of an address block that are drawn from.
const MAX_HOSTS: u128 = 1 << 32;
const TCP_ACK: u8 = 1 << 4;
/// The station that all generated frames come from.
const PEER_MAC: MacAddr = MacAddr([0x02, 0x73, 0x6f, 0x66, 0x74, 0x01]);

/// Every frame once, and the order in which they are replayed.
#[derive(Debug)]
struct Replay {
    store: FrameStore,
    /// Not empty.
    schedule: Vec<Place>,
}

impl Replay {
    /// # Errors
    /// The flow that cannot be built, or the limit that all of them together go over.
    fn new(config: &GeneratorConfig) -> Result<Self, WireError> {
        if config.flows.is_empty() {
            return Err(WireError::Generator {
                problem: "`flows` is empty: describe at least one".to_owned(),
            });
        }
        let mut rng = Rng::new(config.seed);
        let mut store = FrameStore::default();
        let mut parts = Vec::with_capacity(config.flows.len());
        let mut frames_left = MAX_FRAMES;
        for (position, traffic) in config.flows.iter().enumerate() {
            let slots = record_traffic(traffic, &mut rng, &mut store, &mut frames_left)
                .map_err(|problem| WireError::Traffic { flow: name_of(traffic, position), problem })?;
            parts.push((traffic.share as usize, slots));
        }
        let schedule = schedule(&parts, &mut rng).map_err(|(position, problem)| WireError::Traffic {
            flow: name_of(&config.flows[position], position),
            problem,
        })?;
        store.align();
        Ok(Self { store, schedule })
    }

    /// Appends the `count` frames from a place of the schedule on to a burst.
    #[inline]
    fn fill<'w>(&'w self, place: usize, count: usize, burst: &mut Burst<'w>) {
        let frames = self.store.frames();
        burst.fill(&self.schedule[place..place + count], |place| frames.at(*place));
    }
}

fn name_of(traffic: &TrafficConfig, position: usize) -> String {
    if traffic.name.is_empty() { format!("number {}", position + 1) } else { traffic.name.clone() }
}

/// Builds the frames of one ingredient: every combination in every length that falls to it.
fn record_traffic(
    traffic: &TrafficConfig,
    rng: &mut Rng,
    store: &mut FrameStore,
    frames_left: &mut usize,
) -> Result<Vec<Place>, String> {
    let template = Template::new(traffic)?;
    let combinations = template.combinations();
    let count = match traffic.count.map(u128::from) {
        None => DEFAULT_COUNT.min(combinations),
        Some(count) if count > combinations => {
            return Err(format!(
                "`count` = {count} is more than the {combinations} combinations of its addresses and ports: lower it, or \
                 widen `src`, `dst`, `src_ports` or `dst_ports`"
            ));
        }
        Some(count) => count,
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let frames = match traffic.frame_bytes {
        FrameSizes::Fixed(_) => count,
        _ => count.saturating_mul(SIZE_VARIANTS.div_ceil(count)),
    };
    *frames_left = frames_left.checked_sub(frames).ok_or_else(|| {
        format!("the distinct frames of all flows up to here are more than {MAX_FRAMES}: lower `count`")
    })?;
    let mut lengths = lengths(&traffic.frame_bytes, frames, template.shortest())?;
    rng.shuffle(&mut lengths);

    // A stride without a common factor visits every combination once before it repeats one.
    let start = u128::from(rng.draw()) % combinations;
    let mut stride = u128::from(rng.draw()) % combinations + 1;
    while common_factor(stride, combinations) != 1 {
        stride = stride % combinations + 1;
    }
    let mut slots = Vec::with_capacity(frames);
    for (number, length) in lengths.into_iter().enumerate() {
        let combination = (start + (number % count) as u128 * stride) % combinations;
        let frame = template.frame(combination, length);
        if store.bytes_with(frame.len()) > MAX_STORE_BYTES {
            return Err(format!(
                "the frames of all flows up to here take more than {} MiB: lower `count` or `frame_bytes`",
                MAX_STORE_BYTES >> 20
            ));
        }
        slots.push(store.push(&frame));
    }
    Ok(slots)
}

/// Mixes the parts by share, exactly, and shuffles them. An error names the part by position.
fn schedule(parts: &[(usize, Vec<Place>)], rng: &mut Rng) -> Result<Vec<Place>, (usize, String)> {
    let shares: usize = parts.iter().map(|(share, _)| share).sum();
    let mut rounds = MIN_SCHEDULE.div_ceil(shares);
    for (position, (share, slots)) in parts.iter().enumerate() {
        // Every frame of the part gets its turn.
        rounds = rounds.max(slots.len().div_ceil(*share));
        if rounds.saturating_mul(shares) > MAX_SCHEDULE {
            return Err((
                position,
                format!(
                    "{} frames at a share of {share} in {shares} need a schedule of more than {MAX_SCHEDULE} frames: \
                     raise its `share`, lower its `count`, or use smaller shares for the others",
                    slots.len()
                ),
            ));
        }
    }
    let mut schedule = Vec::with_capacity(rounds * shares);
    for (share, slots) in parts {
        schedule.extend(slots.iter().cycle().take(rounds * share));
    }
    rng.shuffle(&mut schedule);
    Ok(schedule)
}

/// `frames` lengths in the proportions asked for, sorted. `shortest` is what the headers take.
fn lengths(sizes: &FrameSizes, frames: usize, shortest: usize) -> Result<Vec<usize>, String> {
    let checked = |bytes: u16| match usize::from(bytes) {
        SHORTEST_FRAME_BYTES => Ok(SHORTEST_FRAME_BYTES.max(shortest)),
        bytes if (shortest..=MAX_FRAME_BYTES).contains(&bytes) => Ok(bytes),
        bytes => Err(format!(
            "`frame_bytes` has {bytes}, which is not in {shortest}..={MAX_FRAME_BYTES}: the headers alone take \
             {shortest} ({SHORTEST_FRAME_BYTES} means as short as possible)"
        )),
    };
    match sizes {
        FrameSizes::Fixed(bytes) => Ok(vec![checked(*bytes)?; frames]),
        FrameSizes::Range(first, last) => {
            let (first, last) = (checked(*first)?, checked(*last)?);
            if first > last {
                return Err(format!("`frame_bytes` = {first}-{last} ends before it starts: swap the two"));
            }
            Ok((0..frames).map(|n| first + n * (last - first) / (frames - 1).max(1)).collect())
        }
        FrameSizes::Mix(mix) => {
            let total: u64 = mix.iter().map(|(_, weight)| u64::from(*weight)).sum();
            if total == 0 {
                return Err("`frame_bytes` is a mix without weight: write [[length, weight], ...]".to_owned());
            }
            let mut lengths = Vec::with_capacity(frames);
            let mut weight_so_far = 0;
            for (bytes, weight) in mix {
                weight_so_far += u64::from(*weight);
                let until = (u128::from(weight_so_far) * frames as u128 / u128::from(total)) as usize;
                lengths.resize(until, checked(*bytes)?);
            }
            Ok(lengths)
        }
    }
}

fn common_factor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The checked properties that all frames of one ingredient have in common.
struct Template<'c> {
    traffic: &'c TrafficConfig,
    tcp_flags: u8,
    dst_mac: Option<MacAddr>,
}

impl<'c> Template<'c> {
    fn new(traffic: &'c TrafficConfig) -> Result<Self, String> {
        if traffic.src.network.is_ipv4() != traffic.dst.network.is_ipv4() {
            return Err(format!("{} and {} are not of one family", traffic.src.network, traffic.dst.network));
        }
        if traffic.protocol == TrafficProtocol::Arp && traffic.src.network.is_ipv6() {
            return Err("ARP needs IPv4 addresses".to_owned());
        }
        if traffic.share == 0 {
            return Err("`share` is 0: leave the flow out instead".to_owned());
        }
        if traffic.count == Some(0) {
            return Err("`count` is 0: it is the number of address and port combinations".to_owned());
        }
        for (key, PortRange { first, last }) in
            [("src_ports", traffic.src_ports), ("dst_ports", traffic.dst_ports)]
        {
            if first > last {
                return Err(format!("`{key}` = {first}-{last} ends before it starts: swap the two"));
            }
        }
        if let Some(vlan) = traffic.vlan.filter(|vlan| !(1..=4094).contains(vlan)) {
            return Err(format!("`vlan` = {vlan} is not in 1..=4094"));
        }
        let tcp_flags = match &traffic.tcp_flags {
            None => TCP_ACK,
            Some(_) if traffic.protocol != TrafficProtocol::Tcp => {
                return Err("`tcp_flags` needs protocol = \"tcp\"".to_owned());
            }
            Some(flags) => parse_tcp_flags(flags)?,
        };
        let dst_mac = match &traffic.dst_mac {
            None => None,
            Some(text) => Some(
                text.parse().map_err(|_| format!("`dst_mac` = `{text}` is not like 02:00:00:00:00:01"))?,
            ),
        };
        Ok(Self { traffic, tcp_flags, dst_mac })
    }

    /// The length of a frame that is nothing but headers.
    fn shortest(&self) -> usize {
        self.frame(0, 0).len()
    }

    fn has_ports(&self) -> bool {
        matches!(self.traffic.protocol, TrafficProtocol::Tcp | TrafficProtocol::Udp | TrafficProtocol::Sctp)
    }

    fn combinations(&self) -> u128 {
        let ports = |range: PortRange| u128::from(range.last - range.first) + 1;
        let addresses = hosts(self.traffic.src) * hosts(self.traffic.dst);
        if self.has_ports() {
            addresses * ports(self.traffic.src_ports) * ports(self.traffic.dst_ports)
        } else {
            addresses
        }
    }

    fn frame(&self, combination: u128, frame_bytes: usize) -> Vec<u8> {
        let traffic = self.traffic;
        let mut rest = combination;
        let mut take = |count: u128| {
            let index = rest % count;
            rest /= count;
            index
        };
        let mut port = |range: PortRange| {
            range.first
                + if self.has_ports() { take(u128::from(range.last - range.first) + 1) as u16 } else { 0 }
        };
        let (src_port, dst_port) = (port(traffic.src_ports), port(traffic.dst_ports));
        let src = host(traffic.src, take(hosts(traffic.src)));
        let dst = host(traffic.dst, take(hosts(traffic.dst)));

        let dst_mac = self.dst_mac.unwrap_or_else(|| self.station_of(dst));
        let mut builder = FrameBuilder::new().ethernet(dst_mac, PEER_MAC).frame_bytes(frame_bytes);
        if let Some(vlan) = traffic.vlan {
            builder = builder.vlan(EtherType::VLAN, vlan);
        }
        builder = match (traffic.protocol, src, dst) {
            (TrafficProtocol::Arp, IpAddr::V4(src), IpAddr::V4(dst)) => builder.arp_request(src, dst),
            _ => builder.ip(src, dst),
        };
        builder = match traffic.protocol {
            TrafficProtocol::Udp => builder.udp(src_port, dst_port),
            TrafficProtocol::Tcp => builder.tcp(src_port, dst_port, self.tcp_flags),
            TrafficProtocol::Sctp => builder.sctp(src_port, dst_port),
            TrafficProtocol::Icmp => builder.icmp_echo(combination as u16, 1),
            TrafficProtocol::Ip(number) => builder.protocol(IpProtocol(number)),
            TrafficProtocol::Arp => builder,
        };
        builder.build()
    }

    /// The MAC address that a router on this segment would send to: the port itself, or the group's.
    fn station_of(&self, dst: IpAddr) -> MacAddr {
        if self.traffic.protocol == TrafficProtocol::Arp {
            return MacAddr::BROADCAST;
        }
        match dst {
            IpAddr::V4(v4) if v4.is_broadcast() => MacAddr::BROADCAST,
            // RFC 1112, 6.4.
            IpAddr::V4(v4) if v4.is_multicast() => {
                let [_, b, c, d] = v4.octets();
                MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            // RFC 2464, 7.
            IpAddr::V6(v6) if v6.is_multicast() => {
                let [.., a, b, c, d] = v6.octets();
                MacAddr([0x33, 0x33, a, b, c, d])
            }
            _ => SOFT_MAC,
        }
    }
}

fn parse_tcp_flags(text: &str) -> Result<u8, String> {
    let mut flags = 0;
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let flag = TCP_FLAGS.iter().find(|(flag, _)| flag.eq_ignore_ascii_case(name));
        flags |= flag.map(|(_, bit)| bit).ok_or_else(|| {
            let known = TCP_FLAGS.map(|(flag, _)| flag).join(", ");
            format!("`{name}` in `tcp_flags` is not one of {known}")
        })?;
    }
    Ok(flags)
}

fn host_bits(range: AddressRange) -> u32 {
    let bits: u32 = if range.network.is_ipv4() { 32 } else { 128 };
    bits - u32::from(range.prefix_len).min(bits)
}

fn hosts(range: AddressRange) -> u128 {
    1u128.checked_shl(host_bits(range)).unwrap_or(MAX_HOSTS).min(MAX_HOSTS)
}

fn host(range: AddressRange, index: u128) -> IpAddr {
    let host_mask = 1u128.checked_shl(host_bits(range)).map_or(u128::MAX, |hosts| hosts - 1);
    match range.network {
        IpAddr::V4(v4) => Ipv4Addr::from(v4.to_bits() & !(host_mask as u32) | index as u32).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(v6.to_bits() & !host_mask | index).into(),
    }
}

// A token bucket: how many frames are due by now.
//
// The generator asks it once per burst with the time since its first burst. It reads no clock itself.

const NS_PER_S: u128 = 1_000_000_000;

/// The frames that an engine that was held up may catch up on: this part of a second, and at least a burst.
const BACKLOG_PER_S: u64 = 100;

/// Frames by rate.
#[derive(Clone, Debug)]
struct Pacer {
    rate: Rate,
    /// Frames granted, or given up because the engine did not come for them in time.
    granted: u64,
}

impl Pacer {
    fn new(rate: Rate) -> Self {
        Self { rate, granted: 0 }
    }

    fn needs_clock(&self) -> bool {
        self.rate != Rate::FlatOut
    }

    /// How many of `wanted` frames may go out `elapsed_ns` after the start.
    fn grant(&mut self, elapsed_ns: u128, wanted: usize) -> usize {
        let Rate::FramesPerSecond(rate) = self.rate else { return wanted };
        let due = u64::try_from(elapsed_ns * u128::from(rate) / NS_PER_S).unwrap_or(u64::MAX);
        let backlog = (rate / BACKLOG_PER_S).max(BURST_FRAMES as u64);
        self.granted = self.granted.max(due.saturating_sub(backlog));
        let frames = due.saturating_sub(self.granted).min(wanted as u64);
        self.granted += frames;
        frames as usize
    }

    /// How long after `elapsed_ns` the next frame is due; `None`: there is no rate.
    fn next_after(&self, elapsed_ns: u128) -> Option<Duration> {
        let Rate::FramesPerSecond(rate) = self.rate else { return None };
        let due_ns = ((u128::from(self.granted) + 1) * NS_PER_S).div_ceil(u128::from(rate));
        let left_ns = due_ns.saturating_sub(elapsed_ns);
        Some(Duration::from_nanos(u64::try_from(left_ns).unwrap_or(u64::MAX)))
    }
}

// Draws for the generator: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), so that a seed means the same
// traffic for good.

/// A stream of draws.
#[derive(Clone, Debug)]
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0. The bias is below `bound` / 2^64.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
