//! The rules of a program of which workers do not let all packets through. Each worker decides it for the
//! packets that it receives. A limit is divided among the N workers of the rule, in proportion to the entries
//! that they have in the indirection table, so that they together let no more through. A worker of another
//! group that receives packets of the rule by a flow of a hybrid rule has 1/N of the limit in addition: with
//! F such workers, limit × (1 + F/N) is the most that all let through. A limit of sources is divided in the
//! same way: each worker lets a source have its part.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{RuleId, WorkerId};
use crate::outcome::{Outcome, Verdict};
use crate::policing::{LimitShare, Policing};
use crate::program::{FlowAction, Program};

/// A rule of which not all packets are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicedRule<'p> {
    /// The rule.
    pub rule: RuleId,
    /// The part of the packets that is let through.
    pub policing: Policing,
    /// The workers over which the device spreads its packets.
    table: &'p [WorkerId],
}

impl PolicedRule<'_> {
    /// The workers and their shares, which add up to the whole.
    #[must_use]
    pub fn shares(&self) -> BTreeMap<WorkerId, LimitShare> {
        let workers: BTreeSet<WorkerId> = self.table.iter().copied().collect();
        workers.into_iter().map(|worker| (worker, self.share(worker))).collect()
    }

    /// The share of a worker. A worker that is none of the rule's can receive packets of it by a flow of a
    /// hybrid rule of another group; it has, beside the others, the share of an average one.
    #[must_use]
    pub fn share(&self, worker: WorkerId) -> LimitShare {
        let own = self.table.iter().filter(|other| **other == worker).count();
        let (parts, of) = match own {
            0 => (1, self.table.iter().collect::<BTreeSet<_>>().len().max(1)),
            own => (own, self.table.len()),
        };
        // A table has at most 2^16 entries.
        LimitShare { parts: parts as u32, of: of as u32 }
    }
}

impl Program {
    /// Returns whether workers do not let all packets with this outcome through.
    #[must_use]
    pub fn is_policed(&self, outcome: &Outcome) -> bool {
        let rule = self.rules.get(outcome.rule.index());
        matches!(outcome.verdict, Verdict::Deliver(_)) && rule.is_some_and(|rule| !rule.policing.passes_all())
    }

    /// The rules of which not all packets are let through.
    #[must_use]
    pub fn policed_rules(&self) -> Vec<PolicedRule<'_>> {
        let policed = self.rules.iter().enumerate().filter(|(_, rule)| !rule.policing.passes_all());
        let mut tables: BTreeMap<RuleId, &[WorkerId]> =
            policed.map(|(index, _)| (RuleId::of(index), &[][..])).collect();
        if tables.is_empty() {
            return Vec::new();
        }
        for flow in &self.flows {
            let FlowAction::Steer { queue, .. } = flow.action else { continue };
            let (Some(table), Some(queue)) = (tables.get_mut(&flow.rule), self.queues.get(queue.index()))
            else {
                continue;
            };
            // A queue for packets without a field to hash has one entry; the others have that of the group.
            let is_own = self.rules[flow.rule.index()].action == Verdict::Deliver(queue.group);
            if is_own && queue.table.len() > table.len() {
                *table = &queue.table;
            }
        }
        let rules = tables.into_iter().map(|(rule, table)| {
            let table = if table.is_empty() { self.table_of(rule) } else { table };
            PolicedRule { rule, policing: self.rules[rule.index()].policing, table }
        });
        rules.collect()
    }

    /// The table of the group of a rule.
    fn table_of(&self, rule: RuleId) -> &[WorkerId] {
        let Some(Verdict::Deliver(group)) = self.rules.get(rule.index()).map(|rule| rule.action) else {
            return &[];
        };
        match self.groups.get(group.index()) {
            Some(group) if group.fields.is_empty() => group.table.get(..1).unwrap_or_default(),
            Some(group) => &group.table,
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policing::{LimitPart, LimitUnit, RateLimit};

    #[test]
    fn shares_follow_the_table_and_add_up() {
        let table = [0, 1, 0, 2].map(WorkerId);
        let limit = RateLimit::of_packets(1000);
        let limit = RateLimit { burst: 64, ..limit };
        let policing = Policing { sample: 1, limit: Some(limit) };
        let rule = PolicedRule { rule: RuleId(0), policing, table: &table };
        let shares = rule.shares();
        assert_eq!(shares[&WorkerId(0)], LimitShare { parts: 2, of: 4 });
        assert_eq!(shares.values().map(|share| share.parts).sum::<u32>(), 4);
        let part = shares[&WorkerId(1)].of_limit(limit);
        let packets = |per_second, burst| LimitPart { unit: LimitUnit::Packets, per_second, burst };
        assert_eq!(part, packets(250.0, 16));
        assert_eq!(rule.share(WorkerId(9)), LimitShare { parts: 1, of: 3 }, "the average of three workers");
        let slow = RateLimit { burst: 1, ..RateLimit::of_packets(1) };
        let slow = shares[&WorkerId(2)].of_limit(slow);
        assert_eq!(slow, packets(0.25, 1), "one packet passes at least");
        let shown = [part, slow, packets(2.5, 3)].map(|part| part.to_string());
        assert_eq!(shown, ["250/s, burst 16", "1 in 4 s, burst 1", "2.5/s, burst 3"]);
    }
}
