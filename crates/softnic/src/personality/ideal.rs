//! The personality that takes whatever the verbs API can say, up to the limits of this device.

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM,
    IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP,
};

use super::{ClockRules, CompletionRules, DomainRules, Known, Resources, RssRules, Rules};
use crate::limits;
use crate::provider::answer::{EINVAL, EOPNOTSUPP};
use crate::queue_memory::resource;
use crate::rss::MAX_INDIRECTION_ENTRIES;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `IBV_CQ_INIT_ATTR_MASK_PD`.
pub(super) const CQ_ATTR_FLAGS: u32 = 1;
pub(super) const CQ_ATTR_PD: u32 = 2;

/// `IBV_WC_STANDARD_FLAGS` of verbs.h.
pub(super) const STANDARD_FIELDS: u32 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

/// Every field that a raw packet device can tell; the InfiniBand ones read as 0. Tag matching needs XRC and is not
/// among them.
pub(super) const ALL_FIELDS: u32 = STANDARD_FIELDS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_CVLAN
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub(super) static RULES: Rules = Rules {
    // UTC in nanoseconds, as mlx5's clock in real-time mode: raw and wall clock are the same.
    clock: ClockRules { kilohertz: 1_000_000, mask: u64::MAX },
    completion: CompletionRules {
        attributes: Known { bits: CQ_ATTR_FLAGS | CQ_ATTR_PD, refusal: EINVAL },
        flags: Known {
            bits: IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            refusal: EINVAL,
        },
        fields: Known { bits: ALL_FIELDS, refusal: EOPNOTSUPP },
        exclusive_fields: None,
        max_entries: limits::MAX_CQE,
        rounds_up: false,
        plain_domain: true,
        vectors: limits::COMP_VECTORS,
        max_moderation_count: u16::MAX,
        max_moderation_period_us: u16::MAX,
    },
    domain: DomainRules {
        parent_domains: true,
        thread_domain_refusal: EOPNOTSUPP,
        resources: Resources {
            completion_queue: resource::COMPLETION_QUEUE,
            work_queue: resource::WORK_QUEUE,
            queue_pair: resource::QUEUE_PAIR,
            doorbell: resource::DOORBELL,
        },
    },
    rss: RssRules { fields: 0xff, max_entries: MAX_INDIRECTION_ENTRIES as u32 },
};
