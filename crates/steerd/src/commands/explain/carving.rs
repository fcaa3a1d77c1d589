//! `explain` of a packet under a policy that carves queues: the first rule that matches decides, whatever the
//! NIC. Which of several queues gets the packet is up to the hash of the NIC.

use policy::policy::{Action, Workers};
use program::{DEFAULT_RULE, Predicate};
use serde::Serialize;

use crate::cli::{ExplainArgs, Format};
use crate::commands::Error;
use crate::policy_file::Read;
use crate::terminal::output;

/// Described in docs/reference/commands/explain.md.
#[derive(Serialize)]
struct CarvedPacket {
    rule: String,
    /// `null`: the default, which the policy leaves out.
    line: Option<u32>,
    action: String,
    /// The queues one of which gets the packet; none if it is dropped, or left to the kernel.
    queues: Vec<u32>,
}

pub(super) fn run(args: &ExplainArgs, read: &Read) -> Result<(), Error> {
    if args.pcap.is_some() {
        let why = "the policy carves queues, and --pcap is about workers (hint: --packet or --hex; `steerd run --interface` puts \
                   it on a NIC)";
        return Err(Error::Packet(why.to_owned()));
    }
    let (key, policy) = (super::key_of(args)?, &read.policy);
    let index = policy.rules.iter().position(|rule| Predicate::of(&rule.matches).matches_deep(&key));
    let rule = index.and_then(|index| policy.rules.get(index));
    let action = rule.map_or(policy.default, |rule| rule.action);
    let group = match action {
        Action::Steer(group) => policy.groups.get(group.index()),
        _ => None,
    };
    let queues = match group.map(|group| &group.workers) {
        Some(Workers::Listed(listed)) => listed.iter().map(|share| share.worker).collect(),
        Some(Workers::All) | None => Vec::new(),
    };
    let packet = CarvedPacket {
        rule: rule.map_or(DEFAULT_RULE, |rule| rule.name.as_str()).to_owned(),
        line: match rule {
            Some(rule) => Some(rule.name_place.line()),
            None => policy.default_given.then(|| policy.default_place.line()),
        },
        action: reports::written_action(policy, index.unwrap_or(policy.rules.len())),
        queues,
    };
    match args.policy.printed.format() {
        Format::Json => output::print_json(&packet)?,
        Format::Text => output::print(&packet.text(action))?,
    }
    Ok(())
}

impl CarvedPacket {
    fn text(&self, action: Action) -> String {
        let line = self.line.map_or_else(String::new, |line| format!(" (line {line})"));
        let numbers: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        let queues = match (action, &*numbers) {
            (Action::Drop, _) => "none".to_owned(),
            (_, []) => "those of the interface".to_owned(),
            (_, [queue]) => queue.clone(),
            _ => format!("{}, by the hash of the NIC", numbers.join(", ")),
        };
        format!("rule     {}{line}\naction   {}\nqueues   {queues}\n", self.rule, self.action)
    }
}
