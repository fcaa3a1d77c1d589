//! A policy that an XDP program enforces on a network interface: who decides the packets of each rule,
//! whether the host receives them, and how exactly the program's decision trees represent the flows. The
//! trees are built here, in memory that no program reads.

use std::path::Path;

use nic_filters::FilterModel;
use packet::DeepKey;
use packet::cube::{HAS_C_TAG, LEVEL_WORDS, VLAN_TCI};
use program::{Decider, Flow, FlowKind, Program, RuleDeciders, XdpVerdict};
use xdp::{Claim, ClaimAction, ClaimReport, ClaimTable, DropCounter, ProgramOptions, XdpError};

use super::Error;
use super::nic_drops::DropsOfPort;
use crate::daemon::cores::{self, HostCores};
use crate::daemon::placement::Placement;
use crate::settings::{Settings, XdpPort};
use crate::traffic;

/// The most comparisons of flows with packets of a capture, of which then fewer are drawn.
const MAX_COMPARISONS: u64 = 1 << 28;

/// A policy on network interfaces.
pub(super) struct OnInterface {
    pub(super) ports: Vec<XdpPort>,
    pub(super) placement: Option<Placement>,
    /// Queues without a socket, and the packets that would be missed: the policy is not put on such an
    /// interface.
    pub(super) unserved_queues: Vec<String>,
    /// The deciders by rule, the default last.
    pub(super) rules: Vec<RuleDeciders>,
    /// The filters of NICs for drop rules, of the ports that have them.
    pub(super) nic_drops: Vec<DropsOfPort>,
    /// `Err`: the trees do not take all flows.
    pub(super) claims: Result<ClaimReport, XdpError>,
    /// `None`: no capture is given.
    pub(super) traffic: Option<DecidedTraffic>,
}

/// The packets of a capture, by who decides them.
#[derive(Default)]
pub(super) struct DecidedTraffic {
    /// One of so many packets was examined.
    pub(super) one_in: u64,
    pub(super) all: DecidedPackets,
    /// The packets by rule, the default last.
    pub(super) rules: Vec<DecidedPackets>,
    /// The packets that the XDP program would pass or drop, but for widened places of the trees.
    pub(super) beyond_claims: u64,
}

/// Packets by who decides them.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct DecidedPackets {
    pub(super) packets: u64,
    /// The packets that filters of the NIC drop.
    pub(super) nic: u64,
    pub(super) xdp_program: u64,
    pub(super) engine: u64,
    pub(super) worker: u64,
    /// The packets that the host receives.
    pub(super) host: u64,
}

impl DecidedPackets {
    fn add(&mut self, decider: Decider, reaches_host: bool) {
        self.packets += 1;
        self.host += u64::from(reaches_host);
        *match decider {
            Decider::Nic => &mut self.nic,
            Decider::XdpProgram => &mut self.xdp_program,
            Decider::Engine => &mut self.engine,
            Decider::Worker => &mut self.worker,
        } += 1;
    }
}

/// The policy on the interfaces of the settings; `None`: no port in use has an XDP program. `given`: the
/// filter model of the command line.
///
/// # Errors
/// The capture cannot be read.
pub(super) fn of(
    settings: &Settings,
    program: &Program,
    capture: Option<&Path>,
    given: Option<&FilterModel>,
) -> Result<Option<OnInterface>, Error> {
    let ports = settings.xdp_ports();
    if ports.is_empty() {
        return Ok(None);
    }
    let mut table = ClaimTable::offline(ProgramOptions::default().claims);
    let claims = add_claims(&mut table, program).map(|()| table.report());
    let nic_drops = DropsOfPort::all(settings, program, given)?;
    // Of several ports, it is not known at which one a packet of the capture arrives.
    let filtering = if nic_drops.len() == ports.len() { nic_drops.as_slice() } else { &[] };
    let traffic = capture.map(|path| DecidedTraffic::of(path, program, &table, filtering)).transpose()?;
    // Settings may be those of another host, which has other cores.
    let cores = cores::of_workers(settings, &HostCores::of(settings));
    let placement = cores.ok().and_then(|cores| Placement::of(settings, &cores));
    let unserved_queues = placement.iter().flat_map(Placement::unserved_queues).collect();
    let mut rules = program.deciders();
    nic_drops.iter().for_each(|of_port| of_port.add_deciders(&mut rules));
    Ok(Some(OnInterface { ports, placement, unserved_queues, rules, nic_drops, claims, traffic }))
}

/// Adds what the flows claim, as the software NIC does.
fn add_claims(table: &mut ClaimTable, program: &Program) -> Result<(), XdpError> {
    let mut counters: Vec<Option<DropCounter>> = vec![None; program.rules.len()];
    for flow in &program.flows {
        let Some(claim) = claim_of(flow) else { continue };
        let counter =
            counters.get_mut(flow.rule.index()).filter(|_| flow.xdp_may_drop()).and_then(|counter| {
                *counter = counter.take().or_else(|| table.drop_counter());
                counter.clone()
            });
        let precedence = if flow.kind == FlowKind::Sniffer { 0 } else { 1 + u32::from(flow.priority) };
        table.add(&claim, precedence, counter.map_or(ClaimAction::Redirect, ClaimAction::Drop))?;
    }
    while table.improve() {}
    Ok(())
}

fn claim_of(flow: &Flow) -> Option<Claim> {
    let cube = flow.claim()?;
    let outer = |image: &[u64]| -> [u64; LEVEL_WORDS] { std::array::from_fn(|word| image[word]) };
    let (mut value, mut mask) = (outer(&cube.value), outer(&cube.mask));
    if cube.mask_of(VLAN_TCI) != 0 {
        let (word, bit) = (HAS_C_TAG.word(), 1 << HAS_C_TAG.shift());
        (value[word], mask[word]) = (value[word] | bit, mask[word] | bit);
    }
    Some(Claim::new(value, mask))
}

impl DecidedTraffic {
    fn of(
        path: &Path,
        program: &Program,
        table: &ClaimTable,
        nic_drops: &[DropsOfPort],
    ) -> Result<Self, Error> {
        let packets = traffic::for_each_key(path, &mut |_, _| {})?.packets;
        let filters: usize = nic_drops.iter().map(DropsOfPort::filters).sum();
        let most = (MAX_COMPARISONS / ((program.flows.len() + filters) as u64).max(1)).max(1);
        let mut decided = Self {
            one_in: packets.div_ceil(most).max(1),
            rules: vec![DecidedPackets::default(); program.rules.len()],
            ..Self::default()
        };
        let mut number = 0;
        traffic::for_each_key(path, &mut |key, _| {
            if number % decided.one_in == 0 {
                decided.add(program, table, nic_drops, key);
            }
            number += 1;
        })?;
        Ok(decided)
    }

    fn add(&mut self, program: &Program, table: &ClaimTable, nic_drops: &[DropsOfPort], key: &DeepKey) {
        let is_dropped = !nic_drops.is_empty() && nic_drops.iter().all(|port| port.drops(&key.outer));
        let decider = if is_dropped { Decider::Nic } else { program.decider(key) };
        let explained = program.explain_deep(key);
        let of_rule = self.rules.get_mut(explained.outcome.rule.index());
        for decided in of_rule.into_iter().chain([&mut self.all]) {
            decided.add(decider, explained.reaches_host());
        }
        if program.xdp_verdict(key) != XdpVerdict::Redirect && table.leads_beyond(&key.outer.image()) {
            self.beyond_claims += 1;
        }
    }
}
