//! From the flows of a program to filters.
//!
//! The compiler has given flows that overlap and differ in their destinations different priorities, and has
//! marked the rules that a worker would have to complete. Where the NIC cannot order filters, such overlaps
//! are refused here. Each flow becomes one filter, or several where the NIC compares a field only whole; a
//! rule that no filter can carry out is refused with the reason.

use std::collections::{BTreeMap, HashMap, hash_map};

use packet::Field;
use packet::cube::{Cube, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, PROTOCOL};
use packet::{Header, IpProtocol};
use program::{Flow, FlowAction, FlowKind, Program, RuleId, UndecidedKey};

use crate::filter::{FieldBits, FilterKind, FilterMatch, SharedMasks};
use crate::model::{FilterModel, FilterOrder, MaskRule};
use crate::nic::FilterRoom;
use crate::wire_format::has_place;

/// The most filters that one flow becomes.
const MAX_FILTERS_OF_FLOW: u128 = 256;
/// The most filters of a policy where the size of the table is not known.
pub(crate) const MAX_FILTERS: usize = 4096;

/// The destination of the packets of a wanted filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Nowhere.
    Drop,
    /// A receive queue.
    Queue(u32),
    /// The queues of a group, by its index in [`WantedFilters::groups`]: an RSS context.
    Group(usize),
}

/// A filter that a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedFilter {
    /// The rule of the policy.
    pub rule: RuleId,
    /// Filters that match a common packet and differ in their targets have different ranks; the lowest wins.
    /// Where the NIC has no order there are no such filters.
    pub rank: u16,
    /// The packets.
    pub matches: FilterMatch,
    /// The destination.
    pub target: Target,
}

/// The filters that a program needs, those of the lowest rank first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedFilters {
    /// The filters.
    pub filters: Vec<WantedFilter>,
    /// The queues of each group of several, in the order of the policy.
    pub groups: Vec<Vec<u32>>,
}

impl WantedFilters {
    /// The number of filters of a rule.
    #[must_use]
    pub fn of_rule(&self, rule: RuleId) -> usize {
        self.filters.iter().filter(|wanted| wanted.rule == rule).count()
    }
}

/// Why a program cannot be carved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarveRefusal {
    /// The refusals by rule, each rule at most once; the number of rules stands for the default.
    pub rules: BTreeMap<RuleId, RuleRefusal>,
    /// The most filters that the program may have, if it needs more.
    pub too_many: Option<usize>,
}

/// Why the NIC cannot apply a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleRefusal {
    /// A worker would have to compare packets.
    NeedsWorker {
        /// The keys that the NIC does not decide, with their reasons.
        undecided: Vec<UndecidedKey>,
    },
    /// An earlier rule has another destination for some of its packets, and the NIC cannot order filters.
    Overlap {
        /// The earlier rule.
        earlier: RuleId,
    },
    /// The rule would match every packet.
    Everything,
    /// The rule copies packets or is about sent ones.
    NotSteering,
    /// The NIC has no filters of this kind.
    Kind(FilterKind),
    /// The NIC does not compare the field in filters of this kind.
    Field {
        /// The field.
        field: Field,
        /// The kind.
        kind: FilterKind,
    },
    /// The rule has a condition that no filter has.
    NoField {
        /// The kind.
        kind: FilterKind,
    },
    /// The NIC does not compare the field under this mask, and whole values would be too many filters.
    Mask {
        /// The field.
        field: Field,
        /// The masks that are possible.
        rule: MaskRule,
        /// How many filters the flow would need.
        filters: u128,
    },
    /// All filters must have the same masks, and an earlier rule has others.
    OtherMasks {
        /// The earlier rule.
        first: RuleId,
    },
    /// The group has several queues, and the NIC has no RSS contexts.
    NoContexts,
    /// The group has more queues than an RSS context has entries.
    SmallContext {
        /// The queues.
        queues: usize,
        /// The entries.
        entries: u32,
    },
    /// The interface has no such queue.
    NoQueue {
        /// The queue.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
}

impl RuleRefusal {
    /// The reason and the remedy, after the name of the rule.
    #[must_use]
    pub fn explain(&self, program: &Program) -> (String, &'static str) {
        let name = |rule: &RuleId| program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        match self {
            Self::NeedsWorker { undecided } if undecided.is_empty() => (
                "a worker would have to compare its packets with other rules".to_owned(),
                "let rules not overlap, or use a group with workers in a policy of its own",
            ),
            Self::NeedsWorker { undecided } => {
                let keys = undecided.iter().map(|key| format!("`{}`: {}", key.key, key.why.words()));
                let keys: Vec<String> = keys.collect();
                (
                    format!("a worker would have to compare its packets ({})", keys.join("; ")),
                    "leave these keys out, let rules not overlap, or use a group with workers in a policy of its own",
                )
            }
            Self::Overlap { earlier } => (
                format!(
                    "it overlaps the rule `{}`, which has another destination, and the NIC cannot order filters",
                    name(earlier)
                ),
                "let the rules match different packets",
            ),
            Self::Everything => (
                "a filter must compare at least one field".to_owned(),
                "leave the packets that no rule is about to the kernel: default = \"kernel\"",
            ),
            Self::NotSteering => (
                "filters neither copy packets nor match sent ones".to_owned(),
                "use { steer = \"GROUP\" }, \"drop\" or \"kernel\" for received packets",
            ),
            Self::Kind(kind) => (
                format!("the NIC has no filters of kind {}", kind.name()),
                "write a protocol, an address family or ports that the NIC has filters for",
            ),
            Self::Field { field, kind } => (
                format!("the NIC does not compare `{}` in filters of kind {}", field.name(), kind.name()),
                "leave the key out",
            ),
            Self::NoField { kind } => (
                format!("a filter of kind {} has no field for one of its conditions", kind.name()),
                "leave the condition out",
            ),
            Self::Mask { field, rule, filters } => (
                format!(
                    "the NIC compares {} of `{}`, which takes {filters} filters, and the limit is {MAX_FILTERS_OF_FLOW}",
                    rule.text(),
                    field.name()
                ),
                "write fewer values, or leave the key out",
            ),
            Self::OtherMasks { first } => (
                format!(
                    "all filters of the NIC have the same masks, and the rule `{}` has others",
                    name(first)
                ),
                "compare the same fields in all rules",
            ),
            Self::NoContexts => (
                "its group has several queues, and the driver has no RSS contexts".to_owned(),
                "name one queue, or write a rule and a group for each queue",
            ),
            Self::SmallContext { queues, entries } => (
                format!("its group has {queues} queues, and an RSS context has {entries} entries"),
                "name fewer queues",
            ),
            Self::NoQueue { queue, queues } => (
                format!("the interface has no queue {queue}: it has {queues}, from 0"),
                "name another queue, or add queues: `ethtool -L`",
            ),
        }
    }
}

/// The filters of a program, which was compiled for [`FilterModel::device`] with the same room, and with
/// receive queues as workers.
///
/// # Errors
/// The reason for each rule that the NIC cannot apply.
pub fn carve(
    program: &Program,
    model: &FilterModel,
    room: FilterRoom,
) -> Result<WantedFilters, CarveRefusal> {
    let mut wanted = WantedFilters::default();
    let mut refused = CarveRefusal::default();
    for (index, rule) in program.rules.iter().enumerate() {
        if matches!(rule.placement, program::Placement::Hybrid { .. }) {
            let undecided = rule.undecided.clone();
            refused.rules.insert(RuleId::of(index), RuleRefusal::NeedsWorker { undecided });
        }
    }
    let most = model.device(room).flows_per_program().unwrap_or(MAX_FILTERS);
    let mut carver = Carver { program, model, room, masks: None, known: HashMap::new() };
    for flow in &program.flows {
        if refused.rules.contains_key(&flow.rule) {
            continue;
        }
        if let Err(why) = carver.add(flow, &mut wanted) {
            refused.rules.insert(flow.rule, why);
        }
        // A flow becomes a bounded number of filters, so time and memory are bounded with the table.
        if wanted.filters.len() > most {
            refused.too_many = Some(most);
            return Err(refused);
        }
    }
    if model.order == FilterOrder::None {
        for (rule, why) in unordered(&wanted) {
            refused.rules.entry(rule).or_insert(why);
        }
    }
    if refused.rules.is_empty() { Ok(wanted) } else { Err(refused) }
}

/// The rules with a filter that only an order could tell from one of an earlier rule.
fn unordered(wanted: &WantedFilters) -> Vec<(RuleId, RuleRefusal)> {
    let cubes: Vec<Option<Cube>> = wanted.filters.iter().map(|wanted| wanted.matches.cube()).collect();
    let mut found = Vec::new();
    for (at, later) in wanted.filters.iter().enumerate() {
        let overlaps = |(earlier, cube): &(&WantedFilter, &Option<Cube>)| {
            earlier.target != later.target
                && cube
                    .as_ref()
                    .zip(cubes[at].as_ref())
                    .is_some_and(|(earlier, later)| earlier.overlaps(later))
        };
        if let Some((earlier, _)) = wanted.filters[..at].iter().zip(&cubes).find(overlaps) {
            found.push((later.rule, RuleRefusal::Overlap { earlier: earlier.rule }));
        }
    }
    found
}

/// The state of a translation.
struct Carver<'p> {
    program: &'p Program,
    model: &'p FilterModel,
    room: FilterRoom,
    /// The masks of the first filter and its rule, where all must have the same.
    masks: Option<(SharedMasks, RuleId)>,
    /// The index of the filter with each match: of equal matches the first decides.
    known: HashMap<FilterMatch, usize>,
}

impl Carver<'_> {
    fn add(&mut self, flow: &Flow, wanted: &mut WantedFilters) -> Result<(), RuleRefusal> {
        if flow.kind != FlowKind::Normal {
            return Err(RuleRefusal::NotSteering);
        }
        let target = self.target(flow, wanted)?;
        for matches in matches_of(flow, self.model)? {
            if self.model.one_mask {
                let masks = matches.shared_masks();
                match &self.masks {
                    Some((first, rule)) if *first != masks => {
                        return Err(RuleRefusal::OtherMasks { first: *rule });
                    }
                    Some(_) => {}
                    None => self.masks = Some((masks, flow.rule)),
                }
            }
            match self.known.entry(matches.clone()) {
                hash_map::Entry::Vacant(entry) => {
                    entry.insert(wanted.filters.len());
                    let (rule, rank) = (flow.rule, flow.priority);
                    wanted.filters.push(WantedFilter { rule, rank, matches, target });
                }
                hash_map::Entry::Occupied(entry) => {
                    let first = &wanted.filters[*entry.get()];
                    if first.target != target && self.model.order == FilterOrder::None {
                        return Err(RuleRefusal::Overlap { earlier: first.rule });
                    }
                }
            }
        }
        Ok(())
    }

    fn target(&self, flow: &Flow, wanted: &mut WantedFilters) -> Result<Target, RuleRefusal> {
        let queue = match flow.action {
            FlowAction::Drop => return Ok(Target::Drop),
            FlowAction::Pass => return Err(RuleRefusal::NotSteering),
            FlowAction::Steer { queue, class } => {
                // Whoever takes packets from the queue does not know of rules.
                if self.program.class(class).is_none_or(|class| !class.is_exact()) {
                    return Err(RuleRefusal::NeedsWorker { undecided: Vec::new() });
                }
                queue
            }
        };
        let group = self.program.queues.get(queue.index()).map(|queue| queue.group.index());
        let group = group.and_then(|group| self.program.groups.get(group));
        let mut numbers: Vec<u32> =
            group.iter().flat_map(|group| &group.table).map(|queue| queue.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let queues = self.room.queues.unwrap_or(u32::MAX);
        if let Some(queue) = numbers.iter().find(|queue| **queue >= queues) {
            return Err(RuleRefusal::NoQueue { queue: *queue, queues });
        }
        match numbers.as_slice() {
            [] => Err(RuleRefusal::NotSteering),
            [queue] => Ok(Target::Queue(*queue)),
            _ if !self.model.has_contexts => Err(RuleRefusal::NoContexts),
            _ => {
                if let Some(entries) =
                    self.room.context_entries.filter(|entries| numbers.len() > *entries as usize)
                {
                    return Err(RuleRefusal::SmallContext { queues: numbers.len(), entries });
                }
                let known = wanted.groups.iter().position(|group| *group == numbers);
                Ok(Target::Group(known.unwrap_or_else(|| {
                    wanted.groups.push(numbers);
                    wanted.groups.len() - 1
                })))
            }
        }
    }
}

/// The matches of a flow's filters: together those of the flow, each with masks that the NIC has.
pub(crate) fn matches_of(flow: &Flow, model: &FilterModel) -> Result<Vec<FilterMatch>, RuleRefusal> {
    expanded(&match_of(flow, model)?, model)
}

/// The match of a flow, with the masks that it has.
fn match_of(flow: &Flow, model: &FilterModel) -> Result<FilterMatch, RuleRefusal> {
    let cube = flow.cube().ok_or(RuleRefusal::Everything)?;
    let kind = kind_of(cube, model);
    if !model.kinds.contains(&kind) {
        return Err(RuleRefusal::Kind(kind));
    }
    let mut fields = Vec::new();
    for field in Field::all().filter(|field| is_of_version(*field, kind)) {
        let bits = bits_of(cube, field);
        if bits.mask == 0 || is_implied(&bits, kind) {
            continue;
        }
        if !has_place(kind, field) {
            return Err(RuleRefusal::NoField { kind });
        }
        if !model.has_field(kind, field) {
            return Err(RuleRefusal::Field { field, kind });
        }
        fields.push(bits);
    }
    let matches = FilterMatch::new(kind, fields);
    // Conditions that are in no field: tunnels, the reserved bit of a tag, the absence of headers.
    if matches.cube().as_ref() != Some(cube) {
        return Err(RuleRefusal::NoField { kind });
    }
    if matches.fields().is_empty() && kind == FilterKind::Ether {
        return Err(RuleRefusal::Everything);
    }
    Ok(matches)
}

/// The kind of filter for a cube: of its transport protocol if the NIC has such filters, else of its IP
/// version.
fn kind_of(cube: &Cube, model: &FilterModel) -> FilterKind {
    let protocol = (cube.mask_of(PROTOCOL) == u64::from(u8::MAX)).then(|| cube.value_of(PROTOCOL) as u8);
    let is = |number: IpProtocol| protocol == Some(number.0);
    let has = |kind| model.kinds.contains(&kind);
    let (tcp, udp, ip) = match (cube.has(HAS_IPV4), cube.has(HAS_IPV6)) {
        (true, _) => (FilterKind::Tcp4, FilterKind::Udp4, FilterKind::Ip4),
        (_, true) => (FilterKind::Tcp6, FilterKind::Udp6, FilterKind::Ip6),
        _ => return FilterKind::Ether,
    };
    match () {
        () if cube.has(HAS_TCP) || is(IpProtocol::TCP) && has(tcp) => tcp,
        () if cube.has(HAS_UDP) || is(IpProtocol::UDP) && has(udp) => udp,
        () => ip,
    }
}

/// Returns whether packets of this kind can have the field: addresses of the other IP version are in the same
/// words of a cube.
fn is_of_version(field: Field, kind: FilterKind) -> bool {
    let is_ip4 = matches!(kind, FilterKind::Ip4 | FilterKind::Tcp4 | FilterKind::Udp4);
    match field.row().header {
        Header::Ipv4 => is_ip4,
        Header::Ipv6 => !is_ip4 && kind != FilterKind::Ether,
        _ => true,
    }
}

/// The bits of a field in a cube.
fn bits_of(cube: &Cube, field: Field) -> FieldBits {
    let (mut value, mut mask) = (0, 0);
    for slot in field.row().slots {
        value = value << slot.bits() | u128::from(cube.value_of(*slot));
        mask = mask << slot.bits() | u128::from(cube.mask_of(*slot));
    }
    FieldBits { field, value, mask }
}

/// Returns whether the kind of the filter implies the condition.
fn is_implied(bits: &FieldBits, kind: FilterKind) -> bool {
    match bits.field {
        Field::EtherType => kind != FilterKind::Ether && bits.is_whole(),
        Field::Protocol => kind.transport().is_some(),
        _ => false,
    }
}

/// Matches of the same packets whose masks the NIC has.
fn expanded(matches: &FilterMatch, model: &FilterModel) -> Result<Vec<FilterMatch>, RuleRefusal> {
    let mut done = vec![matches.clone()];
    let mut filters: u128 = 1;
    for bits in matches.fields() {
        let Some(row) = model.row(bits.field).filter(|row| !row.mask.allows(bits)) else { continue };
        let wildcards = match row.mask {
            MaskRule::Whole => bits.field.max() ^ bits.mask,
            MaskRule::Prefix => inner_wildcards(bits),
            MaskRule::Any => 0,
        };
        filters = filters.saturating_mul(1u128.checked_shl(wildcards.count_ones()).unwrap_or(u128::MAX));
        if filters > MAX_FILTERS_OF_FLOW {
            return Err(RuleRefusal::Mask { field: bits.field, rule: row.mask, filters });
        }
        let values = values_under(wildcards);
        done = done
            .iter()
            .flat_map(|matches| {
                values.iter().map(|value| {
                    let (value, mask) = (bits.value | value, bits.mask | wildcards);
                    matches.with(FieldBits { field: bits.field, value, mask })
                })
            })
            .collect();
    }
    Ok(done)
}

/// The bits above the lowest one of the mask that are not compared.
fn inner_wildcards(bits: &FieldBits) -> u128 {
    let lowest = bits.mask & bits.mask.wrapping_neg();
    bits.field.max() & !bits.mask & !(lowest - 1)
}

/// All numbers that have bits only where `wildcards` has them, in ascending order.
fn values_under(wildcards: u128) -> Vec<u128> {
    let mut values = vec![0];
    let mut value: u128 = 0;
    loop {
        // The next number with these bits only: the others are ones while 1 is added.
        value = (value | !wildcards).wrapping_add(1) & wildcards;
        if value == 0 {
            return values;
        }
        values.push(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_become_all_their_values() {
        assert_eq!(values_under(0), [0]);
        assert_eq!(values_under(0b101), [0, 0b1, 0b100, 0b101]);
    }

    #[test]
    fn masks_become_the_prefixes_that_cover_them() {
        let bits = |mask| FieldBits { field: Field::DstPort, value: 0, mask };
        assert_eq!(inner_wildcards(&bits(0xff00)), 0);
        assert_eq!(inner_wildcards(&bits(0xf0f0)), 0x0f00);
        assert_eq!(inner_wildcards(&bits(0x00ff)), 0xff00);
    }
}
