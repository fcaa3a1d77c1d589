//! One expectation of a test as the rules that meet it. Whatever a test expects of the action, the rule, the
//! group or the host is a property of the rule that decides, so packets, sets and captures share it.

use policy::Place;
use policy::Policy;
use policy::policy::{Action, Workers};
use policy::policy_test::{Expected, ExpectedRule, PolicyTest};
use program::{DEFAULT_RULE, GroupId};

/// One expectation of a test.
pub(super) struct Wish<'t> {
    pub(super) place: &'t Place,
    /// The expectation as the end of a sentence.
    pub(super) wanted: String,
    /// Whether a decision by the rule meets it, by index, the default last.
    pub(super) accepted: Vec<bool>,
    /// The value, if it is about the host.
    pub(super) is_host: Option<bool>,
}

impl<'t> Wish<'t> {
    /// The expectations of a test, but for that of the worker.
    pub(super) fn all(policy: &Policy, test: &'t PolicyTest) -> Vec<Self> {
        let expected = &test.expected;
        let mut all = Vec::new();
        let mut add = |place, wanted: String, is_host, accepts: &dyn Fn(usize) -> bool| {
            let accepted = (0..=policy.rules.len()).map(accepts).collect();
            all.push(Self { place, wanted, accepted, is_host });
        };
        if let Some(Expected { value, place }) = &expected.action {
            let wanted = format!("`{}` is expected", value.word());
            add(place, wanted, None, &|rule| value.is_of(action_of(policy, test, rule)));
        }
        if let Some(Expected { value, place }) = &expected.rule {
            let wanted = format!("the rule `{}` is expected", value.name);
            add(place, wanted, None, &|rule| is_rule(policy, value, rule));
        }
        if let Some(Expected { value, place }) = &expected.group {
            let name = policy.groups.get(value.index()).map_or("?", |group| group.name.as_str());
            add(place, format!("the group `{name}` is expected"), None, &|rule| {
                action_of(policy, test, rule) == Action::Steer(*value)
            });
        }
        if let Some(Expected { value, place }) = &expected.host {
            let wanted = if *value { "the host is to see it" } else { "the host is not to see it" };
            add(place, wanted.to_owned(), Some(*value), &|rule| {
                analysis::host_sees(policy, rule) == Some(*value)
            });
        }
        all
    }

    /// The expectation of the worker of a set of packets: only a group of that worker alone meets it, as the
    /// hash spreads the packets of others.
    pub(super) fn of_only_worker(policy: &Policy, test: &'t PolicyTest) -> Option<Self> {
        let Expected { value, place } = test.expected.worker.as_ref()?;
        let accepts = |rule: usize| match action_of(policy, test, rule) {
            Action::Steer(group) => is_only_worker(policy, group, *value),
            _ => false,
        };
        let accepted = (0..=policy.rules.len()).map(accepts).collect();
        let wanted = format!("a group of worker {value} alone is expected");
        Some(Self { place, wanted, accepted, is_host: None })
    }

    pub(super) fn accepts(&self, rule: usize) -> bool {
        self.accepted.get(rule).copied().unwrap_or(false)
    }
}

/// The action of a rule, or of unmatched packets: those that the host sends are sent.
fn action_of(policy: &Policy, test: &PolicyTest, rule: usize) -> Action {
    let default = match test.direction {
        policy::policy::Direction::Ingress => policy.default,
        policy::policy::Direction::Egress => Action::Pass,
    };
    policy.rules.get(rule).map_or(default, |rule| rule.action)
}

pub(super) fn is_rule(policy: &Policy, expected: &ExpectedRule, rule: usize) -> bool {
    let name = policy.rules.get(rule).map_or(DEFAULT_RULE, |rule| rule.name.as_str());
    expected.rules.iter().any(|known| known == name)
}

fn is_only_worker(policy: &Policy, group: GroupId, worker: u32) -> bool {
    match policy.groups.get(group.index()).map(|group| &group.workers) {
        Some(Workers::Listed(shares)) => {
            let mut used = shares.iter().filter(|share| share.weight > 0).peekable();
            used.peek().is_some() && used.all(|share| share.worker == worker)
        }
        Some(Workers::All) | None => false,
    }
}
