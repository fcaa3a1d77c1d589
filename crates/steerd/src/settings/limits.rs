//! Limits on the settings' numbers, and constraints between settings.
//!
//! Checked on the merged settings; each problem names the layer that set the value. Whether a core or a port
//! exists is checked when the daemon starts.

use std::error::Error as _;

use device_model::{BaseModel, DeviceModel, LoadError};
use nic_filters::FilterModel;
use softnic::{FaultPlan, PORT_MTU_BYTES};
use wire::WireConfig;

use super::layers::Layers;
use super::types::{Cores, FrameBytes, Provider, Settings, SoftNic, SoftNicMode, SoftNicPort};
use super::{Origin, Problem, log_filter};
use crate::cli::NicFilterUse;

/// No known device has indirection tables for more queues.
const MAX_WORKERS: usize = 1024;
const MAX_CORE: usize = 4095;
const MAX_PORTS: usize = 8;
/// Soft NICs beside the one that receives.
const MAX_OTHERS: usize = 8;
const MAX_HOSTS: usize = 64;
const MAX_ADMINS: usize = 64;
const FRAMES: std::ops::RangeInclusive<u32> = 64..=1 << 20;
/// The smallest holds any Ethernet header chain, the largest the largest IP packet.
const FRAME_BYTES: std::ops::RangeInclusive<u32> = 128..=65_536;
/// Longer than a second is as good as "spin".
const IDLE_US: std::ops::RangeInclusive<u32> = 0..=1_000_000;
const BATCH: std::ops::RangeInclusive<usize> = 1..=256;
/// A busy machine may keep a thread waiting for less; a limit of more than an hour would be of no use.
const STALL_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

pub(super) fn check(settings: &Settings, layers: &Layers, problems: &mut Vec<Problem>) {
    let mut report = |key: &str, message: String, hint: Option<&str>| {
        let origin = layers.origin(key).map_or_else(|| "settings".into(), Origin::to_string);
        let hint = hint.map(Into::into);
        problems.push(Problem { origin, key: key.into(), message, hint, is_unreadable: false });
    };
    check_device(settings, &mut report);
    check_workers(settings, &mut report);
    check_softnic(settings, &mut report);
    check_http(settings, &mut report);
    check_api(settings, &mut report);
    if settings.policy.file.as_os_str().is_empty() {
        report("policy.file", "must name a file".into(), None);
    }
    if let Err(error) = log_filter::check_filter(&settings.log.filter) {
        report("log.filter", error, Some("e.g. \"info\" or \"steerd=debug,info\""));
    }
    if !STALL_MS.contains(&settings.health.stall_ms) {
        report("health.stall_ms", out_of_range(settings.health.stall_ms, STALL_MS), None);
    }
}

fn check_http(settings: &Settings, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let is_name =
        |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    let hosts = &settings.http.hosts;
    if hosts.len() > MAX_HOSTS {
        report("http.hosts", format!("at most {MAX_HOSTS} names are possible"), None);
    }
    if let Some(host) = hosts.iter().find(|host| !is_name(host)) {
        let hint = "without scheme, port and path, e.g. \"node7.example.com\"";
        report("http.hosts", format!("\"{host}\" is not a host name"), Some(hint));
    }
}

fn check_api(settings: &Settings, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let api = &settings.api;
    if api.socket.as_os_str().is_empty() {
        report("api.socket", "must not be empty".into(), Some("api.enabled = false for no socket"));
    }
    if api.admins.len() > MAX_ADMINS {
        report("api.admins", format!("at most {MAX_ADMINS} user ids are possible"), None);
    }
}

fn check_device(settings: &Settings, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let device = &settings.device;
    if device.name.is_empty() {
        report("device.name", "must not be empty".into(), Some("\"auto\" takes the only device there is"));
    }
    if device.model != "auto"
        && let Err(error) = DeviceModel::named_or_file(&device.model)
    {
        let auto = "\"auto\" chooses the model by the device's driver";
        let (message, hint) = match (&error, error.source()) {
            (LoadError::UnknownName { name }, _) => {
                let known = DeviceModel::NAMES.map(|name| format!("{name:?}")).join(", ");
                let expected = format!("expected \"auto\", {known}, or a file like ./nic.toml");
                (format!("{name:?} is no model, {expected}"), Some(auto))
            }
            (_, Some(source)) => (format!("{error}: {source}"), Some(auto)),
            // With a hint of its own.
            (_, None) => (error.to_string(), None),
        };
        report("device.model", message, hint);
    }
    if device.ports.is_empty() || device.ports.len() > MAX_PORTS {
        report("device.ports", format!("must list 1 to {MAX_PORTS} ports"), Some("ports count from 1"));
    }
    if device.ports.contains(&0) {
        report("device.ports", "there is no port 0".into(), Some("ports count from 1"));
    }
    if has_repetition(&device.ports) {
        report("device.ports", "names a port twice".into(), None);
    }
}

fn check_workers(settings: &Settings, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let workers = &settings.workers;
    let count = match &workers.cores {
        Cores::Auto => 1,
        Cores::Count(count) => *count,
        Cores::List(cores) => cores.len(),
    };
    if count == 0 || count > MAX_WORKERS {
        report("workers.cores", format!("1 to {MAX_WORKERS} workers are possible, not {count}"), None);
    }
    if let Cores::List(cores) = &workers.cores {
        if has_repetition(cores) {
            report("workers.cores", "names a core twice".into(), Some("a worker owns its core"));
        }
        if let Some(core) = cores.iter().find(|core| **core > MAX_CORE) {
            report("workers.cores", format!("core {core} is beyond {MAX_CORE}"), None);
        }
    }
    if !FRAMES.contains(&workers.frames) {
        report("workers.frames", out_of_range(workers.frames, FRAMES), None);
    }
    if let FrameBytes::Bytes(frame_bytes) = workers.frame_bytes
        && !FRAME_BYTES.contains(&frame_bytes)
    {
        report("workers.frame_bytes", out_of_range(frame_bytes, FRAME_BYTES), Some("\"auto\": by the MTUs"));
    }
    if !BATCH.contains(&workers.batch) {
        report("workers.batch", out_of_range(workers.batch, BATCH), None);
    }
    if !IDLE_US.contains(&workers.idle_us) {
        report(
            "workers.idle_us",
            out_of_range(workers.idle_us, IDLE_US),
            Some("idle = \"spin\" never sleeps"),
        );
    }
    if workers.pages.is_empty() {
        report("workers.pages", "must list at least one kind".into(), Some("\"plain\" always works"));
    }
}

fn check_softnic(settings: &Settings, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let nic = &settings.softnic;
    if nic.ports.len() > MAX_PORTS {
        report("softnic.ports", format!("at most {MAX_PORTS} ports are possible"), None);
    }
    if !nic.ports.is_empty() && nic.name.is_empty() {
        report("softnic.name", "must not be empty".into(), None);
    }
    check_engine_threads(nic, report);
    check_mtu("softnic.ports", "", &nic.ports, report);
    check_filters(nic, report);
    check_other_softnics(nic, &settings.device.name, report);
    if let FrameBytes::Bytes(frame_bytes) = settings.workers.frame_bytes
        && frame_bytes < *FRAME_BYTES.end()
        && nic.takes_merged()
    {
        let message = format!(
            "merged = \"whole\" needs receive buffers for the longest merged frame, and workers.frame_bytes is {frame_bytes}"
        );
        let hint = "workers.frame_bytes = \"auto\", or merged = \"split\"";
        report("softnic.ports", message, Some(hint));
    }
    if let Err(error) = nic.faults.parse::<FaultPlan>() {
        report("softnic.faults", error.to_string(), None);
    }
    match nic.personality.parse::<softnic::Personality>() {
        Ok(personality) => check_provider(nic, personality.model().personality, report),
        Err(error) => report("softnic.personality", error.to_string(), None),
    }
    let chosen = settings.chooses_soft();
    if chosen && settings.device.model != "auto" {
        let hint = "the soft NIC's model is softnic.personality";
        report("device.model", "is for a real device, and the soft NIC is chosen".into(), Some(hint));
    }
    if chosen
        && let Some(port) = settings.device.ports.iter().find(|port| usize::from(**port) > nic.ports.len())
    {
        let message = format!("the soft NIC has {} ports, none of them number {port}", nic.ports.len());
        report("device.ports", message, Some("add [[softnic.ports]]"));
    }
}

/// Checks the settings of the filters of NICs.
fn check_filters(nic: &SoftNic, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    for (port, number) in nic.ports.iter().zip(1..) {
        let is_used = port.nic_filters == NicFilterUse::Drop;
        if is_used && !matches!(port.wire, WireConfig::AfXdp(_)) {
            let message = format!("port {number}: nic_filters = \"drop\" is for the wire af_xdp");
            report("softnic.ports", message, Some("wire.kind = \"af_xdp\", or leave nic_filters out"));
        }
        let Some(model) = &port.filter_model else { continue };
        if !is_used {
            let message = format!("port {number}: filter_model is for nic_filters = \"drop\"");
            report("softnic.ports", message, Some("add nic_filters = \"drop\", or leave filter_model out"));
        }
        if let Err(error) = FilterModel::named_or_file(model) {
            let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
            report("softnic.ports", format!("port {number}: filter_model: {error}{source}"), None);
        }
    }
    for other in &nic.others {
        if other.ports.iter().any(|port| port.nic_filters != NicFilterUse::Off || port.filter_model.is_some())
        {
            let message = format!("{}: nic_filters is for ports that receive", other.name);
            report("softnic.others", message, Some("leave nic_filters and filter_model out"));
        }
    }
}

/// Refuses settings that the model below rdma-core's mlx5 provider does not have.
fn check_provider(nic: &SoftNic, base: BaseModel, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let key = "softnic.provider";
    if nic.provider != Provider::Mlx5 {
        return;
    }
    if nic.flow_rate > 0 {
        let hint = "softnic.provider = \"softnic\"";
        report("softnic.flow_rate", "is not possible below rdma-core's provider".into(), Some(hint));
    }
    if base != BaseModel::Mlx5 {
        let message = format!("\"mlx5\" is for the personality \"mlx5\", not \"{}\"", nic.personality);
        report(key, message, Some("softnic.personality = \"mlx5\""));
    }
    if nic.mode != SoftNicMode::Dedicated {
        let hint = "softnic.mode = \"dedicated\"";
        report(key, "\"mlx5\" needs an engine thread of its own".into(), Some(hint));
    }
    if nic.ports.len() > 1 {
        let message = format!("\"mlx5\" has one port, and [[softnic.ports]] has {}", nic.ports.len());
        report(key, message, Some("softnic.others for ports to send by"));
    }
}

fn check_engine_threads(nic: &SoftNic, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let keys = [
        ("softnic.core", nic.core.is_some()),
        ("softnic.cores", nic.cores.is_some()),
        ("softnic.threads", nic.threads.is_some()),
    ];
    let mut given = keys.into_iter().filter_map(|(key, is_given)| is_given.then_some(key));
    let Some(key) = given.next() else { return };
    if nic.mode == SoftNicMode::Inline {
        let hint = "in this mode the workers run the engine: leave it out, or mode = \"dedicated\"";
        report(key, "is for mode = \"dedicated\"".into(), Some(hint));
    }
    if let Some(other) = given.next() {
        let hint = "cores = [1] is the same as core = 1; threads are not pinned to cores";
        report(other, format!("cannot be combined with {key}"), Some(hint));
        return;
    }
    let count = nic.threads.or(nic.cores.as_ref().map(Vec::len)).unwrap_or(1);
    // Before the list of threads is made, which may not fit into memory.
    if !(1..=MAX_PORTS).contains(&count) {
        let message = format!("1 to {MAX_PORTS} engine threads are possible, not {count}");
        report(key, message, Some("leave it out for one"));
        return;
    }
    let threads = nic.engine_threads();
    if nic.cores.as_deref().is_some_and(has_repetition) {
        report(key, "names a core twice".into(), Some("one thread serves several ports as well"));
    }
    if let Some(core) = threads.iter().flatten().find(|core| **core > MAX_CORE) {
        report(key, format!("core {core} is beyond {MAX_CORE}"), None);
    }
    if !nic.ports.is_empty() && count > nic.ports.len() {
        let message = format!(
            "{count} engine threads for {} of [[softnic.ports]]: each port is served by one thread",
            nic.ports.len()
        );
        report(key, message, Some("as many threads as ports at most, or more ports"));
    }
}

/// `of`: what messages begin with.
fn check_mtu(key: &str, of: &str, ports: &[SoftNicPort], report: &mut dyn FnMut(&str, String, Option<&str>)) {
    for mtu_bytes in ports.iter().filter_map(|port| port.mtu_bytes) {
        if !PORT_MTU_BYTES.contains(&mtu_bytes) {
            report(key, format!("{of}mtu_bytes {}", out_of_range(mtu_bytes, PORT_MTU_BYTES)), None);
        }
    }
}

fn check_other_softnics(nic: &SoftNic, device: &str, report: &mut dyn FnMut(&str, String, Option<&str>)) {
    let key = "softnic.others";
    if nic.others.len() > MAX_OTHERS {
        report(key, format!("at most {MAX_OTHERS} further soft NICs are possible"), None);
    }
    let mut names = vec![nic.name.as_str()];
    for other in &nic.others {
        if other.name.is_empty() || names.contains(&other.name.as_str()) {
            let hint = "each soft NIC needs a name of its own";
            report(key, format!("the name \"{}\" is empty or in use", other.name), Some(hint));
        }
        if other.name == device && other.name != nic.name {
            let hint = "workers receive from [[softnic.ports]] only; give it another name";
            report(
                key,
                format!("\"{device}\" is also device.name, and a further soft NIC only sends"),
                Some(hint),
            );
        }
        names.push(&other.name);
        if other.ports.is_empty() || other.ports.len() > MAX_PORTS {
            report(key, format!("{}: 1 to {MAX_PORTS} ports are possible", other.name), None);
        }
        check_mtu(key, &format!("{}: ", other.name), &other.ports, report);
    }
}

fn out_of_range<T: std::fmt::Display>(value: T, range: std::ops::RangeInclusive<T>) -> String {
    format!("{value} is out of range, {} to {} are possible", range.start(), range.end())
}

fn has_repetition<T: PartialEq>(items: &[T]) -> bool {
    items.iter().enumerate().any(|(i, item)| items[..i].contains(item))
}
