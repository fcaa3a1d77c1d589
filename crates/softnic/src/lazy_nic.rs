//! A soft NIC that is made when a program opens its device, in a process that has no settings of ours.

mod settings;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use packet::MacAddr;

pub use self::settings::{METHOD_MLX5, Settings, WIRES_CLOSED, variable};
use crate::nic::{Nic, OwnedNic};
use crate::port_tables::eui64;

/// How often a new NIC's ports are looked at while a peer is waited for.
const WAIT_STEP: Duration = Duration::from_millis(2);

/// A soft NIC that is made when a program opens its device.
pub struct LazyNic {
    settings: Settings,
    nic: OnceLock<OwnedNic>,
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

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The answer of `ibv_get_device_guid` in host byte order: EUI-64 of the first port's address.
    #[must_use]
    pub fn guid(&self) -> u64 {
        eui64(self.station())
    }

    /// The address of the first port, as it is known before the wire is open.
    #[must_use]
    pub fn station(&self) -> MacAddr {
        self.settings.wire.station()
    }

    /// The NIC, if a program has opened the device. Does not wait for a thread that opens it.
    #[must_use]
    pub fn made(&self) -> Option<&OwnedNic> {
        self.nic.get()
    }

    /// The NIC, made by the first who asks. An error is written to stderr, because C has only errno.
    pub fn nic(&self) -> Option<Arc<Nic>> {
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
    // A failed write to stderr cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "{text}");
}

// A program that takes its signals in one place (sigwait, signalfd) blocks them in its own threads. A thread
// it does not know of, with the mask of whenever the device was opened, would get them instead, and end the
// process. So they are blocked while the NIC is made; the program's own mask is as before afterwards.

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

#[cfg(test)]
mod tests;
