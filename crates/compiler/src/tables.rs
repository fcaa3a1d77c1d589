//! Groups: weights to indirection tables, and the hash variants that a group's queue pairs need. Called by
//! `compile` first, and by `draft` for the variants; knows no rule.

use std::collections::BTreeSet;

use device_model::{DeviceProfile, Limit};
use packet::HashFields;
use policy::policy::{DEFAULT_TABLE_SIZE, GroupDefinition, MAX_TABLE_SIZE, Workers};
use policy::spread::{entries_for, everyone, spread};
use policy::{Policy, Severity};
use program::{Group, HashVariant, WorkerId};

use super::cube::{Cube, Field, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP};
use super::findings::{Findings, Obstacle};

/// The groups of a program, in the policy's order.
pub(super) fn groups(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    problems: &mut Findings,
) -> Vec<Group> {
    policy.groups.iter().map(|definition| group(definition, profile, workers, problems)).collect()
}

fn group(
    definition: &GroupDefinition,
    profile: &DeviceProfile,
    workers: usize,
    problems: &mut Findings,
) -> Group {
    let errors_before = problems.diagnostics.error_count();
    let shares: Vec<(u32, u32)> = match &definition.workers {
        Workers::All => everyone(workers),
        Workers::Listed(listed) => {
            let hint = match workers {
                0 => "the settings configure no workers".to_owned(),
                1 => "the settings configure one worker: 0".to_owned(),
                _ => format!("the settings configure {workers} workers: 0 to {}", workers - 1),
            };
            for share in listed.iter().filter(|share| share.worker as usize >= workers) {
                problems.diagnostics.push_with(Severity::Error, || {
                    let message = format!("the group `{}` names worker {}", definition.name, share.worker);
                    share.place.error(message, "no such worker").hint(hint.clone())
                });
            }
            listed.iter().map(|share| (share.worker, share.weight)).collect()
        }
    };
    if shares.is_empty() {
        let error =
            definition.place.error(format!("the group `{}` has no workers", definition.name), "empty");
        problems.diagnostics.push(error.hint("the settings configure no workers"));
    }
    pairs(definition, profile, problems);
    let table = if profile.table_consecutive {
        consecutive(definition, profile, &shares, problems)
    } else {
        let size = table_size(definition, profile, shares.len(), problems);
        // A table of workers that there are not, or no room for, is nobody's.
        let is_sound = problems.diagnostics.error_count() == errors_before;
        let table = if is_sound { spread(&shares, size) } else { Vec::new() };
        if is_sound {
            starved_workers(definition, profile, &shares, &table, problems);
        }
        table
    };
    Group {
        name: definition.name.clone(),
        table,
        key: definition.key,
        fields: definition.fields,
        symmetric: definition.symmetric,
    }
}

/// Refuses a group that hashes half of what the device hashes as a whole only.
fn pairs(definition: &GroupDefinition, profile: &DeviceProfile, problems: &mut Findings) {
    let pairs = [
        HashFields::SRC_IPV4 | HashFields::DST_IPV4,
        HashFields::SRC_IPV6 | HashFields::DST_IPV6,
        HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP,
        HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP,
    ];
    let halved =
        |pair: &HashFields| definition.fields.intersects(*pair) && !definition.fields.contains(*pair);
    if profile.hash_field_pairs && pairs.iter().any(halved) {
        let obstacle = Obstacle {
            rule: None,
            reason: format!("the group `{}` hashes source or destination alone", definition.name),
            limit: format!("`{}` hashes both or none", profile.name),
            errno: Some(profile.errno(Limit::Queues)),
            remedy: "write hash = \"l3l4\", \"l3\" or \"none\"".to_owned(),
        };
        problems.refuse(&definition.place, "", obstacle);
    }
}

/// A table that names workers in a row, each once, as many as a power of two.
fn consecutive(
    definition: &GroupDefinition,
    profile: &DeviceProfile,
    shares: &[(u32, u32)],
    problems: &mut Findings,
) -> Vec<WorkerId> {
    let mut workers: Vec<u32> = shares.iter().map(|(worker, _)| *worker).collect();
    workers.sort_unstable();
    let in_a_row = workers.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let equal = shares.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let count = workers.len();
    let fits = count.is_power_of_two() && count <= profile.max_table as usize;
    let size_fits = definition.table_size.is_none_or(|size| size as usize == count);
    if count > 0 && !(in_a_row && equal && fits && size_fits) {
        let reason = match (in_a_row, equal) {
            (false, _) => format!("the workers of the group `{}` do not follow each other", definition.name),
            (_, false) => format!("the workers of the group `{}` have different weights", definition.name),
            _ if !fits => format!("the group `{}` has {count} workers", definition.name),
            _ => format!("the group `{}` wants a table of another size than its workers", definition.name),
        };
        let obstacle = Obstacle {
            rule: None,
            reason,
            limit: format!("a table of `{}` names workers in a row, each once", profile.name),
            errno: Some(profile.errno(Limit::Tables)),
            remedy:
                "name 1, 2, 4, 8, ... workers that follow each other, of equal weight, without table_size"
                    .to_owned(),
        };
        problems.refuse(&definition.place, "", obstacle);
    }
    workers.into_iter().map(WorkerId).collect()
}

fn table_size(
    definition: &GroupDefinition,
    profile: &DeviceProfile,
    workers: usize,
    problems: &mut Findings,
) -> usize {
    // The largest power of two that the device has.
    let most = 1u32 << profile.max_table.max(1).ilog2();
    let wanted = definition.table_size.unwrap_or(DEFAULT_TABLE_SIZE.min(most));
    let needed = entries_for(workers);
    let size = match definition.table_size {
        Some(size) => size,
        None => wanted.max(needed),
    };
    if size > most {
        let remedy = match definition.table_size {
            Some(_) => format!("write table_size = {most}, or leave it out"),
            None => format!("name {most} workers at most"),
        };
        let obstacle = Obstacle {
            rule: None,
            reason: format!("the table of the group `{}` needs {size} entries", definition.name),
            limit: format!("`{}` has tables of at most {most} entries", profile.name),
            errno: Some(profile.errno(Limit::Tables)),
            remedy,
        };
        problems.refuse(&definition.place, "", obstacle);
    }
    if size < needed {
        let message =
            format!("the table of the group `{}` has {size} entries for {workers} workers", definition.name);
        let hint = format!("write table_size = {needed}");
        problems.diagnostics.push(definition.place.error(message, "some would receive nothing").hint(hint));
    }
    size.min(most) as usize
}

/// Reports the first worker whose weight is too small for an entry. Hashing nothing, a group has one
/// receiver anyway, and a warning says so.
fn starved_workers(
    definition: &GroupDefinition,
    profile: &DeviceProfile,
    shares: &[(u32, u32)],
    table: &[WorkerId],
    problems: &mut Findings,
) {
    let starved = |table: &[WorkerId]| {
        let served: BTreeSet<u32> = table.iter().map(|worker| worker.0).collect();
        shares.iter().find(|(worker, _)| !served.contains(worker)).copied()
    };
    let Some((worker, weight)) = starved(table).filter(|_| !definition.fields.is_empty()) else { return };
    let sizes = (0..=profile.max_table.clamp(1, MAX_TABLE_SIZE).ilog2()).map(|bits| 1usize << bits);
    let needed =
        sizes.filter(|size| *size > table.len()).find(|size| starved(&spread(shares, *size)).is_none());
    let size = table.len();
    let message = format!("worker {worker} of weight {weight} gets no entry in a table of {size}");
    let hint = match needed {
        Some(needed) => format!("write table_size = {needed}, or weights less far apart"),
        None => {
            format!("no table that `{}` has is large enough: write weights less far apart", profile.name)
        }
    };
    problems.diagnostics.push(definition.place.error(message, "would receive nothing").hint(hint));
}

/// A hash variant as the packets that it serves.
pub(super) struct Variant {
    pub(super) variant: HashVariant,
    pub(super) fields: HashFields,
    pub(super) packets: Cube,
}

/// The variants of a group that hash something of their own, specific ones first, `Other` last.
///
/// A variant that would hash no more than the more general one after it is left out.
pub(super) fn variants(group: &Group, profile: &DeviceProfile) -> Vec<Variant> {
    let everything = |variant| Variant { variant, fields: group.fields, packets: Cube::ANY };
    if !profile.hash_field_exclusive && !group.fields.is_empty() {
        return vec![everything(HashVariant::All)];
    }
    let mut variants = Vec::new();
    for (ip, ip_fields, names) in [
        (HAS_IPV4, HashFields::IPV4, [HashVariant::V4Tcp, HashVariant::V4Udp, HashVariant::V4]),
        (HAS_IPV6, HashFields::IPV6, [HashVariant::V6Tcp, HashVariant::V6Udp, HashVariant::V6]),
    ] {
        let addresses = group.fields & ip_fields;
        for (variant, transport, ports) in
            [(names[0], HAS_TCP, HashFields::TCP), (names[1], HAS_UDP, HashFields::UDP)]
        {
            let fields = group.fields & (ip_fields | ports);
            if fields != addresses {
                variants.extend(packets(&[ip, transport]).map(|packets| Variant {
                    variant,
                    fields,
                    packets,
                }));
            }
        }
        if !addresses.is_empty() {
            let variant = names[2];
            variants.extend(packets(&[ip]).map(|packets| Variant { variant, fields: addresses, packets }));
        }
    }
    variants.push(Variant { fields: HashFields::empty(), ..everything(HashVariant::Other) });
    variants
}

fn packets(layers: &[Field]) -> Option<Cube> {
    layers.iter().try_fold(Cube::ANY, |cube, layer| cube.layer(*layer, true))?.closed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_follow_the_hashed_fields() {
        let group = |fields| Group {
            name: "g".to_owned(),
            table: vec![WorkerId(0)],
            key: packet::RssKey::SYMMETRIC,
            fields,
            symmetric: true,
        };
        let names = |fields| -> Vec<HashVariant> {
            variants(&group(fields), &DeviceProfile::ideal()).iter().map(|variant| variant.variant).collect()
        };
        assert_eq!(names(HashFields::L3L4).len(), 7);
        assert_eq!(names(HashFields::L3), [HashVariant::V4, HashVariant::V6, HashVariant::Other]);
        assert_eq!(names(HashFields::empty()), [HashVariant::Other]);
        assert_eq!(
            names(HashFields::SRC_PORT_TCP),
            [HashVariant::V4Tcp, HashVariant::V6Tcp, HashVariant::Other]
        );
        let mixed = DeviceProfile { hash_field_exclusive: false, ..DeviceProfile::ideal() };
        assert_eq!(variants(&group(HashFields::L3L4), &mixed).len(), 1);
    }
}
