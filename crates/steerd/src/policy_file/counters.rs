//! How many packets the rules of a running daemon have counted, by name, for which a policy can be compiled.
//! A rule of the new policy has the counter of the rule of the same name, as it keeps that counter over a
//! reload.

use std::collections::HashMap;

use compiler::Weights;
use policy::Policy;
use program::DEFAULT_RULE;

use crate::state::State;
use crate::telemetry::top::Top;

/// The weights for which a program was compiled, by the names of its rules.
pub(crate) type RuleWeights = HashMap<String, u64>;

/// The counters of rules, and the weights for which the running program was compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Without the rules that the device does not count.
    packets: HashMap<String, u64>,
    /// Empty if they are not known.
    previous: RuleWeights,
}

impl Counters {
    /// The counters of this daemon.
    pub(crate) fn of_state(state: &State, previous: RuleWeights) -> Self {
        let counted = state.rules.iter().filter(|rule| !rule.uncounted);
        Self { packets: counted.map(|rule| (rule.name.clone(), rule.packets())).collect(), previous }
    }

    /// The weights for which a program was compiled, so that it is compiled for the same again.
    pub(crate) fn of_weights(weights: RuleWeights) -> Self {
        Self { packets: weights.clone(), previous: weights }
    }

    /// The counters that `top` shows of a daemon.
    pub(crate) fn of_top(top: Top) -> Self {
        let counted = top.rules.into_iter().filter(|rule| !rule.uncounted);
        let packets = counted.map(|rule| (rule.name, rule.packets)).collect();
        Self { packets, previous: RuleWeights::new() }
    }

    /// For the rules of a policy, the default last; `None`: the rule has no counter.
    pub(crate) fn by_rule(&self, policy: &Policy) -> Vec<Option<u64>> {
        names(policy).map(|name| self.packets.get(name).copied()).collect()
    }

    /// The weights of the rules of a policy by these counters; `None`: nothing was counted.
    pub(crate) fn weights(&self, policy: &Policy) -> Option<Weights> {
        let previous: Vec<_> = names(policy).map(|name| self.previous.get(name).copied()).collect();
        Weights::of_counters(policy, &self.by_rule(policy), &previous)
    }
}

/// The names of the rules of a policy, the default last.
fn names(policy: &Policy) -> impl Iterator<Item = &str> {
    policy.rules.iter().map(|rule| rule.name.as_str()).chain([DEFAULT_RULE])
}

/// Weights by the names of the rules.
pub(super) fn by_name(policy: &Policy, weights: &Weights) -> RuleWeights {
    names(policy).map(str::to_owned).zip(weights.packets().iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;
    use crate::outcome::{Count, PacketOutcome};
    use crate::state::RuleState;

    #[test]
    fn rules_have_the_counters_of_their_names() {
        let state_of = |name: &str, packets, uncounted| RuleState {
            name: name.to_owned(),
            uncounted,
            outcomes: [
                (PacketOutcome::Delivered, Count::of(packets, 0)),
                (PacketOutcome::Kernel, Count::of(1, 0)),
            ]
            .into(),
            ..RuleState::default()
        };
        let state = State {
            rules: vec![
                state_of("a", 6, false),
                state_of("gone", 1, false),
                state_of("b", 3, true),
                state_of("default", 8, false),
            ],
            ..State::default()
        };
        let rule =
            |name: &str| format!("[[rules]]\nname = '{name}'\nmatch = {{ any = true }}\naction = 'kernel'\n");
        let text = format!("version = 1\n{}{}{}", rule("new"), rule("b"), rule("a"));
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let counters = Counters::of_state(&state, RuleWeights::new());
        assert_eq!(counters.by_rule(&policy), [None, None, Some(7), Some(9)]);
        let weight = |counters: &Counters| counters.weights(&policy).expect("packets").packets()[3];
        // 9 of 16 packets, to the nearest power of two.
        assert_eq!(weight(&counters), 1 << 19);
        let previous = RuleWeights::from([("default".to_owned(), 1 << 20), ("gone".to_owned(), 1)]);
        assert_eq!(weight(&Counters::of_state(&state, previous)), 1 << 19, "too far away");
        let state =
            State { rules: vec![state_of("a", 5, false), state_of("default", 8, false)], ..State::default() };
        let previous = RuleWeights::from([("default".to_owned(), 1 << 20)]);
        // 9 of 15: between a half and one, and close enough to both.
        let half = Counters::of_state(&state, RuleWeights::new());
        assert_eq!((weight(&half), weight(&Counters::of_state(&state, previous))), (1 << 19, 1 << 20));
    }
}
