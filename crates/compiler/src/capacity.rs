//! All limits of a device: what a program needs, whether that fits, and whether the installed program and the
//! one that replaces it fit at once. A reload has both on the device, so one program gets half of the flows
//! and objects, which each needs for itself, and all priorities but one. `compile` refuses programs that do
//! not fit, `check` shows the counts, and `steerd` compares two programs before a reload.

use std::collections::{BTreeMap, HashMap, HashSet};

use device_model::{DeviceModel, Limit, TableFill};
use program::{Correspondence, Errno, Flow, FlowAction, FlowKind, FlowSpec, Program, RuleId, WorkerId};
use serde::Serialize;

use crate::emit::separate::{agree, multicast_flows};
use crate::job::Job;
use crate::mask_index::ByMask;

/// The name of the limit of one indirection table.
const ENTRIES: &str = "entries of one table";

/// A limit that a program exceeds, at this rule if one rule shows it best.
#[derive(Debug)]
pub(super) struct Shortage {
    pub(super) rule: Option<RuleId>,
    pub(super) row: CapacityRow,
}

/// Finds the limits by which a program does not fit on the device beside the previous program.
pub(super) fn shortages(job: &Job<'_>, program: &Program) -> Vec<Shortage> {
    let masks = Masks::of(program, job.previous);
    let capacity = Capacity::with(&masks, program, job.profile);
    let exceeded = capacity.rows.into_iter().filter(CapacityRow::exceeds);
    exceeded.map(|row| Shortage { rule: blamed(&row, &masks, program), row }).collect()
}

/// A program against a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// The name of the device.
    pub device: String,
    /// One row for each thing that can run out.
    pub rows: Vec<CapacityRow>,
    /// Each priority that has flows.
    pub priorities: Vec<PriorityUse>,
}

/// One thing that can run out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CapacityRow {
    /// Which limit.
    pub limit: Limit,
    /// The counted objects, in English.
    pub what: &'static str,
    /// The number that the program needs; of flows, on each port.
    pub used: u64,
    /// The number that the previous program has besides, of what programs share.
    pub previous: u64,
    /// The number that the device has for one program, and of what programs share for both; `None`: there is
    /// no known limit.
    pub most: Option<u64>,
    /// The error of the device when the limit is exceeded.
    pub errno: Errno,
}

/// The flows of one priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PriorityUse {
    /// Counted from 0 within the program.
    pub priority: u16,
    /// How many flows.
    pub flows: u64,
    /// How many different masks they have.
    pub shapes: u64,
    /// The most flows of one mask.
    pub largest_shape: u64,
    /// The most masks with more than one flow, and flows in each, if the device limits them.
    pub most: Option<(u32, u32)>,
}

/// The masks of a program's flows, numbered, so that each is written out once.
struct Masks {
    /// The number of each flow's mask; `None` for what has no mask.
    of_flows: Vec<Option<usize>>,
    /// The number of flows with each mask.
    flows: Vec<usize>,
    /// How many masks the flows have that are not copies, which the device does not keep by mask.
    taking: usize,
    /// How many more the previous program has.
    previous: usize,
}

impl Masks {
    fn of(program: &Program, previous: Option<&Program>) -> Self {
        let mut numbers: ByMask<(FlowKind, usize, Vec<FlowSpec>), usize> = ByMask::default();
        let mut masks = Self { of_flows: Vec::new(), flows: Vec::new(), taking: 0, previous: 0 };
        for flow in &program.flows {
            let next = masks.flows.len();
            let number =
                (flow.kind != FlowKind::Sniffer).then(|| *numbers.entry(flow.shape()).or_insert(next));
            if number == Some(next) {
                masks.flows.push(0);
                masks.taking += usize::from(takes(flow));
            }
            if let Some(number) = number {
                masks.flows[number] += 1;
            }
            masks.of_flows.push(number);
        }
        for flow in previous.iter().flat_map(|previous| &previous.flows).filter(|flow| takes(flow)) {
            let next = masks.flows.len();
            let number = *numbers.entry(flow.shape()).or_insert(next + masks.previous);
            masks.previous += usize::from(number == next + masks.previous);
        }
        masks
    }

    /// The first flow of the mask that fewest have.
    fn rarest<'p>(&self, program: &'p Program) -> Option<&'p Flow> {
        let taking = program.flows.iter().zip(&self.of_flows).filter(|(flow, _)| takes(flow));
        taking.min_by_key(|(_, number)| number.map(|number| self.flows[number])).map(|(flow, _)| flow)
    }
}

impl Capacity {
    /// Counts what `program` needs, and `previous` if that is on the device.
    #[must_use]
    pub fn of(program: &Program, profile: &DeviceModel, previous: Option<&Program>) -> Self {
        Self::with(&Masks::of(program, previous), program, profile)
    }

    fn with(masks: &Masks, program: &Program, profile: &DeviceModel) -> Self {
        let own = |limit, what, used: u64, most| CapacityRow {
            limit,
            what,
            used,
            previous: 0,
            most,
            errno: profile.errno(limit),
        };
        let row = |limit, what, used: usize, most: Option<usize>| {
            own(limit, what, used as u64, most.map(|most| most as u64))
        };
        let wide = |most: Option<u32>| most.map(u64::from);
        let priorities = u64::from(profile.priorities_per_program());
        let specs = program.flows.iter().map(|flow| flow.specs.len() + actions(flow)).max().unwrap_or(0);
        let longest = program.queues.iter().map(|queue| queue.table.len()).max().unwrap_or(0);
        let tags = if profile.has_tags() { program::CLASSES_MAX } else { 1 };
        let rows = vec![
            own(Limit::Priorities, "priorities", u64::from(program.priorities_used), Some(priorities)),
            row(Limit::Flows, "flows", program.flows.len(), profile.flows_per_program()),
            CapacityRow {
                previous: masks.previous as u64,
                ..own(Limit::Shapes, "mask shapes", masks.taking as u64, wide(profile.max_shapes))
            },
            own(Limit::Specs, "specs of one flow", specs as u64, Some(u64::from(profile.max_specs))),
            row(Limit::Queues, "queue pairs", program.queues.len(), profile.queues_per_program()),
            row(Limit::Tables, "indirection tables", tables(program), profile.tables_per_program()),
            own(Limit::Tables, ENTRIES, longest as u64, Some(u64::from(profile.max_table))),
            own(Limit::Counters, "counters", counters(program) as u64, wide(profile.max_counters)),
            row(Limit::Copies, "flows that copy", copies(program), profile.copies_per_program()),
            own(Limit::Sniffers, "flows that sniff", sniffers(program) as u64, Some(1)),
            own(Limit::Tags, "classes", program.classes.len() as u64, Some(u64::from(tags))),
        ];
        Self { device: profile.name.clone(), rows, priorities: by_priority(masks, program, profile) }
    }
}

impl CapacityRow {
    /// Whether it does not fit. Counters that are missing cost counts, no packets: that is no reason to
    /// refuse.
    #[must_use]
    pub fn exceeds(&self) -> bool {
        self.limit != Limit::Counters && self.most.is_some_and(|most| self.used + self.previous > most)
    }

    /// Whether one program may have half of what the device has.
    pub(super) fn is_halved(&self) -> bool {
        matches!(self.limit, Limit::Flows | Limit::Queues | Limit::Copies)
            || (self.limit == Limit::Tables && self.what != ENTRIES)
    }
}

/// The rule that shows a shortage best, if it is not a matter of the groups or of the whole policy.
fn blamed(row: &CapacityRow, masks: &Masks, program: &Program) -> Option<RuleId> {
    let flow = match row.limit {
        Limit::Shapes => masks.rarest(program),
        Limit::Copies => {
            let mut copies = program.flows.iter().filter(|flow| flow.kind == FlowKind::Copy);
            let room = row.most.unwrap_or(0).saturating_sub(row.previous);
            copies.nth(usize::try_from(room).unwrap_or(usize::MAX))
        }
        _ => None,
    };
    flow.map(|flow| flow.rule).filter(|rule| *rule != program.default_rule())
}

/// How many action specs a flow has: tag, drop, counter.
fn actions(flow: &Flow) -> usize {
    match (flow.kind, flow.action) {
        (FlowKind::Sniffer, _) => 0,
        (_, FlowAction::Steer { .. } | FlowAction::Pass) => 1,
        (_, FlowAction::Drop) => 2,
    }
}

fn takes(flow: &Flow) -> bool {
    matches!(flow.kind, FlowKind::Normal | FlowKind::Egress)
}

fn tables(program: &Program) -> usize {
    program.queues.iter().map(|queue| &queue.table).collect::<HashSet<&Vec<WorkerId>>>().len()
}

fn counters(program: &Program) -> usize {
    let counted = program.flows.iter().filter(|flow| !matches!(flow.action, FlowAction::Steer { .. }));
    counted.map(|flow| flow.rule).collect::<HashSet<_>>().len()
}

fn copies(program: &Program) -> usize {
    program.flows.iter().filter(|flow| flow.kind == FlowKind::Copy).count()
}

fn sniffers(program: &Program) -> usize {
    program.flows.iter().filter(|flow| flow.kind == FlowKind::Sniffer).count()
}

fn by_priority(masks: &Masks, program: &Program, profile: &DeviceModel) -> Vec<PriorityUse> {
    let flows = program.flows.iter().zip(&masks.of_flows);
    let mut found: Vec<(u16, usize)> =
        flows.filter_map(|(flow, number)| Some((flow.priority, (*number)?))).collect();
    found.sort_unstable();
    let most = profile.flow_table().map(|table| (table.groups, table.group_entries));
    let uses = found.chunk_by(|one, other| one.0 == other.0).map(|flows| {
        let shapes = flows.chunk_by(|one, other| one.1 == other.1).map(<[_]>::len);
        PriorityUse {
            priority: flows[0].0,
            flows: flows.len() as u64,
            shapes: shapes.clone().count() as u64,
            largest_shape: shapes.max().unwrap_or(0) as u64,
            most,
        }
    });
    uses.collect()
}

/// Why two programs cannot be on a device at once: named is a rule of the later one.
#[derive(Clone, Copy)]
pub(super) enum Conflict {
    /// Both have the same match on multicast, which the device keeps once.
    SameMatch(RuleId),
    /// The flows of both on multicast exceed the one table.
    TableFull(RuleId),
}

/// Finds why `after` cannot be on a device beside `before`, beyond what [`Capacity`] counts.
pub(super) fn conflict(before: &Program, after: &Program, profile: &DeviceModel) -> Option<Conflict> {
    if !profile.multicast_ignores_priority {
        return None;
    }
    Some(match same_match(before, after) {
        Some(flow) => Conflict::SameMatch(flow.rule),
        None => Conflict::TableFull(overflow(before, after, profile)?.rule),
    })
}

/// Finds a multicast-only flow of `after` that has the match of a flow of `before` and another tag or action:
/// the device returns EEXIST for it.
fn same_match<'p>(before: &Program, after: &'p Program) -> Option<&'p Flow> {
    let common = Correspondence::of(before, after);
    let known: HashMap<_, &Flow> = multicast_flows(before).map(|flow| (flow.match_key(), flow)).collect();
    multicast_flows(after)
        .find(|flow| known.get(&flow.match_key()).is_some_and(|old| !agree(&common, old, flow)))
}

/// The first flow of `after` that the tables, one for each direction, have no room for. Flows of both are
/// there once.
fn overflow<'p>(before: &Program, after: &'p Program, profile: &DeviceModel) -> Option<&'p Flow> {
    let limits = profile.flow_table()?;
    let mut tables: BTreeMap<FlowKind, TableFill<_>> = BTreeMap::new();
    let mut add =
        |flow: &Flow| tables.entry(flow.kind).or_insert_with(|| TableFill::new(limits)).add(&flow.shape());
    multicast_flows(before).for_each(|flow| {
        add(flow);
    });
    let known: HashSet<_> = multicast_flows(before).map(Flow::match_key).collect();
    multicast_flows(after).find(|flow| !known.contains(&flow.match_key()) && !add(flow))
}

#[cfg(test)]
mod tests {
    use device_model::PriorityTable;
    use policy::{NoFiles, Source};

    use super::*;
    use crate::diagnostics::reload_conflict;

    fn text(rules: &str) -> String {
        format!("version = 1\n[groups.one]\nworkers = [0]\nhash = 'none'\n{rules}")
    }

    fn program(rules: &str, profile: &DeviceModel) -> Program {
        let (policy, _) =
            policy::parse(&Source::new("reload_conflict.toml", text(rules)), &NoFiles).expect("a policy");
        crate::compile(&policy, profile, 1).expect("a program")
    }

    fn rule(name: &str, matches: &str, action: &str) -> String {
        format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = {action}\n")
    }

    const STEER: &str = "{ steer = 'one' }";

    #[test]
    fn a_match_on_multicast_is_in_the_table_once() {
        let mlx5 = DeviceModel::mlx5();
        let of = |matches: &str, action: &str| program(&rule("r", matches, action), &mlx5);
        let all = of("dst_mac = 'multicast'", STEER);
        assert_eq!(reload_conflict(&all, &all, &mlx5), None, "the flow stays");
        let renamed = program(&rule("q", "dst_mac = 'multicast'", STEER), &mlx5);
        let obstacle = reload_conflict(&all, &renamed, &mlx5).expect("packets are counted for another rule");
        assert_eq!((obstacle.errno, obstacle.rule), (Some(Errno::Eexist), Some(RuleId(0))));
        assert_eq!(reload_conflict(&all, &renamed, &DeviceModel::ideal()), None);
        // Made beside the first, the other policy has the match in halves, and the first is whole again.
        let beside = |previous: &Program, name: &str| {
            let source = Source::new("again.toml", text(&rule(name, "dst_mac = 'multicast'", STEER)));
            let (policy, _) = policy::parse(&source, &NoFiles).expect("a policy");
            let again = crate::compile_with(&policy, &mlx5, 1, Some(previous)).expect("a program");
            assert_eq!(reload_conflict(previous, &again, &mlx5), None);
            again
        };
        assert_eq!(beside(&all, "r").flows, all.flows);
        let halves = beside(&all, "q");
        let specs: Vec<String> = halves.flows.iter().map(ToString::to_string).collect();
        assert_eq!(
            specs,
            ["eth dst=01:00:00:00:00:00/01:00:00:00:00:01", "eth dst=01:00:00:00:00:01/01:00:00:00:00:01"]
        );
        assert_eq!(beside(&halves, "r").flows.len(), 1, "whole again");
        let dropped = of("dst_mac = 'multicast'", "'drop'");
        assert!(
            reload_conflict(&dropped, &all, &mlx5).is_some()
                && reload_conflict(&all, &dropped, &mlx5).is_some()
        );
        assert_eq!(reload_conflict(&dropped, &dropped, &mlx5), None, "they are the same");
        let unicast = of("dst = '192.0.2.1'", STEER);
        let by_address = of("dst = '224.0.0.0/4'", STEER);
        let inside = of("inner = { dst_mac = 'multicast' }", STEER);
        let fine = [(&unicast, &all), (&all, &unicast), (&by_address, &by_address), (&inside, &inside)];
        for (before, after) in fine {
            assert_eq!(reload_conflict(before, after, &mlx5), None);
        }
    }

    #[test]
    fn both_programs_need_room_in_the_one_table() {
        let table = PriorityTable { entries: 8, groups: 2, group_entries: 2 };
        let device = DeviceModel { priority_table: Some(table), ..DeviceModel::mlx5() };
        let dropping = |groups: std::ops::Range<u32>| {
            let matches = |group| format!("dst_mac = 'multicast', dst = '192.0.2.{group}'");
            let rules: String =
                groups.map(|group| rule(&format!("r{group}"), &matches(group), "'drop'")).collect();
            program(&rules, &device)
        };
        // One mask: two groups of two flows, and four flows beside them.
        assert_eq!(reload_conflict(&dropping(0..4), &dropping(4..8), &device), None);
        assert_eq!(reload_conflict(&dropping(0..8), &dropping(0..8), &device), None, "they are the same");
        let obstacle = reload_conflict(&dropping(0..4), &dropping(4..9), &device).expect("the ninth");
        assert_eq!((obstacle.errno, obstacle.rule), (Some(Errno::Enospc), Some(RuleId(4))), "{obstacle:?}");
    }
}
