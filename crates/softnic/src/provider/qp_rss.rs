//! Making RSS queue pairs: an indirection table and a hash, and no queues of their own.

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_RX_HASH_DST_IPV4,
    IBV_RX_HASH_DST_IPV6, IBV_RX_HASH_DST_PORT_TCP, IBV_RX_HASH_DST_PORT_UDP, IBV_RX_HASH_FUNC_TOEPLITZ,
    IBV_RX_HASH_IPSEC_SPI, IBV_RX_HASH_SRC_IPV4, IBV_RX_HASH_SRC_IPV6, IBV_RX_HASH_SRC_PORT_TCP,
    IBV_RX_HASH_SRC_PORT_UDP, ibv_context, ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex, ibv_rx_hash_conf,
};
use packet::{HashFields, RssKey};

use super::Object;
use super::answer::{EINVAL, ENOMEM, EOPNOTSUPP, Verb, known_bits};
use super::pd::SoftPd;
use super::qp_create::{base, finish, new_object};
use super::table::SoftTable;
use crate::device::SoftContext;
use crate::limits::RSS_KEY_BYTES;
use crate::personality::{HashCombinations, RssRules};
use crate::rss::Rss;
use crate::state::{QpKind, QpState};

/// Addresses and ports, as `rx_hash_fields_mask` has them.
const IPV4: u64 = (IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4) as u64;
const IPV6: u64 = (IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6) as u64;
const TCP: u64 = (IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP) as u64;
const UDP: u64 = (IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP) as u64;
const SPI: u64 = IBV_RX_HASH_IPSEC_SPI as u64;

pub(crate) fn create_rss(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> Verb<*mut ibv_qp> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    let rules = &soft.nic().rules().rss;
    check(attr, rules)?;
    // SAFETY: NULL or a domain of this provider, by the verb's contract.
    let pd = unsafe { SoftPd::of(attr.pd) }?;
    // SAFETY: NULL or a table of this provider, by the verb's contract.
    let table = unsafe { SoftTable::of(attr.rwq_ind_tbl) }?;
    if pd.context() != context || table.context() != context {
        return Err(EINVAL);
    }
    let (key, fields) = hash(&attr.rx_hash_conf, rules)?;
    let base = base(context, attr.pd, attr.qp_context, [attr.send_cq, attr.recv_cq], attr.qp_type);
    let mut object = new_object(base, pd.slot, ibv_qp_cap::default(), false);
    let mut state = soft.nic().control();
    let entries = state.tables.get(table.slot).ok_or(EINVAL)?;
    let rss = Rss::new(&key, fields, &entries.queues).map_err(|_| EINVAL)?;
    let kind = QpKind::Rss { table: table.slot, rss: Box::new(rss) };
    let qp = QpState::new(soft.slot, pd.base, kind);
    let slot = state.qps.insert(qp).ok_or(ENOMEM)?;
    finish(&mut state, slot, &mut object)?;
    if !rules.numbered {
        object.qp.get_mut().qp_base.qp_num = 0;
    }
    if let Some(table) = state.tables.get_mut(table.slot) {
        table.users += 1;
    }
    drop(state);
    Ok(Box::into_raw(object).cast())
}

/// What belongs to a receive queue, beside a table of them: refused on every device (libibverbs/cmd_qp.c,
/// `ibv_icmd_create_qp`, and kernel core/uverbs_cmd.c, `create_qp`).
pub(super) fn check_receives(attr: &ibv_qp_init_attr_ex) -> Verb<()> {
    let receives = attr.cap.max_recv_wr > 0 || attr.cap.max_recv_sge > 0;
    if receives || !attr.recv_cq.is_null() || !attr.srq.is_null() { Err(EINVAL) } else { Ok(()) }
}

/// What belongs to queues that an RSS queue pair does not have.
fn check(attr: &ibv_qp_init_attr_ex, rules: &RssRules) -> Verb<()> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 {
        known_bits(attr.create_flags, 0, rules.create_flags_refusal)?;
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
        return Err(rules.send_operations_refusal);
    }
    match rules.send_queue_refusal {
        Some(errno) if attr.cap.max_send_wr > 0 => Err(errno),
        _ => Ok(()),
    }
}

fn hash(conf: &ibv_rx_hash_conf, rules: &RssRules) -> Verb<(RssKey, HashFields)> {
    if u32::from(conf.rx_hash_function) != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(rules.function_refusal);
    }
    if conf.rx_hash_key_len != RSS_KEY_BYTES {
        return Err(rules.key_length_refusal);
    }
    if conf.rx_hash_key.is_null() {
        return Err(EINVAL);
    }
    let fields = conf.rx_hash_fields_mask;
    if fields & (!rules.fields | rules.refused_fields) != 0 {
        return Err(EOPNOTSUPP);
    }
    combine(fields, rules.combinations)?;
    let mut key = [0; RSS_KEY_BYTES as usize];
    // SAFETY: the application's key has `rx_hash_key_len` bytes, and that is the array's length.
    unsafe { key.as_mut_ptr().copy_from_nonoverlapping(conf.rx_hash_key, key.len()) };
    let fields = u32::try_from(fields).map_err(|_| EOPNOTSUPP)?;
    Ok((RssKey(key), HashFields::from_bits_truncate(fields)))
}

/// Refuses fields that cannot stand together.
fn combine(fields: u64, combinations: HashCombinations) -> Verb<()> {
    let any = |mask: u64| fields & mask != 0;
    let half = |mask: u64| any(mask) && fields & mask != mask;
    let count = |masks: &[u64]| masks.iter().filter(|mask| any(**mask)).count();
    match combinations {
        HashCombinations::OneOfEach if count(&[IPV4, IPV6]) > 1 || count(&[TCP, UDP, SPI]) > 1 => Err(EINVAL),
        HashCombinations::WholePairs if [IPV4, IPV6, TCP, UDP].into_iter().any(half) => Err(EOPNOTSUPP),
        HashCombinations::WholePairs if any(TCP | UDP) && !any(IPV4 | IPV6) => Err(EOPNOTSUPP),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connectx_4_hashes_one_family_and_one_transport() {
        let combine = |fields| combine(fields, HashCombinations::OneOfEach);
        for fields in [0, IPV4, IPV6, IPV4 | TCP, IPV6 | UDP, IPV4 | SPI, 1, 1 | 16] {
            assert_eq!(combine(fields), Ok(()), "{fields:#x}");
        }
        for fields in [IPV4 | IPV6, 1 | 8, TCP | UDP, UDP | SPI, IPV4 | TCP | SPI] {
            assert_eq!(combine(fields), Err(EINVAL), "{fields:#x}");
        }
    }

    #[test]
    fn connectx_3_hashes_whole_pairs() {
        let combine = |fields| combine(fields, HashCombinations::WholePairs);
        for fields in [0, IPV4, IPV4 | IPV6, IPV4 | IPV6 | TCP | UDP, IPV6 | UDP] {
            assert_eq!(combine(fields), Ok(()), "{fields:#x}");
        }
        for fields in [1, 8, IPV4 | 16, TCP, UDP | TCP] {
            assert_eq!(combine(fields), Err(EOPNOTSUPP), "{fields:#x}");
        }
    }
}
