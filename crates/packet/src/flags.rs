//! Flag bits of headers: the names that operators write and read, beside the numbers' in `numbers`.

/// A flag and its bit, in the order in which the flags are written.
pub type Flag = (&'static str, u8);

/// The flags byte of a TCP header (RFC 9293).
pub const TCP_FLAGS: [Flag; 8] = [
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
];

/// The three bits of an IPv4 header as a number (RFC 791).
pub const IP_FLAGS: [Flag; 3] = [("mf", 1), ("df", 2), ("reserved", 4)];

/// The upper byte of a GRE header's first word (RFC 2784 and 2890). A routing field (0x40) is of version 0 no longer.
pub const GRE_FLAGS: [Flag; 3] = [("sequence", 0x10), ("key", 0x20), ("checksum", 0x80)];

/// The flags of `mask` as a policy has them: those that `value` has by name, the others behind `!`.
///
/// ```
/// assert_eq!(packet::flag_pattern(&packet::TCP_FLAGS, 0x02, 0x12), "syn,!ack");
/// ```
pub fn flag_pattern(known: &[Flag], value: u8, mask: u8) -> String {
    let asked = known.iter().filter(|(_, bit)| mask & bit != 0);
    let words =
        asked.map(|(name, bit)| if value & bit != 0 { (*name).to_owned() } else { format!("!{name}") });
    words.collect::<Vec<_>>().join(",")
}
