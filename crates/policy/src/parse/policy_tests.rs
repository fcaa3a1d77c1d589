//! `[[tests]]`: the packets and the decisions of tests. Tests of all files are kept in the order of the text.

use std::path::Path;

use packet::DeepKey;
use program::DEFAULT_RULE;

use crate::hint::ProblemHint;
use crate::keys;
use crate::packet_text::{frame_of_hex, key_of_text};
use crate::policy::{DEFAULT_MULTICAST, Direction, MAX_TESTS, MAX_WORKER, RuleDefinition};
use crate::policy_test::{
    CountedPackets, Expectation, Expected, ExpectedAction, ExpectedCount, ExpectedRule, PolicyTest,
    TestedPackets,
};

use super::groups::Groups;
use super::matches;
use super::reader::{Reader, Table, Value, entries, integer_of, nearest};
use super::rules::Rules;
use super::sets::{Sets, shortened};

/// The keys that say which packets a test is about; it has one of them.
const PACKETS: [&str; 4] = ["packet", "frame", "every", "capture"];
const PACKETS_HINT: &str =
    "write packet = \"dst=192.0.2.53,protocol=udp,dst_port=53\", or every = { dst_port = 53 }";
const EXPECTED_HINT: &str =
    "write expect = \"drop\", rule = \"NAME\", group = \"NAME\", host = true or worker = 0";
/// The longest name of a test, in bytes.
const MAX_TEST_NAME_BYTES: usize = 256;
/// The shortest frame: an Ethernet header.
const ETHERNET_HEADER_BYTES: usize = 14;

/// The definitions that tests name.
pub(super) struct TestNames<'p> {
    pub(super) groups: &'p Groups,
    pub(super) rules: &'p Rules,
    /// Whether the policy has `default_multicast`.
    pub(super) has_multicast_default: bool,
}

impl TestNames<'_> {
    /// All names of rules.
    fn rules(&self) -> impl Iterator<Item = &str> {
        let multicast = self.has_multicast_default.then_some(DEFAULT_MULTICAST);
        self.rules.list.iter().map(|rule| rule.name.as_str()).chain([DEFAULT_RULE]).chain(multicast)
    }

    /// The rule of that name; an unknown one is reported. A rule with errors is known, but there is none.
    fn rule(&self, reader: &mut Reader, name: &str, value: &Value<'_>) -> Option<ExpectedRule> {
        if self.rules().any(|known| known == name) {
            let named = self.rules.list.iter().find(|rule| rule.name == name);
            // The rules that one text becomes have the same place.
            let same =
                |rule: &&RuleDefinition| named.is_some_and(|named| named.name_place == rule.name_place);
            let mut rules: Vec<String> =
                self.rules.list.iter().filter(same).map(|rule| rule.name.clone()).collect();
            if rules.is_empty() {
                rules.push(name.to_owned());
            }
            return Some(ExpectedRule { name: name.to_owned(), rules });
        }
        if !self.rules.names.has(name) && reader.reports_unknown(name, self.rules()) {
            reader.error_lazy(value.span(), || {
                let hint = match nearest(name, self.rules()) {
                    Some(near) => ProblemHint::meant(name, near),
                    None => "write the name of a rule, or \"default\"".into(),
                };
                (format!("unknown rule `{}`", shortened(name)), "no such rule".to_owned(), hint)
            });
        }
        None
    }
}

/// Reads the `[[tests]]` of one file, whose captures are relative to `folder`, and adds them to `tests`.
pub(super) fn read(
    reader: &mut Reader,
    value: &Value<'_>,
    names: &TestNames<'_>,
    sets: &mut Sets,
    folder: &Path,
    tests: &mut Vec<PolicyTest>,
) {
    let Some(array) = value.get_ref().as_array() else {
        let label = format!("this is of type {}", value.get_ref().type_str());
        let hint = "write [[tests]], with two brackets on each side";
        return reader.error_with(value.span(), "`tests` must be a list of tables", label, hint);
    };
    if tests.len() + array.len() > MAX_TESTS {
        let message = format!("a policy has at most {MAX_TESTS} tests");
        return reader.error(value.span(), message, "too many");
    }
    for value in array {
        let Some(table) = reader.table(value, "a test") else { continue };
        let mut test = TestReader { reader, names, sets, folder };
        tests.extend(test.read(value, table));
    }
}

/// Reads one test.
struct TestReader<'r> {
    reader: &'r mut Reader,
    names: &'r TestNames<'r>,
    sets: &'r mut Sets,
    folder: &'r Path,
}

impl TestReader<'_> {
    fn read(&mut self, value: &Value<'_>, table: &Table<'_>) -> Option<PolicyTest> {
        self.reader.refuse_unknown_keys(table, keys::TEST, "a test");
        let before = self.reader.diagnostics.error_count();
        let name = table.get("name").and_then(|value| self.name(value));
        let words = [("ingress", Direction::Ingress), ("egress", Direction::Egress)];
        let direction = table
            .get("direction")
            .map_or(Some(Direction::Ingress), |value| matches::word(self.reader, value, "direction", &words));
        let packets = self.packets(value, table);
        let expected = self.expectation(table);
        let counts = table.get("counts").map(|value| self.counts(value)).unwrap_or_default();
        if table.get("counts").is_none() && !keys::EXPECTED.iter().any(|key| table.contains_key(*key)) {
            let message = "the test expects nothing";
            self.reader.error_with(value.span(), message, "this test", EXPECTED_HINT);
        }
        let (packets, place) = packets?;
        self.refuse_contradictions(table, &packets, direction);
        let is_right = self.reader.diagnostics.error_count() == before;
        is_right.then_some(PolicyTest { name, packets, direction: direction?, expected, counts, place })
    }

    fn name(&mut self, value: &Value<'_>) -> Option<String> {
        let name = self.reader.string(value, "`name`")?;
        if name.is_empty() || name.len() > MAX_TEST_NAME_BYTES || name.contains(char::is_control) {
            let message = "the test has an invalid name";
            let hint = format!("write 1 to {MAX_TEST_NAME_BYTES} bytes in one line");
            self.reader.error_with(value.span(), message, "invalid name", hint);
            return None;
        }
        Some(name.to_owned())
    }

    /// The packets of the test and their place.
    fn packets(
        &mut self,
        test: &Value<'_>,
        table: &Table<'_>,
    ) -> Option<(TestedPackets, crate::diagnostics::Place)> {
        let given: Vec<_> = PACKETS.iter().filter_map(|key| Some((*key, table.get(*key)?))).collect();
        let (key, value) = match given[..] {
            [given] => given,
            [] => {
                let message = "the test has no packets";
                self.reader.error_with(test.span(), message, "this test", PACKETS_HINT);
                return None;
            }
            [.., (second, value)] => {
                let message =
                    format!("a test has one of {}", PACKETS.map(|key| format!("`{key}`")).join(", "));
                let hint = format!("write another test for `{second}`");
                self.reader.error_with(value.span(), message, "one too many", hint);
                return None;
            }
        };
        let packets = match key {
            "every" => TestedPackets::Every(Box::new(matches::read(self.reader, value, self.sets)?)),
            "capture" => {
                let file = self.reader.string(value, "`capture`")?;
                if file.is_empty() {
                    let hint = "write the path of a pcap or pcapng file, relative to this file";
                    self.reader.error_with(value.span(), "`capture` names no file", "empty", hint);
                    return None;
                }
                TestedPackets::Capture(self.folder.join(file))
            }
            _ => TestedPackets::Packet(Box::new(self.packet(key, value)?)),
        };
        Some((packets, self.reader.place(value.span())))
    }

    /// One packet, by its fields or in hexadecimal.
    fn packet(&mut self, key: &str, value: &Value<'_>) -> Option<DeepKey> {
        let text = self.reader.string(value, &format!("`{key}`"))?;
        let read = if key == "packet" { key_of_text(text) } else { key_of_frame(text) };
        match read {
            Ok(key) => Some(key),
            Err(problem) => {
                let parts = problem.strip_suffix(')').and_then(|text| text.split_once(" (hint: "));
                let usual = "the notation is that of `steerd explain --packet` and --hex";
                let (message, hint) = parts.unwrap_or((&problem, usual));
                self.reader.error_with(
                    value.span(),
                    format!("not a packet: {message}"),
                    "not a packet",
                    hint,
                );
                None
            }
        }
    }

    fn expectation(&mut self, table: &Table<'_>) -> Expectation {
        Expectation {
            action: self.expected(table, "expect", |own, value| {
                matches::word(own.reader, value, "expect", &ExpectedAction::WORDS)
            }),
            rule: self.expected(table, "rule", |own, value| {
                let name = own.reader.string(value, "`rule`")?;
                own.names.rule(own.reader, name, value)
            }),
            group: self.expected(table, "group", |own, value| {
                let name = own.reader.string(value, "`group`")?;
                own.names.groups.find(own.reader, name, value)
            }),
            host: self.expected(table, "host", |own, value| own.reader.boolean(value, "`host`")),
            worker: self
                .expected(table, "worker", |own, value| own.reader.integer(value, "`worker`", 0, MAX_WORKER)),
        }
    }

    fn expected<T>(
        &mut self,
        table: &Table<'_>,
        key: &str,
        read: impl FnOnce(&mut Self, &Value<'_>) -> Option<T>,
    ) -> Option<Expected<T>> {
        let value = table.get(key)?;
        let place = self.reader.place(value.span());
        Some(Expected { value: read(self, value)?, place })
    }

    /// `counts`, in the order of the text.
    fn counts(&mut self, value: &Value<'_>) -> Vec<ExpectedCount> {
        let Some(table) = self.reader.table(value, "`counts`") else { return Vec::new() };
        self.reader.refuse_unknown_keys(table, keys::COUNTS, "`counts`");
        if table.is_empty() {
            let hint = "write counts = { drop = 12, rules = { NAME = 34 } }";
            self.reader.error_with(value.span(), "`counts` is empty", "no number", hint);
        }
        let mut counts = Vec::new();
        for (key, value) in entries(table) {
            let key: &str = key.get_ref();
            let action = ExpectedAction::WORDS.iter().find(|(word, _)| *word == key);
            match (key, action) {
                ("rules" | "groups", _) => self.counts_by_name(key, value, &mut counts),
                ("packets", _) => self.count(CountedPackets::All, value, &mut counts),
                ("host", _) => self.count(CountedPackets::Host, value, &mut counts),
                (_, Some((_, action))) => self.count(CountedPackets::Action(*action), value, &mut counts),
                (_, None) => {}
            }
        }
        counts
    }

    /// `rules` or `groups`: numbers by name.
    fn counts_by_name(&mut self, key: &str, value: &Value<'_>, counts: &mut Vec<ExpectedCount>) {
        let Some(table) = self.reader.table(value, &format!("`{key}`")) else { return };
        for (name, value) in entries(table) {
            let name: &str = name.get_ref();
            let counted = match key {
                "rules" => self.names.rule(self.reader, name, value).map(CountedPackets::Rule),
                _ => self.names.groups.find(self.reader, name, value).map(CountedPackets::Group),
            };
            if let Some(counted) = counted {
                self.count(counted, value, counts);
            }
        }
    }

    fn count(&mut self, counted: CountedPackets, value: &Value<'_>, counts: &mut Vec<ExpectedCount>) {
        match integer_of(value).map(u64::try_from) {
            Some(Ok(packets)) => {
                counts.push(ExpectedCount { counted, packets, place: self.reader.place(value.span()) });
            }
            Some(Err(_)) => {
                let hint = "write a number from 0";
                self.reader.error_with(value.span(), "a number of packets is negative", "this number", hint);
            }
            None => self.reader.wrong_type(value, "a number of packets", "a number"),
        }
    }

    /// Reports keys that have no meaning for these packets.
    fn refuse_contradictions(
        &mut self,
        table: &Table<'_>,
        packets: &TestedPackets,
        direction: Option<Direction>,
    ) {
        let is_capture = matches!(packets, TestedPackets::Capture(_));
        let mut refuse = |key: &str, message: &str, hint: &str| {
            if let Some(value) = table.get(key) {
                self.reader.error_with(value.span(), message, "not possible here", hint);
            }
        };
        if direction == Some(Direction::Egress) {
            for key in ["group", "host", "worker", "counts"] {
                let hint = "write expect = \"pass\" or \"drop\", or rule = \"NAME\"";
                refuse(key, "packets that the host sends reach no worker", hint);
            }
            if is_capture {
                let hint = "leave `direction` out";
                refuse("capture", "a capture has received packets", hint);
            }
        }
        if is_capture {
            let hint = "write a test of one packet of the capture";
            refuse("worker", "the packets of a capture go to many workers", hint);
        } else {
            refuse("counts", "`counts` is of the packets of a capture", "write capture = \"FILE\"");
        }
    }
}

fn key_of_frame(text: &str) -> Result<DeepKey, String> {
    let frame = frame_of_hex(text)?;
    if frame.len() < ETHERNET_HEADER_BYTES {
        let bytes = frame.len();
        return Err(format!(
            "{bytes} bytes are too few for an Ethernet header, and no rule sees such a frame"
        ));
    }
    Ok(DeepKey::of(&frame))
}
