//! The doors by which programs that know nothing of this crate come to a soft NIC.
//!
//! Used by the shared library of `softnic-door`, never by `steerd`, which hands its own devices to the stock
//! `ibv_open_device`. *Door B*: the stock library finds the device in a sysfs tree and asks the registered provider
//! for it. *Door C*: the program's `ibv_get_device_list` is interposed and answers [`Door::device_list`]. Either way the
//! NIC is made when the device is first opened and lives as long as the process; nothing of it outlives that.

mod settings;
mod signals;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_context, ibv_device};
use packet::MacAddr;

pub use settings::{Settings, WAIT_LIMIT_S, variable};

use self::signals::Blocked;
use crate::Error;
use crate::device::{self, Backing};
use crate::library::Library;
use crate::nic::{Nic, SoftNic};

/// The GIDs of a port in the sysfs tree of door B; all but the first are zero.
pub const GIDS: c_int = 2;
/// The upper half of the first: the link-local prefix.
pub const LINK_LOCAL: u64 = 0xfe80 << 48;
/// The partition keys of a port: the default one.
pub const PKEYS: u16 = 1;
/// The default partition key, full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// The ABI that the sysfs tree of door B gives for the device.
pub const SYSFS_ABI: u32 = 1;

/// How often a new NIC's ports are looked at while a peer is waited for.
const WAIT_STEP: Duration = Duration::from_millis(2);

/// A soft NIC that is made when somebody opens its device.
pub struct Door {
    settings: Settings,
    nic: Mutex<Option<SoftNic>>,
}

impl Door {
    /// A device with these settings; nothing is opened yet.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, nic: Mutex::new(None) }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether this process has loaded libibverbs, so that [`Door::register`] would not be what pulls it in.
    #[must_use]
    pub fn library_is_present() -> bool {
        Library::is_present()
    }

    /// Offers the device to the library of this process, which makes it where its sysfs tree names it. Only the first
    /// door of a process is registered.
    ///
    /// # Errors
    /// There is no libibverbs, or none whose private layout is known.
    pub fn register(&'static self) -> Result<(), Error> {
        device::register(self)
    }

    /// A list of the device, for `ibv_free_device_list`, as `ibv_get_device_list` answers it; NULL with errno set where
    /// there is no memory.
    ///
    /// # Errors
    /// There is no libibverbs, or none whose private layout is known.
    pub fn device_list(&'static self, count: &mut c_int) -> Result<*mut *mut ibv_device, Error> {
        *count = 0;
        Library::load()?;
        Ok(device::list(self.name(), Backing::Door(self), count))
    }

    /// The function that makes a completion channel for a context of this provider, if the NIC was made.
    #[must_use]
    pub fn channel_maker(&self) -> Option<verbs::CreateChannel> {
        use verbs::Provider as _;
        let nic = self.nic.lock().unwrap_or_else(PoisonError::into_inner);
        nic.as_ref().and_then(SoftNic::channel_maker)
    }

    /// What `ibv_get_device_guid` answers in host byte order: EUI-64 of the first port's address, as it is known before
    /// the wire is open.
    #[must_use]
    pub fn guid(&self) -> u64 {
        eui64(self.settings.wire.station())
    }

    /// The NIC, made by the first who asks. What keeps it from being made is said on stderr, because C has only errno.
    pub(crate) fn nic(&self) -> Option<Arc<Nic>> {
        let mut nic = self.nic.lock().unwrap_or_else(PoisonError::into_inner);
        if nic.is_none() {
            // The program did not ask for threads, so none of ours is to take its signals.
            let blocked = Blocked::all();
            let made = self.settings.create();
            drop(blocked);
            match made {
                Ok(made) => *nic = Some(made),
                Err(error) => {
                    complain(&error);
                    return None;
                }
            }
            self.wait_for_peer(nic.as_ref()?.shared());
        }
        nic.as_ref().map(|nic| Arc::clone(nic.shared()))
    }

    /// Gives a link's two ends time to meet: most programs look at the port once, when they start, and give up.
    fn wait_for_peer(&self, nic: &Nic) {
        let up = || nic.ports.iter().all(|port| !port.down.load(Ordering::Relaxed));
        let until = Instant::now() + self.settings.wait;
        while !up() && Instant::now() < until {
            std::thread::sleep(WAIT_STEP);
        }
    }
}

/// Says on stderr why something cannot be done, with its causes.
pub fn complain(error: &dyn std::error::Error) {
    use std::io::Write as _;
    let mut text = format!("softnic: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some messages end with their cause already.
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
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

/// Whether a device is a soft NIC; with `without_sysfs`, whether it is one of [`Door::device_list`].
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

/// The stock library's function of a name and version, whoever else defines one of that name.
///
/// # Errors
/// There is no libibverbs, or it has no such function.
pub fn stock_function(name: &'static CStr, version: &CStr) -> Result<*mut c_void, Error> {
    Library::load()?.function(name, version)
}
