//! Rule sets of nftables as `nft -j list ruleset` prints them (libnftables-json(5)). One base chain of type filter becomes the
//! policy: that of the earliest hook among ingress, prerouting and input. Accepted packets stay with the kernel, dropped
//! ones are dropped, and chains that it jumps to are inlined. A rule that the language cannot express exactly is left
//! out, never widened, and noted by its chain and handle.

mod condition;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use program::MAX_RULES;
use serde_json::{Map, Value};

use super::{Imported, Note, quoted};
use crate::{NoFiles, Source};
use condition::{Condition, Sets};

/// The actions for accepted and for dropped packets.
const KERNEL: &str = "\"kernel\"";
const DROP: &str = "\"drop\"";
/// Chains that call each other deeper than this; the kernel's limit.
const MAX_DEPTH: usize = 16;
/// Rules that inlining may add. Chains can call each other so that there is no end in sight.
const MAX_INLINED: usize = 1 << 14;

/// Family, table and name of a chain or a set.
type Name<'v> = (&'v str, &'v str, &'v str);

/// Converts a rule set, or several.
#[must_use]
pub fn nft(text: &str) -> Imported {
    let mut notes = Vec::new();
    let mut objects = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match document {
            Ok(mut document) => match document.get_mut("nftables").map(Value::take) {
                Some(Value::Array(list)) => objects.extend(list),
                _ => notes.push(note("not a rule set: it has no list `nftables`".to_owned())),
            },
            Err(error) => {
                let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
                let message = format!("not JSON (hint: use nft -j list ruleset): {error}");
                notes.push(Note { line, message });
                break;
            }
        }
    }
    let ruleset = Ruleset::of(&objects);
    let mut writer =
        Writer { ruleset: &ruleset, notes, left: ruleset.rules + MAX_INLINED, ..Writer::new(&ruleset) };
    writer.base_chain();
    writer.finish()
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
                    ruleset.rules += 1;
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
    count: usize,
    names: BTreeSet<String>,
    /// Those of the table, and the names of those that rules have.
    sets: Sets<'v>,
    used: BTreeSet<String>,
    /// Whether everything was converted so far.
    is_complete: bool,
    /// Whether a rule of the policy drops packets.
    drops_some: bool,
    /// Rules that may still be looked at.
    left: usize,
    /// Whether the base chain drops what reaches its end.
    drops: bool,
}

impl<'r, 'v> Writer<'r, 'v> {
    fn new(ruleset: &'r Ruleset<'v>) -> Self {
        Self {
            ruleset,
            notes: Vec::new(),
            rules: String::new(),
            count: 0,
            names: BTreeSet::new(),
            sets: Sets::default(),
            used: BTreeSet::new(),
            is_complete: true,
            drops_some: false,
            left: 0,
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
                self.end(&condition);
            }
            Err(reason) => self.notes.push(note(format!("chain {} is left out: {reason}", shown(&name)))),
        }
    }

    /// What becomes of packets that reach the end of the base chain. Others than those of its family stay with the kernel,
    /// and all do if a rule is missing that may accept them.
    fn end(&mut self, condition: &Condition) {
        if !self.drops {
            return;
        }
        let rule = super::rule(&self.unused("policy"), &condition.keys().0, DROP);
        if self.is_complete {
            self.rules.push_str(&rule);
            return;
        }
        let message =
            "the policy of the chain, drop, is left out, because rules are left out that may accept packets";
        self.notes.push(note(message.to_owned()));
        let _ = write!(self.rules, "\n# The policy of the chain, for when no rule is missing:");
        for line in rule.lines() {
            let _ = writeln!(self.rules, "{}{line}", if line.is_empty() { "" } else { "# " });
        }
    }

    /// Appends the rules of a chain, for packets of a condition.
    fn chain(&mut self, name: Name<'v>, condition: &Condition, depth: usize) {
        let ruleset = self.ruleset;
        for rule in ruleset.chains.get(&name).into_iter().flat_map(|chain| &chain.rules) {
            if self.count >= MAX_RULES || self.left == 0 {
                let message = "from here on rules are left out: there are too many".to_owned();
                if self.notes.last().is_none_or(|last| last.message != message) {
                    self.notes.push(note(message));
                }
                self.is_complete = false;
                return;
            }
            self.left -= 1;
            if let Err(reason) = self.rule(name, rule, condition, depth) {
                let handle = rule.get("handle").and_then(Value::as_u64).unwrap_or(0);
                let text =
                    format!("rule {handle} of {} {} {}", quoted(name.0), quoted(name.1), quoted(name.2));
                let _ = write!(self.rules, "\n# {text} is left out: {reason}\n");
                self.notes.push(note(format!("{text} is left out: {reason}")));
                self.is_complete = false;
            }
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
        let mut choice: Option<&'v Value> = None;
        let statements = rule.get("expr").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for statement in statements {
            let Some((kind, body)) = statement.as_object().and_then(|one| one.iter().next()) else {
                continue;
            };
            match kind.as_str() {
                "match" => condition.add(body, &self.sets)?,
                "counter" | "comment" | "log" => {}
                "vmap" => choice = Some(body),
                _ => verdict = Some(verdict_of(kind, body)?),
            }
        }
        let handle = rule.get("handle").and_then(Value::as_u64).unwrap_or(0);
        let rule_name = format!("{}-{handle}", name.2);
        if let Some(map) = choice {
            let pairs = map.pointer("/data/set").and_then(Value::as_array);
            let (Some(key), Some(pairs)) = (map.get("key"), pairs) else {
                return Err("a named map".to_owned());
            };
            for pair in pairs {
                let (Some(value), Some(body)) = (pair.get(0), pair.get(1).and_then(Value::as_object)) else {
                    continue;
                };
                let Some((kind, body)) = body.iter().next() else { continue };
                let mut condition = condition.clone();
                condition.compare("==", key, value, &self.sets)?;
                self.apply(name, &rule_name, &condition, verdict_of(kind, body)?, depth)?;
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
        let name = self.unused(name);
        let (keys, sets) = condition.keys();
        let rule = super::rule(&name, &keys, action);
        let text = format!("version = 1\n{}{rule}", self.sets_table(sets, 1));
        if let Err(problems) = crate::parse(&Source::new("rule.toml", text), &NoFiles) {
            let first = problems.list.first().map(|problem| problem.message.clone()).unwrap_or_default();
            return Err(quoted(&first));
        }
        self.names.insert(name);
        self.drops_some |= action == DROP;
        self.used.extend(sets.iter().cloned());
        self.count += 1;
        self.rules.push_str(&rule);
        Ok(())
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

    /// A name of the language for a rule.
    fn unused(&self, name: &str) -> String {
        let plain: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
        let plain = if plain.starts_with(|c: char| c.is_ascii_alphabetic()) {
            plain
        } else {
            format!("rule-{plain}")
        };
        let again = (2u32..).map(|number| format!("{plain}.{number}"));
        let mut names = [plain.clone()].into_iter().chain(again);
        names.find(|name| !self.names.contains(name)).unwrap_or(plain)
    }

    fn finish(mut self) -> Imported {
        if !self.is_complete && self.drops_some {
            let message = "rules are left out: the policy may drop packets that the chain accepts";
            self.notes.push(note(message.to_owned()));
        }
        let head = "# Converted from the output of nft -j list ruleset; `kernel` stands for accept.\nversion = 1\ndefault = \"kernel\"\n";
        let sets = self.sets_table(&self.used, usize::MAX);
        Imported { policy_toml: format!("{head}{sets}{}", self.rules), notes: self.notes }
    }
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
        other => Err(format!("`{}` is not supported", quoted(other))),
    }
}
