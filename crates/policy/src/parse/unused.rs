//! Warnings about definitions that nothing uses: sinks, and groups of queues. Unused sets and variables are
//! found where they are read, and unused groups of workers when the policy is compiled for a device: workers
//! of a group that no rule names may have to drop packets.

use std::collections::BTreeSet;

use program::{GroupId, SinkId, SinkKind};

use crate::policy::{Action, Policy};

use super::reader::Reader;

/// Warns of sinks that get no packets. The daemon opens them all the same: their interfaces, sockets, files
/// and buffers exist.
pub(super) fn warn_of_sinks(reader: &mut Reader, policy: &Policy) {
    let (groups, sinks) = (used_groups(policy), used_sinks(policy));
    for (index, definition) in policy.sinks.iter().enumerate() {
        let id = SinkId::of(index);
        if sinks.contains(&id) || works_alone(&definition.sink.kind) {
            continue;
        }
        let named = policy.groups.iter().enumerate().filter(|(_, group)| group.sinks.contains(&id));
        let (name, is_named) = (&definition.sink.name, named.clone().next().is_some());
        // A group that no rule names has a warning of its own.
        let group = named.into_iter().find(|(group, _)| groups.contains(&GroupId::of(*group)));
        let (message, hint) = match group {
            Some((_, group)) => {
                let others = format!("every rule of the group `{}` has `sinks` of its own", group.name);
                let hint = "remove it from the group, or leave `sinks` of a rule out";
                (format!("the sink `{name}` gets no packets: {others}"), hint)
            }
            None if is_named => continue,
            None => {
                let hint = "remove it, or name it in `sinks` of a group or a rule";
                (format!("the sink `{name}` is never used"), hint)
            }
        };
        reader.push(definition.place.warning(message, "defined here").hint(hint));
    }
}

/// Warns of groups of queues that no rule steers to.
pub(super) fn warn_of_queues(reader: &mut Reader, policy: &Policy) {
    let used = used_groups(policy);
    let groups = policy.groups.iter().enumerate();
    for (_, group) in groups.filter(|(index, _)| !used.contains(&GroupId::of(*index))) {
        let warning =
            group.place.warning(format!("the group `{}` is never used", group.name), "defined here");
        reader.push(warning.hint("remove it, or steer a rule to it"));
    }
}

/// A sink of kind `kernel` gets what workers return to the host, and the host sends by it; clients of a sink
/// of kind `app` can send.
fn works_alone(kind: &SinkKind) -> bool {
    match kind {
        SinkKind::Kernel(_) => true,
        SinkKind::App(app) => app.transmit,
        SinkKind::Count(_) | SinkKind::Capture(_) | SinkKind::Forward(_) => false,
    }
}

/// The groups that rules, also those at run time, and the default deliver packets to.
fn used_groups(policy: &Policy) -> BTreeSet<GroupId> {
    let rules = policy.rules.iter().map(|rule| rule.action).chain([policy.default]);
    let at_run_time = policy.runtime.iter().flat_map(|runtime| &runtime.actions).map(|(_, action)| *action);
    let group = |action: Action| match action {
        Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => Some(group),
        Action::Drop | Action::Kernel | Action::Pass => None,
    };
    rules.chain(at_run_time).filter_map(group).collect()
}

/// The sinks that get packets of a rule, of rules at run time, or of the default.
fn used_sinks(policy: &Policy) -> BTreeSet<SinkId> {
    let rules = policy.rules.iter().map(|rule| policy.sinks_of(rule.action, rule.sinks.as_deref()));
    let at_run_time = policy.runtime.iter().flat_map(|runtime| &runtime.actions);
    let others = at_run_time.map(|(_, action)| *action).chain([policy.default]);
    rules.chain(others.map(|action| policy.sinks_of(action, None))).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use crate::{NoFiles, Source, parse};

    fn warnings(text: &str) -> Vec<String> {
        let (_, found) = parse(&Source::new("p.toml", text), &NoFiles).unwrap_or_else(|bad| panic!("{bad}"));
        found.iter().map(|one| format!("{}: {}", one.line, one.message)).collect()
    }

    const HEAD: &str = "version = 1\n[sinks.a]\nkind = 'count'\n[sinks.b]\nkind = 'count'\n";
    const RULE: &str = "[[rules]]\nname = 'r'\nmatch = { any = true }\naction = 'steer g'\n";

    #[test]
    fn sinks_without_packets_are_warned_of() {
        let group = |sinks: &str| format!("{HEAD}[groups.g]\nworkers = 'all'\nsinks = {sinks}\n");
        assert_eq!(warnings(&format!("{}{RULE}", group("'a'"))), ["4: the sink `b` is never used"]);
        assert_eq!(
            warnings(&format!("{}{RULE}sinks = 'b'\n", group("'a'"))),
            ["2: the sink `a` gets no packets: every rule of the group `g` has `sinks` of its own"]
        );
        assert_eq!(warnings(&format!("{}{RULE}", group("['a', 'b']"))), [""; 0]);
        let by_default = format!("default = 'g'\n{}{RULE}sinks = 'b'\n", group("'a'"));
        assert_eq!(warnings(&by_default), [""; 0], "the default uses the sinks of the group");
    }

    #[test]
    fn sinks_that_work_without_rules_are_used() {
        let policy = |sinks: &str| {
            let rule = "[[rules]]\nname = 'r'\nmatch = { any = true }\naction = 'drop'\n";
            warnings(&format!("version = 1\n{sinks}{rule}"))
        };
        assert_eq!(policy("[sinks.k]\nkind = 'kernel'\ninterface = 'host0'\n"), [""; 0]);
        let app = "[sinks.s]\nkind = 'app'\nsocket = '/run/s.sock'\n";
        assert_eq!(policy(app), ["2: the sink `s` is never used"]);
        assert_eq!(policy(&format!("{app}transmit = true\n")), [""; 0]);
    }

    #[test]
    fn unused_groups_of_queues_are_warned_of() {
        let text = "version = 1\n[groups.zc]\nqueues = [4]\n[groups.other]\nqueues = [5]\n\
            [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = 'steer zc'\n";
        assert_eq!(warnings(text), ["4: the group `other` is never used"]);
    }
}
