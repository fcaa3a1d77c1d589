//! The rules at run time that a policy is compiled with, before it is in force. The policy outranks them:
//! rules that it forbids, or that it leaves no room for in the device, are left out and then removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use policy::{Diagnostics, Policy, Severity};
use program::{Program, RuntimeForm, RuntimeMatch};

use super::overtaking::Precedence;
use super::protect::taking_protected;
use super::{Rules, device_rule};
use crate::policy_file::{DeviceRule, quoted};

/// The result of the analyses of a policy that rules at run time depend on; made before the rules are locked.
pub(crate) struct FormFacts {
    /// Whether workers enforce rules without the device, by their action and form.
    by_workers: Vec<Vec<bool>>,
    /// Whether no rule of a form can take a protected packet.
    without_protected: Vec<bool>,
}

impl FormFacts {
    pub(crate) fn of(policy: &Policy) -> Self {
        let actions = policy.runtime.iter().flat_map(|runtime| &runtime.actions);
        Self {
            by_workers: actions.map(|(_, action)| analysis::forms_of_workers(policy, *action)).collect(),
            without_protected: analysis::forms_without_protected(policy),
        }
    }

    /// For a policy that is only compiled: rules are not compared with protected packets, which takes long.
    pub(crate) fn without_protection(self) -> Self {
        Self { without_protected: vec![true; self.without_protected.len()], ..self }
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
        let computed = facts.is_none().then(|| FormFacts::of(policy));
        let Some(facts) = facts.or(computed.as_ref()) else { return DeviceChoice::default() };
        let left_out = taking_protected(&self.store, policy, &facts.without_protected, program);
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
        for stored in self.store.rules().filter(|stored| !left_out.contains_key(&stored.rule.id)) {
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
        let mut choice = DeviceChoice { left_out, ..DeviceChoice::default() };
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
        choice.needed.retain(|id| !choice.left_out.contains_key(id));
        let ranked = self.hot.ranked(held);
        let all = precedence.filled(&choice.needed, &ranked, runtime.device_rules_max as usize);
        let rules = all.iter().filter(|id| !choice.left_out.contains_key(*id));
        let rules = rules.filter_map(|id| device_rule(self.store.get(id)?, program));
        choice.chosen = rules.filter(|rule| needs_device(rule).is_some()).collect();
        choice.chosen.sort_by(|a, b| a.id.cmp(&b.id));
        choice
    }
}
