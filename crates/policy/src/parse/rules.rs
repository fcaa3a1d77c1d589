//! Reading `[[rules]]`: everything but the match itself.

use program::{DEFAULT_RULE, MAX_RULES, Macs, MaskedMac, Match, Policing, SourceLimit};
use toml::Spanned;

use crate::diagnostics::Place;
use crate::keys;
use crate::policy::{Action, DEFAULT_MULTICAST, Direction, PRIORITIES, RuleDefinition};

use super::actions;
use super::description;
use super::extensions;
use super::groups::Groups;
use super::matches;
use super::policing;
use super::reader::{Names, Reader, Table, Value};
use super::sets::Sets;
use super::sinks::Sinks;

/// The rules of all files.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) list: Vec<RuleDefinition>,
    pub(super) names: Names,
}

/// The groups and sinks that rules may name.
#[derive(Clone, Copy)]
pub(super) struct RulePlaces<'p> {
    pub(super) groups: &'p Groups,
    pub(super) sinks: &'p Sinks,
}

/// Returns whether a name stands for unmatched packets; a rule may not have it.
pub(super) fn is_reserved(name: &str) -> bool {
    name == DEFAULT_RULE || name == DEFAULT_MULTICAST
}

impl Rules {
    /// Reads the `[[rules]]` of one file.
    pub(super) fn read(
        &mut self,
        reader: &mut Reader,
        value: &Value<'_>,
        places: RulePlaces<'_>,
        sets: &mut Sets,
        seen: &mut usize,
        skips_extensions: bool,
    ) {
        let Some(array) = value.get_ref().as_array() else {
            return reader.wrong_type(value, "`rules`", "a list of tables");
        };
        *seen = seen.saturating_add(array.len());
        if *seen > MAX_RULES {
            let message = format!("there are {seen} rules, a policy has at most {MAX_RULES}");
            reader.error(value.span(), message, "too many");
            return;
        }
        for value in array {
            let skips_own = extensions::of_rule(reader, value);
            if let Some(rule) = self.rule(reader, value, places, sets) {
                self.list.extend(extensions::rules(reader, rule, skips_own, skips_extensions));
            }
        }
        if self.list.len() > MAX_RULES {
            let message = format!(
                "there are {} rules with those behind extension headers, a policy has at most {MAX_RULES}",
                self.list.len()
            );
            reader.error(value.span(), message, "too many");
        }
    }

    /// Reports the first rule with which there is room for too many sources; a rule that skips extension
    /// headers has a table for each of its parts.
    pub(super) fn refuse_many_sources(&self, reader: &mut Reader) {
        let mut sources = 0;
        for rule in &self.list {
            sources += rule.policing.per_source().map_or(0, |limit| u64::from(limit.sources));
            if sources > SourceLimit::TOTAL_MAX {
                let most = SourceLimit::TOTAL_MAX;
                let message = format!(
                    "the rules up to here have room for {sources} sources, a policy for at most {most}"
                );
                let hint =
                    "write per = { sources = N } with a smaller number: each worker has a table for so many";
                reader.push(rule.name_place.error(message, "too many").hint(hint));
                return;
            }
        }
    }

    fn rule(
        &mut self,
        reader: &mut Reader,
        value: &Value<'_>,
        RulePlaces { groups, sinks }: RulePlaces<'_>,
        sets: &mut Sets,
    ) -> Option<RuleDefinition> {
        let table = reader.table(value, "a rule")?;
        reader.refuse_unknown_keys(table, keys::RULE, "a rule");
        let name = self.name(reader, value, table);
        let hint = "write match = { any = true } to match every packet";
        let matches = required(reader, value, table, "match", hint)
            .and_then(|value| matches::read(reader, value, sets));
        let hint = "write \"drop\" or { steer = \"GROUP\" }";
        let action = required(reader, value, table, "action", hint)
            .and_then(|value| actions::of_rule(reader, value, groups));
        let count = table.get("count").map_or(Some(true), |value| reader.boolean(value, "`count`"));
        let direction =
            table.get("direction").map_or(Some(Direction::Ingress), |value| direction(reader, value));
        let priority = table.get("priority").map_or(Some(0), |value| priority(reader, value));
        let span_of = |key: &str| table.get(key).map_or(value.span(), Spanned::span);
        if let (Some(action), Some(direction)) = (action, direction) {
            actions::fit_direction(reader, action, direction, span_of("action"))?;
        }
        let sinks = table.get("sinks").map(|value| {
            if !matches!(action, None | Some(Action::Steer(_) | Action::Copy(_) | Action::Sniff(_))) {
                let hint = "leave `sinks` out, or steer or copy the packets to a group";
                reader.error_with(value.span(), "the rule delivers no packets", "no packets for sinks", hint);
            }
            sinks.list_of(reader, value)
        });
        let policing = policing::read(reader, table, action);
        let description = description::read(reader, table);
        let matches = matches.map(|matches| Match {
            or_no_ports: action == Some(Action::Kernel)
                && direction == Some(Direction::Ingress)
                && matches.may_ignore_ports(),
            ..matches
        });
        Some(RuleDefinition {
            place: reader.place(span_of("match")),
            name_place: reader.place(span_of("name")),
            name: name?,
            description,
            matches: matches?,
            action: action?,
            direction: direction?,
            priority: priority?,
            count: count?,
            sinks,
            policing: policing?,
            multicast_default: false,
        })
    }

    fn name(&mut self, reader: &mut Reader, rule: &Value<'_>, table: &Table<'_>) -> Option<String> {
        let value = required(reader, rule, table, "name", "counters and logs are named after it")?;
        let name = reader.string(value, "`name`")?;
        if !reader.is_valid_name(name, value.span(), "the rule") {
            return None;
        }
        if is_reserved(name) {
            let message = format!("a rule cannot be called `{name}`");
            let label = "reserved for unmatched packets";
            reader.error_with(value.span(), message, label, "choose another name");
            return None;
        }
        self.names.is_new(reader, name, value.span(), "rule").then(|| name.to_owned())
    }

    /// Sorts by priority, and ends with `default_multicast`, if there is one.
    pub(super) fn finish(mut self, multicast: Option<(Action, Place)>) -> Vec<RuleDefinition> {
        self.list.sort_by_key(|rule| rule.priority);
        self.list.extend(multicast.map(|(action, place)| RuleDefinition {
            name: DEFAULT_MULTICAST.to_owned(),
            description: None,
            matches: Match { dst_mac: Some(Macs::of(vec![MaskedMac::MULTICAST])), ..Match::default() },
            action,
            direction: Direction::Ingress,
            priority: PRIORITIES.1,
            count: true,
            sinks: None,
            policing: Policing::default(),
            multicast_default: true,
            place: place.clone(),
            name_place: place,
        }));
        self.list
    }
}

pub(super) fn required<'v, 't>(
    reader: &mut Reader,
    owner: &Value<'_>,
    table: &'v Table<'t>,
    key: &str,
    hint: &str,
) -> Option<&'v Value<'t>> {
    let value = table.get(key);
    if value.is_none() {
        reader.error_with(owner.span(), format!("the rule has no `{key}`"), "this rule", hint);
    }
    value
}

fn direction(reader: &mut Reader, value: &Value<'_>) -> Option<Direction> {
    let words = [("ingress", Direction::Ingress), ("egress", Direction::Egress)];
    matches::word(reader, value, "direction", &words)
}

fn priority(reader: &mut Reader, value: &Value<'_>) -> Option<i32> {
    let (least, most) = PRIORITIES;
    let Some(number) = super::reader::integer_of(value) else {
        reader.wrong_type(value, "`priority`", "a number");
        return None;
    };
    let fitting = i32::try_from(number).ok().filter(|number| (least..=most).contains(number));
    if fitting.is_none() {
        let hint = format!("write a number from {least} to {most}: lower ones go first, 0 is usual");
        reader.error_with(value.span(), "`priority` is out of range", "this number", hint);
    }
    fitting
}
