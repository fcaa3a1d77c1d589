//! What a flow asks for ([`FlowAttr`]), and the block that `ibv_create_flow` takes: `ibv_flow_attr`, followed
//! without a gap by its specs, each with its own size.
//!
//! Matched fields are in network byte order, padding is zero. The header is 20 bytes long, so it is placed 4
//! bytes off the buffer's 8-byte alignment: then every spec, and the pointer in a counter action, is aligned.

use std::mem::{offset_of, size_of};
use std::sync::Arc;

use flow_spec::{FlowSpec, MAX_FILTER_BYTES, SpecKind};
use ibverbs_sys::{
    self as sys, ibv_flow_attr, ibv_flow_attr_type, ibv_flow_spec_action_drop, ibv_flow_spec_action_handle,
    ibv_flow_spec_action_tag, ibv_flow_spec_counter_action, ibv_flow_spec_eth, ibv_flow_spec_ipv6,
    ibv_flow_spec_type,
};

use super::action::FlowAction;
use crate::{Counters, FlowTag, PortNumber, Result, VerbsError};

/// Most specs of one flow, actions included: the count is a byte. The kernel takes ten (uverbs_cmd.c).
pub(crate) const MAX_SPECS: usize = u8::MAX as usize;

/// The kind of a flow (`ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKind {
    /// Packets that match the specs.
    Normal,
    /// Packets that no normal flow took.
    AllDefault,
    /// Multicast packets that no normal flow took.
    MulticastDefault,
    /// A copy of every packet.
    Sniffer,
}

impl FlowKind {
    fn raw(self) -> ibv_flow_attr_type {
        match self {
            Self::Normal => sys::IBV_FLOW_ATTR_NORMAL,
            Self::AllDefault => sys::IBV_FLOW_ATTR_ALL_DEFAULT,
            Self::MulticastDefault => sys::IBV_FLOW_ATTR_MC_DEFAULT,
            Self::Sniffer => sys::IBV_FLOW_ATTR_SNIFFER,
        }
    }
}

/// The treatment of matching packets (`IBV_FLOW_SPEC_ACTION_*`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ActionSpec {
    /// Completions carry this tag.
    Tag(FlowTag),
    /// Packets are dropped.
    Drop,
    /// Packets are counted there.
    Count(Arc<Counters>),
    /// Packets are treated by that action.
    Handle(Arc<FlowAction>),
}

/// The attributes of a flow (`ibv_flow_attr`). They are not checked: a device that cannot do what they ask
/// for refuses them when the flow is created.
#[derive(Clone, Debug)]
#[must_use]
pub struct FlowAttr {
    kind: FlowKind,
    pub(super) port: PortNumber,
    pub(super) priority: u16,
    dont_trap: bool,
    egress: bool,
    /// With `IBV_FLOW_SPEC_INNER` for those of the encapsulated packet.
    specs: Vec<(ibv_flow_spec_type, FlowSpec)>,
    pub(super) actions: Vec<ActionSpec>,
}

impl FlowAttr {
    /// A flow on `port` at the highest priority, 0, without specs.
    pub fn new(kind: FlowKind, port: PortNumber) -> Self {
        let (specs, actions) = (Vec::new(), Vec::new());
        Self { kind, port, priority: 0, dont_trap: false, egress: false, specs, actions }
    }

    /// Smaller goes first.
    pub fn priority(mut self, priority: u16) -> Self {
        self.priority = priority;
        self
    }

    /// Packets go on to further flows as well (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`). EINVAL for the default
    /// kinds.
    pub fn dont_trap(mut self, on: bool) -> Self {
        self.dont_trap = on;
        self
    }

    /// The flow is about packets that are sent (`IBV_FLOW_ATTR_FLAGS_EGRESS`): its target only names the
    /// device. EINVAL for the default kinds.
    pub fn egress(mut self, on: bool) -> Self {
        self.egress = on;
        self
    }

    /// Adds a spec of the outermost packet. Specs go from the outermost header inwards.
    pub fn spec(mut self, spec: FlowSpec) -> Self {
        self.specs.push((0, spec));
        self
    }

    /// Adds a spec of the encapsulated packet, after those of the outer one. Tunnel headers have no inner
    /// form: the kernel answers EINVAL (uverbs_cmd.c).
    pub fn inner(mut self, spec: FlowSpec) -> Self {
        self.specs.push((sys::IBV_FLOW_SPEC_INNER, spec));
        self
    }

    /// Adds an action.
    pub fn action(mut self, action: ActionSpec) -> Self {
        self.actions.push(action);
        self
    }

    /// How many specs it has, actions included.
    pub fn spec_count(&self) -> usize {
        self.specs.len() + self.actions.len()
    }

    /// The block that `ibv_create_flow` takes: specs, then actions, the tags last, whose 12 bytes would
    /// unalign what follows.
    pub(super) fn block(&self) -> Result<FlowBlock> {
        let count = self.spec_count();
        let num_of_specs =
            u8::try_from(count).map_err(|_| VerbsError::TooManySpecs { count, most: MAX_SPECS })?;
        let mut writer = Writer { bytes: vec![0; size_of::<ibv_flow_attr>()] };
        for (inner, spec) in &self.specs {
            writer.spec(*inner, spec);
        }
        let (tags, others): (Vec<_>, Vec<_>) =
            self.actions.iter().partition(|action| matches!(action, ActionSpec::Tag(_)));
        others.into_iter().chain(tags).for_each(|action| writer.action(action));
        let dont_trap = if self.dont_trap { sys::IBV_FLOW_ATTR_FLAGS_DONT_TRAP } else { 0 };
        let flags = dont_trap | if self.egress { sys::IBV_FLOW_ATTR_FLAGS_EGRESS } else { 0 };
        let size = writer.bytes.len() as u16;
        writer.put(offset_of!(ibv_flow_attr, type_), &self.kind.raw().to_ne_bytes());
        writer.put(offset_of!(ibv_flow_attr, size), &size.to_ne_bytes());
        writer.put(offset_of!(ibv_flow_attr, priority), &self.priority.to_ne_bytes());
        writer.put(offset_of!(ibv_flow_attr, num_of_specs), &[num_of_specs]);
        writer.put(offset_of!(ibv_flow_attr, port), &[self.port.0]);
        writer.put(offset_of!(ibv_flow_attr, flags), &flags.to_ne_bytes());
        Ok(FlowBlock::new(&writer.bytes))
    }
}

/// Bytes before the header, which make what follows it 8-byte aligned.
pub(super) const LEAD: usize = 4;

const _: () = assert!((LEAD + size_of::<ibv_flow_attr>()).is_multiple_of(align_of::<u64>()));
// Every spec but the tag keeps the next one aligned; the tag comes last.
const _: () = assert!(
    size_of::<ibv_flow_spec_eth>().is_multiple_of(8) && size_of::<ibv_flow_spec_ipv6>().is_multiple_of(8)
);
const _: () = assert!(MAX_SPECS * size_of::<ibv_flow_spec_ipv6>() < u16::MAX as usize);

/// The block of one flow, behind its lead.
pub(super) struct FlowBlock(pub(super) Vec<u64>);

impl FlowBlock {
    fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0u64; (LEAD + bytes.len()).div_ceil(size_of::<u64>())];
        // SAFETY: the words hold at least LEAD + len initialised bytes.
        let buffer =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), LEAD + bytes.len()) };
        buffer[LEAD..].copy_from_slice(bytes);
        Self(words)
    }

    /// The header, for C.
    pub(super) fn as_mut_ptr(&mut self) -> *mut ibv_flow_attr {
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(LEAD).cast()
    }
}

/// The C structure of a matching spec.
struct Layout {
    kind: ibv_flow_spec_type,
    bytes: usize,
    /// Offsets of the value and of the mask, which are filters of one size.
    value: usize,
    mask: usize,
}

impl Layout {
    fn of(kind: SpecKind) -> Self {
        macro_rules! layout {
            ($kind:ident, $spec:ident) => {{
                const FILTER_BYTES: usize = offset_of!(sys::$spec, mask) - offset_of!(sys::$spec, val);
                const _: () = assert!(FILTER_BYTES <= MAX_FILTER_BYTES);
                Self {
                    kind: sys::$kind,
                    bytes: size_of::<sys::$spec>(),
                    value: offset_of!(sys::$spec, val),
                    mask: offset_of!(sys::$spec, mask),
                }
            }};
        }
        match kind {
            SpecKind::Ethernet => layout!(IBV_FLOW_SPEC_ETH, ibv_flow_spec_eth),
            SpecKind::Ipv4 => layout!(IBV_FLOW_SPEC_IPV4, ibv_flow_spec_ipv4),
            SpecKind::Ipv4Ext => layout!(IBV_FLOW_SPEC_IPV4_EXT, ibv_flow_spec_ipv4_ext),
            SpecKind::Ipv6 => layout!(IBV_FLOW_SPEC_IPV6, ibv_flow_spec_ipv6),
            SpecKind::Tcp => layout!(IBV_FLOW_SPEC_TCP, ibv_flow_spec_tcp_udp),
            SpecKind::Udp => layout!(IBV_FLOW_SPEC_UDP, ibv_flow_spec_tcp_udp),
            SpecKind::Esp => layout!(IBV_FLOW_SPEC_ESP, ibv_flow_spec_esp),
            SpecKind::VxlanTunnel => layout!(IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_flow_spec_tunnel),
            SpecKind::Gre => layout!(IBV_FLOW_SPEC_GRE, ibv_flow_spec_gre),
            SpecKind::Mpls => layout!(IBV_FLOW_SPEC_MPLS, ibv_flow_spec_mpls),
        }
    }
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A zeroed spec with its type and size; returns where it begins. All specs begin alike
    /// (`ibv_flow_spec.hdr`).
    fn begin(&mut self, kind: ibv_flow_spec_type, size: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.resize(at + size, 0);
        self.put(at, &kind.to_ne_bytes());
        self.put(at + offset_of!(ibv_flow_spec_action_drop, size), &(size as u16).to_ne_bytes());
        at
    }

    fn spec(&mut self, inner: ibv_flow_spec_type, spec: &FlowSpec) {
        let layout = Layout::of(spec.kind());
        let (value, mask) = spec.encode();
        let filter_bytes = layout.mask - layout.value;
        let at = self.begin(layout.kind | inner, layout.bytes);
        self.put(at + layout.value, &value[..filter_bytes]);
        self.put(at + layout.mask, &mask[..filter_bytes]);
    }

    fn action(&mut self, action: &ActionSpec) {
        match action {
            ActionSpec::Tag(tag) => {
                let at = self.begin(sys::IBV_FLOW_SPEC_ACTION_TAG, size_of::<ibv_flow_spec_action_tag>());
                self.put(at + offset_of!(ibv_flow_spec_action_tag, tag_id), &tag.0.to_ne_bytes());
            }
            ActionSpec::Drop => {
                self.begin(sys::IBV_FLOW_SPEC_ACTION_DROP, size_of::<ibv_flow_spec_action_drop>());
            }
            ActionSpec::Count(counters) => {
                let at =
                    self.begin(sys::IBV_FLOW_SPEC_ACTION_COUNT, size_of::<ibv_flow_spec_counter_action>());
                let address = counters.raw().expose_provenance();
                self.put(at + offset_of!(ibv_flow_spec_counter_action, counters), &address.to_ne_bytes());
            }
            ActionSpec::Handle(action) => {
                let at =
                    self.begin(sys::IBV_FLOW_SPEC_ACTION_HANDLE, size_of::<ibv_flow_spec_action_handle>());
                let address = action.raw().expose_provenance();
                self.put(at + offset_of!(ibv_flow_spec_action_handle, action), &address.to_ne_bytes());
            }
        }
    }
}
