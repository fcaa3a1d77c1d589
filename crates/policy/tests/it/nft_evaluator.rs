//! An evaluator of nft rule sets in JSON for single packets, written from nft(8) and libnftables-json(5). It
//! shares no code with the import. All that a packet does not show (the state of connections, marks, limits)
//! is a choice of a [`World`].

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use serde_json::{Map, Value};

/// A packet as nft reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NftPacket {
    /// 4, 6, or 0 for a frame without IP.
    pub(crate) version: u8,
    pub(crate) ether_type: u16,
    pub(crate) src_mac: u64,
    pub(crate) dst_mac: u64,
    pub(crate) src: u128,
    pub(crate) dst: u128,
    /// The first next header of IPv6.
    pub(crate) next_header: u8,
    /// The protocol behind extension headers.
    pub(crate) protocol: u8,
    pub(crate) ttl: u8,
    pub(crate) dscp: u8,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) tcp_flags: u8,
    pub(crate) icmp_type: u8,
    pub(crate) icmp_code: u8,
    pub(crate) is_later_fragment: bool,
    /// Whether a rule has translated the destination.
    pub(crate) is_translated: bool,
}

impl NftPacket {
    /// Whether this is the destination.
    pub(crate) fn is_to(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.version == 4 && self.dst == u128::from(u32::from(address)),
            IpAddr::V6(address) => self.version == 6 && self.dst == u128::from(address),
        }
    }
}

/// Choices for what is not known.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) state: &'static str,
    pub(crate) interface: String,
    /// Whether the packet is for this host.
    pub(crate) is_local: bool,
    /// Whether its destination is known to be an address of the host.
    pub(crate) is_own: bool,
    /// Whether a flow table forwards it before the chains behind it.
    pub(crate) is_in_flow_table: bool,
    /// The destination and its port of the packet of a connection whose translation is undone or repeated
    /// at priority -100 of hook prerouting.
    pub(crate) inner: Option<(u128, u16)>,
}

/// Why evaluation of a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Accept,
    Drop,
    /// The rule ends: its other statements are not carried out.
    Break,
    Return,
    Next,
    /// Userspace or another interface gets the packet.
    Taken,
}

type Object = Map<String, Value>;

struct BaseChain {
    name: String,
    hook: String,
    priority: i64,
    is_drop: bool,
    devices: Vec<String>,
}

/// The tables of a rule set.
pub(crate) struct NftRules {
    tables: Vec<NftTable>,
}

struct NftTable {
    family: String,
    is_dormant: bool,
    bases: Vec<BaseChain>,
    chains: BTreeMap<String, Vec<Object>>,
    sets: BTreeMap<String, Vec<Value>>,
    /// The priorities of flow tables in hook ingress.
    flow_tables: Vec<i64>,
}

/// Kinds of statements that translate addresses.
const TRANSLATIONS: [&str; 4] = ["masquerade", "snat", "dnat", "redirect"];

/// The statement of nft that a target of iptables stands for (xtables-translate(8), ip6tables-extensions(8)).
fn kind_of_target(xt: &Value) -> Option<&'static str> {
    Some(match xt["name"].as_str()? {
        "MASQUERADE" => "masquerade",
        "SNAT" | "SNPT" => "snat",
        "DNAT" | "DNPT" | "NETMAP" => "dnat",
        "REDIRECT" => "redirect",
        "TPROXY" => "tproxy",
        "NFQUEUE" => "queue",
        "NOTRACK" => "notrack",
        _ => return None,
    })
}

fn text<'o>(object: &'o Object, key: &str) -> &'o str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl NftRules {
    pub(crate) fn read(listing: &Value) -> Self {
        let mut tables: BTreeMap<(String, String), NftTable> = BTreeMap::new();
        for object in listing["nftables"].as_array().expect("a list") {
            let (kind, body) = object.as_object().expect("an object").iter().next().expect("a key");
            let Some(body) = body.as_object() else { continue };
            let is_table = kind == "table";
            let name = text(body, if is_table { "name" } else { "table" });
            if name.is_empty() {
                continue;
            }
            let key = (text(body, "family").to_owned(), name.to_owned());
            let table = tables.entry(key.clone()).or_insert_with(|| NftTable {
                family: key.0,
                is_dormant: false,
                bases: Vec::new(),
                chains: BTreeMap::new(),
                sets: BTreeMap::new(),
                flow_tables: Vec::new(),
            });
            match kind.as_str() {
                "flowtable" => table.flow_tables.push(body["prio"].as_i64().unwrap_or(0)),
                "table" => {
                    table.is_dormant =
                        body.get("flags").is_some_and(|flags| flags.to_string().contains("dormant"));
                }
                "chain" => {
                    table.chains.entry(text(body, "name").to_owned()).or_default();
                    if body.contains_key("hook") {
                        let devices = match body.get("dev") {
                            Some(Value::String(one)) => vec![one.clone()],
                            Some(Value::Array(list)) => list
                                .iter()
                                .map(|one| one.as_str().expect("as nft prints it").to_owned())
                                .collect(),
                            _ => Vec::new(),
                        };
                        table.bases.push(BaseChain {
                            name: text(body, "name").to_owned(),
                            hook: text(body, "hook").to_owned(),
                            priority: body["prio"].as_i64().unwrap_or(0),
                            // The kernel asks nat only for the first packet of a connection.
                            is_drop: text(body, "policy") == "drop" && text(body, "type") != "nat",
                            devices,
                        });
                    }
                }
                "rule" => table.chains.entry(text(body, "chain").to_owned()).or_default().push(body.clone()),
                "set" | "map" => {
                    let elements = body.get("elem").and_then(Value::as_array).cloned().unwrap_or_default();
                    table.sets.insert(text(body, "name").to_owned(), elements);
                }
                _ => {}
            }
        }
        Self { tables: tables.into_values().collect() }
    }

    /// Whether a chain of the hook forward has rules.
    pub(crate) fn forwards(&self) -> bool {
        self.tables.iter().any(|table| {
            table.bases.iter().any(|base| base.hook == "forward" && !table.chains[&base.name].is_empty())
        })
    }

    /// Whether a rule has a statement of this kind.
    pub(crate) fn has(&self, kind: &str) -> bool {
        let rules = self.tables.iter().flat_map(|table| table.chains.values().flatten());
        let mut statements = rules.filter_map(|rule| rule["expr"].as_array()).flatten();
        statements.any(|statement| {
            statement.get(kind).is_some() || statement.get("xt").and_then(kind_of_target) == Some(kind)
        })
    }

    /// Whether packets of connections may have other addresses behind priority -100 of hook prerouting:
    /// requests and errors to published servers, and replies to connections that leave with another address.
    pub(crate) fn translates(&self) -> bool {
        TRANSLATIONS.iter().any(|kind| self.has(kind))
    }

    /// The states that connection tracking may give a packet (tcp_valid_flags of nf_conntrack_proto_tcp.c,
    /// nf_conntrack_proto_icmp.c and nf_conntrack_proto_icmpv6.c); `is_syn_new`: a connection request belongs
    /// to no connection.
    pub(crate) fn states(&self, packet: &NftPacket, is_syn_new: bool) -> Vec<&'static str> {
        let mut states = match (packet.version, packet.protocol) {
            (4 | 6, 6) => match packet.tcp_flags & 0x37 {
                0x02 | 0x22 if is_syn_new && self.has("ct helper") => vec!["new", "related"],
                0x02 | 0x22 if is_syn_new => vec!["new"],
                0x02 | 0x22 | 0x12 | 0x04 | 0x14 | 0x11 | 0x31 | 0x10 | 0x30 => Vec::new(),
                _ => vec!["invalid"],
            },
            (4, 1) if matches!(packet.icmp_type, 1 | 2 | 6 | 7 | 9 | 10 | 19..) => vec!["invalid"],
            (6, 58) => match packet.icmp_type {
                130..=136 | 143 => return vec!["invalid", "untracked"],
                138 | 141 | 142 | 144.. => vec!["invalid"],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        if states.is_empty() {
            states.extend(["new", "new", "established", "related", "invalid"]);
        }
        if self.has("notrack") {
            states.push("untracked");
        }
        states
    }

    /// Whether the host gets the packet, or forwards it, by all base chains in the order of the kernel.
    pub(crate) fn accepts(&self, packet: &NftPacket, world: &World) -> bool {
        let last = if world.is_local { "input" } else { "forward" };
        let mut packet = packet.clone();
        let mut inner = world.inner;
        // Before connection tracking a packet is of no connection.
        let (mut early, mut late) = ("invalid", world.state);
        let flow_table = self.tables.iter().flat_map(|table| &table.flow_tables).min();
        for hook in ["ingress", "prerouting", last] {
            if hook != "ingress" && world.is_in_flow_table {
                return true;
            }
            let mut bases: Vec<(&NftTable, &BaseChain)> = Vec::new();
            for table in self.tables.iter().filter(|table| !table.is_dormant && table.sees(&packet)) {
                let own = table.bases.iter().filter(|base| {
                    base.hook == hook && (base.devices.is_empty() || base.devices.contains(&world.interface))
                });
                bases.extend(own.map(|base| (table, base)));
            }
            bases.sort_by_key(|(_, base)| base.priority);
            for (table, base) in bases {
                if world.is_in_flow_table && flow_table.is_none_or(|first| base.priority >= *first) {
                    return true;
                }
                let is_behind_translation = match hook {
                    "ingress" => false,
                    "prerouting" => base.priority >= -100,
                    _ => true,
                };
                if is_behind_translation && let Some((dst, port)) = inner.take() {
                    (packet.dst, packet.dst_port, packet.is_translated) = (dst, port, true);
                }
                let is_whole =
                    hook == "input" || hook == "forward" || (hook == "prerouting" && base.priority > -400);
                let is_early = hook == "ingress" || (hook == "prerouting" && base.priority < -200);
                let state = if is_early { early } else { late };
                let mut run = Run { table, world, packet: &mut packet, state, is_whole, depth: 0 };
                let end = run.chain(&base.name);
                *(if is_early { &mut early } else { &mut late }) = run.state;
                match end {
                    End::Drop => return false,
                    End::Taken => return true,
                    End::Accept => {}
                    _ if base.is_drop => return false,
                    _ => {}
                }
            }
        }
        true
    }
}

impl NftTable {
    fn sees(&self, packet: &NftPacket) -> bool {
        match self.family.as_str() {
            "ip" => packet.version == 4,
            "ip6" => packet.version == 6,
            "inet" => packet.version != 0,
            "netdev" => true,
            _ => false,
        }
    }
}

struct Run<'r> {
    table: &'r NftTable,
    world: &'r World,
    packet: &'r mut NftPacket,
    state: &'static str,
    /// Whether fragments have been put together.
    is_whole: bool,
    depth: usize,
}

impl Run<'_> {
    fn chain(&mut self, name: &str) -> End {
        let Some(rules) = self.table.chains.get(name) else { return self.unknown(name, End::Accept) };
        if self.depth > 16 {
            return End::Accept;
        }
        self.depth += 1;
        let mut end = End::Next;
        for rule in rules {
            match self.rule(rule["expr"].as_array().map_or(&[][..], Vec::as_slice)) {
                End::Break | End::Next => {}
                other => {
                    end = other;
                    break;
                }
            }
        }
        self.depth -= 1;
        if end == End::Return { End::Next } else { end }
    }

    fn rule(&mut self, statements: &[Value]) -> End {
        for statement in statements {
            let Some((kind, body)) = statement.as_object().and_then(|object| object.iter().next()) else {
                continue;
            };
            match self.statement(kind, body) {
                End::Next => {}
                other => return other,
            }
        }
        End::Next
    }

    /// One of two ends, by the choice of the world.
    fn unknown(&self, about: &str, other: End) -> End {
        if self.chance(about) { End::Next } else { other }
    }

    fn chance(&self, about: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (self.world.seed, about).hash(&mut hasher);
        hasher.finish() & 1 == 0
    }

    fn statement(&mut self, kind: &str, body: &Value) -> End {
        match kind {
            "match" => {
                let is_match = match self.matches(body) {
                    Some(is_match) => is_match,
                    None => self.chance(&body.to_string()),
                };
                if is_match { End::Next } else { End::Break }
            }
            "accept" => End::Accept,
            "drop" | "reject" => End::Drop,
            "return" => End::Return,
            "continue" => End::Next,
            "jump" => match self.chain(body["target"].as_str().expect("as nft prints it")) {
                End::Next | End::Break => End::Next,
                other => other,
            },
            "goto" => match self.chain(body["target"].as_str().expect("as nft prints it")) {
                End::Next | End::Break => End::Return,
                other => other,
            },
            "vmap" => self.map(body),
            "xt" if body["type"] == "target" => match kind_of_target(body) {
                Some(kind) => self.statement(kind, &serde_json::json!({"addr": "not printed"})),
                None => self.unknown(&body.to_string(), End::Accept),
            },
            // A packet without a connection gets a template of one, which is new (nft_ct_set_zone_eval in
            // net/netfilter/nft_ct.c).
            "mangle" if body["key"]["ct"]["key"] == "zone" && self.is_without_connection() => {
                self.state = "new";
                End::Next
            }
            "limit" | "quota" | "ct count" | "xt" => self.unknown(&body.to_string(), End::Break),
            "set" | "map" if body.get("stmt").is_some() => self.unknown(&body.to_string(), End::Break),
            "queue" | "fwd" | "tproxy" | "synproxy" => End::Taken,
            "dnat" | "redirect" => {
                // The address becomes one that is not in the rule set, unless only the port changes.
                if let Some(port) = body.get("port").and_then(Value::as_u64) {
                    self.packet.dst_port = u16::try_from(port).expect("as nft prints it");
                }
                if body.get("addr").is_some() || kind == "redirect" {
                    self.packet.dst ^= 0x55;
                }
                self.packet.is_translated = true;
                End::Accept
            }
            "masquerade" | "snat" => End::Accept,
            _ => End::Next,
        }
    }

    fn elements(&self, set: &Value) -> Option<Vec<Value>> {
        if let Some(name) = set.as_str().and_then(|text| text.strip_prefix('@')) {
            return self.table.sets.get(name).cloned();
        }
        set.get("set").and_then(Value::as_array).cloned()
    }

    fn map(&mut self, body: &Value) -> End {
        let Some(pairs) = self.elements(&body["data"]) else {
            return self.unknown(&body.to_string(), End::Accept);
        };
        let mut rest = None;
        for pair in &pairs {
            let (key, verdict) = (
                plain(&pair[0]),
                pair[1].as_object().expect("as nft prints it").iter().next().expect("as nft prints it"),
            );
            if key == "*" {
                rest = Some(verdict);
                continue;
            }
            let is_match = match self.is_in(&body["key"], key) {
                Some(is_match) => is_match,
                None => self.chance(&format!("{} {key}", body["key"])),
            };
            if is_match {
                return self.statement(verdict.0, verdict.1);
            }
        }
        rest.map_or(End::Break, |verdict| self.statement(verdict.0, verdict.1))
    }

    /// `None`: not known.
    fn matches(&self, body: &Value) -> Option<bool> {
        let (left, right) = (&body["left"], &body["right"]);
        let op = body["op"].as_str().unwrap_or("==");
        if left.get("ct").is_some_and(|ct| ct["key"] == "state") && op != "!=" {
            let states = match right.get("set").unwrap_or(right) {
                Value::Array(list) => list.clone(),
                one => vec![one.clone()],
            };
            return Some(states.iter().any(|state| state == self.state));
        }
        if let Some(ct) = left.get("ct").filter(|ct| ct["key"] != "state" && matches!(op, "==" | "in")) {
            return self.has_of_connection(ct, right);
        }
        if let Some(mask) = left.get("&") {
            let (value, mask) = (self.number(&mask[0])?, &mask[1]);
            let Some(value) = value else { return Some(false) };
            let mask = constant(&left["&"][0], mask)?;
            let choices = match self.elements(right) {
                Some(list) => {
                    list.iter().map(|one| constant(&left["&"][0], one)).collect::<Option<Vec<_>>>()?
                }
                None => vec![constant(&left["&"][0], right)?],
            };
            return match op {
                "==" => Some(choices.contains(&(value & mask))),
                "!=" => Some(!choices.contains(&(value & mask))),
                _ => None,
            };
        }
        let is_own = self.world.is_own && !self.packet.is_translated;
        if left["fib"]["result"] == "type"
            && is_own
            && left["fib"]["flags"].to_string().matches('"').count() == 2
        {
            let is_local = right.to_string().contains("\"local\"");
            return Some(is_local == (op != "!="));
        }
        if let Some(items) = self.elements(right) {
            let mut is_member = false;
            for item in &items {
                match self.is_in(left, plain(item)) {
                    Some(true) => is_member = true,
                    Some(false) => {}
                    None => return None,
                }
            }
            if left.get("concat").is_none() && self.number(left)?.is_none() && self.interface(left).is_none()
            {
                return Some(false);
            }
            return Some(is_member == (op != "!="));
        }
        if right.as_str().is_some_and(|text| text.starts_with('@')) {
            return None;
        }
        if self.interface(left).is_some() {
            return Some(self.is_in(left, right)? == (op != "!="));
        }
        let Some(value) = self.number(left)? else { return Some(false) };
        let is_flags = left["payload"]["field"] == "flags";
        match op {
            "==" => self.is_in(left, right),
            "in" if is_flags => Some(value & constant(left, right)? != 0),
            "in" => self.is_in(left, right),
            "!" => Some(value & constant(left, right)? == 0),
            "!=" => Some(!self.is_in(left, right)?),
            "<" => Some(value < constant(left, right)?),
            ">" => Some(value > constant(left, right)?),
            "<=" => Some(value <= constant(left, right)?),
            ">=" => Some(value >= constant(left, right)?),
            _ => None,
        }
    }

    /// Whether the connection of the packet has a status or a direction. `None`: not known.
    fn has_of_connection(&self, ct: &Value, value: &Value) -> Option<bool> {
        match value.as_str()? {
            _ if self.is_without_connection() => Some(false),
            "dnat" if self.state == "new" && ct["key"] == "status" => Some(self.packet.is_translated),
            // The first packet of a connection.
            "seen-reply" | "assured" | "reply" if self.state == "new" => Some(false),
            _ => None,
        }
    }

    /// Whether the packet has no entry of connection tracking.
    fn is_without_connection(&self) -> bool {
        matches!(self.state, "invalid" | "untracked")
    }

    fn interface(&self, left: &Value) -> Option<&str> {
        let key = left["meta"]["key"].as_str()?;
        matches!(key, "iif" | "iifname").then_some(self.world.interface.as_str())
    }

    /// Whether a field has a value, or is in a range or prefix.
    fn is_in(&self, left: &Value, item: &Value) -> Option<bool> {
        if let Some(parts) = left.get("concat").and_then(Value::as_array) {
            let items = item["concat"].as_array()?;
            let mut all = Some(true);
            for (left, item) in parts.iter().zip(items) {
                match self.is_in(left, item) {
                    Some(true) => {}
                    Some(false) => return Some(false),
                    None => all = None,
                }
            }
            return all;
        }
        if let Some(ct) = left.get("ct") {
            return match ct["key"] == "state" {
                true => item.as_str().map(|state| state == self.state),
                false => self.has_of_connection(ct, item),
            };
        }
        if let Some(interface) = self.interface(left) {
            let name = item.as_str()?;
            return Some(match name.strip_suffix('*') {
                Some(start) => interface.starts_with(start),
                None => interface == name,
            });
        }
        let Some(value) = self.number(left)? else { return Some(false) };
        if let Some(range) = item.get("range") {
            return Some((constant(left, &range[0])?..=constant(left, &range[1])?).contains(&value));
        }
        if let Some(prefix) = item.get("prefix") {
            let bits = if left["payload"]["protocol"] == "ip" { 32 } else { 128 };
            let free = bits - u32::try_from(prefix["len"].as_u64()?).ok()?;
            let first = constant(left, &prefix["addr"])?;
            return Some(free == 128 || value >> free == first >> free);
        }
        Some(value == constant(left, item)?)
    }

    /// The value of a field: `None`: not known; `Some(None)`: the packet does not have it, so that the rule
    /// ends.
    fn number(&self, left: &Value) -> Option<Option<u128>> {
        let p = &*self.packet;
        if let Some(key) = left["meta"]["key"].as_str() {
            return match key {
                "l4proto" => Some((p.version != 0).then_some(p.protocol.into())),
                "nfproto" => Some((p.version != 0).then_some(if p.version == 4 { 2 } else { 10 })),
                "protocol" => Some(Some(p.ether_type.into())),
                _ => None,
            };
        }
        let payload = left.get("payload")?;
        let (protocol, field) = (payload["protocol"].as_str()?, payload["field"].as_str()?);
        let value: u128 = match (protocol, field) {
            ("ether", "saddr") => p.src_mac.into(),
            ("ether", "daddr") => p.dst_mac.into(),
            ("ether", "type") => p.ether_type.into(),
            ("ip" | "ip6", "saddr") => p.src,
            ("ip" | "ip6", "daddr") => p.dst,
            ("ip", "protocol") => p.protocol.into(),
            ("ip6", "nexthdr") => p.next_header.into(),
            ("ip", "ttl") | ("ip6", "hoplimit") => p.ttl.into(),
            ("ip" | "ip6", "dscp") => p.dscp.into(),
            ("ip", "frag-off") => {
                if p.is_later_fragment && !self.is_whole {
                    100
                } else {
                    0
                }
            }
            ("tcp" | "udp" | "th" | "sctp", "sport") => p.src_port.into(),
            ("tcp" | "udp" | "th" | "sctp", "dport") => p.dst_port.into(),
            ("tcp", "flags") => p.tcp_flags.into(),
            ("icmp" | "icmpv6", "type") => p.icmp_type.into(),
            ("icmp" | "icmpv6", "code") => p.icmp_code.into(),
            _ => return None,
        };
        let needed = match protocol {
            "tcp" => Some(6),
            "udp" => Some(17),
            "sctp" => Some(132),
            "icmp" => Some(1),
            "icmpv6" => Some(58),
            _ => None,
        };
        let version = match protocol {
            "ip" | "icmp" => Some(4),
            "ip6" | "icmpv6" => Some(6),
            _ => None,
        };
        let is_transport = needed.is_some() || protocol == "th";
        let has_header = needed.is_none_or(|needed| needed == p.protocol)
            && version.is_none_or(|version| version == p.version)
            && !(is_transport && (p.version == 0 || (p.is_later_fragment && !self.is_whole)));
        Some(has_header.then_some(value))
    }
}

/// An element without its timeout.
fn plain(item: &Value) -> &Value {
    item.pointer("/elem/val").unwrap_or(item)
}

/// A constant that is compared with a field. `None`: its meaning is not known here.
fn constant(left: &Value, value: &Value) -> Option<u128> {
    if let Some(list) = value.get("|").unwrap_or(value).as_array() {
        return list.iter().try_fold(0, |all, one| Some(all | constant(left, one)?));
    }
    if let Some(number) = value.as_u64() {
        return Some(number.into());
    }
    let name = value.as_str()?;
    if let Ok(v4) = name.parse::<std::net::Ipv4Addr>() {
        return Some(u32::from(v4).into());
    }
    if let Ok(v6) = name.parse::<std::net::Ipv6Addr>() {
        return Some(v6.into());
    }
    let parts: Vec<&str> = name.split(':').collect();
    if parts.len() == 6 {
        return parts.iter().try_fold(0, |all, part| Some(all << 8 | u128::from_str_radix(part, 16).ok()?));
    }
    named_constant(left, name)
}

/// A constant that nft shows by its name.
fn named_constant(left: &Value, name: &str) -> Option<u128> {
    let key = left["meta"]["key"].as_str().or(left["payload"]["field"].as_str())?;
    let is_v6 = left["payload"]["protocol"] == "icmpv6";
    Some(match (key, name) {
        ("nfproto", "ipv4") => 2,
        ("nfproto", "ipv6") => 10,
        ("protocol" | "type", "ip") => 0x800,
        ("protocol" | "type", "ip6") => 0x86dd,
        ("protocol" | "type", "arp") => 0x806,
        (_, "icmp") => 1,
        (_, "igmp") => 2,
        (_, "tcp") => 6,
        (_, "udp") => 17,
        (_, "gre") => 47,
        (_, "esp") => 50,
        (_, "ah") => 51,
        (_, "icmpv6" | "ipv6-icmp") => 58,
        (_, "sctp") => 132,
        ("flags", "fin") => 1,
        ("flags", "syn") => 2,
        ("flags", "rst") => 4,
        ("flags", "psh") => 8,
        ("flags", "ack") => 16,
        ("flags", "urg") => 32,
        ("flags", "ecn") => 64,
        ("flags", "cwr") => 128,
        ("type", "echo-reply") => {
            if is_v6 {
                129
            } else {
                0
            }
        }
        ("type", "echo-request") => {
            if is_v6 {
                128
            } else {
                8
            }
        }
        ("type", "destination-unreachable") => {
            if is_v6 {
                1
            } else {
                3
            }
        }
        ("type", "packet-too-big") => 2,
        ("type", "time-exceeded") => {
            if is_v6 {
                3
            } else {
                11
            }
        }
        ("type", "parameter-problem") => {
            if is_v6 {
                4
            } else {
                12
            }
        }
        ("type", "nd-router-solicit") => 133,
        ("type", "nd-router-advert") => 134,
        ("type", "nd-neighbor-solicit") => 135,
        ("type", "nd-neighbor-advert") => 136,
        ("type", "mld-listener-query") => 130,
        ("type", "mld-listener-report") => 131,
        ("dscp", "ef") => 46,
        ("dscp", "cs0") => 0,
        ("dscp", "cs1") => 8,
        ("dscp", "cs6") => 48,
        _ => return None,
    })
}
