//! A [`Policy`] to a [`Program`] for one device, as a sequence of passes:
//!
//! | pass | from | to |
//! |---|---|---|
//! | `groups` | weights of workers | indirection tables |
//! | `cover` | the matches of rules | cubes that cover them (`expand`), legal for the device (`legalize`) |
//! | `coarsen` | cubes | wider cubes, where the device has too few flows or masks |
//! | `subtract` | cubes, and rules that leave packets to the kernel | cubes without these packets |
//! | `place` | rules | what their flows do: hardware, worker, or no flow |
//! | `lower` | rules | candidates: a cube, its rule and its action, one for each hash variant |
//! | `order` | candidates | candidates with ranks, by overlap |
//! | `limit_ranks` | ranked candidates | the same with fewer ranks, where the device has few priorities |
//! | `spread_ranks` | ranked candidates | the same with fewer flows in ranks that a priority has no room for |
//! | `merge_masks` | ranked candidates | the same with fewer masks, where the device has room for few |
//! | `assign_priorities` | ranks | priorities of the program, from 0 |
//! | `assemble` | prioritized candidates | the program: flow specs (`emit`), queues, classes (`classes`) |
//! | `separate` | the program, and the one that it replaces | the same without matches that cannot be on the device twice |
//!
//! While the flows need too many priorities, `search` narrows the limits of `limit_ranks`, and the passes
//! from there on are repeated. The limits of the device are checked in `capacity`. Each pass has its own type of
//! error; `problem` joins them, and only `diagnostics` contains their English text. No pass depends on the order of a
//! hash map, so equal input gives an equal program.
//!
//! It opens no device, reads no file and prints nothing. [`Job::check`] and [`Job::report`] describe the
//! result to an operator, [`Capacity`] counts what a program needs of a device, [`reload_conflict()`] finds
//! why two programs cannot be installed at once.
//!
//! ```
//! use device_model::DeviceProfile;
//! use policy::{NoFiles, Source};
//!
//! let text = "version = 1\ndefault = 'kernel'\n[groups.rx]\nworkers = 'all'\n\
//!     [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'rx' }\n";
//! let (policy, _) = policy::parse(&Source::new("dns.toml", text), &NoFiles)?;
//! let program = compiler::compile(&policy, &DeviceProfile::mlx5(), 4)?;
//! let flows: Vec<String> = program.flows.iter().map(ToString::to_string).collect();
//! assert_eq!(flows, ["ipv4 | udp dport=53", "ipv6 | udp dport=53"]);
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod actions;
mod assemble;
mod assign_priorities;
mod capacity;
mod check;
mod classes;
mod coarsen;
mod cost;
mod cover;
mod diagnostics;
mod emit;
mod expand;
mod groups;
mod job;
mod legalize;
mod limit_ranks;
mod lower;
mod mask_index;
mod merge_masks;
mod order;
mod place;
mod problem;
mod reasons;
mod report;
mod rule_counter;
mod savings;
mod search;
mod separate;
mod share;
mod spread_ranks;
mod subtract;
mod traffic;
mod weights;

use device_model::DeviceProfile;
use packet::cube;
use policy::{Diagnostics, Policy};
use program::Program;

use classes::Overlaps;
use coarsen::Coarse;
use limit_ranks::MAX_SHARED_OF_FLOW;
use lower::Lowered;
use order::Ranking;
use place::{ByOrder, Earlier, Placed};
use problem::{Problem, Problems};
use search::{MAX_ROUNDS, Next, Round, Search};
use share::{MAX_FLOWS_TRIED, Sample};

pub use capacity::{Capacity, CapacityRow, PriorityUse};
pub use check::{Check, RuleCheck};
pub use diagnostics::{Obstacle, reload_conflict};
pub use job::Job;
pub use report::{Decided, PolicingReport, Report, RuleReport, WorkerLimit};
pub use rule_counter::RuleCounter;
pub use savings::Saving;
pub use share::{Share, Shares, shares};
pub use traffic::{Amount, Decision, Decisions, TrafficSample, TrafficShare, TrafficShares};
pub use weights::Weights;

/// Compiles a policy for a device and a number of workers.
///
/// # Errors
/// Everything that does not fit: workers that do not exist, tables, flows or priorities beyond the device's
/// limits.
pub fn compile(policy: &Policy, profile: &DeviceProfile, workers: usize) -> Result<Program, Diagnostics> {
    Job::new(policy, profile, workers).compile()
}

/// Like [`compile`], [beside](Job::beside) the program that is on the device.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    previous: Option<&Program>,
) -> Result<Program, Diagnostics> {
    Job::new(policy, profile, workers).beside(previous).compile()
}

/// The [report](Job::report) of a policy for a device, beside the program that is on it.
#[must_use]
pub fn report(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    previous: Option<&Program>,
) -> Report {
    Job::new(policy, profile, workers).beside(previous).report()
}

/// Like [`compile`], with at most so many shared flows for one flow: for tests of what happens where they run
/// out.
///
/// # Errors
/// As [`compile`].
#[doc(hidden)]
pub fn compile_with_shared_flows(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    shared_of_flow: usize,
) -> Result<Program, Diagnostics> {
    let compiled = Job::new(policy, profile, workers).compile_in(&mut Attempts::new(shared_of_flow));
    compiled.map_err(|problems| problems.diagnostics(policy, profile))
}

impl Job<'_> {
    /// The program.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn compile(&self) -> Result<Program, Diagnostics> {
        self.program().map_err(|problems| problems.diagnostics(self.policy, self.profile))
    }

    /// The percentage of packets that the device decides, if each rule decides as many as its weight; `None`:
    /// no rule that packets are drawn from has a weight. Estimated with packets drawn from the rules; those
    /// of the default do not count.
    #[must_use]
    pub fn hardware_percent(&self, program: &Program, weights: &Weights) -> Option<f64> {
        let sample = Sample::of(self.policy, program, MAX_FLOWS_TRIED);
        sample.hardware_percent(program, Some(weights), |_| true)
    }

    /// The program described, or why there is none.
    #[must_use]
    pub fn report(&self) -> Report {
        report::describe(self)
    }
}

/// Why there is no program.
struct Refused {
    problems: Problems,
    /// Whether flows were split for exceptions; `None`: a pass before that failed.
    has_split: Option<bool>,
}

/// Where compiling ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before there were flows.
    Rules,
    Flows,
}

/// The state that the attempts to compile a policy share.
#[derive(Clone)]
struct Attempts {
    /// The most shared flows of one flow.
    shared_of_flow: usize,
    /// How often the passes from ranking to priorities have run.
    rounds: u32,
    /// The rules that got a worker because the device has too few priorities; they keep it.
    by_order: ByOrder,
}

impl Attempts {
    fn new(shared_of_flow: usize) -> Self {
        Self { shared_of_flow, rounds: 0, by_order: ByOrder::new() }
    }
}

/// After so many rounds in which rules that drop packets in hardware needed a worker, all of them get one.
const MAX_ROUNDS_FOR_DROPS: u32 = 2;

impl Job<'_> {
    /// Compiles, with wider cubes if the device has no capacity for the exact ones.
    pub(crate) fn program(&self) -> Result<Program, Problems> {
        self.compile_in(&mut Attempts::new(MAX_SHARED_OF_FLOW))
    }

    fn compile_in(&self, attempts: &mut Attempts) -> Result<Program, Problems> {
        if !self.profile.can_steer() {
            return Err(Problem::NoSteering.into());
        }
        let problems = match self.attempt(None, attempts) {
            Err(problems) if problems.are_about_capacity() => problems,
            result => return result,
        };
        for alternatives in Coarse::steps(self.weights.is_some()) {
            // No alternative depends on what another one has tried.
            let before = attempts.clone();
            let fitting = alternatives.filter_map(|coarse| {
                *attempts = before.clone();
                self.attempt(Some(coarse), attempts).ok()
            });
            if let Some(program) = self.best(fitting.collect()) {
                return Ok(program);
            }
        }
        Err(problems)
    }

    /// The program that decides most packets in hardware, of equal ones the first.
    fn best(&self, programs: Vec<Program>) -> Option<Program> {
        let [first, _, ..] = &*programs else { return programs.into_iter().next() };
        let sample = Sample::of(self.policy, first, MAX_FLOWS_TRIED);
        let percent =
            |program: &Program| sample.hardware_percent(program, self.weights, |_| true).unwrap_or(0.0);
        let rated = programs.into_iter().map(|program| (percent(&program), program));
        let better =
            |best: (f64, Program), other: (f64, Program)| if other.0 > best.0 { other } else { best };
        rated.reduce(better).map(|(_, program)| program)
    }

    /// If flows were split for exceptions and the program does not fit, compiles again without splitting.
    fn attempt(&self, coarse: Option<Coarse>, attempts: &mut Attempts) -> Result<Program, Problems> {
        let refused = match self.run(true, coarse, attempts) {
            Ok(program) => return Ok(program),
            Err(refused) if refused.has_split != Some(true) => return Err(refused.problems),
            Err(refused) => refused,
        };
        self.run(false, coarse, attempts).map_err(|again| match again.has_split {
            Some(_) => again.problems,
            // The second attempt failed before any flow was counted, for another reason than the first.
            None => refused.problems,
        })
    }

    /// All passes in turn. The line ends after a pass that finds problems.
    fn run(
        &self,
        may_split: bool,
        coarse: Option<Coarse>,
        attempts: &mut Attempts,
    ) -> Result<Program, Refused> {
        let mut problems = Problems::default();
        let (groups, refused) = groups::groups(self);
        problems.add(refused, Problem::Group);
        let (mut rules, uncovered) = cover::cover(self);
        problems.add(uncovered, Problem::Cover);
        if rules.len() < self.policy.rules.len() {
            return Err(Refused { problems, has_split: None });
        }
        coarsen::coarsen(&mut rules, coarse, self.weights);
        let exceptions = subtract::subtract(self, &mut rules, may_split);
        let mut overlaps = Overlaps::of(&rules);
        let next_groups = classes::next_groups(&rules, &mut overlaps, self.policy.default);
        let has_split = exceptions.has_split;
        let by_order = std::mem::take(&mut attempts.by_order);
        let (earlier, placements) = (Earlier::new(), Vec::new());
        let mut placed =
            Placed { groups, rules, exceptions, overlaps, next_groups, earlier, by_order, placements };
        let search = match coarse {
            None => Search::new(self.profile, attempts.shared_of_flow),
            Some(_) => Search::from_narrowest(self.profile),
        };
        let written = self.write(&mut placed, search, &mut attempts.rounds, &mut problems);
        attempts.by_order = placed.by_order;
        written.map_err(|stage| {
            let has_split = (stage == Stage::Flows).then_some(has_split);
            Refused { problems, has_split }
        })
    }

    /// Rules to flows in their natural order, as far as that does not depend on the limits of the device.
    fn ranked(&self, placed: &mut Placed, problems: &mut Problems) -> Result<(Lowered, Ranking), Stage> {
        match place::place(self, placed) {
            Ok(placements) => placed.placements = placements,
            Err(unplaced) => problems.add(unplaced, Problem::Place),
        }
        if !problems.is_empty() {
            return Err(Stage::Rules);
        }
        let lowered = lower::lower(self, placed).map_err(|problem| {
            problems.add([problem], Problem::Lower);
            Stage::Flows
        })?;
        let ranking = order::order(&lowered.candidates, self.apart);
        Ok((lowered, ranking))
    }

    /// The passes from cubes to the program. Where there are too few priorities, some are repeated: with a
    /// worker for rules that drop and become hybrid, and with other limits if one rank takes several
    /// priorities.
    fn write(
        &self,
        placed: &mut Placed,
        mut search: Search,
        rounds: &mut u32,
        problems: &mut Problems,
    ) -> Result<Program, Stage> {
        let (mut lowered, mut natural) = self.ranked(placed, problems)?;
        let mut rounds_for_drops = 0;
        let assigned = loop {
            *rounds += 1;
            let (exact, mut ranking) = (lowered.candidates.len(), natural.clone());
            let limited = limit_ranks::limit_ranks(self, &mut lowered, &mut ranking, search.limits());
            let limited = limited.map_err(|steps| {
                problems.add([steps], Problem::Steps);
                Stage::Flows
            })?;
            let shared_flows = limited.shared_flows;
            if placed.needs_workers(limited) {
                rounds_for_drops += 1;
                if rounds_for_drops == MAX_ROUNDS_FOR_DROPS || *rounds >= MAX_ROUNDS {
                    placed.drop_by_workers();
                }
                (lowered, natural) = self.ranked(placed, problems)?;
                continue;
            }
            let ranks = ranking.ranks();
            spread_ranks::spread_ranks(self.profile, &lowered.candidates, &mut ranking);
            merge_masks::merge_masks(self.profile, &mut lowered, &mut ranking);
            let assigned =
                assign_priorities::assign_priorities(&lowered.candidates, &ranking.kept, self.profile);
            let round = Round { priorities: assigned.priorities, shared_flows, ranks };
            match search.next(round, *rounds < MAX_ROUNDS) {
                Next::Accept | Next::Refuse => {
                    let found = capacity::flow_problems(self, &lowered, &ranking, &assigned);
                    problems.add(found, Problem::Flows);
                    break assigned;
                }
                Next::Try(_) => lowered.reset(exact),
            }
        };
        if !problems.is_empty() {
            return Err(Stage::Flows);
        }
        let mut program = assemble::assemble(self, placed, lowered, &assigned).map_err(|steps| {
            problems.add([steps], Problem::Steps);
            Stage::Flows
        })?;
        separate::separate(&mut program, self.previous, self.profile);
        problems.add(capacity::shortages(self, &program), Problem::Shortage);
        if problems.is_empty() { Ok(program) } else { Err(Stage::Flows) }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use policy::{NoFiles, Source};

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
            let mut profile = DeviceProfile::mlx5();
            profile.priority_table =
                Some(device_model::PriorityTable { entries: 100 * masks, groups: masks, group_entries: 100 });
            let mut attempts = Attempts::new(MAX_SHARED_OF_FLOW);
            let job = Job::new(&policy, &profile, 4);
            let program = job.compile_in(&mut attempts);
            assert!(program.is_ok_and(|program| program.priorities_used <= 8), "{masks}");
            assert!((4..=MAX_ROUNDS).contains(&attempts.rounds), "{} rounds for {masks}", attempts.rounds);
        }
    }

    #[test]
    fn each_pass_of_the_table_is_called_once_in_its_order() {
        let source = include_str!("lib.rs");
        let rows = source.lines().filter_map(|line| line.strip_prefix("//! | `"));
        let calls: Vec<usize> = rows
            .filter_map(|row| row.split('`').next())
            .map(|pass| {
                let found: Vec<_> = source.match_indices(&format!("{pass}::{pass}(")).collect();
                assert_eq!(found.len(), 1, "{pass}");
                found[0].0
            })
            .collect();
        assert!(calls.len() > 8 && calls.is_sorted(), "{calls:?}");
    }
}
