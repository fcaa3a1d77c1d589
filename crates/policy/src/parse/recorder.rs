//! `[recorder]`: the packets that workers keep in memory, and the conditions under which they are written to
//! a file.

use program::{
    DEFAULT_RULE, RECORDER_RULES_MAX, RECORDER_TRIGGERS_MAX, RecorderRing, RecorderSpec, RecorderTrigger,
};

use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::{RecorderDefinition, RuleDefinition};

use super::reader::{Key, Names, Reader, Table, Value, nearest};
use super::sets::shortened;
use super::sinks::Sinks;

/// The units of `memory`.
const UNITS: [(&str, u64); 2] = [("MiB", 1 << 20), ("GiB", 1 << 30)];
const MEMORY_HINT: &str = "write a size from \"1 MiB\" to \"1024 GiB\"";
const TRIGGER_HINT: &str =
    "write `sink` with `drops_per_second`, `rule` with `packets_per_second`, or worker_stalls = true";

/// The names that a recorder may refer to.
#[derive(Clone, Copy)]
pub(super) struct RecorderNames<'p> {
    pub(super) rules: &'p [RuleDefinition],
    /// The names of all rules that the text has, those with errors included.
    pub(super) written: &'p Names,
    pub(super) sinks: &'p Sinks,
}

/// Reads the table.
pub(super) fn read(
    reader: &mut Reader,
    key: &Key<'_>,
    value: &Value<'_>,
    names: RecorderNames<'_>,
) -> Option<RecorderDefinition> {
    let table = reader.table(value, "`recorder`")?;
    reader.refuse_unknown_keys(table, keys::RECORDER, "`recorder`");
    let memory_bytes = memory(reader, key, table);
    let (least, most) = RecorderRing::SNAP_BYTES.into_inner();
    let snap_bytes = match table.get("snap") {
        Some(value) => reader.integer(value, "`snap`", least, most),
        None => Some(RecorderRing::SNAP_BYTES_DEFAULT),
    };
    let rules = match table.get("rules") {
        Some(value) => rules(reader, value, names).map(Some),
        None => Some(None),
    };
    let triggers = match table.get("triggers") {
        Some(value) => triggers(reader, value, names),
        None => Some(Vec::new()),
    };
    let ring = RecorderRing { memory_bytes: memory_bytes?, snap_bytes: snap_bytes? };
    let recorder = RecorderSpec { ring, rules: rules?, triggers: triggers? };
    Some(RecorderDefinition { recorder, place: reader.place(key.span()) })
}

fn memory(reader: &mut Reader, key: &Key<'_>, table: &Table<'_>) -> Option<u64> {
    let Some(value) = table.get("memory") else {
        reader.error_with(key.span(), "`recorder` has no `memory`", "of no size", MEMORY_HINT);
        return None;
    };
    let text = reader.string(value, "`memory`")?;
    let with_unit = |(unit, bytes): (&str, u64)| {
        let number = text.strip_suffix(unit)?.trim_end();
        let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
        // A number beyond 64 bits is out of range as well.
        is_number.then(|| number.parse::<u64>().ok().and_then(|number| number.checked_mul(bytes)))
    };
    let Some(bytes) = UNITS.into_iter().find_map(with_unit) else {
        let message = format!("`{}` is not a size", shortened(text));
        reader.error_with(value.span(), message, "not a number of MiB or GiB", MEMORY_HINT);
        return None;
    };
    let bytes = bytes.filter(|bytes| RecorderRing::MEMORY_BYTES.contains(bytes));
    if bytes.is_none() {
        reader.error_with(value.span(), "`memory` is out of range", "this size", MEMORY_HINT);
    }
    bytes
}

fn rules(reader: &mut Reader, value: &Value<'_>, names: RecorderNames<'_>) -> Option<Vec<String>> {
    let items = reader.array(value, "`rules`")?;
    if items.len() > RECORDER_RULES_MAX {
        let hint = "leave `rules` out to record all packets that workers decide";
        let message = format!("`rules` names more than {RECORDER_RULES_MAX} rules");
        reader.error_with(value.span(), message, "too many", hint);
        return None;
    }
    let read: Vec<Option<String>> = items.iter().map(|item| rule(reader, item, names)).collect();
    let list: Vec<String> = read.into_iter().collect::<Option<_>>()?;
    if list.is_empty() {
        let hint = "name a rule, or leave `rules` out to record all packets that workers decide";
        reader.error_with(value.span(), "`rules` names no rule", "no packets", hint);
        return None;
    }
    Some(list)
}

/// The name of a rule.
fn rule(reader: &mut Reader, value: &Value<'_>, names: RecorderNames<'_>) -> Option<String> {
    let name = reader.string(value, "the name of a rule")?;
    let known = || names.rules.iter().map(|rule| rule.name.as_str()).chain([DEFAULT_RULE]);
    if known().any(|known| known == name) || names.written.has(name) {
        return Some(name.to_owned());
    }
    if reader.reports_unknown(name, known()) {
        reader.error_lazy(value.span(), || {
            let hint = match nearest(name, known()) {
                Some(near) => ProblemHint::meant(name, near),
                None => "write the name of a rule, or \"default\"".into(),
            };
            (format!("unknown rule `{}`", shortened(name)), "no such rule".to_owned(), hint)
        });
    }
    None
}

fn triggers(
    reader: &mut Reader,
    value: &Value<'_>,
    names: RecorderNames<'_>,
) -> Option<Vec<RecorderTrigger>> {
    let list = reader.array(value, "`triggers`")?;
    if list.len() > RECORDER_TRIGGERS_MAX {
        let message = format!("there are more than {RECORDER_TRIGGERS_MAX} triggers");
        reader.error(value.span(), message, "too many");
        return None;
    }
    let read: Vec<Option<RecorderTrigger>> = list.iter().map(|item| trigger(reader, item, names)).collect();
    read.into_iter().collect()
}

fn trigger(reader: &mut Reader, value: &Value<'_>, names: RecorderNames<'_>) -> Option<RecorderTrigger> {
    let table = reader.table(value, "a trigger")?;
    reader.refuse_unknown_keys(table, keys::TRIGGER, "a trigger");
    let rate = |reader: &mut Reader, key: &str| {
        let value = table.get(key)?;
        reader.integer(value, &format!("`{key}`"), 1, u32::MAX)
    };
    let given: Vec<&str> =
        keys::TRIGGER.iter().map(|key| key.name).filter(|key| table.contains_key(*key)).collect();
    match given[..] {
        ["sink", "drops_per_second"] => {
            let sink = names.sinks.named(reader, table.get("sink")?);
            Some(RecorderTrigger::SinkDrops { per_second: rate(reader, "drops_per_second")?, sink: sink? })
        }
        ["rule", "packets_per_second"] => {
            let rule = rule(reader, table.get("rule")?, names);
            Some(RecorderTrigger::RulePackets {
                per_second: rate(reader, "packets_per_second")?,
                rule: rule?,
            })
        }
        ["worker_stalls"] => {
            let value = table.get("worker_stalls")?;
            let is_on = reader.boolean(value, "`worker_stalls`")?;
            if !is_on {
                reader.error_with(value.span(), "the trigger is off", "false", "leave the trigger out");
            }
            is_on.then_some(RecorderTrigger::WorkerStalls)
        }
        _ => {
            reader.error_with(
                value.span(),
                "the trigger has no single condition",
                "this trigger",
                TRIGGER_HINT,
            );
            None
        }
    }
}
