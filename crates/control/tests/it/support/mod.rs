//! A device made of a map, which fails where a test requests it, and programs over a small world of
//! packets in which every case of overlap occurs.
#![allow(unreachable_pub, reason = "a module of tests")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use control::{
    ChangeStage, ControlError, Controller, DeviceRefusal, FlowRequest, Installed, Installer, Limits,
};
use packet::{FlowKey, HashFields, Layers, RssKey};
use program::{
    Class, ClassId, Decide, Flow, FlowAction, FlowKind, FlowSpec, Group, GroupId, HashVariant, Outcome,
    Program, QueueId, RssQueue, Rule, RuleId, SpecChain, Verdict, WorkerId,
};
use verbs::{CounterValues, EthernetMatch, HashConfig, Ipv4Match, PortMatch};

pub const WORKERS: usize = 3;
pub const PRIORITIES: u32 = 64;
pub const ENOMEM: i32 = 12;
pub const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;
pub const EOPNOTSUPP: i32 = 95;

/// A flow as the fake device holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub port: u8,
    pub priority: u16,
    pub specs: String,
    pub tag: Option<u32>,
    pub drop: bool,
    pub table: Vec<WorkerId>,
    pub counted: bool,
}

/// The device at one moment: flows, and the programs that workers know.
#[derive(Clone)]
pub struct Moment {
    pub flows: Vec<(Record, Vec<FlowSpec>)>,
    pub published: Published,
}

/// The programs that workers know, by the stages that were published.
#[derive(Clone, Default)]
pub struct Published {
    before: Option<Arc<Program>>,
    after: Option<Arc<Program>>,
    is_changed: bool,
}

impl Published {
    /// The program that counts, and the other one.
    pub fn in_order(&self) -> [Option<&Arc<Program>>; 2] {
        let Self { before, after, is_changed } = self;
        if *is_changed { [after.as_ref(), before.as_ref()] } else { [before.as_ref(), after.as_ref()] }
    }

    fn publish(&mut self, stage: &ChangeStage) {
        match stage {
            ChangeStage::Begin(program) => {
                let before = self.in_order()[0].cloned();
                *self = Self { before, after: Some(Arc::clone(program)), is_changed: false };
            }
            ChangeStage::Enforce => self.is_changed = true,
            ChangeStage::GoBack => self.is_changed = false,
        }
    }

    /// The rule by which workers decide packets with this tag.
    pub fn rule(&self, tag: u32) -> Option<String> {
        let class = ClassId::of_tag(tag)?;
        self.in_order().into_iter().flatten().find_map(|program| {
            let rule = program.class(class)?.rule;
            Some(program.rules[rule.index()].name.to_string())
        })
    }
}

#[derive(Default)]
pub struct State {
    /// Calls so far, of every kind that can fail.
    pub calls: usize,
    /// Which calls fail, and how.
    pub fail: Option<Box<dyn Fn(usize) -> Option<i32>>>,
    pub no_counters: bool,
    pub no_count_action: bool,
    pub no_reads: bool,
    /// Counters keep their values, and can be read, without a flow.
    pub keeps_counters: bool,
    /// Flows that no packet matches are refused.
    pub no_unmatched: bool,
    /// Flows that no packet matches are not removed.
    pub keeps_unmatched: bool,
    /// Counters read so far.
    pub reads: usize,
    /// Packets that flows with counters have met.
    pub counted: u64,
    pub flows: BTreeMap<u64, (Record, Vec<FlowSpec>)>,
    pub published: Published,
    pub history: Vec<Moment>,
    /// No history, for programs so large that it would be too long.
    pub forgetful: bool,
    next: u64,
}

pub type Shared = Rc<RefCell<State>>;

pub struct Fake(pub Shared);

pub struct FakeFlow {
    id: u64,
    counter: Option<FakeCounter>,
    /// Whether any packet of the world does.
    matches: bool,
    /// Whether the device has refused to remove it.
    refused: bool,
    state: Shared,
}

impl Drop for FakeFlow {
    /// A flow that the device did not remove stays on it if its handle is dropped.
    fn drop(&mut self) {
        if self.refused {
            return;
        }
        self.state.borrow_mut().flows.remove(&self.id);
        if let Some(counter) = &self.counter {
            counter.borrow_mut().flows -= 1;
        }
        remember(&self.state);
    }
}

/// A counter as real NICs have them: with its last flow it loses what it counted (mlx5 unbinds it). As if one
/// packet had met the flow when it was installed, and one just before it was removed: what is counted must
/// never be lost again.
#[derive(Default)]
pub struct CounterState {
    values: CounterValues,
    flows: usize,
}

pub type FakeCounter = Rc<RefCell<CounterState>>;

fn remember(state: &Shared) {
    let mut state = state.borrow_mut();
    if state.forgetful {
        return;
    }
    let moment =
        Moment { flows: state.flows.values().cloned().collect(), published: state.published.clone() };
    state.history.push(moment);
}

fn refusal(errno: i32) -> DeviceRefusal {
    DeviceRefusal { errno: Some(errno), source: Box::new(std::io::Error::from_raw_os_error(errno)) }
}

pub fn matches_something(specs: &[FlowSpec]) -> bool {
    world().iter().any(|key| specs.iter().all(|spec| spec.matches(key)))
}

impl Fake {
    /// A packet meets a flow with this counter.
    fn count(&self, counter: &FakeCounter) {
        let values = &mut counter.borrow_mut().values;
        values.packets += 1;
        values.bytes += 60;
        self.0.borrow_mut().counted += 1;
    }

    fn call(&self) -> Result<(), DeviceRefusal> {
        let mut state = self.0.borrow_mut();
        let call = state.calls;
        state.calls += 1;
        match state.fail.as_ref().and_then(|fail| fail(call)) {
            Some(errno) => Err(refusal(errno)),
            None => Ok(()),
        }
    }
}

impl Installer for Fake {
    type Table = Vec<WorkerId>;
    type Queue = Vec<WorkerId>;
    type Counter = FakeCounter;
    type Flow = FakeFlow;

    fn create_table(&mut self, workers: &[WorkerId]) -> Result<Self::Table, DeviceRefusal> {
        self.call().map(|()| workers.to_vec())
    }

    fn create_queue(&mut self, table: &Self::Table, _: &HashConfig) -> Result<Self::Queue, DeviceRefusal> {
        self.call().map(|()| table.clone())
    }

    fn create_counter(&mut self) -> Result<Self::Counter, DeviceRefusal> {
        if self.0.borrow().no_counters {
            return Err(refusal(EOPNOTSUPP));
        }
        self.call().map(|()| FakeCounter::default())
    }

    fn read_counter(&mut self, counter: &Self::Counter) -> Result<CounterValues, DeviceRefusal> {
        let mut state = self.0.borrow_mut();
        state.reads += 1;
        let counter = counter.borrow();
        if (counter.flows == 0 && !state.keeps_counters) || state.no_reads {
            return Err(refusal(EINVAL));
        }
        Ok(counter.values)
    }

    fn create_flow(
        &mut self,
        request: &FlowRequest<'_>,
        queue: &Self::Queue,
        counter: Option<&Self::Counter>,
    ) -> Result<Self::Flow, DeviceRefusal> {
        self.call()?;
        if counter.is_some() && self.0.borrow().no_count_action {
            return Err(refusal(EOPNOTSUPP));
        }
        let matches = matches_something(&request.flow.specs);
        if !matches && self.0.borrow().no_unmatched {
            return Err(refusal(ENOMEM));
        }
        if let Some(counter) = counter {
            let mut state = counter.borrow_mut();
            if state.flows == 0 && !self.0.borrow().keeps_counters {
                state.values = CounterValues::default();
            }
            state.flows += 1;
        }
        if let Some(counter) = counter.filter(|_| matches) {
            self.count(counter);
        }
        let record = Record {
            port: request.port,
            priority: request.priority,
            specs: format!("{:?}", &*request.flow.specs),
            tag: request.tag,
            drop: request.flow.action == FlowAction::Drop,
            table: queue.clone(),
            counted: counter.is_some(),
        };
        let mut state = self.0.borrow_mut();
        let id = state.next;
        state.next += 1;
        state.flows.insert(id, (record, request.flow.specs.to_vec()));
        drop(state);
        remember(&self.0);
        Ok(FakeFlow { id, counter: counter.cloned(), matches, refused: false, state: Rc::clone(&self.0) })
    }

    fn destroy_flow(&mut self, mut flow: Self::Flow) -> Result<(), (Self::Flow, DeviceRefusal)> {
        let kept = !flow.matches && self.0.borrow().keeps_unmatched;
        let removed = if kept { Err(refusal(EBUSY)) } else { self.call() };
        flow.refused = removed.is_err();
        match removed {
            Ok(()) => {
                if let Some(counter) = flow.counter.as_ref().filter(|_| flow.matches) {
                    self.count(counter);
                }
                drop(flow);
                Ok(())
            }
            Err(refusal) => Err((flow, refusal)),
        }
    }
}

/// The limits of the fake device.
pub fn limits() -> Limits {
    Limits {
        device: "fake0".to_owned(),
        priorities: PRIORITIES,
        priority_table: None,
        multicast_ignores_priority: false,
        tables: None,
        reads_idle_counters: false,
        spare_flows: 64,
    }
}

/// A controller over a fresh fake device, and the device.
pub fn controller(ports: &[u8]) -> (Controller<Fake>, Shared) {
    controller_of(limits(), ports)
}

pub fn controller_of(limits: Limits, ports: &[u8]) -> (Controller<Fake>, Shared) {
    let state = Shared::default();
    let controller = Controller::over(Fake(Rc::clone(&state)), limits, ports.to_vec(), WORKERS);
    (controller.expect("nothing fails yet"), state)
}

/// Installs, telling the fake which programs the workers know. `fail` makes the publication fail.
pub fn install(
    controller: &mut Controller<Fake>,
    state: &Shared,
    program: &Arc<Program>,
    fail: bool,
) -> Result<Installed, ControlError> {
    controller.install(Arc::clone(program), &mut |stage| {
        state.borrow_mut().published.publish(stage);
        remember(state);
        if fail { Err(ControlError::Workers("asleep".to_owned())) } else { Ok(()) }
    })
}

/// The device's flows without their handles, sorted.
pub fn records(state: &Shared) -> Vec<Record> {
    let mut records: Vec<Record> = state.borrow().flows.values().map(|(record, _)| record.clone()).collect();
    records.sort();
    records
}

/// One line of a test program: rule name, what it matches, what it does (`None` drops).
#[derive(Clone, Debug)]
pub struct Line {
    pub name: &'static str,
    pub matches: Match,
    pub steer: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Everything,
    Ipv4To(u8),
    UdpPort(u16),
    UdpPortTo(u8, u16),
}

impl Match {
    pub fn specs(self) -> Vec<FlowSpec> {
        let zero = EthernetMatch::default();
        match self {
            Self::Everything => vec![FlowSpec::Ethernet { value: zero, mask: zero }],
            Self::Ipv4To(last) => vec![ipv4_to(last)],
            Self::UdpPort(port) => vec![udp_port(port)],
            Self::UdpPortTo(last, port) => vec![ipv4_to(last), udp_port(port)],
        }
    }
}

fn ipv4_to(last: u8) -> FlowSpec {
    let to = |dst| Ipv4Match { src: 0, dst };
    FlowSpec::Ipv4 { value: to(u32::from_be_bytes([192, 0, 2, last])), mask: to(u32::MAX) }
}

fn udp_port(port: u16) -> FlowSpec {
    let ports = |dst_port| PortMatch { src_port: 0, dst_port };
    FlowSpec::Udp { value: ports(port), mask: ports(u16::MAX) }
}

/// Every packet of the small world.
pub fn world() -> Vec<FlowKey> {
    let mut keys = vec![FlowKey::default()];
    for last in 0..3 {
        for port in 0..4 {
            let mut key =
                FlowKey { layers: Layers::IPV4 | Layers::UDP, dst_port: port, ..FlowKey::default() };
            key.dst_ip[..4].copy_from_slice(&[192, 0, 2, last]);
            keys.push(key);
        }
    }
    keys
}

/// A program with one flow per line, the first of the highest precedence, and one group per worker.
pub fn program(lines: &[Line]) -> Arc<Program> {
    let rule = |name: &str, line: usize, action| Rule::in_hardware(name, action, line as u32);
    let verdict =
        |line: &Line| line.steer.map_or(Verdict::Drop, |group| Verdict::Deliver(GroupId::of(group)));
    let mut rules: Vec<Rule> =
        lines.iter().enumerate().map(|(index, line)| rule(line.name, index + 1, verdict(line))).collect();
    rules.push(rule("default", 0, Verdict::Kernel));
    let table = |worker: usize| vec![WorkerId::of(worker), WorkerId::of((worker + 1) % WORKERS)];
    let groups = (0..WORKERS).map(|worker| Group {
        name: format!("g{worker}"),
        description: None,
        table: table(worker),
        key: RssKey::MICROSOFT,
        fields: HashFields::empty(),
        symmetric: false,
    });
    let queues = (0..WORKERS).map(|worker| RssQueue {
        group: GroupId::of(worker),
        variant: HashVariant::All,
        fields: HashFields::empty(),
        table: table(worker),
    });
    let flows = lines.iter().enumerate().map(|(index, line)| Flow {
        rule: RuleId::of(index),
        priority: index as u16,
        kind: FlowKind::Normal,
        specs: SpecChain::outer(line.matches.specs()),
        action: line.steer.map_or(FlowAction::Drop, |group| FlowAction::Steer {
            queue: QueueId::of(group),
            class: ClassId::of(index),
        }),
    });
    let class = |(index, line)| {
        let rule = RuleId::of(index);
        Some(Class { rule, decide: Decide::Exact(Outcome { rule, verdict: verdict(line) }) })
    };
    let classes = lines.iter().enumerate().map(class);
    Arc::new(Program {
        sinks: Vec::new(),
        groups: groups.collect(),
        queues: queues.collect(),
        flows: flows.collect(),
        classes: classes.collect(),
        untagged: None,
        exceptions: Vec::new(),
        runtime: None,
        recorder: None,
        rules,
        default: Verdict::Kernel,
        priorities_used: lines.len() as u16,
    })
}
