//! Every key of the language, once: the parser refuses what is not here, the schema is made of it, and the
//! reference page is held to it. A key that is added here and not read is found by a test.

/// What may stand behind a key.
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
    /// One of these words.
    Word(&'static [&'static str]),
    /// Strings or numbers up to this one: a value, a list, names of sets, each also as `{ not = ... }`.
    Numbers(u64),
    /// Strings: a value, a list, names of sets, each also as `{ not = ... }`.
    Strings,
    /// A shape of its own, by its name in the schema's `$defs`.
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
    /// Whether the table is wrong without it.
    pub(crate) required: bool,
    /// Whether a packet inside a tunnel has it, too; of keys of a match only.
    pub(crate) inner: bool,
    /// What it means, in a line.
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

use Values::{Boolean, Integer, ListOf, Numbers, Shape, Strings, TableOf, Text, True, Word};

pub(crate) const POLICY: &[Key] = &[
    required("version", Integer(1, 1), "The version of the language."),
    key("default", Shape("default"), "What happens to packets that no rule claims; \"kernel\" if left out."),
    key("default_multicast", Shape("default"), "The same for multicast alone, as a last rule of that name."),
    key(
        "allow_lost_exceptions",
        Boolean,
        "Whether packets that are left to the kernel may come to workers, where they are lost; false if left out.",
    ),
    key("includes", ListOf("file_name"), "Other policy files, read before this one; relative to it."),
    key(
        "variables",
        TableOf("variable"),
        "Values for ${name}, unless whoever loads the policy gives others.",
    ),
    key("sets", TableOf("set"), "Lists by name, for use in matches."),
    key("groups", TableOf("group"), "Workers that share traffic."),
    key("rules", ListOf("rule"), "The first that matches decides."),
];

/// A set has one of the first two.
pub(crate) const SET: &[Key] = &[FILE, ITEMS, ALLOW_EMPTY, MIN_ITEMS];
pub(crate) const SET_FILE: &[Key] = &[FILE, ALLOW_EMPTY, MIN_ITEMS];
pub(crate) const SET_ITEMS: &[Key] = &[ITEMS, ALLOW_EMPTY, MIN_ITEMS];

const FILE: Key = required("file", Text, "One value per line, # begins a comment; relative to the policy.");
const ITEMS: Key = required("items", Shape("set_items"), "Values and names of other sets.");
const ALLOW_EMPTY: Key =
    key("allow_empty", Boolean, "Whether the set may have no values; an error if left out.");
const MIN_ITEMS: Key = key("min_items", Integer(1, 1 << 20), "Fewer values than this are an error.");

pub(crate) const GROUP: &[Key] = &[
    key("workers", Shape("workers"), "Who is in it: \"all\" or a list of numbers."),
    key("weights", TableOf("weight"), "A share for each worker, by its number."),
    key("hash", Shape("hash"), "What is hashed: \"l3l4\", \"l3\", \"none\" or a list of fields."),
    key("symmetric", Boolean, "Whether both directions of a connection meet on one worker."),
    key("key", Text, "The Toeplitz key: \"symmetric\", \"microsoft\" or 40 bytes in hexadecimal."),
    key("table_size", Integer(1, 1 << 16), "Entries to spread over, a power of two."),
];

pub(crate) const RULE: &[Key] = &[
    required("name", Text, "Unique; counters are named after it."),
    required("match", Shape("match"), "Which packets it claims; all keys must match."),
    required("action", Shape("action"), "What it does with them."),
    key("direction", Word(&["ingress", "egress"]), "Which way the packets go; \"ingress\" if left out."),
    key("priority", Integer(-32_768, 32_767), "Lower ones go first; 0 if left out."),
    key("count", Boolean, "Whether its counters are exported; true if left out."),
];

pub(crate) const ACTION: &[Key] = &[
    key("steer", Text, "Spread over the workers of this group."),
    key("copy", Text, "Give a copy to this group; the packet goes on to later rules."),
    key("sniff", Text, "Let this group hear what passes the port, both ways; the packet goes on."),
];

pub(crate) const NOT: &[Key] = &[required("not", Shape("values"), "The values that do not match.")];

const U32: Values = Numbers(u32::MAX as u64);

pub(crate) const MATCH: &[Key] = &[
    header("any", True, "Every packet; stands alone."),
    header("src_mac", Strings, "Source MAC, also with a mask."),
    header("dst_mac", Strings, "Destination MAC, also with a mask, multicast or broadcast."),
    header(
        "ethertype",
        Numbers(0xffff),
        "The type behind the VLAN tags; up to 1500 the length of an 802.3 frame.",
    ),
    header("vlan", Numbers(4095), "Id of the outermost tag; none or any."),
    header("vlan_priority", Numbers(7), "Priority of the outermost tag."),
    header("vlan_tpid", Numbers(0xffff), "Tag protocol of the outermost tag."),
    header("inner_vlan", Numbers(4095), "Id of the second tag; none or any."),
    header("inner_vlan_tpid", Numbers(0xffff), "Tag protocol of the second tag."),
    header("family", Word(&["ipv4", "ipv6"]), "A well-formed header of that IP version."),
    header("src", Strings, "Source address: address, prefix or range."),
    header("dst", Strings, "Destination address: address, prefix or range."),
    header("protocol", Numbers(255), "IPv4 protocol or first IPv6 next header."),
    header("tos", Numbers(255), "The whole IPv4 type of service or IPv6 traffic class."),
    header("traffic_class", Numbers(255), "The same of IPv6 alone."),
    header("dscp", Numbers(63), "The upper six bits of it: ef, af41, cs6."),
    header("ecn", Numbers(3), "The lower two bits of it: not_ect, ect1, ect0, ce."),
    header("ttl", Numbers(255), "IPv4 time to live or IPv6 hop limit."),
    header("hop_limit", Numbers(255), "The same of IPv6 alone."),
    header("flow_label", Numbers(0xf_ffff), "IPv6 flow label."),
    header("ip_flags", Strings, "IPv4 flags that are set, and with ! not set: df, mf, reserved."),
    header("ip_options", Boolean, "Whether an IPv4 header is longer than 20 bytes."),
    header("fragment", Strings, "any, none, first, later."),
    header("src_port", Numbers(0xffff), "TCP or UDP source port."),
    header("dst_port", Numbers(0xffff), "TCP or UDP destination port."),
    header("tcp_flags", Strings, "TCP flags that are set, and with ! not set."),
    key("esp_spi", U32, "Security parameters index of ESP."),
    key("esp_seq", U32, "Sequence number of ESP."),
    key("vxlan_vni", Numbers(0xff_ffff), "Network identifier of VXLAN."),
    key("gre_protocol", Numbers(0xffff), "Ethertype of what GRE carries."),
    key("gre_key", U32, "Key of GRE; there must be one."),
    key(
        "gre_flags",
        Strings,
        "Optional fields of GRE that are there, and with ! not: checksum, key, sequence.",
    ),
    header("mpls", Shape("mpls"), "The label stack from the top, or any."),
    key("inner", Shape("inner_match"), "The packet inside the first tunnel, with the same keys."),
];

pub(crate) const MPLS: &[Key] = &[
    key("label", Numbers(0xf_ffff), "The label."),
    key("tc", Numbers(7), "The traffic class."),
    key("bottom", Boolean, "Whether it is the last of the stack."),
    key("ttl", Numbers(255), "The time to live."),
];

/// The keys of `inner`.
pub(crate) fn inner_match() -> impl Iterator<Item = &'static Key> {
    MATCH.iter().filter(|key| key.inner)
}
