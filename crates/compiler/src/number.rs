//! The numbers of classes, which are flow tags: a rule keeps its class from one program to the next, and a
//! class that becomes free is not given to another rule at once. Called by `draft`; deterministic.

use std::collections::{HashMap, HashSet};

use program::{CLASSES_MAX, ClassId, Program};

/// A number for each of these rules, by name.
pub(super) fn stable(rules: &[&str], previous: Option<&Program>) -> Vec<ClassId> {
    let before: HashMap<&str, u32> = previous.map(classes_by_rule).unwrap_or_default();
    let mut taken: HashSet<u32> = before.values().copied().collect();
    let mut next = 0..CLASSES_MAX;
    let mut fresh = move || {
        let id = next.by_ref().find(|id| !taken.contains(id)).unwrap_or(CLASSES_MAX);
        taken.insert(id);
        id
    };
    rules.iter().map(|rule| ClassId(before.get(rule).copied().unwrap_or_else(&mut fresh))).collect()
}

fn classes_by_rule(program: &Program) -> HashMap<&str, u32> {
    let classes = program.classes.iter().enumerate();
    let named = classes.filter_map(|(index, class)| {
        let rule = program.rules.get(class.as_ref()?.rule.index())?;
        Some((rule.name.as_str(), ClassId::of(index).0))
    });
    named.collect()
}
