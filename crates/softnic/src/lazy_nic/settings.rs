//! The settings of a soft NIC in a foreign process: environment variables, because such a process has no
//! settings of ours. Read by the shared library, written by the launcher, and checked by the same lines in
//! both.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wire::{GatedWire, MAX_MTU_BYTES, Wire as _, WireConfig, WireError};

use crate::SoftNicError;
use crate::faults::{FaultPlan, FaultPlanError};
use crate::limits::{MAX_NAME_BYTES, MIN_MTU_BYTES};
use crate::nic::{Drive, OwnedNic, SoftNicConfig, is_device_name};
use crate::personality::{Personality, UnknownPersonality};
use crate::shared::PortConfig;

/// The names of the variables.
pub mod variable {
    /// The device's name; without it `softnic0`, or `mlx5_0` with the method mlx5.
    pub const NAME: &str = "SOFTNIC_NAME";
    /// The wire of its port, as `WireConfig` reads it from a string; `null` without it.
    pub const WIRE: &str = "SOFTNIC_WIRE";
    /// `ideal`, `mlx5`, `mlx4` or the file of a device model; without it `ideal`, or `mlx5` with the method
    /// of that name.
    pub const PERSONALITY: &str = "SOFTNIC_PERSONALITY";
    /// Bytes of the port's MTU; what the wire can carry without it.
    pub const MTU: &str = "SOFTNIC_MTU";
    /// The core of the engine; any without it.
    pub const CORE: &str = "SOFTNIC_CORE";
    /// Seconds to wait, at the first opening, until the wire is up; 2 without it.
    pub const WAIT: &str = "SOFTNIC_WAIT";
    /// `plugin`, `preload` or `mlx5`: how the launcher has set the process up; see `softnic-preload`.
    pub const METHOD: &str = "SOFTNIC_METHOD";

    /// `open`, or `closed`: then the port receives nothing before the program opens its wire
    /// (`host` of softnic-verbs); `open` without it.
    pub const WIRES: &str = "SOFTNIC_WIRES";

    /// Faults to be made on purpose, as [`crate::FaultPlan`] reads them; none without it.
    pub const FAULTS: &str = "SOFTNIC_FAULTS";

    /// All of them.
    pub const ALL: [&str; 9] = [NAME, WIRE, PERSONALITY, MTU, CORE, WAIT, METHOD, WIRES, FAULTS];
}

/// A value of [`variable::WIRES`]: the wires are open.
const WIRES_OPEN: &str = "open";
/// A value of [`variable::WIRES`]: the wires are closed.
pub const WIRES_CLOSED: &str = "closed";

/// The longest time to wait for a wire, in seconds.
const WAIT_LIMIT_S: u64 = 3_600;

/// The method with which rdma-core's own mlx5 provider is used. Its devices have other defaults.
pub const METHOD_MLX5: &str = "mlx5";

const DEFAULT_NAME: &str = "softnic0";
const DEFAULT_MLX5_NAME: &str = "mlx5_0";
const DEFAULT_WAIT_S: u64 = 2;

/// Checked settings. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device's name.
    pub name: String,
    /// The wire of its only port.
    pub wire: WireConfig,
    /// The personality of the device.
    pub personality: Personality,
    /// Bytes of the port's MTU; `None` for what the wire can carry.
    pub mtu_bytes: Option<u32>,
    /// The core of the engine.
    pub core: Option<usize>,
    /// How long the first opening waits until the wire is up.
    pub wait: Duration,
    /// Whether the wire receives nothing until the program opens it.
    pub wires_closed: bool,
    /// Faults to be made on purpose.
    pub faults: FaultPlan,
}

impl Settings {
    /// The settings of this process's environment.
    ///
    /// # Errors
    /// The errors of [`Settings::read`].
    pub fn from_environment() -> Result<Self, SoftNicError> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// The settings of variables that `lookup` finds.
    ///
    /// # Errors
    /// The first variable whose value makes no sense, and what would.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SoftNicError> {
        let text = |name: &str, default: &str| lookup(name).unwrap_or_else(|| default.to_owned());
        let number = |name: &'static str, least: u64, most: u64| match lookup(name) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
                _ => Err(refuse(name, &text, format!("a number of {least} to {most} is wanted"))),
            },
        };
        let mlx5 = lookup(variable::METHOD).is_some_and(|method| method == METHOD_MLX5);
        let name = text(variable::NAME, if mlx5 { DEFAULT_MLX5_NAME } else { DEFAULT_NAME });
        if !is_device_name(&name) {
            return Err(SoftNicError::DeviceName { name, max: MAX_NAME_BYTES });
        }
        let wire = text(variable::WIRE, "null");
        let personality = text(variable::PERSONALITY, if mlx5 { "mlx5" } else { "ideal" });
        let mtu_bytes = number(variable::MTU, MIN_MTU_BYTES.into(), MAX_MTU_BYTES.into())?;
        let core = number(variable::CORE, 0, last_core())?;
        let faults = text(variable::FAULTS, "");
        let wires = text(variable::WIRES, WIRES_OPEN);
        if ![WIRES_OPEN, WIRES_CLOSED].contains(&wires.as_str()) {
            let problem = format!("`{WIRES_OPEN}` or `{WIRES_CLOSED}` is wanted");
            return Err(refuse(variable::WIRES, &wires, problem));
        }
        Ok(Self {
            wire: wire.parse().map_err(|problem| refuse(variable::WIRE, &wire, problem))?,
            personality: personality.parse().map_err(|unknown: UnknownPersonality| {
                refuse(variable::PERSONALITY, &personality, unknown.to_string())
            })?,
            mtu_bytes: mtu_bytes.and_then(|bytes| u32::try_from(bytes).ok()),
            core: core.and_then(|core| usize::try_from(core).ok()),
            wait: Duration::from_secs(number(variable::WAIT, 0, WAIT_LIMIT_S)?.unwrap_or(DEFAULT_WAIT_S)),
            wires_closed: wires == WIRES_CLOSED,
            faults: faults
                .parse()
                .map_err(|error: FaultPlanError| refuse(variable::FAULTS, &faults, error.to_string()))?,
            name,
        })
    }

    /// The NIC that they describe.
    pub(super) fn create(&self, wires_open: &Arc<AtomicBool>) -> Result<OwnedNic, SoftNicError> {
        let wire = self.wire.open().map_err(|source: WireError| SoftNicError::Wire { source })?;
        let wire = Box::new(GatedWire::new(wire, wires_open));
        let mtu_bytes = self.mtu_bytes.unwrap_or_else(|| wire.mtu_bytes().min(MAX_MTU_BYTES));
        let nic = OwnedNic::create(SoftNicConfig {
            name: self.name.clone(),
            personality: self.personality,
            ports: vec![PortConfig { wire, mtu_bytes }],
            drive: Drive::Thread { core: self.core },
        })?;
        nic.plan_faults(self.faults.clone());
        Ok(nic)
    }
}

/// The last core that this machine can have. A thread that cannot be put on its core runs on any, and a
/// foreign process has no log that would say so.
fn last_core() -> u64 {
    // SAFETY: asks for a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u64::try_from(cores).unwrap_or(1).saturating_sub(1)
}

fn refuse(name: &'static str, value: &str, problem: String) -> SoftNicError {
    SoftNicError::Setting { name, value: value.to_owned(), problem }
}
