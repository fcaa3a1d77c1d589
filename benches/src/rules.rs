//! Rule sets for the benches of the policy compiler: ClassBench filters with actions, read from files or
//! generated, and written as a policy. `competitors` writes the same filters for other programs.

mod filter;
mod generate;

use std::fmt::Write as _;

pub(crate) use filter::mask;
pub use filter::{Filter, Ports};
pub use generate::generated;

/// The action for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Deliver to one of two groups of workers.
    Steer(u8),
    /// Drop.
    Drop,
}

/// A filter with an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The packets.
    pub filter: Filter,
    /// Their action.
    pub verdict: Verdict,
}

/// Rules; the first that matches decides.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// Its name in tables.
    pub name: String,
    /// In order of evaluation.
    pub rules: Vec<Rule>,
}

impl RuleSet {
    /// Assigns actions in turn: ClassBench filters have none.
    #[must_use]
    pub fn new(name: &str, filters: Vec<Filter>) -> Self {
        const TURNS: [Verdict; 3] = [Verdict::Steer(0), Verdict::Steer(1), Verdict::Drop];
        let rule = |(index, filter)| Rule { filter, verdict: TURNS[index % TURNS.len()] };
        Self { name: name.to_owned(), rules: filters.into_iter().enumerate().map(rule).collect() }
    }

    /// The same filters, all of whose packets are delivered, with a last one for the packets that match none
    /// of them: what differs between two such sets is how long it takes to find the rule, not what is done
    /// with the packet.
    #[must_use]
    pub fn delivering(&self) -> Self {
        let rest = Filter {
            src: (0, 0),
            dst: (0, 0),
            src_port: (0, u16::MAX),
            dst_port: (0, u16::MAX),
            protocol: None,
            flags: (0, 0),
        };
        let filters = self.rules.iter().map(|rule| rule.filter).chain([rest]);
        let rules = filters.map(|filter| Rule { filter, verdict: Verdict::Steer(0) }).collect();
        Self { name: self.name.clone(), rules }
    }

    /// The set without the rules that compare TCP flags, which the flows of a device do not.
    #[must_use]
    pub fn without_tcp_flags(&self) -> Self {
        let rules = self.rules.iter().filter(|rule| rule.filter.flags.1 == 0).copied().collect();
        Self { name: self.name.clone(), rules }
    }

    /// `count` of its rules, evenly spread, in their order.
    #[must_use]
    pub fn sample(&self, count: usize) -> Self {
        let place = |index: usize| self.rules[index * self.rules.len() / count.max(1)];
        let name = format!("{count} of {}", self.name);
        Self { name, rules: (0..count.min(self.rules.len())).map(place).collect() }
    }

    /// Parses a file of ClassBench filters; `None` if a line is not a filter.
    #[must_use]
    pub fn read(name: &str, text: &str) -> Option<Self> {
        Some(Self::new(name, text.lines().map(Filter::read).collect::<Option<_>>()?))
    }

    /// As ClassBench writes them.
    #[must_use]
    pub fn filters_text(&self) -> String {
        self.rules.iter().fold(String::new(), |mut text, rule| {
            writeln!(text, "{}", rule.filter).expect("a String");
            text
        })
    }

    /// The policy, as `steerd import` writes it, with the actions inserted.
    ///
    /// # Panics
    /// If the importer does not write a rule for each filter.
    #[must_use]
    pub fn policy_text(&self) -> String {
        const HEAD: &str = "version = 1\ndefault = \"kernel\"\n[groups.a]\nworkers = \"all\"\n[groups.b]\nworkers = \"all\"\n";
        const ACTION: &str = "action = { steer = \"workers\" }";
        let imported = policy::import::classbench(&self.filters_text()).expect("filters").policy_toml;
        let rules = imported.find("[[rules]]").map_or("", |start| &imported[start..]);
        let parts: Vec<&str> = rules.split(ACTION).collect();
        assert_eq!(parts.len(), self.rules.len() + 1, "a rule for every filter of {}", self.name);
        let mut text = HEAD.to_owned();
        for (index, part) in parts.into_iter().enumerate() {
            text.push_str(part);
            text.push_str(match self.rules.get(index).map(|rule| rule.verdict) {
                Some(Verdict::Steer(0)) => "action = { steer = \"a\" }",
                Some(Verdict::Steer(_)) => "action = { steer = \"b\" }",
                Some(Verdict::Drop) => "action = \"drop\"",
                None => "",
            });
        }
        text
    }

    /// The same rules with a few changes: ten actions differ, and one rule is removed.
    #[must_use]
    pub fn with_few_changes(&self) -> Self {
        let mut rules = self.rules.clone();
        let step = (rules.len() / 10).max(1);
        for rule in rules.iter_mut().step_by(step) {
            rule.verdict = match rule.verdict {
                Verdict::Drop => Verdict::Steer(0),
                Verdict::Steer(_) => Verdict::Drop,
            };
        }
        rules.remove(rules.len() / 2);
        Self { name: format!("{} changed", self.name), rules }
    }

    /// Equivalent rules: every fourth source prefix as two halves, and neighbours that share no packet
    /// swapped.
    #[must_use]
    pub fn written_differently(&self) -> Self {
        let mut rules = Vec::with_capacity(self.rules.len() * 5 / 4);
        for (index, rule) in self.rules.iter().enumerate() {
            match rule.filter.source_halves() {
                Some(halves) if index % 4 == 0 => {
                    rules.extend(halves.map(|filter| Rule { filter, ..*rule }));
                }
                _ => rules.push(*rule),
            }
        }
        for pair in rules.chunks_exact_mut(2) {
            if !pair[0].filter.overlaps(&pair[1].filter) {
                pair.swap(0, 1);
            }
        }
        Self { name: format!("{} rewritten", self.name), rules }
    }
}
