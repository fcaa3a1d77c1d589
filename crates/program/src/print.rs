//! A program as text: what `steerd check --program` shows and what the golden tests compare. The same
//! program always gives the same bytes. Nothing reads this back.

use std::collections::BTreeMap;
use std::fmt;

use packet::HashFields;

use crate::ids::{ClassId, GroupId, RuleId, SinkId, WorkerId};
use crate::outcome::Outcome;
use crate::program::{
    Class, Decide, Flow, FlowAction, FlowKind, Group, HashVariant, Placement, Program, RssQueue, Rule,
};
use crate::recorder::RecorderSpec;

/// How many entries of a table are shown; the shares follow.
const TABLE_SHOWN: usize = 8;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "program: {} rules, {} groups, {} queues, {} flows, {} classes, {} priorities; default {}",
            self.rules.len(),
            self.groups.len(),
            self.queues.len(),
            self.flows.len(),
            self.classes.iter().flatten().count(),
            self.priorities_used,
            self.describe(self.default),
        )?;
        writeln!(f, "rules")?;
        for (index, rule) in self.rules.iter().enumerate() {
            let placement = match &rule.placement {
                Placement::Hardware => "hardware".to_owned(),
                Placement::Hybrid { reason } => format!("hybrid ({reason})"),
            };
            let action = rule.policing.describe(&self.describe(rule.action));
            let uncounted = if rule.count { "" } else { ", not counted" };
            let sinks = self.sink_names(rule);
            let sinks = if sinks.is_empty() { sinks } else { format!("; sinks: {sinks}") };
            writeln!(
                f,
                "  {} {}: {action}; {placement}; line {}; flows: {}{uncounted}{sinks}",
                RuleId::of(index),
                rule.name,
                rule.line,
                rule.flows,
            )?;
        }
        writeln!(f, "groups")?;
        for (index, group) in self.groups.iter().enumerate() {
            writeln!(f, "  {} {group}", GroupId::of(index))?;
        }
        if !self.sinks.is_empty() {
            writeln!(f, "sinks")?;
        }
        for (index, sink) in self.sinks.iter().enumerate() {
            writeln!(f, "  {} {}: {}", SinkId::of(index), sink.name, sink.kind.name())?;
        }
        if let Some(RecorderSpec { ring, rules, .. }) = &self.recorder {
            let rules = rules.as_ref().map_or_else(|| "all packets".to_owned(), |rules| rules.join(", "));
            writeln!(
                f,
                "recorder: {} bytes, {} of each packet: {rules}",
                ring.memory_bytes, ring.snap_bytes
            )?;
        }
        writeln!(f, "queues")?;
        for (index, queue) in self.queues.iter().enumerate() {
            writeln!(f, "  q{index} {}", self.queue_line(queue))?;
        }
        writeln!(f, "flows")?;
        for (index, flow) in self.flows.iter().enumerate() {
            writeln!(f, "  f{index} {}", self.flow_line(flow))?;
        }
        writeln!(f, "classes")?;
        for (index, class) in self.classes.iter().enumerate() {
            let Some(class) = class else { continue };
            let untagged = if self.untagged == Some(ClassId::of(index)) { "(without a tag) " } else { "" };
            write!(f, "  c{index} {untagged}")?;
            self.write_class(class, f)?;
        }
        if !self.exceptions.is_empty() {
            writeln!(f, "left to the host")?;
        }
        for exception in &self.exceptions {
            write!(f, "  {}: {}", self.rule_name(exception.rule), exception.predicate)?;
            let others: Vec<String> =
                exception.left_out_of.iter().map(|other| self.rule_name(*other)).collect();
            match others.is_empty() {
                true => writeln!(f)?,
                false => writeln!(f, "; left out of {}: parts +{}", others.join(", "), exception.pieces)?,
            }
        }
        Ok(())
    }
}

impl Program {
    /// The names of a rule's sinks: `dns-capture, count`.
    #[must_use]
    pub fn sink_names(&self, rule: &Rule) -> String {
        let names = rule.sinks.iter().map(|id| self.sink(*id).map_or("?", |sink| sink.name.as_str()));
        names.collect::<Vec<_>>().join(", ")
    }

    fn rule_name(&self, rule: RuleId) -> String {
        let name = self.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        format!("{rule} {name}")
    }

    fn queue_line(&self, queue: &RssQueue) -> String {
        let group = self.groups.get(queue.group.index()).map_or("?", |group| group.name.as_str());
        let fields = field_names(queue.fields);
        format!("{} {group} {}: hash {fields}; table of {}", queue.group, queue.variant, queue.table.len())
    }

    fn flow_line(&self, flow: &Flow) -> String {
        let action = match flow.action {
            FlowAction::Drop => "drop".to_owned(),
            FlowAction::Pass => "pass".to_owned(),
            FlowAction::Steer { queue, class } => format!("{queue} {class}"),
        };
        format!("p{} {}: {flow} -> {action}", flow.priority, self.rule_name(flow.rule))
    }

    fn outcome(&self, outcome: Outcome) -> String {
        format!("{}: {}", self.rule_name(outcome.rule), self.describe(outcome.verdict))
    }

    fn write_class(&self, class: &Class, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &class.decide {
            Decide::Exact(outcome) => writeln!(f, "{}", self.outcome(*outcome)),
            Decide::Software(steps, otherwise) => {
                writeln!(f, "software")?;
                for step in steps {
                    writeln!(f, "    if {} -> {}", step.predicate, self.outcome(step.outcome))?;
                }
                writeln!(f, "    otherwise {}", self.outcome(*otherwise))
            }
        }
    }
}

/// The kind and the specs of a flow: `ipv4 | udp dport=4789 | vxlan vni=7 | inner ipv4 dst=192.0.2.0/24`.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FlowKind::Normal => None,
            FlowKind::Copy => Some("copy".to_owned()),
            FlowKind::Sniffer => Some("sniffer".to_owned()),
            FlowKind::Egress => Some("egress".to_owned()),
        };
        let specs = self.specs.iter().enumerate().map(|(index, spec)| {
            let inner = if index >= self.specs.inner_from() { "inner " } else { "" };
            format!("{inner}{spec}")
        });
        f.write_str(&kind.into_iter().chain(specs).collect::<Vec<_>>().join(" | "))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shares: BTreeMap<WorkerId, usize> = BTreeMap::new();
        for worker in &self.table {
            *shares.entry(*worker).or_default() += 1;
        }
        let shown: Vec<String> = self.table.iter().take(TABLE_SHOWN).map(ToString::to_string).collect();
        let shares: Vec<String> = shares.iter().map(|(worker, share)| format!("{worker}x{share}")).collect();
        let more = if self.table.len() > TABLE_SHOWN { " ..." } else { "" };
        let symmetric = if self.symmetric { "symmetric" } else { "not symmetric" };
        write!(
            f,
            "{}: table of {} [{}{more}] {}; hash {}; {symmetric}",
            self.name,
            self.table.len(),
            shown.join(" "),
            shares.join(" "),
            field_names(self.fields),
        )
    }
}

impl fmt::Display for HashVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4Tcp => "v4-tcp",
            Self::V4Udp => "v4-udp",
            Self::V4 => "v4",
            Self::V6Tcp => "v6-tcp",
            Self::V6Udp => "v6-udp",
            Self::V6 => "v6",
            Self::Other => "other",
            Self::All => "all",
        })
    }
}

fn field_names(fields: HashFields) -> String {
    if fields.is_empty() {
        return "nothing".to_owned();
    }
    let names = [HashFields::L3L4, HashFields::L3, HashFields::IPV4, HashFields::IPV6];
    match names.iter().position(|preset| *preset == fields) {
        Some(index) => ["l3l4", "l3", "ipv4", "ipv6"][index].to_owned(),
        None => {
            let names: Vec<String> = fields.iter_names().map(|(name, _)| name.to_lowercase()).collect();
            names.join(",")
        }
    }
}
