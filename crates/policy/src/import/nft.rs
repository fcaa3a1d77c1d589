//! Rule sets of nftables as `nft -j list ruleset` prints them (libnftables-json(5)). One base chain of type filter becomes the
//! policy: that of the earliest hook among ingress, prerouting and input. Accepted packets stay with the kernel, dropped
//! ones are dropped, and chains that it jumps to are inlined. A rule that the language cannot express exactly is left
//! out, never widened, and noted by its chain and handle.
//!
//! The policy drops no packet that the chain accepts: behind a rule that is left out and may accept packets, rules that drop are
//! comments, and packets that the policy's rules fail to match by their transport header stay with the kernel.

mod condition;
mod exceptions;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt::Write as _;

use packet::{Field, IpProtocol};
use program::{MAX_RULES, Match, RangeSet};
use serde_json::{Map, Value};

use super::{Imported, Note, WrongFormat, quoted};
use crate::{MAX_FILE_BYTES, NoFiles, Source};
use condition::{Condition, Sets};
use exceptions::{Exception, Exceptions};

/// The actions for accepted and for dropped packets.
const KERNEL: &str = "\"kernel\"";
const DROP: &str = "\"drop\"";
/// Chains that call each other deeper than this; the kernel's limit.
const MAX_DEPTH: usize = 16;
/// Rules that inlining may add. Chains can call each other so that there is no end in sight.
const MAX_INLINED: usize = 1 << 14;
/// Rules of a policy, without those of exceptions and of the chain's policy.
const MAX_CONVERTED: usize = MAX_RULES - Exception::ALL.len() - 1;
/// Bytes of the rules and of the sets.
const MAX_BYTES: usize = MAX_FILE_BYTES as usize - (1 << 16);
/// The most rules that one message names.
const MAX_NAMED: usize = 16;
/// Statements that neither end a rule nor change a packet.
const WITHOUT_VERDICT: [&str; 4] = ["counter", "comment", "log", "continue"];

/// Family, table and name of a chain or a set.
type Name<'v> = (&'v str, &'v str, &'v str);

/// Choices for a rule set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftOptions {
    /// The base chain to convert, as table/name or family/table/name; if left out, all that received packets meet.
    pub chain: Option<String>,
    /// The interface of the port; if left out, rules of any interface may apply.
    pub interface: Option<String>,
}

/// Converts a rule set, or several.
///
/// # Errors
/// The text is not JSON of nft.
pub fn nft(text: &str, _options: &NftOptions) -> Result<Imported, WrongFormat> {
    let notes = Vec::new();
    let mut objects = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match document {
            Ok(mut document) => match document.get_mut("nftables").map(Value::take) {
                Some(Value::Array(list)) => objects.extend(list),
                _ => {
                    let message = "not a rule set: it has no list `nftables`".to_owned();
                    return Err(WrongFormat { line: 1, message });
                }
            },
            Err(error) => {
                let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
                let message = format!("not JSON (hint: use nft -j list ruleset): {error}");
                return Err(WrongFormat { line, message });
            }
        }
    }
    let ruleset = Ruleset::of(&objects);
    let mut writer = Writer::new(&ruleset, notes);
    writer.base_chain();
    Ok(writer.finish())
}

/// nft prints everything in one line.
fn note(message: String) -> Note {
    Note { line: 1, message }
}

/// A chain that a hook calls.
#[derive(Clone, Copy)]
struct Base {
    /// Its hook and its priority there: lower ones come first.
    order: (usize, i64),
    drops: bool,
}

#[derive(Default)]
struct Chain<'v> {
    base: Option<Base>,
    /// A base chain that cannot be converted, by its type and hook.
    other: Option<String>,
    rules: Vec<&'v Map<String, Value>>,
}

#[derive(Default)]
struct Ruleset<'v> {
    chains: BTreeMap<Name<'v>, Chain<'v>>,
    sets: BTreeMap<Name<'v>, &'v [Value]>,
    /// Rules and pairs of verdict maps.
    rules: usize,
}

impl<'v> Ruleset<'v> {
    fn of(objects: &'v [Value]) -> Self {
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
                ("chain", Some(name), _) => {
                    let chain = ruleset.chains.entry((family, table, name)).or_default();
                    (chain.base, chain.other) = base_of(body);
                }
                ("set", Some(name), _) => {
                    let elements = body.get("elem").and_then(Value::as_array);
                    ruleset.sets.insert((family, table, name), elements.map_or(&[], Vec::as_slice));
                }
                ("rule", _, Some(chain)) => {
                    ruleset.rules += 1 + vmaps_of(body).map(|(_, pairs)| pairs.len()).sum::<usize>();
                    ruleset.chains.entry((family, table, chain)).or_default().rules.push(body);
                }
                _ => {}
            }
        }
        ruleset
    }
}

/// The hook of a chain, if it has one.
fn base_of(chain: &Map<String, Value>) -> (Option<Base>, Option<String>) {
    let text = |key: &str| chain.get(key).and_then(Value::as_str);
    let Some(hook) = text("hook") else { return (None, None) };
    let kind = text("type").unwrap_or_default();
    match ["ingress", "prerouting", "input"].iter().position(|known| *known == hook) {
        Some(order) if kind == "filter" => {
            let priority = chain.get("prio").and_then(Value::as_i64).unwrap_or(0);
            (Some(Base { order: (order, priority), drops: text("policy") == Some("drop") }), None)
        }
        _ => (None, Some(format!("type {kind}, hook {hook}"))),
    }
}

/// What a rule does with packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict<'v> {
    Accept,
    Drop,
    Jump(&'v str),
    Goto(&'v str),
    Return,
}

/// The rules of the policy so far.
struct Writer<'r, 'v> {
    ruleset: &'r Ruleset<'v>,
    notes: Vec<Note>,
    rules: String,
    /// Those that drop and are comments count as well.
    count: usize,
    /// How many these are.
    comments: usize,
    /// The names of the first.
    named_comments: Vec<String>,
    /// The names of rules, each with the next number for one more of that name.
    names: BTreeMap<String, u32>,
    /// Those of the table, the names of those that rules have, and the bytes of these.
    sets: Sets<'v>,
    used: BTreeSet<String>,
    set_bytes: usize,
    exceptions: Exceptions,
    /// The first rule that was left out and may accept packets.
    missing: Option<String>,
    /// Rules and pairs that may still be looked at.
    left: usize,
    /// Whether the base chain drops what reaches its end.
    drops: bool,
}

impl<'r, 'v> Writer<'r, 'v> {
    fn new(ruleset: &'r Ruleset<'v>, notes: Vec<Note>) -> Self {
        Self {
            ruleset,
            notes,
            rules: String::new(),
            count: 0,
            comments: 0,
            named_comments: Vec::new(),
            names: BTreeMap::new(),
            sets: Sets::default(),
            used: BTreeSet::new(),
            set_bytes: 0,
            exceptions: Exceptions::default(),
            missing: None,
            left: ruleset.rules + MAX_INLINED,
            drops: false,
        }
    }

    fn base_chain(&mut self) {
        let shown = |(family, table, name): &Name<'_>| quoted(&format!("{family} {table} {name}"));
        let bases = self.ruleset.chains.iter().filter_map(|(name, chain)| Some((chain.base?, *name)));
        let first = bases.clone().min_by_key(|(base, name)| (base.order, *name));
        for (name, chain) in &self.ruleset.chains {
            if let Some(other) = &chain.other {
                self.notes.push(note(format!("chain {} is left out: {}", shown(name), quoted(other))));
            }
        }
        let Some((base, name)) = first else {
            return self
                .notes
                .push(note("there is no filter chain of hook ingress, prerouting or input".to_owned()));
        };
        for (_, other) in bases.filter(|(_, other)| *other != name) {
            let message =
                format!("chain {} is left out: the policy is that of {}", shown(&other), shown(&name));
            self.notes.push(note(message));
        }
        if base.order.0 == 2 {
            let message = format!(
                "chain {} sees packets to this host; the policy, all that the port receives",
                shown(&name)
            );
            self.notes.push(note(message));
        }
        self.drops = base.drops;
        let own =
            self.ruleset.sets.iter().filter(|((family, table, _), _)| (*family, *table) == (name.0, name.1));
        self.sets.elements = own.map(|((_, _, set), elements)| (*set, *elements)).collect();
        match Condition::of_family(name.0) {
            Ok(condition) => {
                self.chain(name, &condition, 0);
                // What becomes of packets that reach the end; those of other families stay with the kernel.
                if self.drops
                    && let Err(reason) = self.push("policy", &condition, DROP)
                {
                    self.notes.push(note(format!("the policy of the chain, drop, is left out: {reason}")));
                }
            }
            Err(reason) => self.notes.push(note(format!("chain {} is left out: {reason}", shown(&name)))),
        }
    }

    /// Appends the rules of a chain, for packets of a condition.
    fn chain(&mut self, name: Name<'v>, condition: &Condition, depth: usize) {
        let ruleset = self.ruleset;
        for rule in ruleset.chains.get(&name).into_iter().flat_map(|chain| &chain.rules) {
            if self.is_full() {
                return;
            }
            if let Err(reason) = self.rule(name, rule, condition, depth) {
                self.leave_out(&place_of(name, rule), &reason, may_accept(rule));
            }
        }
    }

    /// Counts a rule or a pair, unless there were too many.
    fn is_full(&mut self) -> bool {
        let bytes = self.rules.len() + self.set_bytes;
        if self.count < MAX_CONVERTED && bytes < MAX_BYTES && self.left > 0 {
            self.left -= 1;
            return false;
        }
        let message = "from here on rules are left out: there are too many".to_owned();
        if self.notes.last().is_none_or(|last| last.message != message) {
            self.notes.push(note(message));
        }
        self.missing.get_or_insert_with(|| "a rule beyond the limit".to_owned());
        true
    }

    /// Notes that a rule or a part of it has no counterpart.
    fn leave_out(&mut self, place: &str, reason: &str, may_accept: bool) {
        let _ = write!(self.rules, "\n# {place} is left out: {reason}\n");
        self.notes.push(note(format!("{place} is left out: {reason}")));
        if may_accept {
            self.missing.get_or_insert_with(|| place.to_owned());
        }
    }

    fn rule(
        &mut self,
        name: Name<'v>,
        rule: &'v Map<String, Value>,
        outer: &Condition,
        depth: usize,
    ) -> Result<(), String> {
        let mut condition = outer.clone();
        let mut verdict = None;
        for (kind, body) in statements(rule) {
            match kind.as_str() {
                "match" => condition.add(body, &self.sets)?,
                "vmap" if vmaps_of(rule).next().is_none() => return Err("a named map".to_owned()),
                "vmap" => {}
                kind if WITHOUT_VERDICT.contains(&kind) => {}
                _ => verdict = Some(verdict_of(kind, body)?),
            }
        }
        let rule_name = format!("{}-{}", name.2, handle(rule));
        for (key, pairs) in vmaps_of(rule) {
            for pair in pairs {
                if self.is_full() {
                    return Ok(());
                }
                let (Some(value), Some(body)) = (pair.get(0), pair.get(1).and_then(Value::as_object)) else {
                    continue;
                };
                let Some((kind, body)) = body.iter().next() else { continue };
                if WITHOUT_VERDICT.contains(&kind.as_str()) {
                    continue;
                }
                let mut condition = condition.clone();
                let pushed = condition
                    .compare("==", key, value, &self.sets)
                    .and_then(|()| self.apply(name, &rule_name, &condition, verdict_of(kind, body)?, depth));
                if let Err(reason) = pushed {
                    // The values of a map do not overlap, so each pair is a rule of its own.
                    let place = format!("{} of {}", quoted(&value.to_string()), place_of(name, rule));
                    self.leave_out(&place, &reason, !DROPS.contains(&kind.as_str()));
                }
            }
        }
        match verdict {
            Some(verdict) => self.apply(name, &rule_name, &condition, verdict, depth),
            // It only counts or logs, or chooses.
            None => Ok(()),
        }
    }

    fn apply(
        &mut self,
        from: Name<'v>,
        name: &str,
        condition: &Condition,
        verdict: Verdict<'v>,
        depth: usize,
    ) -> Result<(), String> {
        let of_policy = if self.drops { DROP } else { KERNEL };
        match verdict {
            Verdict::Accept => self.push(name, condition, KERNEL),
            Verdict::Drop => self.push(name, condition, DROP),
            Verdict::Return if depth == 0 => self.push(name, condition, of_policy),
            Verdict::Return => Err("`return` to another chain".to_owned()),
            Verdict::Jump(_) | Verdict::Goto(_) if depth == MAX_DEPTH => {
                Err("chains call each other too deep".to_owned())
            }
            Verdict::Jump(target) => {
                self.chain((from.0, from.1, target), condition, depth + 1);
                Ok(())
            }
            Verdict::Goto(_) if depth > 0 => Err("`goto` in a chain that another one calls".to_owned()),
            Verdict::Goto(target) => {
                self.chain((from.0, from.1, target), condition, depth + 1);
                self.push(name, condition, of_policy)
            }
        }
    }

    /// Appends a rule, if the language takes it.
    fn push(&mut self, name: &str, condition: &Condition, action: &str) -> Result<(), String> {
        let (keys, sets) = condition.keys();
        let new: BTreeSet<String> = sets.difference(&self.used).cloned().collect();
        let set_bytes = self.set_bytes + self.sets_table(&new, usize::MAX).len();
        let body = super::rule("rule", &keys, action);
        if self.count > MAX_CONVERTED || self.rules.len() + set_bytes + body.len() > MAX_BYTES {
            return Err("the policy would be too long".to_owned());
        }
        let matches = self.checked(&body, sets)?;
        let protocols = matches.get(Field::Protocol);
        if condition.is_on_any_ports && protocols.is_none_or(|protocols| !has_ports(protocols)) {
            return Err("it tests ports of every protocol (hint: add meta l4proto { tcp, udp })".to_owned());
        }
        let drops = action == DROP;
        if drops {
            for exception in self.exceptions.before_drop(&matches, condition.is_on_transport) {
                let name = self.unused(exception.name());
                self.rules.push_str(&super::rule(&name, &exception.keys(), KERNEL));
            }
        }
        self.exceptions.add(&matches, condition.is_on_transport, drops);
        let name = self.unused(name);
        let rule = super::rule(&name, &keys, action);
        match &self.missing {
            Some(missing) if drops => {
                self.comments += 1;
                if self.comments <= MAX_NAMED {
                    self.named_comments.push(format!("`{name}`"));
                }
                let _ = write!(
                    self.rules,
                    "\n# Left out, because {missing} is left out, which may accept packets:"
                );
                for line in rule.lines() {
                    let _ = writeln!(self.rules, "{}{line}", if line.is_empty() { "" } else { "# " });
                }
            }
            _ => {
                self.used.extend(new);
                self.set_bytes = set_bytes;
                self.rules.push_str(&rule);
            }
        }
        self.count += 1;
        Ok(())
    }

    /// The match of a rule.
    fn checked(&self, rule: &str, sets: &BTreeSet<String>) -> Result<Match, String> {
        let text = format!("version = 1\n{}{rule}", self.sets_table(sets, 1));
        match crate::parse(&Source::new("rule.toml", text), &NoFiles) {
            Ok((policy, _)) => {
                Ok(policy.rules.into_iter().next().map(|rule| rule.matches).unwrap_or_default())
            }
            Err(problems) => {
                let first = problems.list.first().map(|problem| problem.message.clone());
                Err(quoted(&first.unwrap_or_default()))
            }
        }
    }

    /// The definitions of these sets, with so many of their values.
    fn sets_table(&self, names: &BTreeSet<String>, most: usize) -> String {
        let mut text = String::new();
        for name in names {
            let known = self.sets.known.borrow();
            let Some((_, values)) = known.get(name) else { continue };
            let head = if text.is_empty() { "\n[sets]\n" } else { "" };
            let values = values.get(..most.min(values.len())).unwrap_or_default();
            let _ = writeln!(text, "{head}{name} = [{}]", values.join(", "));
        }
        text
    }

    /// A name of the language for a rule, that no other has.
    fn unused(&mut self, name: &str) -> String {
        let plain: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
        let plain = match plain.starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => plain,
            false => format!("rule-{plain}"),
        };
        let mut number = match self.names.entry(plain.clone()) {
            Entry::Vacant(free) => {
                free.insert(2);
                return plain;
            }
            Entry::Occupied(next) => *next.get(),
        };
        // Another chain may have a name that ends with a number.
        while self.names.contains_key(&format!("{plain}.{number}")) {
            number += 1;
        }
        let name = format!("{plain}.{number}");
        self.names.insert(plain, number + 1);
        self.names.insert(name.clone(), 2);
        name
    }

    fn finish(mut self) -> Imported {
        if let (Some(missing), count @ 1.., names) = (&self.missing, self.comments, &self.named_comments) {
            let more = match count - names.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!(
                "{count} of the rules that drop, the policy of the chain included, are comments ({}{more}), because {missing} is left out, which may accept packets \
                 (hint: remove the `# ` before those that may drop such packets, too; the others stay with the kernel)",
                names.join(", ")
            );
            self.notes.push(note(message));
        }
        self.notes.extend(self.exceptions.notes().into_iter().map(note));
        let head = "# Converted from the output of nft -j list ruleset; `kernel` stands for accept.\nversion = 1\ndefault = \"kernel\"\n";
        let sets = self.sets_table(&self.used, usize::MAX);
        Imported { policy_toml: format!("{head}{sets}{}", self.rules), notes: self.notes }
    }
}

/// Statements of rules and pairs that accept no packet.
const DROPS: [&str; 2] = ["drop", "reject"];

/// Whether a rule may do anything but drop packets.
fn may_accept(rule: &Map<String, Value>) -> bool {
    let is_harmless = |kind: &str| {
        WITHOUT_VERDICT.contains(&kind) || DROPS.contains(&kind) || ["match", "limit"].contains(&kind)
    };
    statements(rule).any(|(kind, _)| !is_harmless(kind))
}

fn handle(rule: &Map<String, Value>) -> u64 {
    rule.get("handle").and_then(Value::as_u64).unwrap_or(0)
}

/// How messages call a rule.
fn place_of(name: Name<'_>, rule: &Map<String, Value>) -> String {
    format!("rule {} of {} {} {}", handle(rule), quoted(name.0), quoted(name.1), quoted(name.2))
}

/// The statements of a rule, each with its kind.
fn statements(rule: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let list = rule.get("expr").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|statement| statement.as_object()?.iter().next())
}

/// The verdict maps of a rule: what they look up, and the pairs of a value and a verdict.
fn vmaps_of(rule: &Map<String, Value>) -> impl Iterator<Item = (&Value, &Vec<Value>)> {
    statements(rule)
        .filter(|(kind, _)| *kind == "vmap")
        .filter_map(|(_, map)| Some((map.get("key")?, map.pointer("/data/set")?.as_array()?)))
}

/// Whether all of these protocols have ports that the language reads.
fn has_ports(protocols: &RangeSet<u32>) -> bool {
    let with_ports = RangeSet::each([IpProtocol::TCP, IpProtocol::UDP].map(|one| one.0.into()));
    protocols.intersect(&with_ports) == *protocols
}

fn verdict_of<'v>(kind: &str, body: &'v Value) -> Result<Verdict<'v>, String> {
    let target = || body.get("target").and_then(Value::as_str).ok_or("a jump without a target".to_owned());
    match kind {
        "accept" => Ok(Verdict::Accept),
        "drop" => Ok(Verdict::Drop),
        "return" => Ok(Verdict::Return),
        "jump" => target().map(Verdict::Jump),
        "goto" => target().map(Verdict::Goto),
        "reject" => Err("`reject` answers packets, which the policy cannot".to_owned()),
        "limit" => {
            Err("packets beyond the `limit` meet the next rule, and a policy would drop them".to_owned())
        }
        other => Err(format!("`{}` is not supported", quoted(other))),
    }
}
