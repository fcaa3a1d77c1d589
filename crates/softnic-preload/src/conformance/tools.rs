//! The small tools of ibverbs-utils, by both methods: the device is listed, described, and watched. And a client that opens
//! libibverbs itself, by the plugin method: the preload method is only for programs that are linked with it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Running, run};
use crate::{Case, Outcome};

const LIMIT: Duration = Duration::from_secs(30);

/// Lines that say that a tool has understood the device.
const DESCRIPTION: [&str; 6] = [
    "hca_id:\tsoftnic0",
    "fw_ver:\t\t\t\tsoftnic",
    "state:\t\t\tPORT_ACTIVE",
    "link_layer:\t\tEthernet",
    "rx_hash_function:\t\t\t\t0x1",
    "SUPPORT_RAW_PACKET",
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in ["plugin", "preload"] {
        cases.push(Case::new(format!("ibv_devices ({method})"), move |launcher| list(launcher, method)));
        cases.push(Case::new(format!("ibv_devinfo -v ({method})"), move |launcher| {
            describe(launcher, method)
        }));
        cases.push(Case::new(format!("ibv_asyncwatch ({method})"), move |launcher| watch(launcher, method)));
    }
    cases.push(Case::new("dlopen and dlsym from ctypes (plugin)", open_at_run_time));
    cases
}

/// Lists the devices, opens the first and allocates a protection domain, all by dlsym(3) on the library's handle.
const CTYPES_CLIENT: &str = r#"
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
lib = ctypes.CDLL("libibverbs.so.1", use_errno=True)
def function(name, result, *arguments):
    f = getattr(lib, name)
    f.restype, f.argtypes = result, arguments
    return f
devices = c_int()
found = function("ibv_get_device_list", POINTER(c_void_p), POINTER(c_int))(byref(devices))
name = function("ibv_get_device_name", c_char_p, c_void_p)
names = [name(found[i]).decode() for i in range(devices.value)]
print("devices:", *names)
context = function("ibv_open_device", c_void_p, c_void_p)(found[0])
domain = function("ibv_alloc_pd", c_void_p, c_void_p)(context)
assert context and domain, ctypes.get_errno()
assert function("ibv_dealloc_pd", c_int, c_void_p)(domain) == 0
assert function("ibv_close_device", c_int, c_void_p)(context) == 0
print("opened")
"#;

fn open_at_run_time(launcher: &Path) -> Outcome {
    let mut command = behind(launcher, "plugin", &["/usr/bin/python3", "-c", CTYPES_CLIENT]);
    let text = run(&mut command, "python3", LIMIT)?;
    match text.lines().collect::<Vec<_>>()[..] {
        ["devices: softnic0", "opened"] => Ok("softnic0 listed once and opened".to_owned()),
        _ => Err(format!("no softnic0, or not once, in\n{text}")),
    }
}

fn behind(launcher: &Path, method: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(launcher);
    command.args(["exec", "--method", method, "--wire", "null", "--"]).args(arguments);
    command
}

fn list(launcher: &Path, method: &str) -> Outcome {
    let text = run(&mut behind(launcher, method, &["ibv_devices"]), "ibv_devices", LIMIT)?;
    let line =
        text.lines().find(|line| line.contains("softnic0")).ok_or(format!("no softnic0 in\n{text}"))?;
    let guid = line.split_whitespace().nth(1).unwrap_or_default();
    if guid.len() == 16 && guid.bytes().any(|byte| byte != b'0') {
        return Ok(format!("softnic0, GUID {guid}"));
    }
    Err(format!("no GUID in {line:?}"))
}

fn describe(launcher: &Path, method: &str) -> Outcome {
    let text = run(&mut behind(launcher, method, &["ibv_devinfo", "-v"]), "ibv_devinfo", LIMIT)?;
    for wanted in DESCRIPTION {
        if !text.contains(wanted) {
            return Err(format!("{wanted:?} is missing in\n{text}"));
        }
    }
    Ok(format!("{} lines", text.lines().count()))
}

/// It prints its device, and then waits for events until it is ended.
fn watch(launcher: &Path, method: &str) -> Outcome {
    let mut command = behind(launcher, method, &["stdbuf", "-oL", "ibv_asyncwatch", "-d", "softnic0"]);
    let mut watch = Running::start(&mut command, "ibv_asyncwatch")?;
    watch.wait_for("async event FD", LIMIT)?;
    Ok(watch.text().lines().next().unwrap_or_default().to_owned())
}
