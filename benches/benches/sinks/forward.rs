//! testpmd's macswap on virtual devices whose other side costs nothing or little, on one core: what the worker with the
//! sink `forward` is compared with. The soft NIC's engine, which the worker's figure leaves out, has no counterpart there:
//! - `net_null` gives buffers from a pool and takes them back, as a NIC does, without data; with `copy=1` it also copies
//!   a packet in and out, which the soft NIC does in its engine;
//! - `net_ring` moves the same 512 buffers in a circle: neither pool nor completions, the least that a port can cost.
//!
//! testpmd does not classify, count by rule, or check lengths.

use std::time::Duration;

use steerd_benches::competitors::{Testpmd, TestpmdOptions};
use steerd_benches::table::Row;

use super::{CORE, OTHER_CORE, SIZES};

pub(crate) const NULL: &str = "testpmd macswap, net_null";
pub(crate) const NULL_COPY: &str = "testpmd macswap, net_null copy=1";
pub(crate) const RING: &str = "testpmd macswap, net_ring";
const TABLE: &str = "forward";
const ROUND: Duration = Duration::from_millis(400);

pub(crate) struct Table {
    running: Vec<(Option<Testpmd>, &'static str, Row)>,
}

impl Table {
    pub(crate) fn new() -> Self {
        let mut running = Vec::new();
        for bytes in SIZES {
            let devices = [
                (NULL, format!("net_null0,size={bytes},copy=0"), "start"),
                (NULL_COPY, format!("net_null0,size={bytes},copy=1"), "start"),
                (RING, "net_ring0".to_owned(), "start tx_first 16"),
            ];
            for (what, device, start) in devices {
                let mut row = Row::new(TABLE, what, bytes, "ns");
                let options = TestpmdOptions {
                    devices: &[device],
                    mode: "macswap",
                    core: CORE,
                    prompt_core: OTHER_CORE,
                    packet_bytes: bytes,
                };
                let testpmd = Testpmd::start(&options).map_err(|why| row.add(Err(why))).ok();
                running.push((testpmd, start, row));
            }
        }
        Self { running }
    }

    pub(crate) fn round(&mut self) {
        for (testpmd, start, row) in &mut self.running {
            let Some(testpmd) = testpmd else { continue };
            testpmd.command(start);
            // The packets of the first one stay in the ring.
            *start = "start";
            let rate = testpmd.rate(ROUND);
            testpmd.command("stop");
            row.add(rate.map(|rate| 1e9 / rate));
        }
    }

    pub(crate) fn rows(self) -> impl Iterator<Item = Row> {
        self.running.into_iter().map(|(_, _, row)| row)
    }
}
