//! Numbers of classes, which are the flow tags: two programs that replace each other share them.
//!
//! Packets that carry a number may come by a flow of either program. So it must mean the same in both, unless
//! all flows that have it are in both: a packet that meets one of these between the two halves of a change is
//! decided by that flow in the old program and in the new one, and either meaning is right.

use std::collections::{HashMap, HashSet};

use program::{CLASSES_MAX, ClassId, Correspondence, Flow, FlowAction, Program};

/// The classes whose numbers mean something else in the new program.
pub(crate) fn changed(old: &Program, new: &Program, common: &Correspondence<'_>) -> Vec<ClassId> {
    (0..new.classes.len()).map(ClassId::of).filter(|class| is_changed(*class, old, new, common)).collect()
}

/// Whether the number of a class means something else in the new program. Packets without a tag are decided
/// by the program in force, whatever the number.
fn is_changed(class: ClassId, old: &Program, new: &Program, common: &Correspondence<'_>) -> bool {
    let is_untagged = old.untagged == Some(class) && new.untagged == Some(class);
    let classes = old.class(class).zip(new.class(class)).filter(|_| !is_untagged);
    classes.is_some_and(|(old, new)| !common.is_same_class(old, new))
}

/// Whether a flow that only one of the programs has is of a class whose number means something else in the
/// new program; `kept` are the flows of both.
pub(crate) fn must_change(
    old: &Program,
    new: &Program,
    common: &Correspondence<'_>,
    kept: &[Option<usize>],
) -> bool {
    let mut stays = vec![false; old.flows.len()];
    kept.iter().flatten().for_each(|flow| stays[*flow] = true);
    let gone = old.flows.iter().zip(stays).filter(|(_, stays)| !stays).map(|(flow, _)| flow);
    let come = new.flows.iter().zip(kept).filter(|(_, kept)| kept.is_none()).map(|(flow, _)| flow);
    let touched: HashSet<ClassId> = gone.chain(come).filter_map(class_of).collect();
    touched.into_iter().any(|class| is_changed(class, old, new, common))
}

/// Whether a flow of these classes is in both programs.
pub(crate) fn have_kept_flows(classes: &[ClassId], new: &Program, kept: &[Option<usize>]) -> bool {
    let classes: HashSet<ClassId> = classes.iter().copied().collect();
    let mut kept = new.flows.iter().zip(kept).filter(|(_, kept)| kept.is_some());
    kept.any(|(flow, _)| class_of(flow).is_some_and(|class| classes.contains(&class)))
}

fn class_of(flow: &Flow) -> Option<ClassId> {
    match flow.action {
        FlowAction::Steer { class, .. } => Some(class),
        FlowAction::Drop | FlowAction::Pass => None,
    }
}

/// Gives these classes of the new program other numbers, which the old program does not have.
pub(crate) fn renumber(old: &Program, new: &mut Program, classes: &[ClassId]) {
    let is_taken = |id: &ClassId| old.class(*id).is_some() || new.class(*id).is_some();
    let mut free = (0..CLASSES_MAX).map(ClassId).filter(|id| !is_taken(id));
    // Beyond the largest number if there is none, which the check of the plan refuses.
    let mut fresh = || free.next().unwrap_or(ClassId(CLASSES_MAX));
    let moves: HashMap<ClassId, ClassId> = classes.iter().map(|class| (*class, fresh())).collect();
    let length = moves.values().map(|to| to.index() + 1).max().unwrap_or(0);
    new.classes.resize(length.max(new.classes.len()), None);
    for (from, to) in &moves {
        new.classes.swap(from.index(), to.index());
    }
    let moved = |class: ClassId| moves.get(&class).copied().unwrap_or(class);
    for flow in &mut new.flows {
        if let FlowAction::Steer { class, .. } = &mut flow.action {
            *class = moved(*class);
        }
    }
    new.untagged = new.untagged.map(moved);
}
