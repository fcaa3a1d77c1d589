//! The attributes of a device and its ports, as plain data.
//!
//! Made by [`Context::attributes`](crate::Context::attributes) and [`Context::port`](crate::Context::port);
//! used to plan a program for the device. Numbers the library gives as C enums keep an `Unknown` variant.

use std::ffi::{CStr, c_int};
use std::fmt;

use ibverbs_sys::{self as sys, ibv_device_attr_ex, ibv_mtu, ibv_port_attr, ibv_port_state, ibv_rss_caps};

bitflags::bitflags! {
    /// `ibv_raw_packet_caps`: what raw packet queues can do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RawPacketCaps: u32 {
        /// VLAN tags can be stripped and reported in completions.
        const CVLAN_STRIPPING = sys::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING;
        /// The frame check sequence can be delivered.
        const SCATTER_FCS = sys::IBV_RAW_PACKET_CAP_SCATTER_FCS;
        /// Completions report whether IP and L4 checksums are correct.
        const IP_CSUM = sys::IBV_RAW_PACKET_CAP_IP_CSUM;
        /// A queue without buffers may delay frames instead of dropping them.
        const DELAY_DROP = sys::IBV_RAW_PACKET_CAP_DELAY_DROP;
    }

    /// `ibv_rx_hash_fields`: what a receive hash covers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HashFields: u64 {
        /// Source address, IPv4.
        const SRC_IPV4 = sys::IBV_RX_HASH_SRC_IPV4 as u64;
        /// Destination address, IPv4.
        const DST_IPV4 = sys::IBV_RX_HASH_DST_IPV4 as u64;
        /// Source address, IPv6.
        const SRC_IPV6 = sys::IBV_RX_HASH_SRC_IPV6 as u64;
        /// Destination address, IPv6.
        const DST_IPV6 = sys::IBV_RX_HASH_DST_IPV6 as u64;
        /// Source port, TCP.
        const SRC_PORT_TCP = sys::IBV_RX_HASH_SRC_PORT_TCP as u64;
        /// Destination port, TCP.
        const DST_PORT_TCP = sys::IBV_RX_HASH_DST_PORT_TCP as u64;
        /// Source port, UDP.
        const SRC_PORT_UDP = sys::IBV_RX_HASH_SRC_PORT_UDP as u64;
        /// Destination port, UDP.
        const DST_PORT_UDP = sys::IBV_RX_HASH_DST_PORT_UDP as u64;
        /// Security parameter index of an ESP header.
        const IPSEC_SPI = sys::IBV_RX_HASH_IPSEC_SPI as u64;
        /// The fields are those of the encapsulated packet.
        const INNER = sys::IBV_RX_HASH_INNER as u64;
    }
}

impl fmt::Display for HashFields {
    /// The names of the fields, as in the verbs API.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() { f.write_str("nothing") } else { f.write_str(&names.join(", ")) }
    }
}

/// The abilities of receive side scaling (`ibv_rss_caps`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssCaps {
    /// RSS queue pairs may be RAW_PACKET ones.
    pub raw_packet: bool,
    /// How many indirection tables can exist.
    pub max_tables: u32,
    /// Entries of the largest indirection table.
    pub max_table_size: u32,
    /// Everything that can be hashed, though not all at once.
    pub fields: HashFields,
    /// The Toeplitz function is available.
    pub toeplitz: bool,
}

impl From<&ibv_rss_caps> for RssCaps {
    fn from(raw: &ibv_rss_caps) -> Self {
        Self {
            raw_packet: has_raw_packet(raw.supported_qpts),
            max_tables: raw.max_rwq_indirection_tables,
            max_table_size: raw.max_rwq_indirection_table_size,
            fields: HashFields::from_bits_retain(raw.rx_hash_fields_mask),
            toeplitz: u32::from(raw.rx_hash_function) & sys::IBV_RX_HASH_FUNC_TOEPLITZ != 0,
        }
    }
}

/// Segmentation of TCP streams (`ibv_tso_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TsoCaps {
    /// Bytes of the longest stream of one send; 0: none.
    pub max_bytes: u32,
    /// Raw packet queue pairs can do it.
    pub raw_packet: bool,
}

/// Limits of [`CompletionQueue::moderate`](crate::CompletionQueue::moderate) (`ibv_cq_moderation_caps`); 0:
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModerationCaps {
    /// Completions.
    pub max_count: u16,
    /// Microseconds.
    pub max_period_us: u16,
}

/// A bit of a mask of queue pair types (`supported_qpts`).
fn has_raw_packet(types: u32) -> bool {
    types & (1 << sys::ibv_qp_type::IBV_QPT_RAW_PACKET) != 0
}

/// Limits and capabilities of a device (`ibv_device_attr_ex`, its field names where they are of use here).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // limits, named as in ibv_query_device_ex(3)
pub struct DeviceAttributes {
    pub fw_ver: String,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_cqe: u32,
    pub physical_ports: u32,
    /// The bits of a completion timestamp that count; 0: none are taken.
    pub completion_timestamp_mask: u64,
    /// Rate of the clock behind timestamps and [`raw_clock`](crate::Context::raw_clock); 0: unknown.
    pub hca_core_clock_khz: u64,
    /// How many receive work queues can exist.
    pub max_wq_type_rq: u32,
    pub raw_packet_caps: RawPacketCaps,
    pub rss_caps: RssCaps,
    pub tso_caps: TsoCaps,
    pub cq_moderation: ModerationCaps,
}

/// A limit, which C gives as an `int`; a negative one is no limit.
fn limit(raw: c_int) -> u32 {
    u32::try_from(raw).unwrap_or(0)
}

impl From<&ibv_device_attr_ex> for DeviceAttributes {
    fn from(raw: &ibv_device_attr_ex) -> Self {
        let base = &raw.orig_attr;
        // SAFETY: `c_char` and `u8` have one layout.
        let fw_ver: &[u8] =
            unsafe { std::slice::from_raw_parts(base.fw_ver.as_ptr().cast(), base.fw_ver.len()) };
        let fw_ver = CStr::from_bytes_until_nul(fw_ver).map(|text| text.to_string_lossy().into_owned());
        Self {
            fw_ver: fw_ver.unwrap_or_default(),
            max_qp: limit(base.max_qp),
            max_qp_wr: limit(base.max_qp_wr),
            max_sge: limit(base.max_sge),
            max_cqe: limit(base.max_cqe),
            physical_ports: raw.phys_port_cnt_ex.max(u32::from(base.phys_port_cnt)),
            completion_timestamp_mask: raw.completion_timestamp_mask,
            hca_core_clock_khz: raw.hca_core_clock,
            max_wq_type_rq: raw.max_wq_type_rq,
            raw_packet_caps: RawPacketCaps::from_bits_retain(raw.raw_packet_caps),
            rss_caps: RssCaps::from(&raw.rss_caps),
            tso_caps: TsoCaps {
                max_bytes: raw.tso_caps.max_tso,
                raw_packet: has_raw_packet(raw.tso_caps.supported_qpts),
            },
            cq_moderation: ModerationCaps {
                max_count: raw.cq_mod_caps.max_cq_count,
                max_period_us: raw.cq_mod_caps.max_cq_period,
            },
        }
    }
}

/// Logical state of a port (`ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum PortState {
    Nop,
    Down,
    Init,
    Armed,
    Active,
    ActiveDefer,
    /// A state this crate has no name for.
    Unknown(u32),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nop => f.write_str("without a state"),
            Self::Down => f.write_str("down"),
            Self::Init => f.write_str("initialising"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::ActiveDefer => f.write_str("active, with its link lost for now"),
            Self::Unknown(number) => write!(f, "in state {number}"),
        }
    }
}

impl From<ibv_port_state::Type> for PortState {
    fn from(raw: ibv_port_state::Type) -> Self {
        match raw {
            ibv_port_state::IBV_PORT_NOP => Self::Nop,
            ibv_port_state::IBV_PORT_DOWN => Self::Down,
            ibv_port_state::IBV_PORT_INIT => Self::Init,
            ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDefer,
            other => Self::Unknown(other),
        }
    }
}

/// The link layer of a port (`IBV_LINK_LAYER_*`). Raw packet steering needs Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum LinkLayer {
    Unspecified,
    InfiniBand,
    Ethernet,
    /// A link layer this crate has no name for.
    Unknown(u32),
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("of no link layer"),
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Unknown(number) => write!(f, "of link layer {number}"),
        }
    }
}

impl From<u8> for LinkLayer {
    fn from(raw: u8) -> Self {
        match u32::from(raw) {
            sys::IBV_LINK_LAYER_UNSPECIFIED => Self::Unspecified,
            sys::IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Unknown(other),
        }
    }
}

/// `ibv_mtu` in bytes. The enum stops at 4096, so an Ethernet port with a larger MTU reports 4096 as well.
fn mtu_bytes(raw: ibv_mtu) -> Option<u32> {
    (sys::IBV_MTU_256..=sys::IBV_MTU_4096).contains(&raw).then(|| 128 << raw)
}

/// State and speed of a port (`ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Logical state.
    pub state: PortState,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// Largest MTU, at most 4096, the largest of the enum; `None` if the port does not report it.
    pub max_mtu_bytes: Option<u32>,
    /// MTU in force, at most 4096, the largest of the enum; `None` if the port does not report it.
    pub active_mtu_bytes: Option<u32>,
    /// The longest message that can be sent. A device of raw packets alone may report its longest frame.
    pub max_message_bytes: u32,
    /// Lanes, as a code of ibv_query_port(3).
    pub active_width: u8,
    /// Speed of a lane, as a code of ibv_query_port(3).
    pub active_speed: u8,
    /// Physical state, as a code of the InfiniBand specification (5: link up).
    pub phys_state: u8,
}

impl From<&ibv_port_attr> for PortAttributes {
    fn from(raw: &ibv_port_attr) -> Self {
        Self {
            state: PortState::from(raw.state),
            link_layer: LinkLayer::from(raw.link_layer),
            max_mtu_bytes: mtu_bytes(raw.max_mtu),
            active_mtu_bytes: mtu_bytes(raw.active_mtu),
            max_message_bytes: raw.max_msg_sz,
            active_width: raw.active_width,
            active_speed: raw.active_speed,
            phys_state: raw.phys_state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_are_kept() {
        assert_eq!(PortState::from(4), PortState::Active);
        assert_eq!(PortState::from(9), PortState::Unknown(9));
        assert_eq!(LinkLayer::from(2), LinkLayer::Ethernet);
        assert_eq!(LinkLayer::from(7), LinkLayer::Unknown(7));
    }

    #[test]
    fn mtu_codes_are_bytes_and_nonsense_is_none() {
        let all: Vec<_> = (0..=6).map(mtu_bytes).collect();
        assert_eq!(all, [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None]);
    }

    #[test]
    fn device_attributes_are_read_from_both_structures() {
        let mut raw = ibv_device_attr_ex::default();
        for (to, from) in raw.orig_attr.fw_ver.iter_mut().zip(b"1.2.3\0junk") {
            *to = from.cast_signed();
        }
        raw.orig_attr.max_cqe = -1;
        raw.orig_attr.phys_port_cnt = 2;
        raw.rss_caps.supported_qpts = 1 << 8;
        raw.rss_caps.rx_hash_function = 1;
        raw.rss_caps.rx_hash_fields_mask = 0x8000_0003;
        raw.tso_caps.max_tso = 65536;
        raw.tso_caps.supported_qpts = 1 << 4;
        raw.cq_mod_caps.max_cq_period = 4095;
        let attributes = DeviceAttributes::from(&raw);
        assert_eq!(attributes.tso_caps, TsoCaps { max_bytes: 65536, raw_packet: false });
        assert_eq!(attributes.cq_moderation, ModerationCaps { max_count: 0, max_period_us: 4095 });
        assert_eq!(attributes.fw_ver, "1.2.3");
        assert_eq!(attributes.max_cqe, 0);
        assert_eq!(attributes.physical_ports, 2);
        assert!(attributes.rss_caps.raw_packet && attributes.rss_caps.toeplitz);
        let fields = HashFields::SRC_IPV4 | HashFields::DST_IPV4 | HashFields::INNER;
        assert_eq!(attributes.rss_caps.fields, fields);
    }

    #[test]
    fn a_firmware_version_without_an_end_is_empty_not_read_past() {
        let mut raw = ibv_device_attr_ex::default();
        raw.orig_attr.fw_ver.fill(b'x'.cast_signed());
        assert_eq!(DeviceAttributes::from(&raw).fw_ver, "");
    }
}
