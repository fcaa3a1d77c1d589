//! A flow as C wants it: `ibv_flow_attr`, followed without a gap by its specs, each with its own size.
//!
//! Made by [`FlowAttr::bytes`] for one call of `ibv_create_flow`. Matched fields are in network byte order, padding is
//! zero. The header is 20 bytes long, so it stands 4 bytes off the buffer's 8-byte alignment: then every spec, and the
//! pointer in a counter action, is aligned.

use std::mem::{offset_of, size_of};

use ibverbs_sys::{
    self as sys, ibv_flow_attr, ibv_flow_esp_filter, ibv_flow_eth_filter, ibv_flow_gre_filter,
    ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_ipv6_filter, ibv_flow_spec_action_drop,
    ibv_flow_spec_action_handle, ibv_flow_spec_action_tag, ibv_flow_spec_counter_action, ibv_flow_spec_esp,
    ibv_flow_spec_eth, ibv_flow_spec_gre, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6,
    ibv_flow_spec_mpls, ibv_flow_spec_tcp_udp, ibv_flow_spec_tunnel, ibv_flow_spec_type,
    ibv_flow_tcp_udp_filter,
};

use super::spec::{
    EspMatch, EthernetMatch, FlowAttr, FlowSpec, GreMatch, Ipv4ExtMatch, Ipv4Match, Ipv6Match, MAX_SPECS,
    PlacedSpec, PortMatch,
};
use crate::{Error, Result};

/// Bytes before the header, which make what follows it 8-byte aligned.
const LEAD: usize = 4;

const ETH: usize = size_of::<ibv_flow_eth_filter>();
const IPV4: usize = size_of::<ibv_flow_ipv4_filter>();
const IPV4_EXT: usize = size_of::<ibv_flow_ipv4_ext_filter>();
const IPV6: usize = size_of::<ibv_flow_ipv6_filter>();
const PORTS: usize = size_of::<ibv_flow_tcp_udp_filter>();

const ESP: usize = size_of::<ibv_flow_esp_filter>();
const GRE: usize = size_of::<ibv_flow_gre_filter>();

const _: () = assert!((LEAD + size_of::<ibv_flow_attr>()).is_multiple_of(align_of::<u64>()));
const _: () =
    assert!(ETH == 16 && IPV4 == 8 && IPV4_EXT == 12 && IPV6 == 40 && PORTS == 4 && ESP == 8 && GRE == 8);
// Every spec but the tag keeps the next one aligned; the tag comes last.
const _: () = assert!(
    size_of::<ibv_flow_spec_eth>().is_multiple_of(8) && size_of::<ibv_flow_spec_ipv6>().is_multiple_of(8)
);
const _: () = assert!(MAX_SPECS * size_of::<ibv_flow_spec_ipv6>() < u16::MAX as usize);

/// The block of one flow, behind its lead.
pub(super) struct FlowBlock(Vec<u64>);

impl FlowBlock {
    fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0u64; (LEAD + bytes.len()).div_ceil(size_of::<u64>())];
        // SAFETY: the words hold at least LEAD + len initialised bytes.
        let room =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), LEAD + bytes.len()) };
        room[LEAD..].copy_from_slice(bytes);
        Self(words)
    }

    /// The header, for C.
    pub(super) fn as_mut_ptr(&mut self) -> *mut ibv_flow_attr {
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(LEAD).cast()
    }
}

impl FlowAttr {
    /// The block that `ibv_create_flow` takes. Actions follow the matches, whatever order they were added in.
    pub(super) fn bytes(&self) -> Result<FlowBlock> {
        let count = self.specs.len();
        let num_of_specs = u8::try_from(count).map_err(|_| Error::TooManySpecs { count })?;
        let mut specs: Vec<&PlacedSpec> = self.specs.iter().collect();
        specs.sort_by_key(|placed| place(&placed.spec));
        let mut writer = Writer { bytes: vec![0; size_of::<ibv_flow_attr>()], inner: 0 };
        for placed in specs {
            writer.inner = if placed.inner { sys::IBV_FLOW_SPEC_INNER } else { 0 };
            writer.spec(&placed.spec);
        }
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

/// Order in the block: matches as given, then actions, the tag last, whose 12 bytes would unalign what follows.
fn place(spec: &FlowSpec) -> u8 {
    match spec {
        FlowSpec::Drop | FlowSpec::Count(_) | FlowSpec::Handle(_) => 1,
        FlowSpec::Tag(_) => 2,
        _ => 0,
    }
}

struct Writer {
    bytes: Vec<u8>,
    /// `IBV_FLOW_SPEC_INNER` while a spec of the encapsulated packet is written.
    inner: ibv_flow_spec_type,
}

impl Writer {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A zeroed spec with its type and size; returns where it begins. All specs begin alike (`ibv_flow_spec.hdr`).
    fn begin(&mut self, kind: ibv_flow_spec_type, size: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.resize(at + size, 0);
        self.put(at, &(kind | self.inner).to_ne_bytes());
        self.put(at + offset_of!(ibv_flow_spec_action_drop, size), &(size as u16).to_ne_bytes());
        at
    }

    /// A spec of a value and a mask that begin `val` and `mask` bytes into it.
    fn pair(
        &mut self,
        kind: ibv_flow_spec_type,
        size: usize,
        (val, value): (usize, &[u8]),
        (mask, bits): (usize, &[u8]),
    ) {
        let at = self.begin(kind, size);
        self.put(at + val, value);
        self.put(at + mask, bits);
    }

    fn spec(&mut self, spec: &FlowSpec) {
        /// Type, size and the places of `val` and `mask` in the C structure of a matching spec.
        macro_rules! pair {
            ($kind:ident, $spec:ident, $value:expr, $mask:expr) => {
                self.pair(
                    sys::$kind,
                    size_of::<$spec>(),
                    (offset_of!($spec, val), &$value),
                    (offset_of!($spec, mask), &$mask),
                )
            };
        }
        match spec {
            FlowSpec::Ethernet { value, mask } => {
                pair!(IBV_FLOW_SPEC_ETH, ibv_flow_spec_eth, ethernet(value), ethernet(mask));
            }
            FlowSpec::Ipv4 { value, mask } => {
                pair!(IBV_FLOW_SPEC_IPV4, ibv_flow_spec_ipv4, ipv4(value), ipv4(mask));
            }
            FlowSpec::Ipv4Ext { value, mask } => {
                pair!(IBV_FLOW_SPEC_IPV4_EXT, ibv_flow_spec_ipv4_ext, ipv4_ext(value), ipv4_ext(mask));
            }
            FlowSpec::Ipv6 { value, mask } => {
                pair!(IBV_FLOW_SPEC_IPV6, ibv_flow_spec_ipv6, ipv6(value), ipv6(mask));
            }
            FlowSpec::Tcp { value, mask } => {
                pair!(IBV_FLOW_SPEC_TCP, ibv_flow_spec_tcp_udp, ports(value), ports(mask));
            }
            FlowSpec::Udp { value, mask } => {
                pair!(IBV_FLOW_SPEC_UDP, ibv_flow_spec_tcp_udp, ports(value), ports(mask));
            }
            FlowSpec::Esp { value, mask } => {
                pair!(IBV_FLOW_SPEC_ESP, ibv_flow_spec_esp, esp(value), esp(mask));
            }
            FlowSpec::VxlanTunnel { value, mask } => {
                let (value, mask) = (value.vni.to_be_bytes(), mask.vni.to_be_bytes());
                pair!(IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_flow_spec_tunnel, value, mask);
            }
            FlowSpec::Gre { value, mask } => {
                pair!(IBV_FLOW_SPEC_GRE, ibv_flow_spec_gre, gre(value), gre(mask));
            }
            FlowSpec::Mpls { value, mask } => {
                let (value, mask) = (value.label.to_be_bytes(), mask.label.to_be_bytes());
                pair!(IBV_FLOW_SPEC_MPLS, ibv_flow_spec_mpls, value, mask);
            }
            FlowSpec::Tag(tag) => {
                let at = self.begin(sys::IBV_FLOW_SPEC_ACTION_TAG, size_of::<ibv_flow_spec_action_tag>());
                self.put(at + offset_of!(ibv_flow_spec_action_tag, tag_id), &tag.0.to_ne_bytes());
            }
            FlowSpec::Drop => {
                self.begin(sys::IBV_FLOW_SPEC_ACTION_DROP, size_of::<ibv_flow_spec_action_drop>());
            }
            FlowSpec::Count(counters) => {
                let at =
                    self.begin(sys::IBV_FLOW_SPEC_ACTION_COUNT, size_of::<ibv_flow_spec_counter_action>());
                let address = counters.raw().expose_provenance();
                self.put(at + offset_of!(ibv_flow_spec_counter_action, counters), &address.to_ne_bytes());
            }
            FlowSpec::Handle(action) => {
                let at =
                    self.begin(sys::IBV_FLOW_SPEC_ACTION_HANDLE, size_of::<ibv_flow_spec_action_handle>());
                let address = action.raw().expose_provenance();
                self.put(at + offset_of!(ibv_flow_spec_action_handle, action), &address.to_ne_bytes());
            }
        }
    }
}

fn ethernet(fields: &EthernetMatch) -> [u8; ETH] {
    let mut out = [0; ETH];
    out[offset_of!(ibv_flow_eth_filter, dst_mac)..][..6].copy_from_slice(&fields.dst_mac);
    out[offset_of!(ibv_flow_eth_filter, src_mac)..][..6].copy_from_slice(&fields.src_mac);
    out[offset_of!(ibv_flow_eth_filter, ether_type)..][..2].copy_from_slice(&fields.ether_type.to_be_bytes());
    out[offset_of!(ibv_flow_eth_filter, vlan_tag)..][..2].copy_from_slice(&fields.vlan_tag.to_be_bytes());
    out
}

fn ipv4(fields: &Ipv4Match) -> [u8; IPV4] {
    let mut out = [0; IPV4];
    out[offset_of!(ibv_flow_ipv4_filter, src_ip)..][..4].copy_from_slice(&fields.src.to_be_bytes());
    out[offset_of!(ibv_flow_ipv4_filter, dst_ip)..][..4].copy_from_slice(&fields.dst.to_be_bytes());
    out
}

fn ipv4_ext(fields: &Ipv4ExtMatch) -> [u8; IPV4_EXT] {
    let mut out = [0; IPV4_EXT];
    out[offset_of!(ibv_flow_ipv4_ext_filter, src_ip)..][..4].copy_from_slice(&fields.src.to_be_bytes());
    out[offset_of!(ibv_flow_ipv4_ext_filter, dst_ip)..][..4].copy_from_slice(&fields.dst.to_be_bytes());
    out[offset_of!(ibv_flow_ipv4_ext_filter, proto)] = fields.proto;
    out[offset_of!(ibv_flow_ipv4_ext_filter, tos)] = fields.tos;
    out[offset_of!(ibv_flow_ipv4_ext_filter, ttl)] = fields.ttl;
    out[offset_of!(ibv_flow_ipv4_ext_filter, flags)] = fields.flags;
    out
}

fn ipv6(fields: &Ipv6Match) -> [u8; IPV6] {
    let mut out = [0; IPV6];
    let label = fields.flow_label.to_be_bytes();
    out[offset_of!(ibv_flow_ipv6_filter, src_ip)..][..16].copy_from_slice(&fields.src);
    out[offset_of!(ibv_flow_ipv6_filter, dst_ip)..][..16].copy_from_slice(&fields.dst);
    out[offset_of!(ibv_flow_ipv6_filter, flow_label)..][..4].copy_from_slice(&label);
    out[offset_of!(ibv_flow_ipv6_filter, next_hdr)] = fields.next_hdr;
    out[offset_of!(ibv_flow_ipv6_filter, traffic_class)] = fields.traffic_class;
    out[offset_of!(ibv_flow_ipv6_filter, hop_limit)] = fields.hop_limit;
    out
}

fn esp(fields: &EspMatch) -> [u8; ESP] {
    let mut out = [0; ESP];
    out[offset_of!(ibv_flow_esp_filter, spi)..][..4].copy_from_slice(&fields.spi.to_be_bytes());
    out[offset_of!(ibv_flow_esp_filter, seq)..][..4].copy_from_slice(&fields.seq.to_be_bytes());
    out
}

fn gre(fields: &GreMatch) -> [u8; GRE] {
    let mut out = [0; GRE];
    let flags = fields.c_ks_res0_ver.to_be_bytes();
    out[offset_of!(ibv_flow_gre_filter, c_ks_res0_ver)..][..2].copy_from_slice(&flags);
    out[offset_of!(ibv_flow_gre_filter, protocol)..][..2].copy_from_slice(&fields.protocol.to_be_bytes());
    out[offset_of!(ibv_flow_gre_filter, key)..][..4].copy_from_slice(&fields.key.to_be_bytes());
    out
}

fn ports(fields: &PortMatch) -> [u8; PORTS] {
    let mut out = [0; PORTS];
    out[offset_of!(ibv_flow_tcp_udp_filter, dst_port)..][..2].copy_from_slice(&fields.dst_port.to_be_bytes());
    out[offset_of!(ibv_flow_tcp_udp_filter, src_port)..][..2].copy_from_slice(&fields.src_port.to_be_bytes());
    out
}

#[cfg(test)]
mod tests;
