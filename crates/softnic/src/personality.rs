//! What the device refuses and how it orders flows: one table of rules per personality.
//!
//! Verbs compare with `nic.rules()`; nothing else in this crate distinguishes personalities. Limits, matching
//! and flows come from a device model (`device_model`), which may be a file; the attributes of queues and
//! domains are rows of `ideal`, `mlx5` and `mlx4`, each with the source of the fact, of which a model names
//! one. Whatever no row forbids is possible.

mod ideal;
mod mlx4;
mod mlx5;

use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};

use device_model::{BaseModel, DeviceModel, Emulation, Feature, Limit, LoadError};
use flow_table::{MAX_DONT_TRAP, MAX_FLOWS, MAX_SHAPES, TableRules};
use ibverbs_sys::{
    IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_FLAGS_EGRESS, IBV_RX_HASH_INNER, IBV_RX_HASH_IPSEC_SPI,
};

use crate::errno::{Verb, VerbErrno, known_bits};
use crate::limits::{MAX_COUNTERS, MAX_QPS, MAX_SPECS, MAX_TABLES, MAX_WR};
use crate::rss::MAX_INDIRECTION_ENTRIES;

/// The device that the soft NIC imitates: what it refuses, and how it orders flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Personality {
    /// Supports the whole verbs API.
    #[default]
    Ideal,
    /// Refuses what NVIDIA ConnectX-4 and later refuse, with the same errno.
    Mlx5,
    /// Refuses what Mellanox ConnectX-3 refuses, with the same errno.
    Mlx4,
    /// The personality of another device model.
    Model(ModelPersonality),
}

/// The personality of a device model that is not built in. It is kept as long as the process: a process names
/// few.
#[derive(Clone, Copy)]
pub struct ModelPersonality(&'static KeptModel);

struct KeptModel {
    name: String,
    model: DeviceModel,
    rules: Rules,
}

impl ModelPersonality {
    /// Returns the personality of a name and model; equal ones are one object.
    fn of(name: &str, model: DeviceModel) -> Self {
        static KNOWN: Mutex<Vec<ModelPersonality>> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known.iter().find(|one| one.0.name == name && one.0.model == model) {
            return *same;
        }
        let rules = Rules::new(&model, objects(model.personality));
        let new = Self(Box::leak(Box::new(KeptModel { name: name.to_owned(), model, rules })));
        known.push(new);
        new
    }
}

impl PartialEq for ModelPersonality {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for ModelPersonality {}

impl fmt::Debug for ModelPersonality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

/// The attributes of queues and domains.
fn objects(base: BaseModel) -> &'static ObjectRules {
    match base {
        BaseModel::Ideal => &ideal::OBJECTS,
        BaseModel::Mlx5 => &mlx5::OBJECTS,
        BaseModel::Mlx4 => &mlx4::OBJECTS,
    }
}

impl Personality {
    /// The personalities with a table of their own, in the order in which they are listed to an operator.
    pub const ALL: [Self; 3] = [Self::Ideal, Self::Mlx5, Self::Mlx4];

    /// The personality of a device model: limits, matching and flows are those of the model, the attributes
    /// of queues and domains those of the personality that it names.
    #[must_use]
    pub fn of(model: DeviceModel) -> Self {
        Self::Model(ModelPersonality::of(&model.name.clone(), model))
    }

    /// The word for it in settings: a name, or the path of a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ideal => "ideal",
            Self::Mlx5 => "mlx5",
            Self::Mlx4 => "mlx4",
            Self::Model(imitated) => &imitated.0.name,
        }
    }

    /// The device model. The software NIC holds no more than [`DeviceModel::in_software`].
    #[must_use]
    pub fn model(self) -> DeviceModel {
        match self {
            Self::Ideal => DeviceModel::ideal(),
            Self::Mlx5 => DeviceModel::mlx5(),
            Self::Mlx4 => DeviceModel::mlx4(),
            Self::Model(imitated) => imitated.0.model.clone(),
        }
    }

    /// The attributes that the device refuses or changes when objects are made.
    #[must_use]
    pub fn object_rules(self) -> &'static ObjectRules {
        self.rules().objects
    }

    /// The table of the personality, made when it is first asked for.
    pub(crate) fn rules(self) -> &'static Rules {
        static RULES: LazyLock<[Rules; 3]> = LazyLock::new(|| {
            Personality::ALL.map(|own| {
                let model = own.model();
                Rules::new(&model, objects(model.personality))
            })
        });
        match self {
            Self::Ideal => &RULES[0],
            Self::Mlx5 => &RULES[1],
            Self::Mlx4 => &RULES[2],
            Self::Model(imitated) => &imitated.0.rules,
        }
    }
}

impl fmt::Display for Personality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no personality.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownPersonality {
    /// The text is neither a name nor a file.
    #[error(
        "{found:?} is no personality: expected {}, or the file of a device model, like ./nic.toml",
        DeviceModel::NAMES.map(|name| format!("{name:?}")).join(", ")
    )]
    Name {
        /// The word.
        found: String,
    },
    /// The file is no device model.
    #[error("{}", whole(.0))]
    Model(LoadError),
}

/// With its cause.
fn whole(error: &LoadError) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

impl FromStr for Personality {
    type Err = UnknownPersonality;

    /// A name, or the path of a device model, as [`DeviceModel::named_or_file`] reads it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(own) = Self::ALL.into_iter().find(|personality| personality.name() == text) {
            return Ok(own);
        }
        match DeviceModel::named_or_file(text) {
            Ok(model) => Ok(Self::Model(ModelPersonality::of(text, model))),
            Err(LoadError::UnknownName { name }) => Err(UnknownPersonality::Name { found: name }),
            Err(error) => Err(UnknownPersonality::Model(error)),
        }
    }
}

/// A personality's table, a struct of rows per family of verbs.
pub(crate) struct Rules {
    pub(crate) objects: &'static ObjectRules,
    /// `max_qp_wr`: the most work requests of a queue, of work queues as well.
    pub(crate) max_requests: u32,
    pub(crate) most: ObjectLimits,
    pub(crate) hash: HashRules,
    pub(crate) flow: FlowRules,
}

impl Rules {
    fn new(model: &DeviceModel, objects: &'static ObjectRules) -> Self {
        Self {
            objects,
            max_requests: model.max_receives.unwrap_or(MAX_WR).min(MAX_WR),
            most: ObjectLimits {
                queues: at_most(model.max_queues, MAX_QPS),
                tables: at_most(model.max_tables, MAX_TABLES),
                counters: at_most(model.max_counters, MAX_COUNTERS),
            },
            hash: HashRules::new(model),
            flow: FlowRules::new(model),
        }
    }
}

/// The most objects of a kind.
#[derive(Clone, Copy)]
pub(crate) struct ObjectLimits {
    pub(crate) queues: usize,
    pub(crate) tables: usize,
    pub(crate) counters: usize,
}

/// The limit of a model, as far as this device has room.
fn at_most(limit: Option<u32>, room: usize) -> usize {
    limit.map_or(room, |limit| room.min(limit as usize))
}

/// The errno beyond each limit.
#[derive(Clone)]
pub(crate) struct LimitErrnos(Vec<(Limit, VerbErrno)>);

impl LimitErrnos {
    /// EINVAL where the model has no row.
    pub(crate) fn of(&self, limit: Limit) -> VerbErrno {
        let row = self.0.iter().find(|(known, _)| *known == limit);
        row.map_or(crate::errno::EINVAL, |(_, errno)| *errno)
    }
}

/// The attributes that the device model does not have: clocks, queues, domains and queue pairs.
pub struct ObjectRules {
    /// The clock.
    pub clock: ClockRules,
    /// Completion queues.
    pub completion: CompletionRules,
    /// Domains.
    pub domain: DomainRules,
    /// Queue pairs with rings of their own.
    pub queue_pair: QueuePairRules,
    /// Work queues.
    pub work_queue: WorkQueueRules,
    /// RSS queue pairs.
    pub rss: RssRules,
}

/// The clock behind raw completion timestamps.
#[derive(Clone, Copy, Debug)]
pub struct ClockRules {
    /// `hca_core_clock`: ticks per millisecond.
    pub kilohertz: u64,
    /// `completion_timestamp_mask`: the bits that a raw timestamp has.
    pub mask: u64,
}

/// Bits that an op accepts, and the errno for others.
pub struct KnownBits {
    bits: u32,
    refusal: VerbErrno,
}

impl KnownBits {
    /// Refuses other bits.
    ///
    /// # Errors
    /// The errno, for other bits.
    pub fn check(&self, bits: u32) -> Verb<()> {
        known_bits(bits, self.bits, self.refusal)
    }

    /// Refuses the attribute itself where no bit is accepted.
    pub(crate) fn check_any(&self) -> Verb<()> {
        if self.bits == 0 { Err(self.refusal) } else { Ok(()) }
    }
}

/// Completion queues.
pub struct CompletionRules {
    /// `ibv_cq_init_attr_ex.comp_mask`.
    pub attributes: KnownBits,
    /// `ibv_cq_init_attr_ex.flags`.
    pub flags: KnownBits,
    /// `ibv_cq_init_attr_ex.wc_flags`.
    fields: KnownBits,
    /// Two sets of `wc_flags` that cannot be had together.
    exclusive_fields: Option<(u32, u32)>,
    /// The most entries a queue can have.
    pub max_entries: u32,
    /// Whether queues get one entry less than a power of two, as where one slot distinguishes full from
    /// empty.
    pub rounds_up: bool,
    /// Whether a queue holds one completion more than it reports: all of its power of two.
    pub has_one_spare_entry: bool,
    /// Whether fields that raw packets do not need are words of others, as in mlx5's completions: for a
    /// packet the queue's number is its flow tag, and the vendor's error is a byte of the timestamp.
    pub overlays_fields: bool,
    /// Whether the flags of packets of work queues have the checksums; those of queue pairs always have.
    pub(crate) checksums_of_work_queues: bool,
    /// Whether a queue that is armed raises an event for completions that were not polled before.
    pub arming_counts_unpolled: bool,
    /// Whether `parent_domain` may also be a plain protection domain.
    pub plain_domain: bool,
    /// `ibv_context.num_comp_vectors`.
    pub vectors: u32,
    /// `cq_mod_caps`: the most completions per event.
    pub(crate) max_moderation_count: u16,
    /// The most microseconds until an event.
    pub(crate) max_moderation_period_us: u16,
}

impl CompletionRules {
    /// The fields that `wc_flags` ask for.
    ///
    /// # Errors
    /// The errno of the device for fields that it does not have, or not together.
    pub fn check_fields(&self, wc_flags: u64) -> Verb<u32> {
        let fields = u32::try_from(wc_flags).map_err(|_| self.fields.refusal)?;
        self.fields.check(fields)?;
        if self.exclusive_fields.is_some_and(|(some, others)| fields & some != 0 && fields & others != 0) {
            return Err(self.fields.refusal);
        }
        Ok(fields)
    }
}

/// Protection, thread and parent domains, and the memory of their queues.
pub struct DomainRules {
    /// Whether there are thread and parent domains.
    pub parent_domains: bool,
    /// The errno of `ibv_alloc_td` for a `comp_mask`.
    pub thread_domain_refusal: VerbErrno,
    /// The failure when that allocator refuses memory for a completion queue or a queue pair.
    pub allocator_refusal: VerbErrno,
    /// The purpose of the memory, which a parent domain's allocator receives.
    pub resources: Resources,
}

/// The `resource_type` of each kind of queue memory.
pub struct Resources {
    /// The slots of a completion queue.
    pub completion_queue: u64,
    /// The slots of a work queue.
    pub work_queue: u64,
    /// The slots of either side of a queue pair.
    pub queue_pair: u64,
    /// The indices of one queue.
    pub doorbell: u64,
}

/// Queue pairs with rings of their own.
pub struct QueuePairRules {
    /// `ibv_qp_init_attr_ex.comp_mask`.
    pub attributes: KnownBits,
    /// `create_flags` of a raw packet queue pair.
    pub create_flags: KnownBits,
    /// `create_flags` of a datagram queue pair.
    pub datagram_flags: KnownBits,
    /// `send_ops_flags` of a raw packet queue pair.
    pub send_operations: u64,
    /// `send_ops_flags` of a datagram queue pair.
    pub datagram_send_operations: u64,
    /// `tso_caps.max_tso`: bytes of a stream that one request can have segmented.
    pub max_tso_bytes: u32,
    /// Whether a send queue can be drained (the state SQD).
    pub(crate) drains: bool,
    /// `packet_pacing_caps.qp_rate_limit_max`, in kilobits per second; 0 where there are no rates.
    pub(crate) max_rate_kbps: u32,
}

/// Work queues.
pub struct WorkQueueRules {
    /// `ibv_wq_init_attr.create_flags`.
    pub create_flags: KnownBits,
    /// `ibv_wq_attr.flags_mask`.
    pub(crate) modify_flags: KnownBits,
    /// Whether DELAY_DROP is EPERM for a caller without CAP_SYS_RAWIO, whatever the device can do.
    pub(crate) delay_drop_needs_raw_io: bool,
    /// Whether a queue can go from RESET to ERR.
    pub(crate) fails_from_reset: bool,
}

/// Which hash fields can be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashCombinations {
    /// Any.
    Any,
    /// One family's addresses and one transport's ports, or the SPI; otherwise EINVAL.
    OneOfEach,
    /// Source only with destination, ports only with addresses; otherwise EOPNOTSUPP.
    WholePairs,
}

/// RSS queue pairs.
pub struct RssRules {
    /// The answer to another hash function.
    pub(crate) function_refusal: VerbErrno,
    /// The answer to another length of the key.
    pub(crate) key_length_refusal: VerbErrno,
    /// The answer of an RSS queue pair to `create_flags`.
    pub create_flags_refusal: VerbErrno,
    /// The answer to `send_ops_flags`.
    pub send_operations_refusal: VerbErrno,
    /// The answer to a send queue, if it is refused. (The library ignores a `send_cq` if there is no
    /// `max_send_wr`: libibverbs/cmd_qp.c, `ibv_icmd_create_qp`.)
    pub send_queue_refusal: Option<VerbErrno>,
    /// Whether RSS queue pairs have a number; otherwise it is 0.
    pub numbered: bool,
    /// Whether RSS queue pairs have states of their own.
    pub(crate) states: bool,
}

/// Hash fields and indirection tables.
pub(crate) struct HashRules {
    /// `rx_hash_fields_mask`: the fields that can be hashed.
    pub(crate) fields: u64,
    /// The fields of these that the plain verb refuses, EOPNOTSUPP.
    pub(crate) refused_fields: u64,
    pub(crate) combinations: HashCombinations,
    /// The most entries of an indirection table.
    pub(crate) max_entries: u32,
    /// Whether the work queues of a table must have consecutive numbers.
    pub(crate) consecutive: bool,
}

impl HashRules {
    /// The addresses and ports of IPv4, IPv6, TCP and UDP (`enum ibv_rx_hash_fields`), which every device
    /// hashes.
    const ADDRESSES_AND_PORTS: u64 = 0xff;

    fn new(model: &DeviceModel) -> Self {
        let inner = u64::from(IBV_RX_HASH_INNER);
        let mut fields = Self::ADDRESSES_AND_PORTS;
        if model.allows(Feature::HashSpi) {
            fields |= u64::from(IBV_RX_HASH_IPSEC_SPI);
        }
        if model.allows(Feature::HashInner) || model.emulation.reports_inner_hash {
            fields |= inner;
        }
        let most = MAX_INDIRECTION_ENTRIES as u32;
        Self {
            fields,
            refused_fields: if model.allows(Feature::HashInner) { 0 } else { inner },
            combinations: match model {
                DeviceModel { emulation: Emulation { hashes_any_fields: true, .. }, .. } => {
                    HashCombinations::Any
                }
                DeviceModel { hash_field_pairs: true, .. } => HashCombinations::WholePairs,
                DeviceModel { hash_field_exclusive: false, .. } => HashCombinations::Any,
                _ => HashCombinations::OneOfEach,
            },
            max_entries: if model.emulation.firmware_sets_max_table {
                most
            } else {
                model.max_table.min(most)
            },
            consecutive: model.table_consecutive,
        }
    }
}

/// Flows.
pub(crate) struct FlowRules {
    /// The last priority there is, and the answer to a later one.
    pub(crate) max_priority: u16,
    pub(crate) priority_refusal: VerbErrno,
    /// `ibv_flow_attr.flags`.
    pub(crate) flags: KnownBits,
    /// The answers to an unknown type and to an unknown action.
    pub(crate) type_refusal: VerbErrno,
    pub(crate) action_refusal: VerbErrno,
    /// The answers to DONT_TRAP with SNIFFER and with EGRESS, if they are refused.
    pub(crate) dont_trap_sniffer_refusal: Option<VerbErrno>,
    pub(crate) dont_trap_egress_refusal: Option<VerbErrno>,
    /// Whether NORMAL flows for multicast only come after all others of their kind, whatever their priority.
    pub(crate) multicast_comes_last: bool,
    /// The last tag there is, else EINVAL.
    pub(crate) max_tag: u32,
    /// The most specs of a flow.
    pub(crate) max_specs: u8,
    pub(crate) limits: LimitErrnos,
    pub(crate) table: TableRules,
    /// The nanoseconds that a received frame takes to pass a group of flows.
    pub(crate) ns_per_group: u32,
    /// Further properties.
    pub(crate) emulation: Emulation,
    /// The refused features, each with its errno.
    refusals: Vec<(Feature, VerbErrno)>,
    /// The features that are ignored without an error.
    ignored: Vec<Feature>,
}

impl FlowRules {
    fn new(model: &DeviceModel) -> Self {
        let emulation = &model.emulation;
        let (ignored, refused): (Vec<_>, Vec<_>) =
            model.refusals.iter().partition(|refusal| refusal.errno == device_model::Errno::Silent);
        let ignored: Vec<Feature> = ignored.iter().map(|refusal| refusal.feature).collect();
        let egress = if model.allows(Feature::Egress) { IBV_FLOW_ATTR_FLAGS_EGRESS } else { 0 };
        Self {
            max_priority: u16::try_from(model.priorities.saturating_sub(1)).unwrap_or(u16::MAX),
            priority_refusal: model.errno(device_model::Limit::Priorities).into(),
            flags: KnownBits {
                bits: IBV_FLOW_ATTR_FLAGS_DONT_TRAP | egress,
                refusal: emulation.unknown_flag.into(),
            },
            type_refusal: emulation.unknown_type.into(),
            action_refusal: emulation.unknown_action.into(),
            dont_trap_sniffer_refusal: emulation.dont_trap_with_sniffer.map(VerbErrno::from),
            dont_trap_egress_refusal: emulation.dont_trap_with_egress.map(VerbErrno::from),
            multicast_comes_last: model.multicast_ignores_priority,
            max_tag: u32::MAX.checked_shr(u32::BITS - model.tag_bits.min(u32::BITS)).unwrap_or(0),
            max_specs: u8::try_from(model.max_specs).unwrap_or(MAX_SPECS).min(MAX_SPECS),
            limits: LimitErrnos(model.limits.iter().map(|row| (row.limit, row.errno.into())).collect()),
            table: TableRules {
                one_tag_per_match: emulation.one_tag_per_match,
                one_copy_per_priority: emulation.one_copy_per_priority,
                all_default_is_two: emulation.all_default_is_two,
                groups: model.flow_table(),
                max_flows: at_most(model.max_flows, MAX_FLOWS),
                max_shapes: at_most(model.max_shapes, MAX_SHAPES),
                max_copies: at_most(model.max_copies, MAX_DONT_TRAP),
            },
            ns_per_group: model.ns_per_group.unwrap_or(0),
            emulation: emulation.clone(),
            refusals: refused.iter().map(|refusal| (refusal.feature, refusal.errno.into())).collect(),
            ignored,
        }
    }

    /// Whether the device refuses a field.
    pub(crate) fn refuses(&self, feature: Option<Feature>) -> bool {
        feature.is_some_and(|feature| self.check(feature).is_err())
    }

    /// Whether the device ignores a field.
    pub(crate) fn ignores(&self, feature: Option<Feature>) -> bool {
        feature.is_some_and(|feature| self.ignored.contains(&feature))
    }

    /// The errno with which the device refuses to match or do something.
    pub(crate) fn check(&self, feature: Feature) -> Verb<()> {
        let row = self.refusals.iter().find(|(refused, _)| *refused == feature);
        row.map_or(Ok(()), |(_, errno)| Err(*errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for personality in Personality::ALL {
            assert_eq!(personality.to_string().parse::<Personality>().unwrap(), personality);
        }
        let unknown = "mlx6".parse::<Personality>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "\"mlx6\" is no personality: expected \"ideal\", \"mlx5\", \"mlx4\", \"mana\", \"bnxt_re\", \"conservative\", \
             or the file of a device model, like ./nic.toml"
        );
    }

    #[test]
    fn a_file_is_a_personality_and_its_mistakes_have_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic.toml");
        let name = path.to_str().unwrap();
        let missing = name.parse::<Personality>().unwrap_err().to_string();
        assert!(missing.contains("nic.toml: cannot be read: No such file"), "{missing}");
        let text = "name = \"nic\"\npersonality = \"mlx5\"\npriorities = 8\nmax_specs = 4\nmax_table = 64\ntag_bits = 0\n";
        std::fs::write(&path, text).unwrap();
        let personality: Personality = name.parse().unwrap();
        assert_eq!((personality.name(), personality.model().name.as_str()), (name, "nic"));
        assert_eq!(personality, name.parse().unwrap(), "read twice, kept once");
        let rules = personality.rules();
        assert_eq!((rules.flow.max_priority, rules.flow.max_specs, rules.hash.max_entries), (7, 4, 64));
        assert!(
            rules.objects.completion.overlays_fields && rules.flow.emulation.one_tag_per_match,
            "as mlx5"
        );
        std::fs::write(&path, text.replace("= 8", "= 1")).unwrap();
        let wrong = name.parse::<Personality>().unwrap_err().to_string();
        assert!(wrong.contains("nic.toml:3: priorities: 1 is outside 2..=65536 (hint: "), "{wrong}");
    }

    #[test]
    fn no_personality_promises_more_than_the_device_can_do() {
        let ideal = Personality::Ideal.rules();
        for rules in Personality::ALL.map(Personality::rules) {
            assert!((1..=crate::limits::MAX_CQE).contains(&rules.objects.completion.max_entries));
            assert!(
                !rules.objects.completion.rounds_up
                    || (rules.objects.completion.max_entries + 1).is_power_of_two()
            );
            assert_eq!(rules.objects.completion.fields.bits & !ideal.objects.completion.fields.bits, 0);
            assert_eq!(rules.hash.fields & !ideal.hash.fields, 0);
            assert!((1..=MAX_INDIRECTION_ENTRIES as u32).contains(&rules.hash.max_entries));
            assert!(rules.objects.completion.vectors > 0 && rules.objects.clock.kilohertz > 0);
        }
    }

    #[test]
    fn kinds_of_queue_memory_are_distinct() {
        for rules in Personality::ALL.map(Personality::rules) {
            let Resources { completion_queue, work_queue, queue_pair, doorbell } =
                rules.objects.domain.resources;
            let mut kinds = vec![completion_queue, work_queue, queue_pair, doorbell];
            assert!(kinds.iter().all(|kind| kind >> 32 == doorbell >> 32));
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(kinds.len(), 4);
        }
    }
}
