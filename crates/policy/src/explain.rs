//! What a program will do with one packet, found the slow and obvious way: every flow in turn, then the
//! hash bit by bit. It shares no code with the compiler's cubes, the device's flow table or the packet
//! crate's hash tables, so that agreement with them means something. Never on the packet path.

use packet::{FlowKey, HASH_INPUT_BYTES, RssKey};

use crate::ids::{ClassId, GroupId, QueueId, RuleId, WorkerId};
use crate::program::{FlowAction, Outcome, Program, Verdict};

/// The fate of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The flow that takes it, an index into `Program::flows`; `None`: the device leaves it to the kernel.
    pub flow: Option<usize>,
    /// The rule that this flow belongs to, or `default`.
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
}

impl Program {
    /// The fate of a packet, without running anything.
    #[must_use]
    pub fn explain(&self, key: &FlowKey) -> Explanation {
        let default = Outcome { rule: self.default_rule(), verdict: self.default };
        let mut explanation = Explanation {
            flow: None,
            rule: default.rule,
            class: None,
            group: None,
            queue: None,
            table_index: None,
            hash: None,
            worker: None,
            outcome: default,
        };
        let taken = self.flows.iter().position(|flow| flow.specs.iter().all(|spec| spec.matches(key)));
        let Some((index, flow)) = taken.and_then(|index| Some((index, self.flows.get(index)?))) else {
            return explanation;
        };
        explanation.flow = Some(index);
        explanation.rule = flow.rule;
        match flow.action {
            FlowAction::Drop => explanation.outcome = Outcome { rule: flow.rule, verdict: Verdict::Drop },
            FlowAction::Steer { queue, class } => {
                explanation.class = Some(class);
                if let Some(class) = self.classes.get(class.index()) {
                    explanation.outcome = class.resolve(key);
                }
                self.spread(queue, key, &mut explanation);
            }
        }
        explanation
    }

    fn spread(&self, queue_id: QueueId, key: &FlowKey, explanation: &mut Explanation) {
        let Some(queue) = self.queues.get(queue_id.index()) else { return };
        let Some(group) = self.groups.get(queue.group.index()) else { return };
        let mut input = [0; HASH_INPUT_BYTES];
        let length = key.hash_input(queue.fields, &mut input);
        let hash = toeplitz(&group.key, &input[..length]);
        // The length of a table is a power of two: the hash's low bits are the index.
        let index = hash as usize & queue.table.len().saturating_sub(1);
        explanation.group = Some(queue.group);
        explanation.queue = Some(queue_id);
        explanation.hash = Some(hash);
        explanation.table_index = Some(index);
        explanation.worker = queue.table.get(index).copied();
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
