//! Flows that match only multicast, of a program that replaces another one. Some devices keep those of all
//! programs in one table, where a match is only once, with one action and one tag: a flow whose match is
//! there with another one is made as two flows, each for half of its packets.

use std::collections::HashMap;

use device_model::{DeviceModel, Feature};
use program::{Correspondence, Flow, FlowAction, FlowKind, FlowSpec, Program, SpecChain};

/// The match of a flow. A table has each once.
type MatchKey<'f> = (FlowKind, &'f SpecChain);

/// Flows that the device applies last; copies are kept with the others of their priority.
pub(crate) fn multicast_flows(program: &Program) -> impl Iterator<Item = &Flow> {
    program.flows.iter().filter(|flow| flow.is_multicast_only())
}

/// Divides the flows that cannot be made while the flows of the previous program are there.
pub(crate) fn separate(mut program: Program, previous: Option<&Program>, profile: &DeviceModel) -> Program {
    let Some(previous) = previous.filter(|_| profile.multicast_ignores_priority) else { return program };
    let known: HashMap<MatchKey<'_>, &Flow> =
        multicast_flows(previous).map(|flow| (flow.match_key(), flow)).collect();
    if known.is_empty() {
        return program;
    }
    let flows = std::mem::take(&mut program.flows);
    let common = Correspondence::of(previous, &program);
    let mut separated = Vec::with_capacity(flows.len());
    for flow in flows {
        let is_free = known.get(&flow.match_key()).is_none_or(|old| agree(&common, old, &flow));
        let halves = if is_free { None } else { halves(&flow, profile, &known) };
        match halves {
            Some(halves) => separated.extend(halves),
            None => separated.push(flow),
        }
    }
    program.flows = separated;
    program
}

/// Whether two flows of one match can be in the table together, or are one.
pub(crate) fn agree(common: &Correspondence<'_>, old: &Flow, new: &Flow) -> bool {
    match (old.action, new.action) {
        (FlowAction::Steer { .. }, FlowAction::Steer { .. }) => {
            common.is_same_action(old, new) && common.is_same_class_of(old, new)
        }
        (old, new) => old == new,
    }
}

/// A flow as two that differ in one more bit; `None`: it matches all bits.
fn halves(flow: &Flow, profile: &DeviceModel, known: &HashMap<MatchKey<'_>, &Flow>) -> Option<[Flow; 2]> {
    const BITS: u32 = 96;
    let sources = profile.allows(Feature::SrcMac);
    let most = if sources { BITS } else { BITS / 2 };
    (0..most).find_map(|bit| {
        let half = |set: bool| {
            let mut specs = flow.specs.to_vec();
            fix(specs.first_mut()?, bit, set)
                .then(|| Flow { specs: SpecChain::new(specs, flow.specs.inner_from()), ..flow.clone() })
        };
        let halves = [half(false)?, half(true)?];
        let is_free = |half: &Flow| !known.contains_key(&half.match_key()) && half.is_multicast_only();
        halves.iter().all(is_free).then_some(halves)
    })
}

/// Adds one bit to the match, counted from the lowest of the destination and then of the source, if it is not
/// there.
fn fix(spec: &mut FlowSpec, bit: u32, set: bool) -> bool {
    let (is_source, bit) = (bit >= 48, bit % 48);
    match spec {
        FlowSpec::Ethernet { value, mask } => {
            let (value, mask) = match is_source {
                true => (&mut value.src_mac, &mut mask.src_mac),
                false => (&mut value.dst_mac, &mut mask.dst_mac),
            };
            let (byte, bit) = (5 - (bit / 8) as usize, 1 << (bit % 8));
            let is_new = mask[byte] & bit == 0;
            mask[byte] |= bit;
            value[byte] |= if set { bit } else { 0 };
            is_new
        }
        FlowSpec::Ipv4 { value, mask } if bit < 32 => match is_source {
            true => fix_address(&mut value.src, &mut mask.src, bit, set),
            false => fix_address(&mut value.dst, &mut mask.dst, bit, set),
        },
        FlowSpec::Ipv4Ext { value, mask } if bit < 32 => match is_source {
            true => fix_address(&mut value.src, &mut mask.src, bit, set),
            false => fix_address(&mut value.dst, &mut mask.dst, bit, set),
        },
        _ => false,
    }
}

fn fix_address(value: &mut u32, mask: &mut u32, bit: u32, set: bool) -> bool {
    let is_new = *mask >> bit & 1 == 0;
    *mask |= 1 << bit;
    *value |= u32::from(set) << bit;
    is_new
}
