//! Digests of flows, by which thousands of flows of two programs are compared without a look at the flows,
//! their rules and their queue pairs: most of these are not in the processor's cache.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use crate::ids::{ClassId, QueueId, RuleId};
use crate::program::{Flow, FlowAction, FlowKind, Program};
use crate::spec_chain::DIGEST_KEYS;

/// The digests of a flow's match and action, with its priority and kind. Two different flows have equal
/// digests with a probability of 2^-64, even if an attacker chooses them, because the keys are random for
/// each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowDigest {
    /// Equal for flows of equal [`Flow::match_key`].
    pub matches: u64,
    /// Equal for flows of one match for which the device does the same
    /// ([`Correspondence::is_same_action`](crate::Correspondence::is_same_action)).
    pub action: u64,
    /// [`SpecChain::mask_digest`](crate::SpecChain::mask_digest), or 0 if masks were not asked for.
    pub mask: u64,
    /// [`Flow::priority`].
    pub priority: u16,
    /// [`Flow::kind`].
    pub kind: FlowKind,
    /// [`Flow::is_multicast_only`].
    pub is_multicast_only: bool,
}

impl FlowDigest {
    /// Whether two flows have the same match and action, so that at most the priority has to be changed on a
    /// device.
    #[must_use]
    pub fn is_same_flow(&self, other: &Self) -> bool {
        (self.matches, self.action) == (other.matches, other.action)
    }
}

/// Something that a flow refers to and that its program does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DanglingFlow {
    /// The rule of the flow.
    #[error("a flow of missing rule {0}")]
    Rule(RuleId),
    /// The queue pair of its packets.
    #[error("a flow to missing queue {0}")]
    Queue(QueueId),
    /// The class of its packets, or a tag for it.
    #[error("a flow to missing class {0}")]
    Class(ClassId),
}

impl Program {
    /// The digests of all flows. `has_masks`: those of the masks too, for which the cube of each flow is
    /// computed and kept.
    ///
    /// # Errors
    /// A flow refers to something that the program does not have.
    pub fn flow_digests(&self, has_masks: bool) -> Result<Arc<[FlowDigest]>, DanglingFlow> {
        let queue = |index| DIGEST_KEYS.hash_one(self.spreading(QueueId::of(index)));
        let queues: Vec<u64> = (0..self.queues.len()).map(queue).collect();
        let mut dangling = None;
        let digest = |flow: &Flow| {
            if let Some(fault) = self.dangling(flow) {
                dangling.get_or_insert(fault);
            }
            let rule = || self.rules.get(flow.rule.index()).map_or(0, |rule| rule.name.digest());
            let (number, whose) = match flow.action {
                FlowAction::Steer { queue, .. } => {
                    let tag = self.tagged_class(flow).map_or(0, |class| u64::from(class.0) + 1);
                    (tag, queues.get(queue.index()).copied().unwrap_or(0))
                }
                FlowAction::Drop => (DROP, rule()),
                FlowAction::Pass => (PASS, rule()),
            };
            FlowDigest {
                matches: flow.specs.digest().wrapping_add(flow.kind as u64),
                action: whose.wrapping_add(number),
                mask: if has_masks { flow.specs.mask_digest() } else { 0 },
                priority: flow.priority,
                kind: flow.kind,
                is_multicast_only: flow.is_multicast_only(),
            }
        };
        let digests = self.flows.iter().map(digest).collect();
        dangling.map_or(Ok(digests), Err)
    }

    /// Returns the first part of the program that the flow refers to and that is missing.
    fn dangling(&self, flow: &Flow) -> Option<DanglingFlow> {
        if self.rules.get(flow.rule.index()).is_none() {
            return Some(DanglingFlow::Rule(flow.rule));
        }
        let FlowAction::Steer { queue, class } = flow.action else { return None };
        if self.queues.get(queue.index()).is_none() {
            return Some(DanglingFlow::Queue(queue));
        }
        (self.class(class).is_none() || class.tag().is_none()).then_some(DanglingFlow::Class(class))
    }
}

/// Numbers beside those of tags, which are at most [`CLASSES_MAX`](crate::CLASSES_MAX).
const DROP: u64 = 1 << 32;
const PASS: u64 = 2 << 32;

#[cfg(test)]
mod tests {
    use flow_spec::{EthernetMatch, FlowSpec, PortMatch};
    use packet::{HashFields, RssKey};

    use super::*;
    use crate::{Class, Correspondence, Decide, Group, GroupId, HashVariant, Outcome, RssQueue, Rule};
    use crate::{SpecChain, Verdict, WorkerId};

    /// A program with these rules, and with flows of every kind and action to queue pairs of these workers.
    fn program(rules: [&str; 2], workers: [u32; 2]) -> Program {
        let rule = |name: &&str| Rule::in_hardware(*name, Verdict::Drop, 1);
        let group = |worker: &u32| Group {
            name: format!("of {worker}"),
            description: None,
            table: vec![WorkerId(*worker)],
            key: RssKey::SYMMETRIC,
            fields: HashFields::empty(),
            symmetric: true,
        };
        let queue = |(index, worker): (usize, &u32)| RssQueue {
            group: GroupId::of(index),
            variant: HashVariant::All,
            fields: HashFields::empty(),
            table: vec![WorkerId(*worker)],
        };
        let mut queues: Vec<RssQueue> = workers.iter().enumerate().map(queue).collect();
        queues.push(RssQueue { fields: HashFields::all(), ..queues[0].clone() });
        let port = |dst_port| {
            let [value, mask] = [dst_port, 0xffff].map(|dst_port| PortMatch { src_port: 0, dst_port });
            FlowSpec::Udp { value, mask }
        };
        let address = EthernetMatch { dst_mac: [1, 0, 0, 0, 0, 1], ..EthernetMatch::default() };
        let multicast = FlowSpec::Ethernet { value: address, mask: address };
        let [outer, dns, inside, multicast] = [
            SpecChain::outer(vec![port(80)]),
            SpecChain::outer(vec![port(53), port(80)]),
            SpecChain::new(vec![port(53), port(80)], 1),
            SpecChain::outer(vec![multicast]),
        ];
        let steer = |queue, class| FlowAction::Steer { queue: QueueId(queue), class: ClassId(class) };
        let actions = [
            steer(0, 0),
            steer(0, 1),
            steer(0, 2),
            steer(1, 0),
            steer(2, 0),
            FlowAction::Drop,
            FlowAction::Pass,
        ];
        let mut flows = Vec::new();
        for kind in [FlowKind::Normal, FlowKind::Copy, FlowKind::Sniffer, FlowKind::Egress] {
            for (specs, rule) in [(&outer, 0), (&outer, 1), (&dns, 1), (&inside, 0), (&multicast, 1)] {
                let flow =
                    |action| Flow { rule: RuleId(rule), priority: 3, kind, specs: specs.clone(), action };
                flows.extend(actions.map(flow));
            }
        }
        let outcome = Outcome { rule: RuleId(0), verdict: Verdict::Drop };
        let class = Class { rule: RuleId(0), decide: Decide::Exact(outcome) };
        Program {
            rules: rules.iter().map(rule).collect(),
            groups: workers.iter().map(group).collect(),
            sinks: Vec::new(),
            queues,
            flows,
            classes: vec![Some(class); 3],
            untagged: Some(ClassId(2)),
            exceptions: Vec::new(),
            runtime: None,
            recorder: None,
            default: Verdict::Kernel,
            priorities_used: 1,
        }
    }

    #[test]
    fn digests_are_equal_where_matches_and_actions_are() {
        let programs = [
            program(["a", "b"], [0, 1]),
            program(["b", "a"], [1, 0]),
            Program { untagged: None, ..program(["a", "c"], [1, 1]) },
        ];
        let (mut same, mut other) = (0, 0);
        for (old, new) in programs.iter().flat_map(|old| programs.iter().map(move |new| (old, new))) {
            let common = Correspondence::of(old, new);
            let [of_old, of_new] = [(old, true), (new, false)]
                .map(|(program, has_masks)| program.flow_digests(has_masks).expect("a whole program"));
            for (before, of_old) in old.flows.iter().zip(&*of_old) {
                for (after, of_new) in new.flows.iter().zip(&*of_new) {
                    let has_same_match = before.match_key() == after.match_key();
                    assert_eq!(of_old.matches == of_new.matches, has_same_match, "{before:?} {after:?}");
                    let is_same = has_same_match && common.is_same_action(before, after);
                    assert_eq!(of_old.is_same_flow(of_new), is_same, "{before:?} {after:?}");
                    let FlowDigest { priority, kind, is_multicast_only, .. } = *of_new;
                    assert_eq!((priority, kind), (after.priority, after.kind));
                    assert_eq!(is_multicast_only, after.is_multicast_only());
                    (same, other) =
                        (same + usize::from(is_same), other + usize::from(has_same_match && !is_same));
                }
            }
        }
        assert!(same > 500 && other > 5_000, "{same} {other}");
    }

    #[test]
    fn flows_that_refer_to_nothing_have_no_digests() {
        let whole = program(["a", "b"], [0, 1]);
        let steer = |queue, class| FlowAction::Steer { queue: QueueId(queue), class: ClassId(class) };
        for (rule, action, fault) in [
            (2, FlowAction::Drop, DanglingFlow::Rule(RuleId(2))),
            (0, steer(3, 0), DanglingFlow::Queue(QueueId(3))),
            (0, steer(0, 3), DanglingFlow::Class(ClassId(3))),
            (0, steer(0, crate::CLASSES_MAX), DanglingFlow::Class(ClassId(crate::CLASSES_MAX))),
        ] {
            let mut broken = whole.clone();
            (broken.flows[7].rule, broken.flows[7].action) = (RuleId(rule), action);
            assert_eq!(broken.flow_digests(false).err(), Some(fault));
        }
    }
}
