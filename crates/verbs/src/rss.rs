//! Receive side scaling: indirection tables over work queues, and the queue pairs that hash into them.
//!
//! Made by whoever installs a program; devices can only create and destroy them. Flows keep a queue pair alive, it
//! its table, and that its work queues.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{
    self as sys, ibv_qp, ibv_qp_init_attr_ex, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_rx_hash_conf, ibv_wq,
};

use crate::error::last;
use crate::{Context, Domain, Error, HashFields, Result, WorkQueue, inline, leak};

/// Most entries of an indirection table: beyond what any known device offers.
pub const MAX_TABLE_ENTRIES: usize = 1 << 16;

/// Bytes of a Toeplitz key: the only length devices take.
pub const HASH_KEY_BYTES: usize = 40;

/// A table from hash values to work queues.
pub struct IndirectionTable {
    raw: NonNull<ibv_rwq_ind_table>,
    context: Arc<Context>,
    queues: Box<[Arc<WorkQueue>]>,
}

// SAFETY: never written after it was made; its verbs may be called from any thread.
unsafe impl Send for IndirectionTable {}
// SAFETY: as above.
unsafe impl Sync for IndirectionTable {}

impl IndirectionTable {
    /// `ibv_create_rwq_ind_table`. The low bits of a hash choose the entry, so there must be a power of two of them;
    /// a queue may stand in several.
    pub fn new(context: &Arc<Context>, queues: &[Arc<WorkQueue>]) -> Result<Arc<Self>> {
        let size = queues.len();
        if !size.is_power_of_two() || size > MAX_TABLE_ENTRIES {
            return Err(Error::TableSize { size });
        }
        let failed = |source| Error::CreateIndirectionTable { device: context.name().into(), size, source };
        queues.iter().try_for_each(|queue| context.same_as(queue.domain().context()))?;
        let mut entries: Vec<*mut ibv_wq> = queues.iter().map(|queue| queue.raw()).collect();
        let mut attr = ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: size.trailing_zeros(),
            ind_tbl: entries.as_mut_ptr(),
            comp_mask: 0,
        };
        // SAFETY: the context is open, the queues are its own and live, the array is as long as said.
        let raw = unsafe { inline::create_rwq_ind_table(context.raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(last()))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context), queues: queues.into() }))
    }

    /// How many entries it has.
    pub fn size(&self) -> usize {
        self.queues.len()
    }
}

impl Drop for IndirectionTable {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_rwq_ind_table`; queue pairs over it held an `Arc` of this and are gone.
        let code = unsafe { inline::destroy_rwq_ind_table(self.context.raw(), self.raw.as_ptr()) };
        leak::keep("ibv_destroy_rwq_ind_table", self.context.name(), code, || self.queues.clone());
    }
}

/// What an RSS queue pair hashes, and with what key. Without fields, everything goes to the table's first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashConfig {
    /// The Toeplitz key.
    pub key: [u8; HASH_KEY_BYTES],
    /// What is hashed.
    pub fields: HashFields,
}

/// A raw packet queue pair that spreads what it is given over an indirection table.
pub struct RssQueuePair {
    raw: NonNull<ibv_qp>,
    domain: Domain,
    table: Arc<IndirectionTable>,
}

// SAFETY: it has no ring of its own; its verbs may be called from any thread.
unsafe impl Send for RssQueuePair {}
// SAFETY: as above.
unsafe impl Sync for RssQueuePair {}

impl RssQueuePair {
    /// `ibv_create_qp_ex` with an indirection table. Such a queue pair has no states: it delivers as soon as a flow
    /// names it and its work queues are in RDY.
    pub fn new(domain: &Domain, table: &Arc<IndirectionTable>, hash: &HashConfig) -> Result<Arc<Self>> {
        let context = domain.context();
        let failed =
            |source| Error::CreateRssQueuePair { device: context.name().into(), fields: hash.fields, source };
        context.same_as(&table.context)?;
        let mut key = hash.key;
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: sys::ibv_qp_type::IBV_QPT_RAW_PACKET,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD
                | sys::IBV_QP_INIT_ATTR_IND_TABLE
                | sys::IBV_QP_INIT_ATTR_RX_HASH,
            pd: domain.raw(),
            rwq_ind_tbl: table.raw.as_ptr(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: sys::IBV_RX_HASH_FUNC_TOEPLITZ as u8,
                rx_hash_key_len: HASH_KEY_BYTES as u8,
                rx_hash_key: ptr::from_mut(&mut key).cast(),
                rx_hash_fields_mask: hash.fields.bits(),
            },
            ..ibv_qp_init_attr_ex::default()
        };
        // SAFETY: context, domain and table are live and, being `Arc`s below, outlive the queue pair; the key is read
        // during the call only.
        let raw = unsafe { inline::create_qp_ex(context.raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(last()))?;
        Ok(Arc::new(Self { raw, domain: domain.clone(), table: Arc::clone(table) }))
    }

    /// The table it spreads over.
    pub fn table(&self) -> &Arc<IndirectionTable> {
        &self.table
    }

    pub(crate) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }
}

impl Drop for RssQueuePair {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_qp_ex`; flows to it held an `Arc` of this and are gone.
        let code = unsafe { sys::ibv_destroy_qp(self.raw()) };
        leak::keep("ibv_destroy_qp (RSS)", self.context().name(), code, || {
            (self.domain.clone(), Arc::clone(&self.table))
        });
    }
}
