//! The report of `steerd devices --report`: what a device is, what it answers, how fast it takes flows, and,
//! with a peer, the results of the conformance suite and the receive rate of a worker. docs/hardware.md
//! describes it for users.
//!
//! [`HardwareReport`] is plain data, written and read as TOML. Invariants: no MAC, IP or PCI address, GUID or
//! name of this host is in its free texts ([`private`] finds them), and all objects and flows of a
//! measurement are gone when its function returns, however it ends.

mod collect;
mod flow_rate;
mod identity;
mod private;
mod receive_rate;
mod suite;
mod target;
mod validate;

use serde::{Deserialize, Serialize};

pub(crate) use collect::{FIRST_PORT, ReportError, ReportOptions, collect};
pub(crate) use suite::PROBE;
pub(crate) use validate::validate;

/// The widths of a link of PCI Express.
const PCIE_WIDTHS: [u32; 7] = [1, 2, 4, 8, 12, 16, 32];
/// The pattern that ends with the first refusal.
const UNTIL_REFUSED: &str = "until_refused";
/// The version of the format.
const VERSION: u32 = 1;

/// A report of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HardwareReport {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The version of steerd that wrote the report.
    pub(crate) steerd: String,
    /// The day in UTC: `2026-01-31`.
    pub(crate) date: String,
    pub(crate) completeness: Completeness,
    /// One line for readers of many reports.
    pub(crate) verdict: String,
    /// The parts that could not be found, and why.
    #[serde(default)]
    pub(crate) missing: Vec<MissingPart>,
    pub(crate) identity: DeviceIdentity,
    pub(crate) probe: ProbeEvidence,
    pub(crate) flows: Option<FlowEvidence>,
    pub(crate) suite: Option<SuiteEvidence>,
    pub(crate) receive: Option<ReceiveEvidence>,
}

/// How much was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Completeness {
    /// The documented counts.
    Full,
    /// Smaller counts and shorter times (`--quick`): the rates are not to be compared.
    Quick,
    /// A signal ended it; what was found before is in it.
    Interrupted,
}

/// A part of the report that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MissingPart {
    pub(crate) part: ReportPart,
    pub(crate) reason: String,
}

/// The parts that not every report has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportPart {
    Flows,
    Suite,
    Receive,
}

/// The device and the host around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceIdentity {
    /// The name of the device.
    pub(crate) device: String,
    /// The kernel driver; `softnic` for a software NIC in this process.
    pub(crate) driver: String,
    pub(crate) firmware: String,
    /// The release of the kernel.
    pub(crate) kernel: String,
    /// The file of the library, whose end is the release of rdma-core.
    pub(crate) libibverbs: String,
    pub(crate) architecture: String,
    pub(crate) processor: String,
    /// `legacy`, `switchdev`, `none` or `unknown`.
    pub(crate) eswitch: String,
    pub(crate) function: FunctionKind,
    pub(crate) numa_node: Option<u32>,
    /// Vendor and device number: `15b3:101d`.
    pub(crate) pci_id: Option<String>,
    pub(crate) pcie: Option<PcieLink>,
    pub(crate) ports: Vec<PortIdentity>,
}

/// The kind of PCI function that the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FunctionKind {
    Physical,
    Virtual,
    /// A function of a BlueField, seen by its Arm cores.
    Dpu,
    Software,
    Unknown,
}

/// The link between the device and its host (Documentation/ABI/testing/sysfs-bus-pci).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PcieLink {
    pub(crate) speed: String,
    pub(crate) width: u32,
    pub(crate) max_speed: String,
    pub(crate) max_width: u32,
}

/// A port of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PortIdentity {
    pub(crate) port: u8,
    /// `active`, `down`, ...
    pub(crate) state: String,
    /// `100 Gb/sec`
    pub(crate) rate: String,
}

/// The device model and the answers of the cases that affect no other user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeEvidence {
    pub(crate) tried: u32,
    pub(crate) works: u32,
    /// Accepted, and then not done.
    pub(crate) broken: u32,
    /// The device model as a file: how each row is known is in its comments.
    pub(crate) model: String,
    /// The answers other than `works`.
    #[serde(default)]
    pub(crate) answers: Vec<SuiteRow>,
}

/// A case and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuiteRow {
    pub(crate) verb: String,
    pub(crate) field: String,
    pub(crate) value: String,
    /// The expected answer, where the driver has expectations.
    pub(crate) expected: Option<String>,
    pub(crate) seen: String,
    pub(crate) verdict: RowVerdict,
}

/// The judgement on a row, by the conformance suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RowVerdict {
    Ok,
    Recorded,
    Mismatch,
    NotRun,
}

/// How fast the device installs and removes flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowEvidence {
    /// The priority of all flows: the last of the device.
    pub(crate) priority: u16,
    /// Flows that the device refused to remove while the process had it open.
    pub(crate) left_behind: u32,
    pub(crate) patterns: Vec<PatternResult>,
}

/// One pattern of flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatternResult {
    pub(crate) name: String,
    /// Different masks among the flows that were wanted.
    pub(crate) masks: u32,
    pub(crate) wanted: u32,
    pub(crate) installed: u32,
    /// Why it ended before all were installed: an errno, `time` or `interrupted`.
    pub(crate) ended_by: Option<String>,
    pub(crate) inserts_per_second: u64,
    pub(crate) removes_per_second: u64,
    pub(crate) slowest_insert_us: u64,
}

/// The results of the conformance suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuiteEvidence {
    pub(crate) rows: u32,
    pub(crate) as_expected: u32,
    /// Nothing is expected of the driver.
    pub(crate) recorded: u32,
    pub(crate) mismatches: u32,
    pub(crate) not_run: u32,
    /// The rows that are not as expected.
    #[serde(default)]
    pub(crate) differences: Vec<SuiteRow>,
}

/// The rate at which one worker receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiveEvidence {
    /// Where the frames come from: `generator`, `link` or `af_packet`.
    pub(crate) source: String,
    pub(crate) points: Vec<ReceivePoint>,
}

/// One measurement of the receive rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceivePoint {
    /// The length of the frames, without FCS.
    pub(crate) frame_bytes: u32,
    /// Flows of different masks before the one that the frames match, as wanted and as installed.
    pub(crate) masks_wanted: u32,
    pub(crate) masks: u32,
    /// The time of the rates, after a warm-up.
    pub(crate) milliseconds: u64,
    /// All frames, with those of the warm-up and those that arrived after the end of sending.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) sent_per_second: u64,
    /// Received while the sender sent.
    pub(crate) received_per_second: u64,
    /// The worker received nearly all that was sent meanwhile, and the sender did not wait for it: the worker
    /// may be faster than this.
    pub(crate) is_sender_limited: bool,
}

impl FlowEvidence {
    /// The result of the pattern that ends with the first refusal.
    fn until_refused(&self) -> Option<&PatternResult> {
        self.patterns.iter().find(|pattern| pattern.name == UNTIL_REFUSED)
    }
}

impl HardwareReport {
    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        let header = "# A report of `steerd devices --report` (docs/hardware.md). Read it before you send it;\n\
                      # `steerd devices --validate-report FILE` searches it for MAC, IP and PCI addresses and GUIDs.\n";
        // Every type of a report has a form in TOML.
        let body = toml::to_string_pretty(self).unwrap_or_else(|error| format!("# {error}\n"));
        format!("{header}{body}")
    }

    /// The results in one line.
    fn summary(&self) -> String {
        let mut parts = vec![format!("{} of {} answers work", self.probe.works, self.probe.tried)];
        if self.probe.broken > 0 {
            parts.push(format!("{} are broken", self.probe.broken));
        }
        if let Some(first) = self.flows.as_ref().and_then(|flows| flows.patterns.first()) {
            let PatternResult { wanted, installed, inserts_per_second, .. } = first;
            parts.push(match &first.ended_by {
                None => format!("{installed} flows at {inserts_per_second}/s"),
                Some(why) => {
                    format!("{installed} of {wanted} flows ({why}) at {inserts_per_second}/s")
                }
            });
        }
        if let Some(last) = self.flows.as_ref().and_then(FlowEvidence::until_refused) {
            parts.push(match &last.ended_by {
                None => format!("no refusal up to {}", last.installed),
                Some(why) => format!("{why} after {}", last.installed),
            });
        }
        if let Some(FlowEvidence { left_behind: left_behind @ 1.., .. }) = &self.flows {
            parts.push(format!("{left_behind} flows left behind"));
        }
        if let Some(SuiteEvidence { rows, as_expected, mismatches, .. }) = &self.suite {
            parts.push(format!("{as_expected} of {rows} rows as expected, {mismatches} mismatches"));
        }
        if let Some(point) = self.receive.as_ref().and_then(|receive| receive.points.first()) {
            let limit = if point.is_sender_limited { " (sender-limited)" } else { "" };
            parts.push(format!(
                "{} packets/s of {} bytes{limit}",
                point.received_per_second, point.frame_bytes
            ));
        }
        let has_tried_peer = self.missing.iter().any(|missing| missing.part != ReportPart::Flows);
        if self.suite.is_none() && !has_tried_peer && self.completeness != Completeness::Interrupted {
            parts.push("no peer".to_owned());
        }
        let completeness = match self.completeness {
            Completeness::Full => "complete",
            Completeness::Quick => "quick",
            Completeness::Interrupted => "interrupted",
        };
        let completeness = if self.missing.is_empty() { completeness } else { "incomplete" };
        format!("{completeness}: {}", parts.join("; "))
    }
}
