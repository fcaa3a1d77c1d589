//! The sinks of the policy in force: opened before its program is published, kept over reloads that do not
//! change them, closed when no worker can have packets for them. Sinks can also be attached to a rule, or
//! to all packets, while the daemon runs.
//!
//! [`Sinks`] belongs to the thread of the dataplane; other threads see a [`SinkList`].

mod list;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hugemem::ArenaOptions;
use program::{CountSink, Program, RecorderRing, RecorderSpec, RuleId, SinkKind, SinkSpec};
use verbs::{Domain, RegisteredFrames};
use worker::sinks::{self, Environment, Hub, Opened, Others, SinkError, capture, recorder};
use worker::{FrameBudget, SinkMap, Slot, WorkerControl};

use crate::daemon::device::OpenDevice;
use list::{Counted, Measured, OpenCounters, ShownSink};
pub(crate) use list::{SharedHub, SinkList, SinkView};

/// How long a worker may take to put a sink in its place. It checks once per iteration.
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long frames in flight may take to come back from a sink that is closed, before its sends are ended and
/// after.
const FRAMES_TIMEOUT: Duration = Duration::from_secs(1);
/// The most programs that workers can have packets of: the one in force, the one that it replaced or that
/// replaces it, and one of a map that they have not yet given up.
const PROGRAMS_MAX: usize = 3;
/// The name of the recorder in the state; no sink of a policy has it.
pub(crate) const RECORDER: &str = "(recorder)";
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
    /// The kinds of pages and the node of each worker's memory.
    arenas: Vec<ArenaOptions>,
    ports: Vec<u8>,
    /// The folder of the daemon's state.
    state: Option<PathBuf>,
    list: Vec<OpenSink>,
    /// The programs that workers may have, in the order in which they are announced: the last one is being
    /// installed or is in force.
    programs: Vec<ProgramInUse>,
    /// The generation of the program in force; 0: none yet.
    in_force: u64,
    /// The totals of closed sinks, by name.
    past: BTreeMap<String, Counted>,
}

/// A program as workers get it.
#[derive(Clone)]
struct ProgramInUse {
    program: Arc<Program>,
    map: Arc<SinkMap>,
    /// The SHA-256 of its policy's text.
    sha256: String,
}

impl ProgramInUse {
    /// Tells a hub that packets of this program may come, and that no other is newer.
    fn announce(&self, hub: &dyn Hub) {
        hub.digest(self.map.generation(), &self.sha256);
        hub.announce(&self.map, &self.program);
    }
}

/// The packets that a sink gets that no policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttachedTo {
    /// The packets that the rule of this name delivers.
    Rule(String),
    /// All packets that workers decide.
    All,
    /// The packets that the recorder of the policy in force keeps.
    Recorded(RecorderRing),
}

impl AttachedTo {
    /// The name in the state; no rule has that of all packets.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Rule(name) => name,
            Self::All => "(all packets)",
            Self::Recorded(_) => "(recorded packets)",
        }
    }

    /// Whether it gets packets of this rule of a program.
    pub(crate) fn has(&self, program: &Program, rule: &program::Rule) -> bool {
        match self {
            Self::Rule(name) => rule.name == *name,
            Self::All => true,
            Self::Recorded(_) => {
                let listed = program.recorder.as_ref().and_then(|recorder| recorder.rules.as_ref());
                listed.is_none_or(|names| names.iter().any(|name| rule.name == **name))
            }
        }
    }

    /// Whether it is the recorder of a program.
    fn records(&self, program: &Program) -> bool {
        matches!((self, &program.recorder), (Self::Recorded(ring), Some(recorder)) if *ring == recorder.ring)
    }

    /// Gives a sink these packets of a program.
    fn attach(&self, program: &Program, map: &SinkMap, slot: Slot) {
        match self {
            Self::All => map.attach_to_all(slot),
            Self::Recorded(_) if self.records(program) => map.attach_recorder(slot),
            Self::Recorded(_) => {}
            Self::Rule(name) => {
                rule_named(program, name).into_iter().for_each(|rule| map.attach(rule, slot));
            }
        }
    }

    /// Ends [`AttachedTo::attach`].
    fn detach(&self, program: &Program, map: &SinkMap, slot: Slot) {
        match self {
            Self::All | Self::Recorded(_) => map.detach_from_all(slot),
            Self::Rule(name) => {
                rule_named(program, name).into_iter().for_each(|rule| map.detach(rule, slot));
            }
        }
    }
}

struct OpenSink {
    definition: SinkSpec,
    slot: Slot,
    /// `None`: it is a sink of a policy.
    attached_to: Option<AttachedTo>,
    hub: SharedHub,
    /// The hub's totals at the end of the workers.
    last: Measured,
    counters: OpenCounters,
    /// It is not shown, and waits to be closed: no program names it any more, or not all workers took it.
    is_closing: bool,
}

impl Sinks {
    pub(crate) fn new(
        workers: Vec<WorkerControl>,
        domains: Vec<Domain>,
        budgets: Vec<Arc<FrameBudget>>,
        frames: Vec<RegisteredFrames>,
        ports: Vec<u8>,
        state: Option<PathBuf>,
    ) -> Self {
        let (list, programs, past) = (Vec::new(), Vec::new(), BTreeMap::new());
        let arenas = Vec::new();
        Self { workers, domains, budgets, frames, arenas, ports, state, list, programs, in_force: 0, past }
    }

    /// With memory of the workers for a recorder: a template for each, whose size does not count.
    pub(crate) fn with_arenas(self, arenas: Vec<ArenaOptions>) -> Self {
        Self { arenas, ..self }
    }

    /// Opens the sinks of a program that are not open yet. The result is published with the program; then
    /// [`Sinks::installed`] or [`Sinks::abandon`] must be called.
    ///
    /// # Errors
    /// A sink cannot be opened; those that were opened for this program are left to [`Sinks::close_marked`].
    pub(crate) fn prepare(
        &mut self,
        device: &OpenDevice,
        program: &Arc<Program>,
        generation: u64,
        sha256: &str,
    ) -> Result<Arc<SinkMap>, Error> {
        let opened = self.slots_of(device, program);
        let opened = opened.and_then(|slots| self.open_recorder(device, program).map(|()| slots));
        let slots = match opened {
            Ok(slots) => slots,
            Err(error) => {
                self.mark_unnamed();
                return Err(error);
            }
        };
        let map = Arc::new(SinkMap::new(generation, program, &slots));
        let in_use =
            ProgramInUse { program: Arc::clone(program), map: Arc::clone(&map), sha256: sha256.to_owned() };
        for sink in &self.list {
            sink.hub.with(|hub| in_use.announce(hub));
            sink.attached_to.iter().for_each(|packets| packets.attach(program, &map, sink.slot));
        }
        if self.programs.len() == PROGRAMS_MAX {
            let oldest = self.programs.iter().position(|other| other.map.generation() != self.in_force);
            oldest.map(|oldest| self.programs.remove(oldest));
        }
        self.programs.push(in_use);
        Ok(map)
    }

    /// The places of the sinks of a program. Opening one may wait for a file system, and placing it for
    /// workers.
    fn slots_of(&mut self, device: &OpenDevice, program: &Program) -> Result<Vec<Slot>, Error> {
        let mut slots = Vec::with_capacity(program.sinks.len());
        for definition in &program.sinks {
            let is_same = |open: &&OpenSink| {
                open.attached_to.is_none() && !open.is_closing && open.definition == *definition
            };
            if let Some(open) = self.list.iter().find(is_same) {
                slots.push(open.slot);
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
            if let (SinkKind::Capture(options), Some(state)) = (&definition.kind, &self.state) {
                capture::make_folder(&definition.name, options, state)?;
            }
            let opened = sinks::open(definition, &environment)?;
            slots.push(self.place(definition, None, opened)?);
        }
        Ok(slots)
    }

    /// Opens the recorder of a program, unless it is open.
    fn open_recorder(&mut self, device: &OpenDevice, program: &Program) -> Result<(), Error> {
        let Some(RecorderSpec { ring, .. }) = program.recorder else { return Ok(()) };
        let packets = AttachedTo::Recorded(ring);
        if self.list.iter().any(|open| !open.is_closing && open.attached_to.as_ref() == Some(&packets)) {
            return Ok(());
        }
        let opened = recorder::open(ring, &self.arenas, device.device.context()).map_err(SinkError::from)?;
        let definition = SinkSpec { name: RECORDER.to_owned(), kind: SinkKind::Count(CountSink::default()) };
        self.place(&definition, Some(&packets), opened).map(drop)
    }

    /// Gives every worker its endpoint, and waits until all have taken it. A sink that some have not taken is
    /// left to [`Sinks::close_marked`].
    fn place(
        &mut self,
        definition: &SinkSpec,
        attached_to: Option<&AttachedTo>,
        opened: Opened,
    ) -> Result<Slot, Error> {
        let is_free = |slot: &Slot| self.list.iter().all(|open| open.slot != *slot);
        let free = (0..Slot::COUNT).filter_map(Slot::of).find(is_free);
        let slot = free.ok_or_else(|| Error::NoPlace(definition.name.clone()))?;
        let Opened { hub, endpoints, counters, transmit } = opened;
        let give =
            |(worker, endpoint): (&WorkerControl, _)| worker.place_sink_of(&definition.kind, slot, endpoint);
        let changes: Vec<_> = self.workers.iter().zip(endpoints).map(give).collect();
        self.list.push(OpenSink {
            definition: definition.clone(),
            slot,
            attached_to: attached_to.cloned(),
            hub: SharedHub::new(hub),
            last: Measured::default(),
            counters: OpenCounters { traffic: counters, transmit },
            is_closing: false,
        });
        let mut given = self.workers.iter().zip(changes);
        match given.find(|(worker, change)| !worker.wait_for_sink(*change, PLACE_TIMEOUT)) {
            None => Ok(slot),
            Some((worker, _)) => {
                let error = Error::NotTaken { sink: definition.name.clone(), worker: worker.id().0 };
                self.list.iter_mut().filter(|sink| sink.slot == slot).for_each(|sink| sink.is_closing = true);
                Err(error)
            }
        }
    }

    /// Workers get the program that was prepared with this map. It may have other numbers for its classes by
    /// now.
    pub(crate) fn begin(&mut self, program: &Arc<Program>, map: &Arc<SinkMap>) {
        let Some(in_use) = self.programs.iter_mut().find(|in_use| Arc::ptr_eq(&in_use.map, map)) else {
            return;
        };
        if !Arc::ptr_eq(&in_use.program, program) {
            in_use.program = Arc::clone(program);
            self.list.iter().for_each(|sink| _ = sink.hub.with(|hub| in_use.announce(hub)));
        }
    }

    /// The program that was prepared last is in force. Sinks of others stay until [`Sinks::release_unused`].
    pub(crate) fn installed(&mut self, map: &SinkMap) {
        self.in_force = map.generation();
    }

    /// The program that was prepared last is not installed. Workers may have it, and packets of it, so its
    /// sinks stay until [`Sinks::release_unused`].
    pub(crate) fn abandon(&mut self) {
        let Some(in_force) = self.in_force().cloned() else { return };
        for sink in &self.list {
            sink.hub.with(|hub| in_force.announce(hub));
        }
        // For sinks that are attached later the program in force is the newest again, too.
        self.programs.retain(|other| !Arc::ptr_eq(&other.map, &in_force.map));
        self.programs.push(in_force);
    }

    /// Releases the programs that are not in force. No worker has another one.
    pub(crate) fn release_previous(&mut self) {
        self.programs = self.in_force().cloned().into_iter().collect();
        for ProgramInUse { map, .. } in &self.programs {
            self.list.iter().for_each(|sink| _ = sink.hub.with(|hub| hub.release_others(map)));
        }
    }

    /// Releases programs as [`Sinks::release_previous`] does, and marks the sinks to be closed that the
    /// program in force does not name.
    pub(crate) fn release_unused(&mut self) {
        self.release_previous();
        self.mark_unnamed();
    }

    /// Marks the sinks that no program names.
    fn mark_unnamed(&mut self) {
        let Self { list, programs, .. } = self;
        for sink in list {
            let mut programs = programs.iter().map(|in_use| &in_use.program);
            sink.is_closing = match &sink.attached_to {
                None => !programs.any(|program| program.sinks.contains(&sink.definition)),
                Some(recorder @ AttachedTo::Recorded(_)) => {
                    !programs.any(|program| recorder.records(program))
                }
                // Until it is detached.
                Some(AttachedTo::Rule(_) | AttachedTo::All) => sink.is_closing,
            };
        }
    }

    /// Closes the marked sinks. Waits for workers and for threads of sinks.
    pub(crate) fn close_marked(&mut self) {
        let marked = self.list.iter().filter(|sink| sink.is_closing).map(|sink| sink.slot);
        marked.collect::<Vec<Slot>>().into_iter().for_each(|slot| self.close(slot));
    }

    /// Closes a sink. Its place stays taken until the end.
    fn close(&mut self, slot: Slot) {
        let Some(sink) = self.list.iter().find(|sink| sink.slot == slot) else { return };
        let (hub, name) = (sink.hub.clone(), sink.definition.name.clone());
        self.take_from_workers(slot, &name);
        let wait = |worker: &WorkerControl| worker.wait_for_frames(FRAMES_TIMEOUT);
        let _ = self.workers.iter().all(wait);
        // Ends the sends of a port that stalls.
        hub.end();
        if !self.workers.iter().all(wait) {
            tracing::warn!("the sink `{name}` still has frames of a worker");
        }
        if let Some(sink) = self.remove(slot).filter(|sink| sink.attached_to.is_none()) {
            add_past(&mut self.past, &name, sink.counters.read());
        }
    }

    fn take_from_workers(&self, slot: Slot, name: &str) {
        for worker in &self.workers {
            let change = worker.place_sink(slot, None);
            if !worker.wait_for_sink(change, PLACE_TIMEOUT) {
                tracing::warn!("worker {} still uses the sink `{name}`", worker.id().0);
            }
        }
    }

    fn remove(&mut self, slot: Slot) -> Option<OpenSink> {
        self.workers.iter().for_each(WorkerControl::free_sinks);
        let index = self.list.iter().position(|sink| sink.slot == slot)?;
        Some(self.list.remove(index))
    }

    /// Lets a sink get packets, beside the sinks of the policy, until [`Sinks::detach`]; reloads keep it.
    ///
    /// # Errors
    /// There is no such rule, or no place; or a worker has not taken the sink, which is left to
    /// [`Sinks::close_marked`].
    pub(crate) fn attach(
        &mut self,
        definition: &SinkSpec,
        packets: &AttachedTo,
        opened: Opened,
    ) -> Result<Slot, Error> {
        let has_rule = |name| self.in_force().is_some_and(|now| rule_named(&now.program, name).is_some());
        if let AttachedTo::Rule(name) = packets
            && !has_rule(name)
        {
            return Err(Error::NoRule(name.clone()));
        }
        self.programs.iter().for_each(|in_use| in_use.announce(opened.hub.as_ref()));
        let slot = self.place(definition, Some(packets), opened)?;
        for ProgramInUse { program, map, .. } in &self.programs {
            packets.attach(program, map, slot);
        }
        Ok(slot)
    }

    /// Ends [`Sinks::attach`]. Returns the sink's hub, whose end waits for its threads: a client that does
    /// not read its capture must not hold up the dataplane.
    pub(crate) fn detach(&mut self, slot: Slot) -> Option<SharedHub> {
        let sink = self.list.iter().find(|sink| sink.slot == slot)?;
        let (packets, name) = (sink.attached_to.clone()?, sink.definition.name.clone());
        for ProgramInUse { program, map, .. } in &self.programs {
            packets.detach(program, map, slot);
        }
        self.take_from_workers(slot, &name);
        Some(self.remove(slot)?.hub)
    }

    /// Ends the threads of all sinks, when the workers have ended. The counters can still be read.
    pub(crate) fn end(&mut self) {
        for sink in &mut self.list {
            sink.hub.with(|hub| sink.last = Measured::of(hub));
        }
        self.list.iter().for_each(|sink| sink.hub.end());
    }

    /// The sinks in the order of the policy, attached ones last. Of the sinks of one name that are open over
    /// a reload only the one in force is shown, with the counts of all of that name.
    pub(crate) fn list(&self) -> SinkList {
        let program = self.in_force().map(|in_use| &*in_use.program);
        let in_force = program.map_or(&[][..], |program| &program.sinks);
        let place = |sink: &OpenSink| in_force.iter().position(|definition| *definition == sink.definition);
        let is_recorder = |sink: &OpenSink| {
            program.zip(sink.attached_to.as_ref()).is_some_and(|(program, packets)| packets.records(program))
        };
        let mut shown: Vec<&OpenSink> = Vec::with_capacity(self.list.len());
        for sink in self.list.iter().filter(|sink| !sink.is_closing) {
            match shown.iter_mut().find(|other| other.definition.name == sink.definition.name) {
                Some(other) if place(sink).is_some() || is_recorder(sink) => *other = sink,
                Some(_) => {}
                None => shown.push(sink),
            }
        }
        shown.sort_by_key(|sink| (sink.attached_to.is_some(), place(sink).unwrap_or(usize::MAX)));
        SinkList::new(shown.into_iter().map(|sink| self.shown(sink)).collect())
    }

    fn shown(&self, sink: &OpenSink) -> ShownSink {
        let name = &sink.definition.name;
        let namesakes = self.list.iter().filter(|other| other.definition.name == *name);
        ShownSink {
            definition: sink.definition.clone(),
            attached_to: sink.attached_to.clone(),
            hub: sink.hub.clone(),
            last: sink.last.clone(),
            counters: namesakes.map(|other| other.counters.clone()).collect(),
            past: self.past.get(name).cloned().unwrap_or_default(),
        }
    }

    fn in_force(&self) -> Option<&ProgramInUse> {
        self.programs.iter().rev().find(|in_use| in_use.map.generation() == self.in_force)
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
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use worker::SinkCounters;
    use worker::sinks::Ports;

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
        Sinks::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), None)
    }

    /// A sink that is in its tick, what releases it, and whether its hub is dropped.
    fn in_tick() -> (Sinks, Sender<()>, Arc<AtomicBool>) {
        let mut sinks = no_workers();
        let ((begun, has_begun), (release, released)) = (channel(), channel());
        let is_dropped = Arc::new(AtomicBool::new(false));
        let hub = Slow { begun, released: Mutex::new(released), is_dropped: Arc::clone(&is_dropped) };
        let opened =
            Opened { hub: Box::new(hub), endpoints: Vec::new(), counters: Vec::new(), transmit: Vec::new() };
        let definition = SinkSpec { name: "slow".into(), kind: SinkKind::Count(CountSink::default()) };
        assert!(sinks.place(&definition, None, opened).is_ok(), "there is a place");
        let list = sinks.list();
        std::thread::spawn(move || list.tick(&Ports::default()));
        has_begun.recv_timeout(PATIENCE).expect("it begins");
        (sinks, release, is_dropped)
    }

    #[test]
    fn a_hub_that_hangs_in_its_tick_delays_no_reader() {
        let (mut sinks, release, _) = in_tick();
        let list = sinks.list();
        assert_eq!(within("view", PATIENCE, move || list.view().len()), Some(1));
        assert_eq!(within("end", PATIENCE, move || sinks.end()), Some(()), "its end is not waited for");
        drop(release);
    }

    /// Sends the generations that are announced to it.
    struct Announced(Sender<u64>);

    impl Hub for Announced {
        fn announce(&self, map: &Arc<SinkMap>, _: &Arc<Program>) {
            let _ = self.0.send(map.generation());
        }
    }

    #[test]
    fn an_attached_sink_knows_all_programs_of_workers() {
        let text = "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"r\"\nmatch = { any = true }\naction = \"steer g\"\n";
        let source = policy::Source::new("p.toml", text);
        let (policy, _) = policy::parse(&source, &policy::NoFiles).expect("a policy");
        let profile = device_model::DeviceModel::ideal();
        let program = Arc::new(compiler::compile(&policy, &profile, 1).expect("a program"));
        let mut sinks = no_workers();
        let published = |generation| {
            let map = Arc::new(SinkMap::new(generation, &program, &[]));
            ProgramInUse { program: Arc::clone(&program), map, sha256: String::new() }
        };
        sinks.programs = vec![published(1), published(2)];
        sinks.installed(&published(1).map);
        let attach = |sinks: &mut Sinks| {
            let (announced, generations) = channel();
            let hub = Box::new(Announced(announced));
            let opened = Opened { hub, endpoints: Vec::new(), counters: Vec::new(), transmit: Vec::new() };
            let definition =
                SinkSpec { name: "attached".into(), kind: SinkKind::Count(CountSink::default()) };
            sinks.attach(&definition, &AttachedTo::Rule("r".to_owned()), opened).expect("a place");
            generations.try_iter().collect::<Vec<u64>>()
        };
        assert_eq!(attach(&mut sinks), [1, 2]);
        sinks.abandon();
        assert_eq!(attach(&mut sinks), [2, 1], "the program in force is the newest again");
    }

    /// A hub whose end lasts until the test releases it.
    struct SlowEnd(Mutex<Receiver<()>>);

    impl Hub for SlowEnd {}

    impl Drop for SlowEnd {
        fn drop(&mut self) {
            let _ = self.0.lock().expect("one end").recv();
        }
    }

    #[test]
    fn a_hub_that_hangs_at_its_end_is_left_to_the_caller() {
        let (release, released) = channel();
        let opened = Opened {
            hub: Box::new(SlowEnd(Mutex::new(released))),
            endpoints: Vec::new(),
            counters: Vec::new(),
            transmit: Vec::new(),
        };
        let mut sinks = no_workers();
        let program = program_with(1);
        let map = Arc::new(SinkMap::new(1, &program, &[]));
        sinks.programs = vec![ProgramInUse { program, map: Arc::clone(&map), sha256: String::new() }];
        sinks.installed(&map);
        let definition = SinkSpec { name: "attached".into(), kind: SinkKind::Count(CountSink::default()) };
        let slot = sinks.attach(&definition, &AttachedTo::All, opened).expect("a place");
        assert_eq!(sinks.list().view().len(), 1);
        let detached = within("detach", PATIENCE, move || (sinks.detach(slot), sinks));
        let (hub, sinks) = detached.expect("the end is not waited for");
        assert_eq!((hub.is_some(), sinks.list().view().len()), (true, 0));
        drop(release);
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
        let mut sinks = no_workers();
        let (old, new) = (program_with(1), program_with(2));
        let open = |sinks: &mut Sinks, program: &Arc<Program>, packets| {
            let counters = Arc::new(SinkCounters::default());
            counters.offered(packets, 64 * packets);
            let opened = Opened {
                hub: Box::new(Idle),
                endpoints: Vec::new(),
                counters: vec![counters],
                transmit: Vec::new(),
            };
            assert!(sinks.place(&program.sinks[0], None, opened).is_ok(), "there is a place");
        };
        let published = |generation, program: &Arc<Program>| {
            let map = Arc::new(SinkMap::new(generation, program, &[]));
            ProgramInUse { program: Arc::clone(program), map, sha256: String::new() }
        };
        let shown = |list: SinkList| -> Vec<(SinkSpec, u64)> {
            let view = list.view().into_iter();
            view.map(|sink| (sink.definition, sink.counted.traffic[0].offered.packets)).collect()
        };
        open(&mut sinks, &old, 5);
        sinks.programs = vec![published(1, &old)];
        sinks.installed(&published(1, &old).map);
        assert_eq!(shown(sinks.list()), [(old.sinks[0].clone(), 5)]);
        open(&mut sinks, &new, 3);
        sinks.programs.push(published(2, &new));
        assert_eq!(shown(sinks.list()), [(old.sinks[0].clone(), 8)], "the new one is not in force yet");
        sinks.installed(&published(2, &new).map);
        assert_eq!(shown(sinks.list()), [(new.sinks[0].clone(), 8)]);
        sinks.release_previous();
        sinks.release_unused();
        assert_eq!(sinks.list.len(), 2);
        assert_eq!(shown(sinks.list()), [(new.sinks[0].clone(), 8)], "one that is being closed still counts");
        sinks.close_marked();
        assert_eq!(sinks.list.len(), 1);
        assert_eq!(shown(sinks.list()), [(new.sinks[0].clone(), 8)]);
    }

    #[test]
    fn a_hub_has_ended_when_its_tick_has() {
        let (mut sinks, release, is_dropped) = in_tick();
        let releaser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(release);
        });
        sinks.end();
        releaser.join().expect("no panic");
        assert!(is_dropped.load(Ordering::Acquire));
    }
}
