//! The groups that a device makes of flows with one mask, and how many of them packets pass.
//!
//! A device with groups has a table for each priority. A packet is looked up in the groups of a table one
//! after the other, and in the next table if none has a flow for it (rdma-core,
//! providers/mlx5/dr_matcher.c, `dr_matcher_connect`; that the groups which firmware makes are a chain as
//! well is inferred). So every group before the one of its flow costs a packet time. Nobody has measured how
//! much.

use std::collections::BTreeMap;

use device_model::{DeviceModel, TableFill};
use program::{Flow, FlowKind, Program};
use serde::Serialize;

/// The seconds in which a device makes the flows of a program that is split to save masks.
const SPLIT_SECONDS: usize = 2;

/// The most flows of a program whose flows are split to save masks, if it has so many without that. To double
/// them is never too long.
pub(crate) fn most_split_flows(profile: &DeviceModel, flows: usize) -> usize {
    let in_time = profile.flows_per_second.map(|rate| SPLIT_SECONDS.saturating_mul(rate as usize));
    in_time.map_or(usize::MAX, |in_time| in_time.max(flows.saturating_mul(2)))
}

/// A table of flows. Received packets pass those before [`FlowTable::Sent`] in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FlowTable {
    /// The table of a priority; that of the flows that copy comes first (hw/mlx5/fs.c,
    /// `ib_prio_to_core_prio`).
    Received { priority: u16, takes: bool },
    /// The one for flows that match only multicast, whose priority the device ignores
    /// (hw/mlx5/fs.c, MLX5_IB_FLOW_MCAST_PRIO).
    Multicast,
    /// The table of a priority for packets that the host sends.
    Sent { priority: u16 },
}

impl FlowTable {
    /// The table of a flow; `None`: a sniffer is in none of them.
    fn of(flow: &Flow, profile: &DeviceModel) -> Option<Self> {
        let priority = flow.priority;
        match flow.kind {
            FlowKind::Sniffer => None,
            FlowKind::Egress => Some(Self::Sent { priority }),
            FlowKind::Copy => Some(Self::Received { priority, takes: false }),
            FlowKind::Normal if profile.multicast_ignores_priority && flow.is_multicast_only() => {
                Some(Self::Multicast)
            }
            FlowKind::Normal => Some(Self::Received { priority, takes: true }),
        }
    }
}

/// The groups that a device makes of a program's flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowGroups {
    /// The tables that received packets pass.
    pub tables: u64,
    /// The groups of these tables: a packet that no flow takes passes all of them.
    pub groups: u64,
    /// The seconds in which the device makes all flows and groups, each by a command, if its rate is known.
    pub install_seconds: Option<f64>,
    /// The groups of all flows of each priority.
    pub by_priority: BTreeMap<u16, u64>,
    /// The most groups of a priority, if known.
    pub max_groups: Option<u32>,
    /// The nanoseconds that a packet takes to pass a group, if known.
    pub ns_per_group: Option<u32>,
    /// The groups that a received packet of each flow passes, the last one its own.
    #[serde(skip)]
    passed: Vec<Option<u64>>,
}

impl FlowGroups {
    /// Fills the tables of a device with the flows of a program, in their order. `None`: it is not known how
    /// the device makes groups.
    #[must_use]
    pub fn of(program: &Program, profile: &DeviceModel) -> Option<Self> {
        let limits = profile.flow_table()?;
        let mut tables: BTreeMap<FlowTable, TableFill<_>> = BTreeMap::new();
        let mut by_priority = BTreeMap::new();
        let place = |flow: &Flow| {
            let table = FlowTable::of(flow, profile)?;
            let fill = tables.entry(table).or_insert_with(|| TableFill::new(limits));
            let before = fill.groups();
            let group = fill.place(&flow.shape())?;
            *by_priority.entry(flow.priority).or_default() += u64::from(fill.groups() - before);
            Some((table, group))
        };
        let places: Vec<_> = program.flows.iter().map(place).collect();
        let (mut groups, mut before) = (0, BTreeMap::new());
        let received = || tables.iter().filter(|(table, _)| !matches!(table, FlowTable::Sent { .. }));
        for (table, fill) in received() {
            before.insert(*table, groups);
            groups += u64::from(fill.groups());
        }
        let passed = |(table, group)| Some(before.get(&table)? + u64::from(group) + 1);
        let commands = program.flows.len() as u64 + by_priority.values().sum::<u64>();
        Some(Self {
            tables: received().count() as u64,
            groups,
            install_seconds: profile.flows_per_second.map(|rate| commands as f64 / f64::from(rate)),
            passed: places.into_iter().map(|place| place.and_then(passed)).collect(),
            max_groups: profile.max_groups,
            ns_per_group: profile.ns_per_group,
            by_priority,
        })
    }

    /// The groups that a received packet passes which this flow takes, or none. An upper bound for packets
    /// that are copied as well: it counts all groups of a priority that copies.
    #[must_use]
    pub fn passed(&self, flow: Option<usize>) -> u64 {
        flow.and_then(|flow| self.passed.get(flow).copied().flatten()).unwrap_or(self.groups)
    }
}

#[cfg(test)]
mod tests {
    use device_model::PriorityTable;
    use policy::{NoFiles, Source};

    use super::*;

    /// Two groups for each priority, then groups of one flow.
    fn device() -> DeviceModel {
        DeviceModel {
            priority_table: Some(PriorityTable { entries: 64, groups: 2, group_entries: 8 }),
            flows_per_second: Some(10),
            ..DeviceModel::ideal()
        }
    }

    fn program(rules: &[&str]) -> Program {
        let rules = rules.iter().enumerate().map(|(number, matches)| {
            format!("[[rules]]\nname = 'r{number}'\nmatch = {{ {matches} }}\naction = 'drop'\n")
        });
        let text = format!("version = 1\n{}", rules.collect::<String>());
        let (policy, _) = policy::parse(&Source::new("groups.toml", text), &NoFiles).expect("a policy");
        crate::compile(&policy, &device(), 1).expect("a program")
    }

    #[test]
    fn each_flow_beyond_the_groups_has_its_own() {
        let masks = ["10.0.0.0/8", "20.0.0.0/8", "11.1.0.0/16", "21.1.0.0/16", "12.1.1.0/24", "22.1.1.0/24"];
        let matches = masks.map(|dst| format!("dst = '{dst}'"));
        let program = program(&matches.each_ref().map(String::as_str));
        let groups = FlowGroups::of(&program, &device()).expect("groups");
        // Two masks have groups, and each flow of the third is one.
        assert_eq!((groups.tables, groups.groups, groups.by_priority[&0]), (1, 4, 4));
        let passed: Vec<u64> = (0..program.flows.len()).map(|flow| groups.passed(Some(flow))).collect();
        assert_eq!(passed, [1, 1, 2, 2, 3, 4]);
        assert_eq!(groups.passed(None), 4);
        assert_eq!(groups.install_seconds, Some(1.0));
    }

    #[test]
    fn later_tables_come_after_all_groups_of_earlier_ones() {
        let program = program(&["dst = '10.1.0.0/16', src = '10.0.0.0/8'", "dst = '10.0.0.0/8'"]);
        let groups = FlowGroups::of(&program, &device()).expect("groups");
        assert_eq!((groups.tables, groups.groups), (2, 2));
        let last = program.flows.iter().position(|flow| flow.priority == 1).expect("a second priority");
        assert_eq!(groups.passed(Some(last)), 2);
    }

    #[test]
    fn copies_come_first_and_sent_packets_have_their_own_tables() {
        let text = "version = 1\n[groups.one]\nworkers = [0]\n\
            [[rules]]\nname = 'copied'\nmatch = { dst = '10.0.0.0/8' }\naction = { copy = 'one' }\n\
            [[rules]]\nname = 'dropped'\nmatch = { dst = '10.0.0.0/16' }\naction = 'drop'\n\
            [[rules]]\nname = 'sent'\ndirection = 'egress'\nmatch = { dst = '10.0.0.0/24' }\naction = 'drop'\n";
        let device = DeviceModel { flows_per_second: Some(1), ..device() };
        let (policy, _) = policy::parse(&Source::new("copies.toml", text), &NoFiles).expect("a policy");
        let program = crate::compile(&policy, &device, 1).expect("a program");
        let groups = FlowGroups::of(&program, &device).expect("groups");
        assert_eq!((groups.tables, groups.groups), (2, 2), "{:?}", program.flows);
        assert_eq!(groups.by_priority.values().sum::<u64>(), 3);
        let of_kind = |kind| program.flows.iter().position(|flow| flow.kind == kind);
        let passed = [FlowKind::Copy, FlowKind::Normal].map(|kind| groups.passed(of_kind(kind)));
        assert_eq!(passed, [1, 2]);
        assert_eq!(groups.install_seconds, Some(6.0));
    }

    #[test]
    fn models_without_groups_have_none() {
        assert_eq!(FlowGroups::of(&program(&["dst = '10.0.0.0/8'"]), &DeviceModel::ideal()), None);
    }
}
