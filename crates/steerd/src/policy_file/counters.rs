//! How many packets the rules of a running daemon have counted, by name, for which a policy can be compiled. A rule of the
//! new policy has the counter of the rule of the same name, as it keeps that counter over a reload.

use std::collections::HashMap;

use policy::Policy;
use program::DEFAULT_RULE;

use crate::api::client::Client;
use crate::cli::ApiArgs;
use crate::error::Error;
use crate::telemetry::state::State;
use crate::telemetry::top::Top;

/// The packets of rules; those that the device does not count are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters(HashMap<String, u64>);

impl Counters {
    /// Of this daemon.
    pub(crate) fn of_state(state: &State) -> Self {
        let counted = state.rules.iter().filter(|rule| !rule.uncounted);
        Self(counted.map(|rule| (rule.name.clone(), rule.packets())).collect())
    }

    /// Of a daemon that is asked by its API.
    pub(crate) fn of_daemon(args: &ApiArgs) -> Result<Self, Error> {
        let top: Top = Client::new(args)?.get("/v1/top")?;
        let counted = top.rules.into_iter().filter(|rule| !rule.uncounted);
        Ok(Self(counted.map(|rule| (rule.name, rule.packets)).collect()))
    }

    /// For the rules of a policy, the default last; `None`: the rule has no counter.
    pub(crate) fn by_rule(&self, policy: &Policy) -> Vec<Option<u64>> {
        let names = policy.rules.iter().map(|rule| rule.name.as_str()).chain([DEFAULT_RULE]);
        names.map(|name| self.0.get(name).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;
    use crate::telemetry::state::RuleState;

    #[test]
    fn rules_have_the_counters_of_their_names() {
        let rule = |name: &str, packets, uncounted| RuleState {
            name: name.to_owned(),
            delivered_packets: packets,
            kernel_packets: 1,
            uncounted,
            ..RuleState::default()
        };
        let state = State {
            rules: vec![
                rule("a", 6, false),
                rule("gone", 1, false),
                rule("b", 3, true),
                rule("default", 8, false),
            ],
            ..State::default()
        };
        let rule =
            |name: &str| format!("[[rules]]\nname = '{name}'\nmatch = {{ any = true }}\naction = 'kernel'\n");
        let text = format!("version = 1\n{}{}{}", rule("new"), rule("b"), rule("a"));
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        assert_eq!(Counters::of_state(&state).by_rule(&policy), [None, None, Some(7), Some(9)]);
    }
}
