//! The sink `forward` beside testpmd's `macswap`, on one core, per packet.
//!
//! `net_null` with `copy=1` copies a packet on receive and on send, which is what the soft NIC's engine does
//! besides parsing, looking up and hashing: the equal of engine and worker together. Without copies it only
//! gives buffers from a pool and takes them back, as a NIC does: the equal of the worker alone. testpmd
//! neither classifies nor counts by rule.

use program::{ForwardSink, SinkKind};
use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::table::Row;

use super::inputs::Inputs;
use super::{own_command, pin};

pub(crate) const TABLE: &str = "forward";
const WORKER: &str = "worker alone, sink forward, MACs swapped";
const WHOLE: &str = "engine and worker, sink forward, MACs swapped";
const NULL: &str = "testpmd macswap, net_null without copies";
const COPY: &str = "testpmd macswap, net_null copy=1";
const MILLISECONDS: u64 = 400;
/// The longest frame that can be sent has 1514 bytes.
const SIZES: [u32; 2] = [64, 1514];
/// Fewer frames than may be in flight.
const SINK_PULSE: u64 = 512;

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for bytes in SIZES {
        for (what, copy) in [(NULL, 0), (COPY, 1)] {
            let device = format!("net_null0,size={bytes},copy={copy}");
            let row = Row::new(TABLE, what, bytes, "ns");
            cases
                .push(super::one_core::alone(inputs, row, &device, ("macswap", bytes, 0), |rate| 1e9 / rate));
        }
        cases.push(own(inputs, bytes));
    }
    cases
}

fn own(inputs: &Inputs, bytes: u32) -> Case<'_> {
    let rows = [WORKER, WHOLE].map(|what| {
        let mut row = Row::new(TABLE, what, bytes, "ns");
        row.command = own_command(TABLE);
        row
    });
    let mut rig = Rig::bare(bytes, 1, Drive::Manual, None);
    // Threads that a sink starts get the affinity of the thread that opens it.
    pin(super::OTHER_CORE);
    let kind = SinkKind::Forward(ForwardSink { port: Some(1), swap_macs: true, ..ForwardSink::default() });
    let opened = rig.plane.try_open_sink(kind).map_err(|error| error.to_string());
    pin(super::CORE);
    let mut setup = Setup { opened, rig };
    let run = Box::new(move || {
        let opened = setup.opened.as_ref().map_err(Clone::clone)?;
        let parts = setup.rig.alternate(SINK_PULSE, inputs.round(MILLISECONDS));
        let traffic = opened.counters[0].read();
        let dropped: u64 = traffic.dropped.iter().map(|(_, count)| count).sum();
        if dropped > 0 {
            return Err(format!("the sink dropped {dropped} packets"));
        }
        Ok(vec![parts.worker_ns, parts.engine_ns + parts.worker_ns])
    });
    Case { rows: rows.into(), run }
}

/// The fields are declared in the order in which they must be dropped.
struct Setup {
    opened: Result<worker::sinks::Opened, String>,
    rig: Rig,
}

/// Both of ours beside both of testpmd's.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for bytes in SIZES {
        let find = |what: &str| rows.iter().find(|row| row.what == what && row.frame_bytes == bytes);
        for (own, other) in [(WHOLE, COPY), (WHOLE, NULL), (WORKER, COPY), (WORKER, NULL)] {
            ratios.extend(find(own).zip(find(other)).map(|(own, other)| Ratio::of(own, other)));
        }
    }
    ratios
}
