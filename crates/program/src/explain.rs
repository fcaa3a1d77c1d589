//! What a program will do with one packet, found the slow and obvious way: every flow in turn, then the
//! hash bit by bit. It shares no code with the compiler's cubes, the device's flow table or the packet
//! crate's hash tables, so that agreement with them means something. Never on the packet path.

use packet::{DeepKey, FlowKey, HASH_INPUT_BYTES, RssKey, TunnelKey};

use crate::ids::{ClassId, GroupId, QueueId, RuleId, WorkerId};
use crate::program::{Flow, FlowAction, FlowKind, Outcome, Program, Verdict};

/// The fate of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The flow that takes it, an index into `Program::flows`; `None`: the device leaves it to the kernel.
    pub flow: Option<usize>,
    /// The rule that this flow belongs to; without a flow, the rule that left it, or `default`.
    pub rule: RuleId,
    /// The flow tag that it is delivered with.
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
    /// The rule that decides and its verdict.
    pub outcome: Outcome,
    /// What else is delivered of it: copies in the order of their flows, then what a sniffer hears.
    pub copies: Vec<Copied>,
}

impl Explanation {
    /// Whether the policy leaves the packet to the host, and a worker receives it all the same: it is lost.
    #[must_use]
    pub fn is_lost_exception(&self) -> bool {
        self.outcome.verdict == Verdict::Kernel && self.queue.is_some()
    }

    /// Whether the host sees the packet.
    #[must_use]
    pub fn reaches_host(&self) -> bool {
        self.outcome.verdict == Verdict::Kernel && self.queue.is_none()
    }
}

/// One copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The flow that makes it.
    pub flow: usize,
    /// The rule that it belongs to.
    pub rule: RuleId,
    /// The flow tag that it is delivered with; a sniffer's has none, and is of this class all the same.
    pub class: Option<ClassId>,
    /// The RSS queue pair.
    pub queue: QueueId,
    /// The worker that receives it.
    pub worker: Option<WorkerId>,
    /// What the worker makes of it: it drops what the device has copied in excess.
    pub outcome: Outcome,
}

/// The fate of one packet that the host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentExplanation {
    /// The egress flow that decides and counts, an index into `Program::flows`; `None`: no rule is about it.
    pub flow: Option<usize>,
    /// The rule that this flow belongs to.
    pub rule: Option<RuleId>,
    /// Whether it leaves; what no egress rule is about does.
    pub leaves: bool,
    /// What a sniffer hears of it: nothing, if it does not leave.
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
    /// The fate of a packet without a tunnel, or where no rule asks for one.
    #[must_use]
    pub fn explain(&self, key: &FlowKey) -> Explanation {
        self.explain_deep(&DeepKey { outer: *key, tunnel: TunnelKey::default() })
    }

    /// The fate of a received packet, without running anything.
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

    /// The fate of a packet that the host sends, without running anything. The rules of the other direction have
    /// no say in it, nor has the policy's default.
    #[must_use]
    pub fn explain_sent(&self, key: &DeepKey) -> SentExplanation {
        let decides = |flow: &Flow| flow.kind == FlowKind::Egress && flow.matches(key);
        let flow = self.flows.iter().position(decides);
        let decided = flow.and_then(|index| self.flows.get(index));
        let leaves = decided.is_none_or(|flow| flow.action != FlowAction::Drop);
        let copies = self.copies_by(key, |flow| leaves && flow.kind == FlowKind::Sniffer);
        SentExplanation { flow, rule: decided.map(|flow| flow.rule), leaves, copies }
    }

    /// The copies that are made before the packet is taken: at the same priority they come first.
    fn copies(&self, key: &DeepKey, taken: Option<usize>) -> Vec<Copied> {
        let last = taken.and_then(|index| self.flows.get(index)).map_or(u16::MAX, |flow| flow.priority);
        self.copies_by(key, |flow| match flow.kind {
            FlowKind::Copy => flow.priority <= last && flow.matches(key),
            FlowKind::Sniffer => true,
            FlowKind::Normal | FlowKind::Egress => false,
        })
    }

    /// What these flows copy of a packet.
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

/// The definition: for every set bit of the input, the 32 key bits from that position on.
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
