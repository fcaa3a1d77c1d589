//! What a program does with one packet, computed in the simplest way: it compares every flow in turn and
//! computes the hash bit by bit. It shares no code with the compiler's cubes, softnic's flow table or the
//! hash tables of `packet`, so that tests can compare them with it. It does not run on the packet path.

use packet::{DeepKey, FlowKey, HASH_INPUT_BYTES, RssKey, TunnelKey};

use crate::ids::{ClassId, GroupId, QueueId, RuleId, WorkerId};
use crate::outcome::{Outcome, Verdict};
use crate::program::{Flow, FlowAction, FlowKind, Program};

/// The result of [`Program::explain`]: what happens to one received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The flow that the packet matches, an index into `Program::flows`; `None`: the device leaves it to the
    /// kernel.
    pub flow: Option<usize>,
    /// The rule of this flow; without a flow, the rule that leaves the packet to the kernel, or `default`.
    pub rule: RuleId,
    /// The class in the flow tag of its completion.
    pub class: Option<ClassId>,
    /// The group whose table chose the worker.
    pub group: Option<GroupId>,
    /// The RSS queue pair.
    pub queue: Option<QueueId>,
    /// The entry of the queue's table.
    pub table_index: Option<usize>,
    /// The Toeplitz hash; 0 when there is nothing to hash.
    pub hash: Option<u32>,
    /// The worker that receives it.
    pub worker: Option<WorkerId>,
    /// Whether the host receives it from a worker through the kernel sink.
    pub returned: bool,
    /// The rule that decides, and its verdict.
    pub outcome: Outcome,
    /// The copies that are delivered as well, in the order of their flows, those of sniffers last.
    pub copies: Vec<Copied>,
}

impl Explanation {
    /// Whether the policy leaves the packet to the host but a worker receives it and cannot return it: the
    /// host loses it.
    #[must_use]
    pub fn is_lost_exception(&self) -> bool {
        self.outcome.verdict == Verdict::Kernel && self.queue.is_some() && !self.returned
    }

    /// Whether the host sees the packet.
    #[must_use]
    pub fn reaches_host(&self) -> bool {
        self.returned || (self.outcome.verdict == Verdict::Kernel && !self.is_lost_exception())
    }
}

/// One copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The flow that copies.
    pub flow: usize,
    /// The rule of this flow.
    pub rule: RuleId,
    /// The class of the copy. That of a sniffer's copy, which has no flow tag, is the program's untagged
    /// class.
    pub class: Option<ClassId>,
    /// The RSS queue pair.
    pub queue: QueueId,
    /// The worker that receives it.
    pub worker: Option<WorkerId>,
    /// The rule that decides, and its verdict; `Filtered` where the device copies more than the rule matches.
    pub outcome: Outcome,
}

/// The result of [`Program::explain_sent`]: what happens to one packet that the host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentExplanation {
    /// The egress flow that decides and counts, an index into `Program::flows`; `None`: no egress rule
    /// matches.
    pub flow: Option<usize>,
    /// The rule of this flow.
    pub rule: Option<RuleId>,
    /// Whether it is sent; packets that no egress rule matches are.
    pub leaves: bool,
    /// The copies that sniffers deliver; none if it is not sent.
    pub copies: Vec<Copied>,
}

/// Where a queue pair delivers a packet.
struct Landing {
    group: GroupId,
    hash: u32,
    table_index: usize,
    worker: Option<WorkerId>,
}

impl Program {
    /// Explains a received packet that has no tunnel, or where no rule matches tunnel headers.
    #[must_use]
    pub fn explain(&self, key: &FlowKey) -> Explanation {
        self.explain_deep(&DeepKey { outer: *key, tunnel: TunnelKey::default() })
    }

    /// Explains a received packet.
    #[must_use]
    pub fn explain_deep(&self, key: &DeepKey) -> Explanation {
        let left = self.exceptions.iter().find(|exception| exception.predicate.matches_deep(key));
        let default = Outcome { rule: self.default_rule(), verdict: self.default };
        let left = left.map_or(default, |exception| exception.outcome);
        let taken = self.flows.iter().position(|flow| flow.kind == FlowKind::Normal && flow.matches(key));
        let mut explanation = Explanation {
            flow: taken,
            rule: left.rule,
            class: None,
            group: None,
            queue: None,
            table_index: None,
            hash: None,
            worker: None,
            returned: false,
            outcome: left,
            copies: self.copies(key, taken),
        };
        let Some(flow) = taken.and_then(|index| self.flows.get(index)) else { return explanation };
        explanation.rule = flow.rule;
        match flow.action {
            FlowAction::Pass => {}
            FlowAction::Drop => explanation.outcome = Outcome { rule: flow.rule, verdict: Verdict::Drop },
            FlowAction::Steer { queue, class } => {
                explanation.class = Some(class);
                if let Some(class) = self.class(class) {
                    explanation.outcome = class.resolve_deep(key);
                }
                explanation.queue = Some(queue);
                explanation.returned = self.is_returned(&explanation.outcome);
                if let Some(landing) = self.spread(queue, key) {
                    explanation.group = Some(landing.group);
                    explanation.hash = Some(landing.hash);
                    explanation.table_index = Some(landing.table_index);
                    explanation.worker = landing.worker;
                }
            }
        }
        explanation
    }

    /// Whether a packet with this outcome, which a worker has received, goes to the kernel sink.
    fn is_returned(&self, outcome: &Outcome) -> bool {
        let Some(sink) = self.kernel_sink() else { return false };
        match outcome.verdict {
            Verdict::Kernel => true,
            Verdict::Deliver(_) => {
                self.rules.get(outcome.rule.index()).is_some_and(|rule| rule.sinks.contains(&sink))
            }
            Verdict::Drop | Verdict::Filtered => false,
        }
    }

    /// Explains a packet that the host sends. Ingress rules and the policy's default do not apply to it.
    #[must_use]
    pub fn explain_sent(&self, key: &DeepKey) -> SentExplanation {
        let decides = |flow: &Flow| flow.kind == FlowKind::Egress && flow.matches(key);
        let flow = self.flows.iter().position(decides);
        let decided = flow.and_then(|index| self.flows.get(index));
        let leaves = decided.is_none_or(|flow| flow.action != FlowAction::Drop);
        let copies = self.copies_by(key, |flow| leaves && flow.kind == FlowKind::Sniffer);
        SentExplanation { flow, rule: decided.map(|flow| flow.rule), leaves, copies }
    }

    /// The copies made before the flow that takes the packet: at the same priority, copy flows come first.
    fn copies(&self, key: &DeepKey, taken: Option<usize>) -> Vec<Copied> {
        let last = taken.and_then(|index| self.flows.get(index)).map_or(u16::MAX, |flow| flow.priority);
        self.copies_by(key, |flow| match flow.kind {
            FlowKind::Copy => flow.priority <= last && flow.matches(key),
            FlowKind::Sniffer => true,
            FlowKind::Normal | FlowKind::Egress => false,
        })
    }

    /// The copies that these flows deliver.
    fn copies_by(&self, key: &DeepKey, makes: impl Fn(&Flow) -> bool) -> Vec<Copied> {
        let copying = self.flows.iter().enumerate().filter(|(_, flow)| makes(flow));
        let copies = copying.filter_map(|(index, flow)| {
            let FlowAction::Steer { queue, class } = flow.action else { return None };
            let class = match flow.kind {
                FlowKind::Sniffer => self.untagged,
                _ => Some(class),
            };
            let outcome = class.and_then(|class| self.class(class))?.resolve_deep(key);
            let worker = self.spread(queue, key).and_then(|landing| landing.worker);
            Some(Copied { flow: index, rule: flow.rule, class, queue, worker, outcome })
        });
        copies.collect()
    }

    fn spread(&self, queue_id: QueueId, key: &DeepKey) -> Option<Landing> {
        let queue = self.queues.get(queue_id.index())?;
        let group = self.groups.get(queue.group.index())?;
        let mut input = [0; HASH_INPUT_BYTES];
        let length = key.hash_input(queue.fields, &mut input);
        let hash = toeplitz(&group.key, &input[..length]);
        // The length of a table is a power of two: the hash's low bits are the index.
        let table_index = hash as usize & queue.table.len().saturating_sub(1);
        Some(Landing { group: queue.group, hash, table_index, worker: queue.table.get(table_index).copied() })
    }
}

/// The definition: the exclusive or, over every set bit of the input, of the 32 key bits from that position
/// on.
fn toeplitz(key: &RssKey, input: &[u8]) -> u32 {
    let key_bit = |bit: usize| u32::from(key.0.get(bit / 8).map_or(0, |byte| byte >> (7 - bit % 8) & 1));
    let window = |start: usize| (start..start + 32).fold(0, |bits, bit| bits << 1 | key_bit(bit));
    let set = |bit: &usize| input[bit / 8] >> (7 - bit % 8) & 1 == 1;
    (0..input.len() * 8).filter(set).fold(0, |hash, bit| hash ^ window(bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first vector of Microsoft's "Verifying the RSS hash calculation".
    #[test]
    fn the_definition_gives_the_published_hash() {
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&RssKey::MICROSOFT, &addresses), 0x323e_8fc2);
        let with_ports = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        assert_eq!(toeplitz(&RssKey::MICROSOFT, &with_ports), 0x51cc_c178);
        assert_eq!(toeplitz(&RssKey::MICROSOFT, &[]), 0);
    }
}
