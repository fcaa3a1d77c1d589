//! `[groups.NAME]`: the workers of a group and how packets are spread over them. Whether the workers exist is
//! checked when compiling, because a policy does not define them.

use std::collections::{BTreeMap, BTreeSet};

use packet::{HashFields, RssKey};
use program::GroupId;
use toml::Spanned;

use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::{
    GroupDefinition, MAX_GROUPS, MAX_TABLE_SIZE, MAX_WEIGHT, MAX_WORKER, WorkerShare, Workers,
};

use super::description;
use super::reader::{Key, Names, Reader, Table, Value, entries, integer_of, nearest};
use super::sets::shortened;
use super::sinks::Sinks;

/// The groups of all files.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) list: Vec<GroupDefinition>,
    /// The groups whose text has `symmetric = true`.
    pub(super) symmetry_asked: BTreeSet<GroupId>,
    index: BTreeMap<String, GroupId>,
    names: Names,
}

/// Returns whether a name is a word of an action or of `workers`; a group may not have it.
pub(super) fn is_reserved(name: &str) -> bool {
    matches!(name, "kernel" | "drop" | "pass" | "all")
}

impl Groups {
    /// Reads the `[groups]` of one file.
    pub(super) fn read(&mut self, reader: &mut Reader, value: &Value<'_>, sinks: &Sinks) {
        let Some(table) = reader.table(value, "`groups`") else { return };
        for (key, value) in entries(table) {
            let name: &str = key.get_ref();
            if is_reserved(name) {
                let message = format!("a group cannot be called `{name}`");
                let hint = "choose another name";
                reader.error_with(key.span(), message, "reserved word", hint);
            } else if reader.is_valid_name(name, key.span(), "the group")
                && self.names.is_new(reader, name, key.span(), "group")
            {
                if self.list.len() == MAX_GROUPS {
                    reader.error(key.span(), format!("there are more than {MAX_GROUPS} groups"), "too many");
                    return;
                }
                self.index.insert(name.to_owned(), GroupId::of(self.list.len()));
                // A group with errors counts as known, so that rules that name it are not reported, too.
                let asked =
                    value.get_ref().as_table().and_then(|table| table.get("symmetric")?.get_ref().as_bool());
                if asked == Some(true) {
                    self.symmetry_asked.insert(GroupId::of(self.list.len()));
                }
                self.list.push(group(reader, key, value, sinks));
            }
        }
    }

    /// Whether a group has that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// The group of that name; reports an unknown one.
    pub(super) fn find(&self, reader: &mut Reader, name: &str, value: &Value<'_>) -> Option<GroupId> {
        let found = self.index.get(name).copied();
        let names = || self.list.iter().map(|group| group.name.as_str());
        if found.is_none() && reader.reports_unknown(name, names()) {
            reader.error_lazy(value.span(), || {
                let hint = match nearest(name, names()) {
                    Some(near) => ProblemHint::meant(name, near),
                    None if self.list.is_empty() => {
                        format!("the policy has no groups: add [groups.{}]", shortened(name)).into()
                    }
                    None => format!("the groups are {}", first_names(names())).into(),
                };
                (format!("unknown group `{}`", shortened(name)), "no such group".to_owned(), hint)
            });
        }
        found
    }
}

/// The first names of a list, and how many more there are.
fn first_names<'n>(names: impl Iterator<Item = &'n str> + Clone) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<&str> = names.clone().take(SHOWN).collect();
    match names.count() {
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

fn group(reader: &mut Reader, key: &Key<'_>, value: &Value<'_>, sinks: &Sinks) -> GroupDefinition {
    let mut group = GroupDefinition {
        name: key.get_ref().to_string(),
        description: None,
        workers: Workers::All,
        has_queues: false,
        fields: HashFields::L3L4,
        key: RssKey::SYMMETRIC,
        symmetric: true,
        table_size: None,
        sinks: Vec::new(),
        place: reader.place(key.span()),
    };
    let Some(table) = reader.table(value, "a group") else { return group };
    reader.refuse_unknown_keys(table, keys::GROUP, "a group");
    group.description = description::read(reader, table);
    if let Some(value) = table.get("queues") {
        group.has_queues = true;
        refuse_beside_queues(reader, table);
        if let Some(queues) = numbers(reader, value, &QUEUES) {
            group.workers = queues;
        }
        return group;
    }
    if let Some(workers) = members(reader, key, table) {
        group.workers = workers;
    }
    if let Some(value) = table.get("hash") {
        group.fields = hash(reader, value).unwrap_or(group.fields);
    }
    choose_rss_key(reader, table, &mut group);
    if let Some(value) = table.get("table_size") {
        group.table_size = table_size(reader, value);
    }
    if let Some(value) = table.get("sinks") {
        group.sinks = sinks.list_of(reader, value);
    }
    if let (Workers::Listed(workers), size) = (&group.workers, group.table_size) {
        if workers.iter().all(|share| share.weight == 0) {
            let hint = "give at least one worker a weight above 0";
            reader.error_with(key.span(), "every worker of the group has weight 0", "no shares", hint);
        }
        if workers.len() > size.unwrap_or(MAX_TABLE_SIZE) as usize {
            let message = format!("{} workers do not fit into the table", workers.len());
            let span = table.get("table_size").map_or(key.span(), Spanned::span);
            reader.error_with(span, message, "too small", "every worker needs at least one entry");
        }
        if group.fields.is_empty() && workers.len() > 1 {
            let message = format!(
                "the group `{}` has no hash fields: only its first worker receives packets",
                group.name
            );
            let warning = group.place.warning(message, "this group").hint("write hash = \"l3l4\" to spread");
            reader.push(warning);
        }
    }
    group
}

/// `workers` and `weights`: one of them, or both.
fn members(reader: &mut Reader, key: &Key<'_>, table: &Table<'_>) -> Option<Workers> {
    let listed = match table.get("workers") {
        Some(value) => Some(workers(reader, value)?),
        None => None,
    };
    match (listed, table.get("weights")) {
        (None, None) => {
            let hint = "write workers = \"all\", workers = 2, workers = [0, 1], weights = { 0 = 2, 1 = 1 }, or queues of the \
                        interface for other programs: queues = [4]";
            reader.error_with(key.span(), "the group has no workers", "no workers", hint);
            None
        }
        (Some(listed), None) => Some(listed),
        (None, Some(value)) => Some(Workers::Listed(weights(reader, value)?)),
        (Some(Workers::All), Some(value)) => {
            let hint = "list the workers, or leave `workers` out";
            reader.error_with(value.span(), "weights need listed workers", "next to workers = \"all\"", hint);
            None
        }
        (Some(Workers::Listed(mut listed)), Some(value)) => {
            for share in weights(reader, value)? {
                match listed.iter_mut().find(|listed| listed.worker == share.worker) {
                    Some(listed) => listed.weight = share.weight,
                    None => {
                        let message = format!("worker {} has a weight but is not in the group", share.worker);
                        let error = share.place.error(message, "not among `workers`");
                        reader.push(error.hint("add it to `workers`, or leave `workers` out"));
                    }
                }
            }
            Some(Workers::Listed(listed))
        }
    }
}

/// `"all"`, a list of workers, or how many of the first workers.
fn workers(reader: &mut Reader, value: &Value<'_>) -> Option<Workers> {
    if value.get_ref().as_str() == Some("all") {
        return Some(Workers::All);
    }
    if integer_of(value).is_some() {
        let count = reader.integer(value, "the number of workers", 1, MAX_WORKER + 1)?;
        let share = |worker| WorkerShare { worker, weight: 1, place: reader.place(value.span()) };
        return Some(Workers::Listed((0..count).map(share).collect()));
    }
    numbers(reader, value, &WORKERS)
}

/// The words for the members of a group in diagnostics.
struct MemberWords {
    key: &'static str,
    one: &'static str,
    /// The values that a key may have.
    values: &'static str,
    none: &'static str,
    more: &'static str,
}

const WORKERS: MemberWords = MemberWords {
    key: "workers",
    one: "worker",
    values: "\"all\", a number or a list of numbers",
    none: "write workers = \"all\" or name at least one",
    more: "use `weights` to give it a larger share",
};

const QUEUES: MemberWords = MemberWords {
    key: "queues",
    one: "queue",
    values: "a list of numbers",
    none: "name at least one queue, like queues = [4]",
    more: "name each queue once",
};

/// A list of numbers, each once.
fn numbers(reader: &mut Reader, value: &Value<'_>, words: &MemberWords) -> Option<Workers> {
    let Some(array) = value.get_ref().as_array() else {
        let label = format!("this is of type {}", value.get_ref().type_str());
        let message = format!("`{}` must be {}", words.key, words.values);
        let hint = match words.key {
            "workers" => listed_workers(value),
            _ => "write a list such as [4, 5]".to_owned(),
        };
        reader.error_with(value.span(), message, label, hint);
        return None;
    };
    if array.is_empty() {
        let message = format!("the group has no {}", words.key);
        reader.error_with(value.span(), message, "empty", words.none);
        return None;
    }
    let mut listed: Vec<WorkerShare> = Vec::new();
    for item in array.iter() {
        let Some(worker) = reader.integer(item, &format!("a {}", words.one), 0, MAX_WORKER) else { continue };
        let share = WorkerShare { worker, weight: 1, place: reader.place(item.span()) };
        add(reader, &mut listed, share, words);
    }
    (!listed.is_empty()).then_some(Workers::Listed(listed))
}

/// Refuses the keys that are about workers.
fn refuse_beside_queues(reader: &mut Reader, table: &Table<'_>) {
    for (key, _) in entries(table) {
        if !matches!(&**key.get_ref(), "queues" | "description") {
            let message = format!("a group with `queues` cannot have `{}`", key.get_ref());
            let hint =
                "leave it out: no worker gets the packets, and the NIC spreads them by its own settings";
            reader.error_with(key.span(), message, "beside `queues`", hint);
        }
    }
}

/// A hint for `"4"`, `"0-3"` or `"0,1"`. A single number may be meant as the count of workers or as the
/// number of one.
fn listed_workers(value: &Value<'_>) -> String {
    /// The longest list that a hint writes out.
    const SHOWN: u32 = 16;
    let text = value.get_ref().as_str().unwrap_or_default().trim();
    if let Ok(number) = text.parse::<u32>() {
        let which = format!("[{number}] for worker number {number} alone, \"all\" for every worker");
        return match number {
            0 => format!("write {which}"),
            _ => format!("write {number} for so many workers, {which}"),
        };
    }
    let numbers: Option<Vec<u32>> = match text.split_once('-') {
        Some((low, high)) => match (low.trim().parse::<u32>(), high.trim().parse::<u32>()) {
            (Ok(low), Ok(high)) if high.saturating_sub(low) < SHOWN => Some((low..=high).collect()),
            _ => None,
        },
        None => {
            text.split([',', ' ']).filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect()
        }
    };
    match numbers {
        Some(numbers) if !numbers.is_empty() => format!("write {numbers:?}"),
        _ => "write \"all\", or a list such as [0, 1]".to_owned(),
    }
}

/// `{ 0 = 2, 1 = 1 }`, in the order of the workers' numbers.
fn weights(reader: &mut Reader, value: &Value<'_>) -> Option<Vec<WorkerShare>> {
    let table = reader.table(value, "`weights`")?;
    let mut listed: Vec<WorkerShare> = Vec::new();
    for (key, value) in entries(table) {
        let worker = key.get_ref().parse::<u32>().ok().filter(|worker| *worker <= MAX_WORKER);
        let Some(worker) = worker else {
            let hint = "weights = { 0 = 2, 1 = 1 } gives worker 0 twice the share of worker 1";
            reader.error_with(
                key.span(),
                "the key of a weight must be a worker's number",
                "not a worker",
                hint,
            );
            continue;
        };
        let Some(weight) = reader.integer(value, "a weight", 0, MAX_WEIGHT) else { continue };
        let share = WorkerShare { worker, weight, place: reader.place(key.span()) };
        add(reader, &mut listed, share, &WORKERS);
    }
    listed.sort_by_key(|share| share.worker);
    if listed.is_empty() && table.is_empty() {
        reader.error(value.span(), "the group has no workers", "empty");
    }
    (!listed.is_empty()).then_some(listed)
}

fn add(reader: &mut Reader, listed: &mut Vec<WorkerShare>, share: WorkerShare, words: &MemberWords) {
    if listed.iter().any(|other| other.worker == share.worker) {
        let message = format!("{} {} is listed twice", words.one, share.worker);
        let error = share.place.error(message, "again").hint(words.more);
        reader.push(error);
    } else if listed.len() < MAX_TABLE_SIZE as usize {
        listed.push(share);
    }
}

fn hash(reader: &mut Reader, value: &Value<'_>) -> Option<HashFields> {
    const PRESETS: &str =
        "write \"l3l4\", \"l3\", \"none\", or a list of fields such as [\"src\", \"src_port\"]";
    if let Some(array) = value.get_ref().as_array() {
        let mut fields = HashFields::empty();
        if array.is_empty() {
            reader.error_with(value.span(), "`hash` is an empty list", "no fields", "write hash = \"none\"");
        }
        for item in array.iter() {
            let Some(name) = reader.string(item, "a hash field") else { continue };
            match FIELDS.iter().find(|(known, _)| *known == name) {
                Some((_, field)) => fields |= *field,
                None => {
                    let names = || FIELDS.iter().map(|(name, _)| *name);
                    let hint = match nearest(name, names()) {
                        Some(near) => ProblemHint::meant(name, near),
                        None => format!("the fields are {}", names().collect::<Vec<_>>().join(", ")).into(),
                    };
                    reader.error_with(
                        item.span(),
                        format!("unknown hash field `{name}`"),
                        "no such field",
                        hint,
                    );
                }
            }
        }
        return Some(fields);
    }
    match value.get_ref().as_str() {
        Some("l3l4") => Some(HashFields::L3L4),
        Some("l3") => Some(HashFields::L3),
        Some("none") => Some(HashFields::empty()),
        Some(other) => {
            reader.error_with(value.span(), format!("unknown hash `{other}`"), "not a preset", PRESETS);
            None
        }
        None => {
            reader.wrong_type(value, "`hash`", "a preset or a list of fields");
            None
        }
    }
}

/// The names that `hash` may list: those of several fields, then those of one.
pub const FIELDS: [(&str, HashFields); 12] = [
    ("src", HashFields::SRC_IPV4.union(HashFields::SRC_IPV6)),
    ("dst", HashFields::DST_IPV4.union(HashFields::DST_IPV6)),
    ("src_port", HashFields::SRC_PORT_TCP.union(HashFields::SRC_PORT_UDP)),
    ("dst_port", HashFields::DST_PORT_TCP.union(HashFields::DST_PORT_UDP)),
    ("src_ipv4", HashFields::SRC_IPV4),
    ("dst_ipv4", HashFields::DST_IPV4),
    ("src_ipv6", HashFields::SRC_IPV6),
    ("dst_ipv6", HashFields::DST_IPV6),
    ("src_port_tcp", HashFields::SRC_PORT_TCP),
    ("dst_port_tcp", HashFields::DST_PORT_TCP),
    ("src_port_udp", HashFields::SRC_PORT_UDP),
    ("dst_port_udp", HashFields::DST_PORT_UDP),
];

/// Whether each source field is hashed together with its destination field, without which no key is
/// symmetric.
fn is_two_sided(fields: HashFields) -> bool {
    [HashFields::IPV4, HashFields::IPV6, HashFields::TCP, HashFields::UDP]
        .into_iter()
        .all(|pair| fields.contains(pair) || !fields.intersects(pair))
}

/// Whether the key repeats every 16 bits. The Toeplitz hash is the exclusive or of key windows at the
/// positions of set bits. If the key has a period of 16 bits, exchanging parts of the input whose distance is
/// a multiple of 16 bits, such as addresses and ports, does not change it: both directions have the same
/// hash.
fn has_short_period(key: &RssKey) -> bool {
    key.0.chunks(2).all(|chunk| *chunk == key.0[..2])
}

/// Reads `symmetric` and `key`. The default is symmetric unless the hash fields are not two-sided.
fn choose_rss_key(reader: &mut Reader, table: &Table<'_>, group: &mut GroupDefinition) {
    let asked = table.get("symmetric").and_then(|value| reader.boolean(value, "`symmetric`"));
    let given = table.get("key").and_then(|value| rss_key(reader, value));
    group.key = match (given, asked) {
        (Some(key), _) => key,
        (None, Some(false)) => RssKey::MICROSOFT,
        (None, _) if is_two_sided(group.fields) => RssKey::SYMMETRIC,
        (None, _) => RssKey::MICROSOFT,
    };
    group.symmetric = is_two_sided(group.fields) && has_short_period(&group.key);
    if asked == Some(true) && !group.symmetric {
        let span = table.get("symmetric").map_or(0..0, Spanned::span);
        let (message, hint) = match is_two_sided(group.fields) {
            true => ("this key is not symmetric", "leave `key` out, or repeat the same two bytes in it"),
            false => ("these hash fields cannot be symmetric", "hash both the source and the destination"),
        };
        reader.error_with(span, message, "not possible here", hint);
    }
}

fn rss_key(reader: &mut Reader, value: &Value<'_>) -> Option<RssKey> {
    match reader.string(value, "`key`")? {
        "microsoft" => Some(RssKey::MICROSOFT),
        "symmetric" => Some(RssKey::SYMMETRIC),
        text => {
            let key = text.parse::<RssKey>().ok();
            if key.is_none() {
                let hint = "write 40 bytes in hexadecimal, \"microsoft\" or \"symmetric\"";
                reader.error_with(value.span(), "this is not an RSS key", "not 40 bytes", hint);
            }
            key
        }
    }
}

fn table_size(reader: &mut Reader, value: &Value<'_>) -> Option<u32> {
    let size = reader.integer(value, "`table_size`", 1, MAX_TABLE_SIZE)?;
    if size.is_power_of_two() {
        return Some(size);
    }
    let up = size.next_power_of_two();
    let hint = format!("write {} or {up}", up / 2);
    reader.error_with(value.span(), "`table_size` must be a power of two", "not a power of two", hint);
    None
}
