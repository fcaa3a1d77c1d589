//! The attributes that the device and its ports report of themselves.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use ibverbs_sys::{
    IBV_DEVICE_MANAGED_FLOW_STEERING, IBV_DEVICE_RAW_IP_CSUM, IBV_LINK_LAYER_ETHERNET, IBV_MTU_256,
    IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096, IBV_RAW_PACKET_CAP_CVLAN_STRIPPING,
    IBV_RAW_PACKET_CAP_IP_CSUM, IBV_RAW_PACKET_CAP_SCATTER_FCS, IBV_RX_HASH_FUNC_TOEPLITZ,
    IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, IBV_WQ_FLAGS_SCATTER_FCS,
    ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_mtu, ibv_packet_pacing_caps,
    ibv_port_attr, ibv_port_state, ibv_qp_type, ibv_rss_caps, ibv_tso_caps,
};

use crate::errno::{EINVAL, Verb};
use crate::limits;
use crate::nic::Nic;
use crate::personality::WorkQueueRules;
use crate::port_tables::eui64;
pub use crate::port_tables::{DEFAULT_PKEY, GIDS, LINK_LOCAL, PKEYS};

/// The type's bit in a mask of supported types.
const RAW_PACKET: u32 = 1 << ibv_qp_type::IBV_QPT_RAW_PACKET;

/// `IBV_QPF_GRH_REQUIRED` of verbs.h.
const QPF_GRH_REQUIRED: u8 = 1;

/// `_IBV_DEVICE_RAW_SCATTER_FCS` and `_IBV_DEVICE_PCI_WRITE_END_PADDING` of verbs.h.
const DEVICE_RAW_SCATTER_FCS: u64 = 1 << 34;
const DEVICE_PCI_WRITE_END_PADDING: u64 = 1 << 36;

/// The locally administered OUI of the wires without an interface ([`wire::SOFT_MAC`]).
const VENDOR_ID: u32 = 0x02_736f;

/// The value of `fw_ver`.
const FIRMWARE: &str = concat!("softnic ", env!("CARGO_PKG_VERSION"));

fn int<T: TryInto<c_int>>(value: T) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

/// The port (from 1) that has a GID as its first one.
#[must_use]
pub fn port_of_gid(nic: &Nic, gid: &[u8; 16]) -> Option<u8> {
    (1u8..).zip(&nic.ports).find(|(_, port)| port.gid() == *gid).map(|(number, _)| number)
}

/// The attributes that the device reports of itself.
#[must_use]
pub fn device(nic: &Nic) -> ibv_device_attr_ex {
    let ports = nic.ports.len();
    let rules = nic.rules();
    let guid = nic.port(1).map_or(0, |port| eui64(port.mac())).to_be();
    let mut base = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        vendor_id: VENDOR_ID,
        max_pkeys: PKEYS,
        // They cost the application's memory only; mlx5 reports the same.
        max_ah: c_int::MAX,
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        max_qp: int(rules.most.queues),
        max_qp_wr: int(rules.max_requests),
        device_cap_flags: IBV_DEVICE_RAW_IP_CSUM | IBV_DEVICE_MANAGED_FLOW_STEERING,
        max_sge: int(limits::MAX_SGE),
        max_cq: int(limits::MAX_CQS),
        max_cqe: int(rules.objects.completion.max_entries),
        max_mr: int(limits::MAX_REGIONS),
        max_pd: int(limits::MAX_DOMAINS),
        phys_port_cnt: u8::try_from(ports).unwrap_or(u8::MAX),
        ..ibv_device_attr::default()
    };
    for (to, from) in base.fw_ver.iter_mut().zip(FIRMWARE.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    ibv_device_attr_ex {
        orig_attr: base,
        completion_timestamp_mask: nic.clock.mask,
        hca_core_clock: nic.clock.kilohertz,
        rss_caps: ibv_rss_caps {
            supported_qpts: RAW_PACKET,
            max_rwq_indirection_tables: rules.most.tables as u32,
            max_rwq_indirection_table_size: rules.hash.max_entries,
            rx_hash_fields_mask: rules.hash.fields,
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
        },
        max_wq_type_rq: limits::MAX_QUEUES as u32,
        tso_caps: ibv_tso_caps {
            max_tso: rules.objects.queue_pair.max_tso_bytes,
            supported_qpts: if rules.objects.queue_pair.max_tso_bytes == 0 { 0 } else { RAW_PACKET },
        },
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: u32::from(rules.objects.queue_pair.max_rate_kbps > 0),
            qp_rate_limit_max: rules.objects.queue_pair.max_rate_kbps,
            supported_qpts: if rules.objects.queue_pair.max_rate_kbps == 0 { 0 } else { RAW_PACKET },
        },
        raw_packet_caps: raw_packet_caps(&rules.objects.work_queue),
        device_cap_flags_ex: device_flags(&rules.objects.work_queue) | u64::from(base.device_cap_flags),
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: rules.objects.completion.max_moderation_count,
            max_cq_period: rules.objects.completion.max_moderation_period_us,
        },
        phys_port_cnt_ex: ports as u32,
        ..ibv_device_attr_ex::default()
    }
}

/// The changes of a frame that work queues, and raw packet queue pairs with them, can make.
fn raw_packet_caps(rules: &WorkQueueRules) -> u32 {
    let can = |flag: u32, cap: u32| if rules.create_flags.check(flag).is_ok() { cap } else { 0 };
    IBV_RAW_PACKET_CAP_IP_CSUM
        | can(IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_RAW_PACKET_CAP_CVLAN_STRIPPING)
        | can(IBV_WQ_FLAGS_SCATTER_FCS, IBV_RAW_PACKET_CAP_SCATTER_FCS)
}

fn device_flags(rules: &WorkQueueRules) -> u64 {
    let can = |flag: u32, cap: u64| if rules.create_flags.check(flag).is_ok() { cap } else { 0 };
    can(IBV_WQ_FLAGS_SCATTER_FCS, DEVICE_RAW_SCATTER_FCS)
        | can(IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, DEVICE_PCI_WRITE_END_PADDING)
}

/// The name of a path MTU.
fn mtu(path_mtu_bytes: u32) -> ibv_mtu {
    match path_mtu_bytes {
        4096 => IBV_MTU_4096,
        2048 => IBV_MTU_2048,
        1024 => IBV_MTU_1024,
        512 => IBV_MTU_512,
        _ => IBV_MTU_256,
    }
}

/// The attributes that a port reports of itself, with the lengths of its tables of GIDs and of partition
/// keys.
///
/// # Errors
/// EINVAL if there is no such port.
pub fn port(nic: &Nic, number: u8, gids: c_int, pkeys: u16) -> Verb<ibv_port_attr> {
    /// `phys_state` of the InfiniBand specification: LinkUp and Disabled.
    const PHYSICAL_UP: u8 = 5;
    const PHYSICAL_DISABLED: u8 = 3;
    /// 4X, and EDR: 100 Gb/s, for the tools that print it.
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    let port = nic.port(number).ok_or(EINVAL)?;
    let down = port.down.load(Ordering::Relaxed);
    Ok(ibv_port_attr {
        state: if down { ibv_port_state::IBV_PORT_DOWN } else { ibv_port_state::IBV_PORT_ACTIVE },
        max_mtu: IBV_MTU_4096,
        active_mtu: mtu(port.path_mtu_bytes()),
        gid_tbl_len: gids,
        pkey_tbl_len: pkeys,
        max_msg_sz: port.mtu_bytes + wire::ETHERNET_BYTES as u32,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: if down { PHYSICAL_DISABLED } else { PHYSICAL_UP },
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        // As every RoCE port: addresses are GIDs.
        flags: QPF_GRH_REQUIRED,
        ..ibv_port_attr::default()
    })
}
