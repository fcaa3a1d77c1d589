//! The short way into the device, for a few rules that drop: the program in force is extended by their flows,
//! instead of compiling the whole policy. The plan to it is made and examined as any other.

use std::collections::HashSet;
use std::sync::Arc;

use compiler::{AddedRule, Job};
use control::StoredRule;
use policy::policy::InsertedRule;
use program::{Program, RuleId};

use super::{LiveRules, Rules, device_rule};
use crate::daemon::board::PolicyInForce;
use crate::daemon::dataplane::Cause;
use crate::policy_file::{Compiled, is_quoted, quoted};

/// The most rules that come at once; for more, one compilation takes less time.
const ADDED_MAX: usize = 8;

impl LiveRules {
    /// Has the device enforce these rules, if some come and none goes. `false`: nothing was done, as the
    /// whole policy has to be compiled.
    pub(super) fn extend_device(&self, rules: &Rules, ids: &HashSet<Arc<str>>) -> bool {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let Some(compiled) = self.extended(rules, ids, &in_force) else { return false };
        match self.commands.install(compiled, Cause::Rules) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!("the whole policy is compiled for rules at run time: {error}");
                false
            }
        }
    }

    fn extended(&self, rules: &Rules, ids: &HashSet<Arc<str>>, in_force: &PolicyInForce) -> Option<Compiled> {
        let policy = in_force.policy.as_ref()?;
        let runtime = policy.runtime.as_ref()?;
        let stored = ids.iter().filter_map(|id| rules.store.get(id));
        let (held, mut added): (Vec<&StoredRule>, Vec<&StoredRule>) =
            stored.partition(|stored| stored.in_device);
        let names = |stored: &StoredRule| {
            let [forward, reverse] = quoted(&stored.rule.id);
            [Some(forward), stored.rule.both_directions.then_some(reverse)].into_iter().flatten()
        };
        let there: HashSet<&str> = in_force
            .program
            .rules
            .iter()
            .map(|rule| rule.name.as_str())
            .filter(|name| is_quoted(name))
            .collect();
        let held_names: Vec<String> = held.iter().copied().flat_map(names).collect();
        let is_more = !added.is_empty()
            && added.len() <= ADDED_MAX
            && held_names.len() == there.len()
            && held_names.iter().all(|name| there.contains(name.as_str()));
        if !is_more {
            return None;
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
        let job = Job::new(policy, &profile, self.observer.worker_count());
        added.sort_by(|a, b| a.rule.id.cmp(&b.rule.id));
        let mut program: Option<Program> = None;
        for stored in added {
            let text = device_rule(stored, &in_force.program)?.action;
            let (_, action) = runtime.actions.iter().find(|(known, _)| *known == text)?;
            for (name, matches) in names(stored).zip(directions(stored)) {
                let own = form(&matches)?;
                // Rules of one form stand together, in the order of the forms.
                let place = RuleId::of(runtime.before + forms.iter().filter(|form| **form <= own).count());
                let rule = AddedRule { rule: InsertedRule { name, matches, action: *action }, place };
                program = Some(job.with_added_rule(program.as_ref().unwrap_or(&in_force.program), &rule)?);
                forms.push(own);
            }
        }
        let program = program?;
        let has_room = compiler::reload_conflict(&in_force.program, &program, &profile).is_none();
        let mut compiled = has_room.then(|| Compiled::extended(program, policy, &in_force.inputs))?;
        compiled.weights.clone_from(&in_force.weights);
        compiled.set_sizes.clone_from(&in_force.set_sizes);
        Some(compiled)
    }
}
