//! The pass that turns the weights of groups into indirection tables.

use std::collections::BTreeSet;

use device_model::DeviceModel;
use packet::HashFields;
use policy::policy::{DEFAULT_TABLE_SIZE, GroupDefinition, MAX_TABLE_SIZE, Workers};
use policy::spread::{all_workers, entries_for, hand_over, shares_of, spread};
use program::{Group, GroupId, WorkerId};

use crate::job::Job;

/// A group with a problem.
#[derive(Debug)]
pub(super) struct RefusedGroup {
    pub(super) group: GroupId,
    pub(super) problem: GroupProblem,
}

/// A problem of a group.
#[derive(Debug)]
pub(super) enum GroupProblem {
    /// The group lists a worker that is not configured; `share` is its place in the list.
    UnknownWorker {
        share: usize,
        workers: usize,
    },
    NoWorkers,
    /// No worker of the group gets packets now.
    OnlyAbsent,
    /// The group hashes the source or the destination alone, and the device hashes both or none.
    HalfHash,
    Table(TableProblem),
}

/// A problem of the indirection table of a group.
#[derive(Debug)]
pub(super) enum TableProblem {
    /// The device has tables of consecutive workers only.
    NotConsecutive(TableFault),
    TooLarge {
        entries: u32,
        most: u32,
    },
    /// Fewer entries than workers.
    TooSmall {
        entries: u32,
        workers: usize,
        needed: u32,
    },
    /// A worker's weight is too small for one entry; `needed` is the table size that would do.
    StarvedWorker {
        worker: u32,
        weight: u32,
        entries: usize,
        needed: Option<usize>,
    },
}

/// Why the workers of a group make no table of consecutive workers.
#[derive(Clone, Copy, Debug)]
pub(super) enum TableFault {
    Gap,
    Weights,
    Count(usize),
    Size,
}

/// The groups of a program, in the policy's order, and their problems.
pub(super) fn groups(job: &Job<'_>) -> (Vec<Group>, Vec<RefusedGroup>) {
    let (mut groups, mut refused) = (Vec::new(), Vec::new());
    for (index, definition) in job.policy.groups.iter().enumerate() {
        let mut problems = Vec::new();
        groups.push(group(job, definition, &mut problems));
        let group = GroupId::of(index);
        refused.extend(problems.into_iter().map(|problem| RefusedGroup { group, problem }));
    }
    (groups, refused)
}

fn group(job: &Job<'_>, definition: &GroupDefinition, problems: &mut Vec<GroupProblem>) -> Group {
    let (profile, workers) = (job.profile, job.workers);
    let shares: Vec<(u32, u32)> = match &definition.workers {
        Workers::All => all_workers(workers),
        Workers::Listed(listed) => {
            for (share, _) in listed.iter().enumerate().filter(|(_, share)| share.worker as usize >= workers)
            {
                problems.push(GroupProblem::UnknownWorker { share, workers });
            }
            shares_of(listed)
        }
    };
    let is_absent = |worker: WorkerId| job.absent.contains(&worker);
    let serving: Vec<(u32, u32)> =
        shares.iter().filter(|(worker, _)| !is_absent(WorkerId(*worker))).copied().collect();
    if shares.is_empty() {
        problems.push(GroupProblem::NoWorkers);
    } else if serving.is_empty() {
        problems.push(GroupProblem::OnlyAbsent);
    }
    if profile.hash_field_pairs && hashes_half_a_pair(definition.fields) {
        problems.push(GroupProblem::HalfHash);
    }
    let table = if profile.table_consecutive {
        consecutive(definition, &serving, profile).unwrap_or_else(|fault| {
            problems.push(GroupProblem::Table(TableProblem::NotConsecutive(fault)));
            Vec::new()
        })
    } else {
        let size = table_size(definition, profile, shares.len(), problems);
        // Without valid workers, or an allowed size, there is no table to look for starved workers in.
        let is_sound = problems.is_empty();
        let mut table = if is_sound { spread(&shares, size) } else { Vec::new() };
        if is_sound && let Some(problem) = starved_worker(definition, profile, &shares, &table) {
            problems.push(GroupProblem::Table(problem));
        }
        hand_over(&mut table, &serving, is_absent);
        table
    };
    Group {
        name: definition.name.clone(),
        description: definition.description.clone(),
        table,
        key: definition.key,
        fields: definition.fields,
        symmetric: definition.symmetric,
    }
}

/// Whether the source is hashed without the destination, or the other way round.
fn hashes_half_a_pair(fields: HashFields) -> bool {
    let pairs = [
        HashFields::SRC_IPV4 | HashFields::DST_IPV4,
        HashFields::SRC_IPV6 | HashFields::DST_IPV6,
        HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP,
        HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP,
    ];
    pairs.into_iter().any(|pair| fields.intersects(pair) && !fields.contains(pair))
}

/// A table of consecutive workers, each once, as many as a power of two.
fn consecutive(
    definition: &GroupDefinition,
    shares: &[(u32, u32)],
    profile: &DeviceModel,
) -> Result<Vec<WorkerId>, TableFault> {
    let mut workers: Vec<u32> = shares.iter().map(|(worker, _)| *worker).collect();
    workers.sort_unstable();
    let count = workers.len();
    let fits = count.is_power_of_two() && count <= profile.max_table as usize;
    if workers.windows(2).any(|pair| pair[1] != pair[0] + 1) {
        return Err(TableFault::Gap);
    }
    if shares.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        return Err(TableFault::Weights);
    }
    // A group without workers has been refused as such.
    if count > 0 && !fits {
        return Err(TableFault::Count(count));
    }
    if count > 0 && definition.table_size.is_some_and(|size| size as usize != count) {
        return Err(TableFault::Size);
    }
    Ok(workers.into_iter().map(WorkerId).collect())
}

fn table_size(
    definition: &GroupDefinition,
    profile: &DeviceModel,
    workers: usize,
    problems: &mut Vec<GroupProblem>,
) -> usize {
    // The largest power of two that the device has.
    let most = 1u32 << profile.max_table.max(1).ilog2();
    let needed = entries_for(workers);
    let entries = definition.table_size.unwrap_or_else(|| DEFAULT_TABLE_SIZE.min(most).max(needed));
    if entries > most {
        problems.push(GroupProblem::Table(TableProblem::TooLarge { entries, most }));
    }
    if entries < needed {
        problems.push(GroupProblem::Table(TableProblem::TooSmall { entries, workers, needed }));
    }
    entries.min(most) as usize
}

/// The first worker whose weight is too small for an entry. A group that hashes nothing has one receiver
/// anyway, which the language warns of.
fn starved_worker(
    definition: &GroupDefinition,
    profile: &DeviceModel,
    shares: &[(u32, u32)],
    table: &[WorkerId],
) -> Option<TableProblem> {
    let starved = |table: &[WorkerId]| {
        let served: BTreeSet<u32> = table.iter().map(|worker| worker.0).collect();
        shares.iter().find(|(worker, _)| !served.contains(worker)).copied()
    };
    let (worker, weight) = starved(table).filter(|_| !definition.fields.is_empty())?;
    let sizes = (0..=profile.max_table.clamp(1, MAX_TABLE_SIZE).ilog2()).map(|bits| 1usize << bits);
    let needed =
        sizes.filter(|size| *size > table.len()).find(|size| starved(&spread(shares, *size)).is_none());
    Some(TableProblem::StarvedWorker { worker, weight, entries: table.len(), needed })
}

#[cfg(test)]
mod tests {
    use policy::NoFiles;

    use super::*;

    fn tables(absent: &[u32], profile: &DeviceModel) -> Result<Vec<Vec<u32>>, String> {
        let text = "version = 1\ndefault = \"every\"\n[groups.every]\nworkers = \"all\"\ntable_size = 8\n\
                    [groups.first]\nworkers = [0]\ntable_size = 2\n\
                    [[rules]]\nname = \"r\"\nmatch = { protocol = \"tcp\" }\naction = { steer = \"first\" }\n";
        let (policy, _) = policy::parse(&policy::Source::new("p.toml", text), &NoFiles).expect("a policy");
        let absent: Vec<WorkerId> = absent.iter().map(|worker| WorkerId(*worker)).collect();
        let program = Job::new(&policy, profile, 4).without(&absent).compile();
        let table = |group: &Group| group.table.iter().map(|worker| worker.0).collect();
        program.map(|program| program.groups.iter().map(table).collect()).map_err(|found| found.to_string())
    }

    #[test]
    fn others_have_entries_of_absent_workers() {
        let ideal = DeviceModel::ideal();
        assert_eq!(tables(&[], &ideal).expect("a program")[0], [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(tables(&[1], &ideal).expect("a program")[0], [0, 0, 2, 3, 0, 2, 2, 3]);
        assert_eq!(tables(&[1, 2, 3], &ideal).expect("a program"), [vec![0; 8], vec![0; 2]]);
        let refused = tables(&[0], &ideal).expect_err("the other group has no worker");
        assert!(refused.contains("the group `first` has no worker that serves"), "{refused}");
    }

    #[test]
    fn absent_workers_leave_consecutive_ones() {
        let mlx4 = DeviceModel { table_consecutive: true, ..DeviceModel::ideal() };
        let refused = tables(&[1], &mlx4).expect_err("a gap");
        assert!(refused.contains("the workers of the group `every` do not follow each other"), "{refused}");
    }
}
