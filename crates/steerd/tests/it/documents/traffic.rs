//! Packets that commands of the documentation read.

use std::sync::OnceLock;

use test_support::capture;
use wire::{Burst, WireConfig};

use crate::support::config;

const PACKETS: usize = 20_000;
/// The time between two packets: 20,000 packets per second.
const INTERVAL_US: u32 = 50;

/// A capture of the first packets of `steerd run --demo`, the same in each run: one second at 20,000 packets
/// per second.
pub(super) fn demo_capture() -> Vec<u8> {
    static CAPTURE: OnceLock<Vec<u8>> = OnceLock::new();
    CAPTURE.get_or_init(generated).clone()
}

fn generated() -> Vec<u8> {
    let text = std::fs::read_to_string(config().join("demo.toml")).expect("config/demo.toml");
    let settings: toml::Table = text.parse().expect("TOML");
    let mut wire = settings["softnic"]["ports"][0]["wire"].clone();
    let keys = wire.as_table_mut().expect("a table");
    keys.insert("rate".to_owned(), "flat-out".into());
    let mut wire = wire.try_into::<WireConfig>().expect("a wire").open().expect("a generator");
    let mut frames: Vec<Vec<u8>> = Vec::new();
    while frames.len() < PACKETS {
        let mut burst = Burst::new();
        wire.receive(&mut burst);
        frames.extend(burst.as_slice().iter().map(|frame| frame.bytes.to_vec()));
    }
    frames.truncate(PACKETS);
    let mut file = capture(&frames);
    // The time of each packet is in the first 8 octets of its header (pcap-savefile(5)).
    let mut at = 24;
    for (number, frame) in (0_u32..).zip(&frames) {
        let time_us = number * INTERVAL_US;
        file[at..at + 4].copy_from_slice(&(time_us / 1_000_000).to_le_bytes());
        file[at + 4..at + 8].copy_from_slice(&(time_us % 1_000_000).to_le_bytes());
        at += 16 + frame.len();
    }
    file
}
