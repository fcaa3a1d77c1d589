//! Filters that are put on a NIC, changed and removed, with calls that fail and processes that are killed.

use std::collections::BTreeMap;

use nic_filters::{
    CarveError, Carving, Destination, Deviation, FieldBits, Filter, FilterKind, FilterMatch, FilterModel,
    ModelledNic, NicFilters, WantedFilters,
};
use packet::{Field, FlowKey};
use policy::Policy;

use crate::support::{
    MemoryStore, Numbers, QUEUES, carved, decided, decision, model, packets, policy, rule, ternary,
};

type Tested = Carving<ModelledNic, MemoryStore>;

fn open(nic: &ModelledNic, store: &MemoryStore, model: &FilterModel) -> Tested {
    Carving::open(nic.clone(), store.clone(), model.clone(), store.ledger()).expect("the NIC has filters")
}

/// A filter of somebody else.
fn foreign() -> Filter {
    let bits = FieldBits { field: Field::DstPort, value: 9999, mask: 0xffff };
    Filter { matches: FilterMatch::new(FilterKind::Udp4, [bits]), destination: Destination::Queue(7) }
}

fn wanted(rules: &str, model: &FilterModel) -> WantedFilters {
    carved(&policy(rules), model).expect("the NIC can")
}

/// A random policy that the NIC can apply.
fn carvable(numbers: &mut Numbers, model: &FilterModel) -> (Policy, WantedFilters) {
    loop {
        let policy = policy(&numbers.policy(5, &["one", "two", "many", "drop", "kernel"], false));
        if let Ok(wanted) = carved(&policy, model) {
            return (policy, wanted);
        }
    }
}

/// Every table of the history decides every packet as one of the two policies does.
fn assert_old_or_new(
    nic: &ModelledNic,
    history: &[BTreeMap<u32, Filter>],
    policies: [&Policy; 2],
    keys: &[FlowKey],
) {
    for (step, filters) in history.iter().enumerate() {
        for key in keys {
            let found = decided(nic, filters, key).expect("one decision");
            let allowed = policies.map(|policy| decision(policy, key));
            assert!(allowed.contains(&found), "step {step}: {found:?}, allowed {allowed:?}, {key:?}");
        }
    }
}

#[test]
fn a_reload_shows_the_old_policy_or_the_new_one_at_each_step() {
    let (keys, mut numbers) = (packets(), Numbers::new(3));
    let (model, empty) = (ternary(), policy(""));
    let nic = ModelledNic::new(model.clone(), QUEUES);
    nic.place(64, Some(foreign()));
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    let mut before = empty;
    for _ in 0..25 {
        let (next, filters) = carvable(&mut numbers, &model);
        carving.change(&filters).expect("there is room");
        let history = nic.take_history();
        assert_old_or_new(&nic, &history, [&before, &next], &keys);
        assert_old_or_new(&nic, &[nic.filters()], [&next, &next], &keys);
        assert_eq!(nic.filters().get(&64), Some(&foreign()));
        before = next;
    }
    carving.end().expect("all filters go");
    assert_eq!(nic.filters(), BTreeMap::from([(64, foreign())]));
    assert!(nic.contexts().is_empty());
}

#[test]
fn a_call_that_fails_leaves_the_old_policy() {
    // Some packets of each kind: every call of every change fails once, and every step is examined.
    let keys: Vec<FlowKey> = packets().into_iter().step_by(7).collect();
    let (mut numbers, model) = (Numbers::new(4), ternary());
    for _ in 0..4 {
        let (old, old_filters) = carvable(&mut numbers, &model);
        let (new, new_filters) = carvable(&mut numbers, &model);
        for failing in 0.. {
            let nic = ModelledNic::new(model.clone(), QUEUES);
            let store = MemoryStore::default();
            let mut carving = open(&nic, &store, &model);
            carving.change(&old_filters).expect("there is room");
            let (before, contexts) = (nic.filters(), nic.contexts());
            drop(nic.take_history());
            nic.fail([failing]);
            let changed = carving.change(&new_filters);
            assert_old_or_new(&nic, &nic.take_history(), [&old, &new], &keys);
            if nic.calls() <= failing {
                assert!(changed.is_ok(), "no call failed");
                break;
            }
            // The removal of a context may fail after the change.
            if changed.is_err() {
                assert_eq!(nic.filters(), before, "call {failing}");
                assert_eq!(nic.contexts(), contexts, "call {failing}");
                assert!(carving.deviation().expect("listed").is_none());
                carving.change(&new_filters).expect("the next attempt succeeds");
            }
            assert_old_or_new(&nic, &[nic.filters()], [&new, &new], &keys);
            carving.end().expect("all filters go");
            assert!(nic.filters().is_empty() && nic.contexts().is_empty());
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind_for_good() {
    for model in [ternary(), model("fbnic"), model("mlx5")] {
        let rules = |queue: &str| {
            [
                rule("dns", "protocol = 'udp', dst_port = 53", queue),
                rule("web", "protocol = 'tcp', dst_port = 80", "many"),
                rule("ntp", "protocol = 'udp', dst_port = 123", "drop"),
            ]
            .concat()
        };
        let (old, new) = (wanted(&rules("one"), &model), wanted(&rules("two"), &model));
        for killed in 0..24 {
            let nic = ModelledNic::new(model.clone(), QUEUES);
            nic.place(3, Some(foreign()));
            let store = MemoryStore::default();
            let mut carving = open(&nic, &store, &model);
            carving.change(&old).expect("there is room");
            // From this call on nothing reaches the NIC.
            nic.fail(killed..1000);
            store.end_with_call(&nic, killed);
            let _ = carving.change(&new);
            drop(carving);
            let store = store.of_next_process();
            nic.fail([]);
            let mut next = open(&nic, &store, &model);
            let left: Vec<String> = next.foreign().expect("listed").iter().map(ToString::to_string).collect();
            assert_eq!(left, [format!("location 3: {}", foreign())], "{}: killed at {killed}", model.name);
            next.change(&old).expect("the policy of the next start");
            assert_eq!(nic.filters().len(), 1 + old.filters.len());
            next.end().expect("all filters go");
            assert_eq!(nic.filters(), BTreeMap::from([(3, foreign())]), "{}: killed at {killed}", model.name);
            assert!(nic.contexts().is_empty(), "{}: killed at {killed}", model.name);
        }
    }
}

#[test]
fn unchanged_filters_are_taken_over_from_a_process_that_was_killed() {
    let model = model("mlx5");
    let (nic, store) = (ModelledNic::new(model.clone(), QUEUES), MemoryStore::default());
    let filters = wanted(&rule("dns", "protocol = 'udp', dst_port = 53", "many"), &model);
    open(&nic, &store, &model).change(&filters).expect("there is room");
    nic.fail([]);
    let summary = open(&nic, &store, &model).change(&filters).expect("nothing to do");
    assert!(summary.is_unchanged() && summary.kept == filters.filters.len(), "{summary:?}");
    assert_eq!(nic.calls(), 0);
}

#[test]
fn a_filter_that_somebody_has_changed_is_left_alone() {
    let model = model("mlx5");
    let (nic, store) = (ModelledNic::new(model.clone(), QUEUES), MemoryStore::default());
    let filters = wanted(&rule("dns", "family = 'ipv4', protocol = 'udp', dst_port = 53", "one"), &model);
    let mut carving = open(&nic, &store, &model);
    carving.change(&filters).expect("there is room");
    let location = *nic.filters().keys().next().expect("one filter");
    nic.place(location, Some(foreign()));
    assert_eq!(carving.deviation().expect("listed"), Deviation { missing: 1, ..Deviation::default() });
    carving.change(&filters).expect("it is inserted again");
    assert_eq!(nic.filters().len(), 2);
    carving.end().expect("ours goes");
    assert_eq!(nic.filters(), BTreeMap::from([(location, foreign())]));
}

#[test]
fn the_match_of_another_program_is_refused() {
    let model = model("ixgbe");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    nic.place(5, Some(foreign()));
    let filters = wanted(&rule("r", "family = 'ipv4', protocol = 'udp', dst_port = 9999", "one"), &model);
    let refused = open(&nic, &MemoryStore::default(), &model).change(&filters).expect_err("it is taken");
    assert!(matches!(refused, CarveError::Taken { .. }));
    assert!(refused.to_string().contains("delete 5"), "{refused}");
    assert_eq!(nic.filters().len(), 1);
}

#[test]
fn a_condition_that_a_driver_ignores_is_found() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    nic.ignore(Field::DstPort);
    let filters = wanted(&rule("r", "family = 'ipv4', protocol = 'udp', dst_port = 53", "one"), &model);
    let refused =
        open(&nic, &MemoryStore::default(), &model).change(&filters).expect_err("it matches all of UDP");
    assert!(refused.to_string().contains("lists it as \"location"), "{refused}");
    assert!(nic.filters().is_empty());
}

#[test]
fn a_destination_changes_with_one_replacement_where_equal_matches_are_refused() {
    for name in ["mlx5", "ixgbe", "fbnic"] {
        let model = model(name);
        let nic = ModelledNic::new(model.clone(), QUEUES);
        let mut carving = open(&nic, &MemoryStore::default(), &model);
        let filters =
            |queue| wanted(&rule("r", "family = 'ipv4', protocol = 'udp', dst_port = 53", queue), &model);
        carving.change(&filters("one")).expect("there is room");
        let summary = carving.change(&filters("two")).expect("it is replaced");
        assert_eq!((summary.replaced, summary.inserted, summary.removed), (1, 0, 0), "{name}");
        let filter = nic.filters().into_values().next().expect("one filter");
        assert_eq!(filter.destination, Destination::Queue(2));
        nic.fail([0]);
        carving.change(&filters("one")).expect_err("the call fails");
        let filter = nic.filters().into_values().next().expect("one filter");
        assert_eq!(filter.destination, Destination::Queue(2), "{name}");
    }
}

#[test]
fn groups_of_the_same_queues_share_a_context() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    let rules = [
        rule("dns", "protocol = 'udp', dst_port = 53", "many"),
        rule("web", "protocol = 'tcp', dst_port = 80", "many"),
    ];
    carving.change(&wanted(&rules.concat(), &model)).expect("there is room");
    let contexts = nic.contexts();
    assert_eq!(contexts.len(), 1);
    let table = contexts.into_values().next().expect("one context");
    assert_eq!((table.len(), &table[..4]), (128, &[4, 5, 6, 4][..]));
    carving
        .change(&wanted(&rule("dns", "protocol = 'udp', dst_port = 53", "one"), &model))
        .expect("replaced");
    assert!(nic.contexts().is_empty(), "a context that no filter uses goes");
}

#[test]
fn filters_and_contexts_come_back_after_a_reset_of_the_driver() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    let filters = wanted(&rule("web", "protocol = 'tcp', dst_port = 80", "many"), &model);
    carving.change(&filters).expect("there is room");
    nic.reset();
    let missing = filters.filters.len();
    assert_eq!(
        carving.deviation().expect("listed"),
        Deviation { missing, missing_contexts: 1, ..Deviation::default() }
    );
    carving.change(&filters).expect("they are inserted again");
    assert_eq!((nic.filters().len(), nic.contexts().len()), (filters.filters.len(), 1));
    carving.end().expect("all go");
    assert!(nic.filters().is_empty() && nic.contexts().is_empty());
}

#[test]
fn the_end_removes_all_but_the_filter_whose_removal_fails() {
    let model = model("mlx5");
    let (nic, store) = (ModelledNic::new(model.clone(), QUEUES), MemoryStore::default());
    let mut carving = open(&nic, &store, &model);
    let rules = [
        rule("dns", "protocol = 'udp', dst_port = 53", "one"),
        rule("web", "protocol = 'tcp', dst_port = 80", "many"),
    ];
    let filters = wanted(&rules.concat(), &model);
    assert_eq!(filters.filters.len(), 4);
    carving.change(&filters).expect("there is room");
    // The first removal is that of a filter to a queue, so that the context is free.
    let last = nic.filters().into_iter().next_back().expect("4 filters");
    nic.fail([0]);
    carving.end().expect_err("the first removal fails");
    assert_eq!(nic.filters(), BTreeMap::from([last.clone()]), "nothing is inserted again");
    let left: Vec<_> = store.ledger().filters.into_iter().map(|ours| (ours.location, ours.filter)).collect();
    assert_eq!(left, [(Some(last.0), last.1)]);
    nic.fail([]);
    assert_eq!(carving.end().expect("the rest goes").removed, 1);
    assert!(nic.filters().is_empty() && nic.contexts().is_empty() && store.ledger().is_empty());
}

#[test]
fn a_change_that_cannot_be_undone_is_a_deviation_until_it_is_repaired() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    let one = |port: u16, group: &str| {
        rule(&format!("r{port}"), &format!("family = 'ipv4', protocol = 'udp', dst_port = {port}"), group)
    };
    let old = wanted(&one(53, "one"), &model);
    carving.change(&old).expect("there is room");
    let before = nic.filters();
    // The second insertion fails, and the removal of the first one.
    nic.fail([1, 2]);
    let new = wanted(&[one(80, "one"), one(81, "one"), one(53, "one")].concat(), &model);
    let failed = carving.change(&new).expect_err("a call fails");
    assert!(matches!(failed, CarveError::NotUndone { .. }), "{failed}");
    assert_eq!(carving.deviation().expect("listed"), Deviation { surplus: 1, ..Deviation::default() });
    nic.fail([]);
    carving.change(&old).expect("it is repaired");
    assert_eq!(nic.filters(), before);
    assert!(carving.deviation().expect("listed").is_none());
}

#[test]
fn a_replacement_that_cannot_be_undone_is_a_deviation_until_it_is_repaired() {
    let model = model("fbnic");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    let filters =
        |group| wanted(&rule("r", "family = 'ipv4', protocol = 'udp', dst_port = 53", group), &model);
    carving.change(&filters("one")).expect("there is room");
    let before = nic.filters();
    // The old filter is removed, and neither the new one nor the old one can be inserted.
    nic.fail([1, 2]);
    let failed = carving.change(&filters("two")).expect_err("a call fails");
    assert!(matches!(failed, CarveError::NotUndone { .. }), "{failed}");
    nic.fail([]);
    assert_eq!(carving.deviation().expect("listed"), Deviation { missing: 1, ..Deviation::default() });
    carving.change(&filters("one")).expect("it is repaired");
    assert_eq!(nic.filters(), before);
}

#[test]
fn a_context_that_is_gone_is_a_deviation() {
    let model = model("mlx5");
    let mut nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    let filters = wanted(&rule("web", "family = 'ipv4', protocol = 'tcp', dst_port = 80", "many"), &model);
    carving.change(&filters).expect("there is room");
    let (location, filter) = nic.filters().into_iter().next().expect("one filter");
    let context = *nic.contexts().keys().next().expect("one context");
    nic.place(location, None);
    nic.remove_context(context).expect("no filter uses it");
    nic.place(location, Some(filter));
    let deviation = carving.deviation().expect("listed");
    assert_eq!(deviation, Deviation { missing_contexts: 1, ..Deviation::default() });
}

#[test]
fn masks_change_by_removing_all_filters_first_where_the_nic_has_one_set() {
    for name in ["ixgbe", "cautious"] {
        let model = model(name);
        let nic = ModelledNic::new(model.clone(), QUEUES);
        let mut carving = open(&nic, &MemoryStore::default(), &model);
        let by_port =
            wanted(&rule("r", "family = 'ipv4', protocol = 'udp', dst_port = [53, 123]", "one"), &model);
        let by_address =
            wanted(&rule("r", "family = 'ipv4', protocol = 'udp', dst = '192.0.2.1'", "one"), &model);
        carving.change(&by_port).expect("there is room");
        let before = nic.filters();
        nic.fail([2]);
        carving.change(&by_address).expect_err("the insertion fails");
        assert_eq!(nic.filters(), before, "{name}: the old filters are inserted again");
        nic.fail([]);
        let summary = carving.change(&by_address).expect("the old filters go first");
        assert_eq!((summary.removed_first, summary.removed, summary.inserted), (2, 2, 1), "{name}");
        nic.place(60, Some(foreign()));
        let refused = carving.change(&by_address).expect_err("other masks");
        assert!(matches!(refused, CarveError::OtherMasks { .. }), "{refused}");
        assert!(refused.to_string().contains("delete 60"), "{refused}");
        assert_eq!(nic.filters().len(), 2);
    }
}

#[test]
fn the_queues_of_the_interface_are_read_again() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving = open(&nic, &MemoryStore::default(), &model);
    assert_eq!(carving.room().expect("listed").queues, Some(QUEUES));
    nic.set_queues(2);
    assert_eq!(carving.room().expect("listed").queues, Some(2));
}
