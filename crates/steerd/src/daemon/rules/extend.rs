//! The short way into the device and out of it, for rules that drop: the program in force is extended by
//! their flows, or loses them, instead of compiling the whole policy. The plan to it is made and examined as
//! any other.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use compiler::{AddedRules, Job, without_added_rules};
use control::StoredRule;
use policy::policy::InsertedRule;
use program::{Program, RuleId};

use super::{LiveRules, Rules, device_rule};
use crate::daemon::board::PolicyInForce;
use crate::daemon::dataplane::Cause;
use crate::message::chain;
use crate::policy_file::{Compiled, is_quoted, quoted};

impl LiveRules {
    /// Has the device enforce these rules and no others. `false`: nothing was done, as the whole policy has
    /// to be compiled.
    ///
    /// # Errors
    /// Why the rules are not in the device, if a whole compilation would not change that.
    pub(super) fn extend_device(&self, rules: &Rules, ids: &HashSet<Arc<str>>) -> Result<bool, String> {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let why = match self.extended(rules, ids, &in_force) {
            None => "the program in force cannot be extended".to_owned(),
            Some(compiled) => match self.commands.install(compiled, Cause::Rules) {
                Ok(_) => return Ok(true),
                Err(error) if error.is_of_plan() => chain(&error),
                Err(error) => return Err(chain(&error)),
            },
        };
        tracing::debug!("the whole policy is compiled for rules at run time: {why}");
        Ok(false)
    }

    fn extended(&self, rules: &Rules, ids: &HashSet<Arc<str>>, in_force: &PolicyInForce) -> Option<Compiled> {
        let policy = in_force.policy.as_ref()?;
        let runtime = policy.runtime.as_ref()?;
        let stored = ids.iter().filter_map(|id| rules.store.get(id));
        let (held, added): (Vec<&StoredRule>, Vec<&StoredRule>) = stored.partition(|stored| stored.in_device);
        let names = |stored: &StoredRule| {
            let [forward, reverse] = quoted(&stored.rule.id);
            [Some(forward), stored.rule.both_directions.then_some(reverse)].into_iter().flatten()
        };
        let of_programs = in_force.program.rules.iter().map(|rule| rule.name.as_str());
        let mut gone: HashSet<&str> = of_programs.filter(|name| is_quoted(name)).collect();
        let are_all_there = held.iter().copied().flat_map(names).all(|name| gone.remove(name.as_str()));
        if !are_all_there || (gone.is_empty() && added.is_empty()) {
            return None;
        }
        let mut extended_by = in_force.extended_by.clone();
        // If the program was compiled with a rule, the flows of later rules may leave its packets out.
        if !gone.iter().all(|name| extended_by.remove(*name)) {
            return None;
        }
        let mut program: Option<Program> = None;
        if !gone.is_empty() {
            program = Some(without_added_rules(&in_force.program, &gone)?);
        }
        let form = |matches: &program::RuntimeMatch| {
            let fields = matches.fields().ok()?;
            runtime.forms.iter().position(|form| *form == fields)
        };
        let directions = |stored: &StoredRule| {
            let reverse = stored.rule.both_directions.then(|| stored.rule.matches.reversed());
            [Some(stored.rule.matches), reverse].into_iter().flatten()
        };
        let mut forms: Vec<usize> =
            held.iter().copied().flat_map(directions).map(|matches| form(&matches)).collect::<Option<_>>()?;
        let profile = self.observer.opened.profile(self.observer.worker_count());
        let set = Arc::clone(&self.observer.board.read().workers);
        let absent = set.absent();
        let job = Job::new(policy, &profile, set.known()).without(&absent);
        let mut added_by_form: BTreeMap<usize, Vec<InsertedRule>> = BTreeMap::new();
        for stored in added {
            let text = device_rule(stored, &in_force.program)?.action;
            let (_, action) = runtime.actions.iter().find(|(known, _)| *known == text)?;
            for (name, matches) in names(stored).zip(directions(stored)) {
                extended_by.insert(name.clone());
                let rules = added_by_form.entry(form(&matches)?).or_default();
                rules.push(InsertedRule { name, matches, action: *action });
            }
        }
        for (own, mut rules) in added_by_form {
            rules.sort_by(|a, b| a.name.cmp(&b.name));
            // Rules of one form stand together, in the order of the forms.
            let place = RuleId::of(runtime.before + forms.iter().filter(|form| **form <= own).count());
            forms.extend(rules.iter().map(|_| own));
            let added = AddedRules { rules, place };
            program = Some(job.with_added_rules(program.as_ref().unwrap_or(&in_force.program), &added)?);
        }
        let program = program?;
        let has_room = compiler::reload_conflict(&in_force.program, &program, &profile).is_none();
        let mut compiled =
            has_room.then(|| Compiled::extended(program, policy, &in_force.inputs, extended_by))?;
        compiled.weights.clone_from(&in_force.weights);
        compiled.set_sizes.clone_from(&in_force.set_sizes);
        Some(compiled)
    }
}
