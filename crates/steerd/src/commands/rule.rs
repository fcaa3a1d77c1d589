//! `steerd rule`: adds, removes and lists rules at run time of the running daemon.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use program::RuntimeMatch;
use steerd_client::api::RuleChanges;

use crate::api::rules::{RuleBody, RuleList, RuleRow, RulesChanged, rule_id};
use crate::cli::{RuleAddArgs, RuleArgs, RuleCommand};
use crate::commands::{Error, client};
use crate::terminal::output;

/// The most rules of one call; a file with more takes several, each done as a whole.
const RULES_OF_CALL: usize = 20_000;

pub(crate) fn run(args: &RuleArgs) -> Result<(), Error> {
    match &args.command {
        RuleCommand::Add(add) => {
            let rule = rule(add)?;
            let changes = RuleChanges { add: vec![rule], ..RuleChanges::default() };
            change(args, &changes)
        }
        RuleCommand::Load { file } => load(args, file),
        RuleCommand::Del { ids } => {
            change(args, &RuleChanges { remove: named_ids(ids), ..RuleChanges::default() })
        }
        RuleCommand::Flush { owner } => {
            change(args, &RuleChanges { flush: true, owner: *owner, ..RuleChanges::default() })
        }
        RuleCommand::List { id } => {
            let ids = named_ids(id.as_slice());
            list(args, ids.first().map(String::as_str))
        }
    }
}

fn change(args: &RuleArgs, changes: &RuleChanges<RuntimeMatch>) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let changed = client.change(changes)?;
    print(args, &changed)?;
    if !changes.remove.is_empty() && changed.removed == 0 {
        let message =
            "no rule is removed: none has such an id (hint: `steerd rule list` begins each line with it)";
        return Err(Error::Rule(message.to_owned()));
    }
    Ok(())
}

fn print(args: &RuleArgs, changed: &RulesChanged) -> Result<(), Error> {
    if args.output.is_json() {
        output::print_json(changed)?;
        return Ok(());
    }
    let RulesChanged { added, unchanged, removed, absent, rules, in_device, microseconds } = changed;
    let mut line = format!("{added} added, {removed} removed");
    let others = [(unchanged, "unchanged"), (absent, "not there")];
    for (count, what) in others.into_iter().filter(|(count, _)| **count > 0) {
        let _ = write!(line, ", {count} {what}");
    }
    let _ = writeln!(line, ": {rules} rules, {in_device} of them in the device ({microseconds} us)");
    output::print(&line)?;
    Ok(())
}

/// The ids of rules. Arguments of the form FIELD=VALUE are together the match of one rule, whose id is made
/// of it. Those that are no match are ids, which may have the character, too.
fn named_ids(named: &[String]) -> Vec<String> {
    let pair =
        |name: &String| name.split_once('=').map(|(field, value)| (field.to_owned(), value.to_owned()));
    let pairs: Vec<(String, String)> = named.iter().filter_map(pair).collect();
    let Some(matches) = runtime_match(&pairs).ok().filter(|_| !pairs.is_empty()) else {
        return named.to_vec();
    };
    let of_match = rule_id(&RuleBody { matches, ..RuleBody::default() });
    named.iter().filter(|name| !name.contains('=')).cloned().chain([of_match]).collect()
}

/// The match that arguments of the form FIELD=VALUE are.
fn runtime_match(matches: &[(String, String)]) -> Result<RuntimeMatch, Error> {
    let mut fields = serde_json::Map::new();
    for (field, value) in matches {
        let is_number = matches!(field.as_str(), "src_port" | "dst_port" | "vlan");
        let value = match value.parse::<u16>() {
            Ok(number) if is_number => number.into(),
            _ => value.as_str().into(),
        };
        if fields.insert(field.clone(), value).is_some() {
            return Err(Error::Rule(format!("`{field}` is given twice")));
        }
    }
    serde_json::from_value(fields.into()).map_err(|error| Error::Rule(error.to_string()))
}

/// The rule of the command line.
fn rule(add: &RuleAddArgs) -> Result<RuleBody, Error> {
    Ok(RuleBody {
        id: add.id.clone(),
        matches: runtime_match(&add.matches)?,
        action: add.action.clone(),
        both: add.both,
        ttl_seconds: add.ttl.map(|time| time.as_secs_f64()),
        idle_seconds: add.idle.map(|time| time.as_secs_f64()),
        comment: add.comment.clone(),
    })
}

/// Adds the rules of a file, one JSON object per line.
fn load(args: &RuleArgs, file: &Path) -> Result<(), Error> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    let text = text.map_err(|error| Error::Rule(format!("{}: {error}", file.display())))?;
    let mut rules: Vec<RuleBody> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let rule = serde_json::from_str(line);
        rules.push(rule.map_err(|error| Error::Rule(format!("{}:{}: {error}", file.display(), index + 1)))?);
    }
    let client = client::connect(&args.api)?;
    let mut sum = RulesChanged::default();
    while !rules.is_empty() {
        let rest = rules.split_off(rules.len().min(RULES_OF_CALL));
        let changes = RuleChanges { add: std::mem::replace(&mut rules, rest), ..RuleChanges::default() };
        let changed = client.change(&changes)?;
        sum = RulesChanged {
            added: sum.added + changed.added,
            unchanged: sum.unchanged + changed.unchanged,
            removed: sum.removed + changed.removed,
            absent: sum.absent + changed.absent,
            microseconds: sum.microseconds + changed.microseconds,
            ..changed
        };
    }
    print(args, &sum)
}

fn list(args: &RuleArgs, id: Option<&str>) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let path = id.map_or_else(|| "/v1/rules".to_owned(), |id| format!("/v1/rules?id={id}"));
    let list: RuleList = client.get(&path)?;
    if args.output.is_json() {
        output::print_json(&list)?;
        return Ok(());
    }
    let mut text = String::new();
    for row in &list.rules {
        let _ = writeln!(text, "{}", line(row));
    }
    if list.rules.len() < list.count && id.is_none() {
        let _ = writeln!(text, "and {} more", list.count - list.rules.len());
    }
    if list.count == 0 {
        text.push_str("there are no rules at run time\n");
    }
    output::print(&text)?;
    Ok(())
}

fn line(row: &RuleRow) -> String {
    let RuleRow { rule, owner, acts_in, packets, bytes, ends_in_seconds } = row;
    let id = output::plain(rule.id.as_deref().unwrap_or_default());
    let both = if rule.both { " both" } else { "" };
    let mut line = format!(
        "{id}: {}{both} -> {}, in {acts_in}, {packets} packets, {bytes} bytes, user {owner}",
        rule.matches,
        output::plain(&rule.action)
    );
    if let Some(seconds) = ends_in_seconds {
        let _ = write!(line, ", ends in {seconds:.0} s");
    }
    if let Some(seconds) = rule.idle_seconds {
        let _ = write!(line, ", ends {seconds:.0} s after its last packet");
    }
    if !rule.comment.is_empty() {
        let _ = write!(line, " # {}", output::plain(&rule.comment));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_cannot_forge_a_line() {
        let rule = RuleBody {
            id: Some("a".to_owned()),
            matches: RuntimeMatch { src: "192.0.2.1".parse().ok(), ..RuntimeMatch::default() },
            action: "drop".to_owned(),
            comment: "\u{1b}[2Jx\nb: src 192.0.2.2 -> drop".to_owned(),
            ..RuleBody::default()
        };
        let row = RuleRow { rule, acts_in: "workers".to_owned(), ..RuleRow::default() };
        assert_eq!(
            line(&row),
            "a: src 192.0.2.1 -> drop, in workers, 0 packets, 0 bytes, user 0 # \\u{1b}[2Jx\\nb: src \
             192.0.2.2 -> drop"
        );
    }

    #[test]
    fn a_match_names_the_rule_that_it_added() {
        let named = |names: &[&str]| named_ids(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(named(&["a", "dst_port=53", "protocol=udp"]), ["a", "protocol:udp:dst_port:53"]);
        assert_eq!(named(&["a", "site=7"]), ["a", "site=7"]);
    }
}
