//! Rule sets as nft prints them, and as commands that add them: tables, chains, sets, maps and rules, and the
//! base chains that received packets meet, in their order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use program::RangeSet;
use serde_json::{Map, Value};

use super::super::{WrongFormat, line_number, quoted};
use super::values::Left;

/// Family, table and name of a chain or a set.
pub(super) type Name<'v> = (&'v str, &'v str, &'v str);

pub(super) type Rule<'v> = &'v Map<String, Value>;

/// The place of a hook in the way of a packet to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hook {
    Ingress,
    Prerouting,
    Input,
    Forward,
    Other,
}

/// A chain that a hook calls.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) hook: Hook,
    /// Lower ones come first.
    pub(super) priority: i64,
    pub(super) drops: bool,
    pub(super) is_nat: bool,
    /// The interfaces of an ingress chain.
    pub(super) devices: Vec<String>,
}

#[derive(Default)]
pub(super) struct Chain<'v> {
    pub(super) base: Option<Base>,
    pub(super) is_listed: bool,
    pub(super) rules: Vec<Rule<'v>>,
}

/// A set or a map.
#[derive(Default)]
struct Elements<'v> {
    list: Vec<&'v Value>,
    /// Whether packets add elements or time removes them.
    changes: bool,
}

#[derive(Default)]
pub(super) struct Ruleset<'v> {
    /// Families and names, and whether each is dormant.
    pub(super) tables: BTreeMap<(&'v str, &'v str), Vec<String>>,
    pub(super) chains: BTreeMap<Name<'v>, Chain<'v>>,
    sets: BTreeMap<Name<'v>, Elements<'v>>,
    /// The lowest priority of a flow table.
    pub(super) flow_table: Option<i64>,
    /// Rules and pairs of verdict maps.
    pub(super) rules: usize,
}

/// The objects of the documents of a text.
///
/// # Errors
/// The text is not JSON of nft.
pub(super) fn objects_of(text: &str) -> Result<Vec<Value>, WrongFormat> {
    const HINT: &str = "(hint: use nft -j list ruleset)";
    let mut objects = Vec::new();
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    // The end of the documents so far.
    let mut end = 0;
    while let Some(document) = documents.next() {
        let wrong = |message: String| WrongFormat { line: line_behind(text, end), message };
        let mut document = document.map_err(|error| {
            let line = u32::try_from(error.line()).unwrap_or(u32::MAX).max(1);
            let what = if error.is_eof() { "cut off" } else { "not JSON" };
            WrongFormat { line, message: format!("{what} {HINT}: {error}") }
        })?;
        let Some(Value::Array(list)) = document.get_mut("nftables").map(Value::take) else {
            return Err(wrong(format!("not a rule set of nft: it has no list `nftables` {HINT}")));
        };
        for object in list {
            match object.as_object().and_then(|object| object.iter().next()) {
                Some((command, body)) if matches!(command.as_str(), "add" | "create") => {
                    if body.pointer("/rule/index").is_some() {
                        return Err(wrong(format!(
                            "the command `{command}` puts a rule at an index, which is not known {HINT}"
                        )));
                    }
                    objects.push(body.clone());
                }
                Some((command, body)) if command == "flush" && body.get("ruleset").is_some() => {
                    objects.clear();
                }
                Some((command, _)) if is_command(command) => {
                    return Err(wrong(format!(
                        "the command `{}` changes a rule set, which is not known {HINT}",
                        quoted(command)
                    )));
                }
                Some(_) => objects.push(object),
                None => {
                    return Err(wrong(format!(
                        "not a rule set of nft: {} {HINT}",
                        quoted(&object.to_string())
                    )));
                }
            }
        }
        end = documents.byte_offset();
    }
    if end == 0 {
        return Err(WrongFormat { line: 0, message: format!("empty {HINT}") });
    }
    Ok(objects)
}

/// The line of the document behind others; 0 for the first one.
fn line_behind(text: &str, end: usize) -> u32 {
    if end == 0 {
        return 0;
    }
    let start = text.len() - text.get(end..).unwrap_or_default().trim_start().len();
    line_number(text.get(..start).unwrap_or_default().matches('\n').count())
}

fn is_command(name: &str) -> bool {
    matches!(name, "insert" | "replace" | "delete" | "destroy" | "flush" | "rename" | "reset" | "list")
}

impl<'v> Ruleset<'v> {
    pub(super) fn of(objects: &'v [Value]) -> Self {
        let mut ruleset = Self::default();
        for object in objects {
            let Some((kind, Value::Object(body))) =
                object.as_object().and_then(|object| object.iter().next())
            else {
                continue;
            };
            let text = |key: &str| body.get(key).and_then(Value::as_str);
            let (Some(family), table) = (text("family"), text("table").unwrap_or_default()) else { continue };
            match (kind.as_str(), text("name"), text("chain")) {
                ("table", Some(name), _) => {
                    ruleset.tables.insert((family, name), words(body.get("flags")));
                }
                ("chain", Some(name), _) => {
                    let chain = ruleset.chains.entry((family, table, name)).or_default();
                    chain.base = base_of(body);
                    chain.is_listed = true;
                }
                ("set" | "map" | "element", Some(name), _) => {
                    let set = ruleset.sets.entry((family, table, name)).or_default();
                    set.changes |=
                        words(body.get("flags")).iter().any(|flag| flag == "dynamic" || flag == "timeout");
                    set.list.extend(body.get("elem").and_then(Value::as_array).into_iter().flatten());
                }
                ("flowtable", _, _) => {
                    let own = priority_of(body);
                    ruleset.flow_table = Some(ruleset.flow_table.map_or(own, |first| first.min(own)));
                }
                ("rule", _, Some(chain)) => {
                    ruleset.rules += 1 + pairs_in(body);
                    ruleset.chains.entry((family, table, chain)).or_default().rules.push(body);
                }
                _ => {}
            }
        }
        ruleset.mark_filled();
        ruleset
    }

    /// Marks the sets and maps that rules write to, whose flags nft does not always list.
    fn mark_filled(&mut self) {
        for ((family, table, _), chain) in &self.chains {
            for (kind, body) in chain.rules.iter().flat_map(|rule| statements(rule)) {
                let key = if kind == "meter" { "name" } else { kind };
                let is_writing = matches!(kind, "set" | "map" | "meter");
                let named = [body.get(key), body.get("set")].into_iter().flatten().find_map(Value::as_str);
                let set = named.filter(|_| is_writing).map(|name| name.trim_start_matches('@'));
                if let Some(elements) = set.and_then(|set| self.sets.get_mut(&(*family, *table, set))) {
                    elements.changes = true;
                }
            }
        }
    }

    /// The sets of a table.
    pub(super) fn sets_of(&self, name: Name<'v>) -> BTreeMap<&'v str, (&[&'v Value], bool)> {
        let own = self.sets.iter().filter(|((family, table, _), _)| (*family, *table) == (name.0, name.1));
        own.map(|((_, _, set), elements)| (*set, (&*elements.list, elements.changes))).collect()
    }

    /// Flags of the table of a chain that are no harmless ones.
    pub(super) fn inactive(&self, name: Name<'v>) -> Option<&str> {
        let flags = self.tables.get(&(name.0, name.1))?;
        flags.iter().map(String::as_str).find(|flag| !matches!(*flag, "owner" | "persist"))
    }

    /// Whether a rule of the chain, or of one that it calls, has a statement of these kinds, or one whose
    /// kind nft does not print.
    pub(super) fn has(&self, name: Name<'v>, kinds: &[&str]) -> bool {
        let (mut seen, mut left) = (BTreeSet::from([name]), vec![name]);
        while let Some(name) = left.pop() {
            let Some(chain) = self.chains.get(&name) else { return true };
            for rule in &chain.rules {
                for (kind, body) in statements(rule) {
                    if may_be(kind, body, kinds) {
                        return true;
                    }
                    let verdicts = match kind {
                        "vmap" => self.verdicts_of(name, body),
                        _ => vec![(kind, body)],
                    };
                    for (kind, body) in verdicts {
                        if kinds.contains(&kind) {
                            return true;
                        }
                        let target = body.get("target").and_then(Value::as_str);
                        if let Some(target) = target.filter(|_| matches!(kind, "jump" | "goto")) {
                            let target = (name.0, name.1, target);
                            if seen.insert(target) {
                                left.push(target);
                            }
                        }
                    }
                }
            }
        }
        false
    }

    /// Returns whether a statement of any chain is of these kinds, or may be.
    pub(super) fn uses(&self, kinds: &[&str]) -> bool {
        let is_listed = |(family, table, _): &Name<'v>| self.tables.contains_key(&(*family, *table));
        !self.chains.keys().all(is_listed)
            || self
                .chains
                .values()
                .flat_map(|chain| &chain.rules)
                .flat_map(|rule| statements(rule))
                .any(|(kind, body)| may_be(kind, body, kinds))
    }

    /// The verdicts of a map.
    fn verdicts_of<'r>(&'r self, name: Name<'v>, map: &'r Value) -> Vec<(&'r str, &'r Value)> {
        let pairs: Vec<&Value> = match map.get("data").and_then(Value::as_str) {
            Some(named) => {
                let key = (name.0, name.1, named.trim_start_matches('@'));
                self.sets.get(&key).map(|set| set.list.clone()).unwrap_or_default()
            }
            None => map.pointer("/data/set").and_then(Value::as_array).into_iter().flatten().collect(),
        };
        let verdict = |pair: &'r Value| pair.get(1)?.as_object()?.iter().next();
        pairs.into_iter().filter_map(verdict).map(|(kind, body)| (kind.as_str(), body)).collect()
    }
}

/// A word, or a list of words.
fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(word)) => vec![word.clone()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// The hook of a chain, if it has one.
fn base_of(chain: &Map<String, Value>) -> Option<Base> {
    let text = |key: &str| chain.get(key).and_then(Value::as_str);
    let hook = match text("hook")? {
        "ingress" => Hook::Ingress,
        "prerouting" => Hook::Prerouting,
        "input" => Hook::Input,
        "forward" => Hook::Forward,
        _ => Hook::Other,
    };
    Some(Base {
        hook,
        priority: priority_of(chain),
        // Chains of nat see only the first packet of a connection.
        drops: text("policy") == Some("drop") && text("type") != Some("nat"),
        is_nat: text("type") == Some("nat"),
        devices: words(chain.get("dev").or_else(|| chain.get("devices"))),
    })
}

/// The priority of a chain or a flow table.
fn priority_of(object: &Map<String, Value>) -> i64 {
    object.get("prio").and_then(Value::as_i64).unwrap_or(0)
}

/// The number of pairs in the maps of a rule.
fn pairs_in(rule: Rule<'_>) -> usize {
    let maps = statements(rule).filter(|(kind, _)| *kind == "vmap");
    maps.filter_map(|(_, map)| map.pointer("/data/set")?.as_array()).map(Vec::len).sum()
}

/// The kind of a statement that nft prints as text.
pub(super) const TEXT: &str = "";
/// The kind of a statement that sets the zone of connection tracking.
pub(super) const ZONE: &str = "ct zone";

/// Whether a statement is of one of these kinds, or may be.
fn may_be(kind: &str, body: &Value, kinds: &[&str]) -> bool {
    match kind {
        TEXT => true,
        "xt" if body.get("type").and_then(Value::as_str) == Some("match") => false,
        "xt" => match body.get("name").and_then(Value::as_str) {
            Some(target) => kinds_of_target(target).iter().any(|kind| kinds.contains(kind)),
            // Some versions of nft do not print it.
            None => true,
        },
        "mangle" if body.pointer("/key/ct/key").and_then(Value::as_str) == Some("zone") => {
            kinds.contains(&ZONE)
        }
        kind => kinds.contains(&kind),
    }
}

/// The statements that a target of iptables stands for (iptables-extensions(8)).
fn kinds_of_target(target: &str) -> &'static [&'static str] {
    match target {
        "MASQUERADE" => &["masquerade"],
        "SNAT" | "SNPT" => &["snat"],
        "DNAT" | "DNPT" => &["dnat"],
        "NETMAP" => &["dnat", "snat"],
        "REDIRECT" => &["redirect"],
        "TPROXY" => &["tproxy"],
        "NFQUEUE" => &["queue"],
        "NOTRACK" => &["notrack"],
        "CT" => &["notrack", "ct helper", "ct expectation", ZONE],
        _ => &[],
    }
}

/// The statements of a rule, each with its kind.
pub(super) fn statements(rule: Rule<'_>) -> impl Iterator<Item = (&str, &Value)> {
    let list = match rule.get("expr") {
        Some(Value::Array(list)) => list.as_slice(),
        Some(other) => std::slice::from_ref(other),
        None => &[],
    };
    list.iter().map(|statement| match statement.as_object().and_then(|object| object.iter().next()) {
        Some((kind, body)) => (kind.as_str(), body),
        None => (TEXT, statement),
    })
}

/// A set that was converted for a key.
struct NamedSet {
    name: String,
    ranges: Arc<RangeSet<u128>>,
    items: Vec<String>,
}

/// The named sets of the table of a chain, and those that were converted.
#[derive(Default)]
pub(super) struct Sets<'v> {
    table: (&'v str, &'v str),
    own: BTreeMap<&'v str, (Vec<&'v Value>, bool)>,
    /// The known sets, by key, family, table and name in nftables.
    known: RefCell<BTreeMap<(&'static str, String), NamedSet>>,
}

impl<'v> Sets<'v> {
    /// Continues with a chain of another table; sets that were converted stay.
    pub(super) fn enter(&mut self, ruleset: &Ruleset<'v>, name: Name<'v>) {
        if self.table != (name.0, name.1) {
            self.table = (name.0, name.1);
            let own = ruleset.sets_of(name);
            self.own =
                own.into_iter().map(|(set, (list, changes))| (set, (list.to_vec(), changes))).collect();
        }
    }

    pub(super) fn elements(&self, set: &str) -> Option<Vec<&'v Value>> {
        self.own.get(set).map(|(list, _)| list.clone())
    }

    /// The name of the set on the right side of a comparison, if its elements come and go.
    pub(super) fn expiring<'t>(&self, right: &'t Value) -> Option<&'t str> {
        let set = right.as_str()?.strip_prefix('@')?;
        self.own.get(set).filter(|(_, changes)| *changes).map(|_| set)
    }

    /// A set for values of a key: its name in the policy, its values, and whether they stay.
    pub(super) fn named(
        &self,
        set: &str,
        left: &Left,
    ) -> Result<(String, Arc<RangeSet<u128>>, bool), String> {
        let Some((elements, changes)) = self.own.get(set) else {
            return Err(format!("there is no set {}", quoted(set)));
        };
        let mut known = self.known.borrow_mut();
        let key = (left.key, format!("{} {} {set}", self.table.0, self.table.1));
        if let Some(known) = known.get(&key) {
            return Ok((known.name.clone(), Arc::clone(&known.ranges), !changes));
        }
        let ranges = Arc::new(left.items(elements.iter().copied())?);
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let word = |text: &str| text.chars().map(plain).take(24).collect::<String>();
        let first = format!("nft-{}-{}", word(left.key), word(set));
        let is_free = |name: &String| known.values().all(|known| known.name != *name);
        let others = (2..).map(|number| format!("{first}-{number}"));
        let name = std::iter::once(first.clone()).chain(others).find(is_free).unwrap_or_default();
        let items = left.kind.items(&ranges);
        known.insert(key, NamedSet { name: name.clone(), ranges: Arc::clone(&ranges), items });
        Ok((name, ranges, !changes))
    }

    /// The definitions of these sets, with so many of their values.
    pub(super) fn table(&self, names: &BTreeSet<String>, most: usize) -> String {
        let known = self.known.borrow();
        let mut lines: Vec<String> = Vec::new();
        for set in known.values().filter(|set| names.contains(&set.name)) {
            let items = set.items.get(..most.min(set.items.len())).unwrap_or_default();
            lines.push(format!("{} = [{}]\n", set.name, items.join(", ")));
        }
        lines.sort();
        match lines.is_empty() {
            true => String::new(),
            false => format!("\n[sets]\n{}", lines.concat()),
        }
    }
}
