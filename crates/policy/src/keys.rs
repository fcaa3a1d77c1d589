//! The table of all keys of the language. The parser refuses other keys, the schema is generated from it, and
//! tests compare the reference page with it and check that the parser reads every key.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use packet::{FIELDS, Form};
use program::{
    APP_CLIENT_MIB, APP_CLIENTS_MAX, APP_RING_SIZES, APP_RINGS_MAX, CaptureSink, FlowExport, KernelSink,
    RUNTIME_RULES_MAX, RecorderRing, SourceLimit,
};

use crate::policy::{self, MAX_LABEL, MAX_LABEL_CLASS, MAX_SET_VALUES, MAX_TABLE_SIZE, PRIORITIES, VERSION};

/// The values that a key may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// `true` only.
    True,
    /// `true` or `false`.
    Boolean,
    /// A whole number within these bounds.
    Integer(i64, i64),
    /// Any string; the parser checks what is in it.
    Text,
    /// One of these words, or a list of them.
    Words(&'static [&'static str]),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Strings or numbers up to this one: a value, a list, names of sets, each also as `{ not = ... }`.
    Numbers(u64),
    /// Strings: a value, a list, names of sets, each also as `{ not = ... }`.
    Strings,
    /// A shape by its name in the schema's `$defs`.
    Shape(&'static str),
    /// A table of any names with values of this shape.
    TableOf(&'static str),
    /// A list of this shape.
    ListOf(&'static str),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) values: Values,
    /// Whether the table must have it.
    pub(crate) required: bool,
    /// Whether `inner` has it, too; for keys of a match only.
    pub(crate) inner: bool,
    /// A description in one line.
    pub(crate) doc: &'static str,
}

const fn key(name: &'static str, values: Values, doc: &'static str) -> Key {
    Key { name, values, required: false, inner: false, doc }
}

const fn required(name: &'static str, values: Values, doc: &'static str) -> Key {
    Key { name, values, required: true, inner: false, doc }
}

/// A key of a match that is also one of `inner`.
const fn header(name: &'static str, values: Values, doc: &'static str) -> Key {
    Key { name, values, required: false, inner: true, doc }
}

use Values::{Boolean, Integer, ListOf, Numbers, Shape, Strings, TableOf, Text, True, Word, Words};

pub(crate) const POLICY: &[Key] = &[
    required("version", Integer(VERSION as i64, VERSION as i64), "The version of the language."),
    key("default", Shape("default"), "The action for unmatched packets; \"kernel\" if left out."),
    key(
        "default_multicast",
        Shape("default"),
        "The action for unmatched multicast packets, as a last rule of that name.",
    ),
    key(
        "allow_lost_exceptions",
        Boolean,
        "Whether packets that are left to the kernel may reach workers, where they are lost; false if left out.",
    ),
    key("ipv6_extensions", IPV6_EXTENSIONS, "The value for rules without this key; \"stop\" if left out."),
    key("includes", ListOf("file_name"), "Other policy files, read before this one; relative to it."),
    key(
        "variables",
        TableOf("variable"),
        "Values for ${name}, unless others are given when the policy is loaded.",
    ),
    key("sets", TableOf("set"), "Lists by name, for use in matches."),
    key("sinks", TableOf("sink"), "Where delivered packets go."),
    key("groups", TableOf("group"), "Workers that share traffic."),
    key(
        "protect",
        Shape("protect"),
        "Packets that must reach the host; the policy is refused if some may not.",
    ),
    key(
        "runtime",
        Shape("runtime"),
        "Rules that may be added while the policy is in force; none if left out.",
    ),
    key("recorder", Shape("recorder"), "The packets that workers keep in memory; none if left out."),
    key("rules", ListOf("rule"), "The first that matches decides."),
    key("tests", ListOf("test"), "Packets, and the decision that the policy is to make about them."),
];

const IPV6_EXTENSIONS: Values = Word(&["stop", "skip"]);

/// A set has either `file` or `items`.
pub(crate) const SET: &[Key] = &[FILE, ITEMS, ALLOW_EMPTY, MIN_ITEMS, MAX_CHANGE];
pub(crate) const SET_FILE: &[Key] = &[FILE, ALLOW_EMPTY, MIN_ITEMS, MAX_CHANGE];
pub(crate) const SET_ITEMS: &[Key] = &[ITEMS, ALLOW_EMPTY, MIN_ITEMS, MAX_CHANGE];

const FILE: Key = required("file", Text, "One value per line, # begins a comment; relative to the policy.");
const ITEMS: Key = required("items", Shape("set_items"), "Values and names of other sets.");
const ALLOW_EMPTY: Key =
    key("allow_empty", Boolean, "Whether the set may have no values; an error if left out.");
const MIN_ITEMS: Key =
    key("min_items", Integer(1, MAX_SET_VALUES as i64), "Fewer values than this are an error.");

const MAX_CHANGE: Key = key(
    "max_change",
    Integer(1, policy::MAX_CHANGE as i64),
    "A reload that changes the number of values by more than so many percent needs --force; any change if left out.",
);

pub(crate) const GROUP: &[Key] = &[
    key("workers", Shape("workers"), "Its workers: \"all\", the number of them or a list of their numbers."),
    key(
        "queues",
        ListOf("queue"),
        "Receive queues of the interface, for programs that take packets from them; instead of all other keys.",
    ),
    key("weights", TableOf("weight"), "A share for each worker, by its number; 0 for none."),
    key("hash", Shape("hash"), "The hash fields: \"l3l4\", \"l3\", \"none\" or a list of fields."),
    key("symmetric", Boolean, "Whether both directions of a connection reach the same worker."),
    key("key", Text, "The Toeplitz key: \"symmetric\", \"microsoft\" or 40 bytes in hexadecimal."),
    key("table_size", Integer(1, MAX_TABLE_SIZE as i64), "Entries of the indirection table, a power of two."),
    key("sinks", Shape("sink_names"), "Where its packets go: each of these sinks gets all of them."),
    DESCRIPTION,
];

pub(crate) const RULE: &[Key] = &[
    required("name", Text, "Unique; counters are named after it."),
    required("match", Shape("match"), "The packets that it applies to; all keys must match."),
    required("action", Shape("action"), "What it does with them."),
    key("direction", Word(&["ingress", "egress"]), "Received or sent packets; \"ingress\" if left out."),
    key(
        "priority",
        Integer(PRIORITIES.0 as i64, PRIORITIES.1 as i64),
        "Rules with lower numbers come first; 0 if left out.",
    ),
    key(
        "ipv6_extensions",
        IPV6_EXTENSIONS,
        "\"skip\": match protocol, ports and the like behind IPv6 extension headers as well; \"stop\": only right behind the IP header.",
    ),
    key("count", Boolean, "Whether its counters are exported; true if left out."),
    key("sinks", Shape("sink_names"), "Where its packets go, instead of the group's sinks."),
    key("sample", Integer(1, MAX), "Of this many packets one goes to the sinks; all if left out."),
    key(
        "limit",
        Text,
        "The most packets or bits of frames per second that go to the sinks: \"10k/s\", \"100Mbit/s\"; all if left out.",
    ),
    key(
        "burst",
        Shape("burst"),
        "How many packets, or bytes (\"64kB\"), may exceed `limit` at once; those of 0.1 s, but at least 64 or 65536B, if left out.",
    ),
    key(
        "per",
        Shape("per"),
        "\"source\": the limit is one of each source address; a table has prefixes and the size of the table.",
    ),
    DESCRIPTION,
];

const DESCRIPTION: Key = key("description", Text, "A text for people, of at most 1024 bytes in lines.");

/// The keys of `per`.
pub(crate) const PER: &[Key] = &[
    key("source_ipv4", Integer(1, 32), "The leading bits of an IPv4 source address; 32 if left out."),
    key("source_ipv6", Integer(1, 128), "The leading bits of an IPv6 source address; 64 if left out."),
    key(
        "sources",
        within(SourceLimit::SOURCES),
        "How many sources each worker has room for; 16384 if left out.",
    ),
];

const MAX: i64 = u32::MAX as i64;

const fn within(range: RangeInclusive<u32>) -> Values {
    Integer(*range.start() as i64, *range.end() as i64)
}

/// The kinds of sinks, each with its keys beside `kind`.
pub(crate) const SINKS: &[(&str, &[Key])] = &[
    (
        "count",
        &[
            key(
                "top_flows",
                Integer(0, program::MAX_TOP_FLOWS as i64),
                "The number of flows with most packets that each worker counts; 0 if left out.",
            ),
            key(
                "export",
                Text,
                "The collector that gets all flows by IPFIX: \"ipfix://192.0.2.7:4739\", or \"ipfix+tcp://...\"; none if left out.",
            ),
            key(
                "flows",
                within(FlowExport::FLOWS),
                "The number of flows that each worker has at once for `export`; 16384 if left out.",
            ),
            key(
                "active_seconds",
                within(FlowExport::FLOW_SECONDS),
                "After how many seconds a flow that goes on is exported; 60 if left out.",
            ),
            key(
                "idle_seconds",
                within(FlowExport::FLOW_SECONDS),
                "After how many seconds without packets a flow is exported; 15 if left out.",
            ),
            key(
                "template_seconds",
                within(FlowExport::TEMPLATE_SECONDS),
                "The seconds between two transmissions of the templates over UDP; 60 if left out.",
            ),
            key(
                "observation_domain",
                Integer(0, MAX),
                "The number by which the collector tells exporters of one address apart; 1 if left out.",
            ),
        ],
    ),
    (
        "kernel",
        &[
            required(
                "interface",
                Text,
                "The name of the TAP interface, which is created if it does not exist.",
            ),
            key("mac", Text, "Its address: \"port\", if left out, \"keep\" or an address."),
            key(
                "mtu",
                Integer(*KernelSink::MTU.start() as i64, *KernelSink::MTU.end() as i64),
                "Its MTU; that of the port if left out.",
            ),
            key("transmit", Boolean, "Whether the port sends what the host sends by it; true if left out."),
            key(
                "port",
                Integer(1, 255),
                "The port of the device that it stands for; the first in use if left out.",
            ),
            key(
                "ring_bytes",
                Integer(*KernelSink::RING_BYTES.start() as i64, *KernelSink::RING_BYTES.end() as i64),
                "The buffer of each worker; 1048576 if left out.",
            ),
        ],
    ),
    (
        "capture",
        &[
            required("path", Text, "A folder for the files, or a file name pattern that contains {time}."),
            key(
                "snap_bytes",
                within(1..=CaptureSink::SNAP_BYTES_MAX),
                "Octets of a packet that are written; all if left out.",
            ),
            key("one_in", Integer(1, MAX), "Of this many packets one is written; 1 if left out."),
            key(
                "first_of_flow",
                Integer(0, MAX),
                "Packets of each flow that are written; 0, all, if left out.",
            ),
            key(
                "file_mb",
                within(CaptureSink::FILE_MB),
                "The length at which the next file is begun; 100 if left out.",
            ),
            key(
                "file_seconds",
                Integer(0, MAX),
                "The age at which the next file is begun; 0, none, if left out.",
            ),
            key(
                "disk_mb",
                within(CaptureSink::DISK_MB),
                "The room of all files, kept by deleting the oldest; 1000 if left out.",
            ),
            key(
                "ring_bytes",
                within(CaptureSink::RING_BYTES),
                "The buffer of each worker; 4194304 if left out.",
            ),
        ],
    ),
    (
        "app",
        &[
            required("socket", Text, "The unix socket that clients connect to, an absolute path."),
            key(
                "socket_mode",
                Text,
                "Permissions of the socket in octal; \"0600\" if left out, \"0666\" with `uids` or `gids`.",
            ),
            key(
                "mode",
                Word(&["copy", "share"]),
                "Whether each client gets every packet or whole flows; \"copy\" if left out.",
            ),
            key("clients", Integer(1, APP_CLIENTS_MAX as i64), "The most clients; 8 if left out."),
            key("uids", Shape("ids"), "Users that may connect, beside root and the user of the daemon."),
            key("gids", Shape("ids"), "Groups whose members may connect."),
            key(
                "rings",
                Integer(1, APP_RINGS_MAX as i64),
                "The most rings of a client in each direction; 16 if left out.",
            ),
            key(
                "ring_size",
                Integer(*APP_RING_SIZES.start() as i64, *APP_RING_SIZES.end() as i64),
                "The most descriptors in a ring, a power of two; 4096 if left out.",
            ),
            key(
                "client_mib",
                Integer(*APP_CLIENT_MIB.start() as i64, *APP_CLIENT_MIB.end() as i64),
                "The most shared memory of one client, in MiB; 256 if left out.",
            ),
            key("transmit", Boolean, "Whether the port sends what clients send; false if left out."),
            key(
                "port",
                Integer(1, 255),
                "The port of the device that it is sent by; a device with one port needs none.",
            ),
        ],
    ),
    (
        "forward",
        &[
            key("device", Text, "The device that packets leave by; the one that they come from if left out."),
            key(
                "port",
                Integer(1, 255),
                "The port of the device that packets leave by; `reflect` needs none on a device with one port.",
            ),
            key(
                "mode",
                Word(FORWARD_MODES),
                "Send packets as they are, or as answers; `forward` if left out.",
            ),
            key("mac", Word(&["swap"]), "Exchange source and destination address."),
            key("src_mac", Text, "The new source address."),
            key("dst_mac", Text, "The new destination address."),
            key("vlan", Shape("vlan_change"), "What becomes of the VLAN tags."),
        ],
    ),
];

pub(crate) const FORWARD_MODES: &[&str] = &["forward", "reflect"];

/// `vlan` of a sink of kind `forward`, of which it has one.
pub(crate) const VLAN_CHANGE: &[Key] = &[
    key("set", Integer(0, 4095), "The new identifier of the outer tag; an untagged packet gets a tag."),
    key("push", Integer(0, 4095), "The identifier of an additional outer tag."),
    key("pop", True, "Remove the outer tag."),
];

pub(crate) const SINK_KIND: Key = required("kind", Text, "What the sink does with packets.");

pub(crate) const PROTECT: &[Key] = &[
    key(
        "ports",
        Numbers(u16::MAX as u64),
        "Ports of the host's services: 53, \"22/tcp\", \"6000-6010/udp\", \"2905/sctp\".",
    ),
    key(
        "remote_ports",
        Numbers(u16::MAX as u64),
        "Ports of services that the host uses elsewhere: their answers are protected.",
    ),
    key(
        "addresses",
        Strings,
        "The destination addresses of protected ports; of all packets where no port is listed.",
    ),
    key(
        "sources",
        Strings,
        "The source addresses of protected ports; of all packets where no port is listed.",
    ),
    key(
        "own_addresses",
        Strings,
        "The IPv6 addresses of this host: nd and ra are protected where they are to it or its groups.",
    ),
    key("vlan", Numbers(4095), "The tag of protected packets; none, any or ids. Any or no tag if left out."),
    key(
        "protocols",
        Shape("protocols"),
        "arp, nd, ra, dhcp, ssh, bfd, ethertypes and IP protocols; [\"arp\", \"nd\", \"ra\"] if left out.",
    ),
    key("matches", ListOf("match"), "Other protected packets, each as the match of a rule."),
];

pub(crate) const RUNTIME: &[Key] = &[
    key("before", Text, "The rule of the policy that they stand before; \"default\" if left out."),
    required(
        "matches",
        ListOf("form"),
        "The fields that a rule may compare, all of one entry; the first entry with a rule decides.",
    ),
    required("actions", ListOf("action"), "The actions that they may have: drop, kernel, steer."),
    key("rules", Integer(0, RUNTIME_RULES_MAX as i64), "The most rules; 65536 if left out."),
    key(
        "device_rules",
        Integer(0, RUNTIME_RULES_MAX as i64),
        "The most of them that act in the device; 1024 if left out.",
    ),
    key(
        "owners",
        TableOf("rule_count"),
        "The most rules of further users, by user id, who may then add and remove their own.",
    ),
];

pub(crate) const RECORDER: &[Key] = &[
    required("memory", Text, "The memory of all workers together, e.g. \"256 MiB\"."),
    key("snap", within(RecorderRing::SNAP_BYTES), "Octets of a packet that are kept; 128 if left out."),
    key(
        "rules",
        ListOf("rule_name"),
        "The rules whose packets are kept; all packets that workers decide if left out.",
    ),
    key("triggers", ListOf("trigger"), "The conditions under which a record is written to a file."),
];

/// The keys of a trigger, those of one condition side by side.
pub(crate) const TRIGGER: &[Key] = &[
    key("sink", Text, "A sink, with `drops_per_second`."),
    key("drops_per_second", Integer(1, MAX), "So many packets that the sink drops in a second, or more."),
    key("rule", Text, "A rule, with `packets_per_second`."),
    key("packets_per_second", Integer(1, MAX), "So many packets that the rule decides in a second, or more."),
    key("worker_stalls", True, "A worker makes no progress."),
];

pub(crate) const TEST: &[Key] = &[
    key("name", Text, "The name in messages; the line if left out."),
    key("packet", Text, "One packet by its fields: \"dst=192.0.2.53,protocol=udp,dst_port=53\"."),
    key("frame", Text, "One packet in hexadecimal."),
    key("every", Shape("match"), "Every packet that meets these conditions, as the match of a rule."),
    key("capture", Text, "Every packet of a pcap or pcapng file; relative to the policy."),
    key("direction", Word(&["ingress", "egress"]), "Received or sent packets; \"ingress\" if left out."),
    key("expect", Word(&["drop", "kernel", "steer", "pass"]), "The action that the packets meet."),
    key("rule", Text, "The rule that decides them, or \"default\"."),
    key("group", Text, "The group that they go to."),
    key("host", Boolean, "Whether the host sees them."),
    key("worker", Integer(0, policy::MAX_WORKER as i64), "The worker that receives them."),
    key("counts", Shape("counts"), "Numbers of packets of the capture."),
];

/// The keys of a test that a packet can fail.
pub(crate) const EXPECTED: [&str; 5] = ["expect", "rule", "group", "host", "worker"];

pub(crate) const COUNTS: &[Key] = &[
    key("packets", Integer(0, i64::MAX), "All packets."),
    key("drop", Integer(0, i64::MAX), "The packets of rules that drop."),
    key("kernel", Integer(0, i64::MAX), "The packets of rules that leave them to the host."),
    key("steer", Integer(0, i64::MAX), "The packets of rules that steer."),
    key("host", Integer(0, i64::MAX), "The packets that the host sees."),
    key("rules", TableOf("packet_count"), "The packets that each rule decides."),
    key("groups", TableOf("packet_count"), "The packets of each group."),
];

pub(crate) const STEER: Key = key("steer", Text, "Spread over the workers of this group.");

pub(crate) const ACTION: &[Key] = &[
    STEER,
    key("copy", Text, "Deliver a copy to this group; later rules apply to the packet."),
    key("sniff", Text, "Deliver copies of all packets of the port, in both directions, to this group."),
];

pub(crate) const NOT: &[Key] = &[required("not", Shape("values"), "The values that do not match.")];

/// The keys of a match: the rows of [`FIELDS`], other properties of packets, and other ways to write a field.
pub(crate) static MATCH: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = vec![
        header("any", True, "Every packet; cannot be combined with other keys."),
        header(
            "family",
            Words(&["ipv4", "ipv6"]),
            "A well-formed header of that IP version, or of one of them.",
        ),
        header("traffic_class", Numbers(255), "The type of service, of IPv6 packets only."),
        header("dscp", Numbers(63), "The upper six bits of the type of service: ef, af41, cs6."),
        header("ecn", Numbers(3), "The lower two bits of the type of service: not_ect, ect1, ect0, ce."),
        header("hop_limit", Numbers(255), "The time to live, of IPv6 packets only."),
        header("ip_options", Boolean, "Whether an IPv4 header is longer than 20 bytes."),
        header("fragment", Strings, "any, none, first, later."),
        header("mpls", Shape("mpls"), "The label stack from the top, or any."),
        key("inner", Shape("inner_match"), "The packet inside the first tunnel, with the same keys."),
    ];
    for row in &FIELDS {
        let values = match row.form {
            Form::Mac | Form::Address | Form::Flags(_) => Strings,
            // Every other field is a number of at most 32 bits.
            _ => Numbers((1 << row.bits) - 1),
        };
        // An address is one key for both IP versions.
        if keys.iter().all(|key| key.name != row.name) {
            let inner = row.header.is_inside_tunnels();
            keys.push(Key { name: row.name, values, required: false, inner, doc: row.doc });
        }
    }
    keys
});

pub(crate) const MPLS: &[Key] = &[
    key("label", Numbers(MAX_LABEL as u64), "The label."),
    key("tc", Numbers(MAX_LABEL_CLASS as u64), "The traffic class."),
    key("bottom", Boolean, "Whether it is the last of the stack."),
    key("ttl", Numbers(255), "The time to live."),
];

/// The keys of `inner`.
pub(crate) fn inner_match() -> impl Iterator<Item = &'static Key> {
    MATCH.iter().filter(|key| key.inner)
}
