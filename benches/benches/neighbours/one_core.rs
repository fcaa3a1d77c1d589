//! One core: the soft NIC's engine and the worker in turn, beside testpmd on `net_pcap` with the same
//! capture, and the worker alone, beside testpmd's `rxonly`.
//!
//! `net_pcap` with `infinite_rx` copies each packet of the capture into a new buffer, as the engine does.
//! `5tswap` parses packets to their ports and swaps addresses and ports; it looks nothing up. The equal of
//! `rxonly`, which includes that copy, is engine and worker together: the worker alone copies nothing, so
//! that row is no fair comparison with long packets.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::competitors::{Testpmd, TestpmdOptions};
use steerd_benches::rules::RuleSet;
use steerd_benches::table::Row;

use super::inputs::{Inputs, Replay, Traffic, one_rule};
use super::{CORE, OTHER_CORE, PULSE, SIZES, own_command};

pub(crate) const TABLE: &str = "one core";
const SWAP: &str = "testpmd 5tswap, net_pcap";
const RECEIVE: &str = "testpmd rxonly, net_pcap";
const WORKER: &str = "worker alone: poll, class, count, repost";
const MILLISECONDS: u64 = 400;
/// Frames that the engine receives before it is the worker's turn.
const BURST: u64 = 64;
const FEW: Traffic = Traffic::Flows(1000);

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    let lists = match inputs.set("acl1_1k") {
        Ok(lists) => lists,
        Err(why) => return vec![Case::missing(row("engine and worker", SIZES[0], "Mpps"), &why)],
    };
    for bytes in SIZES {
        let replay = inputs.replay(&lists, FEW, bytes);
        // testpmd first: it needs more huge pages in one piece.
        for (what, mode) in [(SWAP, "5tswap"), (RECEIVE, "rxonly")] {
            cases.push(testpmd(inputs, (what, mode), &replay, bytes));
        }
        for (index, rules) in [&one_rule(), &lists].into_iter().enumerate() {
            cases.push(own(inputs, rules, &replay, (bytes, index == 0)));
        }
    }
    cases
}

fn row(what: impl Into<String>, bytes: u32, unit: &'static str) -> Row {
    let mut row = Row::new(TABLE, what, bytes, unit);
    row.command = own_command("one-core");
    row
}

/// The rate of both, and, in one of the cases, the worker's share of the time.
fn own<'i>(
    inputs: &'i Inputs,
    rules: &RuleSet,
    replay: &Result<Replay, String>,
    (bytes, has_worker): (u32, bool),
) -> Case<'i> {
    let whole = row(format!("engine and worker in turn, {}, {}", rules.name, FEW.name()), bytes, "Mpps");
    let replay = match replay {
        Ok(replay) => replay,
        Err(why) => return Case::missing(whole, why),
    };
    let mut rig = Rig::replaying(&replay.capture, &rules.delivering().policy_text(), Drive::Manual, None);
    let mut rows = vec![whole];
    if has_worker {
        rows.push(row(WORKER, bytes, "ns"));
    }
    let run = Box::new(move || {
        let time = inputs.round(MILLISECONDS);
        let turns = rig.alternate(BURST, time);
        let mut figures = vec![1e3 / (turns.engine_ns + turns.worker_ns)];
        if has_worker {
            // In longer pulses, beside which reading the clock costs nothing.
            figures.push(rig.alternate(PULSE, time).worker_ns);
        }
        Ok(figures)
    });
    Case { rows, run }
}

/// The device that replays a capture without end.
pub(crate) fn replayed(capture: &Path) -> String {
    format!("net_pcap0,rx_pcap={},infinite_rx=1", capture.display())
}

fn testpmd<'i>(
    inputs: &'i Inputs,
    (what, mode): (&str, &str),
    replay: &Result<Replay, String>,
    bytes: u32,
) -> Case<'i> {
    let is_cost = mode == "rxonly";
    let row = Row::new(TABLE, what, bytes, if is_cost { "ns" } else { "Mpps" });
    match replay {
        Ok(replay) => {
            let device = replayed(&replay.capture);
            let stored = replay.flows as u32 + 4096;
            alone(
                inputs,
                row,
                &device,
                (mode, bytes, stored),
                move |rate| if is_cost { 1e9 / rate } else { rate / 1e6 },
            )
        }
        Err(why) => Case::missing(row, why),
    }
}

/// A testpmd on this core; it waits between rounds.
pub(crate) fn alone<'i>(
    inputs: &'i Inputs,
    mut row: Row,
    device: &str,
    (mode, bytes, stored_packets): (&str, u32, u32),
    figure: impl Fn(f64) -> f64 + 'i,
) -> Case<'i> {
    let options = TestpmdOptions {
        devices: &[device.to_owned()],
        mode,
        core: CORE,
        prompt_core: OTHER_CORE,
        packet_bytes: bytes,
        stored_packets,
        queues: 1,
    };
    row.command = options.command();
    match Testpmd::start(&options) {
        Ok(testpmd) => {
            let testpmd = Rc::new(RefCell::new(testpmd));
            Case::new(row, move || {
                let mut testpmd = testpmd.borrow_mut();
                testpmd.command("start");
                let rate = testpmd.rate(inputs.round(MILLISECONDS));
                testpmd.command("stop");
                rate.map(&figure)
            })
        }
        Err(why) => Case::missing(row, &why),
    }
}

/// The whole beside both modes, the worker beside `rxonly`.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut ratios = Vec::new();
    for own in rows.iter().filter(|row| !row.what.starts_with("testpmd")) {
        let references: &[&str] = if own.what == WORKER { &[RECEIVE] } else { &[SWAP, RECEIVE] };
        let is_asked =
            |row: &&&Row| references.contains(&row.what.as_str()) && row.frame_bytes == own.frame_bytes;
        ratios.extend(rows.iter().filter(is_asked).map(|other| Ratio::of(own, other)));
    }
    ratios
}
