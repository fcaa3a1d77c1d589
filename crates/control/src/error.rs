//! Errors between a program and a device. Every message is one line that an operator can act on: the rule,
//! the device's refusal and what to do about it.

use program::{DanglingFlow, WorkerId};
use verbs::VerbsErrno;

use crate::plan_fault::PlanFault;

/// A device's refusal of one call; displayed as the call's own message, which ends with what to do.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct DeviceRefusal {
    /// The errno of the refusal, if there is one.
    pub errno: Option<i32>,
    /// The error of the call.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl DeviceRefusal {
    /// The errno and the remedy alone, for errors that name the rule and the specs of a flow themselves.
    pub(crate) fn flow_message(&self) -> String {
        let Some(errno) = self.errno.map(VerbsErrno) else { return self.source.to_string() };
        errno.flow_remedy().map_or_else(|| errno.to_string(), |remedy| format!("{errno}: {remedy}"))
    }

    /// Whether the device or its driver lacks the operation.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.errno.is_some_and(|errno| VerbsErrno(errno).is_unsupported())
    }
}

impl From<verbs::VerbsError> for DeviceRefusal {
    fn from(error: verbs::VerbsError) -> Self {
        Self { errno: error.errno(), source: Box::new(error) }
    }
}

impl From<DanglingFlow> for ControlError {
    fn from(fault: DanglingFlow) -> Self {
        Self::Inconsistent { what: fault.to_string() }
    }
}

fn one_of(names: &[String]) -> String {
    match names {
        [] => "none any more: see `steerd devices`".to_owned(),
        names => names.join(", "),
    }
}

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Devices could not be listed.
    #[error("{source}")]
    List {
        /// Why.
        source: DeviceRefusal,
    },
    /// The machine has no RDMA device.
    #[error(
        "no RDMA device on this machine: load the NIC's driver; without an RDMA NIC `steerd run --interface NAME` \
         enforces on an Ethernet interface, and `steerd run --demo` is a trial"
    )]
    NoDevices,
    /// No device has that name.
    #[error("no device called `{name}`; there is {}", one_of(available))]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
        /// The available devices.
        available: Vec<String>,
    },
    /// No name was given, and there are several devices.
    #[error("several devices, name one of them: {}", available.join(", "))]
    SeveralDevices {
        /// The available devices.
        available: Vec<String>,
    },
    /// The device could not be opened.
    #[error("{source}")]
    Open {
        /// The name of the device.
        device: String,
        /// Why.
        source: DeviceRefusal,
    },
    /// The limits or a port of the device could not be queried.
    #[error("{source}")]
    Query {
        /// The name of the device.
        device: String,
        /// The query that failed.
        what: String,
        /// Why.
        source: DeviceRefusal,
    },
    /// The device has no Toeplitz RSS for raw packet queue pairs.
    #[error(
        "device {device} cannot spread raw packets over queues (no Toeplitz RSS for raw packet queue pairs): \
         choose another of `steerd devices`, or the soft NIC (`steerd run --demo`)"
    )]
    NoRss {
        /// The name of the device.
        device: String,
    },
    /// The device has no such port.
    #[error("device {device} has no port {port}; its ports are 1 to {ports}")]
    NoSuchPort {
        /// The name of the device.
        device: String,
        /// The port that was asked for.
        port: u8,
        /// How many it has.
        ports: u32,
    },
    /// The port has no link.
    #[error(
        "port {port} of {device} is {state}: bring the link up (ip link set dev IFACE up) and check the cable"
    )]
    PortDown {
        /// The device's name.
        device: String,
        /// Which port.
        port: u8,
        /// The state of the port.
        state: String,
    },
    /// The port is not Ethernet.
    #[error(
        "port {port} of {device} is {link_layer} and not Ethernet: set its link type (mlxconfig LINK_TYPE_P{port}=2)"
    )]
    NotEthernet {
        /// The device's name.
        device: String,
        /// Which port.
        port: u8,
        /// The link layer of the port.
        link_layer: String,
    },
    /// A controller without queues or ports steers nothing.
    #[error("nothing to steer with: {workers} workers and {ports} ports, at least one of each is needed")]
    NothingToSteer {
        /// Work queues given.
        workers: usize,
        /// Ports given.
        ports: usize,
    },
    /// The program names a worker that does not run.
    #[error("group `{group}` names worker {}, but only workers 0 to {} run: configure more cores or change the group", worker.0, workers.saturating_sub(1))]
    UnknownWorker {
        /// The group.
        group: String,
        /// The worker it names.
        worker: WorkerId,
        /// How many there are.
        workers: usize,
    },
    /// The program needs more priorities than one program has.
    #[error(
        "the program needs {needed} flow priorities, {device} gives each program {offered} (all but one, which \
         a reload needs): make fewer rules overlap"
    )]
    Priorities {
        /// The device's name.
        device: String,
        /// The number that the program uses.
        needed: u32,
        /// The number that one program has.
        offered: u32,
    },
    /// The program needs more indirection tables than one program has.
    #[error(
        "the program needs {needed} indirection tables, {device} gives each program {offered} (half of what it has, so that a reload loses nothing): \
         give groups the same workers, weights and table_size, or make fewer groups"
    )]
    Tables {
        /// The device's name.
        device: String,
        /// Different tables of the program's queue pairs.
        needed: usize,
        /// The number that one program has.
        offered: usize,
    },
    /// The new flows do not fit beside those that are on the device.
    #[error("{device}: {fault}")]
    NoRoom {
        /// The device's name.
        device: String,
        /// Why the plan is not possible.
        fault: PlanFault,
    },
    /// The program refers to a part that it does not have: a bug in the compiler.
    #[error("the program is inconsistent: {what}")]
    Inconsistent {
        /// The reference that leads nowhere.
        what: String,
    },
    /// The controller's own objects were refused.
    #[error("{source}")]
    Setup {
        /// The device's name.
        device: String,
        /// The object that was being made.
        what: &'static str,
        /// Why.
        source: DeviceRefusal,
    },
    /// An indirection table was refused.
    #[error("group `{group}`: {source}")]
    Table {
        /// The first group that needs it.
        group: String,
        /// The length of the table in entries.
        entries: usize,
        /// Why.
        source: DeviceRefusal,
    },
    /// An RSS queue pair was refused.
    #[error("group `{group}`: {source} ({variant} packets)")]
    Queue {
        /// The group.
        group: String,
        /// The hash variant.
        variant: String,
        /// Why.
        source: DeviceRefusal,
    },
    /// A drop counter was refused, by a device that has counters.
    #[error("rule `{rule}` (line {line}): {source}")]
    Counter {
        /// The rule.
        rule: String,
        /// The line of the rule in the policy.
        line: u32,
        /// Why.
        source: DeviceRefusal,
    },
    /// A flow was refused.
    #[error(
        "rule `{rule}` (line {line}): the device refused the flow [{specs}] at priority {priority} of port {port}: {}",
        source.flow_message()
    )]
    InstallFlow {
        /// The rule.
        rule: String,
        /// The line of the rule in the policy.
        line: u32,
        /// The port.
        port: u8,
        /// The device's priority.
        priority: u16,
        /// The spec chain, actions included.
        specs: String,
        /// Why.
        source: DeviceRefusal,
    },
    /// A flow could not be removed.
    #[error(
        "rule `{rule}` (line {line}): the device did not remove the flow [{specs}] at priority {priority} of port {port}: {}",
        source.flow_message()
    )]
    RemoveFlow {
        /// The rule.
        rule: String,
        /// The line of the rule in the policy.
        line: u32,
        /// The port.
        port: u8,
        /// The device's priority.
        priority: u16,
        /// The spec chain, actions included.
        specs: String,
        /// Why.
        source: DeviceRefusal,
    },
    /// A change failed, and its rollback too. The program before is in force.
    #[error(
        "{first}; and the rollback failed too ({second}): the program before is in force, but {left} flows of the refused one are still installed until the next reload removes them{}",
        missing_flows(*missing)
    )]
    RollbackFailed {
        /// The first failure.
        first: Box<ControlError>,
        /// The failure during the rollback.
        second: Box<ControlError>,
        /// Flows of the refused program.
        left: usize,
        /// Flows of the program before that were not installed again: those left decide their packets.
        missing: usize,
    },
    /// The rollback failed as in [`ControlError::RollbackFailed`], but the new program is in force, because
    /// an old flow could not be installed again. Never returned as an error, see
    /// [`crate::Installed::warning`].
    #[error(
        "{first}; and the rollback failed too ({second}): the new program is in force, but {left} flows of the one before are still installed until the next reload removes them"
    )]
    OldFlowsLeft {
        /// The first failure.
        first: Box<ControlError>,
        /// The failure during the rollback.
        second: Box<ControlError>,
        /// Flows of the program before.
        left: usize,
    },
    /// The workers did not acknowledge a program.
    #[error("the workers did not take the program: {0}")]
    Workers(String),
}

impl ControlError {
    /// The error for a change that cannot be planned.
    #[must_use]
    pub fn of_plan(fault: PlanFault, device: &str) -> Self {
        match fault {
            PlanFault::NoLevels | PlanFault::NoRoom(_) => Self::NoRoom { device: device.to_owned(), fault },
            fault => Self::Inconsistent { what: fault.to_string() },
        }
    }
}

fn missing_flows(missing: usize) -> String {
    match missing {
        0 => String::new(),
        missing => format!(", and decide the packets of {missing} that could not be installed again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dead_end_names_a_way_out() {
        let gone = ControlError::NoSuchDevice { name: "mlx5_0".to_owned(), available: Vec::new() };
        assert_eq!(
            gone.to_string(),
            "no device called `mlx5_0`; there is none any more: see `steerd devices`"
        );
        let no_rss = ControlError::NoRss { device: "mlx5_0".to_owned() };
        assert!(no_rss.to_string().contains("steerd devices"), "{no_rss}");
    }
}
