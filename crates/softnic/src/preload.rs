//! The soft NIC for unmodified programs.
//!
//! Used by the shared library of `softnic-preload`, never by `steerd`, which hands its own devices to the
//! stock `ibv_open_device`. *Plugin*: the stock library finds the device in a sysfs tree and asks the
//! registered provider for it. *Preload*: the program's `ibv_get_device_list` is interposed and returns
//! [`LazyNic::device_list`]. *mlx5*: rdma-core's own provider talks to [`crate::mlx5`] as if it were the
//! kernel. In every case the NIC is made when the device is first opened and lives as long as the process;
//! nothing of it outlives that.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_context, ibv_device};
use packet::MacAddr;
use wire::{GatedWire, MAX_MTU_BYTES, Wire as _, WireConfig, WireError};

use crate::Error;
use crate::device::{self, Backing};
use crate::library::Library;
use crate::limits::{MAX_NAME_BYTES, MIN_MTU_BYTES};
use crate::nic::{Drive, Nic, SoftNic, SoftNicConfig, is_device_name};
use crate::personality::{Personality, UnknownPersonality};
use crate::shared::PortConfig;

pub mod host;
pub mod launch;
pub mod sysfs;
#[cfg(test)]
mod tests;

/// The GIDs of a port in the plugin's sysfs tree; all but the first are zero.
pub const GIDS: c_int = 2;
/// The upper half of the first: the link-local prefix.
pub const LINK_LOCAL: u64 = 0xfe80 << 48;
/// The partition keys of a port: the default one.
pub const PKEYS: u16 = 1;
/// The default partition key, full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// The ABI that the plugin's sysfs tree gives for the device.
pub const SYSFS_ABI: u32 = 1;

/// The only port.
const PORT: u8 = 1;
/// How often a new NIC's ports are looked at while a peer is waited for.
const WAIT_STEP: Duration = Duration::from_millis(2);

/// A soft NIC that is made when a program opens its device.
pub struct LazyNic {
    settings: Settings,
    nic: OnceLock<SoftNic>,
    /// Held by the first caller while it makes the NIC and waits for its peer; other callers that open the
    /// device wait too.
    opening: Mutex<()>,
    /// Whether its wire receives.
    wires_open: Arc<AtomicBool>,
}

impl LazyNic {
    /// A device with these settings; nothing is opened yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let wires_open = Arc::new(AtomicBool::new(!settings.wires_closed));
        Self { settings, nic: OnceLock::new(), opening: Mutex::new(()), wires_open }
    }

    /// Opens the wire, or closes it: then it receives nothing. Frames are sent in any case.
    pub fn set_wires(&self, open: bool) {
        self.wires_open.store(open, Ordering::Release);
    }

    /// How the device is; zeros before it was opened. Does not wait for a thread that opens it.
    #[must_use]
    pub fn status(&self) -> host::Status {
        let Some(nic) = self.nic.get() else { return host::Status::default() };
        host::Status {
            passes: nic.engine_passes().iter().sum(),
            finished: nic.wires_finished().into(),
            died: nic.engine_died().into(),
            mac: nic.port_mac(PORT).map_or(0, host::Status::number_of),
            port: nic.port_stats(PORT),
        }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether this process has loaded libibverbs, so that [`LazyNic::register`] would not be what pulls it
    /// in.
    #[must_use]
    pub fn library_is_present() -> bool {
        Library::is_present()
    }

    /// Offers the device to the library of this process, which makes it where its sysfs tree names it. Only
    /// the first device of a process is registered.
    ///
    /// # Errors
    /// There is no libibverbs, or none whose private layout is known.
    pub fn register(&'static self) -> Result<(), Error> {
        device::register(self)
    }

    /// A list of the device, for `ibv_free_device_list`, as `ibv_get_device_list` returns it; NULL with errno
    /// set where there is no memory.
    ///
    /// # Errors
    /// There is no libibverbs, or none whose private layout is known.
    pub fn device_list(&'static self, count: &mut c_int) -> Result<*mut *mut ibv_device, Error> {
        *count = 0;
        Library::load()?;
        Ok(device::list(self.name(), Backing::Lazy(self), count))
    }

    /// The function that makes a completion channel for a context of this provider, if the NIC was made.
    #[must_use]
    pub fn channel_maker(&self) -> Option<ibv_provider::CreateChannel> {
        use ibv_provider::Provider as _;
        self.nic.get().and_then(SoftNic::channel_maker)
    }

    /// The answer of `ibv_get_device_guid` in host byte order: EUI-64 of the first port's address, as it is
    /// known before the wire is open.
    #[must_use]
    pub fn guid(&self) -> u64 {
        eui64(self.settings.wire.station())
    }

    /// The NIC, made by the first who asks. An error is written to stderr, because C has only errno.
    pub(crate) fn nic(&self) -> Option<Arc<Nic>> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.nic.get().is_none() {
            // The program did not ask for threads, so none of ours is to take its signals.
            let blocked = Blocked::all();
            let made = self.settings.create(&self.wires_open);
            drop(blocked);
            match made {
                Ok(made) => self.wait_for_peer(self.nic.get_or_init(|| made).nic()),
                Err(error) => {
                    print_error(&error);
                    return None;
                }
            }
        }
        self.nic.get().map(|nic| Arc::clone(nic.nic()))
    }

    /// Gives a link's two ends time to meet: most programs look at the port once, when they start, and give
    /// up.
    fn wait_for_peer(&self, nic: &Nic) {
        let up = || nic.ports.iter().all(|port| !port.down.load(Ordering::Relaxed));
        let until = Instant::now() + self.settings.wait;
        while !up() && Instant::now() < until {
            std::thread::sleep(WAIT_STEP);
        }
    }
}

/// Writes to stderr why something failed, with its causes.
pub fn print_error(error: &dyn std::error::Error) {
    use std::io::Write as _;
    let mut text = format!("softnic: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Some messages end with their cause already.
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    // There is no one else to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The modified EUI-64 of a station address (RFC 4291, appendix A).
#[must_use]
pub fn eui64(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Whether a device is a soft NIC; with `without_sysfs`, whether it is one of [`LazyNic::device_list`].
///
/// # Safety
/// `device` is NULL or a live device of libibverbs.
#[must_use]
pub unsafe fn is_soft(device: *mut ibv_device, without_sysfs: bool) -> bool {
    // SAFETY: by the contract of this function.
    unsafe { device::is_ours(device, without_sysfs) }
}

/// Whether a context is one of a soft NIC; `without_sysfs` as for [`is_soft`].
///
/// # Safety
/// `context` is NULL or a live context of libibverbs.
#[must_use]
pub unsafe fn is_soft_context(context: *mut ibv_context, without_sysfs: bool) -> bool {
    // SAFETY: by the contract of this function.
    let Some(context) = (unsafe { context.as_ref() }) else { return false };
    // SAFETY: a live context holds its device.
    unsafe { device::is_ours(context.device, without_sysfs) }
}

/// The stock library's function of a name and version, even if another library defines one of that name.
///
/// # Errors
/// There is no libibverbs, or it has no such function.
pub fn stock_function(name: &'static CStr, version: &CStr) -> Result<*mut c_void, Error> {
    Library::function(name, version)
}

// What a soft NIC in a foreign process is made from: environment variables, because such a process has no
// settings of ours. Read by the shared library, written by the launcher, and checked by the same lines in
// both.

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
    /// ([`super::host`]); `open` without it.
    pub const WIRES: &str = "SOFTNIC_WIRES";

    /// All of them.
    pub const ALL: [&str; 8] = [NAME, WIRE, PERSONALITY, MTU, CORE, WAIT, METHOD, WIRES];
}

/// A value of [`variable::WIRES`]: the wires are open.
pub const WIRES_OPEN: &str = "open";
/// A value of [`variable::WIRES`]: the wires are closed.
pub const WIRES_CLOSED: &str = "closed";

/// The longest time to wait for a wire, in seconds.
pub const WAIT_LIMIT_S: u64 = 3_600;

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
        let mlx5 = lookup(variable::METHOD).is_some_and(|method| method == METHOD_MLX5);
        let name = text(variable::NAME, if mlx5 { DEFAULT_MLX5_NAME } else { DEFAULT_NAME });
        if !is_device_name(&name) {
            return Err(Error::DeviceName { name, max: MAX_NAME_BYTES });
        }
        let wire = text(variable::WIRE, "null");
        let personality = text(variable::PERSONALITY, if mlx5 { "mlx5" } else { "ideal" });
        let mtu_bytes = number(variable::MTU, MIN_MTU_BYTES.into(), MAX_MTU_BYTES.into())?;
        let core = number(variable::CORE, 0, last_core())?;
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
            name,
        })
    }

    /// The NIC that they describe. For the methods that need the provider, the library was loaded before: to
    /// register the provider, or for the list of devices.
    fn create(&self, wires_open: &Arc<AtomicBool>) -> Result<SoftNic, Error> {
        let wire = self.wire.open().map_err(|source: WireError| Error::Wire { source })?;
        let wire = Box::new(GatedWire::new(wire, wires_open));
        let mtu_bytes = self.mtu_bytes.unwrap_or_else(|| wire.mtu_bytes().min(MAX_MTU_BYTES));
        SoftNic::create_without_provider(SoftNicConfig {
            name: self.name.clone(),
            personality: self.personality,
            ports: vec![PortConfig { wire, mtu_bytes }],
            drive: Drive::Thread { core: self.core },
        })
    }
}

/// The last core that this machine can have. A thread that cannot be put on its core runs on any, and a
/// foreign process has no log that would say so.
fn last_core() -> u64 {
    // SAFETY: asks for a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u64::try_from(cores).unwrap_or(1).saturating_sub(1)
}

fn refuse(name: &'static str, value: &str, problem: String) -> Error {
    Error::Setting { name, value: value.to_owned(), problem }
}

// Keeps signals away from the threads that a soft NIC starts in a foreign process.
//
// A program that takes its signals in one place (sigwait, signalfd) blocks them in its own threads. A thread
// it does not know of, with the mask of whenever the device was opened, would get them instead, and end the
// process. Used by `preload` while it makes the NIC; the program's own mask is as before afterwards.

/// While this exists, its thread has all signals blocked, and threads that it starts begin with that mask
/// (pthread_sigmask(3)). To be dropped on the thread that made it.
struct Blocked {
    /// `None` where the mask could not be changed; nothing is to be put back then.
    before: Option<libc::sigset_t>,
}

impl Blocked {
    fn all() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: room for a set, which it fills.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `all` was filled above; there is room for the old mask.
        let code = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: written when the call succeeded.
        Self { before: (code == 0).then(|| unsafe { before.assume_init() }) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: a mask that this thread had; no room for another is given.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}
