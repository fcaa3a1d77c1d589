use packet::FlowKey;
use packet::build::FrameBuilder;
use program::{RuleId, RuntimeAction, RuntimeFields, RuntimeForm, RuntimeHeader, Verdict};
use proptest::prelude::*;

use super::*;

const ROOT: RuntimeOwner = RuntimeOwner { uid: 0, rules_max: None };

fn allowed(rules_max: u32) -> RuntimeRules {
    let action = |text: &str| {
        let (text, verdict, sinks) = (text.to_owned(), Verdict::Drop, Vec::new());
        Some(RuntimeAction { text, verdict, sinks, by_workers: Vec::new() })
    };
    let source = RuntimeFields { src: 32, is_v6: Some(false), ..RuntimeFields::default() };
    let both = RuntimeFields { dst: 32, ..source };
    RuntimeRules {
        before: RuleId(0),
        forms: [source, both].map(RuntimeForm::of).to_vec(),
        actions: vec![action("drop"), action("kernel")],
        subject: vec![true],
        rules_max,
        device_rules_max: 0,
    }
}

fn rule(id: &str, src: &str, dst: Option<&str>) -> RuntimeRule {
    let address = |text: &str| text.parse().expect("an address");
    RuntimeRule {
        id: id.into(),
        matches: RuntimeMatch { src: Some(address(src)), dst: dst.map(address), ..RuntimeMatch::default() },
        both_directions: dst.is_some(),
        ..RuntimeRule::default()
    }
}

fn add(
    store: &mut RuntimeStore,
    rule: RuntimeRule,
    owner: RuntimeOwner,
) -> Result<AppliedRequests, RuntimeRefusal> {
    let requests = vec![RuntimeRequest::Add(rule)];
    store.apply(requests, &allowed(8), owner, Instant::now()).map_err(|mut refused| refused.remove(0).1)
}

#[test]
fn a_rule_is_added_once_and_replaced_by_id() {
    let mut store = RuntimeStore::default();
    let first = add(&mut store, rule("a", "192.0.2.1", Some("192.0.2.2")), ROOT).expect("added");
    assert_eq!((first.added, first.changes().len()), (1, 2), "both directions");
    let again = add(&mut store, rule("a", "192.0.2.1", Some("192.0.2.2")), ROOT).expect("unchanged");
    assert_eq!((again.added, again.unchanged, again.changes().len()), (0, 1, 0));
    let other = RuntimeRule { action: 1, ..rule("a", "192.0.2.1", Some("192.0.2.2")) };
    let replaced = add(&mut store, other, ROOT).expect("replaced");
    assert!(replaced.changes().iter().all(|change| matches!(change, RuntimeChange::Add(_))), "{replaced:?}");
    let taken =
        add(&mut store, rule("b", "192.0.2.2", Some("192.0.2.1")), ROOT).expect_err("the same packets");
    assert_eq!(taken.to_string(), "the rule `a` has the same packets (hint: remove it, or use its id)");
    let gone = store.apply(
        vec![RuntimeRequest::Remove("a".into()), RuntimeRequest::Remove("z".into())],
        &allowed(8),
        ROOT,
        Instant::now(),
    );
    let gone = gone.expect("removed");
    assert_eq!((gone.removed, gone.absent, store.len()), (1, 1, 0));
}

#[test]
fn what_the_policy_does_not_allow_is_refused() {
    let mut store = RuntimeStore::default();
    let destination = RuntimeRule {
        matches: RuntimeMatch {
            dst: Some("192.0.2.1".parse().expect("an address")),
            ..RuntimeMatch::default()
        },
        ..rule("a", "192.0.2.1", None)
    };
    let why = add(&mut store, destination, ROOT).expect_err("not listed").to_string();
    assert!(why.contains("compare dst (IPv4): its [runtime] lists src (IPv4), src dst (IPv4)"), "{why}");
    let both = RuntimeRule { both_directions: true, ..rule("a", "192.0.2.1", None) };
    assert!(
        matches!(add(&mut store, both, ROOT), Err(RuntimeRefusal::Form { .. })),
        "the other direction is not"
    );
    let same = rule("a", "192.0.2.1", Some("192.0.2.1"));
    assert_eq!(add(&mut store, same, ROOT).expect_err("one direction"), RuntimeRefusal::OneDirection);
    for id in ["", "a b", "(a)", "a\n", &"x".repeat(129)] {
        assert_eq!(add(&mut store, rule(id, "192.0.2.1", None), ROOT).expect_err(id), RuntimeRefusal::Id);
    }
    for comment in ["\u{1b}]0;x\u{7}", "a\nb", "\u{9b}31m", &"x".repeat(257)] {
        let rule = RuntimeRule { comment: comment.to_owned(), ..rule("a", "192.0.2.1", None) };
        assert_eq!(add(&mut store, rule, ROOT).expect_err(comment), RuntimeRefusal::Comment);
    }
    let zero = RuntimeRule { idle_timeout: Some(Duration::ZERO), ..rule("a", "192.0.2.1", None) };
    assert_eq!(add(&mut store, zero, ROOT).expect_err("no time"), RuntimeRefusal::NoTime);
    assert!(store.is_empty());
}

#[test]
fn users_have_their_own_rules_and_limits() {
    let mut store = RuntimeStore::default();
    let user = RuntimeOwner { uid: 7, rules_max: Some(2) };
    let of_user = |id: &str, src: &str| RuntimeRule { owner: 7, ..rule(id, src, None) };
    for (id, src) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        add(&mut store, of_user(id, src), user).expect("room");
    }
    let full = add(&mut store, of_user("c", "192.0.2.3"), user).expect_err("no room");
    assert_eq!(full, RuntimeRefusal::OwnerFull { uid: 7, max: 2 });
    add(&mut store, rule("d", "192.0.2.4", None), ROOT).expect("root");
    let requests = vec![RuntimeRequest::Remove("a".into()), RuntimeRequest::Remove("d".into())];
    let refused = store.apply(requests, &allowed(8), user, Instant::now()).expect_err("root's");
    assert_eq!(refused, [(1, RuntimeRefusal::NotYours { uid: 0 })]);
    assert_eq!(store.len(), 3, "all or nothing");
    store
        .apply(vec![RuntimeRequest::Remove("a".into())], &allowed(8), ROOT, Instant::now())
        .expect("root may");
    add(&mut store, of_user("c", "192.0.2.3"), user).expect("room again");
    for number in 0..5 {
        add(&mut store, rule(&format!("r{number}"), &format!("198.51.100.{number}"), None), ROOT)
            .expect("room");
    }
    let full = add(&mut store, rule("x", "203.0.113.1", None), ROOT).expect_err("all slots are used");
    assert_eq!(full, RuntimeRefusal::Full { max: 8 });
}

#[test]
fn rules_end_by_time_and_by_silence() {
    let mut store = RuntimeStore::default();
    let begun = Instant::now();
    let seconds = Duration::from_secs;
    let timed = RuntimeRule { time_to_live: Some(seconds(10)), ..rule("ttl", "192.0.2.1", None) };
    let idle = RuntimeRule { idle_timeout: Some(seconds(8)), ..rule("idle", "192.0.2.2", None) };
    let requests = vec![RuntimeRequest::Add(timed.clone()), RuntimeRequest::Add(idle)];
    store.apply(requests, &allowed(8), ROOT, begun).expect("added");
    let mut gone = Vec::new();
    for tick in 1..=400u32 {
        let now = begun + Duration::from_millis(100) * tick;
        if tick == 50 {
            store.apply(vec![RuntimeRequest::Add(timed.clone())], &allowed(8), ROOT, now).expect("renewed");
        }
        // One packet each second, for 20 seconds.
        let packets = u64::from(tick / 10).min(20);
        let (over, changes) = store.expire(now, |_| Some(packets));
        assert_eq!(over.len(), changes.len());
        gone.extend(over.into_iter().map(|stored| (stored.rule.id.to_string(), (now - begun).as_secs_f32())));
    }
    let [(first, at), (second, later)] = gone.as_slice() else { panic!("{gone:?}") };
    assert_eq!((first.as_str(), *at), ("ttl", 15.0));
    assert_eq!(second, "idle");
    assert!((28.0..=30.1).contains(later), "{later}");
    assert_eq!(store.next_due(), None);
}

#[test]
fn a_rule_does_not_end_as_idle_while_its_packets_cannot_be_counted() {
    let mut store = RuntimeStore::default();
    let begun = Instant::now();
    let idle = RuntimeRule { idle_timeout: Some(Duration::from_secs(10)), ..rule("a", "192.0.2.1", None) };
    store.apply(vec![RuntimeRequest::Add(idle)], &allowed(8), ROOT, begun).expect("added");
    let at = |second: u64| begun + Duration::from_secs(second);
    for second in 1..=60 {
        assert!(store.expire(at(second), |_| None).0.is_empty(), "after {second} s");
    }
    // From then on it has its whole time.
    assert!((61..69).all(|second| store.expire(at(second), |_| Some(0)).0.is_empty()));
    assert_eq!(store.expire(at(72), |_| Some(0)).0.len(), 1);
}

type Picture = (
    BTreeMap<String, String>,
    BTreeMap<u32, RuntimeEntry>,
    BTreeSet<(Instant, Arc<str>)>,
    BTreeMap<u32, u32>,
);

#[test]
fn a_refused_batch_renews_no_time() {
    let mut store = RuntimeStore::default();
    let begun = Instant::now();
    let timed = RuntimeRule { time_to_live: Some(Duration::from_secs(10)), ..rule("a", "192.0.2.1", None) };
    store.apply(vec![RuntimeRequest::Add(timed.clone())], &allowed(8), ROOT, begun).expect("added");
    let later = begun + Duration::from_secs(5);
    let bad = RuntimeRequest::Add(rule("a b", "192.0.2.2", None));
    store.apply(vec![RuntimeRequest::Add(timed), bad], &allowed(8), ROOT, later).expect_err("an id");
    assert_eq!(store.get("a").expect("there").ends, Some(begun + Duration::from_secs(10)));
    assert_eq!(store.next_due(), Some(begun + Duration::from_secs(10)));
}

#[test]
fn a_rule_that_is_replaced_by_a_larger_one_needs_room() {
    let mut store = RuntimeStore::default();
    let user = RuntimeOwner { uid: 7, rules_max: Some(3) };
    let one = |id: &str, host: u8| RuntimeRule { owner: 7, ..rule(id, &format!("192.0.2.{host}"), None) };
    let two = |id: &str, host: u8| RuntimeRule {
        owner: 7,
        ..rule(id, &format!("192.0.2.{host}"), Some("198.51.100.1"))
    };
    for (id, host) in [("a", 1), ("b", 2)] {
        add(&mut store, one(id, host), user).expect("room");
    }
    add(&mut store, two("a", 1), user).expect("three slots");
    let full = add(&mut store, two("b", 2), user).expect_err("four slots");
    assert_eq!(full, RuntimeRefusal::OwnerFull { uid: 7, max: 3 });
    add(&mut store, RuntimeRule { action: 1, ..two("a", 1) }, user).expect("as many as before");
    let requests = vec![RuntimeRequest::Add(two("b", 2))];
    let refused = store.apply(requests, &allowed(3), ROOT, Instant::now()).expect_err("of all rules");
    assert_eq!(refused, [(0, RuntimeRefusal::Full { max: 3 })]);
    // A policy with a smaller limit: what is there may be replaced.
    let requests = vec![RuntimeRequest::Add(RuntimeRule { action: 1, ..one("b", 2) })];
    store.apply(requests, &allowed(1), ROOT, Instant::now()).expect("not more than before");
}

/// All that a store has, and what a worker has that follows its changes.
fn picture(store: &RuntimeStore) -> Picture {
    let rules = store.rules.values().map(|stored| {
        let times = (stored.ends, stored.active, stored.due, stored.carried, stored.base);
        (stored.rule.id.to_string(), format!("{:?} {times:?}", stored.rule))
    });
    let entries = store.entries().map(|entry| (entry.slot, entry));
    assert_eq!(store.ids.len(), store.entries().count());
    assert_eq!(store.by_owner.values().sum::<u32>() as usize, store.ids.len());
    assert_eq!(store.next as usize, store.free.len() + store.ids.len());
    let by_owner = store.by_owner.iter().map(|(owner, slots)| (*owner, *slots));
    (rules.collect(), entries.collect(), store.due.clone(), by_owner.collect())
}

fn follow(worker: &mut BTreeMap<u32, RuntimeEntry>, changes: &[RuntimeChange]) {
    for change in changes {
        match change {
            RuntimeChange::Add(entry) => worker.insert(entry.slot, *entry),
            RuntimeChange::Remove { slot } => worker.remove(slot),
        };
    }
}

/// The key and the action of the entry that decides a packet.
fn decision(worker: &BTreeMap<u32, RuntimeEntry>, packet: &RuntimeHeader) -> Option<(RuntimeKey, u8)> {
    allowed(6).forms.iter().find_map(|form| {
        let key = form.key(packet)?;
        let entry = worker.values().find(|entry| entry.key == key)?;
        Some((key, entry.action))
    })
}

/// Checks that packets meet the rules before the changes or those after them, after each one.
fn follow_step_by_step(worker: &mut BTreeMap<u32, RuntimeEntry>, changes: &[RuntimeChange]) {
    let (before, mut after) = (worker.clone(), worker.clone());
    follow(&mut after, changes);
    let packet = |from: u8, to: u8| {
        let frame = FrameBuilder::new().ipv4([192, 0, 2, from].into(), [192, 0, 2, to].into()).udp(1, 2);
        RuntimeHeader::of(&FlowKey::of(&frame.build()))
    };
    for change in changes {
        follow(worker, std::slice::from_ref(change));
        for packet in (0..4).flat_map(|host| [packet(host, 2), packet(2, host), packet(host, 9)]) {
            let now = decision(worker, &packet);
            let allowed = [&before, &after].map(|rules| decision(rules, &packet));
            assert!(allowed.contains(&now), "{now:?} is none of {allowed:?} after {change:?} of {changes:?}");
        }
    }
}

proptest! {
    #[test]
    fn a_batch_is_made_or_undone_as_a_whole(
        batches in prop::collection::vec(
            (prop::collection::vec((0u8..4, 0u8..5, 0u8..4, any::<bool>()), 1..8), any::<bool>()),
            1..12,
        ),
    ) {
        let mut store = RuntimeStore::default();
        let mut worker = BTreeMap::new();
        for (batch, is_taken_back) in batches {
            let before = picture(&store);
            let requests = batch.into_iter().map(|(kind, id, address, idle)| {
                let id = format!("r{id}");
                let (src, dst) = (format!("192.0.2.{address}"), "192.0.2.2");
                let idle_timeout = idle.then_some(Duration::from_secs(5));
                let time_to_live = Some(Duration::from_secs(9));
                let times = |rule| RuntimeRule { idle_timeout, time_to_live, action: kind % 2, ..rule };
                match kind {
                    0 => RuntimeRequest::Remove(id.as_str().into()),
                    1 => RuntimeRequest::Add(times(rule(&id, &src, None))),
                    _ => RuntimeRequest::Add(times(rule(&id, &src, Some(dst)))),
                }
            });
            let applied = store.apply(requests.collect(), &allowed(6), ROOT, Instant::now());
            if let Ok(applied) = applied {
                let counted = CounterValues { packets: 7, bytes: 9 };
                for id in applied.added_ids().cloned().collect::<Vec<_>>() {
                    store.set_base(&id, counted);
                    store.carry(&id, counted);
                }
                if is_taken_back {
                    follow_step_by_step(&mut worker, applied.additions());
                    let renewed: BTreeMap<u32, RuntimeEntry> =
                        store.entries().chain(applied.leaving()).map(|entry| (entry.slot, entry)).collect();
                    prop_assert_eq!(&renewed, &worker, "a worker whose table is renewed meanwhile");
                    follow_step_by_step(&mut worker, &store.undo(applied));
                    prop_assert_eq!(&picture(&store), &before);
                } else {
                    follow_step_by_step(&mut worker, applied.changes());
                }
            } else {
                prop_assert_eq!(&picture(&store), &before);
            }
            prop_assert_eq!(&picture(&store).1, &worker);
        }
    }
}

#[test]
fn withheld_rules_are_kept_from_workers_until_they_are_released() {
    let mut store = RuntimeStore::default();
    add(&mut store, rule("a", "192.0.2.1", None), ROOT).expect("room");
    add(&mut store, rule("b", "192.0.2.3", Some("192.0.2.2")), ROOT).expect("room");
    let all: BTreeMap<u32, RuntimeEntry> = store.entries().map(|entry| (entry.slot, entry)).collect();
    let mut worker = all.clone();
    let changes = store.withhold(&HashSet::from([Arc::from("b")]));
    follow(&mut worker, &changes);
    assert_eq!((changes.len(), worker.len(), store.entries().count()), (2, 1, 1));
    assert_eq!(store.withhold(&HashSet::from([Arc::from("b")])), [], "it is withheld already");
    // Taking its removal back leaves it withheld.
    let applied = store
        .apply(vec![RuntimeRequest::Remove("b".into())], &allowed(6), ROOT, Instant::now())
        .expect("it is there");
    assert_eq!(applied.leaving(), []);
    assert_eq!(store.undo(applied), []);
    follow(&mut worker, &store.withhold(&HashSet::new()));
    assert_eq!(worker, all);
}

#[test]
fn the_rules_that_a_batch_replaces_are_those_that_were_there_before_it() {
    let mut store = RuntimeStore::default();
    add(&mut store, rule("a", "192.0.2.1", None), ROOT).expect("room");
    add(&mut store, rule("b", "192.0.2.2", None), ROOT).expect("room");
    let requests = vec![
        RuntimeRequest::Remove("b".into()),
        RuntimeRequest::Add(rule("a", "192.0.2.3", None)),
        RuntimeRequest::Add(rule("a", "192.0.2.4", None)),
        RuntimeRequest::Add(rule("b", "192.0.2.2", None)),
        RuntimeRequest::Add(rule("b", "192.0.2.5", None)),
    ];
    let applied = store.apply(requests, &allowed(6), ROOT, Instant::now()).expect("room");
    let replaced: Vec<_> =
        applied.replaced().map(|stored| (&*stored.rule.id, stored.rule.matches.src)).collect();
    assert_eq!(replaced, [("a", rule("a", "192.0.2.1", None).matches.src)], "one was removed");
}
