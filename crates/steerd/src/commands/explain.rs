//! `steerd explain`: where a packet would go, and why. Compiles the policy and evaluates the program; no device is used
//! and no packet is sent.

mod fields;
mod received;
mod summary;
mod tunnel;

use std::path::Path;

use packet::{DeepKey, parse_tunnel};
use policy::policy::Direction;
use program::Program;
use serde::Serialize;

use super::traffic::{self, ETHERNET_HEADER_BYTES};
use crate::cli::{DirectionArg, ExplainArgs, Format};
use crate::error::Error;
use crate::policy_file::{self, Compiled};
use crate::terminal::output::{self, Stdout};
use crate::terminal::table::counted;
use received::{ReceivedPacket, SentPacket};
use summary::Summary;

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Error> {
    let compiled = policy_file::compile_for(&args.policy)?;
    let program = &*compiled.program;
    let format = args.policy.format;
    let direction = match args.direction {
        DirectionArg::Ingress => Direction::Ingress,
        DirectionArg::Egress => Direction::Egress,
    };
    if let Some(path) = &args.pcap {
        return explain_capture(&compiled, path, direction, args.each, format);
    }
    let key = match (&args.packet, &args.hex) {
        (Some(fields), _) => fields::key_of_fields(fields),
        (None, Some(hex)) => fields::frame_of_hex(hex).and_then(|frame| whole(&frame)),
        (None, None) => Err("no packet is given".into()),
    };
    let key = key.map_err(Error::Packet)?;
    let answer = Answer::of(&compiled, &key, direction);
    match format {
        Format::Text => output::print(&answer.text(program)),
        Format::Json => output::print_json(&answer),
    }
}

/// The explanation of one packet.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Received(Box<ReceivedPacket>),
    Sent(SentPacket),
}

impl Answer {
    fn of(compiled: &Compiled, key: &DeepKey, direction: Direction) -> Self {
        let Compiled { program, protected, .. } = compiled;
        match direction {
            Direction::Ingress => Self::Received(Box::new(ReceivedPacket::of(program, protected, key))),
            Direction::Egress => Self::Sent(SentPacket::of(program, key)),
        }
    }

    fn text(&self, program: &Program) -> String {
        match self {
            Self::Received(fate) => fate.text(program),
            Self::Sent(fate) => fate.text(),
        }
    }

    fn line(&self, packet_number: u64) -> String {
        match self {
            Self::Received(fate) => fate.line(packet_number),
            Self::Sent(fate) => fate.line(packet_number),
        }
    }
}

/// The key of a frame, unless a port would drop it.
fn whole(frame: &[u8]) -> Result<DeepKey, String> {
    if frame.len() < ETHERNET_HEADER_BYTES {
        let bytes = counted(frame.len() as u64, "byte is", "bytes are");
        return Err(format!(
            "{bytes} too few for an Ethernet header: a port drops the frame as a runt before any rule (hint: a frame \
             begins with its destination MAC address and has {ETHERNET_HEADER_BYTES} bytes or more)"
        ));
    }
    Ok(DeepKey::of(frame))
}

fn explain_capture(
    compiled: &Compiled,
    path: &Path,
    direction: Direction,
    each: bool,
    format: Format,
) -> Result<(), Error> {
    let program = &*compiled.program;
    let mut summary = Summary::of(program, direction);
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
        if let Some(anomaly) = parsed.anomaly {
            *summary.anomalies.entry(anomaly.name()).or_default() += 1;
        }
        if matches!(stdout, Ok(Stdout::Open)) {
            let answer = Answer::of(compiled, &key, direction);
            stdout = match format {
                Format::Text => output::print_line_by_line(&format!("{}\n", answer.line(packet_number))),
                Format::Json => output::print_json_line(&answer),
            };
        }
    });
    let mut broken = read.err().map(|message| Error::Capture { path: path.to_owned(), message });
    stdout?;
    // The packets before the error are summed up, too.
    if let Some(broken) = broken.take_if(|_| packet_number == 0) {
        return Err(broken);
    }
    summary.packets = packet_number;
    summary.finish();
    match (each, format) {
        (true, Format::Json) => {}
        (false, Format::Json) => output::print_json(&summary)?,
        (true, Format::Text) => output::print(&format!("\n{}", summary.text()))?,
        (false, Format::Text) => output::print(&summary.text())?,
    }
    broken.map_or(Ok(()), Err)
}
