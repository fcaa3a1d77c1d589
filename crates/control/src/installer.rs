//! The calls that put things on a device, behind one small trait: the controller speaks with the
//! trait, [`VerbsInstaller`] with the device, and tests with something that can fail at the n-th call.

use std::sync::Arc;

use program::{Flow as PolicyFlow, FlowAction, FlowKind as PolicyKind, WorkerId};
use verbs::{
    CounterValues, Counters, Domain, Flow, FlowAttr, FlowKind, FlowSpec, FlowTag, FlowTarget, HashConfig,
    IndirectionTable, PortNumber, ProtectionDomain, RssQueuePair, WorkQueue,
};

use crate::error::Refusal;
use crate::translate::{SpecChain, flow_spec};
use crate::{Device, Error};

/// One flow to be installed.
#[derive(Clone, Copy, Debug)]
pub struct FlowRequest<'r> {
    /// The port, from 1.
    pub port: u8,
    /// The device's priority, the band's base included.
    pub priority: u16,
    /// The flow of the program.
    pub flow: &'r PolicyFlow,
    /// The tag, for flows that steer to workers who are to know the flow.
    pub tag: Option<u32>,
}

impl<'r> FlowRequest<'r> {
    /// For words.
    #[must_use]
    pub fn chain(&self) -> SpecChain<'r> {
        let PolicyFlow { kind, specs, inner_from, .. } = self.flow;
        let (kind, inner_from) = (*kind, *inner_from);
        SpecChain { kind, specs, inner_from, tag: self.tag, drop: self.flow.action == FlowAction::Drop }
    }
}

/// What a controller asks of a device. Dropping a table, queue or counter releases it.
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
    fn create_table(&mut self, workers: &[WorkerId]) -> Result<Self::Table, Refusal>;

    /// A queue pair that spreads over the table.
    ///
    /// # Errors
    /// The device's refusal.
    fn create_queue(&mut self, table: &Self::Table, hash: &HashConfig) -> Result<Self::Queue, Refusal>;

    /// A counter.
    ///
    /// # Errors
    /// The device's refusal; `EOPNOTSUPP` where it has none.
    fn create_counter(&mut self) -> Result<Self::Counter, Refusal>;

    /// Reads a counter.
    ///
    /// # Errors
    /// The device's refusal.
    fn read_counter(&mut self, counter: &Self::Counter) -> Result<CounterValues, Refusal>;

    /// Installs a flow; it is live when this returns.
    ///
    /// # Errors
    /// The device's refusal.
    fn create_flow(
        &mut self,
        request: &FlowRequest<'_>,
        queue: &Self::Queue,
        counter: Option<&Self::Counter>,
    ) -> Result<Self::Flow, Refusal>;

    /// Removes a flow; no later packet meets it when this returns.
    ///
    /// # Errors
    /// The flow, still installed, and the device's refusal.
    fn destroy_flow(&mut self, flow: Self::Flow) -> Result<(), (Self::Flow, Refusal)>;
}

/// The real thing.
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
    pub fn new(device: &Device, work_queues: Vec<Arc<WorkQueue>>) -> Result<Self, Error> {
        let domain = ProtectionDomain::new(device.context()).map_err(|source| Error::Setup {
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
    type Flow = Flow;

    fn create_table(&mut self, workers: &[WorkerId]) -> Result<Self::Table, Refusal> {
        let queues: Option<Vec<Arc<WorkQueue>>> =
            workers.iter().map(|worker| self.work_queues.get(worker.index()).cloned()).collect();
        let queues =
            queues.ok_or_else(|| Refusal { errno: None, source: "a worker without a queue".into() })?;
        Ok(IndirectionTable::new(self.device.context(), &queues)?)
    }

    fn create_queue(&mut self, table: &Self::Table, hash: &HashConfig) -> Result<Self::Queue, Refusal> {
        Ok(RssQueuePair::new(&self.domain, table, hash)?)
    }

    fn create_counter(&mut self) -> Result<Self::Counter, Refusal> {
        Ok(Counters::new(self.device.context())?)
    }

    fn read_counter(&mut self, counter: &Self::Counter) -> Result<CounterValues, Refusal> {
        Ok(counter.read()?)
    }

    fn create_flow(
        &mut self,
        request: &FlowRequest<'_>,
        queue: &Self::Queue,
        counter: Option<&Self::Counter>,
    ) -> Result<Self::Flow, Refusal> {
        let PolicyFlow { kind, specs, inner_from, action, .. } = request.flow;
        let type_of_flow = match kind {
            PolicyKind::Sniffer => FlowKind::Sniffer,
            PolicyKind::Normal | PolicyKind::Copy | PolicyKind::Egress => FlowKind::Normal,
        };
        let mut attr = FlowAttr::new(type_of_flow, PortNumber(request.port))
            .priority(request.priority)
            .dont_trap(*kind == PolicyKind::Copy)
            .egress(*kind == PolicyKind::Egress);
        for (index, spec) in specs.iter().enumerate() {
            let spec = flow_spec(spec);
            attr = if index < *inner_from { attr.spec(spec) } else { attr.inner(spec) };
        }
        if let Some(tag) = request.tag {
            attr = attr.spec(FlowSpec::Tag(FlowTag(tag)));
        }
        if *action == FlowAction::Drop {
            attr = attr.spec(FlowSpec::Drop);
        }
        let attr = match counter {
            Some(counter) => attr.spec(FlowSpec::Count(Arc::clone(counter))),
            None => attr,
        };
        Ok(Flow::create(&FlowTarget::Rss(Arc::clone(queue)), &attr)?)
    }

    fn destroy_flow(&mut self, flow: Self::Flow) -> Result<(), (Self::Flow, Refusal)> {
        flow.destroy().map_err(|(flow, error)| (flow, error.into()))
    }
}
