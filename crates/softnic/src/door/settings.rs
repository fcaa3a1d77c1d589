//! What a soft NIC in a foreign process is made from: environment variables, because such a process has no settings of
//! ours. Read by the shared library, written by the launcher, and checked by the same lines in both.

use std::time::Duration;

use crate::Error;
use crate::limits::{MAX_MTU_BYTES, MAX_NAME_BYTES, MIN_MTU_BYTES};
use crate::nic::{Drive, PortConfig, SoftNic, SoftNicConfig, is_device_name};
use crate::personality::{Personality, UnknownPersonality};
use crate::wire::{WireConfig, WireError};

/// The names of the variables.
pub mod variable {
    /// The device's name; `softnic0` without it.
    pub const NAME: &str = "SOFTNIC_NAME";
    /// The wire of its port, as `WireConfig` reads it from a string; `null` without it.
    pub const WIRE: &str = "SOFTNIC_WIRE";
    /// `ideal`, `mlx5` or `mlx4`; `ideal` without it.
    pub const PERSONALITY: &str = "SOFTNIC_PERSONALITY";
    /// Bytes of the port's MTU; what the wire can carry without it.
    pub const MTU: &str = "SOFTNIC_MTU";
    /// The core of the engine; any without it.
    pub const CORE: &str = "SOFTNIC_CORE";
    /// Seconds to wait, at the first opening, until the wire is up; 2 without it.
    pub const WAIT: &str = "SOFTNIC_WAIT";
    /// `plugin` or `preload`: which door the launcher has set up; see `softnic-door`.
    pub const DOOR: &str = "SOFTNIC_DOOR";

    /// All of them.
    pub const ALL: [&str; 7] = [NAME, WIRE, PERSONALITY, MTU, CORE, WAIT, DOOR];
}

/// The longest time to wait for a wire, in seconds.
pub const WAIT_LIMIT_S: u64 = 3_600;

const DEFAULT_NAME: &str = "softnic0";
const DEFAULT_WAIT_S: u64 = 2;

/// Checked settings. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device's name.
    pub name: String,
    /// The wire of its only port.
    pub wire: WireConfig,
    /// What the device refuses.
    pub personality: Personality,
    /// Bytes of the port's MTU; `None` for what the wire can carry.
    pub mtu_bytes: Option<u32>,
    /// The core of the engine.
    pub core: Option<usize>,
    /// How long the first opening waits until the wire is up.
    pub wait: Duration,
}

impl Settings {
    /// The settings of this process's environment.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// The settings of variables that `lookup` finds.
    ///
    /// # Errors
    /// The first variable whose value makes no sense, and what would.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let text = |name: &str, default: &str| lookup(name).unwrap_or_else(|| default.to_owned());
        let number = |name: &'static str, least: u64, most: u64| match lookup(name) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
                _ => Err(refuse(name, &text, format!("a number of {least} to {most} is wanted"))),
            },
        };
        let name = text(variable::NAME, DEFAULT_NAME);
        if !is_device_name(&name) {
            return Err(Error::DeviceName { name, max: MAX_NAME_BYTES });
        }
        let wire = text(variable::WIRE, "null");
        let personality = text(variable::PERSONALITY, "ideal");
        let mtu_bytes = number(variable::MTU, MIN_MTU_BYTES.into(), MAX_MTU_BYTES.into())?;
        let core = number(variable::CORE, 0, last_core())?;
        Ok(Self {
            wire: wire.parse().map_err(|problem| refuse(variable::WIRE, &wire, problem))?,
            personality: personality.parse().map_err(|unknown: UnknownPersonality| {
                refuse(variable::PERSONALITY, &personality, unknown.to_string())
            })?,
            mtu_bytes: mtu_bytes.and_then(|bytes| u32::try_from(bytes).ok()),
            core: core.and_then(|core| usize::try_from(core).ok()),
            wait: Duration::from_secs(number(variable::WAIT, 0, WAIT_LIMIT_S)?.unwrap_or(DEFAULT_WAIT_S)),
            name,
        })
    }

    /// The NIC that they describe.
    pub(super) fn create(&self) -> Result<SoftNic, Error> {
        let wire = self.wire.open().map_err(|source: WireError| Error::Wire { source })?;
        let mtu_bytes = self.mtu_bytes.unwrap_or_else(|| wire.mtu_bytes().min(MAX_MTU_BYTES));
        SoftNic::create(SoftNicConfig {
            name: self.name.clone(),
            personality: self.personality,
            ports: vec![PortConfig { wire, mtu_bytes }],
            drive: Drive::Thread { core: self.core },
        })
    }
}

/// The last core that this machine can have. A thread that cannot be put on its core runs on any, and a foreign process has no
/// log that would say so.
fn last_core() -> u64 {
    // SAFETY: asks for a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u64::try_from(cores).unwrap_or(1).saturating_sub(1)
}

fn refuse(name: &'static str, value: &str, problem: String) -> Error {
    Error::Setting { name, value: value.to_owned(), problem }
}
