//! Rules at run time on workers, between reloads and with packets before every call to the device: each
//! packet is decided by the rules that there are and by one of the two programs, as a plain model says.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{RuntimeOwner, RuntimeRequest, RuntimeRule, RuntimeStore};
use packet::FlowKey;
use packet::build::FrameBuilder;
use program::{Outcome, Predicate, Program, RUNTIME_RULES, RuntimeChange, RuntimeMatch};
use proptest::prelude::*;
use worker::Traffic;

use crate::support::{Rig, Seen, compile_beside};

const OWNER: RuntimeOwner = RuntimeOwner { uid: 0, rules_max: None };
const PATIENCE: Duration = Duration::from_secs(20);
/// Few enough that the workers' queues hold what arrives during one reload.
const FRAMES_PER_CALL: usize = 8;

/// The policies differ in the place of the rules, in their forms and actions.
const POLICIES: [&str; 3] = [
    r#"
version = 1
default = "every"
[groups.every]
workers = [0, 1]
[groups.aside]
workers = [1]
[runtime]
before = "web"
matches = ["src dst_port", "src", "dst_port protocol"]
actions = ["drop", "steer aside"]
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "every" }
[[rules]]
name = "syn"
match = { protocol = "tcp", dst_port = 80, tcp_flags = "syn,!ack" }
action = "drop"
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 80 }
action = { steer = "every" }
"#,
    r#"
version = 1
default = "every"
[groups.every]
workers = [1, 0]
[groups.aside]
workers = [0]
[runtime]
before = "syn"
matches = ["dst_port protocol", "src/30", "src"]
actions = ["steer aside", "drop"]
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = [80, 443] }
action = { copy = "aside" }
[[rules]]
name = "syn"
match = { protocol = "tcp", tcp_flags = "syn,!ack" }
action = { steer = "every" }
[[rules]]
name = "dns"
match = { protocol = "udp" }
action = { steer = "every" }
"#,
    r#"
version = 1
default = "every"
[groups.every]
workers = [0, 1]
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 80 }
action = { steer = "every" }
"#,
];

fn traffic() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for host in 0..8u8 {
        let base = || FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, host), Ipv4Addr::new(192, 0, 2, 1));
        for port in [53, 54] {
            frames.push(base().udp(1000 + u16::from(host), port).build());
        }
        for (port, flags) in [(80, 0x02), (80, 0x10), (443, 0x10)] {
            frames.push(base().tcp(2000 + u16::from(host), port, flags).build());
        }
    }
    frames
}

/// The decision on a packet that no copy is, in words.
pub(crate) fn expected(program: &Program, store: &RuntimeStore, key: &FlowKey) -> String {
    let outcome = program.explain(key).outcome;
    let by_policy =
        || format!("{}: {}", program.rules[outcome.rule.index()].name, program.describe(outcome.verdict));
    let Some(allowed) = program.runtime.as_ref().filter(|allowed| allowed.subject[outcome.rule.index()])
    else {
        return by_policy();
    };
    let matching = |form: &program::RuntimeForm| {
        store.rules().find(|stored| {
            let both = [
                Some(stored.rule.matches),
                stored.rule.both_directions.then(|| stored.rule.matches.reversed()),
            ];
            both.into_iter().flatten().any(|matches: RuntimeMatch| {
                matches.fields() == Ok(form.fields()) && Predicate::of(&matches.to_match()).matches(key)
            })
        })
    };
    let action = allowed.forms.iter().find_map(|form| {
        let rule = matching(form)?;
        allowed.actions.get(usize::from(rule.rule.action))?.as_ref()
    });
    action.map_or_else(by_policy, |action| format!("{RUNTIME_RULES}: {}", program.describe(action.verdict)))
}

pub(crate) fn in_words(program: &Program, outcome: Outcome) -> String {
    let rule = program.rules.get(outcome.rule.index()).map_or(RUNTIME_RULES, |rule| rule.name.as_str());
    format!("{rule}: {}", program.describe(outcome.verdict))
}

/// The room of the workers' tables.
const SLOTS: u32 = 64;

/// Gives changes to the workers, which are stepped meanwhile.
fn tell(rig: &Rig, changes: &[RuntimeChange], store: &RuntimeStore, all: bool) {
    for worker in rig.workers.borrow_mut().iter_mut() {
        let control = worker.control();
        std::thread::scope(|scope| {
            let telling = scope.spawn(|| match all {
                true => control.replace_runtime_rules(SLOTS, store.entries(), PATIENCE),
                false => control.change_runtime_rules(changes, PATIENCE),
            });
            while !telling.is_finished() {
                worker.step();
            }
            telling.join().expect("no panic").expect("in time");
        });
    }
}

/// The packets of all rules that there were.
fn counted(rig: &Rig) -> u64 {
    let workers = rig.workers.borrow();
    let traffic = workers.iter().flat_map(|worker| worker.control().runtime_traffic(0..SLOTS));
    traffic.map(|Traffic { packets, .. }| packets).sum()
}

/// A rule: the field that it compares beside the source, and the numbers in it.
pub(crate) type Wish = (u8, u8, u8, bool, bool);

pub(crate) fn request(
    allowed: &program::RuntimeRules,
    (kind, id, host, drops, removes): Wish,
) -> RuntimeRequest {
    let id: Arc<str> = format!("r{}", id % 6).as_str().into();
    let action = allowed.action(if drops { "drop" } else { "steer aside" });
    let (false, Some(action)) = (removes, action) else { return RuntimeRequest::Remove(id) };
    let source = format!("10.0.0.{}", host % 8).parse().ok();
    let port = [53, 54, 80, 443][usize::from(host % 4)];
    let matches = match kind % 4 {
        0 => RuntimeMatch { src: source, ..RuntimeMatch::default() },
        1 => RuntimeMatch { src: source, dst_port: Some(port), ..RuntimeMatch::default() },
        2 => RuntimeMatch {
            src: format!("10.0.0.{}/30", host % 2 * 4).parse().ok(),
            ..RuntimeMatch::default()
        },
        _ => RuntimeMatch {
            protocol: Some(program::ProtocolNumber(if host % 2 == 0 { 6 } else { 17 })),
            dst_port: Some(port),
            ..RuntimeMatch::default()
        },
    };
    RuntimeRequest::Add(RuntimeRule { id, matches, action, ..RuntimeRule::default() })
}

fn wishes() -> impl Strategy<Value = Vec<(u8, Vec<Wish>)>> {
    let wish = (any::<u8>(), any::<u8>(), any::<u8>(), any::<bool>(), prop::bool::weighted(0.2));
    prop::collection::vec((0u8..6, prop::collection::vec(wish, 0..4)), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_meets_rules_and_policy_as_they_are(steps in wishes()) {
        let mut rig = Rig::new(1, 2);
        let mut installed: Vec<Arc<Program>> = Vec::new();
        let mut store = RuntimeStore::default();
        let (mut has_table, mut by_rules) = (false, 0);
        rig.frames_per_call.set(FRAMES_PER_CALL);
        for (policy, wishes) in steps {
            rig.send(1, traffic());
            let policy = POLICIES.get(usize::from(policy));
            if let Some(policy) = policy.or(POLICIES.first().filter(|_| installed.is_empty())) {
                let program = compile_beside(policy, 2, installed.last().map(|program| &**program));
                installed.push(rig.install_program(&program).expect("the soft NIC takes it").program);
                rig.settle();
                // Before the rules change: one of the two programs with the rules as they were.
                let (judged, old) = (rig.seen(), installed.len().checked_sub(2).map(|old| &installed[old]));
                by_rules += judge(&judged, old, &installed, &store);
                let (_, changes) = store.retain_allowed(program.runtime.as_ref());
                if has_table {
                    tell(&rig, &changes, &store, false);
                }
            }
            rig.settle();
            by_rules += judge(&rig.seen(), None, &installed, &store);
            let program = installed.last().expect("one is installed");
            let Some(allowed) = program.runtime.as_ref() else { continue };
            let requests: Vec<_> = wishes.into_iter().map(|wish| request(allowed, wish)).collect();
            if let Ok(applied) = store.apply(requests, allowed, OWNER, Instant::now()) {
                tell(&rig, applied.changes(), &store, !has_table);
                has_table = true;
            }
            rig.send(1, traffic());
            rig.settle();
            by_rules += judge(&rig.seen(), None, &installed, &store);
        }
        prop_assert_eq!(counted(&rig), by_rules);
        let of_workers: u64 = rig.snapshots().iter().flat_map(|snapshot| snapshot.rules.clone())
            .filter(|rule| rule.name == RUNTIME_RULES).map(|rule| rule.traffic.packets).sum();
        prop_assert_eq!(of_workers, by_rules);
        prop_assert!(rig.snapshots().iter().all(|snapshot| snapshot.imbalance() == 0));
    }
}

/// Checks each packet against the last program, or also the one before; returns how many rules at run time
/// have decided.
fn judge(seen: &[Seen], old: Option<&Arc<Program>>, installed: &[Arc<Program>], store: &RuntimeStore) -> u64 {
    let new = installed.last().expect("one is installed");
    let mut by_rules = 0;
    for packet in seen {
        let of = &installed[packet.generation as usize - 1];
        let decided = in_words(of, packet.outcome);
        by_rules += u64::from(decided.starts_with(RUNTIME_RULES));
        let key = FlowKey::of(&packet.bytes);
        if is_copy(of, packet) {
            continue;
        }
        let expected: Vec<String> =
            [Some(new), old].into_iter().flatten().map(|program| expected(program, store, &key)).collect();
        assert!(expected.contains(&decided), "{decided} instead of {expected:?}: {packet:?}");
    }
    by_rules
}

/// Whether the packet is a copy, which rules at run time leave alone.
fn is_copy(program: &Program, seen: &Seen) -> bool {
    let copies = program.flows.iter().filter(|flow| flow.kind == program::FlowKind::Copy);
    copies.into_iter().any(|flow| flow.rule == seen.outcome.rule)
}
