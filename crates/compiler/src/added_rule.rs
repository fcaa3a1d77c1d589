//! A program with more rules at run time that drop, made from the program without them: these rules alone are
//! compiled, and their flows are put among the others. Rules that were added so can be removed again. Either
//! takes a fraction of the time of a compilation of the whole policy, and is not always possible.
//!
//! Why the program is right. Packets that match no new flow meet the flows that they met, in the same order:
//! new priorities keep the order of the old ones. A new flow has packets of a new rule only, and none that
//! an earlier rule leaves to the kernel without a flow, as the new rules are compiled behind these. Of the
//! packets of a new flow, those of earlier rules meet a flow of these first, because its priority comes
//! before; those of later rules do not, because the priorities of their flows come after. New rules are of
//! one form with unlike values, so no two share packets. Where workers complete decisions the classes would
//! change too, so such a program is not extended.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use policy::Policy;
use policy::policy::{Action, InsertedRule};
use program::{Class, Decide, Exception, Flow, FlowAction, FlowKind, Placement, Program, Rule, RuleId};

use crate::job::Job;

/// The most rules that leave packets to the kernel, and that new rules are compiled behind.
const EXCEPTIONS_MAX: usize = 32;
/// The most pairs of new flows and others, which are compared.
const COMPARED_MAX: usize = 1 << 27;

/// Rules at run time of one form, and the number that the first of them gets.
#[derive(Clone, Debug)]
pub struct AddedRules {
    /// The rules, each with other values than the others.
    pub rules: Vec<InsertedRule>,
    /// The number of the first one: rules with this number and later ones come behind them.
    pub place: RuleId,
}

/// The rules as they are compiled alone.
struct Alone {
    rules: Vec<Rule>,
    /// The flows have the numbers of the rules in the program with them.
    flows: Vec<Flow>,
    /// The exceptions that have split rules.
    splits: Vec<Split>,
}

/// How an earlier exception has split the rules.
struct Split {
    /// The exception, by its number in the program without the rules.
    exception: RuleId,
    /// The rules that were split to exclude its packets, by their numbers in the program with them.
    left_out_of: Vec<RuleId>,
    /// How many more pieces the rules have for it.
    pieces: u32,
}

impl Job<'_> {
    /// The program of the job's policy with more rules at run time. `installed`: the program without them;
    /// the policy has none of the rules at run time. `None`: the whole policy has to be compiled.
    #[must_use]
    pub fn with_added_rules(&self, installed: &Program, added: &AddedRules) -> Option<Program> {
        let is_exact = |class: &Option<Class>| {
            class.as_ref().is_none_or(|class| matches!(class.decide, Decide::Exact(_)))
        };
        let is_plain = installed.classes.iter().all(is_exact)
            && installed.rules.iter().all(|rule| rule.undecided.is_empty())
            && added.rules.iter().all(|rule| rule.action == Action::Drop);
        let compared = added.rules.len().saturating_mul(installed.flows.len());
        if !is_plain || compared > COMPARED_MAX {
            return None;
        }
        let alone = self.alone(installed, added)?;
        let rooms = self.rooms(installed, &alone, added.place)?;
        let inserted: BTreeSet<u16> =
            rooms.iter().filter(|room| room.moves_later).map(|room| room.priority).collect();
        let offered = self.profile.priorities_per_program();
        if u32::from(installed.priorities_used) + inserted.len() as u32 > offered {
            return None;
        }
        let program = extended(installed, alone, &rooms, &inserted, added.place);
        (u32::from(program.priorities_used) <= offered).then_some(program)
    }

    /// Compiles the rules behind the earlier rules that leave packets to the kernel without a flow.
    fn alone(&self, installed: &Program, added: &AddedRules) -> Option<Alone> {
        let earlier: Vec<&Exception> =
            installed.exceptions.iter().filter(|exception| exception.rule < added.place).collect();
        if earlier.len() > EXCEPTIONS_MAX {
            return None;
        }
        let definition = |exception: &&Exception| {
            let definition = self.policy.rules.get(exception.rule.index())?;
            let name = &installed.rules.get(exception.rule.index())?.name;
            (*name == *definition.name).then(|| definition.clone())
        };
        let rules = earlier.iter().map(definition).collect::<Option<Vec<_>>>()?;
        let own = rules.len()..rules.len() + added.rules.len();
        let mut runtime = self.policy.runtime.clone()?;
        runtime.before = rules.len();
        let mut policy = Policy {
            source: self.policy.source.clone(),
            groups: self.policy.groups.clone(),
            sinks: self.policy.sinks.clone(),
            rules,
            default: Action::Kernel,
            default_place: self.policy.default_place.clone(),
            default_given: true,
            allow_lost_exceptions: false,
            protect: None,
            set_sizes: Vec::new(),
            tests: Vec::new(),
            runtime: Some(runtime),
            recorder: None,
        };
        policy.insert_at_run_time(added.rules.clone());
        let job = Job { policy: &policy, previous: None, weights: None, ..*self };
        let program = job.program().ok()?;
        let rules = program.rules.get(own.clone())?.to_vec();
        let drops = |flow: &Flow| {
            let is_last = self.profile.multicast_ignores_priority && flow.is_multicast_only();
            own.contains(&flow.rule.index())
                && flow.kind == FlowKind::Normal
                && flow.action == FlowAction::Drop
                && !is_last
        };
        let is_exact = rules.iter().all(|rule| rule.placement == Placement::Hardware)
            && program.rules.iter().all(|rule| rule.undecided.is_empty())
            && program.exceptions.len() == earlier.len()
            && program.flows.len().saturating_mul(installed.flows.len()) <= COMPARED_MAX
            && program.flows.iter().all(drops);
        let placed = |rule: RuleId| RuleId::of(added.place.index() + rule.index() - own.start);
        let split = |(exception, earlier): (&Exception, &&Exception)| {
            let left_out_of = exception.left_out_of.iter().filter(|rule| own.contains(&rule.index()));
            let left_out_of: Vec<RuleId> = left_out_of.copied().map(placed).collect();
            let pieces = exception.pieces;
            (!left_out_of.is_empty()).then_some(Split { exception: earlier.rule, left_out_of, pieces })
        };
        let splits = program.exceptions.iter().zip(&earlier).filter_map(split).collect();
        let flows = program.flows.iter().map(|flow| Flow { rule: placed(flow.rule), ..flow.clone() });
        is_exact.then(|| Alone { rules, flows: flows.collect(), splits })
    }

    /// The room for the flows of each rule, in their order. `None`: for one of them there is none behind all
    /// flows of earlier rules and before all of later ones.
    fn rooms(&self, installed: &Program, alone: &Alone, place: RuleId) -> Option<Vec<Room>> {
        let number = |flow: &Flow| flow.rule.index() - place.index();
        let own: Vec<_> = alone.flows.iter().map(|flow| (number(flow), flow.front(), flow.cube())).collect();
        let mut bounds: Vec<(u16, Option<u16>)> = vec![(0, None); alone.rules.len()];
        for flow in &installed.flows {
            if matches!(flow.kind, FlowKind::Sniffer | FlowKind::Egress) {
                continue;
            }
            let front = flow.front();
            for (number, _, own) in own.iter().filter(|(_, own, _)| !own.is_apart(&front)) {
                if !own.zip(flow.cube()).is_some_and(|(own, cube)| own.overlaps(cube)) {
                    continue;
                }
                let is_last = self.profile.multicast_ignores_priority && flow.is_multicast_only();
                if flow.kind == FlowKind::Copy || is_last {
                    return None;
                }
                let (least, most) = &mut bounds[*number];
                if flow.rule < place {
                    *least = (*least).max(flow.priority + 1);
                } else {
                    *most = Some(most.map_or(flow.priority, |most| most.min(flow.priority)));
                }
            }
        }
        let room = |(least, most): (u16, Option<u16>)| match most {
            Some(most) if least > most => None,
            // The priority before the later rules is free for it, or they make room.
            Some(most) if least < most => Some(Room { priority: most - 1, moves_later: false }),
            Some(most) => Some(Room { priority: most, moves_later: true }),
            None => Some(Room { priority: least, moves_later: false }),
        };
        bounds.into_iter().map(room).collect()
    }
}

/// The place of the flows of a new rule among the priorities.
#[derive(Clone, Copy)]
struct Room {
    priority: u16,
    /// Whether the priority is inserted: all flows that have it or a later one move back by one.
    moves_later: bool,
}

/// The program with the rules. `inserted`: the priorities that are inserted.
fn extended(
    installed: &Program,
    alone: Alone,
    rooms: &[Room],
    inserted: &BTreeSet<u16>,
    place: RuleId,
) -> Program {
    let count = alone.rules.len();
    let moved = |rule: RuleId| if rule >= place { RuleId::of(rule.index() + count) } else { rule };
    let mut program = installed.clone();
    renumber(&mut program, moved);
    // Each priority that is inserted moves those behind it by one, which keeps their order.
    let moved_by = |until: u16| inserted.range(..=until).count() as u16;
    for flow in program.flows.iter_mut().filter(|flow| flow.kind != FlowKind::Sniffer) {
        flow.priority += moved_by(flow.priority);
    }
    let mut own: BTreeMap<u16, Vec<Flow>> = BTreeMap::new();
    for flow in alone.flows {
        let Room { priority, moves_later } = rooms[flow.rule.index() - place.index()];
        let priority = priority + moved_by(priority) - u16::from(moves_later);
        own.entry(priority).or_default().push(Flow { priority, ..flow });
    }
    for (priority, flows) in own {
        let is_behind = |flow: &Flow| flow.kind == FlowKind::Sniffer || flow.priority > priority;
        let at = program.flows.iter().position(is_behind).unwrap_or(program.flows.len());
        program.flows.splice(at..at, flows);
    }
    let at = place.index().min(program.rules.len());
    program.rules.splice(at..at, alone.rules);
    for split in alone.splits {
        let rule = moved(split.exception);
        for exception in program.exceptions.iter_mut().filter(|exception| exception.rule == rule) {
            exception.left_out_of.extend(&split.left_out_of);
            exception.left_out_of.sort_unstable();
            exception.pieces += split.pieces;
        }
    }
    if let Some(runtime) = &mut program.runtime {
        let at = place.index().min(runtime.subject.len());
        runtime.subject.splice(at..at, std::iter::repeat_n(false, count));
    }
    count_priorities(&mut program);
    program
}

/// The program without rules that [`Job::with_added_rules`] has added, to this program or to one from which
/// it was made in the same way: the flows of all others are as they were compiled without these rules.
/// `None`: the whole policy has to be compiled.
#[must_use]
pub fn without_added_rules(installed: &Program, names: &HashSet<&str>) -> Option<Program> {
    let goes: Vec<bool> = installed.rules.iter().map(|rule| names.contains(rule.name.as_str())).collect();
    let is_gone = |rule: RuleId| goes.get(rule.index()) == Some(&true);
    let are_there = goes.iter().filter(|goes| **goes).count() == names.len();
    // How many pieces of an exception are due to a rule is not known.
    let is_split = |exception: &Exception| exception.left_out_of.iter().any(|rule| is_gone(*rule));
    let only_drops =
        installed.flows.iter().all(|flow| !is_gone(flow.rule) || flow.action == FlowAction::Drop);
    if !are_there || !only_drops || installed.exceptions.iter().any(is_split) {
        return None;
    }
    let mut gone_before = 0;
    let number = |(index, goes): (usize, &bool)| {
        let number = RuleId::of(index - gone_before);
        gone_before += usize::from(*goes);
        number
    };
    let numbers: Vec<RuleId> = goes.iter().enumerate().map(number).collect();
    let moved = |rule: RuleId| numbers.get(rule.index()).copied().unwrap_or(rule);
    let mut program = installed.clone();
    program.flows.retain(|flow| !is_gone(flow.rule));
    renumber(&mut program, moved);
    let mut stays = goes.iter().map(|goes| !goes);
    program.rules.retain(|_| stays.next() != Some(false));
    if let Some(runtime) = &mut program.runtime {
        let mut stays = goes.iter().map(|goes| !goes);
        runtime.subject.retain(|_| stays.next() != Some(false));
    }
    count_priorities(&mut program);
    Some(program)
}

/// Gives the rules of a program other numbers.
fn renumber(program: &mut Program, moved: impl Fn(RuleId) -> RuleId) {
    let change = |rule: &mut RuleId| *rule = moved(*rule);
    program.flows.iter_mut().for_each(|flow| change(&mut flow.rule));
    for class in program.classes.iter_mut().flatten() {
        change(&mut class.rule);
        if let Decide::Exact(outcome) = &mut class.decide {
            change(&mut outcome.rule);
        }
    }
    for exception in &mut program.exceptions {
        change(&mut exception.rule);
        change(&mut exception.outcome.rule);
        exception.left_out_of.iter_mut().for_each(change);
    }
    if let Some(runtime) = &mut program.runtime {
        change(&mut runtime.before);
    }
}

fn count_priorities(program: &mut Program) {
    let ordered = program.flows.iter().filter(|flow| flow.kind != FlowKind::Sniffer);
    program.priorities_used = ordered.map(|flow| flow.priority + 1).max().unwrap_or(0);
}
