//! Contexts, and the properties of the device and its port.

use ibverbs_sys::{ibv_device_attr, ibv_device_attr_ex};
use softnic::Nic;
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb};
use softnic::limits::{MAX_REGIONS, MAX_SGE};
use softnic::objects::attributes;
use softnic::objects::attributes::{GIDS, PKEYS};

use super::Call;
use crate::context::{Context, PAGE_BYTES};
use crate::rings::sends::MAX_BLOCKS;
use crate::rings::{LOG_ENTRY_BYTES, MAX_COMPLETIONS, MAX_REQUESTS};

/// Bytes of `struct mlx5_ib_alloc_ucontext_resp` and `struct mlx5_ib_query_device_resp` as known here.
const CONTEXT_BYTES: usize = 72;
const DEVICE_BYTES: usize = 104;
/// Bytes of the core's two device responses.
const BASE_BYTES: usize = 176;
const EXTENDED_BYTES: usize = 304;
/// `PCI_VENDOR_ID_MELLANOX` and the number of ConnectX-5: what libmlx5 is matched by.
const VENDOR: u32 = 0x02c9;
pub(crate) const PART: u32 = 0x1017;

/// GET_CONTEXT (kernel hw/mlx5/main.c, `mlx5_ib_alloc_ucontext`).
pub(super) fn create_context(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    /// `MLX5_LIB_CAP_DYN_UAR`: releases without it would map doorbell pages of fixed numbers.
    const DYNAMIC_PAGES: u64 = 2;
    /// `MLX5_CQE_VERSION_V1`: completions name their queue by the client's index.
    const CQE_VERSION: u8 = 1;
    /// `MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE` and `_CREATE_AH`: without the latter libmlx5 would make address
    /// handles itself.
    const DRIVER_COMMANDS: u8 = 1 | 2;
    /// `MLX5_USER_INLINE_MODE_L2`.
    const INLINE_L2: u8 = 2;
    /// `MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET` and `MLX5_IB_CLOCK_INFO_V1`.
    const CORE_CLOCK: u32 = 1;
    const CLOCK_INFO_VERSION: u8 = 0;
    let (pages, flags, version) = (call.driver.u32(0), call.driver.u32(8), call.driver.u8(16));
    // The only flag asks for raw access to the firmware, which is not modelled; libmlx5 then asks again
    // without it.
    if pages == 0 || flags != 0 {
        return Err(EINVAL);
    }
    let reserved = [call.driver.u32(12), call.driver.u32(20), u32::from(call.driver.u16(18))];
    if reserved != [0; 3] || call.driver.u8(17) != 0 {
        return Err(EOPNOTSUPP);
    }
    if version < CQE_VERSION || call.driver.u64(24) & DYNAMIC_PAGES == 0 {
        return Err(EOPNOTSUPP);
    }
    let ports = u16::try_from(context.nic.port_count()).map_err(|_| EINVAL)?;
    let descriptor = context.establish()?;
    call.reply.put_u32(0, descriptor.cast_unsigned());
    call.reply.put_u32(4, context.nic.completion_vectors());
    let driver = &mut call.driver_reply;
    // qp_tab_size, bf_reg_size, cache_line_size.
    driver.put_u32(0, 1 << 18);
    driver.put_u32(4, 512);
    driver.put_u32(12, 64);
    // max_sq_desc_sz and max_rq_desc_sz: the latter limits the scatter entries of a request.
    driver.put_u16(16, 1_024);
    driver.put_u16(18, (MAX_SGE << LOG_ENTRY_BYTES) as u16);
    driver.put_u32(20, MAX_BLOCKS);
    driver.put_u32(24, MAX_REQUESTS);
    // max_srq_recv_wr. There are no shared receive queues (`max_srq`), but with 0 libmlx5 would answer EINVAL
    // without asking.
    driver.put_u32(28, MAX_REQUESTS);
    driver.put_u16(32, ports);
    if context.clock_pages().is_some() {
        // `comp_mask`: the clock is at `hca_core_clock_offset`, 0. `clock_info_versions`.
        driver.put_u32(36, CORE_CLOCK);
        driver.put_u8(47, 1 << CLOCK_INFO_VERSION);
    }
    driver.put_u32(40, driver.length(CONTEXT_BYTES));
    driver.put_u8(44, CQE_VERSION);
    driver.put_u8(45, DRIVER_COMMANDS);
    driver.put_u8(46, INLINE_L2);
    driver.put_u32(56, PAGE_BYTES.ilog2());
    driver.put_u32(60, 1);
    Ok(())
}

/// The device's attributes at this front: queues of mlx5's sizes.
fn front_attributes(nic: &Nic) -> ibv_device_attr_ex {
    let mut attr = attributes::device(nic);
    attr.orig_attr.vendor_id = VENDOR;
    attr.orig_attr.vendor_part_id = PART;
    attr.orig_attr.max_qp_wr = MAX_REQUESTS.cast_signed();
    attr.orig_attr.max_cqe = (MAX_COMPLETIONS - 1).cast_signed();
    attr.orig_attr.max_mr = MAX_REGIONS as i32;
    attr
}

/// QUERY_DEVICE.
pub(super) fn query_device(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    context.slot()?;
    put_base(call, &front_attributes(&context.nic).orig_attr);
    Ok(())
}

/// `struct ib_uverbs_query_device_resp`. Fields about what raw packets do not have stay 0.
fn put_base(call: &mut Call<'_>, attr: &ibv_device_attr) {
    let reply = &mut call.reply;
    reply.put_u64(0, firmware());
    // In network byte order on both sides.
    reply.put_u64(8, attr.node_guid);
    reply.put_u64(16, attr.sys_image_guid);
    reply.put_u64(24, attr.max_mr_size);
    reply.put_u64(32, attr.page_size_cap);
    let words = [
        (40, attr.vendor_id),
        (44, attr.vendor_part_id),
        (52, attr.max_qp.cast_unsigned()),
        (56, attr.max_qp_wr.cast_unsigned()),
        (60, attr.device_cap_flags),
        (64, attr.max_sge.cast_unsigned()),
        (72, attr.max_cq.cast_unsigned()),
        (76, attr.max_cqe.cast_unsigned()),
        (80, attr.max_mr.cast_unsigned()),
        (84, attr.max_pd.cast_unsigned()),
        (144, attr.max_ah.cast_unsigned()),
    ];
    for (at, word) in words {
        reply.put_u32(at, word);
    }
    reply.put_u16(168, PKEYS);
    reply.put_u8(171, attr.phys_port_cnt);
}

/// The release of this crate in the place of a firmware's: three numbers of 16 bits.
fn firmware() -> u64 {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0) & 0xffff;
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 32
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 16
        | number(env!("CARGO_PKG_VERSION_PATCH"))
}

/// The extended QUERY_DEVICE, with the driver's part.
pub(super) fn query_device_extended(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    /// `MLX5_IB_PP_SUPPORT_BURST`.
    const PACED_BURSTS: u8 = 1;
    context.slot()?;
    // kernel core/uverbs_cmd.c, `ib_uverbs_ex_query_device`.
    if call.core.u32(0) != 0 || call.core.u32(4) != 0 {
        return Err(EINVAL);
    }
    let attr = front_attributes(&context.nic);
    put_base(call, &attr.orig_attr);
    let reply = &mut call.reply;
    reply.put_u32(BASE_BYTES + 4, reply.length(EXTENDED_BYTES));
    reply.put_u64(208, attr.completion_timestamp_mask);
    reply.put_u64(216, attr.hca_core_clock);
    reply.put_u64(224, attr.device_cap_flags_ex);
    reply.put_u32(232, attr.rss_caps.supported_qpts);
    reply.put_u32(236, attr.rss_caps.max_rwq_indirection_tables);
    reply.put_u32(240, attr.rss_caps.max_rwq_indirection_table_size);
    reply.put_u32(248, attr.max_wq_type_rq);
    reply.put_u32(252, attr.raw_packet_caps);
    reply.put_u16(280, attr.cq_mod_caps.max_cq_count);
    reply.put_u16(282, attr.cq_mod_caps.max_cq_period);
    let driver = &mut call.driver_reply;
    driver.put_u32(4, driver.length(DEVICE_BYTES));
    driver.put_u32(8, attr.tso_caps.max_tso);
    driver.put_u32(12, attr.tso_caps.supported_qpts);
    driver.put_u64(16, attr.rss_caps.rx_hash_fields_mask);
    driver.put_u8(24, attr.rss_caps.rx_hash_function);
    let pacing = attr.packet_pacing_caps;
    driver.put_u32(40, pacing.qp_rate_limit_min);
    driver.put_u32(44, pacing.qp_rate_limit_max);
    driver.put_u32(48, pacing.supported_qpts);
    driver.put_u8(52, PACED_BURSTS);
    Ok(())
}

/// QUERY_PORT: `struct ib_uverbs_query_port_resp`.
pub(super) fn query_port(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    context.slot()?;
    let attr = attributes::port(&context.nic, call.core.u8(8), GIDS, PKEYS)?;
    let reply = &mut call.reply;
    reply.put_u32(4, attr.max_msg_sz);
    reply.put_u32(16, attr.gid_tbl_len.cast_unsigned());
    reply.put_u16(20, attr.pkey_tbl_len);
    let bytes = [
        (26, attr.state as u8),
        (27, attr.max_mtu as u8),
        (28, attr.active_mtu as u8),
        (34, attr.active_width),
        (35, attr.active_speed),
        (36, attr.phys_state),
        (37, attr.link_layer),
        (38, attr.flags),
    ];
    for (at, byte) in bytes {
        reply.put_u8(at, byte);
    }
    Ok(())
}
