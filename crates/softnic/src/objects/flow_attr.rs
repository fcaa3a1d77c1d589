//! Reading an `ibv_flow_attr`: every size, count, type and flag, as the library, the kernel and its driver do
//! (rdma-core libibverbs/cmd.c, `ib_spec_to_kern_spec`; drivers/infiniband/core/uverbs_cmd.c,
//! `ib_uverbs_ex_create_flow` and `kern_spec_to_ib_spec`; then the driver's own checks, which are rows of
//! [`FlowRules`]).
//!
//! [`super::flows`] calls [`read`]. Bytes become specs in `spec`, and what they ask for becomes matchers in
//! `filter`. Nothing here touches the device or believes a length.

mod filter;
mod spec;

use arrayvec::ArrayVec;
use device_model::{Feature, Limit};
use flow_table::{FlowKind, GROUP_BIT, Matcher, TunnelMatcher};
use ibverbs_sys::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_FLAGS_EGRESS,
    IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_SNIFFER, ibv_counters, ibv_flow_attr,
    ibv_flow_spec_action_drop,
};

pub use self::spec::grh_flow;
use self::spec::{Action, Filter, Spec};
use crate::errno::{EINVAL, Verb, known_bits};
use crate::limits::MAX_SPECS;
use crate::personality::FlowRules;

/// `IBV_FLOW_ATTR_FLAGS_RESERVED` of the kernel: bits from here on have never had a meaning.
const FLAGS_RESERVED: u32 = IBV_FLOW_ATTR_FLAGS_EGRESS << 1;
/// The priority of multicast-only flows of a device that puts them last: after every other.
const LAST_PRIORITY: u16 = u16::MAX;

/// The flow that an attribute block asks for.
#[derive(Debug)]
pub struct FlowRequest {
    pub(crate) kind: FlowKind,
    pub(crate) port: u8,
    pub(crate) priority: u16,
    pub(crate) dont_trap: bool,
    pub(crate) egress: bool,
    pub(crate) matcher: Matcher,
    pub(crate) tunnel: Option<Box<TunnelMatcher>>,
    pub(crate) tag: Option<u32>,
    pub(crate) drop: bool,
    pub(crate) counters: Option<*mut ibv_counters>,
}

impl FlowRequest {
    /// The pointer of the COUNT action, if there is one. Nothing has followed it.
    #[must_use]
    pub fn counters(&self) -> Option<*mut ibv_counters> {
        self.counters
    }
}

type Specs = ArrayVec<Spec, { MAX_SPECS as usize }>;

/// Reads a block.
///
/// # Safety
/// `attr` is NULL or the start of a block of `attr.size` bytes; if that is not more than an `ibv_flow_attr`,
/// of one and as many specs behind it as it states, each of the size that it states.
pub(crate) unsafe fn read(attr: *const ibv_flow_attr, rules: &FlowRules) -> Verb<FlowRequest> {
    if attr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: an `ibv_flow_attr`, by the contract; not necessarily aligned.
    let head = unsafe { attr.read_unaligned() };
    known_bits(head.comp_mask, 0, EINVAL)?;
    check_head(&head)?;
    let header_bytes = size_of::<ibv_flow_attr>();
    let specs = attr.cast::<u8>().wrapping_add(header_bytes);
    let spec_bytes = match usize::from(head.size).checked_sub(header_bytes) {
        None | Some(0) => {
            // SAFETY: such a block is as long as the sizes of its specs, by the contract.
            unsafe { extent(specs, head.num_of_specs) }?
        }
        Some(bytes) => bytes,
    };
    // SAFETY: the block has that many bytes behind its header, by the contract.
    let specs = unsafe { std::slice::from_raw_parts(specs, spec_bytes) };
    let specs = walk(specs, head.num_of_specs)?;
    interpret(&head, &specs, rules)
}

/// How long the specs of a block are whose `size` counts none of them: the stock library walks `num_of_specs`
/// and never looks at `size` (`ibv_cmd_create_flow`, libibverbs/cmd.c), so pyverbs gives the header's and
/// perftest none.
///
/// # Safety
/// `specs` is the start of `count` specs, each of the size that it states.
unsafe fn extent(specs: *const u8, count: u8) -> Verb<usize> {
    /// The longest spec of verbs.h takes 88 bytes.
    const LONGEST: u16 = 256;
    let mut bytes = 0;
    for _ in 0..count {
        let length = specs.wrapping_add(bytes + std::mem::offset_of!(ibv_flow_spec_action_drop, size));
        // SAFETY: inside the header of a spec, by the contract; not necessarily aligned.
        let length = unsafe { length.cast::<u16>().read_unaligned() };
        if !(size_of::<ibv_flow_spec_action_drop>() as u16..=LONGEST).contains(&length) {
            return Err(EINVAL);
        }
        bytes += usize::from(length);
    }
    Ok(bytes)
}

/// Checks what the kernel checks for flows of every device.
fn check_head(head: &ibv_flow_attr) -> Verb<()> {
    let dont_trap = head.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    let is_default = matches!(head.type_, IBV_FLOW_ATTR_ALL_DEFAULT | IBV_FLOW_ATTR_MC_DEFAULT);
    if head.flags >= FLAGS_RESERVED || (dont_trap && is_default) || head.num_of_specs > MAX_SPECS {
        return Err(EINVAL);
    }
    Ok(())
}

/// Cuts the block into specs.
fn walk(mut block: &[u8], count: u8) -> Verb<Specs> {
    let mut specs = Specs::new();
    for _ in 0..count {
        let (spec, rest) = spec::split(block)?;
        specs.try_push(Spec::read(spec)?).map_err(|_| EINVAL)?;
        block = rest;
    }
    // As the kernel: what is not a spec is not part of the block.
    if block.is_empty() { Ok(specs) } else { Err(EINVAL) }
}

/// Interprets the request as the device does.
fn interpret(head: &ibv_flow_attr, specs: &Specs, rules: &FlowRules) -> Verb<FlowRequest> {
    let mut request = read_head(head, specs, rules)?;
    let is_normal = request.kind == FlowKind::Normal;
    if !is_normal && rules.emulation.ignores_specs_of_defaults {
        return Ok(request);
    }
    if request.dont_trap && rules.emulation.dont_trap_is_promiscuous {
        filter::check_promiscuous(specs, request.priority)?;
    }
    let mut filters = ArrayVec::<Filter, { MAX_SPECS as usize }>::new();
    for spec in specs {
        match spec {
            Spec::Action(action) => act(&mut request, *action, rules)?,
            Spec::Filter(filter) => filters.push(filter.clone()),
        }
    }
    // Defaults and sniffers take whole classes of frames; specs on them would be silently ignored by
    // hardware.
    if !is_normal && !filters.is_empty() {
        return Err(EINVAL);
    }
    let (matcher, tunnel) = filter::matchers(&filters, rules)?;
    // What is to go on to later flows cannot be dropped: neither a copy nor a verdict would be left of such a
    // flow.
    let pointless = request.drop && (request.kind == FlowKind::Sniffer || request.dont_trap);
    if pointless || matcher.is_contradictory() || tunnel.is_contradictory() {
        return Err(EINVAL);
    }
    request.matcher = matcher;
    request.tunnel = (!tunnel.is_any()).then(|| Box::new(tunnel));
    Ok(request)
}

fn read_head(head: &ibv_flow_attr, specs: &Specs, rules: &FlowRules) -> Verb<FlowRequest> {
    let kind = match head.type_ {
        IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::MulticastDefault,
        IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
        _ => return Err(rules.type_refusal),
    };
    match kind {
        FlowKind::Sniffer => rules.check(Feature::Sniffer)?,
        // A device without the one kind does not have the others.
        FlowKind::Normal | FlowKind::MulticastDefault | FlowKind::AllDefault => {
            rules.check(Feature::Normal)?;
        }
    }
    if head.num_of_specs > rules.max_specs {
        return Err(rules.limits.of(Limit::Specs));
    }
    if head.priority > rules.max_priority {
        return Err(rules.priority_refusal);
    }
    rules.flags.check(head.flags)?;
    let dont_trap = head.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    // A device that copies to promiscuous flows alone has no copies for steerd.
    if dont_trap && kind == FlowKind::Normal && !rules.emulation.dont_trap_is_promiscuous {
        rules.check(Feature::Copy)?;
    }
    if dont_trap && kind == FlowKind::Sniffer {
        rules.dont_trap_sniffer_refusal.map_or(Ok(()), Err)?;
    }
    let egress = head.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0;
    // Of what is sent there are no leftovers, and a sniffer has its copy of it anyway.
    if egress && kind != FlowKind::Normal {
        return Err(EINVAL);
    }
    if egress && dont_trap {
        rules.dont_trap_egress_refusal.map_or(Ok(()), Err)?;
    }
    let comes_last = rules.multicast_comes_last
        && !dont_trap
        && matches!(specs.first(), Some(Spec::Filter(filter)) if filter.is_multicast_only());
    let priority = match kind {
        FlowKind::Normal if comes_last => LAST_PRIORITY,
        FlowKind::Normal => head.priority,
        _ if rules.emulation.ignores_priority_of_defaults => 0,
        _ => head.priority,
    };
    Ok(FlowRequest {
        kind,
        port: head.port,
        priority,
        dont_trap: dont_trap && kind == FlowKind::Normal,
        egress,
        matcher: Matcher::any(),
        tunnel: None,
        tag: None,
        drop: false,
        counters: None,
    })
}

/// Notes an action; each at most once.
fn act(request: &mut FlowRequest, action: Action, rules: &FlowRules) -> Verb<()> {
    match action {
        Action::Tag(_) => rules.check(Feature::Tag)?,
        Action::Drop => rules.check(Feature::Drop)?,
        Action::Count(_) => rules.check(Feature::Count)?,
        // No kernel has any for raw packets since ESP offload was removed from mlx5.
        Action::Handle => return Err(rules.action_refusal),
    }
    match action {
        Action::Tag(tag) if tag > rules.max_tag => Err(EINVAL),
        Action::Tag(tag) => set_once(&mut request.tag, tag),
        Action::Count(counters) => set_once(&mut request.counters, counters),
        Action::Drop if request.drop => Err(EINVAL),
        Action::Drop => {
            request.drop = true;
            Ok(())
        }
        Action::Handle => Err(rules.action_refusal),
    }
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Verb<()> {
    if place.is_some() {
        return Err(EINVAL);
    }
    *place = Some(value);
    Ok(())
}

#[cfg(test)]
mod tests;
