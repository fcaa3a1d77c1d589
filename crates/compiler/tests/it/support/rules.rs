//! Random rules of clauses, as a policy's text. Rules use only features that the device has.

use std::fmt::Write as _;

use device_model::DeviceModel;
use packet::{DeepKey, Layers};
use policy::{Diagnostics, NoFiles, Policy, Source};
use program::{Feature, GroupId, Verdict};
use proptest::prelude::*;

use super::clauses::{Clause, Meaning, clauses, plain_clauses};

const GROUPS: [&str; 3] = ["spread", "addresses", "single"];
const GROUP_TEXT: &str = r#"
[groups.spread]
workers = "all"
[groups.addresses]
workers = [2, 1]
hash = "l3"
symmetric = false
[groups.single]
workers = [1]
hash = "none"
"#;

/// The action of a rule, or of the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Steer(GroupId),
    Drop,
    Kernel,
    Copy(GroupId),
    Sniff(GroupId),
    DropSent,
    PassSent,
}

impl Act {
    pub(crate) fn is_about_sent(self) -> bool {
        matches!(self, Self::DropSent | Self::PassSent)
    }

    pub(crate) fn verdict(self) -> Verdict {
        match self {
            Self::Steer(group) | Self::Copy(group) | Self::Sniff(group) => Verdict::Deliver(group),
            Self::Drop | Self::DropSent => Verdict::Drop,
            Self::Kernel | Self::PassSent => Verdict::Kernel,
        }
    }

    fn text(self) -> String {
        let of = |word: &str, group: GroupId| format!("{{ {word} = \"{}\" }}", GROUPS[group.index()]);
        match self {
            Self::Steer(group) => of("steer", group),
            Self::Copy(group) => of("copy", group),
            Self::Sniff(group) => of("sniff", group),
            Self::Drop => "\"drop\"".to_owned(),
            Self::Kernel => "\"kernel\"".to_owned(),
            Self::DropSent => "\"drop\"\ndirection = \"egress\"".to_owned(),
            Self::PassSent => "\"pass\"\ndirection = \"egress\"".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) clauses: Vec<Clause>,
    pub(crate) act: Act,
}

impl Rule {
    /// Whether it matches. One that leaves packets to the kernel by ports alone leaves it those TCP and UDP
    /// packets that have none, too: later fragments, and headers that are cut off.
    pub(crate) fn holds(&self, key: &DeepKey) -> bool {
        let holds = |clause: &Clause| clause.holds(key);
        let has_other_needs = |clause: &Clause| {
            matches!(clause.meaning, Meaning::Tunnel(_))
                || clause.text.starts_with("tcp_flags")
                || clause.text.starts_with("fragment")
        };
        let (ports, others): (Vec<&Clause>, Vec<&Clause>) =
            self.clauses.iter().partition(|clause| clause.is_about_ports());
        let is_without = !key.outer.layers.intersects(Layers::TCP | Layers::UDP)
            && key.outer.layers.intersects(Layers::IPV4 | Layers::IPV6)
            && matches!(key.outer.protocol, 6 | 17);
        let ignores = self.act == Act::Kernel && is_without && !self.clauses.iter().any(has_other_needs);
        others.into_iter().all(holds) && (ignores || ports.into_iter().all(holds))
    }
}

/// A policy.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) rules: Vec<Rule>,
    pub(crate) default: Act,
}

impl Rules {
    /// Returns the rules as far as the device has such rules at all, with one sniffer at most.
    pub(crate) fn on(mut self, profile: &DeviceModel) -> Self {
        let mut sniffs = !profile.allows(Feature::Sniffer);
        let last_sent = self.rules.iter().rposition(|rule| rule.act.is_about_sent());
        for (index, rule) in self.rules.iter_mut().enumerate() {
            rule.act = match rule.act {
                Act::Copy(group) if !profile.allows(Feature::Copy) => Act::Steer(group),
                Act::Sniff(group) if std::mem::replace(&mut sniffs, true) => Act::Steer(group),
                Act::DropSent if !profile.allows(Feature::Egress) => Act::Drop,
                Act::PassSent if !profile.allows(Feature::Egress) => Act::Kernel,
                act => act,
            };
            let is_followed = rule.act.is_about_sent() && Some(index) != last_sent;
            if is_followed && profile.multicast_ignores_priority {
                // Such a device looks at flows on multicast last, and no worker can put that right.
                rule.clauses.retain(|clause| !clause.text.contains("multicast"));
            }
        }
        self
    }
}

/// Copies stand among the plain rules: what a worker decides may not come before them.
pub(crate) fn rules(most: usize) -> impl Strategy<Value = Rules> {
    let default = prop_oneof![2 => steer(), 1 => Just(Act::Drop), 3 => Just(Act::Kernel)];
    let half = || most / 2;
    let plain = prop::collection::vec(plain_rule(), 0..=half());
    let others = prop::collection::vec(rule(), 0..=most - half());
    (plain, others, default).prop_map(|(mut rules, others, default)| {
        rules.extend(others);
        Rules { rules, default }
    })
}

fn group() -> impl Strategy<Value = GroupId> {
    (0..GROUPS.len() as u32).prop_map(GroupId)
}

fn steer() -> impl Strategy<Value = Act> {
    group().prop_map(Act::Steer)
}

fn taking() -> impl Strategy<Value = Act> {
    prop_oneof![4 => steer(), 2 => Just(Act::Drop), 2 => Just(Act::Kernel)]
}

fn plain_rule() -> impl Strategy<Value = Rule> {
    let act = prop_oneof![
        2 => group().prop_map(Act::Copy),
        2 => Just(Act::DropSent),
        2 => Just(Act::PassSent),
        2 => taking(),
    ];
    (plain_clauses(), act).prop_map(|(clauses, act)| Rule { clauses, act })
}

fn rule() -> impl Strategy<Value = Rule> {
    let act = prop_oneof![9 => taking(), 1 => group().prop_map(Act::Sniff)];
    (clauses(), act).prop_map(|(clauses, act)| Rule { clauses, act })
}

pub(crate) fn text(rules: &[Rule], default: Act) -> String {
    let mut text = format!("version = 1\ndefault = {}\n{GROUP_TEXT}", default.text());
    for (index, Rule { clauses, act }) in rules.iter().enumerate() {
        let keys: Vec<&str> = clauses.iter().map(|clause| clause.text.as_str()).collect();
        let keys = if keys.is_empty() { "any = true".to_owned() } else { keys.join(", ") };
        let action = act.text();
        writeln!(text, "[[rules]]\nname = \"r{index}\"\nmatch = {{ {keys} }}\naction = {action}")
            .expect("strings take text");
    }
    text
}

pub(crate) fn parse(text: &str) -> Result<Policy, Diagnostics> {
    policy::parse(&Source::new("random.toml", text), &NoFiles).map(|(policy, _)| policy)
}

/// The policy of these rules.
pub(crate) fn policy(rules: &[Rule], default: Act) -> Result<Policy, Diagnostics> {
    parse(&text(rules, default))
}
