//! A model as a file: each row with a comment on how it is known. `device_model` reads it.

use std::fmt::Write as _;

use device_model::{DeviceModel, Emulation, LimitRow, Origin, RefusalRow};

use crate::model::{FoundModel, KEYS, Note, errno_name, feature_name, limit_name, row, word};

/// The column of comments.
const COMMENT: usize = 40;

/// The file of a model.
pub fn text(found: &FoundModel) -> String {
    let FoundModel { profile, fallback, .. } = found;
    let mut out = format!(
        "# A device model, found by trying (`steerd devices --probe`). The keys are explained in\n\
         # docs/reference/device-models.md. What could not be tried is as in the model {}, and says so.\n\
         name = {}\npersonality = {}\n",
        quoted(fallback),
        quoted(&profile.name),
        quoted(&word(&profile.personality)),
    );
    for key in KEYS {
        // A limit that is not there, and a table that no device of the kind has, have no row.
        let line = value(profile, key).map(|value| format!("{key} = {value}"));
        let comment = found.notes.get(key).map(|note| comment(note, fallback)).unwrap_or_default();
        match line {
            Some(line) => push(&mut out, &line, &comment),
            None if comment.is_empty() => {}
            None => push(&mut out, &format!("# no {key}"), comment.trim_start_matches("# ")),
        }
    }
    let refusals = profile.refusals.iter().map(|refusal| (row(refusal.feature), refusal_line(refusal)));
    list(&mut out, "refusals", refusals, found);
    let dependences = profile.dependences.iter().map(|dependence| {
        let line = format!(
            "{{ feature = {}, capability = {}, source = {} }}",
            quoted(&feature_name(dependence.feature)),
            quoted(&dependence.capability),
            quoted(&dependence.source)
        );
        (String::new(), line)
    });
    list(&mut out, "dependences", dependences, found);
    let limits =
        profile.limits.iter().map(|row| (format!("limits.{}", limit_name(row.limit)), limit_line(row)));
    list(&mut out, "limits", limits, found);
    works(&mut out, found);
    emulation(&mut out, profile);
    origin(&mut out, &profile.device);
    out
}

/// The value of a key that is not a list.
fn value(profile: &DeviceModel, key: &str) -> Option<String> {
    let number = |limit: Option<u32>| limit.map(|limit| limit.to_string());
    match key {
        "priorities" => Some(profile.priorities.to_string()),
        "max_specs" => Some(profile.max_specs.to_string()),
        "tag_bits" => Some(profile.tag_bits.to_string()),
        "max_flows" => number(profile.max_flows),
        "max_shapes" => number(profile.max_shapes),
        "priority_table" => profile.priority_table.map(|table| {
            let device_model::PriorityTable { entries, groups, group_entries } = table;
            format!("{{ entries = {entries}, groups = {groups}, group_entries = {group_entries} }}")
        }),
        "max_groups" => number(profile.max_groups),
        "ns_per_group" => number(profile.ns_per_group),
        "max_copies" => number(profile.max_copies),
        "multicast_ignores_priority" => Some(profile.multicast_ignores_priority.to_string()),
        "hash_field_exclusive" => Some(profile.hash_field_exclusive.to_string()),
        "hash_field_pairs" => Some(profile.hash_field_pairs.to_string()),
        "max_table" => Some(profile.max_table.to_string()),
        "table_consecutive" => Some(profile.table_consecutive.to_string()),
        "max_tables" => number(profile.max_tables),
        "max_queues" => number(profile.max_queues),
        "max_receives" => number(profile.max_receives),
        "max_counters" => number(profile.max_counters),
        "roce_port" => profile.roce_port.map(|port| port.to_string()),
        _ => None,
    }
}

fn comment(note: &Note, fallback: &str) -> String {
    let words = match note {
        Note::Tried(words) => words.clone(),
        Note::Reported(words) => format!("reported by the device; {words}"),
        Note::Fallback(why) => format!("not found by trying ({why}): as in the model {}", quoted(fallback)),
        Note::Follows(why) => format!("follows: {why}"),
    };
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if words.is_empty() { words } else { format!("# {words}") }
}

fn push(out: &mut String, line: &str, comment: &str) {
    let _ = match comment {
        "" => writeln!(out, "{line}"),
        comment => writeln!(out, "{line:<COMMENT$} {comment}"),
    };
}

fn list(out: &mut String, key: &str, rows: impl Iterator<Item = (String, String)>, found: &FoundModel) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "\n{key} = [");
    for (key, line) in rows {
        let comment = found.notes.get(&key).map(|note| comment(note, &found.fallback)).unwrap_or_default();
        push(out, &format!("    {line},"), &comment);
    }
    out.push_str("]\n");
}

/// Writes the features that are not refused, as far as that was not seen.
fn works(out: &mut String, found: &FoundModel) {
    let unseen = device_model::Feature::ALL.into_iter().filter(|feature| found.profile.allows(*feature));
    let unseen = unseen.filter_map(|feature| {
        let comment = comment(found.notes.get(&row(feature))?, &found.fallback);
        (!comment.is_empty())
            .then(|| format!("# {}: {}\n", feature_name(feature), comment.trim_start_matches("# ")))
    });
    let lines: String = unseen.collect();
    if !lines.is_empty() {
        let _ = write!(out, "\n# Not refused:\n{lines}");
    }
}

fn refusal_line(RefusalRow { feature, errno, source }: &RefusalRow) -> String {
    let (feature, errno) = (quoted(&feature_name(*feature)), quoted(&errno_name(*errno)));
    format!("{{ feature = {feature}, errno = {errno}, source = {} }}", quoted(source))
}

fn limit_line(LimitRow { limit, errno, source }: &LimitRow) -> String {
    let (limit, errno) = (quoted(&limit_name(*limit)), quoted(&errno_name(*errno)));
    format!("{{ limit = {limit}, errno = {errno}, source = {} }}", quoted(source))
}

/// The keys that are not as in the personality, from which the two that are about a model's own numbers are
/// not taken over.
fn emulation(out: &mut String, profile: &DeviceModel) {
    let base = DeviceModel::of_base(profile.personality);
    let values = |emulation: &Emulation| serde_json::to_value(emulation).unwrap_or_default();
    let base = Emulation { firmware_sets_max_table: false, hashes_any_fields: false, ..base.emulation };
    let (own, base) = (values(&profile.emulation), values(&base));
    let own = own.as_object().into_iter().flatten();
    let other: String = own
        .filter(|(key, value)| base.get(key.as_str()) != Some(*value) && !value.is_null())
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    if !other.is_empty() {
        let _ = write!(out, "\n[emulation]\n{other}");
    }
}

/// Documentation.
fn origin(out: &mut String, origin: &Origin) {
    let Origin { name, driver, firmware, libibverbs, date, capabilities, masks_refused } = origin;
    out.push_str("\n# Where this was found. Nothing depends on it.\n[device]\n");
    let rows = [
        ("name", name),
        ("driver", driver),
        ("firmware", firmware),
        ("libibverbs", libibverbs),
        ("date", date),
    ];
    for (key, value) in rows {
        let _ = writeln!(out, "{key} = {}", quoted(value));
    }
    for (key, words) in [("capabilities", capabilities), ("masks_refused", masks_refused)] {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(out, "{key} = [{}]", words.join(", "));
    }
}

/// A string of TOML: those of JSON are, but for the one control character that JSON leaves.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    serde_json::Value::String(plain).to_string()
}
