//! `[sinks.NAME]`: where delivered packets go. Each kind has a function that reads its options. What an
//! option refers to (interfaces, folders, ports) is checked when the sink is opened.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use packet::MacAddr;
use program::{
    APP_CLIENT_MIB, APP_CLIENTS_MAX, APP_RING_SIZES, APP_RINGS_MAX, AppMode, AppSink, CaptureSink, CountSink,
    FlowCollector, FlowExport, ForwardMode, ForwardSink, KernelSink, MAX_SINKS, MAX_TOP_FLOWS, SinkId,
    SinkKind, SinkSpec, TapMac, VlanChange,
};
use toml::Spanned;

use crate::hint::ProblemHint;
use crate::keys::{self, Key as KnownKey};
use crate::policy::SinkDefinition;

use super::matches::word;
use super::reader::{Key, Names, Reader, Table, Value, entries, nearest};
use super::sets::shortened;

/// The length of `sun_path` of unix(7), with the final zero.
const SOCKET_PATH_MAX: usize = 108;

/// The sinks of all files.
#[derive(Default)]
pub(super) struct Sinks {
    pub(super) list: Vec<SinkDefinition>,
    /// `None`: a sink with errors, so that groups that name it are not reported, too.
    index: BTreeMap<String, Option<SinkId>>,
    names: Names,
}

impl Sinks {
    /// Reads the `[sinks]` of one file.
    pub(super) fn read(&mut self, reader: &mut Reader, value: &Value<'_>) {
        let Some(table) = reader.table(value, "`sinks`") else { return };
        for (key, value) in entries(table) {
            let name: &str = key.get_ref();
            if !reader.is_valid_name(name, key.span(), "the sink")
                || !self.names.is_new(reader, name, key.span(), "sink")
            {
                continue;
            }
            if self.list.len() == MAX_SINKS {
                reader.error(key.span(), format!("there are more than {MAX_SINKS} sinks"), "too many");
                return;
            }
            let kind = self.kind(reader, key, value);
            self.index.insert(name.to_owned(), kind.as_ref().map(|_| SinkId::of(self.list.len())));
            self.list.extend(kind.map(|kind| SinkDefinition {
                sink: SinkSpec { name: name.to_owned(), kind },
                place: reader.place(key.span()),
            }));
        }
    }

    fn kind(&self, reader: &mut Reader, key: &Key<'_>, value: &Value<'_>) -> Option<SinkKind> {
        let table = reader.table(value, "a sink")?;
        let (name, known) = *kind_of(reader, key, table)?;
        let all: Vec<KnownKey> = [keys::SINK_KIND].iter().chain(known).copied().collect();
        reader.refuse_unknown_keys(table, &all, &format!("a sink of kind `{name}`"));
        let missing = known.iter().find(|known| known.required && !table.contains_key(known.name));
        if let Some(missing) = missing {
            let message = format!("the sink has no `{}`", missing.name);
            reader.error_with(key.span(), message, "this sink", missing.doc);
            return None;
        }
        match name {
            "count" => count(reader, table),
            "kernel" => {
                let first = self.list.iter().find(|other| matches!(other.sink.kind, SinkKind::Kernel(_)));
                if let Some(first) = first {
                    let hint = format!("the first is `{}` on line {}", first.sink.name, first.place.line());
                    reader.error_with(key.span(), "there are two sinks of kind `kernel`", "second", hint);
                }
                kernel(reader, table)
            }
            "capture" => capture(reader, table),
            "app" => {
                let sink = app(reader, table)?;
                self.check_socket(reader, key, table, &sink);
                Some(SinkKind::App(sink))
            }
            _ => forward(reader, table, key),
        }
    }

    /// Reports a socket that another sink has.
    fn check_socket(&self, reader: &mut Reader, key: &Key<'_>, table: &Table<'_>, sink: &AppSink) {
        let has_it = |other: &&SinkDefinition| matches!(&other.sink.kind, SinkKind::App(app) if app.socket == sink.socket);
        if let (Some(other), Some(value)) = (self.list.iter().find(has_it), table.get("socket")) {
            let message =
                format!("the sinks `{}` and `{}` have the same socket", other.sink.name, key.get_ref());
            reader.error_with(value.span(), message, "also here", "give each sink a socket of its own");
        }
    }

    /// The sinks of a group or a rule: a name or a list of names. Reports unknown ones.
    pub(super) fn list_of(&self, reader: &mut Reader, value: &Value<'_>) -> Vec<SinkId> {
        let mut list = Vec::new();
        let one = std::slice::from_ref(value);
        let items = match value.get_ref().as_array() {
            Some(array) => array.as_ref(),
            None => one,
        };
        for item in items {
            let Some(name) = reader.string(item, "an item of `sinks`") else { continue };
            let Some(id) = self.find(reader, name, item) else { continue };
            if list.contains(&id) {
                reader.error(item.span(), format!("the sink `{name}` is named twice"), "again");
            } else {
                list.push(id);
            }
        }
        let takes_frames = |id: &&SinkId| matches!(self.list[id.index()].sink.kind, SinkKind::Forward(_));
        if list.iter().filter(takes_frames).count() > 1 {
            let hint = "a packet can be sent once: name one sink of kind `forward`";
            reader.error_with(value.span(), "there are two sinks of kind `forward`", "both forward", hint);
        }
        list
    }

    /// The name of one sink. Reports an unknown one.
    pub(super) fn named(&self, reader: &mut Reader, value: &Value<'_>) -> Option<String> {
        let name = reader.string(value, "the name of a sink")?;
        self.find(reader, name, value).map(|_| name.to_owned())
    }

    fn find(&self, reader: &mut Reader, name: &str, value: &Value<'_>) -> Option<SinkId> {
        if let Some(known) = self.index.get(name) {
            return *known;
        }
        let names = || self.index.keys().map(String::as_str);
        if reader.reports_unknown(name, names()) {
            reader.error_lazy(value.span(), || {
                let hint = match nearest(name, names()) {
                    Some(near) => ProblemHint::meant(name, near),
                    None => format!("add [sinks.{}] with a `kind`", shortened(name)).into(),
                };
                (format!("unknown sink `{}`", shortened(name)), "no such sink".to_owned(), hint)
            });
        }
        None
    }
}

/// The kind of a sink, and its keys.
fn kind_of(
    reader: &mut Reader,
    key: &Key<'_>,
    table: &Table<'_>,
) -> Option<&'static (&'static str, &'static [KnownKey])> {
    let kinds = || keys::SINKS.iter().map(|(name, _)| *name);
    let all = || format!("write kind = \"count\" or another of {}", kinds().collect::<Vec<_>>().join(", "));
    let Some(value) = table.get("kind") else {
        reader.error_with(key.span(), "the sink has no `kind`", "this sink", all());
        return None;
    };
    let name = reader.string(value, "`kind`")?;
    let found = keys::SINKS.iter().find(|(known, _)| *known == name);
    if found.is_none() {
        let near = nearest(name, kinds()).map(|near| ProblemHint::meant(name, near));
        let message = format!("unknown kind of sink `{}`", shortened(name));
        reader.error_with(value.span(), message, "not a kind", near.unwrap_or_else(|| all().into()));
    }
    found
}

fn count(reader: &mut Reader, table: &Table<'_>) -> Option<SinkKind> {
    let top_flows = match table.get("top_flows") {
        Some(value) => reader.integer(value, "`top_flows`", 0, MAX_TOP_FLOWS)?,
        None => 0,
    };
    let export = match table.get("export") {
        Some(value) => Some(export(reader, table, value)?),
        None => {
            let only_with = EXPORT_OPTIONS.iter().find_map(|key| Some((*key, table.get(*key)?)));
            if let Some((key, value)) = only_with {
                let hint = format!("add export = \"ipfix://HOST:PORT\", or remove `{key}`");
                reader.error_with(value.span(), format!("`{key}` without `export`"), "exports nothing", hint);
                return None;
            }
            None
        }
    };
    Some(SinkKind::Count(CountSink { top_flows, export }))
}

/// The options that go with `export` only.
const EXPORT_OPTIONS: [&str; 5] =
    ["flows", "active_seconds", "idle_seconds", "template_seconds", "observation_domain"];

fn export(reader: &mut Reader, table: &Table<'_>, value: &Value<'_>) -> Option<FlowExport> {
    let collector = match reader.string(value, "`export`")?.parse::<FlowCollector>() {
        Ok(collector) => collector,
        Err(error) => {
            let message = format!("`export` is not a collector: {error}");
            let hint = "write \"ipfix://192.0.2.7:4739\", or \"ipfix+tcp://192.0.2.7:4739\" for TCP";
            reader.error_with(value.span(), message, "not a collector", hint);
            return None;
        }
    };
    let FlowExport { flows, active_seconds, idle_seconds, template_seconds, observation_domain, .. } =
        FlowExport::new(FlowCollector::default());
    let seconds = FlowExport::FLOW_SECONDS;
    Some(FlowExport {
        collector,
        flows: number(reader, table, "flows", FlowExport::FLOWS, flows)?,
        active_seconds: number(reader, table, "active_seconds", seconds.clone(), active_seconds)?,
        idle_seconds: number(reader, table, "idle_seconds", seconds, idle_seconds)?,
        template_seconds: number(
            reader,
            table,
            "template_seconds",
            FlowExport::TEMPLATE_SECONDS,
            template_seconds,
        )?,
        observation_domain: number(reader, table, "observation_domain", 0..=u32::MAX, observation_domain)?,
    })
}

fn kernel(reader: &mut Reader, table: &Table<'_>) -> Option<SinkKind> {
    let interface = interface(reader, table)?;
    let mac = match table.get("mac") {
        None => TapMac::Port,
        Some(value) => match reader.string(value, "`mac`")? {
            "port" => TapMac::Port,
            "keep" => TapMac::Keep,
            _ => TapMac::Address(station(reader, table, "mac")?),
        },
    };
    let mtu = match table.get("mtu") {
        Some(value) => {
            let (least, most) = KernelSink::MTU.into_inner();
            u16::try_from(reader.integer(value, "`mtu`", least.into(), most.into())?).ok()
        }
        None => None,
    };
    let transmit = match table.get("transmit") {
        Some(value) => reader.boolean(value, "`transmit`")?,
        None => true,
    };
    let port = match table.get("port") {
        Some(value) => Some(port(reader, value)?),
        None => None,
    };
    let defaults = KernelSink::new(interface);
    let ring_bytes = match table.get("ring_bytes") {
        Some(value) => {
            let (least, most) = KernelSink::RING_BYTES.into_inner();
            reader.integer(value, "`ring_bytes`", least, most)?
        }
        None => defaults.ring_bytes,
    };
    Some(SinkKind::Kernel(KernelSink { mac, mtu, transmit, port, ring_bytes, ..defaults }))
}

/// The name of a network interface. A `%` would make the kernel choose a number (`dev_alloc_name`).
fn interface(reader: &mut Reader, table: &Table<'_>) -> Option<String> {
    let name = text(reader, table, "interface")?;
    let is_allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '%');
    if name.len() < KernelSink::NAME_BYTES && name.chars().all(is_allowed) && name != "." && name != ".." {
        return Some(name);
    }
    let span = table.get("interface").map(Spanned::span).unwrap_or_default();
    let message = format!("`{}` cannot be the name of a network interface", shortened(&name));
    let hint = format!(
        "at most {} printable ASCII characters without spaces, `/`, `:` and `%`, like host0",
        KernelSink::NAME_BYTES - 1
    );
    reader.error_with(span, message, "not a name", hint);
    None
}

/// The address of one station, in a key that the table has.
fn station(reader: &mut Reader, table: &Table<'_>, key: &str) -> Option<MacAddr> {
    let address = mac(reader, table, key)??;
    if address.is_multicast() || address == MacAddr::default() {
        let span = table.get(key).map(Spanned::span).unwrap_or_default();
        let message = format!("`{key}` is not the address of one station: {address}");
        reader.error_with(span, message, "here", "write \"port\", \"keep\" or one like 02:00:00:00:00:01");
        return None;
    }
    Some(address)
}

fn capture(reader: &mut Reader, table: &Table<'_>) -> Option<SinkKind> {
    let defaults = CaptureSink::default();
    let path = text(reader, table, "path");
    let snap_bytes =
        number(reader, table, "snap_bytes", 1..=CaptureSink::SNAP_BYTES_MAX, defaults.snap_bytes);
    let one_in = number(reader, table, "one_in", 1..=u32::MAX, defaults.one_in);
    let first_of_flow = number(reader, table, "first_of_flow", 0..=u32::MAX, defaults.first_of_flow);
    let file_mb = number(reader, table, "file_mb", CaptureSink::FILE_MB, megabytes(defaults.file_bytes));
    let file_seconds = number(reader, table, "file_seconds", 0..=u32::MAX, defaults.file_seconds);
    let disk_mb = number(reader, table, "disk_mb", CaptureSink::DISK_MB, megabytes(defaults.disk_bytes));
    let ring_bytes = number(reader, table, "ring_bytes", CaptureSink::RING_BYTES, defaults.ring_bytes);
    // Every key is read before the first refusal counts, so that all mistakes are reported.
    let (path, snap_bytes, one_in, first_of_flow) = (path?, snap_bytes?, one_in?, first_of_flow?);
    let (file_mb, file_seconds, disk_mb, ring_bytes) = (file_mb?, file_seconds?, disk_mb?, ring_bytes?);
    if u64::from(disk_mb) < 2 * u64::from(file_mb) {
        let value = table.get("disk_mb").or_else(|| table.get("file_mb"))?;
        let hint = format!("with files of {file_mb} MB write disk_mb = {} or more", 2 * u64::from(file_mb));
        reader.error_with(value.span(), "`disk_mb` has no room for two files", "too little", hint);
        return None;
    }
    Some(SinkKind::Capture(CaptureSink {
        path: PathBuf::from(path),
        snap_bytes,
        one_in,
        first_of_flow,
        file_bytes: u64::from(file_mb) * CaptureSink::MB,
        file_seconds,
        disk_bytes: u64::from(disk_mb) * CaptureSink::MB,
        ring_bytes,
    }))
}

/// The number of megabytes. As the default is a multiple, no part is lost.
fn megabytes(bytes: u64) -> u32 {
    u32::try_from(bytes / CaptureSink::MB).unwrap_or(u32::MAX)
}

/// An optional number; `None`: it was refused.
fn number(
    reader: &mut Reader,
    table: &Table<'_>,
    key: &str,
    range: RangeInclusive<u32>,
    default: u32,
) -> Option<u32> {
    match table.get(key) {
        Some(value) => reader.integer(value, &format!("`{key}`"), *range.start(), *range.end()),
        None => Some(default),
    }
}

fn app(reader: &mut Reader, table: &Table<'_>) -> Option<AppSink> {
    let mut sink = AppSink::new(socket(reader, table)?);
    if let Some(value) = table.get("mode") {
        let words = [("copy", AppMode::Copy), ("share", AppMode::Share)];
        sink.mode = word(reader, value, "mode", &words)?;
    }
    sink.clients = small(reader, table, "clients", sink.clients, APP_CLIENTS_MAX)?;
    sink.uids = ids(reader, table, "uids")?;
    sink.gids = ids(reader, table, "gids")?;
    if !sink.uids.is_empty() || !sink.gids.is_empty() {
        sink.socket_mode = 0o666;
    }
    if let Some(value) = table.get("socket_mode") {
        sink.socket_mode = permissions(reader, value)?;
    }
    sink.rings = small(reader, table, "rings", sink.rings, APP_RINGS_MAX)?;
    if let Some(value) = table.get("ring_size") {
        let (least, most) = APP_RING_SIZES.into_inner();
        sink.ring_size = reader.integer(value, "`ring_size`", least, most)?;
        if !sink.ring_size.is_power_of_two() {
            let hint = format!("write {}", sink.ring_size.next_power_of_two());
            reader.error_with(value.span(), "`ring_size` is not a power of two", "this number", hint);
            return None;
        }
    }
    if let Some(value) = table.get("client_mib") {
        let (least, most) = APP_CLIENT_MIB.into_inner();
        sink.client_mib = reader.integer(value, "`client_mib`", least, most)?;
    }
    if let Some(value) = table.get("transmit") {
        sink.transmit = reader.boolean(value, "`transmit`")?;
    }
    if let Some(value) = table.get("port") {
        sink.port = Some(port(reader, value)?);
        if !sink.transmit {
            let hint = "add transmit = true, or remove `port`";
            reader.error_with(value.span(), "`port` without transmit = true", "sends nothing", hint);
            return None;
        }
    }
    Some(sink)
}

/// The path of a unix socket.
fn socket(reader: &mut Reader, table: &Table<'_>) -> Option<PathBuf> {
    let path = text(reader, table, "socket")?;
    let value = table.get("socket")?;
    let problem = match path.len() {
        _ if !path.starts_with('/') => "`socket` is not an absolute path".to_owned(),
        _ if path.contains('\0') => "`socket` contains a zero byte".to_owned(),
        SOCKET_PATH_MAX.. => format!("`socket` is longer than {} bytes", SOCKET_PATH_MAX - 1),
        _ => return Some(PathBuf::from(path)),
    };
    reader.error_with(value.span(), problem, "this path", "write a path like \"/run/steerd/app.sock\"");
    None
}

/// A port of the device.
fn port(reader: &mut Reader, value: &Value<'_>) -> Option<u8> {
    u8::try_from(reader.integer(value, "`port`", 1, 255)?).ok()
}

/// An optional number from 1 to `most`.
fn small(reader: &mut Reader, table: &Table<'_>, key: &str, default: u16, most: u16) -> Option<u16> {
    let Some(value) = table.get(key) else { return Some(default) };
    let number = reader.integer(value, &format!("`{key}`"), 1, u32::from(most))?;
    u16::try_from(number).ok()
}

/// An optional list of users or groups.
fn ids(reader: &mut Reader, table: &Table<'_>, key: &str) -> Option<Vec<u32>> {
    let Some(value) = table.get(key) else { return Some(Vec::new()) };
    let items = reader.array(value, &format!("`{key}`"))?;
    items.iter().map(|item| reader.integer(item, &format!("a number of `{key}`"), 0, u32::MAX)).collect()
}

/// Permissions of a file in octal.
fn permissions(reader: &mut Reader, value: &Value<'_>) -> Option<u32> {
    let text = reader.string(value, "`socket_mode`")?;
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    if mode.is_none() {
        let message = "`socket_mode` is not a number of permissions";
        reader.error_with(value.span(), message, "here", "write \"0660\"");
    }
    mode
}

fn forward(reader: &mut Reader, table: &Table<'_>, key: &Key<'_>) -> Option<SinkKind> {
    let device = match table.get("device") {
        Some(_) => Some(text(reader, table, "device")?),
        None => None,
    };
    let port = match table.get("port") {
        Some(value) => Some(port(reader, value)?),
        None => None,
    };
    let mode = match optional_word(reader, table, "mode", keys::FORWARD_MODES)? {
        Some("reflect") => ForwardMode::Reflect,
        _ => ForwardMode::Forward,
    };
    let swap_macs = optional_word(reader, table, "mac", &["swap"])?.is_some();
    if port.is_none() && mode == ForwardMode::Forward {
        let hint = "add the port of the device that packets leave by: port = 2";
        reader.error_with(key.span(), "the sink has no `port`", "this sink", hint);
        return None;
    }
    if let Some(value) = table.get("mac").filter(|_| mode == ForwardMode::Reflect) {
        let hint = "remove `mac`: mode = \"reflect\" exchanges the addresses";
        reader.error_with(value.span(), "`mac` does not go with mode = \"reflect\"", "here", hint);
        return None;
    }
    let src_mac = mac(reader, table, "src_mac")?;
    if let Some(value) = table.get("src_mac")
        && src_mac.is_some_and(MacAddr::is_multicast)
    {
        let hint = "write an address whose first byte is even";
        reader.error_with(value.span(), "`src_mac` is the address of a group", "not of one station", hint);
        return None;
    }
    let dst_mac = mac(reader, table, "dst_mac")?;
    let vlan = match table.get("vlan") {
        Some(value) => Some(vlan_change(reader, value)?),
        None => None,
    };
    Some(SinkKind::Forward(ForwardSink { device, port, mode, swap_macs, src_mac, dst_mac, vlan }))
}

fn vlan_change(reader: &mut Reader, value: &Value<'_>) -> Option<VlanChange> {
    let table = reader.table(value, "`vlan`")?;
    reader.refuse_unknown_keys(table, keys::VLAN_CHANGE, "`vlan`");
    let mut changes = entries(table).into_iter().filter(|(key, _)| {
        let name: &str = key.get_ref();
        keys::VLAN_CHANGE.iter().any(|known| known.name == name)
    });
    let (Some((key, argument)), None) = (changes.next(), changes.next()) else {
        let hint = "write { set = 100 }, { push = 100 } or { pop = true }";
        reader.error_with(value.span(), "`vlan` needs one change", "here", hint);
        return None;
    };
    let mut identifier = |name: &str| u16::try_from(reader.integer(argument, name, 0, 4095)?).ok();
    let name: &str = key.get_ref();
    match name {
        "set" => identifier("`set`").map(VlanChange::Set),
        "push" => identifier("`push`").map(VlanChange::Push),
        _ if argument.get_ref().as_bool() == Some(true) => Some(VlanChange::Pop),
        _ => {
            reader.error(argument.span(), "`pop` must be true", "here");
            None
        }
    }
}

/// An optional word of a list; `None`: it was refused.
#[allow(clippy::option_option)]
fn optional_word<'t>(
    reader: &mut Reader,
    table: &'t Table<'_>,
    key: &str,
    words: &[&str],
) -> Option<Option<&'t str>> {
    let Some(value) = table.get(key) else { return Some(None) };
    let word = reader.string(value, &format!("`{key}`"))?;
    if !words.contains(&word) {
        let hint = format!(
            "write {}",
            words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ")
        );
        reader.error_with(value.span(), format!("unknown `{key}`"), "here", hint);
        return None;
    }
    Some(Some(word))
}

/// A string that is not empty.
fn text(reader: &mut Reader, table: &Table<'_>, key: &str) -> Option<String> {
    let value = table.get(key)?;
    let text = reader.string(value, &format!("`{key}`"))?;
    if text.is_empty() {
        reader.error(value.span(), format!("`{key}` is empty"), "nothing");
        return None;
    }
    Some(text.to_owned())
}

/// An optional address; `None`: it was refused.
#[allow(clippy::option_option)]
fn mac(reader: &mut Reader, table: &Table<'_>, key: &str) -> Option<Option<MacAddr>> {
    let Some(value) = table.get(key) else { return Some(None) };
    let address = reader.string(value, &format!("`{key}`"))?.parse::<MacAddr>();
    if address.is_err() {
        let span = Spanned::span(value);
        reader.error_with(span, format!("`{key}` is not a MAC address"), "here", "write 02:00:00:00:00:01");
    }
    address.ok().map(Some)
}
