//! The packets of a flow as a [`Match`], for the analysis: it compares flows, which are values under masks,
//! with the matches of a policy, which are sets of values. Never used on the packet path.

use flow_spec::{FlowSpec, MaskedField, SpecKind};
use packet::cube::{MPLS_TOP, VLAN_TCI};
use packet::{FIELDS, Field, Form, Header, IpProtocol, mac_address};

use crate::matching::{Addresses, C_TAG, Family, Macs, MaskedMac, Match, MplsEntry};
use crate::program::Flow;
use crate::ranges::{RangeSet, Word};

/// The most ranges that a mask may mean, enough for any mask of 16 bits; beyond it the condition is left out.
const MAX_RANGES: u32 = 1 << 15;

/// The packets that a flow matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPackets {
    /// A match that holds for all of them.
    pub matches: Match,
    /// Whether it holds for no others. Flows that the compiler makes are exact; a mask with more than 32,768
    /// ranges, or a bit that has no key in the language, is not.
    pub is_exact: bool,
}

impl Flow {
    /// The packets that the flow matches, as a match.
    #[must_use]
    pub fn packets(&self) -> FlowPackets {
        let mut packets = FlowPackets { matches: Match::default(), is_exact: true };
        for (index, spec) in self.specs.iter().enumerate() {
            packets.add(spec, index >= self.specs.inner_from());
        }
        packets
    }
}

impl FlowPackets {
    /// Adds the conditions of a spec: its header, then its masked fields. Each is independent of the others,
    /// so that the match of all is exact if each condition is.
    fn add(&mut self, spec: &FlowSpec, inside: bool) {
        let kind = spec.kind();
        let is_of_tunnel =
            matches!(kind, SpecKind::Esp | SpecKind::VxlanTunnel | SpecKind::Gre | SpecKind::Mpls);
        let matches = match inside && !is_of_tunnel {
            true => &mut **self.matches.inner.get_or_insert_default(),
            false => &mut self.matches,
        };
        require_header(matches, kind);
        for field in spec.masked_fields() {
            self.is_exact &= restrict(matches, kind, &field).is_some();
        }
    }
}

/// Requires the header of a spec.
fn require_header(matches: &mut Match, kind: SpecKind) {
    match kind {
        SpecKind::Ethernet => {}
        SpecKind::Ipv4 | SpecKind::Ipv4Ext => matches.family = Some(Family::V4),
        SpecKind::Ipv6 => matches.family = Some(Family::V6),
        SpecKind::Tcp => require_field_of(matches, Header::Tcp),
        SpecKind::Udp => {
            matches.require(Field::DstPort);
            narrow(matches, Field::Protocol, RangeSet::single(IpProtocol::UDP.0.into()));
        }
        SpecKind::Esp => require_field_of(matches, Header::Esp),
        SpecKind::VxlanTunnel => require_field_of(matches, Header::Vxlan),
        SpecKind::Gre => matches.require(Field::GreProtocol),
        SpecKind::Mpls => _ = matches.mpls.get_or_insert_default(),
    }
}

/// Requires a header by its first field.
fn require_field_of(matches: &mut Match, header: Header) {
    if let Some(row) = FIELDS.iter().find(|row| row.header == header) {
        matches.require(row.field);
    }
}

/// Restricts the match to packets with these bits; `None` if it cannot express them.
fn restrict(matches: &mut Match, kind: SpecKind, field: &MaskedField) -> Option<()> {
    let MaskedField { slots, bits, value, mask } = *field;
    if slots == [VLAN_TCI] {
        return tag(matches, value, mask);
    }
    if slots == [MPLS_TOP] {
        return label(matches, value, mask);
    }
    let row = FIELDS.iter().find(|row| row.slots == slots)?;
    // If its place holds the upper bits of the field only, as that of the GRE flags does, so does the key.
    let low = bits.checked_sub(row.bits)?;
    if mask & ((1 << low) - 1) != 0 {
        return None;
    }
    let (value, mask) = (value >> low, mask >> low);
    match row.form {
        Form::Mac => {
            let mac = |bits: u128| mac_address(bits as u64);
            let macs = Macs::of(vec![MaskedMac { value: mac(value), mask: mac(mask) }]);
            let own = if row.field == Field::DstMac { &mut matches.dst_mac } else { &mut matches.src_mac };
            *own = Some(macs);
        }
        Form::Address => {
            let set = ranges(value, mask, row.bits)?;
            let addresses = match kind {
                SpecKind::Ipv6 => Addresses { v4: RangeSet::default(), v6: RangeSet::of(set) },
                _ => Addresses { v4: narrowed(set), v6: RangeSet::default() },
            };
            let is_source = matches!(row.field, Field::SrcV4 | Field::SrcV6);
            *(if is_source { &mut matches.src } else { &mut matches.dst }) = Some(addresses);
        }
        _ => narrow(matches, row.field, narrowed(ranges(value, mask, row.bits)?)),
    }
    Some(())
}

/// The outer tag: priority 3 bits, drop eligible indicator 1, VLAN id 12. Any of them needs an 802.1Q tag.
fn tag(matches: &mut Match, value: u128, mask: u128) -> Option<()> {
    narrow(matches, Field::VlanTpid, RangeSet::single(C_TAG.into()));
    for (field, low) in [(Field::VlanId, 0), (Field::VlanPriority, 13)] {
        let (value, mask) = ((value >> low) & field.max(), (mask >> low) & field.max());
        if mask != 0 {
            narrow(matches, field, narrowed(ranges(value, mask, field.row().bits)?));
        }
    }
    // The language has no key for the indicator.
    (mask & 1 << 12 == 0).then_some(())
}

/// The top label: label 20 bits, traffic class 3, bottom of stack 1, time to live 8.
fn label(matches: &mut Match, value: u128, mask: u128) -> Option<()> {
    let stack = matches.mpls.get_or_insert_default();
    stack.resize(stack.len().max(1), MplsEntry::default());
    let part = |low: u32, bits: u32| -> Option<Option<RangeSet<u32>>> {
        let ones = (1 << bits) - 1;
        let (value, mask) = ((value >> low) & ones, (mask >> low) & ones);
        if mask == 0 { Some(None) } else { Some(Some(narrowed(ranges(value, mask, bits)?))) }
    };
    let bottom = (mask >> 8 & 1 == 1).then_some(value >> 8 & 1 == 1);
    stack[0] = MplsEntry { label: part(12, 20)?, tc: part(9, 3)?, bottom, ttl: part(0, 8)? };
    Some(())
}

/// Adds a condition on a field to that which it may have.
fn narrow(matches: &mut Match, field: Field, set: RangeSet<u32>) {
    let set = match matches.get(field) {
        Some(own) => own.intersect(&set),
        None => set,
    };
    matches.set(field, set);
}

/// The values that agree with `value` in the bits of `mask`, as ranges: the bits below the lowest of the mask
/// are free in each range, and every combination of the free bits above it is a range of its own.
fn ranges(value: u128, mask: u128, bits: u32) -> Option<Vec<(u128, u128)>> {
    let low = mask.trailing_zeros().min(bits);
    let free: Vec<u32> = (low..bits).filter(|bit| mask >> bit & 1 == 0).collect();
    let count = 1u32.checked_shl(free.len() as u32).filter(|count| *count <= MAX_RANGES)?;
    let below = (1u128 << low).wrapping_sub(1);
    let range = |combination: u32| {
        let set = free.iter().enumerate().filter(|(place, _)| combination >> place & 1 == 1);
        let start = set.fold(value & mask, |start, (_, bit)| start | 1 << bit);
        (start, start | below)
    };
    Some((0..count).map(range).collect())
}

/// Ranges that fit 32 bits.
fn narrowed(ranges: Vec<(u128, u128)>) -> RangeSet<u32> {
    RangeSet::of(ranges.into_iter().map(|(low, high)| (u32::narrow(low), u32::narrow(high))).collect())
}

#[cfg(test)]
mod tests {
    use flow_spec::{EthernetMatch, GreMatch, Ipv4ExtMatch, Ipv6Match, MplsMatch, PortMatch, VxlanMatch};
    use packet::build::FrameBuilder;
    use packet::{DeepKey, EtherType};

    use super::*;
    use crate::{FlowAction, FlowKind, Predicate, RuleId, SpecChain};

    fn flow(specs: Vec<FlowSpec>, inner_from: usize) -> Flow {
        let (rule, kind, action) = (RuleId(0), FlowKind::Normal, FlowAction::Drop);
        Flow { rule, priority: 0, kind, specs: SpecChain::new(specs, inner_from), action }
    }

    /// Frames of every header stack, with the values of the flows below and others.
    fn frames() -> Vec<Vec<u8>> {
        let v4 = |last| FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, last].into());
        let v6 = || FrameBuilder::new().ipv6(1.into(), (0x2001_0db8_u128 << 96 | 7).into());
        let mut frames = vec![FrameBuilder::new().ether_type(EtherType::ARP).build()];
        for last in [1, 2, 130] {
            let inside = v4(last).tcp(1, 80, 2).build();
            frames.extend([
                v4(last).tcp(1024, 22, 2).build(),
                v4(last).tos(0xb8).ttl(64).udp(53, 1025).build(),
                v4(last).vlan(EtherType::VLAN, 0xa005).udp(53, 22).build(),
                v4(last).vlan(EtherType::SVLAN, 5).udp(53, 22).build(),
                v4(last).fragment(8, true).udp(53, 22).build(),
                v6().tcp(1, 22, 2).build(),
                v6().udp(1, 22).build(),
                v6().vxlan(7, &inside).build(),
                v4(last).vxlan(8, &inside).build(),
                v4(last).gre(EtherType(0x6558), Some(7), &inside).build(),
                v4(last).gre(EtherType(0x6558), None, &inside).build(),
                v4(last).mpls(&[packet::build::mpls_label(16, 3)], &v4(last).build_packet()).build(),
            ]);
        }
        frames
    }

    fn specs() -> Vec<(Vec<FlowSpec>, usize)> {
        let mut flows = Vec::new();
        let mut add = |specs: Vec<FlowSpec>, inner_from: usize| flows.push((specs, inner_from));
        let eth = |value, mask| FlowSpec::Ethernet { value, mask };
        let none = EthernetMatch::default();
        add(vec![eth(none, none)], 1);
        for (value, mask) in [(5, 0xfff), (0xa000, 0xe000), (4, 0x00c), (0x8001, 0x8001), (0x1000, 0x1000)] {
            let tag = |vlan_tag| EthernetMatch { vlan_tag, ..none };
            add(vec![eth(tag(value), tag(mask))], 1);
        }
        let arp = EthernetMatch { ether_type: 0x0806, ..none };
        add(vec![eth(arp, EthernetMatch { ether_type: 0xffff, ..none })], 1);
        let v4 = |dst, proto, tos| Ipv4ExtMatch { dst, proto, tos, ..Ipv4ExtMatch::default() };
        for (value, mask) in [
            (v4(0xc000_0200, 0, 0), v4(0xffff_ff80, 0, 0)),
            (v4(2, 6, 0), v4(3, 0xff, 0)),
            (v4(0, 0, 0xb0), v4(0, 0, 0xb0)),
        ] {
            add(vec![eth(none, none), FlowSpec::Ipv4Ext { value, mask }], 2);
        }
        let ports = |dst_port| PortMatch { src_port: 0, dst_port };
        for (value, mask) in [(22, 0xffff), (1, 1), (1024, 0xfc00), (0, 0)] {
            let (value, mask) = (ports(value), ports(mask));
            add(vec![FlowSpec::Tcp { value, mask }], 1);
            add(vec![FlowSpec::Udp { value, mask }], 1);
            let (net, bits) = (Ipv6Match::default(), Ipv6Match::default());
            add(vec![FlowSpec::Ipv6 { value: net, mask: bits }, FlowSpec::Udp { value, mask }], 2);
        }
        let vni = |vni| VxlanMatch { vni };
        let inner = FlowSpec::Ipv4Ext { value: v4(1, 0, 0), mask: v4(1, 0, 0) };
        add(vec![FlowSpec::VxlanTunnel { value: vni(7), mask: vni(0xff_ffff) }], 1);
        add(vec![FlowSpec::VxlanTunnel { value: vni(0), mask: vni(0) }, inner], 1);
        let gre = |c_ks_res0_ver, key| GreMatch { c_ks_res0_ver, key, ..GreMatch::default() };
        add(vec![FlowSpec::Gre { value: gre(0x2000, 0), mask: gre(0x2000, 0) }, inner], 1);
        add(vec![FlowSpec::Gre { value: gre(0, 7), mask: gre(0, u32::MAX) }], 1);
        let top = |label| MplsMatch { label };
        add(vec![FlowSpec::Mpls { value: top(16 << 12), mask: top(0xf_ffff << 12) }], 1);
        add(vec![FlowSpec::Mpls { value: top(3 << 9 | 1 << 8), mask: top(7 << 9 | 1 << 8) }], 1);
        flows
    }

    #[test]
    fn a_flow_and_its_packets_agree_on_every_frame() {
        let keys: Vec<DeepKey> = frames().iter().map(|frame| DeepKey::of(frame)).collect();
        let mut exact = 0;
        for (specs, inner_from) in specs() {
            let flow = flow(specs, inner_from);
            let FlowPackets { matches, is_exact } = flow.packets();
            let predicate = Predicate::of(&matches);
            exact += usize::from(is_exact);
            for key in &keys {
                let (taken, held) = (flow.matches(key), predicate.matches_deep(key));
                assert!(
                    if is_exact { taken == held } else { !taken || held },
                    "{:?}: {}",
                    flow.specs,
                    key.describe()
                );
            }
        }
        // The drop eligible indicator has no key; a mask of the last bits of an address means too many
        // ranges.
        assert_eq!(exact, specs().len() - 4, "{exact}");
    }

    #[test]
    fn a_mask_becomes_a_range_for_each_combination_of_the_free_bits_above_it() {
        assert_eq!(ranges(0, 0, 16), Some(vec![(0, 0xffff)]));
        assert_eq!(ranges(0x0400, 0xfc00, 16), Some(vec![(0x0400, 0x07ff)]));
        assert_eq!(ranges(1, 0x8001, 16).map(|list| list.len()), Some(1 << 14));
        assert_eq!(ranges(1, 1, 32), None);
        assert_eq!(ranges(4, 0b110, 4), Some(vec![(4, 5), (12, 13)]));
        assert_eq!(ranges(7, u128::MAX, 128), Some(vec![(7, 7)]));
    }
}
