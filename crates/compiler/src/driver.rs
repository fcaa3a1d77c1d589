//! The driver runs the passes in turn, those of `cover`, `except`, `rank`, `fit` and `emit`:
//!
//! | pass | from | to |
//! |---|---|---|
//! | `groups` | weights of workers | indirection tables |
//! | `cover` | the matches of rules | cubes that cover them (`expand`), legal for the device (`legalize`) |
//! | `subtract` | cubes, and rules that leave packets to the kernel | cubes without these packets |
//! | `place` | rules | what their flows do: hardware, worker, or no flow |
//! | `lower` | rules | candidates: a cube, its rule and its action, one for each hash variant |
//! | `order` | candidates | candidates with ranks, by overlap |
//! | `select_flows` | ranked candidates | those of most value, where the device has room for few |
//! | `limit_ranks` | ranked candidates | the same with fewer ranks, where the device has few priorities |
//! | `spread_ranks` | ranked candidates | the same with fewer flows in ranks that a priority has no room for |
//! | `merge_masks` | ranked candidates | the same with fewer masks, where the device has room for few |
//! | `assign_priorities` | ranks | priorities of the program, from 0 |
//! | `assemble` | prioritized candidates | the program: flow specs (`specs`), queues, classes (`classes`) |
//! | `separate` | the program, and the one that it replaces | the same without matches that cannot be on the device twice |
//!
//! Where the program does not fit on the device, less and less is demanded of the device, and workers decide
//! more packets: with fewer shared flows and ranks (`search`), without flows that are split for exceptions,
//! and with a choice of the flows (`select_flows`) for fewer and fewer masks. No pass changes what another
//! one reads again, and each attempt begins with the rules of the policy.

use std::collections::BTreeSet;

use device_model::DeviceModel;
use program::{Program, RuleId, UndecidedReason};

use crate::capacity;
use crate::cost::program_ps;
use crate::cover::{self, CoveredRule, MAX_FLOWS};
use crate::drawn_packets::{MAX_FLOWS_TRIED, draw_packets};
use crate::emit::assemble::{self, Placed};
use crate::emit::separate;
use crate::except::overlaps::{self, Overlaps};
use crate::except::place::{self, ByOrder, Earlier, Placement, Prepared};
use crate::except::subtract;
use crate::fit::assign_priorities::{self, Assigned};
use crate::fit::flow_problems::flow_problems;
use crate::fit::limit_ranks::{self, Limited, MAX_SHARED_OF_FLOW};
use crate::fit::merge_masks;
use crate::fit::search::{MAX_ROUNDS, Next, Round, Search};
use crate::fit::select_flows::{self, Room};
use crate::fit::spread_ranks;
use crate::groups;
use crate::job::Job;
use crate::problem::{Problem, Problems};
use crate::rank::lower;
use crate::rank::order::{self, RankedFlows};

/// After so many rounds in which rules that drop packets in hardware needed a worker, all of them get one.
const MAX_ROUNDS_FOR_DROPS: u32 = 2;

/// The numbers of masks that are tried after the one that a device has room for. Programs of few masks also
/// fit where a priority has few groups, or where another program is on the device.
const FEWER_MASKS: [usize; 4] = [128, 48, 24, 12];

/// The most selections that are tried.
const MAX_SELECTIONS: u32 = 7;

/// The findings of attempts that later ones use.
#[derive(Clone, Default)]
struct Known {
    /// How often the passes from ranking to priorities have run.
    rounds: u32,
    /// The rules that got a worker because the device has too few priorities; they keep it.
    by_order: ByOrder,
}

/// Why an attempt failed.
struct Refused {
    problems: Problems,
    stage: Stage,
}

/// Where an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before there were flows.
    Rules,
    /// After flows were split for exceptions, or after they were not.
    Flows { has_split: bool },
}

/// The demands of an attempt on the device, from high to low.
#[derive(Clone, Copy)]
enum Demands {
    /// All flows, and at most so many shared flows of one flow.
    AllFlows { shared_of_flow: usize },
    /// The flows of most value for which there is room.
    Selected(Room),
}

/// Flows with priorities, and what the passes before have decided.
struct Fitted {
    flows: RankedFlows,
    assigned: Assigned,
    placements: Vec<Placement>,
    earlier: Earlier,
}

impl Demands {
    /// The search for limits of the ranking with which the flows fit.
    fn search(self, profile: &DeviceModel) -> Search {
        match self {
            Self::AllFlows { shared_of_flow } => Search::new(profile, shared_of_flow),
            Self::Selected(_) => Search::of_one_round(profile),
        }
    }

    /// The lower demands for a device with too little room, in the order in which they are tried. A table of
    /// groups, or another program on the device, may leave room for few masks.
    fn relaxations(profile: &DeviceModel) -> impl Iterator<Item = Self> {
        let flows = profile.flows_per_program().unwrap_or(MAX_FLOWS).min(MAX_FLOWS);
        let masks = profile.max_shapes.map_or(usize::MAX, |most| most as usize);
        let groups = profile.flow_table().map_or(1, |table| table.groups as usize);
        let fewer = FEWER_MASKS.into_iter().chain([groups, 1]).filter(move |fewer| *fewer < masks);
        let fewer: BTreeSet<usize> = fewer.collect();
        let fewer = fewer.into_iter().rev();
        let ranks = profile.priorities_per_program();
        [masks]
            .into_iter()
            .chain(fewer)
            .take(MAX_SELECTIONS as usize)
            .map(move |masks| Self::Selected(Room { masks, flows, ranks }))
    }
}

impl Known {
    /// Notes the rules of which workers compare packets with earlier rules.
    fn note(&mut self, earlier: &Earlier, hybrid: &BTreeSet<RuleId>) {
        for rule in hybrid {
            let compared = earlier.get(rule).and_then(|earlier| Some((*earlier.first()?, earlier.len())));
            self.by_order.entry(*rule).or_insert(compared.unwrap_or((*rule, 0)));
        }
    }

    /// Gives a worker to every rule that drops received packets.
    fn drop_by_workers(&mut self, rules: &[CoveredRule], placements: &[Placement]) {
        let has_worker = |rule: RuleId| rules.get(rule.index()).is_none_or(CoveredRule::decides);
        for (index, placement) in placements.iter().enumerate() {
            let rule = RuleId::of(index);
            if *placement == Placement::Drop && has_worker(rule) {
                self.by_order.entry(rule).or_insert((rule, 0));
            }
        }
    }
}

impl Refused {
    /// After the flows of these rules were counted.
    fn flows<P>(
        prepared: &Prepared,
        found: impl IntoIterator<Item = P>,
        as_problem: fn(P) -> Problem,
    ) -> Self {
        let mut problems = Problems::default();
        problems.add(found, as_problem);
        Self { problems, stage: Stage::Flows { has_split: prepared.exceptions.has_split } }
    }
}

impl Job<'_> {
    /// Compiles the policy; the problems are typed, for [`Problems::diagnostics`] and
    /// [`Problems::obstacles`].
    ///
    /// # Errors
    /// The problems of the passes, as of [`compile`](crate::compile).
    pub fn program(&self) -> Result<Program, Problems> {
        self.program_within(MAX_SHARED_OF_FLOW)
    }

    /// The program with at most so many shared flows for one flow.
    pub(super) fn program_within(&self, shared_of_flow: usize) -> Result<Program, Problems> {
        self.relaxed(shared_of_flow, &mut Known::default())
    }

    /// Compiles with lower demands until the program fits, in the order of [`Demands::relaxations`]. The
    /// problems are those of all flows. If groups of flows cost packets time, all demands are compared,
    /// unless the policy does not allow a program to take more packets from the host.
    fn relaxed(&self, shared_of_flow: usize, known: &mut Known) -> Result<Program, Problems> {
        if !self.profile.can_steer() {
            return Err(Problem::NoSteering.into());
        }
        let all = self.attempt(Demands::AllFlows { shared_of_flow }, known);
        // Few groups may have made few ranks.
        let is_bound = |program: &Program| {
            let mut notes = program.rules.iter().flat_map(|rule| &rule.undecided);
            notes.any(|note| matches!(note.why, UndecidedReason::Order { .. }))
        };
        let has_price = self.profile.ns_per_group.is_some_and(|ns| ns > 0);
        let has_few_ranks = self.profile.max_groups.is_some() && all.as_ref().is_ok_and(is_bound);
        // Covers may take packets from the host that all flows, or narrower covers, leave to it.
        let is_compared = (has_price || has_few_ranks) && self.may_take_from_host();
        let may_select = match &all {
            Ok(_) => is_compared,
            Err(problems) => problems.are_about_capacity(),
        };
        if !may_select || self.policy.groups.is_empty() {
            return all;
        }
        let mut found = vec![all];
        for demands in Demands::relaxations(self.profile) {
            // No attempt depends on what another one has found, but all have their rounds together.
            known.by_order.clear();
            let program = self.attempt(demands, known);
            if program.is_ok() && !is_compared {
                return program;
            }
            found.push(program);
        }
        self.cheapest(found)
    }

    /// The program that costs a packet least time of workers, of groups that it passes and of installing it,
    /// of equal ones the first; without a program, the first problems.
    fn cheapest(&self, found: Vec<Result<Program, Problems>>) -> Result<Program, Problems> {
        let drawn = found.iter().flatten().next();
        let packets = drawn.map(|program| draw_packets(self.policy, program, MAX_FLOWS_TRIED));
        let packets = packets.unwrap_or_default();
        let cheaper = |best: (f64, Program), other: (f64, Program)| {
            if other.0 < best.0 { other } else { best }
        };
        let (programs, problems): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
        let rated = programs.into_iter().flatten();
        let rated = rated.map(|program| (program_ps(self, &packets, &program), program));
        match rated.reduce(cheaper) {
            Some((_, program)) => Ok(program),
            None => Err(problems.into_iter().find_map(Result::err).unwrap_or_default()),
        }
    }

    /// If flows were split for exceptions and the program does not fit, compiles again without splitting.
    fn attempt(&self, demands: Demands, known: &mut Known) -> Result<Program, Problems> {
        let refused = match self.run(demands, true, known) {
            Ok(program) => return Ok(program),
            Err(refused) if refused.stage != (Stage::Flows { has_split: true }) => {
                return Err(refused.problems);
            }
            Err(refused) => refused,
        };
        self.run(demands, false, known).map_err(|again| match again.stage {
            Stage::Flows { .. } => again.problems,
            // The second attempt failed before any flow was counted, for another reason than the first.
            Stage::Rules => refused.problems,
        })
    }

    /// All passes in turn. The line ends after a pass that finds problems.
    fn run(&self, demands: Demands, may_split: bool, known: &mut Known) -> Result<Program, Refused> {
        let mut problems = Problems::default();
        let (groups, refused) = groups::groups(self);
        problems.add(refused, Problem::Group);
        let (rules, uncovered) = cover::cover(self.policy, self.profile);
        problems.add(uncovered, Problem::Cover);
        if rules.len() < self.policy.rules.len() {
            return Err(Refused { problems, stage: Stage::Rules });
        }
        let (rules, exceptions) = subtract::subtract(self, rules, may_split);
        let mut overlaps = Overlaps::of(&rules);
        let next_groups = overlaps::next_groups(&rules, &mut overlaps, self.policy.default);
        let prepared = Prepared { groups, rules, exceptions, next_groups };
        let fitted = self.fit(&prepared, demands, known, problems)?;
        self.write(&prepared, overlaps, fitted, &known.by_order)
    }

    /// Rules to flows in their natural order, as far as that does not depend on the limits of the device.
    fn ranked(
        &self,
        prepared: &Prepared,
        earlier: &Earlier,
        by_order: &ByOrder,
        demands: Demands,
        mut problems: Problems,
    ) -> Result<(Vec<Placement>, RankedFlows), Refused> {
        let placements = place::place(self, prepared, earlier, by_order).unwrap_or_else(|unplaced| {
            problems.add(unplaced, Problem::Place);
            Vec::new()
        });
        if !problems.is_empty() {
            return Err(Refused { problems, stage: Stage::Rules });
        }
        let lowered = lower::lower(self, prepared, &placements)
            .map_err(|problem| Refused::flows(prepared, [problem], Problem::Lower))?;
        let mut flows = order::order(lowered);
        if let Demands::Selected(room) = demands {
            let selected = select_flows::select_flows(self, &prepared.rules, &flows, room);
            flows = order::order(selected);
        }
        Ok((placements, flows))
    }

    /// The passes from rules to flows with priorities. Where there are too few priorities, some are repeated:
    /// with a worker for rules that drop and become hybrid, and with other limits if one rank takes several
    /// priorities. `problems`: those of the passes before.
    fn fit(
        &self,
        prepared: &Prepared,
        demands: Demands,
        known: &mut Known,
        problems: Problems,
    ) -> Result<Fitted, Refused> {
        let (mut placements, mut natural) =
            self.ranked(prepared, &Earlier::new(), &known.by_order, demands, problems)?;
        let mut search = demands.search(self.profile);
        let mut rounds_for_drops = 0;
        loop {
            known.rounds += 1;
            let limited = limit_ranks::limit_ranks(self, &natural, search.limits());
            let Limited { flows, earlier, hybrid, shared_flows } =
                limited.map_err(|steps| Refused::flows(prepared, [steps], Problem::Steps))?;
            known.note(&earlier, &hybrid);
            if hybrid.iter().any(|rule| placements.get(rule.index()) == Some(&Placement::Drop)) {
                rounds_for_drops += 1;
                if rounds_for_drops == MAX_ROUNDS_FOR_DROPS || known.rounds >= MAX_ROUNDS {
                    known.drop_by_workers(&prepared.rules, &placements);
                }
                let none = Problems::default();
                (placements, natural) = self.ranked(prepared, &earlier, &known.by_order, demands, none)?;
                continue;
            }
            let ranks = flows.ranking.ranks();
            let flows = spread_ranks::spread_ranks(self.profile, flows);
            let flows = merge_masks::merge_masks(self.profile, flows);
            let assigned = assign_priorities::assign_priorities(self.profile, &flows);
            let round = Round { priorities: assigned.priorities, shared_flows, ranks };
            if let Next::Accept | Next::Refuse =
                search.next(round, known.rounds + MAX_SELECTIONS < MAX_ROUNDS)
            {
                let found = flow_problems(self, &flows, &assigned);
                return match found.is_empty() {
                    true => Ok(Fitted {
                        earlier: flows.lowered.compared(earlier, prepared.default()),
                        flows,
                        assigned,
                        placements,
                    }),
                    false => Err(Refused::flows(prepared, found, Problem::Flows)),
                };
            }
        }
    }

    /// The passes from flows with priorities to the program.
    fn write(
        &self,
        prepared: &Prepared,
        overlaps: Overlaps,
        fitted: Fitted,
        by_order: &ByOrder,
    ) -> Result<Program, Refused> {
        let Fitted { flows, assigned, placements, earlier } = fitted;
        let left = flows.lowered.left.clone();
        let placed = Placed { prepared, earlier: &earlier, by_order, placements: &placements, left: &left };
        let program = assemble::assemble(self, &placed, overlaps, flows.lowered, &assigned)
            .map_err(|steps| Refused::flows(prepared, [steps], Problem::Steps))?;
        let mut program = separate::separate(program, self.previous, self.profile);
        if let Some(previous) = self.previous {
            program.share_specs(previous);
        }
        let shortages = capacity::shortages(self, &program);
        match shortages.is_empty() {
            true => Ok(program),
            false => Err(Refused::flows(prepared, shortages, Problem::Shortage)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use policy::{NoFiles, Policy, Source};

    use super::*;

    /// Rules on two prefixes and a range of ports each, which overlap in long chains; every third drops.
    fn overlapping_rules(count: usize) -> Policy {
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut text = "version = 1\ndefault = 'drop'\n[groups.g]\nworkers = 'all'\n".to_owned();
        for rule in 0..count {
            let mut prefix = || {
                let length = next(17) + 8;
                let address = (10 << 24 | next(4) << 16 | next(4) << 14) & u64::MAX << (32 - length);
                format!("{}/{length}", std::net::Ipv4Addr::from(address as u32))
            };
            let (src, dst, port) = (prefix(), prefix(), next(60_000));
            let action = if rule % 3 == 2 { "'drop'" } else { "{ steer = 'g' }" };
            let row = writeln!(
                text,
                "[[rules]]\nname = 'r{rule}'\nmatch = {{ protocol = 'udp', src = '{src}', dst = '{dst}', \
                 dst_port = '{port}-{}' }}\naction = {action}",
                port + next(5_000)
            );
            row.expect("strings take text");
        }
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    }

    #[test]
    fn a_policy_is_compiled_in_few_rounds() {
        let policy = overlapping_rules(300);
        for masks in [6, 2, 1] {
            let mut profile = DeviceModel::mlx5();
            profile.priority_table =
                Some(device_model::PriorityTable { entries: 100 * masks, groups: masks, group_entries: 100 });
            let mut known = Known::default();
            let program = Job::new(&policy, &profile, 4).relaxed(MAX_SHARED_OF_FLOW, &mut known);
            assert!(program.is_ok_and(|program| program.priorities_used <= 15), "{masks}");
            assert!((4..=MAX_ROUNDS).contains(&known.rounds), "{} rounds for {masks}", known.rounds);
        }
    }

    #[test]
    fn passes_are_called_in_the_order_of_the_table() {
        let source = include_str!("driver.rs");
        let rows = source.lines().filter_map(|line| line.strip_prefix("//! | `"));
        let calls: Vec<usize> = rows
            .filter_map(|row| row.split('`').next())
            .map(|pass| {
                let found: Vec<_> = source.match_indices(&format!("{pass}::{pass}(")).collect();
                // Flows that were chosen are ranked anew.
                assert_eq!(found.len(), 1 + usize::from(pass == "order"), "{pass}");
                found[0].0
            })
            .collect();
        assert!(calls.len() > 8 && calls.is_sorted(), "{calls:?}");
    }
}
