//! RSS queue pairs: an indirection table and a hash. The destruction of all queue pairs.

use ibverbs_sys::ibv_qp_type;
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb};
use softnic::objects::domains::{release_domain, use_domain};
use softnic::objects::queue_pairs;
use softnic::objects::rss::{HashRequest, hash, insert_rss};

use super::{Call, ENOENT, domains, raw_queue_pairs, steering};
use crate::context::Context;

/// The extended CREATE_QP (kernel core/uverbs_cmd.c, `create_qp`; hw/mlx5/qp.c, `check_qp_attr` and
/// `create_rss_raw_qp_tir`).
pub(super) fn create(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    /// `IB_UVERBS_CREATE_QP_MASK_IND_TABLE`.
    const TABLE: u32 = 1;
    /// Bytes of the core's structure.
    const CORE_BYTES: usize = 64;
    let (owner, core) = (context.slot()?, call.core);
    core.known(CORE_BYTES)?;
    let (domain, mask, table) = (core.u32(8), core.u32(48), core.u32(56));
    if mask & !TABLE != 0 {
        return Err(EOPNOTSUPP);
    }
    if mask & TABLE == 0 {
        return raw_queue_pairs::create_extended(context, call);
    }
    if u32::from(core.u8(45)) != ibv_qp_type::IBV_QPT_RAW_PACKET {
        return Err(EOPNOTSUPP);
    }
    let (max_send, max_receive, receive_entries) = (core.u32(24), core.u32(28), core.u32(36));
    let has_shared_queue = core.u8(46) != 0;
    if [max_send, max_receive, receive_entries] != [0; 3] || has_shared_queue || core.u32(52) != 0 {
        return Err(EINVAL);
    }
    let (key, fields) = read_hash(context, call)?;
    let mut state = context.nic.control();
    domains::check(&state, owner, domain)?;
    steering::check(&state, owner, table)?;
    let slot = insert_rss(&mut state, owner, domain, table, &key, fields)?;
    use_domain(&mut state, domain)?;
    let reply = &mut call.reply;
    // Its number is 0: none of the queues below it is meant.
    reply.put_u32(0, slot);
    reply.put_u32(36, reply.length(40));
    Ok(())
}

/// `struct mlx5_ib_create_qp_rss`.
fn read_hash(context: &Context, call: &Call<'_>) -> Verb<(packet::RssKey, packet::HashFields)> {
    const KEY: std::ops::Range<usize> = 16..144;
    /// Up to and with the flags; and what may be missing at the end.
    const BYTES: usize = 152;
    /// `MLX5_QP_FLAG_TUNNEL_OFFLOADS` and the two for loopback: of these frames there are none.
    const FLAGS: u32 = 1 << 2 | 1 << 6 | 1 << 7;
    let driver = call.driver;
    if driver.len() < BYTES {
        return Err(EINVAL);
    }
    driver.known(BYTES)?;
    let reserved = driver.0.get(10..16).is_some_and(|reserved| reserved.iter().any(|byte| *byte != 0));
    if reserved || driver.u32(144) != 0 || driver.u32(148) & !FLAGS != 0 {
        return Err(EOPNOTSUPP);
    }
    let request = HashRequest {
        function: driver.u8(8),
        key_bytes: driver.u8(9),
        key: driver.0.get(KEY).unwrap_or_default(),
        fields: driver.u64(0),
    };
    hash(&context.nic, &request)
}

/// DESTROY_QP.
pub(super) fn destroy(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(8));
    let mut state = context.nic.control();
    if !queue_pairs::is_owned(&state, owner, slot) {
        return Err(ENOENT);
    }
    let removed = queue_pairs::remove(&mut state, slot)?;
    release_domain(&mut state, removed.domain);
    // As that of DESTROY_CQ.
    call.reply.put_u32(0, removed.events_read);
    Ok(())
}
