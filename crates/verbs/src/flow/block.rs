//! A flow as C wants it: `ibv_flow_attr`, followed without a gap by its specs, each with its own size.
//!
//! Made by [`FlowAttr::bytes`] for one call of `ibv_create_flow`. Matched fields are in network byte order, padding is
//! zero. The header is 20 bytes long, so it stands 4 bytes off the buffer's 8-byte alignment: then every spec, and the
//! pointer in a counter action, is aligned.

use std::mem::{offset_of, size_of};

use ibverbs_sys::{
    self as sys, ibv_flow_attr, ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter,
    ibv_flow_ipv6_filter, ibv_flow_spec_action_drop, ibv_flow_spec_action_tag, ibv_flow_spec_counter_action,
    ibv_flow_spec_eth, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp,
    ibv_flow_spec_type, ibv_flow_tcp_udp_filter,
};

use super::spec::{
    EthernetMatch, FlowAttr, FlowSpec, Ipv4ExtMatch, Ipv4Match, Ipv6Match, MAX_SPECS, PortMatch,
};
use crate::{Error, Result};

/// Bytes before the header, which make what follows it 8-byte aligned.
const LEAD: usize = 4;

const ETH: usize = size_of::<ibv_flow_eth_filter>();
const IPV4: usize = size_of::<ibv_flow_ipv4_filter>();
const IPV4_EXT: usize = size_of::<ibv_flow_ipv4_ext_filter>();
const IPV6: usize = size_of::<ibv_flow_ipv6_filter>();
const PORTS: usize = size_of::<ibv_flow_tcp_udp_filter>();

const _: () = assert!((LEAD + size_of::<ibv_flow_attr>()).is_multiple_of(align_of::<u64>()));
const _: () = assert!(ETH == 16 && IPV4 == 8 && IPV4_EXT == 12 && IPV6 == 40 && PORTS == 4);
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
        let mut specs: Vec<&FlowSpec> = self.specs.iter().collect();
        specs.sort_by_key(|spec| place(spec));
        let mut writer = Writer(vec![0; size_of::<ibv_flow_attr>()]);
        for spec in specs {
            writer.spec(spec);
        }
        let flags = if self.dont_trap { sys::IBV_FLOW_ATTR_FLAGS_DONT_TRAP } else { 0 };
        let size = writer.0.len() as u16;
        writer.put(offset_of!(ibv_flow_attr, type_), &self.kind.raw().to_ne_bytes());
        writer.put(offset_of!(ibv_flow_attr, size), &size.to_ne_bytes());
        writer.put(offset_of!(ibv_flow_attr, priority), &self.priority.to_ne_bytes());
        writer.put(offset_of!(ibv_flow_attr, num_of_specs), &[num_of_specs]);
        writer.put(offset_of!(ibv_flow_attr, port), &[self.port.0]);
        writer.put(offset_of!(ibv_flow_attr, flags), &flags.to_ne_bytes());
        Ok(FlowBlock::new(&writer.0))
    }
}

/// Order in the block: matches as given, then actions, the tag last, whose 12 bytes would unalign what follows.
fn place(spec: &FlowSpec) -> u8 {
    match spec {
        FlowSpec::Drop | FlowSpec::Count(_) => 1,
        FlowSpec::Tag(_) => 2,
        _ => 0,
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A zeroed spec with its type and size; returns where it begins. All specs begin alike (`ibv_flow_spec.hdr`).
    fn begin(&mut self, kind: ibv_flow_spec_type, size: usize) -> usize {
        let at = self.0.len();
        self.0.resize(at + size, 0);
        self.put(at, &kind.to_ne_bytes());
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

fn ports(fields: &PortMatch) -> [u8; PORTS] {
    let mut out = [0; PORTS];
    out[offset_of!(ibv_flow_tcp_udp_filter, dst_port)..][..2].copy_from_slice(&fields.dst_port.to_be_bytes());
    out[offset_of!(ibv_flow_tcp_udp_filter, src_port)..][..2].copy_from_slice(&fields.src_port.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowKind, FlowTag, PortNumber};

    /// Header and specs, as long as the header says.
    fn block(attr: &FlowAttr) -> Vec<u8> {
        let mut block = attr.bytes().expect("few specs");
        let header = block.as_mut_ptr().addr();
        assert_eq!((header + size_of::<ibv_flow_attr>()) % 8, 0, "specs are aligned");
        let bytes: Vec<u8> = block.0.iter().flat_map(|word| word.to_ne_bytes()).skip(LEAD).collect();
        let at = offset_of!(ibv_flow_attr, size);
        let size = usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        assert!(bytes.len() - size < 8, "nothing but padding behind it");
        bytes[..size].to_vec()
    }

    const fn ports(src_port: u16, dst_port: u16) -> PortMatch {
        PortMatch { src_port, dst_port }
    }

    #[test]
    fn a_flow_without_specs_is_a_bare_header() {
        let attr = FlowAttr::new(FlowKind::Sniffer, PortNumber(2)).priority(0x0102).dont_trap(true);
        #[rustfmt::skip]
        let expected = [
            0, 0, 0, 0,  3, 0, 0, 0,  20, 0,  2, 1,  0, 2, 0, 0,  2, 0, 0, 0,
        ];
        assert_eq!(block(&attr), expected);
    }

    #[test]
    fn ethernet_ipv4_and_udp_are_packed_in_network_order() {
        let value = EthernetMatch {
            dst_mac: [1, 2, 3, 4, 5, 6],
            src_mac: [7, 8, 9, 10, 11, 12],
            ether_type: 0x0800,
            vlan_tag: 0x2064,
        };
        let mask = EthernetMatch { dst_mac: [0xff; 6], vlan_tag: 0x0fff, ..EthernetMatch::default() };
        let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
            .priority(7)
            .spec(FlowSpec::Ethernet { value, mask })
            .spec(FlowSpec::Ipv4 {
                value: Ipv4Match { src: 0x0a000001, dst: 0xc0000200 },
                mask: Ipv4Match { src: u32::MAX, dst: 0xffffff00 },
            })
            .spec(FlowSpec::Udp { value: ports(53, 0x1234), mask: ports(0xffff, 0xff00) });
        #[rustfmt::skip]
        let expected = [
            0, 0, 0, 0,  0, 0, 0, 0,  100, 0,  7, 0,  3, 1, 0, 0,  0, 0, 0, 0,
            0x20, 0, 0, 0,  40, 0,
                1, 2, 3, 4, 5, 6,  7, 8, 9, 10, 11, 12,  0x08, 0x00,  0x20, 0x64,
                255, 255, 255, 255, 255, 255,  0, 0, 0, 0, 0, 0,  0, 0,  0x0f, 0xff,  0, 0,
            0x30, 0, 0, 0,  24, 0, 0, 0,
                10, 0, 0, 1,  192, 0, 2, 0,  255, 255, 255, 255,  255, 255, 255, 0,
            0x41, 0, 0, 0,  16, 0,
                0x12, 0x34, 0, 53,  0xff, 0x00, 0xff, 0xff,  0, 0,
        ];
        assert_eq!(block(&attr), expected);
    }

    #[test]
    fn ipv4_ext_and_ipv6_have_every_field_in_its_place() {
        let v4 = Ipv4ExtMatch { src: 0x01020304, dst: 0x05060708, proto: 17, tos: 0xb8, ttl: 64, flags: 2 };
        let v6 = Ipv6Match {
            src: [0x20; 16],
            dst: [0xfe; 16],
            flow_label: 0xabcde,
            next_hdr: 58,
            traffic_class: 3,
            hop_limit: 255,
        };
        let attr = FlowAttr::new(FlowKind::AllDefault, PortNumber(1))
            .spec(FlowSpec::Ipv4Ext { value: v4, mask: Ipv4ExtMatch::default() })
            .spec(FlowSpec::Ipv6 { value: Ipv6Match::default(), mask: v6 });
        let mut expected = vec![0, 0, 0, 0, 1, 0, 0, 0, 140, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        expected.extend([0x32, 0, 0, 0, 32, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 17, 0xb8, 64, 2]);
        expected.extend([0; 12]);
        expected.extend([0x31, 0, 0, 0, 88, 0, 0, 0]);
        expected.extend([0; 40]);
        expected.extend([0x20; 16]);
        expected.extend([0xfe; 16]);
        expected.extend([0, 0x0a, 0xbc, 0xde, 58, 3, 255, 0]);
        assert_eq!(block(&attr), expected);
    }

    #[test]
    fn actions_follow_matches_and_the_tag_is_last() {
        let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
            .spec(FlowSpec::Tag(FlowTag(0x00fe_dcba)))
            .spec(FlowSpec::Drop)
            .spec(FlowSpec::Tcp { value: ports(0, 443), mask: ports(0, 0xffff) });
        #[rustfmt::skip]
        let expected = [
            0x40, 0, 0, 0,  16, 0,  0x01, 0xbb, 0, 0,  0xff, 0xff, 0, 0,  0, 0,
            0x01, 0x10, 0, 0,  8, 0, 0, 0,
            0x00, 0x10, 0, 0,  12, 0, 0, 0,  0xba, 0xdc, 0xfe, 0,
        ];
        let bytes = block(&attr);
        assert_eq!(&bytes[20..], expected);
        assert_eq!(bytes[8..14], [56, 0, 0, 0, 3, 1]);
    }

    #[test]
    fn the_count_of_specs_is_a_byte() {
        let full = (0..MAX_SPECS)
            .fold(FlowAttr::new(FlowKind::Normal, PortNumber(1)), |attr, _| attr.spec(FlowSpec::Drop));
        assert!(full.bytes().is_ok());
        let error = full.spec(FlowSpec::Drop).bytes().err().expect("one too many");
        assert!(error.to_string().contains("at most 255 specs, not 256"), "{error}");
    }
}
