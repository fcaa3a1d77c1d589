//! What the device refuses and how it orders things: one table of rules per personality.
//!
//! Every op asks `nic.rules()` and compares; nothing else in this crate knows one personality from another. A rule is
//! plain data, and its row in `mlx5` or `mlx4` names where the fact comes from. What no row forbids is possible.

mod flow;
mod ideal;
mod mlx4;
mod mlx5;

use std::fmt;
use std::str::FromStr;

use crate::provider::answer::{Errno, Verb, known_bits};

pub(crate) use flow::{ActionRules, FieldRules, FilterRules, FlowRules};

/// What the device refuses, and how it orders flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Personality {
    /// Takes whatever the verbs API can say.
    #[default]
    Ideal,
    /// Refuses what NVIDIA ConnectX-4 and later refuse, with the same errno.
    Mlx5,
    /// Refuses what Mellanox ConnectX-3 refuses, with the same errno.
    Mlx4,
}

impl Personality {
    /// All of them, in the order in which they are listed to an operator.
    pub const ALL: [Self; 3] = [Self::Ideal, Self::Mlx5, Self::Mlx4];

    /// The word for it in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ideal => "ideal",
            Self::Mlx5 => "mlx5",
            Self::Mlx4 => "mlx4",
        }
    }

    /// Its table.
    pub(crate) fn rules(self) -> &'static Rules {
        match self {
            Self::Ideal => &ideal::RULES,
            Self::Mlx5 => &mlx5::RULES,
            Self::Mlx4 => &mlx4::RULES,
        }
    }
}

impl fmt::Display for Personality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no personality.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no personality: expected \"ideal\", \"mlx5\" or \"mlx4\"")]
pub struct UnknownPersonality {
    /// The word.
    pub found: String,
}

impl FromStr for Personality {
    type Err = UnknownPersonality;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|personality| personality.name() == text);
        known.ok_or_else(|| UnknownPersonality { found: text.to_owned() })
    }
}

/// A personality's table, a struct of rows per family of verbs.
pub(crate) struct Rules {
    pub(crate) clock: ClockRules,
    pub(crate) completion: CompletionRules,
    pub(crate) domain: DomainRules,
    pub(crate) queue_pair: QueuePairRules,
    pub(crate) work_queue: WorkQueueRules,
    pub(crate) rss: RssRules,
    pub(crate) flow: FlowRules,
}

/// The clock behind raw completion timestamps.
pub(crate) struct ClockRules {
    /// `hca_core_clock`: ticks per millisecond.
    pub(crate) kilohertz: u64,
    /// `completion_timestamp_mask`: the bits that a raw timestamp has.
    pub(crate) mask: u64,
}

/// Bits that an op takes, and what it answers to others.
pub(crate) struct Known {
    pub(crate) bits: u32,
    pub(crate) refusal: Errno,
}

impl Known {
    pub(crate) fn check(&self, bits: u32) -> Verb<()> {
        known_bits(bits, self.bits, self.refusal)
    }
}

/// Completion queues.
pub(crate) struct CompletionRules {
    /// `ibv_cq_init_attr_ex.comp_mask`.
    pub(crate) attributes: Known,
    /// `ibv_cq_init_attr_ex.flags`.
    pub(crate) flags: Known,
    /// `ibv_cq_init_attr_ex.wc_flags`.
    pub(crate) fields: Known,
    /// Two sets of `wc_flags` that cannot be had together.
    pub(crate) exclusive_fields: Option<(u32, u32)>,
    /// The most entries a queue can have.
    pub(crate) max_entries: u32,
    /// Whether queues get one entry less than a power of two, as where one slot tells full from empty.
    pub(crate) rounds_up: bool,
    /// Whether `parent_domain` may also be a plain protection domain.
    pub(crate) plain_domain: bool,
    /// `ibv_context.num_comp_vectors`.
    pub(crate) vectors: u32,
    /// `cq_mod_caps`: the most completions per event, and microseconds until one.
    pub(crate) max_moderation_count: u16,
    pub(crate) max_moderation_period_us: u16,
}

/// Protection, thread and parent domains, and the memory of their queues.
pub(crate) struct DomainRules {
    /// Whether there are thread and parent domains.
    pub(crate) parent_domains: bool,
    /// What `ibv_alloc_td` answers to a `comp_mask`.
    pub(crate) thread_domain_refusal: Errno,
    /// What a parent domain's allocator is told that the memory is for.
    pub(crate) resources: Resources,
}

/// The `resource_type` of each kind of queue memory.
pub(crate) struct Resources {
    pub(crate) completion_queue: u64,
    pub(crate) work_queue: u64,
    pub(crate) queue_pair: u64,
    pub(crate) doorbell: u64,
}

/// Queue pairs with rings of their own.
pub(crate) struct QueuePairRules {
    /// `max_qp_wr`: the most work requests of a queue, of work queues as well.
    pub(crate) max_requests: u32,
    /// `ibv_qp_init_attr_ex.comp_mask`.
    pub(crate) attributes: Known,
    /// `create_flags` of a raw packet queue pair.
    pub(crate) create_flags: Known,
    /// `create_flags` of a datagram queue pair.
    pub(crate) datagram_flags: Known,
    /// `send_ops_flags` of a raw packet queue pair.
    pub(crate) send_operations: u64,
    /// `send_ops_flags` of a datagram queue pair.
    pub(crate) datagram_send_operations: u64,
    /// `tso_caps.max_tso`: bytes of a stream that one request can have segmented.
    pub(crate) max_tso_bytes: u32,
    /// Whether a send queue can be drained (the state SQD).
    pub(crate) drains: bool,
    /// `packet_pacing_caps.qp_rate_limit_max`, in kilobits per second; 0 where there are no rates.
    pub(crate) max_rate_kbps: u32,
}

/// Work queues.
pub(crate) struct WorkQueueRules {
    /// `ibv_wq_init_attr.create_flags`.
    pub(crate) create_flags: Known,
    /// `ibv_wq_attr.flags_mask`.
    pub(crate) modify_flags: Known,
    /// Whether DELAY_DROP is EPERM for a caller without CAP_SYS_RAWIO, whatever the device can do.
    pub(crate) delay_drop_needs_raw_io: bool,
    /// Whether a queue can go from RESET to ERR.
    pub(crate) fails_from_reset: bool,
}

/// Which hash fields can stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashCombinations {
    /// Any.
    Any,
    /// One family's addresses and one transport's ports, or the SPI; otherwise EINVAL.
    OneOfEach,
    /// Source only with destination, ports only with addresses; otherwise EOPNOTSUPP.
    WholePairs,
}

/// Receive-side scaling.
pub(crate) struct RssRules {
    /// `rx_hash_fields_mask`: the fields that can be hashed.
    pub(crate) fields: u64,
    /// Those of them that cannot be had by the plain verb.
    pub(crate) refused_fields: u64,
    pub(crate) combinations: HashCombinations,
    /// What another hash function is answered with, and another length of the key.
    pub(crate) function_refusal: Errno,
    pub(crate) key_length_refusal: Errno,
    /// The most entries of an indirection table, and what more are answered with.
    pub(crate) max_entries: u32,
    /// Whether the work queues of a table must have consecutive numbers.
    pub(crate) consecutive: bool,
    /// What an RSS queue pair answers to `create_flags`, to `send_ops_flags` and to a send queue. (The library forgets a
    /// `send_cq` if there is no `max_send_wr`: libibverbs/cmd_qp.c, `ibv_icmd_create_qp`.)
    pub(crate) create_flags_refusal: Errno,
    pub(crate) send_operations_refusal: Errno,
    pub(crate) send_queue_refusal: Option<Errno>,
    /// Whether RSS queue pairs have a number; otherwise it is 0.
    pub(crate) numbered: bool,
    /// Whether RSS queue pairs have states of their own.
    pub(crate) states: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for personality in Personality::ALL {
            assert_eq!(personality.to_string().parse(), Ok(personality));
            assert_eq!(serde_json::to_value(personality).unwrap(), personality.name());
        }
        let unknown = "mlx6".parse::<Personality>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "\"mlx6\" is no personality: expected \"ideal\", \"mlx5\" or \"mlx4\""
        );
    }

    #[test]
    fn no_personality_promises_more_than_the_device_can_do() {
        for rules in Personality::ALL.map(Personality::rules) {
            assert!((1..=crate::limits::MAX_CQE).contains(&rules.completion.max_entries));
            assert!(!rules.completion.rounds_up || (rules.completion.max_entries + 1).is_power_of_two());
            assert_eq!(rules.completion.fields.bits & !ideal::RULES.completion.fields.bits, 0);
            assert_eq!(rules.rss.fields & !ideal::RULES.rss.fields, 0);
            assert!((rules.rss.max_entries as usize) <= crate::rss::MAX_INDIRECTION_ENTRIES);
            assert!(rules.completion.vectors > 0 && rules.clock.kilohertz > 0);
        }
    }

    #[test]
    fn kinds_of_queue_memory_can_be_told_apart() {
        for rules in Personality::ALL.map(Personality::rules) {
            let Resources { completion_queue, work_queue, queue_pair, doorbell } = rules.domain.resources;
            let mut kinds = vec![completion_queue, work_queue, queue_pair, doorbell];
            assert!(kinds.iter().all(|kind| kind >> 32 == doorbell >> 32));
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(kinds.len(), 4);
        }
    }
}
