//! Workers that come into service and leave it under traffic, with the real daemon: no packet is lost, and
//! totals go on.

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::{Place, error};
use crate::support::{self, Daemon, PATIENCE, Patience, config, stderr};

/// How often a worker leaves and another one comes.
const ROUNDS: usize = 20;

/// Groups of all workers and of listed ones.
const POLICY: &str = "version = 1\ndefault = \"drop\"\n\
     [sinks.all]\nkind = \"count\"\n\
     [groups.every]\nworkers = \"all\"\nhash = \"l3l4\"\nsinks = \"all\"\n\
     [groups.first]\nworkers = [0]\nsinks = \"all\"\n\
     [groups.both]\nhash = \"l3l4\"\nweights = { 0 = 1, 1 = 3 }\nsinks = \"all\"\n\
     [[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"every\" }\n\
     [[rules]]\nname = \"syn\"\nmatch = { protocol = \"tcp\", dst_port = 443, tcp_flags = \"syn\" }\naction = { steer = \"first\" }\n\
     [[rules]]\nname = \"web\"\nmatch = { protocol = \"tcp\", dst_port = 443 }\naction = { steer = \"both\" }\n";

/// The policy without a group of one worker.
fn of_all() -> String {
    POLICY.replace("workers = [0]", "workers = \"all\"")
}

/// The demonstration at a rate at which a worker's frames last for a second and more, with a spare worker.
fn command(place: &Place) -> Command {
    let demo = std::fs::read_to_string(config().join("demo.toml")).expect("the demonstration's settings");
    let slow = demo.replace("rate = 200_000", "rate = 5_000").replace("cores = 2", "cores = 2\nspare = 1");
    assert!(
        slow.contains("rate = 5_000") && slow.contains("spare = 1"),
        "the demonstration has other settings"
    );
    place.write("s.toml", &slow);
    place.daemon_with(&["--config".as_ref(), place.path("s.toml").as_ref()])
}

struct Bench {
    place: Place,
    daemon: Daemon,
}

impl Bench {
    /// Two workers in service on the demonstration's traffic, and a spare one.
    fn start(policy: &str, personality: &str) -> Self {
        let place = Place::new(policy);
        let mut command = command(&place);
        command.env("STEERD_SOFTNIC__PERSONALITY", personality);
        Self { daemon: Daemon::start_command(&mut command), place }
    }

    fn change(&self, change: &Value) -> Value {
        let (status, answer) = self.place.ask("POST", "/v1/workers/changes", &change.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    }

    fn add(&self) -> Value {
        self.change(&json!({ "add": {} }))
    }

    fn drain(&self, worker: u32) -> Value {
        self.change(&json!({ "drain": { "worker": worker } }))
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.place.run(args);
        assert!(!output.status.success(), "{args:?}");
        stderr(&output)
    }

    /// Waits until the daemon has delivered so many packets more.
    fn pass(&self, packets: u64) {
        let mut patience = Patience::new(PATIENCE);
        let before = received(&self.place).iter().sum::<u64>();
        while received(&self.place).iter().sum::<u64>() < before + packets {
            assert!(!patience.is_over(), "no packets arrive");
        }
    }

    /// Ends the daemon, whose summary says that every packet is accounted for.
    fn end(self) {
        self.daemon.signal(Signal::TERM);
        let (status, output, log) = self.daemon.end();
        assert!(status.success() && output.contains("packet accounting matches"), "{output}{log}");
    }
}

/// The packets that each worker has received.
fn received(place: &Place) -> Vec<u64> {
    let list = place.get("/v1/workers");
    let workers = list["workers"].as_array().expect("a list").iter();
    workers.map(|worker| worker["received_packets"].as_u64().expect("a number")).collect()
}

fn groups(place: &Place, worker: usize) -> Value {
    place.get("/v1/workers")["workers"][worker]["groups"].clone()
}

/// All counters of a state that never decrease, by name.
fn totals(state: &Value) -> Vec<(String, u64)> {
    let mut totals = Vec::new();
    for (list, name, counts) in [
        ("rules", "name", &["delivered_packets", "dropped_packets"][..]),
        ("workers", "worker", &["received_packets", "received_bytes", "polls"]),
        ("ports", "port", &["rx_frames", "delivered"]),
    ] {
        for entry in state[list].as_array().expect(list) {
            let known = counts.iter().filter_map(|count| Some((count, entry[*count].as_u64()?)));
            totals.extend(known.map(|(count, value)| (format!("{list} {} {count}", entry[name]), value)));
        }
    }
    for sink in state["sinks"].as_array().expect("sinks") {
        for worker in sink["workers"].as_array().expect("workers") {
            let offered = worker["offered_packets"].as_u64().expect("a number");
            totals.push((format!("sink {} worker {}", sink["name"], worker["worker"]), offered));
        }
    }
    totals
}

/// The packets that were lost anywhere.
fn lost(state: &Value) -> u64 {
    let lists = ["workers", "ports"].into_iter().flat_map(|list| state[list].as_array().expect(list));
    let reasons = lists.flat_map(|entry| entry["lost_packets"].as_object().expect("reasons").values());
    reasons.filter_map(Value::as_u64).sum()
}

fn many_rounds_lose_nothing(personality: &str, rounds: usize) {
    let bench = Bench::start(POLICY, personality);
    let mut before = totals(&bench.daemon.state());
    for round in 0..rounds {
        // The spare one is 2 at first, and then the one that has left.
        let added = bench.add();
        let worker = u32::try_from(added["worker"].as_u64().expect("a number")).expect("small");
        assert_eq!((worker, &added["spare"]), (if round == 0 { 2 } else { 1 }, &json!(false)));
        bench.pass(200);
        assert_eq!(bench.drain(1)["spare"], true);
        bench.pass(200);
        let now = totals(&bench.daemon.state());
        for ((name, count), (known, least)) in now.iter().zip(&before) {
            assert!(name == known && count >= least, "{name}: {count}, {known} {least} before");
        }
        before = now;
    }
    let state = bench.daemon.state();
    assert_eq!(lost(&state), 0, "{state:#}");
    assert!(received(&bench.place).iter().all(|packets| *packets > 0), "{state:#}");
    bench.end();
}

#[test]
fn workers_change_without_a_loss() {
    many_rounds_lose_nothing("ideal", ROUNDS);
}

#[test]
fn workers_change_without_a_loss_on_mlx5() {
    many_rounds_lose_nothing("mlx5", ROUNDS);
}

#[test]
#[ignore = "a soak: a thousand rounds"]
fn workers_change_a_thousand_times() {
    many_rounds_lose_nothing("mlx5", 1000);
}

#[test]
fn a_drained_worker_gets_nothing_and_comes_back() {
    let bench = Bench::start(POLICY, "ideal");
    assert_eq!(groups(&bench.place, 2), json!([]), "a spare one");
    let list = bench.place.json(&["worker", "list"]);
    assert_eq!(list["workers"][1]["groups"], json!(["every", "both"]));
    bench.pass(2000);
    let text = bench.place.ok(&["worker", "drain", "1"]);
    assert!(text.starts_with("worker 1 is spare after "), "{text}");
    let kept = received(&bench.place)[1];
    bench.pass(5000);
    assert_eq!((received(&bench.place)[1], groups(&bench.place, 1)), (kept, json!([])));
    // The policy that names it stays valid.
    bench.place.ok(&["reload"]);
    bench.pass(1000);
    assert_eq!((received(&bench.place)[1], groups(&bench.place, 1)), (kept, json!([])));
    let text = bench.place.ok(&["worker", "add"]);
    assert!(text.starts_with("worker 1 serves without a core of its own after "), "{text}");
    assert_eq!(groups(&bench.place, 1), json!(["every", "both"]));
    let mut patience = Patience::new(PATIENCE);
    while received(&bench.place)[1] == kept {
        assert!(!patience.is_over(), "it gets no packets");
    }
    let list = bench.place.ok(&["worker", "list"]);
    assert!(
        list.lines().nth(2).is_some_and(|line| line.starts_with("worker 2 is spare: no group, ")),
        "{list}"
    );
    bench.end();
}

#[test]
fn an_added_worker_is_pinned_to_its_core() {
    let bench = Bench::start(&of_all(), "ideal");
    let core = core_of_this_process();
    bench.place.ok(&["worker", "drain", "0"]);
    bench.place.ok(&["worker", "add", &core]);
    let list = bench.place.ok(&["worker", "list"]);
    assert!(list.starts_with(&format!("worker 0 serves on core {core}: every, first, both, ")), "{list}");
    assert_eq!(allowed_cores(&bench.daemon, "worker-0"), core);
    let state = bench.daemon.state();
    assert_eq!(
        (&state["workers"][0]["core"], &state["workers"][0]["spare"]),
        (&json!(core.parse::<u64>().expect("a number")), &json!(false))
    );
    let why = bench.refused(&["worker", "add", &core]);
    assert!(why.contains(&format!("core {core} is that of worker 0 (hint: ")), "{why}");
    bench.place.ok(&["worker", "drain", "0"]);
    if cores_of_this_process().len() > 1 {
        assert_ne!(allowed_cores(&bench.daemon, "worker-0"), core, "a spare one is not pinned");
    }
    bench.end();
}

/// A reload follows a new list of cores in the settings, and reports what takes a restart.
#[test]
fn a_reload_follows_the_cores_of_the_settings() {
    let cores = cores_of_this_process();
    let [first, second, ..] = cores[..] else {
        return support::not_run("cores of the settings over a reload", "it takes two cores");
    };
    let place = Place::new(&of_all().replace("weights = { 0 = 1, 1 = 3 }", "workers = \"all\""));
    let mut command = command(&place);
    let settings = std::fs::read_to_string(place.path("s.toml")).expect("written");
    let write = |place: &Place, cores: &str| {
        place.write("s.toml", &settings.replace("cores = 2", &format!("cores = {cores}")));
    };
    write(&place, &format!("[{first}]"));
    let bench = Bench { daemon: Daemon::start_command(&mut command), place };
    let listed = |bench: &Bench| {
        let list = bench.place.get("/v1/workers");
        let workers = list["workers"].as_array().expect("a list").clone();
        workers.iter().map(|worker| worker["core"].as_u64()).collect::<Vec<_>>()
    };
    let number = |core: usize| Some(core as u64);
    assert_eq!(listed(&bench), [number(first), None]);
    write(&bench.place, &format!("[{second}, {first}]"));
    bench.place.ok(&["reload"]);
    assert_eq!(listed(&bench), [number(first), number(second)]);
    bench.pass(500);
    // What was changed by hand stays until the settings change again.
    bench.drain(0);
    bench.place.ok(&["reload"]);
    assert_eq!(listed(&bench), [None, number(second)]);
    write(&bench.place, &format!("[{first}]"));
    bench.place.ok(&["reload"]);
    assert_eq!(listed(&bench), [None, number(first)]);
    write(&bench.place, "[0, 1, 2]\nbatch = 32");
    let output = bench.place.run(&["reload"]);
    let told = stderr(&output);
    assert!(
        output.status.success() && told.contains("workers.batch: the change takes effect at a restart"),
        "{told}"
    );
    assert!(told.contains("workers.cores: "), "{told}");
    assert_eq!(listed(&bench), [None, number(first)]);
    bench.end();
}

fn core_of_this_process() -> String {
    cores_of_this_process()[0].to_string()
}

fn cores_of_this_process() -> Vec<usize> {
    let list = status_of("/proc/self/status");
    let number = |text: &str| text.parse::<usize>().expect("a core");
    let cores = list.split(',').flat_map(|range| match range.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(range)..=number(range),
    });
    cores.collect()
}

fn status_of(path: &str) -> String {
    let status = std::fs::read_to_string(path).expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a line");
    line.trim().to_owned()
}

/// The cores that a thread of the daemon may run on.
fn allowed_cores(daemon: &Daemon, name: &str) -> String {
    let folder = format!("/proc/{}/task", daemon.id());
    let tasks = std::fs::read_dir(folder).expect("/proc").map(|entry| entry.expect("a thread").path());
    let task = tasks
        .into_iter()
        .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name));
    status_of(task.expect(name).join("status").to_str().expect("a path"))
}

#[test]
fn refused_changes_leave_all_as_it_was() {
    let bench = Bench::start(POLICY, "ideal");
    let before = bench.place.get("/v1/flows")["generation"].clone();
    for (args, words) in [
        (&["worker", "drain", "7"][..], "there is no worker 7 (hint: they are 0 to 2)"),
        (&["worker", "drain", "2"], "worker 2 is spare already (hint: "),
        (&["worker", "drain", "0"], "the group `first` has no worker that serves"),
        (
            &["worker", "add", "4000"],
            "core 4000 does not exist or is not allowed to this process (hint: it may use ",
        ),
    ] {
        let why = bench.refused(args);
        assert!(why.contains(words), "{args:?}: {why}");
    }
    assert_eq!(bench.place.get("/v1/flows")["generation"], before);
    bench.add();
    assert!(bench.refused(&["worker", "add"]).contains("no worker is spare (hint: "));
    let (status, answer) = bench.place.ask("POST", "/v1/workers/changes", r#"{"remove":{"worker":1}}"#);
    assert!(status == 400 && error(&answer).contains("unknown variant"), "{answer}");
    bench.end();
    let bench = Bench::start(&of_all(), "ideal");
    bench.drain(0);
    let why = bench.refused(&["worker", "drain", "1"]);
    assert!(
        why.contains("worker 1 is the only one in service (hint: `steerd worker add CORE` first)"),
        "{why}"
    );
    bench.end();
}

/// A spare worker has no core that it could keep busy.
#[test]
fn spinning_workers_are_not_drained() {
    let place = Place::new(&of_all());
    let mut command = command(&place);
    command.env("STEERD_WORKERS__IDLE", "spin").env("STEERD_WORKERS__SPARE", "0");
    let bench = Bench { daemon: Daemon::start_command(&mut command), place };
    let why = bench.refused(&["worker", "drain", "0"]);
    assert!(why.contains("worker 0 cannot be spare: with workers.idle = \"spin\" "), "{why}");
    bench.end();
}

/// A policy that a reload brings while a worker of it is spare.
#[test]
fn a_policy_of_spare_workers_is_refused() {
    let bench = Bench::start(&of_all(), "ideal");
    bench.drain(0);
    bench.place.write("p.toml", POLICY);
    let why = bench.refused(&["reload"]);
    assert!(why.contains("the group `first` has no worker that serves"), "{why}");
    bench.add();
    bench.place.ok(&["reload"]);
    bench.end();
}

#[test]
fn spare_workers_are_bounded_and_do_not_spin() {
    let refused = |name: &str, value: &str, words: &str| {
        let place = Place::new(POLICY);
        let output = command(&place).env(name, value).output().expect("the binary runs");
        assert!(!output.status.success() && stderr(&output).contains(words), "{}", stderr(&output));
    };
    refused("STEERD_WORKERS__SPARE", "100000", "leave room for");
    refused("STEERD_WORKERS__IDLE", "spin", "spare workers have no core that they could keep busy");
}
