//! The soft NIC's doors into foreign processes, as one shared library.
//!
//! *Door B*: under the names `libsoftnic-rdmav34.so`, `-rdmav57.so`, `-rdmav59.so` and `-rdmav64.so` the stock libibverbs
//! loads it as a provider plugin; it registers itself through whichever `verbs_register_driver_NN` that library has.
//! *Door C*: preloaded (`LD_PRELOAD`), its functions of the library's names come before the library's own.
//!
//! The launcher `softnic exec` sets up either. Under door B it preloads too: the stock `ibv_create_comp_channel` and
//! `ibv_import_device` ask the kernel and no provider. The plugin is then a copy of this file, or the library would find
//! the preloaded one when it opens its plugin, and not run the constructor again: a program that opens libibverbs itself
//! (dlopen(3)) would see no device, because its dlsym(3) finds the stock `ibv_get_device_list`. The copy registers through
//! the preloaded library, so that a process has one device. Calls that are not about a soft NIC are passed on to the stock
//! library, but under door C the list of devices has the soft NIC alone. What the NIC is made from stands in the environment, see [`softnic::door::variable`].

pub mod interpose;

use std::sync::{Once, OnceLock};

use softnic::door::{Door, Settings, complain, variable};

static DOOR: OnceLock<Option<&'static Door>> = OnceLock::new();

/// Which door the environment asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// B: the library finds the device in a sysfs tree. Also where nobody asks: this is how plugins are loaded.
    Plugin,
    /// C: this library's own `ibv_get_device_list` answers.
    Preload,
}

/// Read once: the program may change its environment at any time, and the devices it has stay what they are.
fn kind() -> Kind {
    static KIND: OnceLock<Kind> = OnceLock::new();
    *KIND.get_or_init(|| match std::env::var_os(variable::DOOR) {
        Some(door) if door == "preload" => Kind::Preload,
        _ => Kind::Plugin,
    })
}

/// The process's door, from the settings of its environment; `None`, said once on stderr, if these make no sense.
fn door() -> Option<&'static Door> {
    *DOOR.get_or_init(|| match Settings::from_environment() {
        // The library keeps pointers to it for as long as the process runs.
        Ok(settings) => Some(Box::leak(Box::new(Door::new(settings)))),
        Err(error) => {
            complain(&error);
            None
        }
    })
}

/// Registers the provider, the first time; what keeps it from that is said on stderr. Who comes meanwhile waits, because the
/// library's list of providers has no lock for those who add to it.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(door) = door()
            && let Err(error) = door.register()
        {
            complain(&error);
        }
    });
}

/// Registers the provider of the library that is preloaded, for its copy that libibverbs has opened as a plugin.
#[unsafe(no_mangle)]
pub extern "C" fn softnic_register() {
    // A panic here would end the host's process for nothing.
    let _ = std::panic::catch_unwind(register);
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

/// Run by the dynamic linker. Where libibverbs comes later (door B, preloaded into an interpreter), the interposed
/// `ibv_get_device_list` or the plugin's constructor makes up for it.
extern "C" fn constructor() {
    let ready = std::panic::catch_unwind(|| kind() == Kind::Plugin && Door::library_is_present());
    if ready.unwrap_or(false) {
        registrar()();
    }
}

// SAFETY: the section holds pointers to functions of this type, which the dynamic linker calls once with the library
// mapped and its dependencies initialised (ELF gABI, "Initialization and Termination Functions").
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
