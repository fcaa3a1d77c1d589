//! The explanation of one packet, received or sent, which [`Program::explain_deep`] makes, as text and as
//! JSON: rule, flow, queue, worker and copies.

use std::fmt::Write as _;
use std::net::IpAddr;

use packet::DeepKey;
use policy::policy::Direction;
use program::{
    ClassId, Copied, DescriptionText, Explanation, FlowKind, LimitPart, Outcome, Policing, Program,
    RateLimit, RuleId, SentExplanation, Verdict, WorkerId, XdpVerdict,
};
use serde::Serialize;

use crate::protection::ProtectedNames;

/// Shorter frames have no Ethernet header; every port drops them.
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// The key of a frame in hexadecimal.
///
/// # Errors
/// The text is no frame, or a port would drop the frame.
pub fn key_of_hex(hex: &str) -> Result<DeepKey, String> {
    let frame = policy::frame_of_hex(hex)?;
    if frame.len() < ETHERNET_HEADER_BYTES {
        let bytes = match frame.len() {
            1 => "1 byte is".to_owned(),
            bytes => format!("{bytes} bytes are"),
        };
        return Err(format!(
            "{bytes} too few for an Ethernet header: a port drops the frame as a runt before any rule (hint: a frame \
             begins with its destination MAC address and has {ETHERNET_HEADER_BYTES} bytes or more)"
        ));
    }
    Ok(DeepKey::of(&frame))
}

/// The explanation of one packet.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ExplainedPacket {
    /// A packet that a port receives.
    Received(Box<ReceivedPacket>),
    /// A packet that the host sends.
    Sent(SentPacket),
}

impl ExplainedPacket {
    /// The explanation of a packet under a program. `asks_xdp`: whether the verdict of the XDP program on a
    /// received packet is part of it.
    #[must_use]
    pub fn of(
        program: &Program,
        protected: &ProtectedNames,
        direction: Direction,
        key: &DeepKey,
        asks_xdp: bool,
    ) -> Self {
        match direction {
            Direction::Ingress => {
                let mut packet = ReceivedPacket::of(program, protected, key);
                packet.xdp = asks_xdp.then(|| program.xdp_verdict(key));
                Self::Received(Box::new(packet))
            }
            Direction::Egress => Self::Sent(SentPacket::of(program, key)),
        }
    }

    /// Leaves what the policy alone decides.
    #[must_use]
    pub fn without_device(self) -> Self {
        match self {
            Self::Received(packet) => Self::Received(Box::new(packet.without_device())),
            Self::Sent(packet) => Self::Sent(packet.without_device()),
        }
    }

    /// Lines of a name and a value.
    #[must_use]
    pub fn text(&self, program: &Program) -> String {
        match self {
            Self::Received(packet) => packet.text(program),
            Self::Sent(packet) => packet.text(),
        }
    }

    /// The explanation as a line of its own.
    #[must_use]
    pub fn line(&self, packet_number: u64) -> String {
        match self {
            Self::Received(packet) => packet.line(packet_number),
            Self::Sent(packet) => packet.line(packet_number),
        }
    }
}

/// The explanation of a received packet, described in docs/reference/commands/explain.md.
#[derive(Debug, Serialize)]
pub struct ReceivedPacket {
    direction: &'static str,
    packet: String,
    /// The rule that decides, and its action.
    rule: String,
    line: u32,
    /// The text of the policy for people; left out if the rule has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<DescriptionText>,
    action: String,
    /// The rule whose flow matches it in the device, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_by: Option<String>,
    decided_in: Option<&'static str>,
    /// As in a program that is installed first: a later one has other numbers for rules whose decision has
    /// changed.
    tag: Option<u32>,
    group: Option<String>,
    queue: Option<u32>,
    hash: Option<String>,
    table_index: Option<usize>,
    table_size: Option<usize>,
    worker: Option<u32>,
    /// The part of such packets that is let through; left out if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    policing: Option<Policed>,
    /// Whether the host's network stack receives it, if its rule lets it through, on a device that delivers
    /// matched packets to workers only.
    reaches_host: bool,
    /// The verdict of the XDP program of a network interface, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp: Option<XdpVerdict>,
    /// Whether the policy leaves it to the kernel but a worker receives it, which cannot give it back.
    lost_exception: bool,
    /// The sinks that get it.
    sinks: Vec<String>,
    /// A worker returns it to the host through the kernel sink.
    returned: bool,
    /// The entries of `[protect]` that protect it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    protected: Vec<String>,
    copies: Vec<Copy>,
}

/// The part of the packets of a rule that is let through.
#[derive(Debug, Serialize)]
struct Policed {
    /// One of this many packets is let through.
    sample: u32,
    /// The limit on what the sample leaves, on all workers together.
    limit: Option<RateLimit>,
    /// The part of the limit that the packet's worker has.
    worker_limit: Option<LimitPart>,
    /// The source that the packet is of, for a limit of sources; left out for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
}

impl Policed {
    fn of(
        program: &Program,
        outcome: Outcome,
        worker: Option<WorkerId>,
        source: Option<IpAddr>,
    ) -> Option<Self> {
        if !matches!(outcome.verdict, Verdict::Deliver(_)) {
            return None;
        }
        let rules = program.policed_rules();
        let rule = rules.iter().find(|policed| policed.rule == outcome.rule)?;
        let Policing { sample, limit } = rule.policing;
        let worker_limit = limit.zip(worker).map(|(limit, worker)| rule.share(worker).of_limit(limit));
        let source = rule.policing.per_source().map(|sources| sources.source_text(source));
        Some(Self { sample, limit, worker_limit, source })
    }

    /// `1 in 100, at most 10k/s; this worker: 5k/s, burst 500`
    fn text(&self) -> String {
        let Self { sample, limit, worker_limit, source } = self;
        let part = worker_limit.map(|part| format!("; this worker: {part}"));
        let source = source.as_ref().map(|source| format!("; its source: {source}"));
        let policing = Policing { sample: *sample, limit: *limit };
        format!("{policing}{}{}", part.unwrap_or_default(), source.unwrap_or_default())
    }
}

/// Whether some packets of a rule are not let through.
#[must_use]
pub fn is_policed(program: &Program, rule: RuleId) -> bool {
    program.rules.get(rule.index()).is_some_and(|rule| !rule.policing.passes_all())
}

/// One copy of a packet.
#[derive(Debug, Serialize)]
struct Copy {
    rule: String,
    line: u32,
    /// "copy" or "sniffer".
    kind: &'static str,
    /// The worker's action: a copy that the rule does not match is filtered out.
    action: String,
    group: Option<String>,
    queue: Option<u32>,
    worker: Option<u32>,
}

impl ReceivedPacket {
    fn of(program: &Program, protected: &ProtectedNames, key: &DeepKey) -> Self {
        let explanation = program.explain_deep(key);
        let Explanation { outcome, .. } = explanation;
        let exact =
            explanation.class.is_none_or(|class| program.class(class).is_none_or(program::Class::is_exact));
        Self {
            direction: "ingress",
            packet: policy::short_packet(key),
            rule: rule_name(program, outcome.rule),
            line: line(program, outcome.rule),
            description: description(program, outcome.rule),
            action: program.describe(outcome.verdict),
            taken_by: Some(rule_name(program, explanation.rule)).filter(|_| explanation.rule != outcome.rule),
            decided_in: Some(if exact { "device" } else { "worker" }),
            tag: explanation.class.and_then(|class| tag(program, class)),
            group: explanation
                .group
                .and_then(|group| program.groups.get(group.index()))
                .map(|group| group.name.clone()),
            queue: explanation.queue.map(|queue| queue.0),
            hash: explanation.hash.map(|hash| format!("{hash:#010x}")),
            table_index: explanation.table_index,
            table_size: explanation
                .queue
                .and_then(|queue| program.queues.get(queue.index()))
                .map(|queue| queue.table.len()),
            worker: explanation.worker.map(|worker| worker.0),
            policing: Policed::of(program, outcome, explanation.worker, key.outer.src_addr()),
            reaches_host: explanation.reaches_host(),
            xdp: None,
            lost_exception: explanation.is_lost_exception(),
            sinks: sinks(program, &explanation),
            returned: explanation.returned,
            protected: protected.of_packet(key),
            copies: explanation.copies.iter().map(|copied| Copy::of(program, copied)).collect(),
        }
    }

    /// Leaves what the policy alone decides.
    fn without_device(self) -> Self {
        Self {
            taken_by: None,
            decided_in: None,
            tag: None,
            queue: None,
            hash: None,
            table_index: None,
            table_size: None,
            worker: None,
            policing: self.policing.map(|policed| Policed { worker_limit: None, ..policed }),
            copies: self.copies.into_iter().map(Copy::without_device).collect(),
            ..self
        }
    }

    fn text(&self, program: &Program) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<8} {value}");
        };
        line("packet", self.packet.clone());
        for copy in &self.copies {
            line(copy.kind, copy.text());
        }
        line("rule", format!("{}: {}", placed(&self.rule, self.line), self.action));
        for text in self.description.iter().flat_map(|description| description.lines()) {
            line("about", text.to_owned());
        }
        if let Some(other) = &self.taken_by {
            line("taken by", format!("the flow of rule {other}, as the device cannot distinguish the two"));
        }
        if let Some(policed) = &self.policing {
            line("passes", policed.text());
        }
        if let Some(xdp) = self.xdp {
            let copies = if self.copies.is_empty() { "" } else { ", after the copies" };
            line("xdp", format!("{xdp}: {}{copies}", self.xdp_text(xdp)));
        }
        if self.lost_exception {
            let value = "does not receive it: a worker does and cannot give it back (lost exception)";
            line("host", value.into());
        }
        if !self.protected.is_empty() {
            let reaches = if self.reaches_host { "reaches" } else { "does not reach" };
            let by = self.protected.join(", ");
            line("protect", format!("by {by}: it {reaches} the host"));
        }
        let sinks = self.sinks_text();
        let Some(decided_in) = self.decided_in else {
            if let Some(group) = &self.group {
                line("group", group.clone());
                sinks.into_iter().for_each(|sinks| line("sinks", sinks));
            }
            return out;
        };
        if self.worker.is_none() {
            line("worker", "none".into());
            return out;
        }
        line("decided", format!("by the {decided_in}"));
        line("tag", self.tag.map_or_else(|| "none".into(), |tag| tag.to_string()));
        let group = self.group.clone().unwrap_or_default();
        let stays = self.action.strip_prefix("deliver to ").is_some_and(|meant| meant != group);
        line(
            "group",
            if stays { format!("{group}: the packet stays with the worker that received it") } else { group },
        );
        if let Some(queue) = self.queue.and_then(|queue| program.queues.get(queue as usize)) {
            let variant = serde_json::to_value(queue.variant).ok();
            let variant = variant.as_ref().and_then(serde_json::Value::as_str).unwrap_or("?");
            line("queue", format!("{} ({variant})", self.queue.unwrap_or_default()));
        }
        if let (Some(index), Some(size), Some(hash)) = (self.table_index, self.table_size, &self.hash) {
            line("table", format!("entry {index} of {size} (hash {hash})"));
        }
        line("worker", self.worker.map_or_else(|| "none".into(), |worker| worker.to_string()));
        sinks.into_iter().for_each(|sinks| line("sinks", sinks));
        out
    }

    /// The consequence of a verdict of the XDP program, in words.
    fn xdp_text(&self, verdict: XdpVerdict) -> &'static str {
        match verdict {
            XdpVerdict::Pass => "it never leaves the host's network stack",
            XdpVerdict::Drop => "the program drops and counts it",
            XdpVerdict::Redirect if self.worker.is_some() => "the engine delivers it to the worker",
            XdpVerdict::Redirect if self.reaches_host => "the engine gives it back to the host",
            XdpVerdict::Redirect => "the engine drops and counts it",
        }
    }

    /// `None`: no worker delivers the packet.
    fn sinks_text(&self) -> Option<String> {
        let returned = if self.returned { ": the host receives it from there" } else { "" };
        match self.sinks.is_empty() {
            true => {
                self.action.starts_with("deliver to ").then(|| "none: the packet ends in a counter".into())
            }
            false => Some(format!("{}{returned}", self.sinks.join(", "))),
        }
    }

    fn line(&self, packet_number: u64) -> String {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let copies: String = self.copies.iter().map(Copy::short).collect();
        format!(
            "{packet_number}  rule={} action={}{}{}{} tag={} group={} queue={} index={} worker={}{copies}  {}",
            self.rule,
            self.action.replace(' ', "_"),
            if self.lost_exception { " lost_exception" } else { "" },
            if self.protected.is_empty() { "" } else { " protected" },
            self.xdp.map(|xdp| format!(" xdp={xdp}")).unwrap_or_default(),
            or_dash(self.tag.map(|tag| tag.to_string())),
            or_dash(self.group.clone()),
            or_dash(self.queue.map(|queue| queue.to_string())),
            or_dash(self.table_index.map(|index| index.to_string())),
            or_dash(self.worker.map(|worker| worker.to_string())),
            self.packet,
        )
    }
}

impl Copy {
    fn of(program: &Program, copied: &Copied) -> Self {
        let sniffs = program.flows.get(copied.flow).is_some_and(|flow| flow.kind == FlowKind::Sniffer);
        let queue = program.queues.get(copied.queue.index());
        let group = queue.and_then(|queue| program.groups.get(queue.group.index()));
        Self {
            rule: rule_name(program, copied.rule),
            line: line(program, copied.rule),
            kind: if sniffs { "sniffer" } else { "copy" },
            action: match copied.outcome.verdict {
                Verdict::Deliver(_) => {
                    let policing = program.rules.get(copied.outcome.rule.index()).map(|rule| rule.policing);
                    policing.unwrap_or_default().describe(&program.describe(copied.outcome.verdict))
                }
                verdict => program.describe(verdict),
            },
            group: group.map(|group| group.name.clone()),
            queue: Some(copied.queue.0),
            worker: copied.worker.map(|worker| worker.0),
        }
    }

    fn without_device(self) -> Self {
        Self { queue: None, worker: None, ..self }
    }

    /// The text as a line of its own.
    fn text(&self) -> String {
        let worker = match (self.worker, self.queue) {
            (Some(worker), _) => format!(", worker {worker}"),
            (None, Some(_)) => ", none".to_owned(),
            (None, None) => String::new(),
        };
        format!("{}: {}{worker}", placed(&self.rule, self.line), self.action)
    }

    /// The text as part of the line of a packet.
    fn short(&self) -> String {
        let worker = self.worker.map_or_else(|| "-".into(), |worker| worker.to_string());
        format!(" {}={}:{worker}", self.kind, self.rule)
    }
}

fn placed(rule: &str, line: u32) -> String {
    if line > 0 { format!("{rule} (line {line})") } else { rule.to_owned() }
}

/// The name of a rule of a program.
#[must_use]
pub fn rule_name(program: &Program, rule: RuleId) -> String {
    program.rules.get(rule.index()).map_or_else(|| "?".into(), |rule| rule.name.to_string())
}

fn line(program: &Program, rule: RuleId) -> u32 {
    program.rules.get(rule.index()).map_or(0, |rule| rule.line)
}

/// There is no tag if the device does not report the flow of a packet.
fn tag(program: &Program, class: ClassId) -> Option<u32> {
    class.tag().filter(|_| program.untagged != Some(class))
}

/// The explanation of a sent packet, described in docs/reference/commands/explain.md.
#[derive(Debug, Serialize)]
pub struct SentPacket {
    direction: &'static str,
    packet: String,
    /// The rule that decides; without one, the packet is sent.
    rule: Option<String>,
    line: Option<u32>,
    /// The text of the policy for people; left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<DescriptionText>,
    action: &'static str,
    leaves: bool,
    copies: Vec<Copy>,
}

impl SentPacket {
    fn of(program: &Program, key: &DeepKey) -> Self {
        let explained = program.explain_sent(key);
        Self {
            direction: "egress",
            packet: policy::short_packet(key),
            rule: explained.rule.map(|rule| rule_name(program, rule)),
            line: explained.rule.map(|rule| line(program, rule)),
            description: explained.rule.and_then(|rule| description(program, rule)),
            action: sent_action(&explained),
            leaves: explained.leaves,
            copies: explained.copies.iter().map(|copied| Copy::of(program, copied)).collect(),
        }
    }

    /// Leaves what the policy alone decides.
    fn without_device(self) -> Self {
        Self { copies: self.copies.into_iter().map(Copy::without_device).collect(), ..self }
    }

    fn text(&self) -> String {
        let rule = match (&self.rule, self.line) {
            (Some(rule), line) => format!("{}: {}", placed(rule, line.unwrap_or_default()), self.action),
            (None, _) => "none: it is sent, as no egress rule matches it".to_owned(),
        };
        let mut out = format!("{:<8} {}\n", "packet", self.packet);
        // Strings take text.
        let _ = writeln!(out, "{:<8} {rule}", "rule");
        for text in self.description.iter().flat_map(|description| description.lines()) {
            let _ = writeln!(out, "{:<8} {text}", "about");
        }
        for copy in &self.copies {
            let _ = writeln!(out, "{:<8} {}", copy.kind, copy.text());
        }
        out
    }

    fn line(&self, packet_number: u64) -> String {
        let rule = self.rule.as_deref().unwrap_or("-");
        let copies: String = self.copies.iter().map(Copy::short).collect();
        format!("{packet_number}  rule={rule} action={}{copies}  {}", self.action, self.packet)
    }
}

/// The text of the policy about a rule.
fn description(program: &Program, rule: RuleId) -> Option<DescriptionText> {
    program.rules.get(rule.index()).and_then(|rule| rule.description.clone())
}

/// The action, as in rules.
#[must_use]
pub fn sent_action(explained: &SentExplanation) -> &'static str {
    if explained.leaves { "pass" } else { "drop" }
}

/// The names of the sinks that get the packet.
fn sinks(program: &Program, explanation: &Explanation) -> Vec<String> {
    let rule = program.rules.get(explanation.outcome.rule.index());
    let of_rule = rule.map(|rule| rule.sinks.as_slice()).unwrap_or_default();
    let kernel = program.kernel_sink();
    let ids = match explanation.outcome.verdict {
        Verdict::Deliver(_) => of_rule,
        Verdict::Kernel if explanation.returned => kernel.as_slice(),
        Verdict::Drop | Verdict::Kernel | Verdict::Filtered => &[],
    };
    ids.iter().filter_map(|id| program.sink(*id)).map(|sink| sink.name.clone()).collect()
}
