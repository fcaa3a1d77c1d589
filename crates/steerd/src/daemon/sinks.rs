//! The sinks of the policy in force: opened before its program is published, kept over reloads that do not change them,
//! closed when no worker can have packets for them. Sinks can also be attached to a rule while the daemon runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use program::{Program, RuleId, Sink};
use verbs::Domain;
use worker::sinks::{self, Environment, Hub, Opened, PacketSizes, SinkError, TopFlow};
use worker::{FrameBudget, SinkCounters, SinkMap, SinkTraffic, Slot, WorkerControl};

use crate::daemon::runtime::OpenDevice;

/// How long a worker may take to put a sink in its place. It checks once per iteration.
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long frames in flight may take to come back from a sink that is closed, before its sends are ended and after.
const FRAMES_TIMEOUT: Duration = Duration::from_secs(1);
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
    ports: Vec<u8>,
    state: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    list: Vec<OpenSink>,
    /// Of the program in force.
    in_force: Option<(Arc<Program>, Arc<SinkMap>)>,
    /// A generation and the SHA-256 of its policy's text, of the program that was prepared last.
    digest: (u64, String),
    /// What closed sinks have counted, by name and worker.
    past: BTreeMap<String, Vec<SinkTraffic>>,
}

struct OpenSink {
    definition: Sink,
    slot: Slot,
    use_: Use,
    /// `None` once the workers have ended.
    hub: Option<Box<dyn Hub>>,
    /// What the hub had counted at the end.
    last: Measured,
    counters: Vec<Arc<SinkCounters>>,
}

/// What a hub counts beside the sink's counters.
#[derive(Clone, Default)]
struct Measured {
    sizes: Option<PacketSizes>,
    top_flows: Option<Vec<TopFlow>>,
}

impl Measured {
    fn of(hub: &dyn Hub) -> Self {
        Self { sizes: hub.packet_sizes(), top_flows: hub.top_flows() }
    }
}

/// What a sink is open for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    /// A policy names it.
    Policy,
    /// It is attached to the rule of this name.
    Rule(String),
}

/// A sink with its counters, for the state.
pub(crate) struct SinkView {
    pub(crate) definition: Sink,
    /// The rule that it is attached to.
    pub(crate) attached_to: Option<String>,
    /// By worker.
    pub(crate) traffic: Vec<SinkTraffic>,
    pub(crate) status: Vec<(String, String)>,
    pub(crate) sizes: Option<PacketSizes>,
    /// Those with most packets first.
    pub(crate) top_flows: Option<Vec<TopFlow>>,
}

impl Sinks {
    pub(crate) fn new(
        workers: Vec<WorkerControl>,
        domains: Vec<Domain>,
        budgets: Vec<Arc<FrameBudget>>,
        ports: Vec<u8>,
    ) -> Self {
        Self { workers, domains, budgets, ports, state: Mutex::default() }
    }

    /// Opens the sinks of a program that are not open yet. The result is published with the program; then
    /// [`Sinks::installed`] or [`Sinks::abandon`] must be called.
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
        let mut state = self.state();
        state.digest = (generation, sha256.to_owned());
        let mut slots = Vec::with_capacity(program.sinks.len());
        for definition in &program.sinks {
            match self.slot_of(&mut state, device, definition) {
                Ok(slot) => slots.push(slot),
                Err(error) => {
                    drop(state);
                    self.abandon();
                    return Err(error);
                }
            }
        }
        let map = SinkMap::new(generation, program, &slots);
        for sink in &state.list {
            if let Some(hub) = &sink.hub {
                hub.digest(generation, sha256);
                hub.announce(generation, program);
            }
            if let Use::Rule(rule) = &sink.use_
                && let Some(rule) = rule_named(program, rule)
            {
                map.attach(rule, sink.slot);
            }
        }
        Ok(Arc::new(map))
    }

    fn slot_of(&self, state: &mut Open, device: &OpenDevice, definition: &Sink) -> Result<Slot, Error> {
        let is_same = |open: &&OpenSink| open.use_ == Use::Policy && open.definition == *definition;
        if let Some(open) = state.list.iter().find(is_same) {
            return Ok(open.slot);
        }
        let environment = Environment {
            context: device.device.context(),
            domains: &self.domains,
            budgets: &self.budgets,
            ports: &self.ports,
            stations: &device.stations(),
        };
        let opened = sinks::open(definition, &environment)?;
        self.place(state, definition, Use::Policy, opened)
    }

    /// Gives every worker its endpoint.
    fn place(&self, state: &mut Open, definition: &Sink, use_: Use, opened: Opened) -> Result<Slot, Error> {
        let name = || definition.name.clone();
        let is_free = |slot: &Slot| state.list.iter().all(|open| open.slot != *slot);
        let slot = (0..Slot::COUNT).filter_map(Slot::of).find(is_free);
        let slot = slot.ok_or_else(|| Error::NoPlace(name()))?;
        let Opened { hub, endpoints, counters } = opened;
        let changes: Vec<_> = self
            .workers
            .iter()
            .zip(endpoints)
            .map(|(worker, endpoint)| (worker, worker.place_sink(slot, Some(endpoint))))
            .collect();
        state.list.push(OpenSink {
            definition: definition.clone(),
            slot,
            use_,
            hub: Some(hub),
            last: Measured::default(),
            counters,
        });
        let late = changes.into_iter().find(|(worker, change)| !worker.wait_for_sink(*change, PLACE_TIMEOUT));
        match late {
            None => Ok(slot),
            Some((worker, _)) => Err(Error::NotTaken { sink: name(), worker: worker.id().0 }),
        }
    }

    /// The program is in force. Sinks of the previous one stay until [`Sinks::close_unused`].
    pub(crate) fn installed(&self, program: &Arc<Program>, map: Arc<SinkMap>) {
        self.state().in_force = Some((Arc::clone(program), map));
    }

    /// The program that was prepared last is not installed.
    pub(crate) fn abandon(&self) {
        self.close_unused();
    }

    /// Closes the sinks that the program in force does not name; to be called when workers have released every other.
    pub(crate) fn close_unused(&self) {
        let mut state = self.state();
        let program = state.in_force.as_ref().map(|(program, _)| Arc::clone(program));
        let is_used = |sink: &OpenSink| match &sink.use_ {
            Use::Rule(_) => true,
            Use::Policy => program.as_ref().is_some_and(|program| program.sinks.contains(&sink.definition)),
        };
        let (used, unused) = std::mem::take(&mut state.list).into_iter().partition(is_used);
        state.list = used;
        let unused: Vec<OpenSink> = unused;
        unused.into_iter().for_each(|sink| self.close(&mut state, sink));
    }

    fn close(&self, state: &mut Open, sink: OpenSink) {
        for worker in &self.workers {
            let change = worker.place_sink(sink.slot, None);
            if !worker.wait_for_sink(change, PLACE_TIMEOUT) {
                tracing::warn!("worker {} still uses the sink `{}`", worker.id().0, sink.definition.name);
            }
        }
        let wait = |worker: &WorkerControl| worker.wait_for_frames(FRAMES_TIMEOUT);
        let _ = self.workers.iter().all(wait);
        let OpenSink { definition, hub, counters, .. } = sink;
        // Ends the sends of a port that stalls.
        drop(hub);
        if !self.workers.iter().all(wait) {
            tracing::warn!("the sink `{}` still has frames of a worker", definition.name);
        }
        self.workers.iter().for_each(WorkerControl::free_sinks);
        let counted = counters.iter().map(|counters| counters.read()).collect();
        add_past(&mut state.past, definition.name, counted);
    }

    /// Lets a sink get the packets of a rule, beside the rule's own sinks, until [`Sinks::detach`]; reloads keep it.
    ///
    /// # Errors
    /// There is no such rule, or no place.
    pub(crate) fn attach(&self, definition: &Sink, rule: &str, opened: Opened) -> Result<Slot, Error> {
        let mut state = self.state();
        let Some((program, map)) = state.in_force.clone() else { return Err(Error::NoRule(rule.to_owned())) };
        let id = rule_named(&program, rule).ok_or_else(|| Error::NoRule(rule.to_owned()))?;
        if state.digest.0 == map.generation() {
            opened.hub.digest(state.digest.0, &state.digest.1);
        }
        opened.hub.announce(map.generation(), &program);
        let slot = self.place(&mut state, definition, Use::Rule(rule.to_owned()), opened)?;
        map.attach(id, slot);
        Ok(slot)
    }

    /// Ends [`Sinks::attach`] and closes the sink.
    pub(crate) fn detach(&self, slot: Slot) {
        let mut state = self.state();
        let Some(index) = state.list.iter().position(|sink| sink.slot == slot && sink.use_ != Use::Policy)
        else {
            return;
        };
        let sink = state.list.swap_remove(index);
        if let Some((program, map)) = &state.in_force
            && let Use::Rule(rule) = &sink.use_
            && let Some(rule) = rule_named(program, rule)
        {
            map.detach(rule, slot);
        }
        self.close(&mut state, sink);
    }

    /// To be called about once a second.
    pub(crate) fn tick(&self, ports_down: &[u8]) {
        self.state().list.iter().filter_map(|sink| sink.hub.as_ref()).for_each(|hub| hub.tick(ports_down));
    }

    /// Ends the threads of all sinks, when the workers have ended. The counters can still be read.
    pub(crate) fn end(&self) {
        let end = |sink: &mut OpenSink| {
            let hub = sink.hub.take()?;
            sink.last = Measured::of(hub.as_ref());
            Some(hub)
        };
        let hubs: Vec<_> = self.state().list.iter_mut().filter_map(end).collect();
        drop(hubs);
    }

    /// The sinks in the order of the policy, attached ones last. Counts of closed sinks of the same name are included.
    pub(crate) fn view(&self) -> Vec<SinkView> {
        let state = self.state();
        let view = |sink: &OpenSink| {
            let mut traffic: Vec<SinkTraffic> =
                sink.counters.iter().map(|counters| counters.read()).collect();
            if let Some(past) = state.past.get(&sink.definition.name) {
                traffic.iter_mut().zip(past).for_each(|(now, past)| *now += past);
            }
            let measured = sink.hub.as_ref().map(|hub| Measured::of(hub.as_ref()));
            let Measured { sizes, top_flows } = measured.unwrap_or_else(|| sink.last.clone());
            SinkView {
                definition: sink.definition.clone(),
                attached_to: match &sink.use_ {
                    Use::Policy => None,
                    Use::Rule(rule) => Some(rule.clone()),
                },
                traffic,
                status: sink.hub.as_ref().map(|hub| hub.status()).unwrap_or_default(),
                sizes,
                top_flows,
            }
        };
        state.list.iter().map(view).collect()
    }

    fn state(&self) -> MutexGuard<'_, Open> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rule_named(program: &Program, name: &str) -> Option<RuleId> {
    program.rules.iter().position(|rule| rule.name == name).map(RuleId::of)
}

fn add_past(past: &mut BTreeMap<String, Vec<SinkTraffic>>, name: String, counted: Vec<SinkTraffic>) {
    if let Some(sums) = past.get_mut(&name) {
        sums.iter_mut().zip(&counted).for_each(|(sum, more)| *sum += more);
    } else if past.len() < PAST_MAX {
        past.insert(name, counted);
    }
}
