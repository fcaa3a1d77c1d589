//! Traffic to classify: distinct flows drawn from rules, or random ones; as frames in a capture file, which
//! the soft NIC and testpmd replay, and as the trace of `dpdk-test-acl`. Each flow has one packet, in random
//! order; whoever replays a trace starts it again at its end.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;

use packet::IpProtocol;
use packet::build::FrameBuilder;

use crate::dice::Dice;
use crate::rules::{Filter, Ports, Rule, mask};

/// Packets that are drawn in a row without a new flow before a trace ends: the rules have no more of them.
const REPEATS_MAX: usize = 1 << 20;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The addresses, ports and protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    src: u32,
    dst: u32,
    src_port: u16,
    dst_port: u16,
    protocol: u8,
}

/// One packet of each flow, in order.
pub struct Trace {
    /// With the flags of TCP.
    packets: Vec<(Flow, u8)>,
}

impl Trace {
    /// `count` flows, each of a rule that is drawn with equal chances; fewer if the rules match fewer.
    #[must_use]
    pub fn of(rules: &[Rule], count: usize) -> Self {
        let mut dice = Dice(count as u64);
        Self::draw(count, || {
            let rule = &rules[dice.below(rules.len() as u32) as usize];
            packet_of(&rule.filter, &mut dice)
        })
    }

    /// `count` flows of TCP and UDP with random addresses and ports.
    #[must_use]
    pub fn random(count: usize) -> Self {
        let mut dice = Dice(count as u64);
        Self::draw(count, || {
            let (addresses, ports) = (dice.throw(), dice.throw());
            let flow = Flow {
                src: addresses as u32,
                dst: (addresses >> 32) as u32,
                src_port: ports as u16,
                dst_port: (ports >> 16) as u16,
                protocol: if ports >> 63 == 0 { TCP } else { UDP },
            };
            (flow, 0x10)
        })
    }

    fn draw(count: usize, mut packet: impl FnMut() -> (Flow, u8)) -> Self {
        let (mut known, mut packets, mut repeats) = (HashSet::with_capacity(count), Vec::new(), 0);
        while packets.len() < count && repeats < REPEATS_MAX {
            let (flow, flags) = packet();
            repeats += 1;
            if known.insert(flow) {
                packets.push((flow, flags));
                repeats = 0;
            }
        }
        Self { packets }
    }

    /// The number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// One frame of each flow, of `bytes` without the frame check sequence.
    pub fn frames(&self, bytes: u32) -> impl Iterator<Item = Vec<u8>> {
        self.packets.iter().map(move |(flow, flags)| flow.frame(*flags, bytes))
    }

    /// Writes the frames as a capture file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_pcap(&self, file: &Path, bytes: u32) -> io::Result<()> {
        const HEADER: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
        let mut file = BufWriter::with_capacity(1 << 20, File::create(file)?);
        let words = |file: &mut BufWriter<File>, words: &[u32]| {
            words.iter().try_for_each(|word| file.write_all(&word.to_ne_bytes()))
        };
        words(&mut file, &HEADER)?;
        for (index, frame) in self.frames(bytes).enumerate() {
            let length = frame.len() as u32;
            words(&mut file, &[0, index as u32 % 1_000_000, length, length])?;
            file.write_all(&frame)?;
        }
        file.flush()
    }

    /// Writes the flows as `dpdk-test-acl` reads them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_acl(&self, file: &Path) -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(file)?);
        for (Flow { src, dst, src_port, dst_port, protocol }, _) in &self.packets {
            writeln!(file, "{src:#x} {dst:#x} {src_port} {dst_port} {protocol} 0")?;
        }
        file.flush()
    }

    /// Writes the flows as ClassBench does, each with the number of the first of `rules` that matches it: for
    /// programs that ignore TCP flags.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_classbench(&self, file: &Path, rules: &[Rule]) -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(file)?);
        for (Flow { src, dst, src_port, dst_port, protocol }, _) in &self.packets {
            let is_match = |rule: &Rule| rule.filter.matches([*src, *dst], [*src_port, *dst_port], *protocol);
            let first = rules.iter().position(is_match).unwrap_or(rules.len());
            writeln!(file, "{src}\t{dst}\t{src_port}\t{dst_port}\t{protocol}\t0\t{first}")?;
        }
        file.flush()
    }
}

impl Flow {
    fn frame(&self, tcp_flags: u8, bytes: u32) -> Vec<u8> {
        let (src, dst) = (Ipv4Addr::from(self.src), Ipv4Addr::from(self.dst));
        let frame = FrameBuilder::new().ipv4(src, dst).frame_bytes(bytes as usize);
        match self.protocol {
            TCP => frame.tcp(self.src_port, self.dst_port, tcp_flags),
            UDP => frame.udp(self.src_port, self.dst_port),
            protocol => frame.protocol(IpProtocol(protocol)),
        }
        .build()
    }
}

fn packet_of(filter: &Filter, dice: &mut Dice) -> (Flow, u8) {
    let mut address = |(address, length): (u32, u32)| address | dice.throw() as u32 & !mask(length);
    let (src, dst) = (address(filter.src), address(filter.dst));
    let protocol = filter.protocol.unwrap_or(if dice.below(2) == 0 { TCP } else { UDP });
    let mut port = |(low, high): Ports| low + dice.below(u32::from(high - low) + 1) as u16;
    let (src_port, dst_port) = match protocol {
        TCP | UDP => (port(filter.src_port), port(filter.dst_port)),
        _ => (0, 0),
    };
    let (value, flags_mask) = filter.tcp_flags().unwrap_or_default();
    (Flow { src, dst, src_port, dst_port, protocol }, value | 0x10 & !flags_mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::generated;

    #[test]
    fn every_flow_is_new_and_matches_a_rule() {
        let set = generated(100);
        let trace = Trace::of(&set.rules, 5000);
        assert_eq!(trace.len(), 5000);
        let flows: HashSet<Flow> = trace.packets.iter().map(|(flow, _)| *flow).collect();
        assert_eq!(flows.len(), 5000);
        for flow in flows {
            let exact = Filter {
                src: (flow.src, 32),
                dst: (flow.dst, 32),
                src_port: (flow.src_port, flow.src_port),
                dst_port: (flow.dst_port, flow.dst_port),
                protocol: Some(flow.protocol),
                flags: (0, 0),
            };
            assert!(set.rules.iter().any(|rule| rule.filter.overlaps(&exact)), "{flow:?}");
        }
    }

    #[test]
    fn a_trace_of_few_flows_ends() {
        let host = Filter {
            src: (1, 32),
            dst: (2, 31),
            src_port: (7, 7),
            dst_port: (1, 2),
            protocol: Some(UDP),
            flags: (0, 0),
        };
        let rule = Rule { filter: host, verdict: crate::rules::Verdict::Drop };
        assert_eq!(Trace::of(&[rule], 100).len(), 4);
    }

    #[test]
    fn the_first_matching_rule_is_in_the_trace() {
        let set = generated(50).delivering();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace");
        Trace::of(&set.rules, 500).write_classbench(&file, &set.rules).unwrap();
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let numbers: Vec<u32> = line.split('\t').map(|word| word.parse().unwrap()).collect();
            let ports = [numbers[2] as u16, numbers[3] as u16];
            let flow = Filter {
                src: (numbers[0], 32),
                dst: (numbers[1], 32),
                src_port: (ports[0], ports[0]),
                dst_port: (ports[1], ports[1]),
                protocol: Some(numbers[4] as u8),
                flags: (0, 0),
            };
            let first = set.rules.iter().position(|rule| rule.filter.overlaps(&flow));
            assert_eq!(first, Some(numbers[6] as usize), "{line}");
        }
    }

    #[test]
    fn frames_have_the_length_and_the_flow() {
        let trace = Trace::random(10);
        for ((flow, _), frame) in trace.packets.iter().zip(trace.frames(64)) {
            assert_eq!(frame.len(), 64);
            assert_eq!(frame[26..30], flow.src.to_be_bytes());
            assert_eq!(frame[36..38], flow.dst_port.to_be_bytes());
        }
    }
}
