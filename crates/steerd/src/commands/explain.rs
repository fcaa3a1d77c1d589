//! `steerd explain`: where a packet would go, and why. Compiles the policy and evaluates the program; no
//! device is used and no packet is sent.

mod carving;
mod summary;

use std::path::Path;

use packet::{DeepKey, parse_tunnel};
use policy::policy::Direction;
use reports::{ETHERNET_HEADER_BYTES, ExplainedPacket};
use serde::Serialize;

use super::target::{self, AnswerModel, ExplainedPolicy};
use crate::cli::{DirectionArg, ExplainArgs, Format};
use crate::commands::Error;
use crate::policy_file::Compiled;
use crate::terminal::output::{self, Stdout};
use crate::traffic::{self, UnreadableCapture};
use summary::Summary;

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Error> {
    let (compiled, model) = match target::explained(&args.policy)? {
        ExplainedPolicy::Compiled(compiled, model) => (*compiled, model),
        ExplainedPolicy::Carving(read) => return carving::run(args, &read),
    };
    let direction = direction_of(args);
    let explained = Explained { compiled: &compiled, model: &model, direction, has_xdp: args.xdp };
    let program = &*compiled.program;
    let format = args.policy.printed.format();
    if let Some(path) = &args.pcap {
        return explain_capture(&explained, path, args.each, format);
    }
    let key = key_of(args)?;
    let answer = explained.answer(&key);
    match format {
        Format::Text => output::print(&format!("{}{}", model_line(&model), answer.text(program)))?,
        Format::Json => output::print_json(&ForModel::of(&model, &answer))?,
    }
    Ok(())
}

/// The packet of the arguments.
fn key_of(args: &ExplainArgs) -> Result<DeepKey, Error> {
    let key = match (&args.packet, &args.hex) {
        (Some(fields), _) => policy::key_of_text(fields),
        (None, Some(hex)) => reports::key_of_hex(hex),
        (None, None) => Err("no packet is given".into()),
    };
    key.map_err(Error::Packet)
}

fn direction_of(args: &ExplainArgs) -> Direction {
    match args.direction {
        DirectionArg::Ingress => Direction::Ingress,
        DirectionArg::Egress => Direction::Egress,
    }
}

/// The policy that packets are explained by.
struct Explained<'c> {
    compiled: &'c Compiled,
    model: &'c AnswerModel,
    direction: Direction,
    /// Whether the verdict of the XDP program is asked for.
    has_xdp: bool,
}

impl Explained<'_> {
    fn answer(&self, key: &DeepKey) -> ExplainedPacket {
        let Compiled { program, protected, .. } = self.compiled;
        // What another device would do is no answer.
        let has_device = self.model.refused_by.is_none();
        let packet = ExplainedPacket::of(program, protected, self.direction, key, self.has_xdp && has_device);
        if has_device { packet } else { packet.without_device() }
    }
}

/// An answer with its device model.
#[derive(Serialize)]
struct ForModel<'a, T> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by: Option<&'a str>,
    #[serde(flatten)]
    answer: &'a T,
}

impl<'a, T> ForModel<'a, T> {
    fn of(model: &'a AnswerModel, answer: &'a T) -> Self {
        Self { model: &model.name, refused_by: model.refused_by.as_deref(), answer }
    }
}

fn model_line(model: &AnswerModel) -> String {
    let AnswerModel { name, refused_by } = model;
    match refused_by {
        None => format!("{:<8} {name}\n", "model"),
        Some(device) => format!(
            "{:<8} {name}, as `{device}` cannot run this policy: what depends on the device is left out\n",
            "model"
        ),
    }
}

fn explain_capture(explained: &Explained<'_>, path: &Path, each: bool, format: Format) -> Result<(), Error> {
    let Explained { compiled, model, direction, has_xdp } = explained;
    let program = &*compiled.program;
    let mut summary = Summary::of(program, *direction);
    let mut stdout = Ok(if each { Stdout::Open } else { Stdout::Closed });
    let mut packet_number = 0;
    let read = traffic::for_each_packet(path, &mut |packet| {
        let frame = packet.frame;
        packet_number += 1;
        if frame.len() < ETHERNET_HEADER_BYTES {
            summary.runts += 1;
            return;
        }
        let parsed = packet::parse(frame);
        let key = DeepKey { outer: parsed.key, tunnel: parse_tunnel(frame, &parsed) };
        summary.add(program, &key, frame.len() as u64);
        if *has_xdp && model.refused_by.is_none() {
            summary.add_xdp(program.xdp_verdict(&key), frame.len() as u64);
        }
        if let Some(anomaly) = parsed.anomaly {
            *summary.anomalies.entry(anomaly.name()).or_default() += 1;
        }
        if matches!(stdout, Ok(Stdout::Open)) {
            let answer = explained.answer(&key);
            stdout = match format {
                Format::Text => output::print_line_by_line(&format!("{}\n", answer.line(packet_number))),
                Format::Json => output::print_json_line(&ForModel::of(model, &answer)),
            };
        }
    });
    let mut broken = read.err().map(|message| UnreadableCapture { path: path.to_owned(), message });
    stdout?;
    // The packets before the error are summed up, too.
    if let Some(broken) = broken.take_if(|_| packet_number == 0) {
        return Err(broken.into());
    }
    summary.packets = packet_number;
    summary.finish();
    if model.refused_by.is_some() {
        summary.leave_out_device();
    }
    let text = || format!("{}{}", model_line(model), summary.text());
    match (each, format) {
        (true, Format::Json) => {}
        (false, Format::Json) => output::print_json(&ForModel::of(model, &summary))?,
        (true, Format::Text) => output::print(&format!("\n{}", text()))?,
        (false, Format::Text) => output::print(&text())?,
    }
    broken.map_or(Ok(()), |broken| Err(broken.into()))
}
