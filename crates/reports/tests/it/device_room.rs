//! The room for rules at run time in the device: what is counted beforehand is what the compiler then needs.

use compiler::{Capacity, Job};
use device_model::{DeviceModel, Limit, PriorityTable};
use policy::policy::InsertedRule;
use policy::{NoFiles, Policy, Severity, Source};
use program::{Program, RuntimeMatch};
use reports::DeviceRoom;

const RULES: &str = "[[rules]]\nname = 'ssh'\nmatch = { protocol = 'tcp', dst_port = 22 }\n\
    action = 'kernel'\n\
    [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = 'drop'\n\
    [[rules]]\nname = 'net'\nmatch = { src = '10.0.0.0/8' }\naction = { steer = 'g' }\n\
    [[rules]]\nname = 'ip'\nmatch = { family = ['ipv4', 'ipv6'] }\naction = { steer = 'g' }\n";

/// With rules at run time behind `ssh` and `dns`.
fn policy(runtime: &str) -> Policy {
    policy_with(&format!("before = 'net'\n{runtime}"))
}

fn policy_with(runtime: &str) -> Policy {
    let head = "version = 1\ndefault = 'kernel'\n[groups.g]\nworkers = 'all'\nhash = 'l3'\n";
    let text = format!("{head}[runtime]\n{runtime}\n{RULES}");
    policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
}

fn room(policy: &Policy, device: &DeviceModel) -> DeviceRoom {
    let job = Job::new(policy, device, 2);
    let program = job.compile().expect("it fits without rules at run time");
    DeviceRoom::of(&job, &program, true).expect("it allows some")
}

/// The program with rules at run time, one for each of these matches in JSON.
fn with_rules(policy: &Policy, device: &DeviceModel, rules: impl Iterator<Item = String>) -> Program {
    let action = policy.runtime.as_ref().expect("[runtime]").actions[0].1;
    let rules = rules.enumerate().map(|(number, text)| {
        let matches: RuntimeMatch = serde_json::from_str(&text).expect(&text);
        InsertedRule { name: format!("({number})"), matches, action }
    });
    let mut policy = policy.clone();
    policy.insert_at_run_time(rules.collect());
    compiler::compile(&policy, device, 2).expect("it compiles")
}

fn used(room: &DeviceRoom, limit: Limit) -> u64 {
    room.rows.iter().find(|row| row.limit == limit).expect("a row").used
}

fn message(policy: &Policy, device: &DeviceModel) -> String {
    let found = room(policy, device).diagnostic(policy, device);
    found.map(|found| format!("{found}")).unwrap_or_default()
}

/// The model with so many priorities for one program.
fn with_priorities(priorities: u32, device: &DeviceModel) -> DeviceModel {
    let models = (1..).map(|all| DeviceModel { priorities: all, ..device.clone() });
    models.into_iter().find(|model| model.priorities_per_program() == priorities).expect("a model")
}

const TWO_FORMS: &str = "matches = ['src/24 dst/32 protocol', 'dst_port']\nactions = ['drop']\n";

#[test]
fn the_count_is_that_of_the_program_with_the_rules() {
    let device = DeviceModel::ideal();
    let policy = policy(&format!("{TWO_FORMS}device_rules = 300"));
    let room = room(&policy, &device);
    assert_eq!((room.rules, room.fit), (300, 300));
    assert!(room.diagnostic(&policy, &device).is_none());
    // Each rule on addresses for TCP has 16 flows, because `ssh` is excluded from it.
    let tcp = |number: u32| {
        let [.., a, b] = number.to_be_bytes();
        format!("{{\"src\": \"10.{a}.{b}.0/24\", \"dst\": \"192.0.2.1\", \"protocol\": \"tcp\"}}")
    };
    let own = compiler::compile(&policy, &device, 2).expect("a program");
    let all = with_rules(&policy, &device, (0..300).map(tcp));
    assert_eq!(used(&room, Limit::Flows), all.flows.len() as u64);
    // Rules on ports have four: of TCP and UDP, over IPv4 and IPv6.
    let port = |number: u32| format!("{{\"dst_port\": {}}}", 1000 + number);
    let ports = with_rules(&policy, &device, (0..300).map(port));
    let [of_addresses, of_ports] = &*room.forms else { panic!("{room:?}") };
    assert_eq!(of_addresses.form, "src/24 dst protocol (IPv4)");
    assert_eq!(of_addresses.flows, (all.flows.len() - own.flows.len()) as u64);
    assert_eq!((of_ports.form.as_str(), of_ports.rules), ("dst_port", 300));
    assert_eq!(of_ports.flows, (ports.flows.len() - own.flows.len()) as u64);
    // Rules of both forms, which overlap each other and the net.
    let count = |program: &Program, limit| {
        let capacity = Capacity::of(program, &device, None);
        capacity.rows.iter().find(|row| row.limit == limit).expect("a row").used
    };
    let gre = "{\"src\": \"10.9.9.0/24\", \"dst\": \"192.0.2.1\", \"protocol\": \"47\"}".to_owned();
    let udp = gre.replace("47", "udp").replace("10.9", "10.8");
    let both = with_rules(&policy, &device, [tcp(1), gre, udp, port(1)].into_iter());
    assert_eq!(used(&room, Limit::Shapes), count(&both, Limit::Shapes));
    assert_eq!(used(&room, Limit::Priorities), count(&both, Limit::Priorities));
    // Rules for other protocols have one mask more.
    assert_eq!(of_addresses.masks, count(&all, Limit::Shapes) - count(&own, Limit::Shapes) + 1);
    assert_eq!(of_ports.priorities, count(&ports, Limit::Priorities) - count(&own, Limit::Priorities));
}

#[test]
fn a_form_has_no_more_rules_than_values() {
    let device = DeviceModel::ideal();
    let policy = policy("matches = ['protocol']\nactions = ['drop']\ndevice_rules = 5000");
    let room = room(&policy, &device);
    assert_eq!(room.forms[0].rules, 256);
    let all = with_rules(&policy, &device, (0..256).map(|one| format!("{{\"protocol\": {one}}}")));
    let counted = all.flows.len() as u64;
    let used = used(&room, Limit::Flows);
    assert!((counted..counted + 8).contains(&used), "{used} {counted}");
}

#[test]
fn rules_for_which_there_are_too_few_flows() {
    let ideal = DeviceModel::ideal();
    let device = DeviceModel { max_flows: Some(200), ..ideal.clone() };
    let given =
        |rules: u32| policy(&format!("matches = ['dst_port']\nactions = ['drop']\ndevice_rules = {rules}"));
    let policy = given(50);
    let room = room(&policy, &device);
    let own = compiler::compile(&policy, &ideal, 2).expect("a program").flows.len() as u32;
    assert_eq!(room.fit, (100 - own) / 4);
    let needed = own + 4 * 50;
    assert_eq!(
        message(&policy, &device),
        format!(
            "p.toml:6:2: error: with 50 rules at run time in the device, the policy needs {needed} flows, \
             `ideal` has 100 for it (ENOMEM) (write device_rules = {})",
            room.fit
        )
    );
    assert_eq!(message(&given(room.fit), &device), "");
    assert_ne!(message(&given(room.fit + 1), &device), "");
    // The compiler agrees.
    let ports = |count: u32| (0..count).map(|port| format!("{{\"dst_port\": {}}}", 1000 + port));
    assert!(with_rules(&policy, &device, ports(room.fit)).rules.iter().all(|rule| rule.undecided.is_empty()));
    let beyond = with_rules(&policy, &device, ports(room.fit + 1));
    assert!(beyond.rules.iter().any(|rule| !rule.undecided.is_empty()), "workers decide some");
}

#[test]
fn a_rule_for_both_directions_counts_twice() {
    let device = DeviceModel { max_flows: Some(200), ..DeviceModel::ideal() };
    let room_for = |matches: &str| {
        let runtime = format!("matches = [{matches}]\nactions = ['drop']\ndevice_rules = 100");
        room(&policy(&runtime), &device).fit
    };
    let one = room_for("'src/24 dst/32'");
    assert_eq!(room_for("'src/32 dst/32'"), one / 2);
    assert_eq!(room_for("'src/24 dst/32', 'src/32 dst/24'"), one / 2);
}

/// The least number with which a device decides the policy alone, without rules at run time.
fn least_for_the_policy(policy: &Policy, device: &dyn Fn(u32) -> DeviceModel) -> u32 {
    let is_exact = |most: &u32| {
        let program = compiler::compile(policy, &device(*most), 2);
        program.is_ok_and(|program| program.rules.iter().all(|rule| rule.undecided.is_empty()))
    };
    (1..100).find(is_exact).expect("a number")
}

#[test]
fn rules_for_which_there_are_too_few_masks() {
    let ideal = DeviceModel::ideal();
    let policy = policy(&format!("{TWO_FORMS}device_rules = 10"));
    let needed = used(&room(&policy, &ideal), Limit::Shapes);
    let with_masks = |most: u32| DeviceModel { max_shapes: Some(most), ..ideal.clone() };
    assert_eq!(message(&policy, &with_masks(u32::try_from(needed).expect("few"))), "");
    let least = least_for_the_policy(&policy, &with_masks);
    let found = message(&policy, &with_masks(least));
    let expected = format!(
        "with 10 rules at run time in the device, the policy needs {needed} mask shapes, `ideal` has {least}"
    );
    assert!(found.contains(&expected) && found.contains("write device_rules = 0"), "{found}");
}

#[test]
fn rules_for_which_there_are_too_few_priorities() {
    let ideal = DeviceModel::ideal();
    let policy = policy(&format!("{TWO_FORMS}device_rules = 10"));
    let needed = used(&room(&policy, &ideal), Limit::Priorities);
    let device = |priorities: u32| with_priorities(priorities, &ideal);
    assert_eq!(message(&policy, &device(u32::try_from(needed).expect("few"))), "");
    let least = least_for_the_policy(&policy, &device);
    let found = message(&policy, &device(least));
    let expected = format!("the policy needs {needed} priorities, `ideal` has {least}");
    assert!(found.contains(&expected) && found.contains("write device_rules = "), "{found}");
}

#[test]
fn rules_for_which_a_priority_has_too_few_entries() {
    let table = PriorityTable { entries: 512, groups: 6, group_entries: 64 };
    let model = DeviceModel { priority_table: Some(table), ..DeviceModel::ideal() };
    let given = |rules: u32| {
        let runtime = "before = 'ssh'\nmatches = ['src/24 dst/32']\nactions = ['drop']";
        policy_with(&format!("{runtime}\ndevice_rules = {rules}"))
    };
    let device = |priorities: u32| with_priorities(priorities, &model);
    // One priority more than the policy takes, which has room for 512 flows of one mask.
    let device = device(least_for_the_policy(&given(1), &device) + 1);
    assert_eq!(message(&given(480), &device), "");
    let found = room(&given(100_000), &device);
    assert!((480..1024).contains(&found.fit), "{found:?}");
    assert!(message(&given(100_000), &device).contains("priorities, `ideal` has"), "{found:?}");
}

#[test]
fn kernel_rules_that_flows_cannot_exclude() {
    let device = DeviceModel::ideal();
    let policy = policy("matches = ['src/32']\nactions = ['kernel']\ndevice_rules = 1000");
    let found = message(&policy, &device);
    assert!(found.contains("cannot exclude the packets of 1000 rules at run time"), "{found}");
}

#[test]
fn a_number_that_the_policy_does_not_give_is_lowered() {
    let device = DeviceModel { max_flows: Some(200), ..DeviceModel::ideal() };
    let policy = policy("matches = ['dst_port']\nactions = ['drop']");
    let room = room(&policy, &device);
    let found = room.diagnostic(&policy, &device).expect("1,024 do not fit");
    assert_eq!(found.severity, Severity::Warning);
    let lowered = format!("at most {} rules at run time will be in the device", room.fit);
    assert!(room.fit > 0 && found.to_string().contains(&lowered), "{found}");
}
