//! Limits on the settings' numbers, and constraints between settings.
//!
//! Checked on the merged settings; each problem names the layer that set the value. Whether a core or a port
//! exists is checked when the daemon starts.

use std::error::Error as _;

use device_model::{BaseModel, DeviceModel, LoadError};
use nic_filters::FilterModel;
use policy::Diagnostic;
use softnic::{FaultPlan, PORT_MTU_BYTES};
use wire::WireConfig;

use super::layers::Layers;
use super::types::{Cores, FrameBytes, IdleMode, Provider, Settings, SoftNic, SoftNicMode, SoftNicPort};
use super::{Problems, log_filter};
use crate::cli::NicFilterUse;
use crate::message::Hinted;

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

/// The remedy for workers that cannot be.
const AUTO_CORES: &str = "\"auto\": one worker for each physical core";

/// Reports a value: its key, of which a part can be a place in a list, the problem, and a remedy.
type Report<'r> = dyn FnMut(&str, String, Option<&str>) + 'r;

type Check = fn(&Settings, &mut Report<'_>);

/// The checks, each with the sections that it is about.
const CHECKS: [(&[&str], Check); 8] = [
    (&["device"], check_device),
    (&["workers"], check_workers),
    (&["softnic", "workers", "device"], check_softnic),
    (&["http"], check_http),
    (&["api"], check_api),
    (&["policy"], check_policy),
    (&["log"], check_log),
    (&["health"], check_health),
];

/// Reports values that are not possible. Sections with entries that were left out are not checked.
pub(super) fn check(settings: &Settings, layers: &Layers, problems: &mut Problems) {
    let mut report = |key: &str, message: String, hint: Option<&str>| {
        let named: Vec<&str> = key.split('.').take_while(|part| part.parse::<usize>().is_err()).collect();
        let Hinted { message, hint: own } = Hinted::of(&message);
        let problem = layers.place(key).error(format!("{}: {message}", named.join(".")), "this value");
        problems.push(hint.map(str::to_owned).or(own).into_iter().fold(problem, Diagnostic::hint));
    };
    let complete = CHECKS.iter().filter(|(sections, _)| layers.are_complete(sections));
    complete.for_each(|(_, check)| check(settings, &mut report));
}

/// The limits of a number.
pub(super) fn range_of(key: &str) -> Option<(i64, i64)> {
    let of_u32 = |range: std::ops::RangeInclusive<u32>| (i64::from(*range.start()), i64::from(*range.end()));
    match key {
        "workers.frames" => Some(of_u32(FRAMES)),
        "workers.frame_bytes" => Some(of_u32(FRAME_BYTES)),
        "workers.idle_us" => Some(of_u32(IDLE_US)),
        "workers.spare" => Some((0, MAX_WORKERS as i64)),
        "workers.batch" => Some((*BATCH.start() as i64, *BATCH.end() as i64)),
        "health.stall_ms" => Some((STALL_MS.start().cast_signed(), STALL_MS.end().cast_signed())),
        "softnic.threads" => Some((1, MAX_PORTS as i64)),
        "softnic.core" | "softnic.cores" | "workers.cores" => Some((0, MAX_CORE as i64)),
        _ => None,
    }
}

fn check_policy(settings: &Settings, report: &mut Report<'_>) {
    if settings.policy.file.as_os_str().is_empty() {
        report("policy.file", "must name a file".into(), Some("a path, relative to the settings file"));
    }
}

fn check_log(settings: &Settings, report: &mut Report<'_>) {
    if let Err(error) = log_filter::check_filter(&settings.log.filter) {
        report("log.filter", error, Some("e.g. \"info\" or \"steerd=debug,info\""));
    }
}

fn check_health(settings: &Settings, report: &mut Report<'_>) {
    if !STALL_MS.contains(&settings.health.stall_ms) {
        let (message, hint) = out_of_range(settings.health.stall_ms, STALL_MS);
        report("health.stall_ms", message, Some(&hint));
    }
}

fn check_http(settings: &Settings, report: &mut Report<'_>) {
    let is_name =
        |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    let hosts = &settings.http.hosts;
    if hosts.len() > MAX_HOSTS {
        report("http.hosts", format!("at most {MAX_HOSTS} names are possible"), Some("list fewer"));
    }
    if let Some(host) = hosts.iter().find(|host| !is_name(host)) {
        let hint = "without scheme, port and path, e.g. \"node7.example.com\"";
        report("http.hosts", format!("\"{host}\" is not a host name"), Some(hint));
    }
}

fn check_api(settings: &Settings, report: &mut Report<'_>) {
    let api = &settings.api;
    if api.socket.as_os_str().is_empty() {
        report("api.socket", "must not be empty".into(), Some("api.enabled = false for no socket"));
    }
    if api.admins.len() > MAX_ADMINS {
        report("api.admins", format!("at most {MAX_ADMINS} user ids are possible"), Some("list fewer"));
    }
}

fn check_device(settings: &Settings, report: &mut Report<'_>) {
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
        report("device.ports", "names a port twice".into(), Some("list each port once"));
    }
}

fn check_workers(settings: &Settings, report: &mut Report<'_>) {
    let workers = &settings.workers;
    let count = match &workers.cores {
        Cores::Auto => 1,
        Cores::Count(count) => *count,
        Cores::List(cores) => cores.len(),
    };
    if count == 0 || count > MAX_WORKERS {
        report(
            "workers.cores",
            format!("1 to {MAX_WORKERS} workers are possible, not {count}"),
            Some(AUTO_CORES),
        );
    }
    let most_spare = MAX_WORKERS.saturating_sub(count);
    if workers.spare > most_spare {
        let message =
            format!("{count} workers leave room for {most_spare} spare ones, not {}", workers.spare);
        report("workers.spare", message, Some("all workers together are at most as many"));
    }
    if workers.spare > 0 && workers.idle == IdleMode::Spin {
        let message = "spare workers have no core that they could keep busy".to_owned();
        report("workers.spare", message, Some("set workers.idle = \"adaptive\", or workers.spare = 0"));
    }
    if let Cores::List(cores) = &workers.cores {
        if has_repetition(cores) {
            report("workers.cores", "names a core twice".into(), Some("a worker owns its core"));
        }
        if let Some(core) = cores.iter().find(|core| **core > MAX_CORE) {
            report("workers.cores", format!("core {core} is beyond {MAX_CORE}"), Some(AUTO_CORES));
        }
    }
    if !FRAMES.contains(&workers.frames) {
        let (message, hint) = out_of_range(workers.frames, FRAMES);
        report("workers.frames", message, Some(&hint));
    }
    if let FrameBytes::Bytes(frame_bytes) = workers.frame_bytes
        && !FRAME_BYTES.contains(&frame_bytes)
    {
        let (message, hint) = out_of_range(frame_bytes, FRAME_BYTES);
        report("workers.frame_bytes", message, Some(&format!("{hint}, or \"auto\": by the MTUs")));
    }
    if !BATCH.contains(&workers.batch) {
        let (message, hint) = out_of_range(workers.batch, BATCH);
        report("workers.batch", message, Some(&hint));
    }
    if !IDLE_US.contains(&workers.idle_us) {
        let (message, hint) = out_of_range(workers.idle_us, IDLE_US);
        report("workers.idle_us", message, Some(&format!("{hint}; idle = \"spin\" never sleeps")));
    }
    if workers.pages.is_empty() {
        report("workers.pages", "must list at least one kind".into(), Some("\"plain\" always works"));
    }
}

fn check_softnic(settings: &Settings, report: &mut Report<'_>) {
    let nic = &settings.softnic;
    if nic.ports.len() > MAX_PORTS {
        report("softnic.ports", format!("at most {MAX_PORTS} ports are possible"), Some("list fewer"));
    }
    if !nic.ports.is_empty() && nic.name.is_empty() {
        report("softnic.name", "must not be empty".into(), Some("e.g. \"softnic0\""));
    }
    check_engine_threads(nic, report);
    check_mtu("softnic.ports", "", &nic.ports, report);
    check_filters(nic, report);
    check_other_softnics(nic, &settings.device.name, report);
    check_shared_wires(nic, report);
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
fn check_filters(nic: &SoftNic, report: &mut Report<'_>) {
    for (port, number) in nic.ports.iter().zip(1..) {
        let is_used = port.nic_filters == NicFilterUse::Drop;
        if is_used && !matches!(port.wire, WireConfig::AfXdp(_)) {
            let message = format!("port {number}: nic_filters = \"drop\" is for the wire af_xdp");
            let key = format!("softnic.ports.{}.nic_filters", number - 1);
            report(&key, message, Some("wire.kind = \"af_xdp\", or leave nic_filters out"));
        }
        let Some(model) = &port.filter_model else { continue };
        let key = format!("softnic.ports.{}.filter_model", number - 1);
        if !is_used {
            let message = format!("port {number}: filter_model is for nic_filters = \"drop\"");
            report(&key, message, Some("add nic_filters = \"drop\", or leave filter_model out"));
        }
        if let Err(error) = FilterModel::named_or_file(model) {
            let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
            report(&key, format!("port {number}: filter_model: {error}{source}"), None);
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
fn check_provider(nic: &SoftNic, base: BaseModel, report: &mut Report<'_>) {
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

fn check_engine_threads(nic: &SoftNic, report: &mut Report<'_>) {
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
        report(
            key,
            format!("core {core} is beyond {MAX_CORE}"),
            Some("leave it out for threads that are not pinned"),
        );
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
fn check_mtu(key: &str, of: &str, ports: &[SoftNicPort], report: &mut Report<'_>) {
    for (index, port) in ports.iter().enumerate() {
        if let Some(mtu_bytes) = port.mtu_bytes.filter(|mtu_bytes| !PORT_MTU_BYTES.contains(mtu_bytes)) {
            let (message, hint) = out_of_range(mtu_bytes, PORT_MTU_BYTES);
            report(&format!("{key}.{index}.mtu_bytes"), format!("{of}mtu_bytes {message}"), Some(&hint));
        }
    }
}

fn check_other_softnics(nic: &SoftNic, device: &str, report: &mut Report<'_>) {
    let key = "softnic.others";
    if nic.others.len() > MAX_OTHERS {
        report(key, format!("at most {MAX_OTHERS} further soft NICs are possible"), Some("list fewer"));
    }
    let mut names = vec![nic.name.as_str()];
    for (index, other) in nic.others.iter().enumerate() {
        if other.name.is_empty() || names.contains(&other.name.as_str()) {
            let hint = "each soft NIC needs a name of its own";
            let message = format!("the name \"{}\" is empty or in use", other.name);
            report(&format!("{key}.{index}.name"), message, Some(hint));
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
            let message = format!("{}: 1 to {MAX_PORTS} ports are possible", other.name);
            report(&format!("{key}.{index}.ports"), message, Some("list them as in [[softnic.ports]]"));
        }
        check_mtu(&format!("{key}.{index}.ports"), &format!("{}: ", other.name), &other.ports, report);
    }
}

/// Reports ports whose wires exclude each other: an end of a link is one port's, and so is the XDP program
/// of an interface.
fn check_shared_wires(nic: &SoftNic, report: &mut Report<'_>) {
    let of = |key: String, ports: &[SoftNicPort]| {
        let port = |(index, port): (usize, &SoftNicPort)| (format!("{key}.{index}.wire"), port.wire.clone());
        ports.iter().enumerate().map(port).collect::<Vec<_>>()
    };
    let mut wires = of("softnic.ports".to_owned(), &nic.ports);
    for (index, other) in nic.others.iter().enumerate() {
        wires.extend(of(format!("softnic.others.{index}.ports"), &other.ports));
    }
    wires.retain(|(_, wire)| matches!(wire, WireConfig::Link(_) | WireConfig::AfXdp(_)));
    let names: Vec<String> = wires.iter().map(|(_, wire)| wire.describe()).collect();
    for (at, (key, _)) in wires.iter().enumerate() {
        if names[..at].contains(&names[at]) {
            let message = format!("{} is the wire of another port", names[at]);
            report(key, message, Some("a wire of its own for each port"));
        }
    }
}

/// The problem and the remedy.
fn out_of_range<T: std::fmt::Display>(value: T, range: std::ops::RangeInclusive<T>) -> (String, String) {
    let hint = format!("write a number from {} to {}", range.start(), range.end());
    (format!("{value} is out of range"), hint)
}

fn has_repetition<T: PartialEq>(items: &[T]) -> bool {
    items.iter().enumerate().any(|(i, item)| items[..i].contains(item))
}
