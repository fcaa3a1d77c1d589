//! Flow actions behind a handle: what `IBV_FLOW_SPEC_ACTION_HANDLE` names.
//!
//! verbs.h has one kind that is not a vendor's own, ESP (ibv_flow_action_esp(3)): the device ends or begins
//! an IPsec tunnel. Only mlx5 ever had it, and its kernel driver has dropped it since, so on today's kernels
//! creating one is refused with EOPNOTSUPP. It is here so that a device can be asked.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{self as sys, ib_uverbs_flow_action_esp, ibv_flow_action, ibv_flow_action_esp_attr};

use crate::error::created;
use crate::{Context, Result, VerbsError, inline, leak};

/// Bytes of the longest AES key.
pub(crate) const MAX_AES_KEY_BYTES: usize = 32;

/// `struct ib_uverbs_flow_action_esp_keymat_aes_gcm`, ib_user_ioctl_verbs.h. The initialisation vectors are
/// always counted up (`IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ`, the only algorithm).
#[repr(C)]
struct AesGcmKeymat {
    iv: u64,
    iv_algo: u32,
    salt: u32,
    icv_len: u32,
    key_len: u32,
    aes_key: [u8; MAX_AES_KEY_BYTES],
}

const _: () = assert!(size_of::<AesGcmKeymat>() == 56);

bitflags::bitflags! {
    /// `ib_uverbs_flow_action_esp_flags`: what the device does with ESP packets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EspFlags: u32 {
        /// The whole packet is handled, not the cipher alone.
        const FULL_OFFLOAD = 1;
        /// Transport mode, not tunnel mode.
        const TRANSPORT = 1 << 1;
        /// Packets to be sent are encrypted, not received ones decrypted.
        const ENCRYPT = 1 << 2;
        /// The upper half of the extended sequence number is about to change.
        const ESN_NEW_WINDOW = 1 << 3;
        const _ = !0;
    }
}

/// An IPsec security association with AES-GCM (RFC 4106).
#[derive(Clone, PartialEq, Eq)]
pub struct EspAction {
    /// Security parameter index.
    pub spi: u32,
    /// The next sequence number.
    pub seq: u32,
    /// Bytes of traffic flow confidentiality padding.
    pub tfc_pad_bytes: u32,
    /// The actions that are carried out.
    pub flags: EspFlags,
    /// Packets after which the association ends; 0: none.
    pub hard_limit_packets: u64,
    /// The upper half of the extended sequence number, if there is one.
    pub esn: Option<u32>,
    /// The first initialisation vector.
    pub iv: u64,
    /// The salt of the nonce.
    pub salt: u32,
    /// Bytes of the integrity check value: 8, 12 or 16.
    pub icv_bytes: u32,
    /// 16 or 32 bytes; longer keys are EINVAL.
    pub key: Vec<u8>,
}

/// An action that flows name by [`ActionSpec::Handle`](crate::ActionSpec::Handle).
pub struct FlowAction {
    raw: NonNull<ibv_flow_action>,
    context: Arc<Context>,
}

// SAFETY: the verbs on an action may be called from any thread; the structure is never written after it was
// made.
unsafe impl Send for FlowAction {}
// SAFETY: as above.
unsafe impl Sync for FlowAction {}

impl FlowAction {
    /// `ibv_create_flow_action_esp`, without a replay window and without an outer header of its own.
    ///
    /// # Errors
    /// EOPNOTSUPP where the device or its driver has no ESP offload, EINVAL for parameters it does not take.
    pub fn esp(context: &Arc<Context>, action: &EspAction) -> Result<Arc<Self>> {
        let failed = |source| VerbsError::CreateFlowAction { device: context.name().into(), source };
        let mut keymat = AesGcmKeymat {
            iv: action.iv,
            iv_algo: 0,
            salt: action.salt,
            icv_len: action.icv_bytes,
            key_len: 0,
            aes_key: [0; MAX_AES_KEY_BYTES],
        };
        let Some(key) = keymat.aes_key.get_mut(..action.key.len()) else {
            return Err(failed(crate::error::from_code(libc::EINVAL)));
        };
        key.copy_from_slice(&action.key);
        keymat.key_len = action.key.len() as u32;
        let mut esp = ib_uverbs_flow_action_esp {
            spi: action.spi,
            seq: action.seq,
            tfc_pad: action.tfc_pad_bytes,
            flags: action.flags.bits(),
            hard_limit_pkts: action.hard_limit_packets,
        };
        let mut attr = ibv_flow_action_esp_attr {
            esp_attr: &raw mut esp,
            keymat_proto: sys::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM,
            keymat_len: size_of::<AesGcmKeymat>() as u16,
            keymat_ptr: (&raw mut keymat).cast::<c_void>(),
            replay_proto: sys::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE,
            replay_len: 0,
            replay_ptr: ptr::null_mut(),
            esp_encap: ptr::null_mut(),
            comp_mask: if action.esn.is_some() { sys::IBV_FLOW_ACTION_ESP_MASK_ESN } else { 0 },
            esn: action.esn.unwrap_or(0),
        };
        // SAFETY: the context is open; what the attributes point to is on this stack and read during the call
        // only.
        let create = || unsafe { inline::create_flow_action_esp(context.raw(), &raw mut attr) };
        let raw = created(create).map_err(failed)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_flow_action {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl fmt::Debug for FlowAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowAction").field("device", &self.context.name()).finish_non_exhaustive()
    }
}

impl Drop for FlowAction {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_flow_action_esp`; flows that name it held an `Arc` of this and are
        // gone.
        let code = unsafe { inline::destroy_flow_action(self.context.raw(), self.raw()) };
        leak::keep("ibv_destroy_flow_action", self.context.name(), code, || Arc::clone(&self.context));
    }
}
