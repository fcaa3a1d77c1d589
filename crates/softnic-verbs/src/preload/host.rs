//! What a program that knows the preloaded library asks of it: to open and close the wires of its device, and
//! what the engine has done.
//!
//! Such a program has a copy of this crate of its own, which knows nothing of the device. The library exports
//! two functions with C's calling convention, which the dynamic linker finds by name. Counters are only added
//! at the end of [`PortStats`], which stays the last field of the structure, and the caller gives its size,
//! because the library and the program may be of different releases.

use std::ffi::{CStr, c_int, c_void};

use packet::MacAddr;
use softnic::PortStats;
use softnic::lazy_nic::LazyNic;

/// The only port.
const PORT: u8 = 1;

/// The name of the function that opens and closes the wires.
pub const SET_WIRES: &CStr = c"softnic_set_wires";
/// The name of the function that reads the status.
pub const READ_STATUS: &CStr = c"softnic_read_status";

/// How the device of the preloaded library is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Passes that the engine has made; also without traffic it makes about fifty each second.
    pub passes: u64,
    /// Not 0: every wire has come to its end, and everything received was handled.
    pub finished: u32,
    /// Not 0: the engine's thread has ended.
    pub died: u32,
    /// The address of its port, the first byte in bits 40 to 47; 0 before the device was opened.
    pub mac: u64,
    /// The outcomes of the frames of its port. The last field: it grows.
    pub port: PortStats,
}

impl DeviceStatus {
    /// How a device is; zeros before it was opened. Does not wait for a thread that opens it.
    #[must_use]
    pub fn of(device: &LazyNic) -> Self {
        let Some(nic) = device.made() else { return Self::default() };
        Self {
            passes: nic.engine_passes().iter().sum(),
            finished: nic.wires_finished().into(),
            died: nic.engine_died().into(),
            mac: nic.port_mac(PORT).map_or(0, Self::number_of),
            port: nic.port_stats(PORT),
        }
    }

    /// The address of its port, if the device was opened.
    #[must_use]
    pub fn mac(&self) -> Option<MacAddr> {
        let [_, _, address @ ..] = self.mac.to_be_bytes();
        (self.mac != 0).then_some(MacAddr(address))
    }

    /// The address as a number, as in the field.
    fn number_of(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

type SetWires = extern "C" fn(open: c_int);
type ReadStatus = unsafe extern "C" fn(into: *mut DeviceStatus, bytes: usize);

/// The preloaded library of this process.
#[derive(Clone, Copy, Debug)]
pub struct Preloaded {
    set_wires: SetWires,
    read_status: ReadStatus,
}

impl Preloaded {
    /// The library, if the process was started with it.
    #[must_use]
    pub fn find() -> Option<Self> {
        let (set_wires, read_status) = (symbol(SET_WIRES)?, symbol(READ_STATUS)?);
        Some(Self {
            // SAFETY: only the preloaded library has a function of that name, and this is its type.
            set_wires: unsafe { std::mem::transmute::<*mut c_void, SetWires>(set_wires) },
            // SAFETY: as above.
            read_status: unsafe { std::mem::transmute::<*mut c_void, ReadStatus>(read_status) },
        })
    }

    /// Whether the wires receive.
    pub fn set_wires(&self, open: bool) {
        (self.set_wires)(open.into());
    }

    /// How the device is; zeros before it was opened.
    #[must_use]
    pub fn status(&self) -> DeviceStatus {
        let mut status = DeviceStatus::default();
        // SAFETY: room for so many bytes.
        unsafe { (self.read_status)(&raw mut status, size_of::<DeviceStatus>()) };
        status
    }
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up in what the program was started with.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use softnic::lazy_nic::{Settings, variable};
    use wire::WireConfig;

    use super::*;

    fn lazy(variables: &[(&str, &str)]) -> LazyNic {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        LazyNic::new(Settings::read(|name| value(name).map(str::to_owned)).unwrap())
    }

    #[test]
    fn an_address_is_a_number_and_back() {
        let mac = MacAddr([0x02, 0, 0, 0x5e, 0, 1]);
        assert_eq!(
            DeviceStatus { mac: DeviceStatus::number_of(mac), ..DeviceStatus::default() }.mac(),
            Some(mac)
        );
        assert_eq!(DeviceStatus::default().mac(), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no dlsym(3)")]
    fn a_process_without_the_library_has_none() {
        assert!(Preloaded::find().is_none());
    }

    #[test]
    fn a_closed_wire_receives_once_the_program_opens_it() {
        let wire = "{ kind = \"generator\", total = 3, flows = [{}] }";
        let nic = lazy(&[(variable::NAME, "shut"), (variable::WIRE, wire), (variable::WIRES, "closed")]);
        assert_eq!(
            DeviceStatus::of(&nic),
            DeviceStatus::default(),
            "nothing is there before the device is opened"
        );
        assert!(nic.nic().is_some());
        assert_eq!(DeviceStatus::of(&nic).mac(), Some(nic.station()));
        let until = Instant::now() + Duration::from_secs(10);
        while DeviceStatus::of(&nic).passes < 3 {
            assert!(Instant::now() < until, "the engine makes no pass");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((DeviceStatus::of(&nic).finished, DeviceStatus::of(&nic).port.rx_frames), (0, 0));
        nic.set_wires(true);
        while DeviceStatus::of(&nic).finished == 0 {
            assert!(Instant::now() < until, "the wire does not come to its end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((DeviceStatus::of(&nic).died, DeviceStatus::of(&nic).port.rx_frames), (0, 3));
    }

    #[test]
    fn the_status_does_not_wait_for_the_peer_of_the_wire() {
        let [wire, peer] = ["a", "b"].map(|end| format!("link:status-{}:{end}", std::process::id()));
        // A peer that does not answer.
        let _peer = peer.parse::<WireConfig>().unwrap().open().unwrap();
        let nic = lazy(&[(variable::NAME, "alone"), (variable::WIRE, &wire), (variable::WAIT, "2")]);
        let opened = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(nic.nic().is_some());
                opened.store(true, Ordering::Release);
            });
            while DeviceStatus::of(&nic).passes == 0 {
                assert!(!opened.load(Ordering::Acquire), "it waited for the peer, or there is no engine");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!opened.load(Ordering::Acquire), "it waited for the peer");
        });
    }
}
