//! `steerd explain`: where a packet would go, and why. Compiles the policy and asks the program;
//! no device, no worker, no packet is sent.

mod capture;
mod fields;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use packet::{FlowKey, IpProtocol, Layers};
use policy::{Band, ClassTag, Explanation, Program, Verdict};
use serde::Serialize;

use crate::cli::{ExplainArgs, Format};
use crate::error::Error;
use crate::output::{self, Reader};
use crate::table::{Grid, bytes, number};

/// Shorter frames have no Ethernet header; every port drops them.
const ETHERNET_HEADER_BYTES: usize = 14;

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Error> {
    let compiled = crate::check::compile(&args.policy)?;
    let program = &*compiled.program;
    let format = args.policy.format;
    if let Some(path) = &args.pcap {
        return explain_capture(program, path, args.each, format);
    }
    let key = match (&args.packet, &args.hex) {
        (Some(fields), _) => fields::key_of_fields(fields),
        (None, Some(hex)) => fields::frame_of_hex(hex).and_then(|frame| whole(&frame)),
        (None, None) => Err("no packet is given".into()),
    };
    let key = key.map_err(Error::Packet)?;
    let fate = Fate::of(program, &key);
    match format {
        Format::Text => output::print(&fate.text(program)),
        Format::Json => output::print_json(&fate),
    }
}

/// The key of a frame that a port would look at.
fn whole(frame: &[u8]) -> Result<FlowKey, String> {
    if frame.len() < ETHERNET_HEADER_BYTES {
        let bytes = frame.len();
        return Err(format!(
            "{bytes} bytes hold no Ethernet header: a port drops that as a runt, no rule sees it (hint: a frame \
             begins with its destination MAC and has {ETHERNET_HEADER_BYTES} bytes or more)"
        ));
    }
    Ok(FlowKey::of(frame))
}

/// One packet's way, in names and numbers.
#[derive(Debug, Serialize)]
struct Fate {
    packet: String,
    /// The rule that decides, and what it says.
    rule: String,
    line: u32,
    action: String,
    /// The rule whose flow takes it from the device, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_by: Option<String>,
    decided_in: &'static str,
    /// In the first band; every other program that is installed has the other one.
    tag: Option<u32>,
    group: Option<String>,
    queue: Option<u32>,
    hash: Option<String>,
    table_index: Option<usize>,
    table_size: Option<usize>,
    worker: Option<u32>,
}

impl Fate {
    fn of(program: &Program, key: &FlowKey) -> Self {
        let explanation = program.explain(key);
        let Explanation { outcome, .. } = explanation;
        let deciding = program.rules.get(outcome.rule.index());
        let name_of = |rule: policy::RuleId| program.rules.get(rule.index()).map(|rule| rule.name.clone());
        let exact = explanation
            .class
            .is_none_or(|class| program.class(class).is_none_or(policy::Class::is_exact));
        Self {
            packet: describe(key),
            rule: name_of(outcome.rule).unwrap_or_default(),
            line: deciding.map_or(0, |rule| rule.line),
            action: program.describe(outcome.verdict),
            taken_by: name_of(explanation.rule).filter(|_| explanation.rule != outcome.rule),
            decided_in: if exact { "device" } else { "worker" },
            tag: explanation.class.and_then(|class| ClassTag { band: Band::A, class }.encode()),
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
        }
    }

    fn text(&self, program: &Program) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<8} {value}");
        };
        line("packet", self.packet.clone());
        let place = if self.line > 0 { format!(" (line {})", self.line) } else { String::new() };
        line("rule", format!("{}{place}: {}", self.rule, self.action));
        if let Some(other) = &self.taken_by {
            line("taken by", format!("the flow of rule {other}, as the device cannot tell them apart"));
        }
        let Some(tag) = self.tag else {
            line("worker", "none".into());
            return out;
        };
        line("decided", format!("by the {}", self.decided_in));
        line("tag", tag.to_string());
        line("group", self.group.clone().unwrap_or_default());
        if let Some(queue) = self.queue.and_then(|queue| program.queues.get(queue as usize)) {
            let variant = serde_json::to_value(queue.variant).ok();
            let variant = variant.as_ref().and_then(serde_json::Value::as_str).unwrap_or("?");
            line("queue", format!("{} ({variant})", self.queue.unwrap_or_default()));
        }
        if let (Some(index), Some(size), Some(hash)) = (self.table_index, self.table_size, &self.hash) {
            line("table", format!("entry {index} of {size} (hash {hash})"));
        }
        line("worker", self.worker.map_or_else(|| "none".into(), |worker| worker.to_string()));
        out
    }

    fn line(&self, packet_number: u64) -> String {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        format!(
            "{packet_number}  rule={} action={} tag={} group={} queue={} index={} worker={}  {}",
            self.rule,
            self.action.replace(' ', "_"),
            or_dash(self.tag.map(|tag| tag.to_string())),
            or_dash(self.group.clone()),
            or_dash(self.queue.map(|queue| queue.to_string())),
            or_dash(self.table_index.map(|index| index.to_string())),
            or_dash(self.worker.map(|worker| worker.to_string())),
            self.packet,
        )
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sum {
    packets: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, frame: &[u8]) {
        self.packets += 1;
        self.bytes += frame.len() as u64;
    }
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    packets: u64,
    /// Frames without an Ethernet header: every port drops them.
    runts: u64,
    rules: BTreeMap<String, BTreeMap<&'static str, Sum>>,
    workers: BTreeMap<u32, Sum>,
    anomalies: BTreeMap<&'static str, u64>,
}

fn explain_capture(program: &Program, path: &Path, each: bool, format: Format) -> Result<(), Error> {
    let mut summary = Summary::default();
    let mut reader = Ok(if each { Reader::There } else { Reader::Gone });
    let mut packet_number = 0;
    let read = capture::for_each_frame(path, &mut |frame| {
        packet_number += 1;
        if frame.len() < ETHERNET_HEADER_BYTES {
            summary.runts += 1;
            return;
        }
        let parsed = packet::parse(frame);
        let explanation = program.explain(&parsed.key);
        let rule = program.rules.get(explanation.outcome.rule.index()).map_or("?", |rule| rule.name.as_str());
        let action = match explanation.outcome.verdict {
            Verdict::Deliver(_) => "deliver",
            Verdict::Drop => "drop",
            Verdict::Kernel => "kernel",
        };
        summary.rules.entry(rule.to_owned()).or_default().entry(action).or_default().add(frame);
        if let Some(worker) = explanation.worker {
            summary.workers.entry(worker.0).or_default().add(frame);
        }
        if let Some(anomaly) = parsed.anomaly {
            *summary.anomalies.entry(anomaly.name()).or_default() += 1;
        }
        if matches!(reader, Ok(Reader::There)) {
            let fate = Fate::of(program, &parsed.key);
            reader = match format {
                Format::Text => output::print_line_by_line(&format!("{}\n", fate.line(packet_number))),
                Format::Json => output::print_json_line(&fate),
            };
        }
    });
    summary.packets = read.map_err(|message| Error::Capture { path: path.to_owned(), message })?;
    reader?;
    match (each, format) {
        (true, Format::Json) => Ok(()),
        (false, Format::Json) => output::print_json(&summary),
        (true, Format::Text) => output::print(&format!("\n{}", summary_text(&summary))),
        (false, Format::Text) => output::print(&summary_text(&summary)),
    }
}

fn summary_text(summary: &Summary) -> String {
    let mut rules = Grid::new(&["rule", "action", "packets", "bytes"]);
    for (rule, actions) in &summary.rules {
        for (action, sum) in actions {
            rules.row(vec![rule.clone(), (*action).into(), number(sum.packets), bytes(sum.bytes)]);
        }
    }
    let mut workers = Grid::new(&["worker", "packets", "bytes"]);
    for (worker, sum) in &summary.workers {
        workers.row(vec![worker.to_string(), number(sum.packets), bytes(sum.bytes)]);
    }
    let mut out = format!("{} packets\n\n{}\n{}", number(summary.packets), rules.text(), workers.text());
    if summary.runts > 0 {
        let _ = writeln!(out, "\nwithout an Ethernet header: {}", number(summary.runts));
    }
    if !summary.anomalies.is_empty() {
        let list: Vec<String> =
            summary.anomalies.iter().map(|(name, packets)| format!("{name} {}", number(*packets))).collect();
        let _ = writeln!(out, "\nmalformed: {}", list.join(", "));
    }
    out
}

/// `10.0.0.1:1024 > 192.0.2.53:53 udp, vlan 42`
fn describe(key: &FlowKey) -> String {
    let mut out = match (key.src_addr(), key.dst_addr()) {
        (Some(src), Some(dst)) if key.layers.intersects(Layers::TCP | Layers::UDP) => {
            let src = std::net::SocketAddr::new(src, key.src_port);
            let dst = std::net::SocketAddr::new(dst, key.dst_port);
            format!("{src} > {dst} {}", IpProtocol(key.protocol))
        }
        (Some(src), Some(dst)) => format!("{src} > {dst} {}", IpProtocol(key.protocol)),
        _ => format!("{} > {} ethertype {}", key.src_mac, key.dst_mac, packet::EtherType(key.ether_type)),
    };
    if let Some(vlan) = key.vlan_id() {
        let _ = write!(out, ", vlan {vlan}");
    }
    if key.layers.contains(Layers::LATER_FRAGMENT) {
        out.push_str(", a later fragment");
    } else if key.layers.contains(Layers::FRAGMENT) {
        out.push_str(", a first fragment");
    }
    out
}
