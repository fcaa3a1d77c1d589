//! RSS queue pairs: an indirection table and a hash, and no queues of their own.

use device_model::Limit;
use ibverbs_sys::{
    IBV_RX_HASH_DST_IPV4, IBV_RX_HASH_DST_IPV6, IBV_RX_HASH_DST_PORT_TCP, IBV_RX_HASH_DST_PORT_UDP,
    IBV_RX_HASH_FUNC_TOEPLITZ, IBV_RX_HASH_IPSEC_SPI, IBV_RX_HASH_SRC_IPV4, IBV_RX_HASH_SRC_IPV6,
    IBV_RX_HASH_SRC_PORT_TCP, IBV_RX_HASH_SRC_PORT_UDP,
};
use packet::{HashFields, RssKey};

use crate::errno::{EINVAL, EOPNOTSUPP, Verb};
use crate::limits::RSS_KEY_BYTES;
use crate::nic::Nic;
use crate::personality::HashCombinations;
use crate::rss::Rss;
use crate::state::{QpKind, QpState, State};

/// Addresses and ports, as `rx_hash_fields_mask` has them.
const IPV4: u64 = (IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4) as u64;
const IPV6: u64 = (IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6) as u64;
const TCP: u64 = (IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP) as u64;
const UDP: u64 = (IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP) as u64;
const SPI: u64 = IBV_RX_HASH_IPSEC_SPI as u64;

/// Adds an RSS queue pair of a context and a domain, and counts what it uses of its table.
///
/// # Errors
/// EINVAL if there is no such table, and the errno of the device if it has no more queue pairs.
pub fn insert_rss(
    state: &mut State,
    owner: u32,
    domain: u32,
    table: u32,
    key: &RssKey,
    fields: HashFields,
) -> Verb<u32> {
    let entries = state.tables.get_mut(table).ok_or(EINVAL)?;
    let rss = Rss::new(key, fields, &entries.queues).map_err(|_| EINVAL)?;
    let qp = QpState::new(owner, domain, QpKind::Rss { table, rss: Box::new(rss) });
    let full = state.limits.of(Limit::Queues);
    let slot = state.qps.insert(qp).ok_or(full)?;
    entries.users += 1;
    Ok(slot)
}

/// A request for a hash.
#[derive(Clone, Copy, Debug)]
pub struct HashRequest<'k> {
    /// A value of `enum ibv_rx_hash_function_flags`.
    pub function: u8,
    /// The length of the key that the client states.
    pub key_bytes: u8,
    /// The key; it may be longer.
    pub key: &'k [u8],
    /// Bits of `enum ibv_rx_hash_fields`.
    pub fields: u64,
}

/// The key and the fields of a hash that the device can compute.
///
/// # Errors
/// EINVAL or EOPNOTSUPP, as the device has it.
pub fn hash(nic: &Nic, request: &HashRequest<'_>) -> Verb<(RssKey, HashFields)> {
    let rules = nic.rules();
    let HashRequest { function, key_bytes, key, fields } = *request;
    if u32::from(function) != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(rules.objects.rss.function_refusal);
    }
    if key_bytes != RSS_KEY_BYTES {
        return Err(rules.objects.rss.key_length_refusal);
    }
    let key = *key.first_chunk().ok_or(EINVAL)?;
    if fields & (!rules.hash.fields | rules.hash.refused_fields) != 0 {
        return Err(EOPNOTSUPP);
    }
    combine(fields, rules.hash.combinations)?;
    let fields = u32::try_from(fields).map_err(|_| EOPNOTSUPP)?;
    Ok((RssKey(key), HashFields::from_bits_truncate(fields)))
}

/// Refuses fields that cannot be combined.
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
