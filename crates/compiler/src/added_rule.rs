//! A program with one more rule at run time that drops, made from the program without it: the rule alone is
//! compiled, and its flows are put among the others. A rule that was added so can be removed again. Either
//! takes a fraction of the time of a compilation of the whole policy, and is not always possible.
//!
//! Why the program is right. Packets that match no new flow meet the flows that they met, in the same order:
//! new priorities keep the order of the old ones. A new flow has packets of the new rule only, and none that
//! an earlier rule leaves to the kernel without a flow, as the rule is compiled behind these. Of the packets
//! of a new flow, those of earlier rules meet a flow of these first, because its priority comes before; those
//! of later rules do not, because the priorities of their flows come after. Where workers complete decisions
//! the classes would change too, so such a program is not extended.

use policy::Policy;
use policy::policy::{Action, InsertedRule};
use program::{Class, Decide, Exception, Flow, FlowAction, FlowKind, Placement, Program, Rule, RuleId};

use crate::job::Job;

/// The most rules that leave packets to the kernel, and that the rule is compiled behind.
const EXCEPTIONS_MAX: usize = 32;
/// The most flows of the rule: each is compared with all others.
const FLOWS_MAX: usize = 64;

/// A rule at run time, and the number that it gets.
#[derive(Clone, Debug)]
pub struct AddedRule {
    /// The rule.
    pub rule: InsertedRule,
    /// The number of the rule: rules with this number and later ones get the next one.
    pub place: RuleId,
}

/// The rule as it is compiled alone.
struct Alone {
    rule: Rule,
    flows: Vec<Flow>,
    /// The pieces into which each earlier exception has split it, by the exception's number.
    pieces: Vec<(RuleId, u32)>,
}

impl Job<'_> {
    /// The program of the job's policy with one more rule at run time. `installed`: the program without it;
    /// the policy has none of the rules at run time. `None`: the whole policy has to be compiled.
    #[must_use]
    pub fn with_added_rule(&self, installed: &Program, added: &AddedRule) -> Option<Program> {
        let is_exact = |class: &Option<Class>| {
            class.as_ref().is_none_or(|class| matches!(class.decide, Decide::Exact(_)))
        };
        let is_plain = installed.classes.iter().all(is_exact)
            && installed.rules.iter().all(|rule| rule.undecided.is_empty())
            && added.rule.action == Action::Drop;
        if !is_plain {
            return None;
        }
        let alone = self.alone(installed, added)?;
        let room = self.room_for(installed, &alone.flows, added.place)?;
        let program = extended(installed, alone, room, added.place);
        let offered = self.profile.priorities_per_program();
        (u32::from(program.priorities_used) <= offered).then_some(program)
    }

    /// Compiles the rule behind the earlier rules that leave packets to the kernel without a flow.
    fn alone(&self, installed: &Program, added: &AddedRule) -> Option<Alone> {
        let earlier: Vec<&Exception> =
            installed.exceptions.iter().filter(|exception| exception.rule < added.place).collect();
        if earlier.len() > EXCEPTIONS_MAX {
            return None;
        }
        let definition = |exception: &&Exception| {
            let definition = self.policy.rules.get(exception.rule.index())?;
            let name = &installed.rules.get(exception.rule.index())?.name;
            (definition.name == *name).then(|| definition.clone())
        };
        let rules = earlier.iter().map(definition).collect::<Option<Vec<_>>>()?;
        let number = RuleId::of(rules.len());
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
            runtime: Some(runtime),
        };
        policy.insert_at_run_time(vec![added.rule.clone()]);
        let job = Job { policy: &policy, previous: None, weights: None, apart: None, ..*self };
        let program = job.program().ok()?;
        let rule = program.rules.get(number.index())?.clone();
        let drops = |flow: &Flow| {
            let is_last = self.profile.multicast_ignores_priority && flow.is_multicast_only();
            flow.rule == number
                && flow.kind == FlowKind::Normal
                && flow.action == FlowAction::Drop
                && !is_last
        };
        let is_exact = rule.placement == Placement::Hardware
            && program.rules.iter().all(|rule| rule.undecided.is_empty())
            && program.exceptions.len() == earlier.len()
            && program.flows.len() <= FLOWS_MAX
            && program.flows.iter().all(drops);
        let split = program.exceptions.iter().zip(&earlier);
        let split = split.filter(|(exception, _)| exception.left_out_of.contains(&number));
        let pieces = split.map(|(exception, earlier)| (earlier.rule, exception.pieces)).collect();
        is_exact.then_some(Alone { rule, flows: program.flows, pieces })
    }

    /// The priority of the rule's flows, where those of later rules that have the same or an earlier one get
    /// the next. `None`: there is none behind all earlier rules and before all later ones.
    fn room_for(&self, installed: &Program, flows: &[Flow], place: RuleId) -> Option<Room> {
        let own: Vec<_> = flows.iter().map(|flow| (flow.front(), flow.cube())).collect();
        let (mut least, mut most) = (0, None);
        for flow in &installed.flows {
            if matches!(flow.kind, FlowKind::Sniffer | FlowKind::Egress) {
                continue;
            }
            let front = flow.front();
            let mut near = own.iter().filter(|(own, _)| !own.is_apart(&front)).peekable();
            if near.peek().is_none() {
                continue;
            }
            let Some(cube) = flow.cube() else { continue };
            if !near.any(|(_, own)| own.is_some_and(|own| own.overlaps(cube))) {
                continue;
            }
            let is_last = self.profile.multicast_ignores_priority && flow.is_multicast_only();
            if flow.kind == FlowKind::Copy || is_last {
                return None;
            }
            if flow.rule < place {
                least = least.max(flow.priority + 1);
            } else {
                most = Some(most.map_or(flow.priority, |most: u16| most.min(flow.priority)));
            }
        }
        match most {
            Some(most) if least > most => None,
            // The priority before the later rules is free for it, or they make room.
            Some(most) if least < most => Some(Room { priority: most - 1, moves_later: false }),
            Some(most) => Some(Room { priority: most, moves_later: true }),
            None => Some(Room { priority: least, moves_later: false }),
        }
    }
}

/// The place of the rule's flows among the priorities.
#[derive(Clone, Copy)]
struct Room {
    priority: u16,
    /// Whether all flows of this priority and later ones get the next.
    moves_later: bool,
}

/// The program with the rule.
fn extended(installed: &Program, alone: Alone, room: Room, place: RuleId) -> Program {
    let Room { priority, moves_later } = room;
    let moved = |rule: RuleId| if rule >= place { RuleId::of(rule.index() + 1) } else { rule };
    let mut program = installed.clone();
    renumber(&mut program, moved);
    for flow in &mut program.flows {
        if moves_later && flow.kind != FlowKind::Sniffer && flow.priority >= priority {
            flow.priority += 1;
        }
    }
    let is_behind = |flow: &Flow| flow.kind == FlowKind::Sniffer || flow.priority > priority;
    let at = program.flows.iter().position(is_behind).unwrap_or(program.flows.len());
    let own = alone.flows.into_iter().map(|flow| Flow { rule: place, priority, ..flow });
    program.flows.splice(at..at, own);
    program.rules.insert(place.index().min(program.rules.len()), alone.rule);
    for (rule, pieces) in alone.pieces {
        let rule = moved(rule);
        for exception in program.exceptions.iter_mut().filter(|exception| exception.rule == rule) {
            exception.left_out_of.push(place);
            exception.left_out_of.sort_unstable();
            exception.pieces += pieces;
        }
    }
    if let Some(runtime) = &mut program.runtime {
        runtime.subject.insert(place.index().min(runtime.subject.len()), false);
    }
    count_priorities(&mut program);
    program
}

/// The program without a rule that [`Job::with_added_rule`] has added, to this program or to one from which
/// it was made in the same way: the flows of all others are as they were compiled without that rule. `None`:
/// the whole policy has to be compiled.
#[must_use]
pub fn without_added_rule(installed: &Program, name: &str) -> Option<Program> {
    let place = RuleId::of(installed.rules.iter().position(|rule| rule.name == name)?);
    // How many pieces of an exception are due to the rule is not known.
    let is_split = |exception: &Exception| exception.left_out_of.contains(&place);
    let only_drops = installed.flows.iter().all(|flow| flow.rule != place || flow.action == FlowAction::Drop);
    if !only_drops || installed.exceptions.iter().any(is_split) {
        return None;
    }
    let moved = |rule: RuleId| if rule > place { RuleId::of(rule.index() - 1) } else { rule };
    let mut program = installed.clone();
    program.flows.retain(|flow| flow.rule != place);
    renumber(&mut program, moved);
    program.rules.remove(place.index());
    if let Some(runtime) = &mut program.runtime
        && place.index() < runtime.subject.len()
    {
        runtime.subject.remove(place.index());
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
