//! The rules at run time that a policy is compiled with, before it is in force. The policy outranks them:
//! rules that it forbids, or that it leaves no room for in the device, are left out and then removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use analysis::RuntimeProtection;
use policy::{Diagnostics, Policy, Severity};
use program::{Program, RuntimeForm, RuntimeMatch};

use super::overtaking::Precedence;
use super::protect::{Compared, LOCKED_FOR, compare, index_for, takers};
use super::{Rules, device_rule};
use crate::policy_file::{DeviceRule, quoted};

/// The result of the analyses of a policy that rules at run time depend on; made before the rules are locked.
pub(crate) struct FormFacts {
    /// Whether workers enforce rules without the device, by their action and form.
    by_workers: Vec<Vec<bool>>,
    /// `None`: no rule has to be compared with protected packets.
    protection: Option<RuntimeProtection>,
}

impl FormFacts {
    /// `takers`: the rules that are to be compared with protected packets; `None`: no rule is.
    pub(super) fn of(policy: &Policy, takers: Option<&[(RuntimeMatch, bool)]>) -> Self {
        let actions = policy.runtime.iter().flat_map(|runtime| &runtime.actions);
        Self {
            by_workers: actions.map(|(_, action)| analysis::forms_of_workers(policy, *action)).collect(),
            protection: takers.and_then(|takers| index_for(policy, takers)),
        }
    }

    /// The index of the policy's protected packets, for when it is in force.
    pub(crate) fn into_protection(self) -> Option<RuntimeProtection> {
        self.protection
    }
}

/// The rules for the device under a policy that is to be in force.
#[derive(Debug, Default)]
pub(crate) struct DeviceChoice {
    /// The rules that only the device can enforce, with those that they would overtake.
    needed: HashSet<Arc<str>>,
    /// These and hot ones, by id.
    chosen: Vec<DeviceRule>,
    /// The rules that cannot be in force with the policy, each with the reason.
    pub(crate) left_out: HashMap<Arc<str>, String>,
    /// The rules that are still to be compared with protected packets.
    open: Vec<Arc<str>>,
}

impl DeviceChoice {
    pub(crate) fn rules(&self) -> &[DeviceRule] {
        &self.chosen
    }

    /// Leaves rules out after the policy was refused with all of them: first those that workers enforce too,
    /// then the ones that the diagnostics name, at last all. `may_lose`: rules that only the device can
    /// enforce, too. `false`: there are none.
    pub(crate) fn reduce(&mut self, diagnostics: &Diagnostics, may_lose: bool) -> bool {
        if self.chosen.is_empty() {
            return false;
        }
        let is_needed = |rule: &DeviceRule| self.needed.contains(rule.id.as_str());
        if !self.chosen.iter().all(is_needed) {
            self.chosen.retain(is_needed);
            return true;
        }
        if !may_lose {
            return false;
        }
        let errors = diagnostics.list.iter().filter(|one| one.severity == Severity::Error);
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        let is_named = |rule: &DeviceRule| {
            quoted(&rule.id).iter().any(|name| errors.iter().any(|text| text.contains(name)))
        };
        let are_named = self.chosen.iter().any(is_named);
        let (gone, kept) = std::mem::take(&mut self.chosen)
            .into_iter()
            .partition(|rule| if are_named { is_named(rule) } else { true });
        self.chosen = kept;
        let why = || "the device cannot have it with this policy".to_owned();
        let gone: Vec<DeviceRule> = gone;
        self.left_out.extend(gone.into_iter().map(|rule| (Arc::from(rule.id), why())));
        true
    }
}

impl Rules {
    /// Notes the rules that are still to be compared with the protected packets of a policy that is in force.
    pub(crate) fn note_open(&mut self, choice: &DeviceChoice) {
        self.open.clone_from(&choice.open);
    }

    /// Chooses the rules for the device under a policy. `program`: the one in force, whose actions the rules
    /// name by number.
    pub(crate) fn choose(
        &self,
        policy: &Policy,
        program: &Program,
        facts: Option<&FormFacts>,
    ) -> DeviceChoice {
        let Some(runtime) = policy.runtime.as_ref().filter(|_| !self.store.is_empty()) else {
            return DeviceChoice::default();
        };
        // Rules that were added meanwhile.
        let takers = || takers(&self.store, program.runtime.as_ref());
        let computed = facts.is_none().then(|| FormFacts::of(policy, Some(&takers())));
        let Some(facts) = facts.or(computed.as_ref()) else { return DeviceChoice::default() };
        let compared = compare(self.store.rules(), policy, facts.protection.as_ref(), program, LOCKED_FOR);
        let Compared { taking: left_out, mut open } = compared;
        if facts.protection.is_none() {
            open.clone_from(&self.open);
        }
        let form_of = |matches: &RuntimeMatch| {
            let fields = matches.fields().ok();
            runtime.forms.iter().position(|form| Some(*form) == fields)
        };
        // Whether only the device can enforce it; `None`: the policy does not allow it.
        let needs_device = |rule: &DeviceRule| {
            let action = runtime.actions.iter().position(|(text, _)| *text == rule.action)?;
            let reverse = rule.both_directions.then(|| rule.matches.reversed());
            let mut needs = false;
            for matches in [Some(rule.matches), reverse].into_iter().flatten() {
                let by_workers = facts.by_workers.get(action)?.get(form_of(&matches)?)?;
                needs |= !by_workers;
            }
            Some(needs)
        };
        let (mut needed, mut held) = (Vec::new(), Vec::new());
        let absent: HashSet<&Arc<str>> = left_out.keys().chain(&open).collect();
        for stored in self.store.rules().filter(|stored| !absent.contains(&stored.rule.id)) {
            let Some(rule) = device_rule(stored, program) else { continue };
            match needs_device(&rule) {
                Some(true) => needed.push(stored),
                Some(false) if stored.in_device => held.push(Arc::clone(&stored.rule.id)),
                Some(false) | None => {}
            }
        }
        // Those that are there stay, beyond a smaller limit too.
        needed.sort_by(|a, b| (b.in_device, &a.rule.id).cmp(&(a.in_device, &b.rule.id)));
        let present = needed.iter().filter(|stored| stored.in_device).count();
        let room = (runtime.device_rules_max as usize).max(present);
        let beyond = needed.split_off(room.min(needed.len()));
        let open_ids: HashSet<Arc<str>> = open.iter().cloned().collect();
        let mut choice = DeviceChoice { left_out, open, ..DeviceChoice::default() };
        let why = || {
            format!(
                "only the device can enforce it now, and [runtime] allows {} rules there",
                runtime.device_rules_max
            )
        };
        choice.left_out.extend(beyond.iter().map(|stored| (Arc::clone(&stored.rule.id), why())));
        let forms: Vec<RuntimeForm> = runtime.forms.iter().copied().map(RuntimeForm::of).collect();
        let precedence = Precedence { store: &self.store, forms: &forms };
        let needed = needed.iter().map(|stored| Arc::clone(&stored.rule.id)).collect();
        choice.needed = precedence.closed(needed);
        let is_chosen = |id: &Arc<str>| !choice.left_out.contains_key(id) && !open_ids.contains(id);
        choice.needed.retain(|id| is_chosen(id));
        let ranked = self.hot.ranked(held);
        let all = precedence.filled(&choice.needed, &ranked, runtime.device_rules_max as usize);
        let rules = all.iter().filter(|id| is_chosen(id));
        let rules = rules.filter_map(|id| device_rule(self.store.get(id)?, program));
        choice.chosen = rules.filter(|rule| needs_device(rule).is_some()).collect();
        choice.chosen.sort_by(|a, b| a.id.cmp(&b.id));
        choice
    }
}
