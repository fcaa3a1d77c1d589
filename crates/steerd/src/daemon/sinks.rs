//! The sinks of the policy in force: opened before its program is published, kept over reloads that do not
//! change them, closed when no worker can have packets for them. Sinks can also be attached to a rule while
//! the daemon runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use program::{Program, RuleId, SinkSpec};
use verbs::{Domain, RegisteredFrames};
use worker::sinks::{self, Environment, Hub, Opened, Others, PacketSizes, Ports, SinkError, TopFlow};
use worker::{FrameBudget, SinkChange, SinkCounters, SinkMap, SinkTraffic, Slot, WorkerControl};

use crate::daemon::device::OpenDevice;
use crate::daemon::sink_health::SinkProgress;

/// How long a worker may take to put a sink in its place. It checks once per iteration.
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long frames in flight may take to come back from a sink that is closed, before its sends are ended and
/// after.
const FRAMES_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the end of a sink waits for the call of its hub that is running, and how often it looks.
const TICK_TIMEOUT: Duration = Duration::from_secs(1);
const TICK_STEP: Duration = Duration::from_millis(1);
/// The most programs that workers can have packets of: one in each band, and one that replaces one of them.
const PROGRAMS_MAX: usize = 3;
/// The most names of closed sinks whose counts are kept.
const PAST_MAX: usize = 1024;

/// Why the sinks of a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Open(#[from] SinkError),
    #[error(
        "sink `{0}`: there is no place left: too many sinks are in use or being closed (hint: reload again)"
    )]
    NoPlace(String),
    #[error("sink `{sink}`: worker {worker} did not take it within {} s", PLACE_TIMEOUT.as_secs())]
    NotTaken { sink: String, worker: u32 },
    #[error("no rule of the policy in force has the name `{0}`")]
    NoRule(String),
}

/// All sinks of the daemon.
pub(crate) struct Sinks {
    workers: Vec<WorkerControl>,
    domains: Vec<Domain>,
    budgets: Vec<Arc<FrameBudget>>,
    frames: Vec<RegisteredFrames>,
    ports: Vec<u8>,
    state: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    list: Vec<OpenSink>,
    /// The programs that workers may have, in the order in which they are announced: the last one is being
    /// installed or is in force.
    programs: Vec<Published>,
    /// The generation of the program in force; 0: none yet.
    in_force: u64,
    /// The sinks that are being closed.
    closing: Vec<ClosingSink>,
    /// The totals of closed sinks, by name.
    past: BTreeMap<String, Counted>,
}

/// A program as workers get it.
#[derive(Clone)]
struct Published {
    program: Arc<Program>,
    map: Arc<SinkMap>,
    /// The SHA-256 of its policy's text.
    sha256: String,
}

impl Published {
    /// Tells a hub that packets of this program may come, and that no other is newer.
    fn announce(&self, hub: &dyn Hub) {
        hub.digest(self.map.generation(), &self.sha256);
        hub.announce(self.map.generation(), &self.program);
    }
}

impl Open {
    fn in_force(&self) -> Option<&Published> {
        self.programs.iter().rev().find(|published| published.map.generation() == self.in_force)
    }

    /// One sink for each name, in the order of the policy in force, attached ones last.
    fn shown(&self) -> Vec<&OpenSink> {
        let in_force = self.in_force().map_or(&[][..], |published| &published.program.sinks);
        let place = |sink: &OpenSink| in_force.iter().position(|definition| *definition == sink.definition);
        let mut shown: Vec<&OpenSink> = Vec::with_capacity(self.list.len());
        for sink in &self.list {
            match shown.iter_mut().find(|other| other.definition.name == sink.definition.name) {
                Some(other) if place(sink).is_some() => *other = sink,
                Some(_) => {}
                None => shown.push(sink),
            }
        }
        shown.sort_by_key(|sink| (sink.use_ != Use::Policy, place(sink).unwrap_or(usize::MAX)));
        shown
    }

    /// The packets of all sinks that have or had this name.
    fn counted(&self, name: &str) -> Counted {
        let open = self.list.iter().filter(|sink| sink.definition.name == name).map(|sink| &sink.counters);
        let closing = self.closing.iter().filter(|sink| sink.name == name).map(|sink| &sink.counters);
        let mut sum = Counted::default();
        open.chain(closing).for_each(|counters| sum.add(&counters.read()));
        self.past.get(name).into_iter().for_each(|past| sum.add(past));
        sum
    }

    /// Takes out the sinks that no program names. Their places stay taken until they are closed.
    fn take_unused(&mut self) -> Vec<OpenSink> {
        let names = |sink: &OpenSink| {
            self.programs.iter().any(|published| published.program.sinks.contains(&sink.definition))
        };
        let is_used = |sink: &OpenSink| matches!(sink.use_, Use::Rule { .. }) || names(sink);
        let (used, unused): (Vec<_>, Vec<_>) = std::mem::take(&mut self.list).into_iter().partition(is_used);
        self.list = used;
        self.closing.extend(unused.iter().map(ClosingSink::of));
        unused
    }
}

/// A sink that is taken out: its place stays taken, and its packets are counted, until it is closed.
struct ClosingSink {
    slot: Slot,
    name: String,
    counters: OpenCounters,
}

impl ClosingSink {
    fn of(sink: &OpenSink) -> Self {
        Self { slot: sink.slot, name: sink.definition.name.clone(), counters: sink.counters.clone() }
    }
}

/// [`Sinks::tick`] uses a hub without the lock.
type SharedHub = Arc<Box<dyn Hub>>;

struct OpenSink {
    definition: SinkSpec,
    slot: Slot,
    use_: Use,
    /// `None` once the workers have ended.
    hub: Option<SharedHub>,
    /// The hub's totals at the end.
    last: Measured,
    counters: OpenCounters,
}

/// The counters of a sink that is open.
#[derive(Clone)]
struct OpenCounters {
    traffic: Vec<Arc<SinkCounters>>,
    /// The counters of what the sink sends by a port for others.
    transmit: Vec<Arc<SinkCounters>>,
}

impl OpenCounters {
    fn read(&self) -> Counted {
        let read = |counters: &[Arc<SinkCounters>]| counters.iter().map(|counters| counters.read()).collect();
        Counted { traffic: read(&self.traffic), transmit: read(&self.transmit) }
    }
}

/// The counts of a sink.
#[derive(Default)]
pub(crate) struct Counted {
    /// The totals by worker.
    pub(crate) traffic: Vec<SinkTraffic>,
    /// The totals of what the sink sends by a port for others, by thread; empty if it does not.
    pub(crate) transmit: Vec<SinkTraffic>,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        let add = |sums: &mut Vec<SinkTraffic>, more: &[SinkTraffic]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            sums.extend(more.iter().skip(sums.len()).cloned());
        };
        add(&mut self.traffic, &other.traffic);
        add(&mut self.transmit, &other.transmit);
    }
}

/// The values that a hub measures beside the sink's counters.
#[derive(Clone, Default)]
struct Measured {
    deleted_files: Option<u64>,
    sizes: Option<PacketSizes>,
    top_flows: Option<Vec<TopFlow>>,
}

impl Measured {
    fn of(hub: &dyn Hub) -> Self {
        let (sizes, top_flows) = (hub.packet_sizes(), hub.top_flows());
        Self { deleted_files: hub.deleted_files(), sizes, top_flows }
    }
}

/// The use for which a sink is open.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    /// A policy names it.
    Policy,
    /// The sink is attached to the rule of this name, or will be when all workers have it.
    Rule { rule: String, placed: bool },
}

/// A sink that workers are to take.
struct Placing {
    sink: String,
    slot: Slot,
    /// The changes for each worker.
    changes: Vec<SinkChange>,
}

/// A sink with its counters, for the state.
pub(crate) struct SinkView {
    pub(crate) definition: SinkSpec,
    /// The rule that it is attached to.
    pub(crate) attached_to: Option<String>,
    pub(crate) counted: Counted,
    pub(crate) status: Vec<(String, String)>,
    pub(crate) deleted_files: Option<u64>,
    pub(crate) sizes: Option<PacketSizes>,
    /// The flows with most packets first.
    pub(crate) top_flows: Option<Vec<TopFlow>>,
}

impl Sinks {
    pub(crate) fn new(
        workers: Vec<WorkerControl>,
        domains: Vec<Domain>,
        budgets: Vec<Arc<FrameBudget>>,
        frames: Vec<RegisteredFrames>,
        ports: Vec<u8>,
    ) -> Self {
        Self { workers, domains, budgets, frames, ports, state: Mutex::default() }
    }

    /// Opens the sinks of a program that are not open yet. The result is published with the program; then
    /// [`Sinks::installed`] or [`Sinks::abandon`] must be called. The caller holds the controller: no other
    /// `prepare`, `close_unused` or `release_previous` runs meanwhile.
    ///
    /// # Errors
    /// A sink cannot be opened; those that were opened for this program are closed again.
    pub(crate) fn prepare(
        &self,
        device: &OpenDevice,
        program: &Arc<Program>,
        generation: u64,
        sha256: &str,
    ) -> Result<Arc<SinkMap>, Error> {
        let slots = self.slots_of(device, program).inspect_err(|_| {
            let unused = self.state().take_unused();
            self.close_all(unused);
        })?;
        let map = Arc::new(SinkMap::new(generation, program, &slots));
        let published =
            Published { program: Arc::clone(program), map: Arc::clone(&map), sha256: sha256.to_owned() };
        let mut state = self.state();
        for sink in &state.list {
            if let Some(hub) = &sink.hub {
                published.announce(&***hub);
            }
            if let Use::Rule { rule, placed: true } = &sink.use_
                && let Some(rule) = rule_named(program, rule)
            {
                map.attach(rule, sink.slot);
            }
        }
        let in_force = state.in_force;
        if state.programs.len() == PROGRAMS_MAX {
            let oldest = state.programs.iter().position(|other| other.map.generation() != in_force);
            oldest.map(|oldest| state.programs.remove(oldest));
        }
        state.programs.push(published);
        Ok(map)
    }

    /// The places of the sinks of a program. Opening one may wait for a file system and placing it for
    /// workers, so neither holds the lock, which readers of the state need.
    fn slots_of(&self, device: &OpenDevice, program: &Program) -> Result<Vec<Slot>, Error> {
        let mut slots = Vec::with_capacity(program.sinks.len());
        let mut placing = Vec::new();
        for definition in &program.sinks {
            let is_same = |open: &&OpenSink| open.use_ == Use::Policy && open.definition == *definition;
            let open = self.state().list.iter().find(is_same).map(|open| open.slot);
            if let Some(slot) = open {
                slots.push(slot);
                continue;
            }
            let environment = Environment {
                context: device.device.context(),
                domains: &self.domains,
                budgets: &self.budgets,
                ports: &self.ports,
                stations: &device.stations(),
                others: Some(Others { frames: &self.frames, open: &|name| device.open_other(name) }),
            };
            let opened = sinks::open(definition, &environment)?;
            let placed = self.place(&mut self.state(), definition, Use::Policy, opened);
            let placed = placed.map_err(|_| Error::NoPlace(definition.name.clone()))?;
            slots.push(placed.slot);
            placing.push(placed);
        }
        placing.iter().try_for_each(|placing| self.wait_for(placing))?;
        Ok(slots)
    }

    /// Gives every worker its endpoint, which [`Sinks::wait_for`] waits for. If there is no place, `opened`
    /// is returned. The caller drops it after the lock is released, because its hub waits for threads when it
    /// is dropped.
    fn place(
        &self,
        state: &mut Open,
        definition: &SinkSpec,
        use_: Use,
        opened: Opened,
    ) -> Result<Placing, Opened> {
        let sink = definition.name.clone();
        let is_free = |slot: &Slot| {
            state.list.iter().all(|open| open.slot != *slot)
                && state.closing.iter().all(|closing| closing.slot != *slot)
        };
        let Some(slot) = (0..Slot::COUNT).filter_map(Slot::of).find(is_free) else {
            return Err(opened);
        };
        let Opened { hub, endpoints, counters, transmit } = opened;
        let place =
            |(worker, endpoint): (&WorkerControl, _)| worker.place_sink_of(&definition.kind, slot, endpoint);
        let changes = self.workers.iter().zip(endpoints).map(place).collect();
        state.list.push(OpenSink {
            definition: definition.clone(),
            slot,
            use_,
            hub: Some(Arc::new(hub)),
            last: Measured::default(),
            counters: OpenCounters { traffic: counters, transmit },
        });
        Ok(Placing { sink, slot, changes })
    }

    fn wait_for(&self, placing: &Placing) -> Result<(), Error> {
        let mut changes = self.workers.iter().zip(&placing.changes);
        match changes.find(|(worker, change)| !worker.wait_for_sink(**change, PLACE_TIMEOUT)) {
            None => Ok(()),
            Some((worker, _)) => Err(Error::NotTaken { sink: placing.sink.clone(), worker: worker.id().0 }),
        }
    }

    /// The program that was prepared last is in force. Sinks of others stay until [`Sinks::close_unused`].
    pub(crate) fn installed(&self, map: &SinkMap) {
        self.state().in_force = map.generation();
    }

    /// The program that was prepared last is not installed. Workers may have it, and packets of it, so its
    /// sinks stay until [`Sinks::close_unused`].
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        let Some(in_force) = state.in_force().cloned() else { return };
        state.list.iter().filter_map(|sink| sink.hub.as_ref()).for_each(|hub| in_force.announce(&***hub));
        // For sinks that are attached later the program in force is the newest again, too.
        state.programs.retain(|other| !Arc::ptr_eq(&other.map, &in_force.map));
        state.programs.push(in_force);
    }

    /// Releases the programs that are not in force. No worker has another one, and none is being installed.
    pub(crate) fn release_previous(&self) {
        let mut state = self.state();
        let in_force = state.in_force().cloned();
        state.programs = in_force.into_iter().collect();
    }

    /// Releases sinks as [`Sinks::release_previous`] does, and closes the sinks that the program in force
    /// does not name.
    pub(crate) fn close_unused(&self) {
        self.release_previous();
        let unused = self.state().take_unused();
        self.close_all(unused);
    }

    fn close_all(&self, sinks: Vec<OpenSink>) {
        sinks.into_iter().for_each(|sink| self.close(sink));
    }

    /// Closes a sink that was taken out of the list. Waits for workers and for the sink's threads, without
    /// the lock.
    fn close(&self, mut sink: OpenSink) {
        let (slot, hub, definition) = (sink.slot, sink.hub.take(), &sink.definition);
        for worker in &self.workers {
            let change = worker.place_sink(slot, None);
            if !worker.wait_for_sink(change, PLACE_TIMEOUT) {
                tracing::warn!("worker {} still uses the sink `{}`", worker.id().0, definition.name);
            }
        }
        let wait = |worker: &WorkerControl| worker.wait_for_frames(FRAMES_TIMEOUT);
        let _ = self.workers.iter().all(wait);
        // Ends the sends of a port that stalls.
        hub.into_iter().for_each(end_hub);
        if !self.workers.iter().all(wait) {
            tracing::warn!("the sink `{}` still has frames of a worker", definition.name);
        }
        self.workers.iter().for_each(WorkerControl::free_sinks);
        let mut state = self.state();
        add_past(&mut state.past, &definition.name, sink.counters.read());
        state.closing.retain(|closing| closing.slot != slot);
    }

    /// Lets a sink get the packets of a rule, beside the rule's own sinks, until [`Sinks::detach`]; reloads
    /// keep it.
    ///
    /// # Errors
    /// There is no such rule, or no place.
    pub(crate) fn attach(&self, definition: &SinkSpec, rule: &str, opened: Opened) -> Result<Slot, Error> {
        let placing = {
            let mut state = self.state();
            let no_rule = || Error::NoRule(rule.to_owned());
            let in_force = state.in_force().cloned().ok_or_else(no_rule)?;
            rule_named(&in_force.program, rule).ok_or_else(no_rule)?;
            // Also the one that is being installed, as `prepare` has announced it to the sinks that were
            // open.
            state.programs.iter().for_each(|published| published.announce(opened.hub.as_ref()));
            let use_ = Use::Rule { rule: rule.to_owned(), placed: false };
            self.place(&mut state, definition, use_, opened)
        };
        let placing = placing.map_err(|_| Error::NoPlace(definition.name.clone()))?;
        let slot = placing.slot;
        if let Err(error) = self.wait_for(&placing) {
            self.detach(slot);
            return Err(error);
        }
        let mut state = self.state();
        if let Some(sink) = state.list.iter_mut().find(|sink| sink.slot == slot) {
            sink.use_ = Use::Rule { rule: rule.to_owned(), placed: true };
        }
        // Also in a program that is being installed.
        for Published { program, map, .. } in &state.programs {
            if let Some(rule) = rule_named(program, rule) {
                map.attach(rule, slot);
            }
        }
        Ok(slot)
    }

    /// Ends [`Sinks::attach`] and closes the sink.
    pub(crate) fn detach(&self, slot: Slot) {
        let sink = {
            let mut state = self.state();
            let is_it = |sink: &OpenSink| sink.slot == slot && sink.use_ != Use::Policy;
            let Some(index) = state.list.iter().position(is_it) else { return };
            let sink = state.list.remove(index);
            for Published { program, map, .. } in &state.programs {
                if let Use::Rule { rule, .. } = &sink.use_
                    && let Some(rule) = rule_named(program, rule)
                {
                    map.detach(rule, slot);
                }
            }
            state.closing.push(ClosingSink::of(&sink));
            sink
        };
        self.close(sink);
    }

    /// To be called about once a second. A hub may query a device, which may block, so the lock is not held;
    /// nor are other hubs than the one that is called, so that their sinks can be closed.
    pub(crate) fn tick(&self, ports: &Ports<'_>) {
        let hubs: Vec<_> =
            self.state().list.iter().filter_map(|sink| sink.hub.as_ref()).map(Arc::downgrade).collect();
        hubs.iter().filter_map(Weak::upgrade).for_each(|hub| hub.tick(ports));
    }

    /// Ends the threads of all sinks, when the workers have ended. The counters can still be read.
    pub(crate) fn end(&self) {
        let end = |sink: &mut OpenSink| {
            let hub = sink.hub.take()?;
            sink.last = Measured::of(&**hub);
            Some(hub)
        };
        let hubs: Vec<_> = self.state().list.iter_mut().filter_map(end).collect();
        hubs.into_iter().for_each(end_hub);
    }

    /// The sinks in the order of the policy, attached ones last. Of the sinks of one name that are open over
    /// a reload only the one in force is shown, with the counts of all of that name.
    pub(crate) fn view(&self) -> Vec<SinkView> {
        let state = self.state();
        let view = |sink: &OpenSink| {
            let measured = sink.hub.as_ref().map(|hub| Measured::of(&***hub));
            let Measured { deleted_files, sizes, top_flows } = measured.unwrap_or_else(|| sink.last.clone());
            SinkView {
                definition: sink.definition.clone(),
                attached_to: match &sink.use_ {
                    Use::Policy => None,
                    Use::Rule { rule, .. } => Some(rule.clone()),
                },
                counted: state.counted(&sink.definition.name),
                status: sink.hub.as_ref().map(|hub| hub.status()).unwrap_or_default(),
                deleted_files,
                sizes,
                top_flows,
            }
        };
        state.shown().into_iter().map(view).collect()
    }

    /// The packets that the sinks of the policy have passed on and lost so far.
    pub(crate) fn progress(&self) -> Vec<SinkProgress> {
        let state = self.state();
        let of_policy = state.shown().into_iter().filter(|sink| sink.use_ == Use::Policy);
        of_policy
            .map(|sink| {
                SinkProgress::of(&sink.definition.name, &state.counted(&sink.definition.name).traffic)
            })
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, Open> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops a hub, which writes and counts what it still has. One that hangs in [`Hub::tick`] is dropped when
/// that returns.
fn end_hub(mut hub: SharedHub) {
    let deadline = Instant::now() + TICK_TIMEOUT;
    while let Err(shared) = Arc::try_unwrap(hub) {
        if Instant::now() >= deadline {
            return;
        }
        hub = shared;
        std::thread::sleep(TICK_STEP);
    }
}

fn rule_named(program: &Program, name: &str) -> Option<RuleId> {
    program.rules.iter().position(|rule| rule.name == name).map(RuleId::of)
}

fn add_past(past: &mut BTreeMap<String, Counted>, name: &str, counted: Counted) {
    if let Some(sums) = past.get_mut(name) {
        sums.add(&counted);
    } else if past.len() < PAST_MAX {
        past.insert(name.to_owned(), counted);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use program::{CountSink, SinkKind};

    use super::*;
    use crate::daemon::shutdown::within;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A hub whose tick lasts until the test releases it.
    struct Slow {
        begun: Sender<()>,
        released: Mutex<Receiver<()>>,
        is_dropped: Arc<AtomicBool>,
    }

    impl Hub for Slow {
        fn tick(&self, _: &Ports<'_>) {
            self.begun.send(()).expect("the test waits");
            let _ = self.released.lock().expect("one tick").recv();
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.is_dropped.store(true, Ordering::Release);
        }
    }

    fn no_workers() -> Sinks {
        Sinks::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new())
    }

    /// A sink that is in its tick, what releases it, and whether its hub is dropped.
    fn in_tick() -> (Arc<Sinks>, Sender<()>, Arc<AtomicBool>) {
        let sinks = Arc::new(no_workers());
        let ((begun, has_begun), (release, released)) = (channel(), channel());
        let is_dropped = Arc::new(AtomicBool::new(false));
        let hub = Slow { begun, released: Mutex::new(released), is_dropped: Arc::clone(&is_dropped) };
        let opened =
            Opened { hub: Box::new(hub), endpoints: Vec::new(), counters: Vec::new(), transmit: Vec::new() };
        let definition = SinkSpec { name: "slow".into(), kind: SinkKind::Count(CountSink::default()) };
        let placed = sinks.place(&mut sinks.state(), &definition, Use::Policy, opened);
        assert!(placed.is_ok(), "there is a place");
        let ticked = Arc::clone(&sinks);
        std::thread::spawn(move || ticked.tick(&Ports::default()));
        has_begun.recv_timeout(PATIENCE).expect("it begins");
        (sinks, release, is_dropped)
    }

    #[test]
    fn a_hub_that_hangs_in_its_tick_delays_no_reader() {
        let (sinks, release, _) = in_tick();
        let viewed = Arc::clone(&sinks);
        assert_eq!(within("view", PATIENCE, move || viewed.view().len()), Some(1));
        let ended = Arc::clone(&sinks);
        assert_eq!(within("end", PATIENCE, move || ended.end()), Some(()), "its end is not waited for");
        drop(release);
    }

    /// Sends the generations that are announced to it.
    struct Announced(Sender<u64>);

    impl Hub for Announced {
        fn announce(&self, generation: u64, _: &Arc<Program>) {
            let _ = self.0.send(generation);
        }
    }

    #[test]
    fn an_attached_sink_knows_the_program_that_is_being_installed() {
        let text = "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"r\"\nmatch = { any = true }\naction = \"steer g\"\n";
        let source = policy::Source::new("p.toml", text);
        let (policy, _) = policy::parse(&source, &policy::NoFiles).expect("a policy");
        let profile = device_model::DeviceModel::ideal();
        let program = Arc::new(compiler::compile(&policy, &profile, 1).expect("a program"));
        let sinks = no_workers();
        let published = |generation| {
            let map = Arc::new(SinkMap::new(generation, &program, &[]));
            Published { program: Arc::clone(&program), map, sha256: String::new() }
        };
        sinks.state().programs = vec![published(1), published(2)];
        sinks.installed(&published(1).map);
        let attach = || {
            let (announced, generations) = channel();
            let hub = Box::new(Announced(announced));
            let opened = Opened { hub, endpoints: Vec::new(), counters: Vec::new(), transmit: Vec::new() };
            let definition =
                SinkSpec { name: "attached".into(), kind: SinkKind::Count(CountSink::default()) };
            sinks.attach(&definition, "r", opened).expect("a place");
            generations.try_iter().collect::<Vec<u64>>()
        };
        assert_eq!(attach(), [1, 2]);
        sinks.abandon();
        assert_eq!(attach(), [2, 1], "the program in force is the newest again");
    }

    /// A program with a sink of this name and options.
    fn program_with(top_flows: u32) -> Arc<Program> {
        let text = format!(
            "version = 1\n[sinks.tap]\nkind = \"count\"\ntop_flows = {top_flows}\n[groups.g]\nworkers = [0]\n\
             sinks = \"tap\"\n[[rules]]\nname = \"r\"\nmatch = {{ any = true }}\naction = \"steer g\"\n"
        );
        let source = policy::Source::new("p.toml", &text);
        let (policy, _) = policy::parse(&source, &policy::NoFiles).expect("a policy");
        Arc::new(compiler::compile(&policy, &device_model::DeviceModel::ideal(), 1).expect("a program"))
    }

    struct Idle;

    impl Hub for Idle {}

    #[test]
    fn a_sink_with_new_options_is_one_sink() {
        let sinks = no_workers();
        let (old, new) = (program_with(1), program_with(2));
        let open = |program: &Arc<Program>, packets| {
            let counters = Arc::new(SinkCounters::default());
            counters.offered(packets, 64 * packets);
            let opened = Opened {
                hub: Box::new(Idle),
                endpoints: Vec::new(),
                counters: vec![counters],
                transmit: Vec::new(),
            };
            let placed = sinks.place(&mut sinks.state(), &program.sinks[0], Use::Policy, opened);
            assert!(placed.is_ok(), "there is a place");
        };
        let published = |generation, program: &Arc<Program>| {
            let map = Arc::new(SinkMap::new(generation, program, &[]));
            Published { program: Arc::clone(program), map, sha256: String::new() }
        };
        let shown = |sinks: &Sinks| -> Vec<(SinkSpec, u64)> {
            let view = sinks.view().into_iter();
            view.map(|sink| (sink.definition, sink.counted.traffic[0].offered.packets)).collect()
        };
        open(&old, 5);
        sinks.state().programs = vec![published(1, &old)];
        sinks.installed(&published(1, &old).map);
        assert_eq!(shown(&sinks), [(old.sinks[0].clone(), 5)]);
        open(&new, 3);
        sinks.state().programs.push(published(2, &new));
        assert_eq!(shown(&sinks), [(old.sinks[0].clone(), 8)], "the new one is not in force yet");
        sinks.installed(&published(2, &new).map);
        assert_eq!(shown(&sinks), [(new.sinks[0].clone(), 8)]);
        sinks.release_previous();
        let unused = sinks.state().take_unused();
        assert_eq!(unused.len(), 1);
        assert_eq!(shown(&sinks), [(new.sinks[0].clone(), 8)], "one that is being closed still counts");
        sinks.close_all(unused);
        assert_eq!(shown(&sinks), [(new.sinks[0].clone(), 8)]);
    }

    #[test]
    fn a_hub_has_ended_when_its_tick_has() {
        let (sinks, release, is_dropped) = in_tick();
        let releaser = std::thread::spawn(move || {
            std::thread::sleep(TICK_TIMEOUT / 20);
            drop(release);
        });
        sinks.end();
        releaser.join().expect("no panic");
        assert!(is_dropped.load(Ordering::Acquire));
    }
}
