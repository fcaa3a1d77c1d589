//! Collects the parts of a bundle: settings and policy, the examination of the host, the answers of a running
//! daemon, facts of system and devices, the journal. What cannot be had is a part that is absent, with the
//! reason.

use std::path::Path;

use serde_json::Value;

use super::address_map::AddressMap;
use super::redactor::{REMOVED, Redactor};
use super::{BundleError, RawBundle, RawPart, ReportBundle};
use crate::doctor::SystemFiles;
use crate::policy_file::{self, Inputs};
use crate::service_unit;
use crate::settings::{Loaded, PolicySource, PolicyText, Settings};

/// The most bytes of a settings file and of the token file that are read.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
const TOKEN_BYTES_MAX: u64 = 4096;
/// The answers of a running daemon: the name of the part, and the path of the request.
const ANSWERS: [(&str, &str); 5] = [
    ("daemon/status.json", "/v1/status"),
    ("daemon/state.json", "/v1/state"),
    ("daemon/history.json", "/v1/history"),
    ("daemon/flows.json", "/v1/flows"),
    ("daemon/rules.json", "/v1/rules"),
];
/// Parameters of the kernel that decide about cores, memory, timers and the IOMMU. Values of others are not
/// included: they may be secrets.
const PARAMETERS: [&str; 26] = [
    "amd_iommu",
    "amd_pstate",
    "clocksource",
    "cpuidle.governor",
    "cpuidle.off",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "mitigations",
    "nohz",
    "nohz_full",
    "nosmt",
    "numa_balancing",
    "pcie_aspm",
    "processor.max_cstate",
    "rcu_nocbs",
    "skew_tick",
    "transparent_hugepage",
    "tsc",
];
/// Files of an RDMA device, below its folder.
const DEVICE_FILES: [&str; 9] = [
    "fw_ver",
    "hca_type",
    "board_id",
    "node_type",
    "device/vendor",
    "device/device",
    "device/numa_node",
    "device/current_link_speed",
    "device/current_link_width",
];
/// Files of a port of a device, and of a network interface.
const PORT_FILES: [&str; 4] = ["state", "phys_state", "rate", "link_layer"];
const INTERFACE_FILES: [&str; 6] = ["flags", "mtu", "operstate", "speed", "address", "device/numa_node"];
/// Files of the host with their names in the bundle.
const HOST_FILES: [(&str, &str); 8] = [
    ("system/meminfo.txt", "/proc/meminfo"),
    ("system/cpus-online.txt", "/sys/devices/system/cpu/online"),
    ("system/cpus-isolated.txt", "/sys/devices/system/cpu/isolated"),
    ("system/cpus-nohz-full.txt", "/sys/devices/system/cpu/nohz_full"),
    ("system/numa-nodes.txt", "/sys/devices/system/node/online"),
    ("system/kernel.txt", "/proc/sys/kernel/osrelease"),
    ("system/limits.txt", "/proc/self/limits"),
    ("system/swaps.txt", "/proc/swaps"),
];

/// The answer to a request of a running daemon, or why there is none.
type DaemonAnswer<'a, T> = &'a dyn Fn(&str) -> Result<T, String>;

/// Everything that parts are collected from.
pub(crate) struct BundleSources<'a> {
    pub(crate) files: &'a SystemFiles,
    /// The settings file of the command line.
    pub(crate) settings_file: Option<&'a Path>,
    /// The settings, or the text of their problems.
    pub(crate) loaded: Result<&'a Loaded, String>,
    /// The examination of the host as JSON, or why there is none.
    pub(crate) doctor: Result<Value, String>,
    /// Asks the local API of the daemon.
    pub(crate) api: DaemonAnswer<'a, Value>,
    /// Asks the pages of the daemon for monitoring, with this token.
    pub(crate) metrics: DaemonAnswer<'a, String>,
    pub(crate) is_redacted: bool,
}

/// Collects and redacts the parts.
///
/// # Errors
/// The system gives no random numbers.
pub(crate) fn collect(sources: &BundleSources<'_>) -> Result<ReportBundle, BundleError> {
    let mut redactor = match sources.is_redacted {
        true => Redactor::new(AddressMap::random().map_err(BundleError::Random)?),
        false => Redactor::of_secrets(),
    };
    let settings = sources.loaded.as_ref().ok().map(|loaded| &loaded.settings);
    let token = settings.and_then(token);
    token.iter().for_each(|token| redactor.add_secret(token));
    if let Ok(Some(name)) = sources.files.text("/proc/sys/kernel/hostname") {
        redactor.add_name(&name, "this-host");
    }
    for (number, host) in (1..).zip(settings.iter().flat_map(|settings| &settings.http.hosts)) {
        redactor.add_name(host, &format!("host-{number}"));
    }
    let mut parts = Vec::new();
    parts.push(("version.txt".to_owned(), RawPart::Text(version(sources.files))));
    of_settings(sources, &mut parts);
    let doctor = sources.doctor.clone().map_or_else(RawPart::Absent, RawPart::Json);
    parts.push(("doctor.json".to_owned(), doctor));
    of_daemon(sources, token.as_deref().unwrap_or_default(), &mut parts);
    of_host(sources.files, &mut parts);
    parts.push((
        "system/unit.txt".to_owned(),
        service_unit::text().map_or_else(RawPart::Absent, RawPart::Text),
    ));
    parts.push((
        "journal.txt".to_owned(),
        service_unit::journal().map_or_else(RawPart::Absent, RawPart::Text),
    ));
    Ok(ReportBundle::of(RawBundle { parts, redactor }))
}

/// The token of the pages for monitoring, which must not be in any part.
fn token(settings: &Settings) -> Option<String> {
    let path = &settings.http.token_file;
    let bytes = (!path.as_os_str().is_empty()).then(|| regular_file::read(path, TOKEN_BYTES_MAX).ok())??;
    Some(String::from_utf8(bytes).ok()?.trim().to_owned())
}

/// The version of this program, its build, and the libraries that it has loaded.
fn version(files: &SystemFiles) -> String {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let allocator = if cfg!(feature = "jemalloc") { "jemalloc" } else { "system" };
    let mut text = format!(
        "steerd {}\nbuild {build}, {}, allocator {allocator}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    let maps = files.text("/proc/self/maps").ok().flatten().unwrap_or_default();
    let mut libraries: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.contains(".so") && path.starts_with('/'))
        .collect();
    libraries.sort_unstable();
    libraries.dedup();
    for library in libraries {
        // The name of the file ends with the release of rdma-core.
        text += &format!("library {library}\n");
    }
    text
}

/// Settings, variables of the environment, and the policy.
fn of_settings(sources: &BundleSources<'_>, parts: &mut Vec<(String, RawPart)>) {
    let file = match sources.settings_file {
        None => RawPart::Absent("no --config: the built-in settings".to_owned()),
        Some(path) => match regular_file::read(path, SETTINGS_BYTES_MAX) {
            Ok(bytes) => RawPart::Settings(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => RawPart::Absent(format!("{}: {error}", path.display())),
        },
    };
    parts.push(("settings.toml".to_owned(), file));
    parts.push(("environment.txt".to_owned(), RawPart::Text(environment(std::env::vars_os()))));
    match &sources.loaded {
        Err(problems) => {
            parts.push(("settings-problems.txt".to_owned(), RawPart::Text(problems.clone())));
            parts.push(("policy".to_owned(), RawPart::Absent("the settings have problems".to_owned())));
        }
        Ok(loaded) => match policy_file::load(&loaded.policy) {
            Ok(read) => parts.push(("policy".to_owned(), RawPart::Policy(Box::new((*read.inputs).clone())))),
            Err(problems) => {
                let lines: Vec<String> = problems.list.iter().map(ToString::to_string).collect();
                parts.push(("policy-problems.txt".to_owned(), RawPart::Text(lines.join("\n") + "\n")));
                parts.push(("policy".to_owned(), main_text(&loaded.policy)));
            }
        },
    }
}

/// The text of a policy with problems, without the files that it names.
fn main_text(source: &PolicySource) -> RawPart {
    let text = match &source.text {
        PolicyText::File(path) => policy::read_policy(path).map(|source| source.text.to_string()),
        PolicyText::BuiltIn { text, .. } => Ok((*text).to_owned()),
        PolicyText::Read(source) => Ok(source.text.to_string()),
    };
    match text {
        Ok(text) => RawPart::Policy(Box::new(Inputs {
            text: Some(text),
            variables: source.variables.clone(),
            ..Inputs::default()
        })),
        Err(_) => RawPart::Absent("it cannot be read; see policy-problems.txt".to_owned()),
    }
}

/// The variables by which settings are given. Values of policy variables may be parts of addresses.
fn environment(variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> String {
    let mut lines: Vec<String> = variables
        .filter_map(|(name, value)| {
            let name =
                name.into_string().ok().filter(|name| name.to_ascii_uppercase().starts_with("STEERD_"))?;
            let is_part = name.to_ascii_uppercase().starts_with("STEERD_POLICY__VARIABLES");
            let value = if is_part { REMOVED.to_owned() } else { value.to_string_lossy().into_owned() };
            Some(format!("{name}={value}\n"))
        })
        .collect();
    lines.sort();
    lines.concat()
}

/// The answers of a running daemon.
fn of_daemon(sources: &BundleSources<'_>, token: &str, parts: &mut Vec<(String, RawPart)>) {
    for (name, path) in ANSWERS {
        let answer = (sources.api)(path).map_or_else(RawPart::Absent, RawPart::Json);
        let failure = match &answer {
            RawPart::Absent(why) if name == ANSWERS[0].0 => Some(why.clone()),
            _ => None,
        };
        parts.push((name.to_owned(), answer));
        if let Some(why) = failure {
            // The others would fail in the same way, each after its time.
            let others = ANSWERS.iter().skip(1).map(|(name, _)| *name);
            parts.extend(others.map(|name| (name.to_owned(), RawPart::Absent(why.clone()))));
            break;
        }
    }
    let metrics = (sources.metrics)(token).map_or_else(RawPart::Absent, RawPart::Text);
    parts.push(("daemon/metrics.txt".to_owned(), metrics));
}

/// Facts of the host: kernel, memory, processors, devices, interfaces.
fn of_host(files: &SystemFiles, parts: &mut Vec<(String, RawPart)>) {
    for (name, path) in HOST_FILES {
        let text = match files.text(path) {
            Ok(Some(text)) => RawPart::Text(text + "\n"),
            Ok(None) => RawPart::Absent(format!("{path} is not there")),
            Err(unread) => RawPart::Absent(format!("{}: {} ({})", unread.path, unread.why, unread.remedy)),
        };
        parts.push((name.to_owned(), text));
    }
    let command_line = match files.text("/proc/cmdline") {
        Ok(Some(text)) => RawPart::Text(parameters(&text) + "\n"),
        Ok(None) => RawPart::Absent("/proc/cmdline is not there".to_owned()),
        Err(unread) => RawPart::Absent(format!("{}: {}", unread.path, unread.why)),
    };
    parts.push(("system/cmdline.txt".to_owned(), command_line));
    parts.push(("system/rdma-devices.txt".to_owned(), RawPart::Text(rdma_devices(files))));
    parts.push(("system/interfaces.txt".to_owned(), RawPart::Text(interfaces(files))));
}

/// The command line of the kernel with the values of [`PARAMETERS`] alone.
fn parameters(command_line: &str) -> String {
    let parameter = |word: &str| {
        let (name, value) = word.split_once('=')?;
        (!PARAMETERS.contains(&name) && !value.is_empty()).then(|| format!("{name}={REMOVED}"))
    };
    let words = command_line.split_whitespace();
    words.map(|word| parameter(word).unwrap_or_else(|| word.to_owned())).collect::<Vec<_>>().join(" ")
}

/// A line for each file that is there; a file that cannot be read has its error in place of its text.
fn lines(files: &SystemFiles, folder: &str, names: &[&str]) -> String {
    let line = |name: &&str| match files.text(&format!("{folder}/{name}")) {
        Ok(Some(text)) => Some(format!("{name}: {}\n", text.lines().next().unwrap_or_default())),
        Ok(None) => None,
        Err(unread) => Some(format!("{name}: not read: {}\n", unread.why)),
    };
    names.iter().filter_map(line).collect()
}

fn names_in(files: &SystemFiles, folder: &str) -> Vec<String> {
    files.names(folder).ok().flatten().unwrap_or_default()
}

/// The driver of a device by its link, with the version of the module where it has one.
fn driver(files: &SystemFiles, device: &str) -> String {
    let Some(name) = files.link_name(&format!("{device}/driver")).ok().flatten() else {
        return String::new();
    };
    let version = files.text(&format!("/sys/module/{name}/version")).ok().flatten();
    format!("driver: {name} {}\n", version.as_deref().unwrap_or("(of the kernel)"))
}

fn rdma_devices(files: &SystemFiles) -> String {
    const FOLDER: &str = "/sys/class/infiniband";
    let mut text = String::new();
    for device in names_in(files, FOLDER) {
        let folder = format!("{FOLDER}/{device}");
        text += &format!("[{device}]\n{}", driver(files, &format!("{folder}/device")));
        text += &lines(files, &folder, &DEVICE_FILES);
        for port in names_in(files, &format!("{folder}/ports")) {
            let folder = format!("{folder}/ports/{port}");
            text += &format!("[{device} port {port}]\n{}", lines(files, &folder, &PORT_FILES));
            let counters = names_in(files, &format!("{folder}/hw_counters"));
            let counters: Vec<&str> = counters.iter().map(String::as_str).collect();
            text += &lines(files, &format!("{folder}/hw_counters"), &counters);
        }
    }
    if text.is_empty() { "no RDMA device\n".to_owned() } else { text }
}

fn interfaces(files: &SystemFiles) -> String {
    const FOLDER: &str = "/sys/class/net";
    let of_interface = |name: &String| {
        let folder = format!("{FOLDER}/{name}");
        let driver = driver(files, &format!("{folder}/device"));
        format!("[{name}]\n{driver}{}", lines(files, &folder, &INTERFACE_FILES))
    };
    names_in(files, FOLDER).iter().map(of_interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_keeps_known_values_only() {
        let line = "BOOT_IMAGE=/vmlinuz root=UUID=0a1b ro isolcpus=2-3 ip=10.1.2.3 rd.luks.key=secret quiet";
        assert_eq!(
            parameters(line),
            "BOOT_IMAGE=removed root=removed ro isolcpus=2-3 ip=removed rd.luks.key=removed quiet"
        );
    }

    #[test]
    fn variables_of_policies_have_no_values() {
        let variable = |name: &str, value: &str| (name.into(), value.into());
        let all = [
            variable("STEERD_WORKERS__CORES", "[2, 3]"),
            variable("STEERD_POLICY__VARIABLES__SITE", "10.77"),
            variable("STEERD_policy__variables__net", "10.78"),
            variable("HOME", "/root"),
        ];
        assert_eq!(
            environment(all.into_iter()),
            "STEERD_POLICY__VARIABLES__SITE=removed\nSTEERD_WORKERS__CORES=[2, 3]\n\
             STEERD_policy__variables__net=removed\n"
        );
    }
}
