//! The captures and the counts of independent tools, from the folder that `STEERD_CORPORA` names; the
//! repository does not contain it.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The folder of captures, if there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    test_support::corpora("pcaps")
}

/// The capture files, sorted by name.
pub(crate) fn captures(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the corpus is readable");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    assert!(!files.is_empty(), "no captures in {}", folder.display());
    files
}

pub(crate) fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a capture's name is UTF-8")
}

/// Every packet of a capture, read independently of the wire.
pub(crate) fn packets(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::File::open(path).expect("a capture");
    let mut reader = pcap_file::pcap::PcapReader::new(file).expect("a pcap header");
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.expect("a whole packet").data.into_owned());
    }
    packets
}

/// A tab-separated table without its heading.
fn table(folder: &Path, file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(folder.join(file)).expect("the corpus has its tables");
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// The names of the rules, in the order of RULES.tsv.
pub(crate) fn rules(folder: &Path) -> Vec<String> {
    table(folder, "RULES.tsv").into_iter().map(|row| row[0].clone()).collect()
}

/// The counts of tshark and libpcap by file and rule; an absent row is zero.
pub(crate) fn expected(folder: &Path) -> BTreeMap<(String, String), (u64, u64)> {
    let count = |text: &str| text.parse().expect("a count");
    let rows = table(folder, "EXPECTED.tsv").into_iter();
    rows.map(|row| ((row[0].clone(), row[1].clone()), (count(&row[2]), count(&row[3])))).collect()
}

/// A line of FLOWS.tsv with a queue: an untagged flow and its queue.
pub(crate) struct KnownFlow {
    pub(crate) file: String,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) hash: u32,
}

/// The flows with their hashes (addresses and ports where there are any) under the Microsoft key.
pub(crate) fn flows(folder: &Path) -> Vec<KnownFlow> {
    let rows = table(folder, "FLOWS.tsv").into_iter();
    rows.map(|row| KnownFlow {
        file: row[0].clone(),
        src: row[2].parse().expect("an address"),
        dst: row[3].parse().expect("an address"),
        protocol: row[4].parse().expect("a protocol"),
        ports: row[5].parse().ok().zip(row[6].parse().ok()),
        hash: u32::from_str_radix(&row[9], 16).expect("a hash"),
    })
    .collect()
}
