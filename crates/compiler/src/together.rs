//! What the program on a device and the one that takes its place cannot both have while both are there, beyond what
//! `capacity` counts: flows on multicast alone, where a device keeps those of all priorities in one table. Asked by
//! `report`, and by `steerd` before a reload; compiles and changes nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use device_model::{DeviceProfile, Limit, PriorityTable};
use program::{Errno, Flow, FlowAction, FlowKind, Program, Spec};

use crate::Obstacle;

/// Why `after` cannot come to a device beside `before`; `None`: nothing that is known of. A rule that it names is one
/// of `after`.
#[must_use]
pub fn together(before: &Program, after: &Program, profile: &DeviceProfile) -> Option<Obstacle> {
    if !profile.multicast_ignores_priority {
        return None;
    }
    if let Some(flow) = same_match(before, after) {
        return Some(Obstacle {
            rule: Some(flow.rule.index()),
            reason: format!(
                "`{}` is on multicast alone, and `{}` keeps such flows of the old and the new program in one table",
                name(after, flow),
                profile.name
            ),
            limit: "a match is in it once, with one action and one tag".to_owned(),
            errno: Some(Errno::Eexist),
            remedy: "match groups by `dst`, or restart steerd in place of a reload".to_owned(),
        });
    }
    let table = profile.priority_table?;
    let flow = overflow(before, after, table)?;
    let PriorityTable { entries, groups, group_entries } = table;
    let alone = singles(table);
    Some(Obstacle {
        rule: Some(flow.rule.index()),
        reason: format!(
            "the flows on multicast alone of the old and the new program share one table of `{}`, which has no room \
             for all of `{}`",
            profile.name,
            name(after, flow)
        ),
        limit: format!("{entries} flows: {groups} masks of {group_entries} each, and {alone} beside them"),
        errno: Some(profile.errno(Limit::PriorityTable)),
        remedy:
            "use fewer ranges in the rules on multicast MAC addresses, or restart steerd in place of a reload"
                .to_owned(),
    })
}

/// What a table has once.
fn key(flow: &Flow) -> (FlowKind, usize, &[Spec]) {
    (flow.kind, flow.inner_from, &flow.specs)
}

/// A flow of `after` whose match `before` has, too, for something else. Tags never agree: each program has its own.
fn same_match<'p>(before: &Program, after: &'p Program) -> Option<&'p Flow> {
    let known: HashMap<_, FlowAction> = late(before).map(|flow| (key(flow), flow.action)).collect();
    let is_same = |old: FlowAction, new: FlowAction| old == new && !matches!(new, FlowAction::Steer { .. });
    late(after).find(|flow| known.get(&key(flow)).is_some_and(|old| !is_same(*old, flow.action)))
}

/// What [`Flow::shape`] gives.
type Shape = (FlowKind, usize, Vec<Spec>);

/// One table of such flows: the first masks get groups, what comes after them stands alone.
#[derive(Default)]
struct Table {
    /// The mask of each group and how many flows it has.
    groups: Vec<(Shape, u32)>,
    alone: u32,
}

/// The first flow of `after` that the tables, one for each direction, have no room for; what both have is there once.
fn overflow<'p>(before: &Program, after: &'p Program, limits: PriorityTable) -> Option<&'p Flow> {
    let mut tables: BTreeMap<FlowKind, Table> = BTreeMap::new();
    let mut has_room = |flow: &Flow| {
        let Table { groups, alone } = tables.entry(flow.kind).or_default();
        let shape = flow.shape();
        match groups.iter().position(|(known, used)| *known == shape && *used < limits.group_entries) {
            Some(group) => groups[group].1 += 1,
            None if groups.len() < limits.groups as usize => groups.push((shape, 1)),
            None => *alone += 1,
        }
        *alone <= singles(limits)
    };
    late(before).for_each(|flow| {
        has_room(flow);
    });
    let known: HashSet<_> = late(before).map(key).collect();
    late(after).find(|flow| !known.contains(&key(flow)) && !has_room(flow))
}

/// Flows that stand beside the groups.
fn singles(table: PriorityTable) -> u32 {
    table.entries.saturating_sub(table.groups * table.group_entries)
}

/// Copies stand with the others of their priority.
fn late(program: &Program) -> impl Iterator<Item = &Flow> {
    program.flows.iter().filter(|flow| flow.is_multicast_only())
}

fn name<'p>(program: &'p Program, flow: &Flow) -> &'p str {
    program.rules.get(flow.rule.index()).map_or("?", |rule| rule.name.as_str())
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;

    fn program(rules: &str, profile: &DeviceProfile) -> Program {
        let text = format!("version = 1\n[groups.one]\nworkers = [0]\nhash = 'none'\n{rules}");
        let (policy, _) = policy::parse(&Source::new("together.toml", text), &NoFiles).expect("a policy");
        crate::compile(&policy, profile, 1).expect("a program")
    }

    fn rule(name: &str, matches: &str, action: &str) -> String {
        format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = {action}\n")
    }

    const STEER: &str = "{ steer = 'one' }";

    #[test]
    fn a_match_on_multicast_alone_is_there_once() {
        let mlx5 = DeviceProfile::mlx5();
        let of = |matches: &str, action: &str| program(&rule("r", matches, action), &mlx5);
        let all = of("dst_mac = 'multicast'", STEER);
        let obstacle = together(&all, &all, &mlx5).expect("tags differ");
        assert_eq!((obstacle.errno, obstacle.rule), (Some(Errno::Eexist), Some(0)));
        assert_eq!(together(&all, &all, &DeviceProfile::ideal()), None);
        let dropped = of("dst_mac = 'multicast'", "'drop'");
        assert!(together(&dropped, &all, &mlx5).is_some() && together(&all, &dropped, &mlx5).is_some());
        assert_eq!(together(&dropped, &dropped, &mlx5), None, "nothing tells them apart");
        let unicast = of("dst = '192.0.2.1'", STEER);
        let by_address = of("dst = '224.0.0.0/4'", STEER);
        let inside = of("inner = { dst_mac = 'multicast' }", STEER);
        let fine = [(&unicast, &all), (&all, &unicast), (&by_address, &by_address), (&inside, &inside)];
        for (before, after) in fine {
            assert_eq!(together(before, after, &mlx5), None);
        }
    }

    #[test]
    fn both_programs_need_room_in_the_one_table() {
        let table = PriorityTable { entries: 8, groups: 2, group_entries: 2 };
        let device = DeviceProfile { priority_table: Some(table), ..DeviceProfile::mlx5() };
        let dropping = |groups: std::ops::Range<u32>| {
            let matches = |group| format!("dst_mac = 'multicast', dst = '192.0.2.{group}'");
            let rules: String =
                groups.map(|group| rule(&format!("r{group}"), &matches(group), "'drop'")).collect();
            program(&rules, &device)
        };
        // One mask: two groups of two flows, and four flows beside them.
        assert_eq!(together(&dropping(0..4), &dropping(4..8), &device), None);
        assert_eq!(together(&dropping(0..8), &dropping(0..8), &device), None, "they are the same");
        let obstacle = together(&dropping(0..4), &dropping(4..9), &device).expect("the ninth");
        assert_eq!((obstacle.errno, obstacle.rule), (Some(Errno::Enospc), Some(4)), "{obstacle:?}");
    }
}
