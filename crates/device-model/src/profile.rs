//! What a device can do, as data. The compiler reads limits and refusals from here and never asks which
//! vendor made the device; `control` fills one in from a device's own answers, and `known` has the rest.

mod known;

use std::borrow::Cow;

use program::{Errno, Feature};
use serde::{Deserialize, Serialize};

/// The limits of a device, as far as the compiler cares. All numbers are the WHOLE device's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// What diagnostics call it.
    pub name: String,
    /// How many flow priorities there are, from 0. Half of them is one program's: a reload needs both.
    pub priorities: u32,
    /// The most flows it holds, if it says. Half of them is one program's.
    pub max_flows: Option<u32>,
    /// The most different masks of its flows, if there is a limit over all priorities. Programs share those
    /// that they have in common.
    pub max_shapes: Option<u32>,
    /// What the flows of one priority may be, if that is limited.
    pub priority_table: Option<PriorityTable>,
    /// The most specs of one flow, the two actions (tag, counter) included.
    pub max_specs: u32,
    /// Whether a queue pair takes the hash fields of one variant only (v4 or v6; TCP or UDP).
    pub hash_field_exclusive: bool,
    /// Whether source and destination are hashed together or not at all.
    pub hash_field_pairs: bool,
    /// The longest indirection table, in entries.
    pub max_table: u32,
    /// Whether a table must name workers that follow each other, each once.
    pub table_consecutive: bool,
    /// The most queue pairs with an indirection table, if it says.
    pub max_queues: Option<u32>,
    /// The most indirection tables, if it says.
    pub max_tables: Option<u32>,
    /// The most packets that one receive queue holds, if it says (`max_qp_wr`).
    #[serde(default)]
    pub max_receives: Option<u32>,
    /// The most counters, if it says.
    pub max_counters: Option<u32>,
    /// The most flows that copy, if there is a limit. Half of them is one program's.
    pub max_copies: Option<u32>,
    /// How wide a flow tag is; 0: completions tell nothing of the flow.
    pub tag_bits: u32,
    /// Flows that match multicast only come after all others, whatever their priority.
    pub multicast_ignores_priority: bool,
    /// What it refuses to match or to do, and how it says so.
    pub refusals: Vec<Refusal>,
    /// What only some devices of this kind do, by firmware or configuration: known when it is tried.
    #[serde(default)]
    pub dependences: Vec<Dependence>,
    /// What it answers beyond each limit.
    pub limits: Vec<LimitRow>,
}

/// How the flows of one priority are stored: entries of equal masks in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriorityTable {
    /// The most flows of one priority.
    pub entries: u32,
    /// How many different masks get a group; every later one is a single flow.
    pub groups: u32,
    /// The most flows of such a group.
    pub group_entries: u32,
}

/// Something that a device will not match or do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// What.
    pub feature: Feature,
    /// How it says so; [`Errno::Silent`]: it does not, and that is worse.
    pub errno: Errno,
    /// Where that is to be read.
    pub source: Cow<'static, str>,
}

/// Something that a driver offers if the device has a capability, which no verb reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependence {
    /// What.
    pub feature: Feature,
    /// The capability, by the driver's name for it.
    pub capability: Cow<'static, str>,
    /// Where that is to be read.
    pub source: Cow<'static, str>,
}

/// What a device says beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRow {
    /// Which limit.
    pub limit: Limit,
    /// How it says so.
    pub errno: Errno,
    /// Where that is to be read.
    pub source: Cow<'static, str>,
}

/// A limit with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// [`DeviceProfile::priorities`].
    Priorities,
    /// [`DeviceProfile::max_flows`].
    Flows,
    /// [`DeviceProfile::max_shapes`].
    Shapes,
    /// [`DeviceProfile::priority_table`].
    PriorityTable,
    /// [`DeviceProfile::max_specs`].
    Specs,
    /// [`DeviceProfile::max_queues`].
    Queues,
    /// [`DeviceProfile::max_tables`] and [`DeviceProfile::max_table`].
    Tables,
    /// [`DeviceProfile::max_counters`].
    Counters,
    /// [`DeviceProfile::tag_bits`].
    Tags,
    /// [`DeviceProfile::max_copies`].
    Copies,
    /// One flow that sniffs: its packets carry no tag that could tell two apart.
    Sniffers,
}

impl DeviceProfile {
    /// The profiles that [`by_name`](Self::by_name) knows.
    pub const NAMES: [&'static str; 4] = ["ideal", "mlx5", "mlx4", "conservative"];

    /// What the verbs interface can say at all, within the limits of the software NIC. Hash fields stay
    /// exclusive, so that the program is the one that real devices get.
    #[must_use]
    pub fn ideal() -> Self {
        known::ideal()
    }

    /// ConnectX-4 and later.
    #[must_use]
    pub fn mlx5() -> Self {
        known::mlx5()
    }

    /// ConnectX-3.
    #[must_use]
    pub fn mlx4() -> Self {
        known::mlx4()
    }

    /// For a device that is not known: of each limit the tightest, and of refusals all, that `mlx5` and `mlx4` have.
    #[must_use]
    pub fn conservative() -> Self {
        known::conservative()
    }

    /// One of [`NAMES`](Self::NAMES).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "ideal" => Some(Self::ideal()),
            "mlx5" => Some(Self::mlx5()),
            "mlx4" => Some(Self::mlx4()),
            "conservative" => Some(Self::conservative()),
            _ => None,
        }
    }

    /// Why the device will not do that; `None` if it will.
    #[must_use]
    pub fn refusal(&self, feature: Feature) -> Option<&Refusal> {
        self.refusals.iter().find(|refusal| refusal.feature == feature)
    }

    /// The capability that the device needs to do that, if only some of its kind have it.
    #[must_use]
    pub fn dependence(&self, feature: Feature) -> Option<&Dependence> {
        self.dependences.iter().find(|dependence| dependence.feature == feature)
    }

    /// Whether the device does that.
    #[must_use]
    pub fn allows(&self, feature: Feature) -> bool {
        self.refusal(feature).is_none()
    }

    /// What the device answers beyond a limit; EINVAL where nothing is known.
    #[must_use]
    pub fn errno(&self, limit: Limit) -> Errno {
        self.limits.iter().find(|row| row.limit == limit).map_or(Errno::Einval, |row| row.errno)
    }

    /// The same limits on the soft NIC, which plays that device and holds no more flows, masks and copies than
    /// it ever does. Its receive queues are its own, whatever it plays.
    #[must_use]
    pub fn in_software(self) -> Self {
        let own = known::ideal();
        let less = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Self {
            max_flows: less(self.max_flows, own.max_flows),
            max_shapes: less(self.max_shapes, own.max_shapes),
            max_copies: less(self.max_copies, own.max_copies),
            max_receives: own.max_receives,
            ..self
        }
    }

    /// Flows that copy of one program, by the same reasoning as priorities.
    #[must_use]
    pub fn copies_per_program(&self) -> Option<usize> {
        self.max_copies.map(|most| (most / 2) as usize)
    }

    /// Priorities that one program may use, the other half being the next program's while it comes in.
    #[must_use]
    pub fn priorities_per_program(&self) -> u32 {
        (self.priorities / 2).clamp(1, 1 << 15)
    }

    /// Flows that one program may use, by the same reasoning.
    #[must_use]
    pub fn flows_per_program(&self) -> Option<usize> {
        self.max_flows.map(|most| (most / 2) as usize)
    }

    /// Queue pairs that one program may use, by the same reasoning.
    #[must_use]
    pub fn queues_per_program(&self) -> Option<usize> {
        self.max_queues.map(|most| (most / 2) as usize)
    }

    /// Indirection tables that one program may use, by the same reasoning.
    #[must_use]
    pub fn tables_per_program(&self) -> Option<usize> {
        self.max_tables.map(|most| (most / 2) as usize)
    }

    /// Whether workers learn from a completion which flow took a packet. Without it they judge every
    /// packet by the whole policy.
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.tag_bits > 0 && self.allows(Feature::Tag)
    }
}

impl Default for DeviceProfile {
    fn default() -> Self {
        Self::ideal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_profile_is_there_and_says_where_its_rows_come_from() {
        for name in DeviceProfile::NAMES {
            let profile = DeviceProfile::by_name(name).expect("it is listed");
            assert_eq!(profile.name, name);
            for refusal in &profile.refusals {
                assert!(!refusal.source.is_empty());
                let same = profile.refusals.iter().filter(|other| other.feature == refusal.feature);
                assert_eq!(same.count(), 1, "{:?} twice", refusal.feature);
            }
            let known: Vec<Limit> = profile.limits.iter().map(|row| row.limit).collect();
            assert_eq!(known.len(), 11, "{name}: a limit without its errno");
        }
        assert_eq!(DeviceProfile::by_name("mlx6"), None);
    }

    #[test]
    fn the_conservative_profile_allows_nothing_that_a_known_device_refuses() {
        let conservative = DeviceProfile::conservative();
        let most = |limit: Option<u32>| limit.unwrap_or(u32::MAX);
        for known in [DeviceProfile::mlx5(), DeviceProfile::mlx4()] {
            assert!(known.refusals.iter().all(|refusal| !conservative.allows(refusal.feature)));
            assert!(conservative.priorities <= known.priorities && conservative.tag_bits <= known.tag_bits);
            assert!(conservative.max_specs <= known.max_specs && conservative.max_table <= known.max_table);
            assert!(most(conservative.max_counters) <= most(known.max_counters));
            assert!(most(conservative.max_copies) <= most(known.max_copies));
            assert!(conservative.priority_table.is_some() || known.priority_table.is_none());
            let switches = |profile: &DeviceProfile| {
                [
                    profile.hash_field_exclusive,
                    profile.hash_field_pairs,
                    profile.table_consecutive,
                    profile.multicast_ignores_priority,
                ]
            };
            assert!(switches(&known).iter().zip(switches(&conservative)).all(|(known, own)| own || !known));
        }
        let silent = conservative.refusal(Feature::SrcMac).expect("mlx4 ignores it");
        assert_eq!(silent.errno, Errno::Silent);
    }

    #[test]
    fn a_profile_survives_its_json() {
        for name in DeviceProfile::NAMES {
            let profile = DeviceProfile::by_name(name).expect("it is listed");
            let json = serde_json::to_string(&profile).expect("plain data");
            assert_eq!(serde_json::from_str::<DeviceProfile>(&json).expect("the same data"), profile);
        }
    }
}
