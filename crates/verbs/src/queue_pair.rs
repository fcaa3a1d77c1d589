//! What queue pairs of every kind have in common: how they are configured, and their attributes.
//!
//! Used by [`RawQueuePairBuilder`](crate::RawQueuePairBuilder) and
//! [`RssQueuePairBuilder`](crate::RssQueuePairBuilder). Numbers the library gives as C enums keep an
//! `Unknown` variant.

use ibverbs_sys::{self as sys, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr};

use crate::error::from_code;
use crate::{Context, PortNumber, Result, VerbsError};

bitflags::bitflags! {
    /// `ibv_qp_create_flags`. What a device lacks it refuses, with EINVAL or EOPNOTSUPP
    /// (ibv_create_qp_ex(3)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QueuePairFlags: u32 {
        /// Multicast packets that it sends do not come back to it.
        const BLOCK_SELF_MCAST_LB = sys::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
        /// Received packets end with their frame check sequence
        /// ([`RawPacketCaps::SCATTER_FCS`](crate::RawPacketCaps::SCATTER_FCS)).
        const SCATTER_FCS = sys::IBV_QP_CREATE_SCATTER_FCS;
        /// An outer 802.1Q tag is taken off and reported in the completion
        /// ([`RawPacketCaps::CVLAN_STRIPPING`](crate::RawPacketCaps::CVLAN_STRIPPING)).
        const CVLAN_STRIPPING = sys::IBV_QP_CREATE_CVLAN_STRIPPING;
        /// Sent packets name another queue pair as their source; for datagram queue pairs.
        const SOURCE_QPN = sys::IBV_QP_CREATE_SOURCE_QPN;
        /// Writes to memory are padded to whole cache lines.
        const PCI_WRITE_END_PADDING = sys::IBV_QP_CREATE_PCI_WRITE_END_PADDING;
        const _ = !0;
    }
}

/// The service type of a queue pair (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePairKind {
    /// Whole frames, as on the wire.
    #[default]
    RawPacket,
    /// Unreliable datagrams (UD). It can be made and asked about, and be a flow's target; sending needs
    /// addresses, which are not this crate's business.
    Datagram,
    /// A kind this crate has no name for, by its number.
    Unknown(u32),
}

impl QueuePairKind {
    pub(crate) fn raw(self) -> sys::ibv_qp_type::Type {
        match self {
            Self::RawPacket => sys::ibv_qp_type::IBV_QPT_RAW_PACKET,
            Self::Datagram => sys::ibv_qp_type::IBV_QPT_UD,
            Self::Unknown(raw) => raw,
        }
    }
}

impl From<sys::ibv_qp_type::Type> for QueuePairKind {
    fn from(raw: sys::ibv_qp_type::Type) -> Self {
        match raw {
            sys::ibv_qp_type::IBV_QPT_RAW_PACKET => Self::RawPacket,
            sys::ibv_qp_type::IBV_QPT_UD => Self::Datagram,
            other => Self::Unknown(other),
        }
    }
}

/// The state of a queue pair (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// RTR: packets are received.
    ReadyToReceive,
    /// RTS: packets are sent as well.
    ReadyToSend,
    /// SQD: no send is begun.
    SendQueueDrained,
    /// SQE: a send failed.
    SendQueueError,
    /// Posted requests are flushed.
    Error,
    /// A state this crate has no name for.
    Unknown(u32),
}

impl From<sys::ibv_qp_state::Type> for QueuePairState {
    fn from(raw: sys::ibv_qp_state::Type) -> Self {
        match raw {
            sys::ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            sys::ibv_qp_state::IBV_QPS_INIT => Self::Init,
            sys::ibv_qp_state::IBV_QPS_RTR => Self::ReadyToReceive,
            sys::ibv_qp_state::IBV_QPS_RTS => Self::ReadyToSend,
            sys::ibv_qp_state::IBV_QPS_SQD => Self::SendQueueDrained,
            sys::ibv_qp_state::IBV_QPS_SQE => Self::SendQueueError,
            sys::ibv_qp_state::IBV_QPS_ERR => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

/// How much a queue pair holds (`ibv_qp_cap`); the device may give more than was asked for, never less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueuePairCaps {
    /// Sends at once.
    pub max_sends: u32,
    /// Receives at once.
    pub max_receives: u32,
    /// Pieces of memory that one send gathers.
    pub max_send_parts: u32,
    /// Pieces of memory that one receive scatters to.
    pub max_receive_parts: u32,
    /// Bytes that a send can bring along instead of naming memory.
    pub max_inline_bytes: u32,
}

impl From<&ibv_qp_cap> for QueuePairCaps {
    fn from(raw: &ibv_qp_cap) -> Self {
        Self {
            max_sends: raw.max_send_wr,
            max_receives: raw.max_recv_wr,
            max_send_parts: raw.max_send_sge,
            max_receive_parts: raw.max_recv_sge,
            max_inline_bytes: raw.max_inline_data,
        }
    }
}

impl From<QueuePairCaps> for ibv_qp_cap {
    fn from(caps: QueuePairCaps) -> Self {
        Self {
            max_send_wr: caps.max_sends,
            max_recv_wr: caps.max_receives,
            max_send_sge: caps.max_send_parts,
            max_recv_sge: caps.max_receive_parts,
            max_inline_data: caps.max_inline_bytes,
        }
    }
}

/// The attributes of a queue pair (`ibv_query_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAttributes {
    /// The state of the queue pair.
    pub state: QueuePairState,
    /// The service type of the queue pair.
    pub kind: QueuePairKind,
    /// The port it is bound to; 0 before it is.
    pub port: PortNumber,
    /// How much it holds.
    pub caps: QueuePairCaps,
    /// Every send completes visibly, whether it asks for that or not (`sq_sig_all`).
    pub signal_all: bool,
    /// The token that the queue pair was given.
    pub token: usize,
}

/// Asks a queue pair.
///
/// # Safety
/// `qp` is live and of `context`.
pub(crate) unsafe fn query(context: &Context, qp: *mut ibv_qp) -> Result<QueuePairAttributes> {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_PORT | ibv_qp_attr_mask::IBV_QP_CAP;
    // SAFETY: forwarded contract; both structures are writable.
    let code = unsafe { sys::ibv_query_qp(qp, &raw mut attr, mask.0.cast_signed(), &raw mut init) };
    if code != 0 {
        return Err(VerbsError::QueryQueuePair { device: context.name().into(), source: from_code(code) });
    }
    Ok(QueuePairAttributes {
        state: QueuePairState::from(attr.qp_state),
        kind: QueuePairKind::from(init.qp_type),
        port: PortNumber(attr.port_num),
        caps: QueuePairCaps::from(&init.cap),
        signal_all: init.sq_sig_all != 0,
        token: init.qp_context.addr(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_states_keep_unknown_numbers() {
        for raw in [2, 4, 8, 255] {
            assert_eq!(QueuePairKind::from(raw).raw(), raw);
        }
        assert_eq!(QueuePairKind::from(8), QueuePairKind::RawPacket);
        assert_eq!(QueuePairState::from(3), QueuePairState::ReadyToSend);
        assert_eq!(QueuePairState::from(7), QueuePairState::Unknown(7));
    }

    #[test]
    fn caps_go_to_c_and_back() {
        let caps = QueuePairCaps {
            max_sends: 1,
            max_receives: 2,
            max_send_parts: 3,
            max_receive_parts: 4,
            max_inline_bytes: 5,
        };
        let raw = ibv_qp_cap::from(caps);
        assert_eq!((raw.max_send_wr, raw.max_recv_sge, raw.max_inline_data), (1, 4, 5));
        assert_eq!(QueuePairCaps::from(&raw), caps);
    }
}
