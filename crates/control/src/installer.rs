//! The calls by which the controller changes a device, as a trait: [`VerbsInstaller`] implements it with
//! `verbs`, and tests with a map that fails at the n-th call.

use std::sync::Arc;

use program::{Flow as PolicyFlow, FlowAction, FlowKind as PolicyKind, WorkerId};
use verbs::{
    ActionSpec, CounterValues, Counters, Domain, FlowAttr, FlowHandle, FlowKind, FlowTag, FlowTarget,
    HashConfig, IndirectionTable, PortNumber, ProtectionDomain, RssQueuePair, WorkQueue,
};

use crate::error::DeviceRefusal;
use crate::{ControlError, Device};

/// One flow to be installed.
#[derive(Clone, Copy, Debug)]
pub struct FlowRequest<'r> {
    /// The port, from 1.
    pub port: u8,
    /// The device's priority.
    pub priority: u16,
    /// The flow of the program.
    pub flow: &'r PolicyFlow,
    /// The flow tag, for flows whose packets workers classify by it.
    pub tag: Option<u32>,
}

impl FlowRequest<'_> {
    /// The specs and actions as text: `ipv4 dst=192.0.2.0/24 | udp dport=53 | tag 7`.
    #[must_use]
    pub fn text(&self) -> String {
        let tag = self.tag.map_or_else(String::new, |tag| format!(" | tag {tag}"));
        let drop = if self.flow.action == FlowAction::Drop { " | drop" } else { "" };
        format!("{}{tag}{drop}", self.flow)
    }
}

/// The operations of a device that a controller needs. Dropping a table, queue or counter releases it.
pub trait Installer {
    /// An indirection table.
    type Table;
    /// An RSS queue pair.
    type Queue;
    /// A counter of packets and bytes.
    type Counter;
    /// An installed flow.
    type Flow;

    /// A table over these workers' queues.
    ///
    /// # Errors
    /// The device's refusal.
    fn create_table(&mut self, workers: &[WorkerId]) -> Result<Self::Table, DeviceRefusal>;

    /// A queue pair that spreads over the table.
    ///
    /// # Errors
    /// The device's refusal.
    fn create_queue(&mut self, table: &Self::Table, hash: &HashConfig) -> Result<Self::Queue, DeviceRefusal>;

    /// A counter.
    ///
    /// # Errors
    /// The device's refusal; `EOPNOTSUPP` where it has none.
    fn create_counter(&mut self) -> Result<Self::Counter, DeviceRefusal>;

    /// Reads a counter.
    ///
    /// # Errors
    /// The device's refusal.
    fn read_counter(&mut self, counter: &Self::Counter) -> Result<CounterValues, DeviceRefusal>;

    /// Installs a flow; it is in effect when this returns.
    ///
    /// # Errors
    /// The device's refusal.
    fn create_flow(
        &mut self,
        request: &FlowRequest<'_>,
        queue: &Self::Queue,
        counter: Option<&Self::Counter>,
    ) -> Result<Self::Flow, DeviceRefusal>;

    /// Removes a flow; it applies to no later packet when this returns.
    ///
    /// # Errors
    /// The flow, still installed, and the device's refusal.
    fn destroy_flow(&mut self, flow: Self::Flow) -> Result<(), (Self::Flow, DeviceRefusal)>;
}

/// Installs on an opened device.
pub struct VerbsInstaller {
    device: Device,
    domain: Domain,
    work_queues: Vec<Arc<WorkQueue>>,
}

impl VerbsInstaller {
    /// Over a device and the workers' queues, in the order of their ids.
    ///
    /// # Errors
    /// No protection domain.
    pub fn new(device: &Device, work_queues: Vec<Arc<WorkQueue>>) -> Result<Self, ControlError> {
        let domain = ProtectionDomain::new(device.context()).map_err(|source| ControlError::Setup {
            device: device.name().to_owned(),
            what: "a protection domain",
            source: source.into(),
        })?;
        Ok(Self { device: device.clone(), domain: Domain::Protection(domain), work_queues })
    }
}

impl Installer for VerbsInstaller {
    type Table = Arc<IndirectionTable>;
    type Queue = Arc<RssQueuePair>;
    type Counter = Arc<Counters>;
    type Flow = FlowHandle;

    fn create_table(&mut self, workers: &[WorkerId]) -> Result<Self::Table, DeviceRefusal> {
        let queues: Option<Vec<Arc<WorkQueue>>> =
            workers.iter().map(|worker| self.work_queues.get(worker.index()).cloned()).collect();
        let queues =
            queues.ok_or_else(|| DeviceRefusal { errno: None, source: "a worker without a queue".into() })?;
        Ok(IndirectionTable::new(self.device.context(), &queues)?)
    }

    fn create_queue(&mut self, table: &Self::Table, hash: &HashConfig) -> Result<Self::Queue, DeviceRefusal> {
        Ok(RssQueuePair::new(&self.domain, table, hash)?)
    }

    fn create_counter(&mut self) -> Result<Self::Counter, DeviceRefusal> {
        Ok(Counters::new(self.device.context())?)
    }

    fn read_counter(&mut self, counter: &Self::Counter) -> Result<CounterValues, DeviceRefusal> {
        Ok(counter.read()?)
    }

    fn create_flow(
        &mut self,
        request: &FlowRequest<'_>,
        queue: &Self::Queue,
        counter: Option<&Self::Counter>,
    ) -> Result<Self::Flow, DeviceRefusal> {
        let PolicyFlow { kind, specs, action, .. } = request.flow;
        let type_of_flow = match kind {
            PolicyKind::Sniffer => FlowKind::Sniffer,
            PolicyKind::Normal | PolicyKind::Copy | PolicyKind::Egress => FlowKind::Normal,
        };
        let mut attr = FlowAttr::new(type_of_flow, PortNumber(request.port))
            .priority(request.priority)
            .dont_trap(*kind == PolicyKind::Copy)
            .egress(*kind == PolicyKind::Egress);
        for (index, spec) in specs.iter().enumerate() {
            attr = if index < specs.inner_from() { attr.spec(*spec) } else { attr.inner(*spec) };
        }
        if let Some(tag) = request.tag {
            attr = attr.action(ActionSpec::Tag(FlowTag(tag)));
        }
        if *action == FlowAction::Drop {
            attr = attr.action(ActionSpec::Drop);
        }
        let attr = match counter {
            Some(counter) => attr.action(ActionSpec::Count(Arc::clone(counter))),
            None => attr,
        };
        Ok(FlowHandle::create(&FlowTarget::Rss(Arc::clone(queue)), &attr)?)
    }

    fn destroy_flow(&mut self, flow: Self::Flow) -> Result<(), (Self::Flow, DeviceRefusal)> {
        flow.destroy().map_err(|(flow, error)| (flow, error.into()))
    }
}
