//! The rules of the policy so far, and how the policy differs from the rule set.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use program::{MAX_RULES, Match};

use super::super::{Imported, Keys, Note, quoted};
use super::condition::{Condition, Doubt};
use super::exceptions::{Exception, Exceptions};
use super::note;
use super::ruleset::Sets;
use crate::{MAX_FILE_BYTES, NoFiles, Source};

/// The actions for accepted and for dropped packets.
pub(super) const KERNEL: &str = "\"kernel\"";
pub(super) const DROP: &str = "\"drop\"";
/// Rules of a policy, without those of exceptions and of the chain's policy.
const MAX_CONVERTED: usize = MAX_RULES - Exception::ALL.len() - 1;
/// Bytes of the rules and of the sets.
const MAX_BYTES: usize = MAX_FILE_BYTES as usize - (1 << 16);
/// The most rules that one message names.
const MAX_NAMED: usize = 16;

/// Names for a message, each once: the first, and the number of the others.
#[derive(Default)]
struct Named {
    first: Vec<String>,
    all: HashSet<String>,
}

impl Named {
    fn count(&self) -> usize {
        self.all.len()
    }

    fn add(&mut self, name: String) {
        if self.all.insert(name.clone()) && self.first.len() < MAX_NAMED {
            self.first.push(name);
        }
    }

    fn shown(&self) -> String {
        let more = match self.count() - self.first.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more}", self.first.join(", "))
    }
}

/// The policy so far.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) notes: Vec<Note>,
    /// Messages that were given, as a chain may be inlined more than once.
    noted: HashSet<String>,
    rules: String,
    /// The number of rules; those that drop and are comments count as well.
    count: usize,
    comments: Named,
    /// The first place that made rules comments.
    missing: String,
    /// Rules on connections, and those on interfaces.
    on_connections: Named,
    /// Rules that drop connection requests alone, and the first place that may accept other packets of them.
    on_requests: Named,
    answered: String,
    on_interfaces: Named,
    /// The names of rules, each with the next number for one more of that name.
    names: BTreeMap<String, u32>,
    /// The names of sets that rules have, and the bytes of these.
    used: BTreeSet<String>,
    set_bytes: usize,
    exceptions: Exceptions,
}

impl Writer {
    /// Whether no more rules can be converted.
    pub(super) fn is_full(&self) -> bool {
        self.count >= MAX_CONVERTED || self.rules.len() + self.set_bytes >= MAX_BYTES
    }

    /// Adds a note, once.
    pub(super) fn note(&mut self, message: String) {
        if self.noted.insert(message.clone()) {
            self.notes.push(note(message));
        }
    }

    /// Adds a comment to the policy.
    fn comment(&mut self, text: &str) {
        if self.rules.len() < MAX_BYTES {
            let _ = write!(self.rules, "\n# {text}\n");
        }
    }

    /// Notes a rule or a part of it that the policy does not have as it is; `outcome`: what it has instead.
    pub(super) fn differs(&mut self, place: &str, outcome: &str, doubt: &Doubt) {
        let message = format!("{place} {outcome}: {}", doubt.text());
        if !self.noted.insert(message.clone()) {
            return;
        }
        self.comment(&message);
        match doubt {
            Doubt::Connection => self.on_connections.add(place.to_owned()),
            Doubt::Interface => self.on_interfaces.add(place.to_owned()),
            Doubt::Other(_) => self.notes.push(note(message)),
        }
    }

    /// Notes a rule that drops connection requests alone.
    pub(super) fn drops_requests(&mut self, place: &str, missing: &str) {
        if self.on_requests.all.contains(place) {
            return;
        }
        self.on_requests.add(place.to_owned());
        self.comment(&format!(
            "{place} drops connection requests alone, because {missing} may accept other packets"
        ));
        if self.answered.is_empty() {
            missing.clone_into(&mut self.answered);
        }
    }

    /// Appends a rule, if the language takes it; one that drops as a comment if another is `missing` that may
    /// accept its packets.
    pub(super) fn push(
        &mut self,
        name: &str,
        condition: &Condition,
        action: &str,
        sets: &Sets<'_>,
        missing: Option<&str>,
    ) -> Result<(), String> {
        let (keys, names) = condition.keys();
        let new: BTreeSet<String> = names.difference(&self.used).cloned().collect();
        let set_bytes = self.set_bytes + sets.table(&new, usize::MAX).len();
        let body = super::super::rule("rule", &keys, action);
        if self.count > MAX_CONVERTED || self.rules.len() + set_bytes + body.len() > MAX_BYTES {
            return Err("the policy would be too long".to_owned());
        }
        let matches = checked(&body, &sets.table(&names, 1))?;
        let drops = action == DROP;
        let missing = missing.filter(|_| drops);
        if drops {
            for exception in self.exceptions.before_drop(&matches, condition.is_on_transport) {
                let name = self.unused(exception.name());
                self.rules.push_str(&super::super::rule(&name, &exception.keys(), KERNEL));
            }
        }
        self.exceptions.add(&matches, condition.is_on_transport, drops);
        let name = self.unused(name);
        let rule = super::super::rule(&name, &keys, action);
        self.used.extend(new);
        self.set_bytes = set_bytes;
        self.count += 1;
        let Some(missing) = missing else {
            self.rules.push_str(&rule);
            return Ok(());
        };
        self.comments.add(format!("`{name}`"));
        if self.missing.is_empty() {
            missing.clone_into(&mut self.missing);
        }
        let _ = write!(self.rules, "\n# Left out, because {missing} may accept its packets:");
        for line in rule.lines() {
            let _ = writeln!(self.rules, "{}{line}", if line.is_empty() { "" } else { "# " });
        }
        Ok(())
    }

    /// Frames with a VLAN tag come by other interfaces than the port's own.
    pub(super) fn leave_tagged(&mut self) {
        let mut keys = Keys::default();
        keys.text("vlan", "any");
        let name = self.unused("other-interfaces");
        self.count += 1;
        self.rules.push_str(&super::super::rule(&name, &keys, KERNEL));
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

    pub(super) fn finish(mut self, sets: &Sets<'_>, is_syn_new: bool) -> Imported {
        if self.on_connections.count() > 0 {
            let has_hint = !is_syn_new && self.comments.count() > 0;
            let hint = if has_hint { " (hint: --syn-is-new)" } else { "" };
            let message = format!(
                "a policy does not know the state of connections{hint}: packets that rules on it accept stay with the kernel, and what they drop is left out ({})",
                self.on_connections.shown()
            );
            self.notes.push(note(message));
        }
        if self.on_requests.count() > 0 {
            let message = format!(
                "{} of the rules that drop, policies of chains included, drop TCP connection requests alone ({}), because {} may accept their other packets",
                self.on_requests.count(),
                self.on_requests.shown(),
                self.answered
            );
            self.notes.push(note(message));
        }
        if self.on_interfaces.count() > 0 {
            let message = format!(
                "the interface of the port is not known (hint: --interface NAME): packets that rules on interfaces accept stay with the kernel, and what they drop is left out ({})",
                self.on_interfaces.shown()
            );
            self.notes.push(note(message));
        }
        if self.comments.count() > 0 {
            let message = format!(
                "{} of the rules that drop, policies of chains included, are comments ({}), because {} may accept their packets \
                 (hint: remove the `# ` before those that may drop such packets, too; the others stay with the kernel)",
                self.comments.count(),
                self.comments.shown(),
                self.missing
            );
            self.notes.push(note(message));
        }
        self.notes.extend(self.exceptions.notes().into_iter().map(note));
        let head = "# Converted from the output of nft -j list ruleset; `kernel` stands for accept.\nversion = 1\ndefault = \"kernel\"\n";
        let sets = sets.table(&self.used, usize::MAX);
        Imported { policy_toml: format!("{head}{sets}{}", self.rules), notes: self.notes }
    }
}

/// The match of a rule.
fn checked(rule: &str, sets: &str) -> Result<Match, String> {
    let text = format!("version = 1\n{sets}{rule}");
    match crate::parse(&Source::new("rule.toml", text), &NoFiles) {
        Ok((policy, _)) => Ok(policy.rules.into_iter().next().map(|rule| rule.matches).unwrap_or_default()),
        Err(problems) => {
            let first = problems.list.first().map(|problem| problem.message.clone());
            Err(quoted(&first.unwrap_or_default()))
        }
    }
}
