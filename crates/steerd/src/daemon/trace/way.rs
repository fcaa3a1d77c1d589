//! The way of one packet beside the one that [`Program::explain_deep`] computes for it.

use std::fmt::Display;

use program::{
    ClassId, Explanation, FlowAction, Outcome, Policing, Program, RUNTIME_RULES, RuleId, SinkId, Verdict,
    WorkerId,
};
use softnic::{FrameEnd, WatchedFrame};
use worker::SinkMap;
use worker::sinks::trace::TracedPacket;

use crate::api::model::{TraceDifference, TraceLine};

/// The way of a packet by one program, as far as it concerns the worker that received it: the packet itself,
/// or a copy of it.
pub(super) struct Way {
    flow: Option<usize>,
    class: Option<ClassId>,
    queue: Option<u32>,
    is_copy: bool,
    /// Between the way to the worker and the one that was computed.
    pub(super) differences: Vec<TraceDifference>,
}

impl Way {
    pub(super) fn of(program: &Program, packet: &TracedPacket) -> Self {
        let explained = program.explain_deep(&packet.key);
        let itself = Self {
            flow: explained.flow,
            class: explained.class,
            queue: explained.queue.map(|queue| queue.0),
            is_copy: false,
            differences: differences(program, packet, explained.class, explained.worker),
        };
        let copies = explained.copies.iter().map(|copied| Self {
            flow: Some(copied.flow),
            class: copied.class,
            queue: Some(copied.queue.0),
            is_copy: true,
            differences: differences(program, packet, copied.class, copied.worker),
        });
        let received = class_of(program, packet);
        let ways = std::iter::once(itself).chain(copies);
        // Of several, the one whose tag the packet had.
        ways.min_by_key(|way| (way.class != received, way.differences.len()))
            .expect("one of the packet itself")
    }

    /// The line of the packet, with the differences of what the worker did with it.
    pub(super) fn line(self, program: &Program, map: &SinkMap, packet: &TracedPacket) -> TraceLine {
        let Self { flow, class, queue, is_copy, mut differences } = self;
        let is_at_run_time = packet.outcome.rule.index() == program.rules.len();
        // The worker decides by the class that the packet had, whichever program's flow it came by.
        let class = class_of(program, packet).or(class);
        let received = class.and_then(|class| program.class(class));
        let computed = received.map(|class| class.resolve_deep(&packet.key));
        if let Some(computed) = computed.filter(|computed| !may_decide(program, packet.outcome, *computed)) {
            let (seen, computed) = (decision(program, packet.outcome), decision(program, computed));
            differences.push(difference("decision", seen, computed));
        }
        let names = |ids: &mut dyn Iterator<Item = SinkId>| -> Vec<String> {
            ids.filter_map(|id| program.sink(id)).map(|sink| sink.name.clone()).collect()
        };
        let sinks: Vec<SinkId> = map.sinks_in(packet.slots).collect();
        let expected = sinks_of(program, packet.outcome);
        let sinks = names(&mut sinks.into_iter());
        let expected = names(&mut expected.into_iter());
        if !is_at_run_time && sinks != expected {
            differences.push(difference("sinks", list(&sinks), list(&expected)));
        }
        let is_policed = computed.is_some_and(|computed| is_policed(program, packet.outcome, computed));
        let dropped = match packet.outcome.verdict {
            Verdict::Drop if is_policed => Some("policed"),
            Verdict::Drop => Some("worker"),
            Verdict::Kernel if program.kernel_sink().is_none() => Some("lost_exception"),
            Verdict::Kernel | Verdict::Deliver(_) | Verdict::Filtered => None,
        };
        TraceLine {
            packet: policy::short_packet(&packet.key),
            bytes: packet.head.frame_bytes,
            head: packet.head.to_string(),
            generation: packet.generation,
            received_ns: packet.received_ns,
            decided_ns: Some(packet.decided_ns),
            worker: Some(packet.worker.0),
            tag: Some(packet.tag.0).filter(|tag| *tag != 0),
            flow,
            queue,
            is_copy,
            rule: name(program, packet.outcome.rule).to_owned(),
            line: line_in_policy(program, packet.outcome.rule),
            action: program.describe(packet.outcome.verdict),
            dropped: dropped.map(ToOwned::to_owned),
            compared_rules: class.and_then(|class| program.class(class)?.comparisons(&packet.key)),
            sinks,
            differences,
            ..TraceLine::default()
        }
    }
}

/// The line of a frame that no worker received.
pub(super) fn line_of_frame(program: &Program, generation: u64, frame: &WatchedFrame) -> TraceLine {
    let explained = program.explain_deep(&frame.key);
    let computed = computed_end(program, &explained);
    // A frame that is lost on its way to a worker is still one that was to go there.
    let is_lost = !matches!(frame.end, FrameEnd::Unmatched | FrameEnd::FlowDropped);
    let is_computed = frame.end == computed || (is_lost && computed == FrameEnd::Delivered);
    let seen = name_of_end(frame.end);
    let is_whole = !matches!(frame.end, FrameEnd::Runt | FrameEnd::Oversize);
    let action = match frame.end {
        FrameEnd::Unmatched => program.describe(Verdict::Kernel),
        FrameEnd::FlowDropped => program.describe(Verdict::Drop),
        _ => program.describe(explained.outcome.verdict),
    };
    let differs = (is_whole && !is_computed).then(|| difference("device", seen, name_of_end(computed)));
    TraceLine {
        packet: policy::short_packet(&frame.key),
        bytes: frame.head.frame_bytes,
        head: frame.head.to_string(),
        generation,
        received_ns: Some(frame.received_ns),
        flow: explained.flow,
        rule: name(program, explained.outcome.rule).to_owned(),
        line: line_in_policy(program, explained.outcome.rule),
        action,
        dropped: (frame.end != FrameEnd::Unmatched).then(|| seen.to_owned()),
        differences: differs.into_iter().collect(),
        ..TraceLine::default()
    }
}

fn name_of_end(end: FrameEnd) -> &'static str {
    match end {
        FrameEnd::Unmatched => "kernel",
        FrameEnd::FlowDropped => "flow",
        other => other.name(),
    }
}

fn computed_end(program: &Program, explained: &Explanation) -> FrameEnd {
    let flow = explained.flow.and_then(|flow| program.flows.get(flow));
    match flow.map(|flow| flow.action) {
        None | Some(FlowAction::Pass) => FrameEnd::Unmatched,
        Some(FlowAction::Drop) => FrameEnd::FlowDropped,
        Some(FlowAction::Steer { .. }) => FrameEnd::Delivered,
    }
}

fn name(program: &Program, rule: RuleId) -> &str {
    program.rules.get(rule.index()).map_or(RUNTIME_RULES, |rule| rule.name.as_str())
}

/// The line of a rule in the policy; 0 for none.
fn line_in_policy(program: &Program, rule: RuleId) -> u32 {
    program.rules.get(rule.index()).map_or(0, |rule| rule.line)
}

/// The class of a packet by its tag.
fn class_of(program: &Program, packet: &TracedPacket) -> Option<ClassId> {
    if packet.tag.0 == 0 { program.untagged } else { ClassId::of_tag(packet.tag.0) }
}

/// The differences between the way of a packet to its worker and one that was computed.
fn differences(
    program: &Program,
    packet: &TracedPacket,
    class: Option<ClassId>,
    worker: Option<WorkerId>,
) -> Vec<TraceDifference> {
    let mut found = Vec::new();
    let seen = class_of(program, packet);
    if seen != class {
        found.push(difference("class", shown(seen.map(|class| class.0)), shown(class.map(|class| class.0))));
    }
    if Some(packet.worker) != worker {
        found.push(difference("worker", packet.worker.0, shown(worker.map(|worker| worker.0))));
    }
    found
}

fn difference(what: &str, seen: impl Display, computed: impl Display) -> TraceDifference {
    TraceDifference { what: what.to_owned(), seen: seen.to_string(), computed: computed.to_string() }
}

fn shown(number: Option<u32>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// ```text
/// rule dns: deliver to rx
/// ```
fn decision(program: &Program, Outcome { rule, verdict }: Outcome) -> String {
    format!("rule {}: {}", name(program, rule), program.describe(verdict))
}

/// Whether a worker may come to a decision where this one is computed: rules at run time come before
/// some rules, and a rule with a limit or a sample lets a part of its packets through.
fn may_decide(program: &Program, seen: Outcome, computed: Outcome) -> bool {
    if seen.rule.index() == program.rules.len() {
        let subject = program.runtime.as_ref().map(|runtime| &runtime.subject);
        return subject.is_some_and(|subject| subject.get(computed.rule.index()) == Some(&true));
    }
    seen == computed || is_policed(program, seen, computed)
}

/// Whether a packet that would be delivered is beyond the limit or sample of its rule.
fn is_policed(program: &Program, seen: Outcome, computed: Outcome) -> bool {
    let policing = program.rules.get(seen.rule.index()).map(|rule| rule.policing);
    seen.verdict == Verdict::Drop
        && seen.rule == computed.rule
        && matches!(computed.verdict, Verdict::Deliver(_))
        && !policing.is_none_or(|policing: Policing| policing.passes_all())
}

/// The sinks that packets of an outcome get, in the order of the program.
fn sinks_of(program: &Program, outcome: Outcome) -> Vec<SinkId> {
    let mut sinks = match outcome.verdict {
        Verdict::Deliver(_) => program.rules.get(outcome.rule.index()).map(|rule| rule.sinks.clone()),
        Verdict::Kernel => Some(program.kernel_sink().into_iter().collect()),
        Verdict::Drop => Some(program.sinks_of_dropped().collect()),
        Verdict::Filtered => None,
    }
    .unwrap_or_default();
    sinks.sort_unstable();
    sinks.dedup();
    sinks
}

#[cfg(test)]
mod tests {
    use packet::build::FrameBuilder;
    use packet::{DeepKey, FrameHead};
    use policy::{NoFiles, Source};
    use verbs::FlowTag;
    use worker::{Slot, SlotSet};

    use super::*;

    const POLICY: &str = "version = 1\ndefault = 'kernel'\nallow_lost_exceptions = true\n\
        [sinks.one]\nkind = 'count'\n[sinks.other]\nkind = 'count'\n\
        [groups.first]\nworkers = [0]\nhash = 'none'\n[groups.second]\nworkers = [1]\nhash = 'none'\n\
        [[rules]]\nname = 'scan'\nmatch = { src = '198.51.100.0/24' }\naction = 'drop'\n\
        [[rules]]\nname = 'seen'\nmatch = { dst_port = 53, protocol = 'udp' }\naction = { copy = 'second' }\n\
        [[rules]]\nname = 'dns'\nmatch = { dst_port = 53, protocol = 'udp' }\naction = 'steer first'\n\
        sinks = ['other', 'one']\nsample = 2\n\
        [[rules]]\nname = 'syn'\nmatch = { protocol = 'tcp', tcp_flags = 'syn' }\naction = 'drop'\n\
        [[rules]]\nname = 'tcp'\nmatch = { protocol = 'tcp' }\naction = 'steer first'\n";

    struct Scene {
        program: Program,
        map: SinkMap,
    }

    impl Scene {
        fn new() -> Self {
            let (policy, _) = policy::parse(&Source::new("p.toml", POLICY), &NoFiles).expect("a policy");
            let model = device_model::DeviceModel::ideal();
            let program = compiler::compile(&policy, &model, 2).expect("it fits");
            let slots = [0, 1].map(|index| Slot::of(index).expect("a place"));
            Self { map: SinkMap::new(1, &program, &slots), program }
        }

        /// A packet as it is computed, or its copy.
        fn computed(&self, frame: &[u8], is_copy: bool) -> TracedPacket {
            let key = DeepKey::of(frame);
            let explained = self.program.explain_deep(&key);
            let (worker, class, outcome) = match explained.copies.first().filter(|_| is_copy) {
                Some(copied) => (copied.worker, copied.class, copied.outcome),
                None => (explained.worker, explained.class, explained.outcome),
            };
            let is_dns = self.name(outcome) == "dns";
            TracedPacket {
                worker: worker.expect("a worker gets it"),
                generation: 1,
                tag: FlowTag(class.and_then(ClassId::tag).expect("a tag")),
                outcome,
                slots: (0..2).filter(|_| is_dns).filter_map(Slot::of).collect::<SlotSet>(),
                received_ns: None,
                decided_ns: 1,
                decided_at: std::time::Instant::now(),
                key,
                head: FrameHead::of(frame),
            }
        }

        fn name(&self, outcome: Outcome) -> &str {
            name(&self.program, outcome.rule)
        }

        fn line(&self, packet: &TracedPacket) -> TraceLine {
            Way::of(&self.program, packet).line(&self.program, &self.map, packet)
        }

        fn differing(&self, packet: &TracedPacket) -> Vec<String> {
            self.line(packet).differences.iter().map(ToString::to_string).collect()
        }
    }

    fn frame() -> FrameBuilder {
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into())
    }

    #[test]
    fn each_part_of_the_way_that_differs_is_named() {
        let scene = Scene::new();
        let [dns, ack] = [frame().udp(7, 53).build(), frame().tcp(7, 80, 16).build()];
        let computed = scene.computed(&dns, false);
        assert_eq!(scene.differing(&computed), [] as [&str; 0]);
        let elsewhere = TracedPacket { worker: WorkerId(1), ..computed };
        assert_eq!(scene.differing(&elsewhere), ["worker 1, computed 0"]);
        let other_class = scene.computed(&ack, false).tag;
        let tagged = TracedPacket { tag: other_class, ..computed };
        assert!(scene.differing(&tagged)[0].starts_with("class "), "{:?}", scene.differing(&tagged));
        let unsunk = TracedPacket { slots: SlotSet::default(), ..computed };
        assert_eq!(scene.differing(&unsunk), ["sinks none, computed one, other"]);
        let wrong = Outcome { verdict: Verdict::Drop, ..scene.computed(&ack, false).outcome };
        let decided =
            TracedPacket { outcome: wrong, slots: SlotSet::default(), ..scene.computed(&ack, false) };
        assert_eq!(
            scene.differing(&decided),
            ["decision rule tcp: drop, computed rule tcp: deliver to first"],
            "the rule has no sample"
        );
    }

    #[test]
    fn copies_samples_and_compared_rules_are_understood() {
        let scene = Scene::new();
        let [dns, syn, ack] =
            [frame().udp(7, 53).build(), frame().tcp(7, 80, 2).build(), frame().tcp(7, 80, 16).build()];
        let copy = scene.line(&scene.computed(&dns, true));
        assert_eq!((copy.is_copy, copy.rule.as_str(), copy.worker), (true, "seen", Some(1)));
        assert_eq!(copy.differences, []);
        let packet = scene.computed(&dns, false);
        let refused = Outcome { verdict: Verdict::Drop, ..packet.outcome };
        let policed = scene.line(&TracedPacket { outcome: refused, slots: SlotSet::default(), ..packet });
        assert_eq!((policed.dropped.as_deref(), policed.differences), (Some("policed"), vec![]));
        let compared = |frame: &[u8]| scene.line(&scene.computed(frame, false)).compared_rules;
        assert_eq!([compared(&syn), compared(&ack), compared(&dns)], [Some(1), Some(1), None]);
        let dropped = scene.line(&scene.computed(&syn, false));
        assert_eq!((dropped.dropped.as_deref(), dropped.differences), (Some("worker"), vec![]));
    }

    #[test]
    fn frames_without_a_worker_are_compared_with_their_flow() {
        let scene = Scene::new();
        let line = |frame: &[u8], end| {
            let (key, head) = (DeepKey::of(frame), FrameHead::of(frame));
            line_of_frame(
                &scene.program,
                1,
                &WatchedFrame { end, key, head, received_ns: 1, noted_at: std::time::Instant::now() },
            )
        };
        let scan =
            FrameBuilder::new().ipv4([198, 51, 100, 1].into(), [192, 0, 2, 1].into()).udp(1, 2).build();
        let (dns, other) = (frame().udp(7, 53).build(), frame().udp(7, 54).build());
        for (frame, end, rule, dropped) in [
            (&scan, FrameEnd::FlowDropped, "scan", Some("flow")),
            (&other, FrameEnd::Unmatched, "default", None),
            (&dns, FrameEnd::OutOfBuffer, "dns", Some("out_of_buffer")),
            (&vec![0; 9], FrameEnd::Runt, "default", Some("runt")),
        ] {
            let line = line(frame, end);
            assert_eq!((line.rule.as_str(), line.dropped.as_deref()), (rule, dropped));
            assert_eq!((line.worker, line.differences), (None, vec![]));
        }
        for (frame, end, text) in [
            (&scan, FrameEnd::Unmatched, "device kernel, computed flow"),
            (&dns, FrameEnd::FlowDropped, "device flow, computed delivered"),
            (&other, FrameEnd::OutOfBuffer, "device out_of_buffer, computed kernel"),
        ] {
            assert_eq!(line(frame, end).differences[0].to_string(), text);
        }
    }
}
