//! Drop rules as filters of a NIC, beside an XDP program and workers that carry out the whole policy: such a
//! packet never reaches a core.
//!
//! A filter is right if the flow table drops each packet that the filter matches, and nobody gets a copy of
//! it. That holds for the filters of a flow that drops, if no flow that does anything else shares packets
//! with it at the same precedence or an earlier one. Take a packet that a filter matches. Its match is a part
//! of the flow's, so the flow matches the packet. The first flow of the table that matches the packet is this
//! one or an earlier one, and all of those that share packets with it drop. A sniffer gets copies of all
//! packets, whatever comes first, so beside one no filter is right.
//!
//! Each filter is right whatever other filters there are. Where a filter is missing, the XDP program or the
//! engine drops its packets.

use std::collections::{BTreeMap, HashMap, HashSet};

use packet::cube::Cube;
use program::{Flow, FlowAction, FlowKind, Placement, Program, RuleId, Verdict};

use crate::filter::{FilterMatch, SharedMasks};
use crate::model::FilterModel;
use crate::nic::{FilterRoom, ListedFilter};
use crate::translate::{MAX_FILTERS, RuleRefusal, Target, WantedFilter, WantedFilters, matches_of};

/// The most comparisons of flows that drop with others. Beyond it a flow has no filters.
const MAX_COMPARISONS: usize = 1 << 24;

/// The filters for the drop rules of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedDrops {
    /// The filters, those of the first rules first.
    pub filters: WantedFilters,
    /// The drop rules of which some packets have no filter, with the first reason of each.
    pub refused: BTreeMap<RuleId, DropRefusal>,
}

impl WantedDrops {
    /// Keeps the filters that other ones have, too.
    pub(crate) fn retain(&mut self, others: &Self) {
        let matches: HashSet<&FilterMatch> =
            others.filters.filters.iter().map(|wanted| &wanted.matches).collect();
        self.filters.filters.retain(|wanted| matches.contains(&wanted.matches));
    }
}

/// Why the NIC does not drop all packets of a drop rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropRefusal {
    /// The filters of the NIC do not drop.
    NoDrops,
    /// No filter has the match.
    Match(RuleRefusal),
    /// Another rule may take or copy some of the packets.
    Shared {
        /// The other rule.
        other: RuleId,
    },
    /// There are too many flows to compare it with all of them.
    NotExamined,
    /// All filters of the NIC have the same masks, which are those of other rules or programs.
    OtherMasks,
    /// Another program has a filter with the same match.
    Taken {
        /// The location.
        location: u32,
    },
    /// The table is full.
    NoRoom {
        /// The filters that a flow needs.
        needed: usize,
        /// The most filters of all rules.
        most: usize,
    },
}

impl DropRefusal {
    /// The reason, after the name of the rule.
    #[must_use]
    pub fn explain(&self, program: &Program) -> String {
        let name = |rule: &RuleId| program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        match self {
            Self::NoDrops => "the filters of the NIC do not drop".to_owned(),
            Self::Match(why) => why.explain(program).0,
            Self::Shared { other } => {
                format!("the rule `{}` may take or copy some of its packets", name(other))
            }
            Self::NotExamined => format!(
                "comparing it with the rules before it would take more than {MAX_COMPARISONS} comparisons in all: \
                 put drop rules first"
            ),
            Self::OtherMasks => {
                "all filters of the NIC have the same masks, and others came first".to_owned()
            }
            Self::Taken { location } => {
                format!("a filter of another program has the same match, at location {location}")
            }
            Self::NoRoom { needed, most } => {
                format!("the table is full: a flow takes {needed} of {most} filters")
            }
        }
    }
}

/// The filters for the drop rules of a program, as far as the NIC has them and there is room beside the
/// filters of others. The same arguments give the same filters.
#[must_use]
pub fn drops(
    program: &Program,
    model: &FilterModel,
    room: FilterRoom,
    foreign: &[ListedFilter],
) -> WantedDrops {
    let foreign: Vec<(u32, &FilterMatch)> = foreign
        .iter()
        .filter_map(|listed| Some((listed.location, &listed.filter.as_ref().ok()?.matches)))
        .collect();
    let mut chooser = DropChooser {
        model,
        most: room.filters.or(model.filters).map_or(MAX_FILTERS, |filters| filters as usize),
        masks: foreign.first().filter(|_| model.one_mask).map(|(_, matches)| matches.shared_masks()),
        foreign: foreign.into_iter().map(|(location, matches)| (matches, location)).collect(),
        known: HashSet::new(),
        others: OtherFlows::of(program),
    };
    let mut wanted = WantedDrops::default();
    let mut flows: Vec<&Flow> = program.flows.iter().filter(|flow| flow.action == FlowAction::Drop).collect();
    flows.sort_by_key(|flow| flow.priority);
    for flow in flows {
        match chooser.filters_of(flow, wanted.filters.filters.len()) {
            Ok(filters) => wanted.filters.filters.extend(filters),
            Err(why) => _ = wanted.refused.entry(flow.rule).or_insert(why),
        }
    }
    for (index, rule) in program.rules.iter().enumerate() {
        if rule.action == Verdict::Drop && matches!(rule.placement, Placement::Hybrid { .. }) {
            let why = RuleRefusal::NeedsWorker { undecided: rule.undecided.clone() };
            wanted.refused.entry(RuleId::of(index)).or_insert(DropRefusal::Match(why));
        }
    }
    wanted
}

/// The choice of filters, flow by flow.
struct DropChooser<'p> {
    model: &'p FilterModel,
    /// The most filters.
    most: usize,
    /// The masks of the first filter, where all must have the same.
    masks: Option<SharedMasks>,
    /// The locations of others' filters by their matches.
    foreign: HashMap<&'p FilterMatch, u32>,
    /// The matches of the filters that were chosen.
    known: HashSet<FilterMatch>,
    others: OtherFlows,
}

impl DropChooser<'_> {
    /// The filters of a flow that drops, beside so many others.
    fn filters_of(&mut self, flow: &Flow, chosen: usize) -> Result<Vec<WantedFilter>, DropRefusal> {
        if !self.model.drops {
            return Err(DropRefusal::NoDrops);
        }
        if flow.kind != FlowKind::Normal {
            return Err(DropRefusal::Match(RuleRefusal::NotSteering));
        }
        let mut matches = matches_of(flow, self.model).map_err(DropRefusal::Match)?;
        if let Some(location) = matches.iter().find_map(|matches| self.foreign.get(matches)) {
            return Err(DropRefusal::Taken { location: *location });
        }
        matches.retain(|matches| !self.known.contains(matches));
        if chosen + matches.len() > self.most {
            return Err(DropRefusal::NoRoom { needed: matches.len(), most: self.most });
        }
        let masks = matches.first().filter(|_| self.model.one_mask).map(FilterMatch::shared_masks);
        let are_others = |known: &SharedMasks| matches.iter().any(|one| one.shared_masks() != *known);
        if masks.is_some() && self.masks.as_ref().or(masks.as_ref()).is_some_and(are_others) {
            return Err(DropRefusal::OtherMasks);
        }
        self.others.refuse_shared(flow)?;
        self.masks = self.masks.take().or(masks);
        self.known.extend(matches.iter().cloned());
        let filter = |matches| WantedFilter { rule: flow.rule, rank: 0, matches, target: Target::Drop };
        Ok(matches.into_iter().map(filter).collect())
    }
}

/// The flows that do anything but drop.
struct OtherFlows {
    /// The claims of these flows, those of the highest precedence first.
    claims: Vec<OtherClaim>,
    comparisons: usize,
}

struct OtherClaim {
    /// `None`: a sniffer, which has its copy before all others.
    priority: Option<u16>,
    rule: RuleId,
    /// All packets of the flow, or more: the conditions on outer headers.
    packets: Cube,
}

impl OtherFlows {
    fn of(program: &Program) -> Self {
        let claim = |flow: &Flow| {
            let drops = flow.kind == FlowKind::Normal && flow.action == FlowAction::Drop;
            let packets = flow.claim().filter(|_| !drops)?.closed()?;
            let priority = (flow.kind != FlowKind::Sniffer).then_some(flow.priority);
            Some(OtherClaim { priority, rule: flow.rule, packets })
        };
        let mut claims: Vec<OtherClaim> = program.flows.iter().filter_map(claim).collect();
        claims.sort_by_key(|claim| claim.priority);
        Self { claims, comparisons: 0 }
    }

    /// Refuses a flow that shares packets with one of these at the same precedence or an earlier one.
    fn refuse_shared(&mut self, flow: &Flow) -> Result<(), DropRefusal> {
        let packets = flow.cube().ok_or(DropRefusal::Match(RuleRefusal::Everything))?;
        let earlier = self.claims.partition_point(|claim| claim.priority <= Some(flow.priority));
        self.comparisons = self.comparisons.saturating_add(earlier);
        if self.comparisons > MAX_COMPARISONS {
            return Err(DropRefusal::NotExamined);
        }
        match self.claims[..earlier].iter().find(|claim| claim.packets.overlaps(packets)) {
            Some(claim) => Err(DropRefusal::Shared { other: claim.rule }),
            None => Ok(()),
        }
    }
}
