//! `softnic.provider = "mlx5"`: the soft NIC below rdma-core's own mlx5 provider, in this process.
//!
//! libibverbs finds that provider only through sysfs and the kernel's command descriptors. The library of
//! `softnic-preload` provides both if the dynamic linker preloads it (LD_PRELOAD, ld.so(8)). So [`enter`]
//! executes this program again in the same process (execve(2)) with that variable set: the process id, the
//! descriptors and the rest of the environment stay as the service manager made them. The library makes no
//! files, so none are left at the end. In the second execution the variables are set, and [`enter`] returns.
//!
//! To everything else the device is one of libibverbs' list; only its wires, its counters and its engine are
//! the library's.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use packet::MacAddr;
use softnic::PortStats;
use softnic::lazy_nic::{METHOD_MLX5, WIRES_CLOSED, variable};
use softnic_verbs::preload::host::Preloaded;
use softnic_verbs::preload::launch::{self, LaunchError};

use crate::daemon::health::{Part, Progress};
use crate::message::chain;
use crate::settings::{Provider, Settings, SoftNic, SoftNicPort};

/// Why the daemon cannot be run on the provider.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", chain(.0))]
    Launch(#[from] LaunchError),
    #[error("this program cannot be started again with the library preloaded: {0}")]
    Exec(io::Error),
    #[error(
        "the dynamic linker has not preloaded the library (hint: it does not for programs with file capabilities; remove them \
         with `setcap -r` and use AmbientCapabilities= of the unit)"
    )]
    NotPreloaded,
}

/// Whether the settings ask for the provider.
pub(crate) fn is_wanted(settings: &Settings) -> bool {
    settings.softnic.provider == Provider::Mlx5 && settings.chooses_soft()
}

/// Returns if the settings do not ask for the provider, or the process was started for it already. Otherwise
/// the process starts again. To be called before anything else is started or opened.
///
/// # Errors
/// A part is missing, or the process cannot be started again.
pub(crate) fn enter(settings: &Settings) -> Result<(), Error> {
    if !is_wanted(settings) {
        return Ok(());
    }
    if is_second_start(&settings.softnic.name, std::env::var_os) {
        return Preloaded::find().map(drop).ok_or(Error::NotPreloaded);
    }
    start_again(&settings.softnic).map(|never| match never {})
}

/// Whether this process was started by [`start_again`] for this device. One variable alone may be an
/// operator's own.
fn is_second_start(device: &str, variable: impl Fn(&'static str) -> Option<OsString>) -> bool {
    let expected =
        [(variable::METHOD, METHOD_MLX5), (variable::NAME, device), (variable::WIRES, WIRES_CLOSED)];
    expected.iter().all(|(name, value)| variable(name).is_some_and(|found| found == *value))
}

/// Checks that the process could start again with the library, if the settings ask for that.
///
/// # Errors
/// A part is missing.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    if is_wanted(settings) {
        launch::mlx5_variables(&library()?)?;
    }
    Ok(())
}

/// The library of `softnic-preload`, where the provider is installed.
fn library() -> Result<PathBuf, Error> {
    launch::check_mlx5()?;
    Ok(launch::library()?)
}

fn start_again(nic: &SoftNic) -> Result<Infallible, Error> {
    let library = library()?;
    let program = std::env::current_exe().map_err(|source| LaunchError::OwnFile { source })?;
    let mut command = Command::new(program);
    let mut arguments = std::env::args_os();
    command.arg0(arguments.next().unwrap_or_default()).args(arguments);
    for name in variable::ALL {
        command.env_remove(name);
    }
    command.envs(launch::mlx5_variables(&library)?).envs(device_variables(nic));
    Err(Error::Exec(command.exec()))
}

/// The device of the settings, as the library reads it.
fn device_variables(nic: &SoftNic) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&str, OsString)> =
        vec![(variable::NAME, nic.name.clone().into()), (variable::WIRES, WIRES_CLOSED.into())];
    variables.push((variable::PERSONALITY, nic.personality.clone().into()));
    if let (Some(port), Some(wire)) = (nic.ports.first(), nic.wires.first()) {
        variables.push((variable::WIRE, wire.into()));
        variables.push((variable::MTU, port.mtu_bytes().to_string().into()));
    }
    if !nic.faults.is_empty() {
        variables.push((variable::FAULTS, nic.faults.clone().into()));
    }
    // The daemon itself waits for the peer of a link.
    variables.push((variable::WAIT, "0".into()));
    if let [Some(core)] = nic.engine_threads().as_slice() {
        variables.push((variable::CORE, core.to_string().into()));
    }
    variables
}

/// The preloaded library below the device of the workers.
pub(crate) struct PreloadedNic {
    name: Arc<str>,
    /// The description of its port's wire.
    wires: Vec<String>,
    mtu_bytes: Option<u32>,
    library: Preloaded,
}

impl PreloadedNic {
    /// # Errors
    /// The process was not started with the library.
    pub(crate) fn find(nic: &SoftNic) -> Result<Self, Error> {
        let library = Preloaded::find().ok_or(Error::NotPreloaded)?;
        let mtu_bytes = nic.ports.first().map(SoftNicPort::mtu_bytes);
        let wires = nic.ports.iter().map(|port| port.wire.describe()).collect();
        Ok(Self { name: nic.name.as_str().into(), wires, mtu_bytes, library })
    }

    pub(crate) fn wires(&self) -> &[String] {
        &self.wires
    }

    /// The address of its port, once the device was opened.
    pub(crate) fn mac(&self) -> Option<MacAddr> {
        self.library.status().mac()
    }

    pub(crate) fn mtu_bytes(&self) -> Option<u32> {
        self.mtu_bytes
    }

    pub(crate) fn set_wires(&self, open: bool) {
        self.library.set_wires(open);
    }

    /// Whether its port has received its last frame, and that was handed over.
    pub(crate) fn is_finished(&self) -> bool {
        self.library.status().finished != 0
    }

    /// The outcomes of the frames of its port.
    pub(crate) fn port_stats(&self) -> PortStats {
        self.library.status().port
    }

    pub(crate) fn has_died(&self) -> bool {
        self.library.status().died != 0
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The progress that health watches: the passes of its engine.
    pub(crate) fn progress(&self) -> Progress {
        (self.engine(), self.library.status().passes)
    }

    /// Whether its engine is among these.
    pub(crate) fn is_among(&self, stalled: &[Part]) -> bool {
        stalled.contains(&self.engine())
    }

    fn engine(&self) -> Part {
        Part::Engine(Arc::clone(&self.name), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_variables_together_are_those_of_the_second_start() {
        let all = [(variable::METHOD, "mlx5"), (variable::NAME, "nic7"), (variable::WIRES, "closed")];
        let is_second = |set: &[(&str, &str)]| {
            let value =
                |name: &'static str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
            is_second_start("nic7", value)
        };
        assert!(is_second(&all));
        for left_out in 0..all.len() {
            let mut some = all.to_vec();
            some[left_out].1 = "other";
            assert!(!is_second(&some), "{some:?}");
            some.remove(left_out);
            assert!(!is_second(&some), "{some:?}");
        }
    }
}
