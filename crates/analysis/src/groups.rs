//! Which groups of two policies are the same: packets that come to either land on the same workers. `diff` asks.

use std::collections::BTreeSet;

use packet::{HashFields, RssKey};
use policy::Policy;
use policy::policy::{GroupDefinition, Workers};
use program::GroupId;

/// For each group of the new policy the one of the old policy that is the same, or else a number of its own.
///
/// The same is what has the same content, and the same name or one that took the place of a name that is gone.
pub(super) fn same_groups(old: &Policy, new: &Policy) -> Vec<GroupId> {
    let names = |policy: &Policy| -> BTreeSet<String> {
        policy.groups.iter().map(|group| group.name.clone()).collect()
    };
    let (old_names, new_names) = (names(old), names(new));
    let mut gone: Vec<(usize, &GroupDefinition)> =
        old.groups.iter().enumerate().filter(|(_, group)| !new_names.contains(&group.name)).collect();
    let mut number = |(index, group): (usize, &GroupDefinition)| {
        let same = if old_names.contains(&group.name) {
            old.groups.iter().position(|other| other.name == group.name && content(other) == content(group))
        } else {
            let place = gone.iter().position(|(_, other)| content(other) == content(group));
            place.map(|place| gone.remove(place).0)
        };
        GroupId::of(same.unwrap_or(old.groups.len() + index))
    };
    new.groups.iter().enumerate().map(&mut number).collect()
}

/// All that says where a group's packets land.
type Content<'g> = (Option<Vec<(u32, u32)>>, HashFields, &'g RssKey, bool, Option<u32>);

fn content(group: &GroupDefinition) -> Content<'_> {
    (shares(&group.workers), group.fields, &group.key, group.symmetric, group.table_size)
}

/// The workers and their shares, which count relative to each other; `None`: all workers.
fn shares(workers: &Workers) -> Option<Vec<(u32, u32)>> {
    let Workers::Listed(listed) = workers else { return None };
    let common = listed.iter().fold(0, |common, share| greatest_divisor(common, share.weight)).max(1);
    Some(listed.iter().map(|share| (share.worker, share.weight / common)).collect())
}

fn greatest_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
