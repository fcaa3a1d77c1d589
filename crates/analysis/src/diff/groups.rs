//! Which groups of two policies are the same: packets that come to either land on the same workers. Used by
//! `diff`, with what changed in a group that differs.

use std::collections::{BTreeMap, BTreeSet};

use packet::{HashFields, RssKey};
use policy::policy::{DEFAULT_TABLE_SIZE, GroupDefinition, Workers};
use policy::spread::table_of;
use policy::{HASH_FIELDS, Policy};
use program::{GroupId, WorkerId};
use serde::Serialize;

/// For each group of the new policy the one of the old policy that is the same, or else a number of its own.
///
/// The same is what has the same content, and the same name or one that took the place of a name that is
/// gone.
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
type Content<'g> = (Option<Vec<(u32, u32)>>, bool, HashFields, &'g RssKey, bool, Option<u32>);

fn content(group: &GroupDefinition) -> Content<'_> {
    (shares(&group.workers), group.has_queues, group.fields, &group.key, group.symmetric, group.table_size)
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

/// A group of both policies that is not the same in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupChange {
    /// The name of the group, in both policies.
    pub name: String,
    /// The changes, as the policy writes them.
    pub changes: Vec<KeyChange>,
    /// For each worker that is in either, the part of the group's table that is its own.
    pub shares: Vec<ShareChange>,
    /// The part of the table whose entries have another worker now: connections that hash to these move.
    /// `None`: other fields or another key are hashed, and any connection may move.
    pub moved: Option<f64>,
}

/// One key of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyChange {
    /// `workers`, `queues`, `hash`, `key`, `symmetric` or `table_size`.
    pub key: &'static str,
    /// The old value.
    pub before: String,
    /// The new value.
    pub after: String,
}

/// The share of a group that one worker gets, from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShareChange {
    /// The number of the worker.
    pub worker: u32,
    /// The share by the old policy; 0: nothing.
    pub before: f64,
    /// The share by the new policy.
    pub after: f64,
}

/// The groups that have one name in both policies and another content. `workers`: how many "all" are. The
/// tables are those of a device that can have any.
#[must_use]
pub fn changed_groups(old: &Policy, new: &Policy, workers: usize) -> Vec<GroupChange> {
    let before: BTreeMap<&str, &GroupDefinition> =
        old.groups.iter().map(|group| (group.name.as_str(), group)).collect();
    let pairs = new.groups.iter().filter_map(|group| Some((*before.get(group.name.as_str())?, group)));
    let changed = pairs.filter(|(before, after)| content(before) != content(after));
    changed.map(|(before, after)| change(before, after, workers)).collect()
}

fn change(before: &GroupDefinition, after: &GroupDefinition, workers: usize) -> GroupChange {
    let sides = [before, after];
    let mut changes = Vec::new();
    let mut compare = |key, words: [String; 2]| {
        let [before, after] = words;
        if before != after {
            changes.push(KeyChange { key, before, after });
        }
    };
    let key_of_members = if sides.iter().all(|group| group.has_queues) { "queues" } else { "workers" };
    compare(key_of_members, sides.map(members));
    compare("hash", sides.map(|group| hash(group.fields)));
    compare("key", sides.map(|group| key(&group.key)));
    compare("symmetric", sides.map(|group| group.symmetric.to_string()));
    compare("table_size", sides.map(|group| group.table_size.unwrap_or(DEFAULT_TABLE_SIZE).to_string()));
    let tables = sides.map(|group| table_of(group, workers));
    let [held_before, held_after] = [0, 1].map(|side| held(sides[side], &tables[side]));
    let members: BTreeSet<u32> = held_before.keys().chain(held_after.keys()).copied().collect();
    let share = |held: &BTreeMap<u32, f64>, worker| held.get(&worker).copied().unwrap_or(0.0);
    let shares = members.into_iter().map(|worker| ShareChange {
        worker,
        before: share(&held_before, worker),
        after: share(&held_after, worker),
    });
    let is_hashed_alike = before.fields == after.fields && before.key == after.key;
    let shares = shares.collect();
    GroupChange { name: after.name.clone(), changes, shares, moved: is_hashed_alike.then(|| moved(&tables)) }
}

/// Each worker's part of a table. Where nothing is hashed, all packets come to the first entry.
fn held(group: &GroupDefinition, table: &[WorkerId]) -> BTreeMap<u32, f64> {
    let table = if group.fields.is_empty() { &table[..table.len().min(1)] } else { table };
    let mut entries: BTreeMap<u32, u32> = BTreeMap::new();
    table.iter().for_each(|worker| *entries.entry(worker.0).or_default() += 1);
    let size = table.len() as f64;
    entries.into_iter().map(|(worker, count)| (worker, f64::from(count) / size)).collect()
}

/// The part of all hashes that lead to another worker in the second table. A table is asked at the hash
/// modulo its size; sizes are powers of two, so the larger one shows all cases.
fn moved([before, after]: &[Vec<WorkerId>; 2]) -> f64 {
    let size = before.len().max(after.len());
    let entry = |table: &[WorkerId], hash: usize| table.get(hash % table.len().max(1)).copied();
    let moved = (0..size).filter(|hash| entry(before, *hash) != entry(after, *hash)).count();
    moved as f64 / size.max(1) as f64
}

/// Members with their weights, unless all are alike.
fn members(group: &GroupDefinition) -> String {
    let Workers::Listed(listed) = &group.workers else { return "\"all\"".to_owned() };
    let is_even = listed.windows(2).all(|pair| pair[0].weight == pair[1].weight);
    let items = listed.iter().map(|share| match is_even {
        true => share.worker.to_string(),
        false => format!("{} = {}", share.worker, share.weight),
    });
    let items = items.collect::<Vec<_>>().join(", ");
    match is_even {
        true if group.has_queues => format!("queues [{items}]"),
        true => format!("[{items}]"),
        false => format!("{{ {items} }}"),
    }
}

/// Hashed fields as the language writes them.
fn hash(fields: HashFields) -> String {
    let presets = [(HashFields::L3L4, "l3l4"), (HashFields::L3, "l3"), (HashFields::empty(), "none")];
    if let Some((_, name)) = presets.into_iter().find(|(preset, _)| *preset == fields) {
        return format!("\"{name}\"");
    }
    let mut left = fields;
    let mut names = Vec::new();
    // The names of several fields stand first.
    for (name, of) in HASH_FIELDS {
        if left.contains(of) {
            names.push(format!("\"{name}\""));
            left -= of;
        }
    }
    format!("[{}]", names.join(", "))
}

fn key(key: &RssKey) -> String {
    match *key {
        RssKey::SYMMETRIC => "\"symmetric\"".to_owned(),
        RssKey::MICROSOFT => "\"microsoft\"".to_owned(),
        _ => format!("\"{key}\""),
    }
}
