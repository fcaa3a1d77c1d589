//! Device models that are found by trying: on the soft NIC they are those that it imitates, and a soft NIC
//! that imitates a file is found to be what the file says.

use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::model::{self, Bounds, FoundModel, Note};
use conformance::soft::SoftDevice;
use conformance::{Bench, Peer, cases, run};
use device_model::{DeviceModel, Errno, Feature, Limit};
use softnic::Personality;
use test_support::not_run;
use verbs::PortNumber;

/// Enough for the most masks and copies of the soft NIC.
const BOUNDS: Bounds = Bounds { flows: 5000, objects: 64, copies: 1100 };

/// `None`, with a message on stderr: this user may not create flows.
fn find(personality: Personality, fallback: &DeviceModel, has_peer: bool) -> Option<FoundModel> {
    let device = SoftDevice::new(personality).expect("a soft NIC");
    let peer = has_peer.then_some(&device as &dyn Peer);
    let bench = Bench::new(device.context(), PortNumber(1), peer).expect("a bench");
    let found = model::find(&bench, fallback, BOUNDS, &mut |_, _, _| ()).expect("it can be tried");
    if matches!(found.notes.get("priorities"), Some(Note::Fallback(why)) if why.contains("CAP_NET_RAW")) {
        not_run(&format!("{personality}: a model found by trying"), "needs CAP_NET_RAW");
        return None;
    }
    Some(found)
}

fn read(text: &str) -> DeviceModel {
    DeviceModel::parse(Path::new("found.toml"), text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_soft_nic_that_imitates_a_found_model_is_found_to_be_that_model() {
    let folder = tempfile::tempdir().expect("folder");
    for personality in Personality::ALL {
        let built_in = personality.model();
        let Some(first) = find(personality, &built_in, true) else { continue };
        let text = model::text(&first);
        assert_eq!(read(&text), first.profile, "the file has the whole model");
        let path = folder.path().join(format!("{personality}.toml"));
        std::fs::write(&path, &text).expect("written");
        let imitated: Personality = path.to_str().expect("path").parse().expect("a personality");
        let again = find(imitated, &built_in, true).expect("as before");
        assert_eq!(model::text(&again), text, "{personality}");
    }
}

/// Limits that differ from those of every built-in model are imitated, and found again.
#[test]
fn limits_of_a_file_are_those_of_the_soft_nic() {
    let text = "name = \"softnic0\"\npersonality = \"ideal\"\npriorities = 9\nmax_specs = 5\nmax_table = 32\n\
                tag_bits = 28\nmax_flows = 40\nmax_shapes = 12\nmax_queues = 20\nmax_tables = 10\nmax_receives = 100\n\
                max_counters = 7\nmax_copies = 3\nhash_field_pairs = true\ntable_consecutive = true\n\
                multicast_ignores_priority = true\n\
                refusals = [{ feature = \"tos\", errno = \"EIO\", source = \"x\" }, { feature = \"vlan\", errno = \"SILENT\", source = \"x\" }]\n\
                limits = [{ limit = \"flows\", errno = \"EBUSY\", source = \"x\" }, { limit = \"shapes\", errno = \"ENOSPC\", source = \"x\" }]\n";
    let wanted = read(text);
    let found =
        find(Personality::of(wanted.clone()), &DeviceModel::ideal(), true).expect("no privilege needed");
    let found = found.profile;
    let numbers = |model: &DeviceModel| {
        let flows = [model.max_flows, model.max_shapes, model.max_copies, model.max_counters];
        let objects = [model.max_queues, model.max_tables, model.max_receives];
        (model.priorities, model.max_specs, model.max_table, model.tag_bits, flows, objects)
    };
    assert_eq!(numbers(&found), numbers(&wanted));
    assert!(found.table_consecutive && found.multicast_ignores_priority && found.hash_field_pairs);
    let refused: Vec<(Feature, Errno)> = found.refusals.iter().map(|row| (row.feature, row.errno)).collect();
    assert_eq!(refused, [(Feature::Vlan, Errno::Silent), (Feature::Tos, Errno::Eio)]);
    assert_eq!((found.errno(Limit::Flows), found.errno(Limit::Shapes)), (Errno::Ebusy, Errno::Enospc));
}

/// The model found on the soft NIC is the model that it imitates. The exceptions, and why they cannot be
/// found:
/// - `max_flows`: the soft NIC holds 262,144, more than are tried;
/// - `max_queues`, `max_tables`: the device reports them, and `control` prefers that to the model;
/// - `max_table`: of mlx5 the model has an estimate, and `control` prefers what the device reports;
/// - `max_copies` of mlx4: it refuses copies;
/// - `hash_field_exclusive` of ideal: the soft NIC hashes any fields together, and the model says otherwise
///   so that its programs are those of real devices;
/// - the errno of `count` on mlx4: without counters there is no flow that could be refused;
/// - `dependences`: found by trying, so they are either refusals or nothing;
/// - `roce_port`: there is no trial of it, and software has none.
#[test]
fn what_is_found_on_the_soft_nic_is_what_it_imitates() {
    for personality in Personality::ALL {
        let built_in = personality.model();
        let Some(FoundModel { profile: found, .. }) = find(personality, &built_in, true) else { continue };
        let is = |wanted: Personality| personality == wanted;
        let wanted = DeviceModel {
            max_receives: built_in.max_receives,
            roce_port: built_in.roce_port,
            max_flows: found.max_flows,
            max_queues: found.max_queues,
            max_tables: found.max_tables,
            max_table: found.max_table,
            max_copies: if is(Personality::Mlx4) { found.max_copies } else { Some(1024) },
            hash_field_exclusive: built_in.hash_field_exclusive && !is(Personality::Ideal),
            name: found.name.clone(),
            dependences: Vec::new(),
            refusals: Vec::new(),
            limits: Vec::new(),
            emulation: found.emulation.clone(),
            ..built_in.clone().in_software()
        };
        let bare = DeviceModel { refusals: Vec::new(), limits: Vec::new(), ..found.clone() };
        assert_eq!(bare, wanted, "{personality}");
        for feature in Feature::ALL {
            let errno = |model: &DeviceModel| {
                let errno = model.refusal(feature).map(|row| row.errno);
                if feature == Feature::Count { errno.map(|_| Errno::Einval) } else { errno }
            };
            assert_eq!(errno(&found), errno(&built_in), "{personality}: {feature:?}");
        }
        for row in &built_in.limits {
            assert_eq!(found.errno(row.limit), row.errno, "{personality}: {:?}", row.limit);
        }
    }
}

#[test]
fn rows_that_need_frames_are_those_of_the_fallback_and_say_so() {
    let conservative = DeviceModel::conservative();
    let Some(found) = find(Personality::Ideal, &conservative, false) else { return };
    let text = model::text(&found);
    // What is accepted and may have no effect stays refused; what is accepted otherwise is not.
    let src_mac = found.profile.refusal(Feature::SrcMac).expect("mlx4 ignores it");
    assert_eq!(src_mac.errno, Errno::Silent);
    assert!(found.profile.allows(Feature::Ipv6) && !found.profile.allows(Feature::Sniffer));
    assert!(found.profile.multicast_ignores_priority, "as in the conservative model");
    let comments = |key: &str| {
        let line = text.lines().find(|line| line.contains(key)).unwrap_or_default();
        line.contains("# not found by trying (needs a peer")
            && line.contains("as in the model \"conservative\"")
    };
    assert!(comments("multicast_ignores_priority") && comments("\"src_mac\""), "{text}");
    assert_eq!((found.profile.priorities, found.profile.tag_bits), (65536, 32), "found without frames");
    assert_eq!(read(&text), found.profile);
}

/// With one queue pair the probe can create flows on its own, but no case can prepare its receiver: the flow
/// of the case was never created, so the fallback's refusals stay.
#[test]
fn features_whose_case_was_not_prepared_are_those_of_the_fallback() {
    let conservative = DeviceModel::conservative();
    let refusal = conservative.refusal(Feature::Ipv6).expect("mlx4 has no IPv6 flows");
    let one = DeviceModel { max_queues: Some(1), ..DeviceModel::ideal() };
    for has_peer in [false, true] {
        let Some(found) = find(Personality::of(one.clone()), &conservative, has_peer) else { return };
        assert_eq!(found.profile.refusal(Feature::Ipv6), Some(refusal));
        let noted = found.notes.get("refusals.ipv6");
        assert!(matches!(noted, Some(Note::Fallback(why)) if why.contains("not prepared")), "{noted:?}");
        assert_eq!(found.profile.max_queues, conservative.max_queues, "a model has two or more");
        let noted = found.notes.get("max_queues");
        assert!(matches!(noted, Some(Note::Fallback(why)) if why.contains("1 can be created")), "{noted:?}");
        assert_eq!(read(&model::text(&found)), found.profile);
    }
}

#[test]
fn a_device_without_flows_is_found_to_have_none() {
    for name in ["mana", "bnxt_re"] {
        let model = DeviceModel::by_name(name).expect("built in");
        let found =
            find(Personality::of(model), &DeviceModel::conservative(), true).expect("no privilege needed");
        assert!(!found.profile.can_steer());
        assert_eq!(found.profile.refusals.len(), 1, "{:?}", found.profile.refusals);
        let text = model::text(&found);
        assert_eq!(read(&text), found.profile);
        assert!(text.contains("{ feature = \"normal\", errno = \"EOPNOTSUPP\""), "{text}");
    }
}

/// Models at both ends of what a file may say, with everything refused, ignored or allowed: the whole suite
/// and the probe run on each. A verb that panics returns EIO, which a device may return as well, so panics
/// are counted.
#[test]
fn no_model_makes_the_soft_nic_panic() {
    // The hook is that of this whole process.
    if !test_support::is_alone("model::no_model_makes_the_soft_nic_panic") {
        return;
    }
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        report(info);
    }));
    let least = "priorities = 2\nmax_specs = 1\nmax_table = 1\nmax_flows = 2\nmax_shapes = 1\nmax_queues = 2\nmax_tables = 2\n\
                 max_receives = 1\nmax_counters = 0\nmax_copies = 0\n\
                 priority_table = { entries = 1, groups = 1, group_entries = 1 }\n";
    let most = "priorities = 65536\nmax_specs = 255\nmax_table = 65536\nmax_flows = 4294967295\nmax_shapes = 4294967295\n\
                max_queues = 4294967295\nmax_tables = 4294967295\nmax_receives = 4294967295\nmax_counters = 4294967295\n\
                max_copies = 4294967295\n\
                priority_table = { entries = 4294967295, groups = 4294967295, group_entries = 1 }\n";
    let refusals = |errno: &str| {
        let rows = Feature::ALL.iter().filter(|feature| **feature != Feature::Normal).map(|feature| {
            let feature = serde_json::to_value(feature).expect("plain data");
            format!("{{ feature = {feature}, errno = \"{errno}\", source = \"x\" }},\n")
        });
        format!("refusals = [\n{}]\n", rows.collect::<String>())
    };
    for limits in [least, most] {
        for (base, refused, tag_bits) in [
            ("ideal", String::new(), 32),
            ("ideal", refusals("EREMOTEIO"), 0),
            ("mlx5", refusals("SILENT"), 24),
            ("mlx4", String::new(), 0),
        ] {
            let text =
                format!("name = \"nic\"\npersonality = \"{base}\"\n{limits}tag_bits = {tag_bits}\n{refused}");
            let personality = Personality::of(read(&text));
            let device = SoftDevice::new(personality).expect("a soft NIC");
            let bench = Bench::new(device.context(), PortNumber(1), Some(&device)).expect("a bench");
            assert_eq!(run(&bench, None, |_| true).rows.len(), cases().len());
            let bounds = Bounds { flows: 64, objects: 16, copies: 40 };
            let found = model::find(&bench, &DeviceModel::conservative(), bounds, &mut |_, _, _| ());
            read(&model::text(&found.expect("it can be tried")));
            assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{base}, {limits}");
        }
    }
}

#[test]
fn the_example_is_what_the_probe_writes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/device-model-probed.toml");
    let example = model::example().expect("a soft NIC");
    if example.contains("CAP_NET_RAW") {
        return not_run("config/device-model-probed.toml", "needs CAP_NET_RAW");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == example, "{} is stale: cargo run -p conformance -- --write-docs", path.display());
    assert!(!read(&text).allows(Feature::Ttl));
}
