//! The soft NIC for unmodified programs, as one shared library.
//!
//! *Plugin*: under the names `libsoftnic-rdmav34.so`, `-rdmav57.so`, `-rdmav59.so`, `-rdmav64.so` and
//! `-rdmav65.so` the stock libibverbs loads it as a provider plugin; it registers itself through whichever
//! `verbs_register_driver_NN` that library has. *Preload*: preloaded (`LD_PRELOAD`), its functions of the
//! library's names come before the library's own. *mlx5*: preloaded, its functions of libc's names answer
//! what rdma-core's mlx5 provider asks of the kernel ([`uverbs`]).
//!
//! The launcher `softnic exec` sets up one of them. For the plugin it preloads too: the stock
//! `ibv_create_comp_channel` and `ibv_import_device` ask the kernel and no provider. The plugin is then a
//! copy of this file, or the library would find the preloaded one when it opens its plugin, and not run the
//! constructor again: a program that opens libibverbs itself (dlopen(3)) would see no device, because its
//! dlsym(3) finds the stock `ibv_get_device_list`. The copy registers through the preloaded library, so that
//! a process has one device. Calls that are not about a soft NIC are passed on to the stock library, but when
//! only preloaded the list of devices has the soft NIC alone. The settings of the NIC are environment
//! variables, see [`softnic::lazy_nic::variable`].

pub mod interpose;
pub mod uverbs;

use std::ffi::c_int;
use std::sync::OnceLock;

use softnic::lazy_nic::{LazyNic, METHOD_MLX5, Settings, print_error, variable};
use softnic_verbs::preload;
use softnic_verbs::preload::host::DeviceStatus;

static NIC: OnceLock<Option<&'static LazyNic>> = OnceLock::new();

/// Which method the environment asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The library finds the device in a sysfs tree. Also the default: the library loads plugins this way.
    Plugin,
    /// This library's own `ibv_get_device_list` answers.
    Preload,
    /// The library finds rdma-core's mlx5 provider, whose calls on the command descriptor this library
    /// answers.
    Mlx5,
}

/// Read once: the program may change its environment at any time, and the devices it has stay what they are.
fn kind() -> Kind {
    static KIND: OnceLock<Kind> = OnceLock::new();
    *KIND.get_or_init(|| match std::env::var_os(variable::METHOD) {
        Some(method) if method == "preload" => Kind::Preload,
        Some(method) if method == METHOD_MLX5 => Kind::Mlx5,
        _ => Kind::Plugin,
    })
}

/// The device of the process, from the settings of its environment; `None`, reported once on stderr, if these
/// are invalid.
fn nic() -> Option<&'static LazyNic> {
    *NIC.get_or_init(|| match Settings::from_environment() {
        // The library keeps pointers to it for as long as the process runs.
        Ok(settings) => Some(Box::leak(Box::new(LazyNic::new(settings)))),
        Err(error) => {
            print_error(&error);
            None
        }
    })
}

/// Registers the provider, the first time; an error is written to stderr. Who comes meanwhile waits, because
/// the library's list of providers has no lock for those who add to it. Returns false if this library does
/// not take it.
fn register() -> bool {
    static TAKEN: OnceLock<bool> = OnceLock::new();
    *TAKEN.get_or_init(|| {
        if kind() != Kind::Mlx5
            && let Some(nic) = nic()
            && let Err(error) = preload::register(nic)
        {
            print_error(&error);
            return false;
        }
        true
    })
}

/// Registers the provider of the library that is preloaded, for its copy that libibverbs has opened as a
/// plugin.
#[unsafe(no_mangle)]
pub extern "C" fn softnic_register() {
    // A panic here would end the host's process for nothing.
    let _ = std::panic::catch_unwind(register);
}

/// Opens the wire of the device, or closes it: see [`softnic_verbs::preload::host`].
#[unsafe(no_mangle)]
pub extern "C" fn softnic_set_wires(open: c_int) {
    let _ = std::panic::catch_unwind(|| nic().map(|nic| nic.set_wires(open != 0)));
}

/// Fills `into` with as much of the device's status as fits.
///
/// # Safety
/// `into` points to room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softnic_read_status(into: *mut DeviceStatus, bytes: usize) {
    let status = std::panic::catch_unwind(|| nic().map(DeviceStatus::of));
    let status = status.ok().flatten().unwrap_or_default();
    let bytes = bytes.min(size_of::<DeviceStatus>());
    // SAFETY: so much room, by the contract of this function; the status is plain numbers without padding.
    unsafe { into.cast::<u8>().copy_from_nonoverlapping((&raw const status).cast(), bytes) };
}

/// [`softnic_register`] of the preloaded library, or this one's where none is preloaded.
fn registrar() -> extern "C" fn() {
    // SAFETY: looks a name up in what the program was started with.
    let preloaded = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"softnic_register".as_ptr()) };
    if preloaded.is_null() {
        return softnic_register;
    }
    // SAFETY: only this library has a function of that name, whose type this is.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(preloaded) }
}

/// Run by the dynamic linker. Where libibverbs comes later (the plugin, preloaded into an interpreter), the
/// interposed `ibv_get_device_list` or the plugin's constructor makes up for it.
extern "C" fn constructor() {
    uverbs::begin();
    let ready = std::panic::catch_unwind(|| kind() == Kind::Plugin && preload::library_is_present());
    if ready.unwrap_or(false) {
        registrar()();
    }
}

// SAFETY: the section holds pointers to functions of this type, which the dynamic linker calls once with the
// library mapped and its dependencies initialised (ELF gABI, "Initialization and Termination Functions").
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
