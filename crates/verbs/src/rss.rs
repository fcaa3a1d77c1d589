//! Receive side scaling: indirection tables over work queues, and the queue pairs that hash into them.
//!
//! Made by the code that installs a program; devices can only create and destroy them. Flows keep a queue
//! pair alive, it its table, and that its work queues.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{
    self as sys, ibv_qp, ibv_qp_init_attr_ex, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_rx_hash_conf, ibv_wq,
};

use crate::error::{created, from_code};
use crate::{
    Context, Domain, HashFields, QueuePairAttributes, QueuePairFlags, QueuePairKind, Result, VerbsError,
    WorkQueue, inline, leak, queue_pair,
};

/// Most entries of an indirection table: beyond what any known device offers.
pub(crate) const MAX_TABLE_ENTRIES: usize = 1 << 16;

/// Bytes of a Toeplitz key: the only length that known devices take.
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
    /// `ibv_create_rwq_ind_table`. The low bits of a hash choose the entry, so there must be a power of two
    /// of them; a queue may be in several.
    pub fn new(context: &Arc<Context>, queues: &[Arc<WorkQueue>]) -> Result<Arc<Self>> {
        let size = queues.len();
        if !size.is_power_of_two() || size > MAX_TABLE_ENTRIES {
            return Err(VerbsError::TableSize { size });
        }
        let failed =
            |source| VerbsError::CreateIndirectionTable { device: context.name().into(), size, source };
        queues.iter().try_for_each(|queue| context.same_as(queue.domain().context()))?;
        let mut entries: Vec<*mut ibv_wq> = queues.iter().map(|queue| queue.raw()).collect();
        let mut attr = ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: size.trailing_zeros(),
            ind_tbl: entries.as_mut_ptr(),
            comp_mask: 0,
        };
        // SAFETY: the context is open, the queues are its own and live, the array has the given length.
        let create = || unsafe { inline::create_rwq_ind_table(context.raw(), &mut attr) };
        let raw = created(create).map_err(failed)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context), queues: queues.into() }))
    }

    /// How many entries it has.
    pub fn size(&self) -> usize {
        self.queues.len()
    }
}

impl Drop for IndirectionTable {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_rwq_ind_table`; queue pairs over it held an `Arc` of this and are
        // gone.
        let code = unsafe { inline::destroy_rwq_ind_table(self.context.raw(), self.raw.as_ptr()) };
        leak::keep("ibv_destroy_rwq_ind_table", self.context.name(), code, || self.queues.clone());
    }
}

/// The hash of an RSS queue pair: fields and key. Without fields, everything goes to the table's first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashConfig {
    /// The Toeplitz key.
    pub key: [u8; HASH_KEY_BYTES],
    /// The hashed fields.
    pub fields: HashFields,
}

/// How a receive hash is computed (`ibv_rx_hash_function_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashFunction {
    /// The one that verbs.h has.
    #[default]
    Toeplitz,
    /// A function this crate has no name for, by its number.
    Unknown(u8),
}

impl HashFunction {
    fn raw(self) -> u8 {
        match self {
            Self::Toeplitz => sys::IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            Self::Unknown(raw) => raw,
        }
    }
}

/// The attributes of an RSS queue pair to be made.
#[must_use]
pub struct RssQueuePairBuilder {
    domain: Domain,
    table: Arc<IndirectionTable>,
    function: HashFunction,
    key: Vec<u8>,
    fields: HashFields,
    kind: QueuePairKind,
    flags: QueuePairFlags,
    token: usize,
}

impl RssQueuePairBuilder {
    /// Sets the hashed fields and the key.
    pub fn hash(mut self, hash: &HashConfig) -> Self {
        self.fields = hash.fields;
        self.key(&hash.key)
    }

    /// A key of another length than [`HASH_KEY_BYTES`], which known devices refuse with EINVAL.
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = key.to_vec();
        self
    }

    /// How the hash is computed; Toeplitz unless set.
    pub fn function(mut self, function: HashFunction) -> Self {
        self.function = function;
        self
    }

    /// Sets the service type of the queue pair; raw packets unless set.
    pub fn kind(mut self, kind: QueuePairKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets further features. VLAN stripping and check sequences are its work queues'
    /// ([`crate::WorkQueueFlags`]).
    pub fn flags(mut self, flags: QueuePairFlags) -> Self {
        self.flags = flags;
        self
    }

    /// A number that the queue pair keeps (`qp_context`) and [`query`](RssQueuePair::query) returns.
    pub fn token(mut self, token: usize) -> Self {
        self.token = token;
        self
    }

    /// `ibv_create_qp_ex` with an indirection table. Such a queue pair has no states: it delivers as soon as
    /// a flow names it and its work queues are in RDY.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; EINVAL or EOPNOTSUPP for a function, a key or a set of fields that the
    /// device does not hash (mlx5: one address family, and one of TCP, UDP and ESP;
    /// drivers/infiniband/hw/mlx5/qp.c); ENOMEM.
    pub fn build(self) -> Result<Arc<RssQueuePair>> {
        let Self { domain, table, function, mut key, fields, kind, flags, token } = self;
        let context = Arc::clone(domain.context());
        let failed =
            |source| VerbsError::CreateRssQueuePair { device: context.name().into(), fields, source };
        context.same_as(&table.context)?;
        let key_length = u8::try_from(key.len()).map_err(|_| failed(from_code(libc::EINVAL)))?;
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: ptr::without_provenance_mut(token),
            qp_type: kind.raw(),
            comp_mask: sys::IBV_QP_INIT_ATTR_PD
                | sys::IBV_QP_INIT_ATTR_IND_TABLE
                | sys::IBV_QP_INIT_ATTR_RX_HASH,
            pd: domain.raw(),
            rwq_ind_tbl: table.raw.as_ptr(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: function.raw(),
                rx_hash_key_len: key_length,
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: fields.bits(),
            },
            create_flags: flags.bits(),
            ..ibv_qp_init_attr_ex::default()
        };
        if !flags.is_empty() {
            attr.comp_mask |= sys::IBV_QP_INIT_ATTR_CREATE_FLAGS;
        }
        // SAFETY: context, domain and table are live and, being `Arc`s below, outlive the queue pair; the key
        // is as long as said and read during the call only.
        let create = || unsafe { inline::create_qp_ex(context.raw(), &raw mut attr) };
        let raw = created(create).map_err(failed)?;
        Ok(Arc::new(RssQueuePair { raw, domain, table }))
    }
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
    /// A queue pair in `domain` over `table`, that hashes nothing unless configured to.
    pub fn builder(domain: &Domain, table: &Arc<IndirectionTable>) -> RssQueuePairBuilder {
        RssQueuePairBuilder {
            domain: domain.clone(),
            table: Arc::clone(table),
            function: HashFunction::Toeplitz,
            key: vec![0; HASH_KEY_BYTES],
            fields: HashFields::empty(),
            kind: QueuePairKind::RawPacket,
            flags: QueuePairFlags::empty(),
            token: 0,
        }
    }

    /// A raw packet queue pair that hashes so; what most want ([`RssQueuePairBuilder::build`]).
    pub fn new(domain: &Domain, table: &Arc<IndirectionTable>, hash: &HashConfig) -> Result<Arc<Self>> {
        Self::builder(domain, table).hash(hash).build()
    }

    /// Returns the current attributes. Queries the device each time.
    ///
    /// # Errors
    /// ENOSYS or EOPNOTSUPP where a device cannot query such queue pairs, as on mlx5
    /// (drivers/infiniband/hw/mlx5/qp.c).
    pub fn query(&self) -> Result<QueuePairAttributes> {
        // SAFETY: the queue pair is live and of this context.
        unsafe { queue_pair::query(self.context(), self.raw()) }
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
