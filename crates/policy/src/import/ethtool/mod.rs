//! What `ethtool` lists: receive filters (`ethtool -n DEV`, its rxclass.c) and the spreading of what no filter
//! takes (`ethtool -x DEV`), either or both in one text. Queue *n* becomes worker *n*. A filter that the
//! language cannot say exactly is left out, never widened.

mod filter;
mod spread;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Imported, Keys, Note, line_number, quoted, rule};
use filter::{Filter, Target};
use spread::Spread;

use crate::policy::{MAX_GROUPS, MAX_RULES, MAX_WORKER};

/// The listing as a policy.
///
/// What no filter takes stays with the kernel: `default = "rss"` would take the host off the network. A filter's
/// location is its precedence, as where devices keep them in order.
#[must_use]
pub fn ethtool(text: &str) -> Imported {
    let mut listing = Listing::default();
    for (index, line) in text.lines().enumerate() {
        listing.line(line_number(index), line);
    }
    listing.finish()
}

/// The sections found so far.
#[derive(Default)]
struct Listing {
    filters: Vec<Filter>,
    spreads: Vec<Spread>,
    notes: Vec<Note>,
    /// Which of the two the next lines belong to.
    in_filters: bool,
}

impl Listing {
    fn line(&mut self, number: u32, line: &str) {
        let text = line.trim();
        if text.is_empty() {
            return;
        }
        if let Some(location) = text.strip_prefix("Filter:") {
            self.in_filters = true;
            self.filters.push(Filter::new(number, location.trim()));
        } else if text.starts_with("RX flow hash indirection table for") {
            self.in_filters = false;
            self.spreads.push(Spread::new(number, text));
        } else if is_heading(text) {
        } else if let Some(filter) = self.filters.last_mut().filter(|_| self.in_filters) {
            filter.take(text);
        } else if let Some(spread) = self.spreads.last_mut() {
            if let Err(message) = spread.line(text) {
                self.notes.push(Note { line: number, message });
            }
        } else {
            self.notes.push(Note { line: number, message: format!("not understood: {}", quoted(text)) });
        }
    }

    fn finish(mut self) -> Imported {
        // A stable sort: filters of one location, or of none, stay as they are listed.
        self.filters.sort_by_key(|filter| filter.location);
        let mut names = BTreeMap::new();
        let mut rules = String::new();
        let mut queues = BTreeSet::new();
        let mut contexts = BTreeSet::new();
        if let Some(first) = self.filters.get(MAX_RULES) {
            let message = format!("from here on left out: a policy has at most {MAX_RULES} rules");
            self.notes.push(Note { line: first.line, message });
            self.filters.truncate(MAX_RULES);
        }
        for filter in &self.filters {
            match filter.translate(&mut self.notes) {
                Ok((_, target)) if !has_room(target, &queues, &contexts) => {
                    let message = format!("filter {} is left out: there are too many groups", filter.shown());
                    self.notes.push(Note { line: filter.line, message });
                }
                Ok((keys, target)) => {
                    let action = match target {
                        Target::Drop => "\"drop\"".to_owned(),
                        Target::Queue(queue) => {
                            queues.insert(queue);
                            format!("{{ steer = \"queue-{queue}\" }}")
                        }
                        Target::Context(context) => {
                            contexts.insert(context);
                            format!("{{ steer = \"{}\" }}", spread::group_name(context))
                        }
                    };
                    rules.push_str(&rule(&unique(&mut names, filter.location), &keys, &action));
                }
                Err(reason) => {
                    let _ = write!(rules, "\n# Filter {} does not carry over: {reason}\n", filter.shown());
                    let message = format!("filter {} is left out: {reason}", filter.shown());
                    self.notes.push(Note { line: filter.line, message });
                }
            }
        }
        let groups = self.groups(&queues, &contexts);
        self.notes.sort_by_key(|note| note.line);
        let head =
            "# Made of what ethtool lists; worker n stands for queue n.\nversion = 1\ndefault = \"kernel\"\n";
        let hint = match self.spreads.is_empty() {
            true => "",
            false => {
                "# default = \"rss\"              # takes all other traffic from the host, as the table does\n"
            }
        };
        Imported { policy_toml: format!("{head}{hint}{groups}{rules}"), notes: self.notes }
    }

    fn groups(&mut self, queues: &BTreeSet<u32>, contexts: &BTreeSet<u32>) -> String {
        let mut groups = String::new();
        let mut listed = BTreeSet::new();
        for spread in &self.spreads {
            if listed.len() < MAX_GROUPS / 2 && listed.insert(spread.context) {
                groups.push_str(&spread.group(&mut self.notes));
            } else {
                let message =
                    "a second table of the same context is left out, and so are too many".to_owned();
                self.notes.push(Note { line: spread.line, message });
            }
        }
        for context in contexts.difference(&listed) {
            let name = spread::group_name(*context);
            let _ = write!(groups, "\n[groups.{name}]\nworkers = \"all\"\n");
            let message =
                format!("the table of RSS context {context} is not listed: `{name}` is all workers");
            self.notes.push(Note { line: 1, message });
        }
        for queue in queues {
            let _ = write!(groups, "\n[groups.queue-{queue}]\nworkers = [{queue}]\n");
        }
        groups
    }
}

/// Whether a group for that target is there or can be; tables have half of the groups at most.
fn has_room(target: Target, queues: &BTreeSet<u32>, contexts: &BTreeSet<u32>) -> bool {
    match target {
        Target::Drop => true,
        Target::Queue(queue) => queues.contains(&queue) || queues.len() < MAX_GROUPS / 4,
        Target::Context(context) => contexts.contains(&context) || contexts.len() < MAX_GROUPS / 4,
    }
}

/// Lines that say what the listing is about and nothing more.
fn is_heading(text: &str) -> bool {
    text.ends_with("RX rings available")
        || (text.starts_with("Total ") && text.ends_with(" rules"))
        || text.starts_with("rxclass: ")
}

/// A rule's name after a filter's location; listings of several devices may have one twice.
fn unique(names: &mut BTreeMap<u64, u32>, location: u64) -> String {
    let seen = names.entry(location).or_default();
    *seen += 1;
    match *seen {
        1 => format!("filter-{location}"),
        again => format!("filter-{location}.{again}"),
    }
}
