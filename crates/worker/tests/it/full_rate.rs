//! Each packet over changes at full rate. The soft NIC's engine and the workers have their threads, packets
//! never pause, and meanwhile policies and rules at run time change. For each packet the oldest and the
//! newest state are noted that there may have been when it was decided. It must be decided as one of these
//! decides it, once.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use control::{Controller, Device, DeviceSelector, RuntimeOwner, RuntimeStore};
use device_model::DeviceModel;
use packet::FlowKey;
use packet::build::FrameBuilder;
use policy::{NoFiles, Source};
use program::{Outcome, Program, RUNTIME_RULES};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use softnic::{Drive, Personality};
use softnic_verbs::SoftNic;
use wire::{Burst, RxFrame, TransmitError, Wire};
use worker::{
    Deliveries, Idle, SharedStage, Sink, SinkMap, Worker, WorkerConfig, WorkerControl, WorkerHandle,
};

use crate::runtime::{Wish, expected, in_words, request};
use crate::support::{nic_of, small};

const WORKERS: usize = 2;
const OWNER: RuntimeOwner = RuntimeOwner { uid: 0, rules_max: None };
const PATIENCE: Duration = Duration::from_secs(20);
/// The most packets between the wire and the workers, and the most copies after which others are let in. A
/// packet has a copy at most, so a worker, which has 1,024 buffers, meets three times as many.
const IN_FLIGHT_MAX: u64 = 300;
/// The most packets that a test awaits between two changes.
const PACKETS_BETWEEN_MAX: u64 = 2000;
/// The last bytes of a frame, which are its number.
const STAMP_BYTES: usize = 8;

/// The counters between the wire, the workers' observers and the test.
#[derive(Debug, Default)]
struct Shared {
    /// The frames that the wire may have handed over.
    granted: AtomicU64,
    /// Packets that workers have seen, without copies.
    seen: AtomicU64,
    seen_copies: AtomicU64,
    /// The newest state whose change has begun, and the newest one whose change has ended.
    begun: AtomicU32,
    ended: AtomicU32,
    stops: AtomicBool,
}

/// A frame that was handed over: its template, and the oldest and the newest state that the device may have
/// had.
#[derive(Clone, Copy, Debug)]
struct Sent {
    template: u16,
    oldest: u32,
    newest: u32,
}

/// A packet or a copy that a worker has decided.
#[derive(Clone, Copy, Debug)]
struct Decided {
    number: u64,
    newest: u32,
    generation: u64,
    outcome: Outcome,
}

/// The first rule of every policy copies all UDP packets.
fn is_copy(outcome: Outcome) -> bool {
    outcome.rule.index() == 0
}

/// A wire on which a frame always waits.
struct NumberedWire {
    templates: Vec<Vec<u8>>,
    shared: Arc<Shared>,
    sent: Arc<Mutex<Vec<Sent>>>,
    frames: Vec<Vec<u8>>,
}

impl Wire for NumberedWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut sent = self.sent.lock().expect("no panic");
        // The engine has decided the frames of the burst before.
        let newest = self.shared.begun.load(Ordering::SeqCst);
        sent.iter_mut()
            .rev()
            .take_while(|frame| frame.newest == u32::MAX)
            .for_each(|frame| frame.newest = newest);
        let granted = self.shared.granted.load(Ordering::Acquire).saturating_sub(sent.len() as u64);
        let count = burst.capacity_left().min(granted as usize);
        self.frames.resize_with(count.max(self.frames.len()), Vec::new);
        let oldest = self.shared.ended.load(Ordering::SeqCst);
        for frame in &mut self.frames[..count] {
            let number = sent.len() as u64;
            // Neighbours differ in every field.
            let template = (number * 37 % self.templates.len() as u64) as u16;
            frame.clone_from(&self.templates[usize::from(template)]);
            let stamp = frame.len() - STAMP_BYTES;
            frame[stamp..].copy_from_slice(&number.to_le_bytes());
            sent.push(Sent { template, oldest, newest: u32::MAX });
        }
        self.frames[..count].iter().all(|frame| burst.push(RxFrame::new(frame)));
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "numbered frames".to_owned()
    }
}

/// Notes every packet of a worker.
struct Observer {
    shared: Arc<Shared>,
    decided: Arc<Mutex<Vec<Decided>>>,
}

impl Sink for Observer {
    fn run(&mut self, deliveries: &mut Deliveries<'_>) {
        let newest = self.shared.begun.load(Ordering::SeqCst);
        let mut decided = self.decided.lock().expect("no panic");
        let before = decided.len();
        decided.extend(deliveries.iter().map(|delivery| {
            let stamp = delivery.bytes.last_chunk::<STAMP_BYTES>().expect("a whole frame");
            let number = u64::from_le_bytes(*stamp);
            Decided { number, newest, generation: delivery.generation, outcome: delivery.outcome }
        }));
        let copies = decided[before..].iter().filter(|one| is_copy(one.outcome)).count();
        let packets = decided.len() - before - copies;
        self.shared.seen_copies.fetch_add(copies as u64, Ordering::Release);
        self.shared.seen.fetch_add(packets as u64, Ordering::Release);
    }
}

/// The templates: every combination of hosts and ports that the rules compare, and others.
fn templates() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for host in 0..8u8 {
        let ip =
            || FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, host), Ipv4Addr::new(192, 0, 2, host % 2));
        for port in [53, 54, 80] {
            frames.push(ip().udp(1000 + u16::from(host), port).payload(&[0; 32]).build());
        }
        for (port, flags) in [(80, 0x02), (80, 0x10), (443, 0x10)] {
            frames.push(ip().tcp(2000 + u16::from(host), port, flags).payload(&[0; 32]).build());
        }
    }
    frames
}

/// A rule of a random policy.
#[derive(Clone, Debug)]
struct Line {
    name: u8,
    matches: String,
    action: &'static str,
}

/// Rules before the place of the rules at run time have any action. Behind it workers receive every packet.
fn line(is_first: bool) -> impl Strategy<Value = Line> {
    let matches = prop_oneof![
        (0..8u8).prop_map(|host| format!("src = \"10.0.0.{host}\"")),
        (0..4u8).prop_map(|net| format!("src = \"10.0.0.{}/31\"", net * 2)),
        prop::sample::select(vec![53u16, 54, 80]).prop_map(|p| format!("protocol = \"udp\", dst_port = {p}")),
        prop::sample::select(vec![80u16, 443]).prop_map(|p| format!("protocol = \"tcp\", dst_port = {p}")),
        (0..2u8, 0..4u8)
            .prop_map(|(to, net)| format!("dst = \"192.0.2.{to}\", src = \"10.0.0.{}/30\"", net * 4)),
        Just("protocol = \"tcp\", tcp_flags = \"syn,!ack\"".to_owned()),
    ];
    let actions = match is_first {
        true => vec!["\"drop\"", "\"kernel\"", "{ steer = \"every\" }", "{ steer = \"aside\" }"],
        false => vec!["{ steer = \"every\" }", "{ steer = \"aside\" }"],
    };
    (any::<u8>(), matches, prop::sample::select(actions)).prop_map(|(name, matches, action)| Line {
        name,
        matches,
        action,
    })
}

fn text(first: &[Line], last: &[Line]) -> String {
    let rule = |(place, line): (usize, &Line)| {
        let Line { name, matches, action } = line;
        format!("[[rules]]\nname = \"r{place}-{name}\"\nmatch = {{ {matches} }}\naction = {action}\n")
    };
    let first: String = first.iter().enumerate().map(rule).collect();
    let last: String = last.iter().enumerate().map(|(place, line)| rule((place + 100, line))).collect();
    format!(
        "version = 1\ndefault = \"every\"\n[groups.every]\nworkers = [0, 1]\nhash = \"l3l4\"\n\
         [groups.aside]\nworkers = [1]\n[runtime]\nbefore = \"here\"\n\
         matches = [\"src dst_port\", \"src\", \"src/30\", \"dst_port protocol\"]\n\
         actions = [\"drop\", \"steer aside\"]\n\
         [[rules]]\nname = \"tap\"\nmatch = {{ protocol = \"udp\" }}\naction = {{ copy = \"aside\" }}\n\
         [[rules]]\nname = \"scan\"\nmatch = {{ src = \"10.0.0.6\" }}\naction = \"drop\"\n\
         {first}[[rules]]\nname = \"here\"\nmatch = {{ protocol = \"tcp\", dst_port = 443 }}\n\
         action = {{ steer = \"every\" }}\n{last}"
    )
}

/// The draws of one test.
struct Draws(TestRunner);

impl Draws {
    fn one<S: Strategy>(&mut self, strategy: &S) -> S::Value {
        strategy.new_tree(&mut self.0).expect("nothing is filtered").current()
    }

    /// A neighbour of a policy most times, else another policy.
    fn change(&mut self, first: &mut Vec<Line>, last: &mut Vec<Line>) {
        if self.one(&(0..8u8)) == 0 {
            *first = self.one(&prop::collection::vec(line(true), 0..6));
            *last = self.one(&prop::collection::vec(line(false), 0..6));
            return;
        }
        let is_first = self.one(&any::<bool>());
        let lines = if is_first { first } else { last };
        let drawn = self.one(&line(is_first));
        let place = self.one(&(0..=lines.len()));
        match self.one(&(0..4u8)) {
            0 if lines.len() < 8 => lines.insert(place, drawn),
            1 if place < lines.len() => drop(lines.remove(place)),
            2 if place + 1 < lines.len() => lines.swap(place, place + 1),
            _ if place < lines.len() => lines[place].action = drawn.action,
            _ => {}
        }
    }
}

/// A state: the program that is installed, and the rules at run time.
#[derive(Clone, Debug)]
struct State {
    program: Arc<Program>,
    store: RuntimeStore,
    /// Whether flows that copy were changed to come here, so that packets may be copied twice meanwhile.
    changes_copies: bool,
}

/// The dataplane of a test with its threads, and the states that it has had.
struct Running {
    shared: Arc<Shared>,
    controller: Controller,
    controls: Vec<WorkerControl>,
    /// The programs by generation, from 1.
    programs: Vec<Arc<Program>>,
    states: Vec<State>,
    has_table: bool,
}

impl Running {
    /// The generation of the program of a state.
    fn generation(&self, state: u32) -> Option<usize> {
        let program = &self.states[state as usize].program;
        self.programs.iter().position(|known| Arc::ptr_eq(known, program)).map(|place| place + 1)
    }

    /// Changes from the last state to `next` by `act`.
    fn change(&mut self, next: State, act: impl FnOnce(&mut Self)) {
        self.states.push(next);
        let number = u32::try_from(self.states.len() - 1).expect("few states");
        self.shared.begun.store(number, Ordering::SeqCst);
        act(self);
        self.shared.ended.store(number, Ordering::SeqCst);
    }

    fn install(&mut self, program: &Arc<Program>, store: RuntimeStore) {
        self.programs.push(Arc::clone(program));
        let summary = self.controller.preview(Arc::clone(program)).expect("it fits");
        let changes_copies = summary.changed_copies > 0;
        self.change(State { program: Arc::clone(program), store, changes_copies }, |running| {
            let map = Arc::new(SinkMap::new(running.controller.generation().0 + 1, program, &[]));
            let controls = &running.controls;
            let installed = running.controller.install(Arc::clone(program), &mut |stage| {
                let publish = |control: &WorkerControl| {
                    (control.publish_shared(&SharedStage::new(stage, &map)), control.clone())
                };
                let published: Vec<_> = controls.iter().map(publish).collect();
                assert!(published.iter().all(|(publication, control)| control.wait(*publication, PATIENCE)));
                Ok(())
            });
            assert!(installed.expect("it fits").warning.is_none());
        });
    }
}

impl Running {
    /// Adds and removes a few rules at run time.
    fn change_rules(&mut self, store: &mut RuntimeStore, draws: &mut Draws) {
        let program = Arc::clone(self.programs.last().expect("one is installed"));
        let Some(allowed) = &program.runtime else { return };
        let wish = (any::<u8>(), any::<u8>(), any::<u8>(), any::<bool>(), prop::bool::weighted(0.2));
        let wishes: Vec<Wish> = draws.one(&prop::collection::vec(wish, 1..4));
        let requests = wishes.into_iter().map(|wish| request(allowed, wish)).collect();
        // A batch that adds the match of another rule is refused.
        let Ok(applied) = store.apply(requests, allowed, OWNER, Instant::now()) else { return };
        let next = State { program: Arc::clone(&program), store: store.clone(), changes_copies: false };
        let has_table = std::mem::replace(&mut self.has_table, true);
        self.change(next, |running| {
            for control in &running.controls {
                let changed = match has_table {
                    true => control.change_runtime_rules(applied.changes(), PATIENCE),
                    false => control.replace_runtime_rules(64, store.entries(), PATIENCE),
                };
                changed.expect("in time");
            }
        });
    }
}

/// The counts of a test, which would prove nothing if they were low.
#[derive(Debug, Default)]
struct Met {
    packets: u64,
    /// The packets that only one state may have decided.
    certain: u64,
    by_rules: u64,
    not_delivered: u64,
    copies: u64,
    /// The packets that were copied twice, as the plan had announced.
    doubled: u64,
}

/// Checks every packet against the states that may have decided it.
fn judge(running: &Running, sent: &[Sent], decided: &[Decided], keys: &[FlowKey]) -> Met {
    let mut met = Met { packets: sent.len() as u64, ..Met::default() };
    let mut wanted: HashMap<(u32, u16), String> = HashMap::new();
    let mut meant = |state: u32, template: u16| {
        let meant = wanted.entry((state, template)).or_insert_with(|| {
            let State { program, store, .. } = &running.states[state as usize];
            expected(program, store, &keys[usize::from(template)])
        });
        meant.clone()
    };
    let mut times = vec![(0u8, 0u8); sent.len()];
    for one in decided {
        let of = &sent[one.number as usize];
        let (packets, copies) = &mut times[one.number as usize];
        if is_copy(one.outcome) {
            *copies += 1;
            met.copies += 1;
            continue;
        }
        *packets += 1;
        let program = &running.programs[one.generation as usize - 1];
        let told = in_words(program, one.outcome);
        met.by_rules += u64::from(told.starts_with(RUNTIME_RULES));
        met.certain += u64::from(of.oldest == one.newest);
        let states = of.oldest..=one.newest;
        let allowed: Vec<String> = states.clone().map(|state| meant(state, of.template)).collect();
        assert!(
            allowed.contains(&told),
            "{told} instead of {allowed:?} of states {states:?}, generations {:?}: {of:?} {one:?}",
            states.clone().map(|state| running.generation(state)).collect::<Vec<_>>()
        );
    }
    let last = u32::try_from(running.states.len() - 1).expect("few");
    for (number, (of, (packets, copies))) in sent.iter().zip(times).enumerate() {
        let wanted = u8::from(keys[usize::from(of.template)].protocol == 17);
        let changes = &running.states[of.oldest as usize + 1..=of.newest.min(last) as usize];
        // The plan promises one copy unless it changes the flows that copy, and then one or two.
        let more = wanted * u8::from(changes.iter().any(|state| state.changes_copies));
        met.doubled += u64::from(copies > wanted);
        assert!(
            packets < 2 && (wanted..=wanted + more).contains(&copies),
            "packet {number} came {packets} times and was copied {copies} times: {of:?}"
        );
        if packets == 0 {
            let states = of.oldest..=of.newest.min(last);
            met.certain += u64::from(states.clone().count() == 1);
            met.not_delivered += 1;
            let allowed: Vec<String> = states.map(|state| meant(state, of.template)).collect();
            let is_left = |meant: &String| meant.ends_with(": drop") || meant.ends_with(": kernel");
            assert!(allowed.iter().any(is_left), "packet {number} is lost: {of:?}, {allowed:?}");
        }
    }
    met
}

/// Makes as many changes as property tests have cases, of policies and of rules, while packets flow.
fn change_at_full_rate(name: &str, personality: Personality, model: &DeviceModel) {
    let config = ProptestConfig::default();
    let changes = config.cases;
    let mut draws = Draws(TestRunner::new(config));
    let (shared, sent, decided) = (Arc::<Shared>::default(), Arc::default(), Arc::default());
    let templates = templates();
    let keys: Vec<FlowKey> = templates.iter().map(|frame| FlowKey::of(frame)).collect();
    let wire =
        NumberedWire { templates, shared: Arc::clone(&shared), sent: Arc::clone(&sent), frames: Vec::new() };
    let nic = nic_of(personality, name, Drive::Thread { core: None }, vec![Box::new(wire)]);
    let device = Device::open(&DeviceSelector::named(name), Some(&nic)).expect("it opens");
    let workers: Vec<Worker> = (0..WORKERS)
        .map(|id| {
            let config = WorkerConfig { idle: Idle::Adaptive { idle_us: 20 }, ..small(id) };
            let observer = Observer { shared: Arc::clone(&shared), decided: Arc::clone(&decided) };
            Worker::new(device.context(), config).expect("a worker").with_observer(Box::new(observer))
        })
        .collect();
    let queues = workers.iter().map(Worker::work_queue).collect();
    let controller = Controller::new(&device, vec![1], queues).expect("a controller");
    let handles: Vec<WorkerHandle> =
        workers.into_iter().map(|worker| worker.spawn().expect("a thread")).collect();
    let controls: Vec<_> = handles.iter().map(WorkerHandle::control).collect();
    let mut running =
        Running { shared, controller, controls, programs: Vec::new(), states: Vec::new(), has_table: false };
    let (shared, controls) = (Arc::clone(&running.shared), running.controls.clone());
    let (mut first, mut last, mut store) = (Vec::new(), Vec::new(), RuntimeStore::default());
    running.install(&compiled(&text(&first, &last), model, None), store.clone());
    let rate = std::thread::scope(|scope| {
        let granting = scope.spawn(|| grant(&nic, &shared, &controls));
        let begun = Instant::now();
        for _ in 0..changes {
            // Rules change more often than policies, as they do.
            if draws.one(&(0..3u8)) == 0 {
                draws.change(&mut first, &mut last);
                let program = compiled(&text(&first, &last), model, running.programs.last());
                running.install(&program, store.clone());
            } else {
                running.change_rules(&mut store, &mut draws);
            }
            // Some changes follow each other at once.
            let next = shared.seen.load(Ordering::Relaxed) + draws.one(&(0..PACKETS_BETWEEN_MAX));
            while shared.seen.load(Ordering::Relaxed) < next {
                std::thread::yield_now();
            }
        }
        shared.stops.store(true, Ordering::SeqCst);
        granting.join().expect("no panic");
        sent.lock().expect("no panic").len() as f64 / begun.elapsed().as_secs_f64()
    });
    let stats = nic.port_stats(1);
    running.controller.clear().expect("flows are removed");
    handles.into_iter().for_each(|handle| drop(handle.join().expect("no panic")));
    let (sent, decided) = (taken(&sent), taken(&decided));
    let met = judge(&running, &sent, &decided, &keys);
    println!("{name}: {changes} changes, {rate:.0} packets/s, {met:?}");
    assert_eq!((stats.rx_frames, stats.dispositions()), (met.packets, met.packets), "{stats:?}");
    assert_eq!(stats.delivered + stats.flow_dropped + stats.unmatched, met.packets, "{stats:?}");
    assert_eq!((stats.replicated, stats.copies_lost), (met.copies, 0), "{stats:?}");
    assert!(met.packets > u64::from(changes) * 100 && met.certain * 2 > met.packets, "{met:?}");
    assert!(met.by_rules * 100 > met.packets && met.not_delivered * 20 > met.packets, "{met:?}");
    assert!(met.doubled * 10 < met.packets, "{met:?}");
}

/// Lets the wire hand over as many frames as the workers have room for, until it is to stop and all have
/// arrived.
fn grant(nic: &SoftNic, shared: &Shared, controls: &[WorkerControl]) {
    let mut stopped: Option<Instant> = None;
    loop {
        let stops = shared.stops.load(Ordering::SeqCst);
        let waits = stops.then(|| stopped.get_or_insert_with(Instant::now).elapsed());
        let stats = nic.port_stats(1);
        let seen = shared.seen.load(Ordering::Acquire);
        let settled = stats.flow_dropped + stats.unmatched + seen;
        // The workers of the copies may be behind those of the packets.
        let copies = stats.replicated.saturating_sub(shared.seen_copies.load(Ordering::Acquire));
        if !stops {
            if copies <= IN_FLIGHT_MAX {
                shared.granted.store(settled + IN_FLIGHT_MAX, Ordering::Release);
            }
        } else if [settled, stats.dispositions()] == [shared.granted.load(Ordering::Acquire); 2] {
            // The engine publishes its counters after the workers may have had the packets.
            return;
        }
        assert!(
            waits.is_none_or(|waits| waits < PATIENCE),
            "of {} frames {settled} have arrived: {stats:?}; {:#?}",
            shared.granted.load(Ordering::Acquire),
            controls.iter().map(WorkerControl::snapshot).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn taken<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *list.lock().expect("no panic"))
}

fn compiled(text: &str, model: &DeviceModel, installed: Option<&Arc<Program>>) -> Arc<Program> {
    let (policy, _) = policy::parse(&Source::new("test.toml", text), &NoFiles).expect("a right policy");
    let program = compiler::compile_with(&policy, model, WORKERS, installed.map(|program| &**program));
    Arc::new(program.expect("a program"))
}

#[test]
fn packets_meet_one_state_at_full_rate_on_an_ideal_device() {
    change_at_full_rate("rate0", Personality::Ideal, &DeviceModel::ideal());
}

#[test]
fn packets_meet_one_state_at_full_rate_on_an_mlx5() {
    let model = DeviceModel::by_name("mlx5").expect("a model").in_software();
    change_at_full_rate("rate1", Personality::Mlx5, &model);
}
