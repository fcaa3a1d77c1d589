//! The small tools of ibverbs-utils, by every method: the device is listed, described, and watched. And a
//! client that opens libibverbs itself: not by the preload method, which is only for programs that are linked
//! with it.

use std::path::Path;
use std::time::Duration;

use crate::method::{MLX5, Method, PLUGIN, PRELOAD};
use crate::process::{Running, run};
use crate::{Case, Outcome};

const LIMIT: Duration = Duration::from_secs(30);

/// The lines that the description of a device must have by every method.
const DESCRIPTION: [&str; 4] = [
    "state:\t\t\tPORT_ACTIVE",
    "link_layer:\t\tEthernet",
    "rx_hash_function:\t\t\t\t0x1",
    "SUPPORT_RAW_PACKET",
];
/// The lines that this crate's provider adds, and those that the model of a ConnectX-5 adds.
const OWN_DESCRIPTION: [&str; 2] = ["hca_id:\tsoftnic0", "fw_ver:\t\t\t\tsoftnic"];
const MLX5_DESCRIPTION: [&str; 3] =
    ["hca_id:\tmlx5_0", "vendor_id:\t\t\t0x02c9", "vendor_part_id:\t\t\t4119"];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in [PLUGIN, PRELOAD, MLX5] {
        let mut add = |tool: &str, run: fn(&Path, Method) -> Outcome| {
            let name = format!("{tool} ({})", method.name);
            cases.push(Case::new(name, move |launcher| run(launcher, method)));
        };
        add("ibv_devices", list);
        add("ibv_devinfo -v", describe);
        add("ibv_asyncwatch", watch);
        if method.name != PRELOAD.name {
            add("dlopen and dlsym from ctypes", open_at_run_time);
        }
    }
    cases
}

/// Lists the devices, opens the first and allocates a protection domain, all by dlsym(3) on the library's
/// handle.
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

fn open_at_run_time(launcher: &Path, method: Method) -> Outcome {
    let mut command = method.exec(launcher, "null");
    let text = run(command.args(["/usr/bin/python3", "-c", CTYPES_CLIENT]), "python3", LIMIT)?;
    match text.lines().collect::<Vec<_>>()[..] {
        [devices, "opened"] if devices.strip_prefix("devices: ") == Some(method.device) => {
            Ok(format!("{} listed once and opened", method.device))
        }
        _ => Err(format!("no {}, or not once, in\n{text}", method.device)),
    }
}

fn list(launcher: &Path, method: Method) -> Outcome {
    let device = method.device;
    let text = run(method.exec(launcher, "null").arg("ibv_devices"), "ibv_devices", LIMIT)?;
    let line = text.lines().find(|line| line.contains(device)).ok_or(format!("no {device} in\n{text}"))?;
    let guid = line.split_whitespace().nth(1).unwrap_or_default();
    if guid.len() == 16 && guid.bytes().any(|byte| byte != b'0') {
        return Ok(format!("{device}, GUID {guid}"));
    }
    Err(format!("no GUID in {line:?}"))
}

fn describe(launcher: &Path, method: Method) -> Outcome {
    let text = run(method.exec(launcher, "null").args(["ibv_devinfo", "-v"]), "ibv_devinfo", LIMIT)?;
    let own: &[&str] = if method.name == MLX5.name { &MLX5_DESCRIPTION } else { &OWN_DESCRIPTION };
    let wanted: Vec<_> = DESCRIPTION.iter().chain(own).collect();
    if let Some(missing) = wanted.iter().find(|wanted| !text.contains(**wanted)) {
        return Err(format!("{missing:?} is missing in\n{text}"));
    }
    Ok(format!("{0} of {0} properties, {1} lines", wanted.len(), text.lines().count()))
}

/// Runs a program that prints its device, and then waits for events until it is ended.
fn watch(launcher: &Path, method: Method) -> Outcome {
    let mut command = method.exec(launcher, "null");
    command.args(["stdbuf", "-oL", "ibv_asyncwatch", "-d", method.device]);
    let mut watch = Running::start(&mut command, "ibv_asyncwatch")?;
    watch.wait_for("async event FD", LIMIT)?;
    Ok(watch.text().lines().next().unwrap_or_default().to_owned())
}
