//! Checks a report that was received: its version, its fields, whether its numbers can be, and that it
//! has nothing private. A report that [`super::collect()`] has made has no problem.

use std::fmt;
use std::path::Path;

use device_model::DeviceModel;

use super::{
    Completeness, DeviceIdentity, FlowEvidence, HardwareReport, PCIE_WIDTHS, PatternResult, ProbeEvidence,
    ReceiveEvidence, ReceivePoint, ReportPart, RowVerdict, SuiteEvidence, VERSION,
    private::{self, PrivateWord},
    suite::count,
    target::LIMITED_PERCENT,
};

/// No device takes so many flows or packets a second.
const RATE_MAX: u64 = 1_000_000_000;
/// The longest frame of an interface, and the most masks that a report asks for.
const FRAME_BYTES_MAX: u32 = 9_238;
const MASKS_MAX: u32 = 1 << 16;
/// The field of the device model, the only one of several lines.
const MODEL_FIELD: &str = "probe.model";
/// The keys of versions.
const VERSIONS: [&str; 3] = ["kernel", "firmware", "libibverbs"];
/// The longest value that a message repeats.
const SHOWN_CHARACTERS: usize = 40;

/// A problem of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportProblem {
    /// The field, such as `flows.patterns[0].installed`, or a line.
    field: String,
    problem: String,
}

impl fmt::Display for ReportProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// Returns the problems of a report; none if it can be taken.
pub(crate) fn validate(text: &str) -> Vec<ReportProblem> {
    let mut found = ReportProblems::default();
    let value = match toml::from_str::<toml::Value>(text) {
        Ok(value) => value,
        Err(error) => return found.unreadable(text, &error),
    };
    let version = value.get("version").and_then(toml::Value::as_integer);
    if version != Some(i64::from(VERSION)) {
        let is = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
        found.add("version", format!("this steerd reads version {VERSION}, not {is}"));
        return found.0;
    }
    found.value("", &value);
    found.comments(text);
    match toml::from_str::<HardwareReport>(text) {
        Ok(report) => found.report(&report),
        Err(error) => return found.unreadable(text, &error),
    }
    found.0
}

#[derive(Debug, Default)]
struct ReportProblems(Vec<ReportProblem>);

impl ReportProblems {
    fn add(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.0.push(ReportProblem { field: field.into(), problem: problem.into() });
    }

    /// Adds the problem unless the condition holds.
    fn ensure(&mut self, field: impl Into<String>, holds: bool, problem: impl Into<String>) {
        if !holds {
            self.add(field, problem);
        }
    }

    /// The text is no TOML, or a field is missing, unknown or of another type.
    fn unreadable(mut self, text: &str, error: &toml::de::Error) -> Vec<ReportProblem> {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).map_or(1, |before| before.lines().count().max(1));
        self.add(format!("line {line}"), error.message());
        self.0
    }

    /// Checks the texts of a value.
    fn value(&mut self, field: &str, value: &toml::Value) {
        match value {
            toml::Value::String(text) => {
                if let Some(found) = text.lines().find_map(|line| private_word(field, line)) {
                    self.add(field, format!("contains this {}: {}", found.kind, found.word));
                }
                let is_refused = |c: char| c.is_control() && !(c == '\n' && field == MODEL_FIELD);
                self.ensure(field, !text.contains(is_refused), "has a control character");
            }
            toml::Value::Array(values) => {
                for (number, value) in values.iter().enumerate() {
                    self.value(&format!("{field}[{number}]"), value);
                }
            }
            toml::Value::Table(table) => {
                for (key, value) in table {
                    let field = if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
                    self.value(&field, value);
                }
            }
            _ => {}
        }
    }

    /// Checks the lines of the file, comments included, for what the values do not show.
    fn comments(&mut self, text: &str) {
        for (number, line) in text.lines().enumerate() {
            let Some(found) = private_word("", line) else { continue };
            if !self.0.iter().any(|known| known.problem.ends_with(&found.word)) {
                let problem = format!("contains this {}: {}", found.kind, found.word);
                self.add(format!("line {}", number + 1), problem);
            }
        }
    }

    fn report(&mut self, report: &HardwareReport) {
        self.ensure("steerd", !report.steerd.is_empty(), "is empty");
        self.ensure("date", is_date(&report.date), "is no day such as 2026-01-31");
        self.identity(&report.identity);
        let model = DeviceModel::parse(Path::new("probe.model"), &report.probe.model);
        match &model {
            Ok(model) => {
                let driver = &report.identity.driver;
                let is_same = model.device.driver == *driver;
                self.ensure("identity.driver", is_same, "is not the driver of probe.model");
            }
            Err(error) => self.add("probe.model", error.to_string()),
        }
        self.probe(&report.probe);
        if let Some(flows) = &report.flows {
            self.flows(flows, model.ok().as_ref());
        }
        if let Some(suite) = &report.suite {
            self.suite(suite);
        }
        if let Some(receive) = &report.receive {
            self.receive(receive);
        }
        if report.completeness != Completeness::Interrupted {
            let is_missing = report.missing.iter().any(|missing| missing.part == ReportPart::Flows);
            let has_flows = report.flows.is_some() || is_missing;
            self.ensure("flows", has_flows, "is missing from a report that was not interrupted");
        }
        for (part, is_there) in [
            (ReportPart::Flows, report.flows.is_some()),
            (ReportPart::Suite, report.suite.is_some()),
            (ReportPart::Receive, report.receive.is_some()),
        ] {
            let is_missing = report.missing.iter().any(|missing| missing.part == part);
            self.ensure(
                "missing",
                !(is_there && is_missing),
                format!("names a part that is there: {part:?}"),
            );
        }
        self.ensure("verdict", report.verdict == report.summary(), "is not that of the fields");
    }

    fn identity(&mut self, identity: &DeviceIdentity) {
        for (field, text) in [
            ("device", &identity.device),
            ("driver", &identity.driver),
            ("firmware", &identity.firmware),
            ("kernel", &identity.kernel),
            ("libibverbs", &identity.libibverbs),
            ("architecture", &identity.architecture),
            ("processor", &identity.processor),
        ] {
            self.ensure(format!("identity.{field}"), !text.trim().is_empty(), "is empty");
        }
        let is_mode = ["legacy", "switchdev", "none", "unknown"].contains(&identity.eswitch.as_str());
        self.ensure("identity.eswitch", is_mode, "is not legacy, switchdev, none or unknown");
        self.ensure("identity.ports", !identity.ports.is_empty(), "names no port");
        if let Some(link) = &identity.pcie {
            let is_width = PCIE_WIDTHS.contains(&link.width) && link.width <= link.max_width;
            self.ensure("identity.pcie.width", is_width, "is no width of this link");
        }
        if let Some(id) = &identity.pci_id {
            self.ensure("identity.pci_id", is_pci_id(id), "is no pair of numbers such as 15b3:101d");
        }
    }

    fn probe(&mut self, probe: &ProbeEvidence) {
        let ProbeEvidence { tried, works, broken, .. } = *probe;
        self.ensure("probe.tried", tried > 0, "is 0: nothing was tried");
        let is_sum = works.checked_add(broken).is_some_and(|sum| sum <= tried);
        self.ensure("probe.works", is_sum, "is more than was tried");
        let others = u64::from(tried) - u64::from(works.min(tried));
        self.ensure("probe.answers", probe.answers.len() as u64 == others, "are not all that do not work");
        let are_broken = count(&probe.answers, RowVerdict::Mismatch) == broken;
        self.ensure("probe.broken", are_broken, "is not the number of such answers");
    }

    fn flows(&mut self, flows: &FlowEvidence, model: Option<&DeviceModel>) {
        let is_last = model.is_none_or(|model| u32::from(flows.priority) < model.priorities.max(1));
        self.ensure("flows.priority", is_last, "is beyond the priorities of probe.model");
        for (number, pattern) in flows.patterns.iter().enumerate() {
            self.pattern(&format!("flows.patterns[{number}]"), pattern);
        }
    }

    fn pattern(&mut self, field: &str, pattern: &PatternResult) {
        let PatternResult { wanted, installed, inserts_per_second, removes_per_second, .. } = *pattern;
        self.ensure(format!("{field}.name"), !pattern.name.is_empty(), "is empty");
        self.ensure(
            format!("{field}.masks"),
            (1..=wanted.max(1)).contains(&pattern.masks),
            "is more than the flows",
        );
        let is_explained = installed == wanted && pattern.ended_by.is_none()
            || installed < wanted && pattern.ended_by.is_some();
        let explanation = "is not as many as wanted, and ended_by does not say why, or the other way round";
        self.ensure(format!("{field}.installed"), is_explained, explanation);
        let can_be = inserts_per_second <= RATE_MAX && (inserts_per_second > 0) == (installed > 0);
        let problem = format!("{inserts_per_second} cannot be, with {installed} flows");
        self.ensure(format!("{field}.inserts_per_second"), can_be, problem);
        let can_be = removes_per_second <= RATE_MAX && (installed > 0 || removes_per_second == 0);
        let problem = format!("{removes_per_second} cannot be, with {installed} flows");
        self.ensure(format!("{field}.removes_per_second"), can_be, problem);
    }

    fn suite(&mut self, suite: &SuiteEvidence) {
        let SuiteEvidence { rows, as_expected, recorded, mismatches, not_run, .. } = *suite;
        let sum = [as_expected, recorded, mismatches, not_run].into_iter().map(u64::from).sum::<u64>();
        self.ensure("suite.rows", u64::from(rows) == sum && rows > 0, "is not the sum of the verdicts");
        let others = u64::from(rows) - u64::from(as_expected.min(rows));
        let are_all = suite.differences.len() as u64 == others
            && count(&suite.differences, RowVerdict::Recorded) == recorded
            && count(&suite.differences, RowVerdict::Mismatch) == mismatches
            && count(&suite.differences, RowVerdict::NotRun) == not_run;
        self.ensure("suite.differences", are_all, "are not the rows that the verdicts count");
    }

    fn receive(&mut self, receive: &ReceiveEvidence) {
        let is_source = ["generator", "link", "af_packet"].contains(&receive.source.as_str());
        let source: String = receive.source.chars().take(SHOWN_CHARACTERS).collect();
        self.ensure("receive.source", is_source, format!("`{source}` is no source of frames"));
        for (number, point) in receive.points.iter().enumerate() {
            let field = |name: &str| format!("receive.points[{number}].{name}");
            let ReceivePoint { frame_bytes, masks_wanted, masks, sent, received, .. } = *point;
            let is_length = (60..=FRAME_BYTES_MAX).contains(&frame_bytes);
            self.ensure(field("frame_bytes"), is_length, "is no length of a frame");
            let are_masks = masks <= masks_wanted && masks_wanted <= MASKS_MAX;
            self.ensure(field("masks"), are_masks, "are more than wanted");
            self.ensure(field("received"), received <= sent, "is more than was sent");
            let milliseconds = point.milliseconds.max(1);
            // The time is rounded down to milliseconds.
            let most = received.saturating_mul(1000) / milliseconds;
            let can_be = point.received_per_second <= most && point.received_per_second <= RATE_MAX;
            self.ensure(field("received_per_second"), can_be, "is more than was received in the time");
            let most = sent.saturating_mul(1000) / milliseconds;
            let can_be = point.sent_per_second <= most && point.sent_per_second <= RATE_MAX;
            self.ensure(field("sent_per_second"), can_be, "is more than was sent in the time");
            let share = point.sent_per_second.saturating_mul(LIMITED_PERCENT - 1) / 100;
            let can_be = !point.is_sender_limited || point.received_per_second >= share;
            self.ensure(field("is_sender_limited"), can_be, "is true, and less was received than sent");
        }
    }
}

/// The private word of a line, unless the line is a version, which may look like an IP address. The name of a
/// host is not searched for: that of the checking machine is of no use.
fn private_word(field: &str, line: &str) -> Option<PrivateWord> {
    let key = line.split_once('=').map_or("", |(key, _)| key.trim());
    let name = field.rsplit('.').next().unwrap_or_default();
    let is_version = VERSIONS.contains(&key) || VERSIONS.contains(&name);
    private::find(line, "").filter(|found| !(is_version && found.kind == "IP address"))
}

/// Four, two and two digits.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let are_digits = parts.iter().all(|part| part.chars().all(|c| c.is_ascii_digit()));
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let number = |place: usize| parts.get(place).and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    are_digits && lengths == [4, 2, 2] && (1..=12).contains(&number(1)) && (1..=31).contains(&number(2))
}

fn is_pci_id(text: &str) -> bool {
    let is_number = |part: &str| part.len() == 4 && part.chars().all(|c| c.is_ascii_hexdigit());
    text.split_once(':').is_some_and(|(vendor, device)| is_number(vendor) && is_number(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware_report::{
        FunctionKind, MissingPart, PcieLink, PortIdentity, SuiteRow, UNTIL_REFUSED,
    };

    /// A model that was found by trying, of a device with the driver `softnic`.
    const MODEL: &str = include_str!("../../../../config/device-model-probed.toml");

    fn row(verdict: RowVerdict, seen: &str) -> SuiteRow {
        let text = |text: &str| text.to_owned();
        let (verb, field, value) =
            (text("ibv_create_flow"), text("ibv_flow_attr.type"), text("IBV_FLOW_ATTR_NORMAL"));
        SuiteRow { verb, field, value, expected: Some(text("works")), seen: text(seen), verdict }
    }

    fn report() -> HardwareReport {
        let text = |text: &str| text.to_owned();
        let pattern = PatternResult {
            name: text("one_mask"),
            masks: 1,
            wanted: 4096,
            installed: 4096,
            ended_by: None,
            inserts_per_second: 5000,
            removes_per_second: 9000,
            slowest_insert_us: 410,
        };
        let refused = PatternResult {
            installed: 9362,
            wanted: 32_768,
            ended_by: Some(text("ENOMEM")),
            ..pattern.clone()
        };
        let point = ReceivePoint {
            frame_bytes: 64,
            masks_wanted: 8,
            masks: 8,
            milliseconds: 1000,
            sent: 4_000_000,
            received: 3_000_000,
            sent_per_second: 3_999_000,
            received_per_second: 2_999_000,
            is_sender_limited: false,
        };
        let mut report = HardwareReport {
            version: VERSION,
            steerd: text("0.1.0"),
            date: text("2026-01-31"),
            completeness: Completeness::Full,
            verdict: String::new(),
            missing: Vec::new(),
            identity: DeviceIdentity {
                device: text("mlx5_0"),
                driver: text("softnic"),
                firmware: text("22.35.2000"),
                kernel: text("6.8.0-45-generic"),
                libibverbs: text("libibverbs.so.1.14.50.0"),
                architecture: text("x86_64"),
                processor: text("AMD EPYC 7543"),
                eswitch: text("legacy"),
                function: FunctionKind::Physical,
                numa_node: Some(1),
                pci_id: Some(text("15b3:101d")),
                pcie: Some(PcieLink {
                    speed: text("16.0 GT/s PCIe"),
                    width: 16,
                    max_speed: text("16.0 GT/s PCIe"),
                    max_width: 16,
                }),
                ports: vec![PortIdentity { port: 1, state: text("active"), rate: text("100 Gb/sec") }],
            },
            probe: ProbeEvidence {
                tried: 20,
                works: 19,
                broken: 0,
                model: text(MODEL),
                answers: vec![row(RowVerdict::Recorded, "refused: EOPNOTSUPP")],
            },
            flows: Some(FlowEvidence { priority: 15, left_behind: 0, patterns: vec![pattern, refused] }),
            suite: Some(SuiteEvidence {
                rows: 337,
                as_expected: 336,
                recorded: 0,
                mismatches: 1,
                not_run: 0,
                differences: vec![row(RowVerdict::Mismatch, "differs")],
            }),
            receive: Some(ReceiveEvidence { source: text("af_packet"), points: vec![point] }),
        };
        report.verdict = report.summary();
        report
    }

    fn problems(text: &str) -> String {
        let lines: Vec<String> = validate(text).iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn a_report_reads_back_without_problems() {
        let text = report().text();
        assert_eq!(problems(&text), "", "{text}");
        assert_eq!(toml::from_str::<HardwareReport>(&text).expect("a report"), report());
    }

    #[test]
    fn a_report_without_peer_says_so() {
        let mut report = HardwareReport { suite: None, receive: None, ..report() };
        report.verdict = report.summary();
        assert!(report.verdict.ends_with("; no peer"), "{}", report.verdict);
        assert_eq!(problems(&report.text()), "");
    }

    #[test]
    fn verdicts_name_refusals_and_limits() {
        let mut report = report();
        let flows = report.flows.as_mut().expect("flows");
        flows.left_behind = 3;
        flows.patterns[1].name = UNTIL_REFUSED.to_owned();
        report.receive.as_mut().expect("points").points[0].is_sender_limited = true;
        let verdict = report.summary();
        for part in
            ["; 4096 flows at 5000/s; ENOMEM after 9362; 3 flows left behind; ", " bytes (sender-limited)"]
        {
            assert!(verdict.contains(part), "{part}: {verdict}");
        }
        report.flows.as_mut().expect("flows").patterns.remove(0);
        assert!(
            report.summary().contains("; 9362 of 32768 flows (ENOMEM) at 5000/s; "),
            "{}",
            report.summary()
        );
    }

    #[test]
    fn versions_may_look_like_addresses() {
        let mut report = report();
        report.identity.firmware = "2.42.5.0".to_owned();
        report.identity.kernel = "6.8.0.12-45".to_owned();
        assert_eq!(problems(&report.text()), "");
    }

    #[test]
    fn a_part_is_there_or_missing() {
        let mut report = report();
        report.missing = vec![MissingPart { part: ReportPart::Flows, reason: "a bug".to_owned() }];
        report.verdict = report.summary();
        assert_eq!(problems(&report.text()), "missing: names a part that is there: Flows");
    }

    #[test]
    fn an_altered_report_names_the_field() {
        let text = report().text();
        for (old, new, field) in [
            ("version = 1", "version = 2", "version: this steerd reads version 1, not 2"),
            ("date = \"2026-01-31\"", "date = \"31.1.2026\"", "date:"),
            ("kernel = \"6.8.0-45-generic\"\n", "", "missing field `kernel`"),
            ("kernel = \"6.8.0-45-generic\"", "kernel = \"\"", "identity.kernel: is empty"),
            (
                "kernel = \"6.8.0-45-generic\"",
                "serial = \"MT2012X0\"\nkernel = \"6.8\"",
                "unknown field `serial`",
            ),
            (
                "device = \"mlx5_0\"",
                "device = \"enx9c63c0aa0102\"",
                "identity.device: contains this MAC address or GUID",
            ),
            (
                "rate = \"100 Gb/sec\"",
                "rate = \"10.1.2.3\"",
                "identity.ports[0].rate: contains this IP address: 10.1.2.3",
            ),
            ("version = 1", "# from 10.1.2.3:22\nversion = 1", ": contains this IP address: 10.1.2.3:22"),
            ("AMD EPYC 7543", "\\u001b[2J", "identity.processor: has a control character"),
            ("verdict = \"mismatch\"", "verdict = \"notrun\"", "suite.differences"),
            ("width = 16", "width = 7", "identity.pcie.width"),
            ("15b3:101d", "15b3", "identity.pci_id"),
            ("function = \"physical\"", "function = \"imaginary\"", "unknown variant"),
            ("works = 19", "works = 30", "probe.works"),
            ("works = 19", "works = 18", "probe.answers"),
            ("priority = 15", "priority = 16", "flows.priority"),
            ("installed = 9362", "installed = 32768", "flows.patterns[1].installed"),
            ("inserts_per_second = 5000", "inserts_per_second = 0", "flows.patterns[0].inserts_per_second"),
            ("as_expected = 336", "as_expected = 337", "suite.rows"),
            ("received = 3000000", "received = 5000000", "receive.points[0].received:"),
            (
                "received_per_second = 2999000",
                "received_per_second = 9000000",
                "receive.points[0].received_per_second",
            ),
            ("sent_per_second = 3999000", "sent_per_second = 4500000", "receive.points[0].sent_per_second"),
            ("is_sender_limited = false", "is_sender_limited = true", "receive.points[0].is_sender_limited"),
            ("1 mismatches", "0 mismatches", "verdict"),
            ("source = \"af_packet\"", "source = \"air\"", "receive.source"),
        ] {
            let altered = text.replacen(old, new, 1);
            assert_ne!(altered, text, "{old}");
            let found = problems(&altered);
            assert!(found.contains(field), "{old} -> {new}: {found}\n{altered}");
        }
    }
}
