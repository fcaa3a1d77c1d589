//! The rules of a policy that carves queues: no worker receives its packets, so nothing in it may need one.

use program::Policing;

use crate::policy::{Action, Direction, Policy};

use super::reader::Reader;

/// Reports what a policy cannot have beside groups with `queues`.
pub(super) fn refuse(reader: &mut Reader, policy: &Policy) {
    for group in policy.groups.iter().filter(|group| !group.has_queues) {
        let message = format!("the group `{}` has workers, and other groups have queues", group.name);
        let hint = "write one policy for groups with workers and one for groups with queues, each for an interface \
                    of its own";
        reader.push(group.place.error(message, "this group").hint(hint));
    }
    if let Some(sink) = policy.sinks.first() {
        let message = "a policy with queues has no sinks: no worker receives its packets";
        reader.push(sink.place.error(message, "this sink").hint("leave it out"));
    }
    if let Some(runtime) = &policy.runtime {
        let message = "a policy with queues takes no rules at run time";
        let hint = "leave [runtime] out: change the file and reload";
        reader.push(runtime.place.error(message, "here").hint(hint));
    }
    if let Some(recorder) = &policy.recorder {
        let message = "a policy with queues has no recorder: no worker receives its packets";
        reader.push(recorder.place.error(message, "here").hint("leave [recorder] out"));
    }
    for rule in &policy.rules {
        let of_action = match rule.action {
            Action::Copy(_) | Action::Sniff(_) => Some(("copies packets", "use { steer = \"GROUP\" }")),
            _ if rule.direction == Direction::Egress => {
                Some(("is about sent packets", "filters see received packets only"))
            }
            _ if rule.policing != Policing::default() => {
                Some(("limits or samples packets", "leave `limit` and `sample` out"))
            }
            Action::Steer(_) | Action::Drop | Action::Kernel | Action::Pass => None,
        };
        if let Some((what, hint)) = of_action {
            let message =
                format!("the rule `{}` {what}, which needs a worker, and the groups have queues", rule.name);
            reader.push(rule.name_place.error(message, "this rule").hint(hint));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{NoFiles, Source, parse};

    const QUEUES: &str = "version = 1\n[groups.zc]\nqueues = [4, 5]\n";
    const DNS: &str =
        "[[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'zc' }\n";

    fn refusal(text: &str) -> String {
        match parse(&Source::new("p.toml", text), &NoFiles) {
            Ok(_) => String::new(),
            Err(found) => found.list.iter().map(|one| format!("{one}\n")).collect(),
        }
    }

    #[test]
    fn a_policy_of_queues_carves() {
        let text = format!("{QUEUES}{DNS}");
        let (policy, warnings) = parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        assert!(policy.carves_queues() && warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn what_needs_a_worker_is_refused_beside_queues() {
        for (text, expected) in [
            (format!("{QUEUES}[groups.rx]\nworkers = 'all'\n{DNS}"), "the group `rx` has workers"),
            (format!("{QUEUES}weights = {{ 4 = 2 }}\n{DNS}"), "cannot have `weights`"),
            (format!("{QUEUES}workers = 'all'\n{DNS}"), "cannot have `workers`"),
            (format!("{QUEUES}{DNS}limit = '1k/s'\n"), "limits or samples"),
            (QUEUES.to_owned() + &DNS.replace("steer", "copy"), "copies packets"),
            (format!("{QUEUES}[sinks.c]\nkind = 'count'\n{DNS}"), "has no sinks"),
            ("version = 1\n[groups.zc]\nqueues = []\n".to_owned() + DNS, "the group has no queues"),
            ("version = 1\n[groups.zc]\nqueues = [4, 4]\n".to_owned() + DNS, "queue 4 is listed twice"),
            ("version = 1\n[groups.zc]\nqueues = 4\n".to_owned() + DNS, "`queues` must be a list of numbers"),
        ] {
            let found = refusal(&text);
            assert!(found.contains(expected), "{expected} in: {found}");
        }
    }
}
