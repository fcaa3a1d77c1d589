//! What two policies do differently, as regions in the language with a packet for each. Texts are not
//! compared: policies that decide every packet alike have no difference, however they are written. A change
//! of a group's workers or spreading is a change of all its traffic; a change of its name is none.
//!
//! `steerd diff` asks. `pairs` finds which rules packets change hands between, `grow` how much, and `tell` puts
//! it into words.

use policy::policy::Direction;
use policy::{Policy, Witness};
use program::{GroupId, RuleId};
use serde::Serialize;

use super::Progress;
use super::common::changed;
use super::groups::same_groups;
use super::lane::Lane;
use super::pairs::Pairs;
use super::region::Region;
use super::search::Space;
use super::tell::{Side, Telling};

/// How much is told of what is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// Regions of one pair of rules; the last then stands for all others.
    pub regions_per_pair: usize,
    /// Regions in all.
    pub regions: usize,
}

impl Detail {
    /// For a person.
    pub const SHORT: Self = Self { regions_per_pair: 16, regions: 4096 };
    /// As much as there may be.
    pub const FULL: Self = Self { regions_per_pair: 4096, regions: 65_536 };
}

/// More pairs of rules than this are not looked for: a policy against another of as many rules can have the
/// product of their numbers.
pub const MAX_PAIRS: usize = 65_536;
/// Up to so many regions of a pair are counted.
pub const MAX_COUNTED_REGIONS: usize = 64;
/// No more values of lists than this are told in all regions: one region may have a whole block list.
pub const MAX_TOLD_VALUES: u64 = 1 << 21;
/// Of the rules that take packets before a pair no more than this are named; all are counted.
pub const MAX_NAMED_RULES: usize = 32;
/// Of the pairs that were not decided no more than this are named; all are counted.
pub const MAX_NAMED_OPEN: usize = 64;

/// What is different.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diff {
    /// By direction and pair of rules. Regions of one pair may overlap; together they are all that it treats
    /// differently, unless it says that there are more.
    pub regions: Vec<Change>,
    /// Every pair of rules between which packets change hands: by rule of the new policy, then of the old one.
    pub pairs: Vec<PairSummary>,
    /// How many pairs of rules were not decided; where there are none, no pairs means no difference.
    pub not_decided: usize,
    /// The first of them.
    pub open: Vec<OpenPair>,
    /// Why the comparison was ended before all pairs were looked at.
    pub stopped: Option<String>,
}

/// A region that is treated differently.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Of which way.
    #[serde(skip)]
    pub direction: Direction,
    /// Which packets.
    pub region: Region,
    /// What the old policy does with them.
    pub before: Effect,
    /// What the new policy does with them.
    pub after: Effect,
    /// One of them.
    pub witness: Witness,
}

/// What a policy does with the packets of a region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Effect {
    /// The rule, or the default; `None`: no rule, since nothing is done.
    pub rule: Option<RuleId>,
    /// Its name.
    pub name: String,
    /// In words.
    pub action: String,
}

/// What changes hands from one rule to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairSummary {
    /// Of which way.
    #[serde(skip)]
    pub direction: Direction,
    /// The old policy's rule.
    pub before: Effect,
    /// The new policy's rule.
    pub after: Effect,
    /// Packets that both rules match; what changes hands is these but for what other rules take first. Empty
    /// where no regions are told either.
    pub within: Vec<Region>,
    /// Those rules.
    pub but_for: Names,
    /// A packet that changes hands.
    pub witness: Witness,
    /// Regions among the changes.
    pub regions: usize,
    /// Changes that each stand for some of those that are not among them.
    pub rest: usize,
    /// How many are not among them.
    pub more: usize,
    /// Whether there may be even more.
    pub is_open: bool,
}

/// Names of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Names {
    /// How many there are.
    pub count: usize,
    /// The first of them.
    pub listed: Vec<String>,
}

/// Two rules of which it was not decided whether packets change hands between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenPair {
    /// Of which way.
    #[serde(skip)]
    pub direction: Direction,
    /// The old policy's rule.
    pub before: Effect,
    /// The new policy's rule.
    pub after: Effect,
    /// Why not.
    pub why: String,
}

impl Diff {
    /// Whether the policies are known to treat every packet alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.is_whole()
    }

    /// Whether all was decided.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.not_decided == 0 && self.stopped.is_none()
    }
}

/// Compares two policies.
pub fn diff(old: &Policy, new: &Policy, progress: &mut dyn FnMut(Progress)) -> Diff {
    diff_in_detail(old, new, Detail::SHORT, progress)
}

/// Compares two policies, and tells more or less of it.
pub fn diff_in_detail(
    old: &Policy,
    new: &Policy,
    detail: Detail,
    progress: &mut dyn FnMut(Progress),
) -> Diff {
    let space = Space::of(&[old, new]);
    let groups = same_groups(old, new);
    let new_group = |group: GroupId| groups.get(group.index()).copied().unwrap_or(group);
    let mut telling = Telling::new(&space.axes, detail);
    for direction in [Direction::Ingress, Direction::Egress] {
        let before = Lane::of(&space.axes, old, direction, &|group| group);
        let after = Lane::of(&space.axes, new, direction, &new_group);
        let changed = changed((old, &before), (new, &after));
        let detail = Detail { regions: telling.regions_left(), ..detail };
        let pairs = Pairs::of(&space, &before, &after, &changed, detail, progress);
        let sides = [old, new].map(|policy| Side { policy, direction });
        telling.tell(&sides, pairs);
    }
    telling.found
}
