//! The crate's one error type: text that an operator wrote and that names no address, number or key.
//!
//! Only the `FromStr` implementations return it; nothing on the packet path does.

/// Why a piece of text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketTextError {
    /// Not six hexadecimal octets.
    #[error("`{text}` is not a MAC address: write six hexadecimal octets, such as 02:00:00:00:00:01")]
    MacAddr {
        /// The given text.
        text: String,
    },
    /// Neither a known EtherType name nor a number that fits 16 bits.
    #[error("`{text}` is not an EtherType: write a name such as ipv4 or arp, or a number such as 0x88cc")]
    EtherType {
        /// The given text.
        text: String,
    },
    /// Neither a known IP protocol name nor a number that fits 8 bits.
    #[error("`{text}` is not an IP protocol: write a name such as tcp or icmpv6, or a number from 0 to 255")]
    IpProtocol {
        /// The given text.
        text: String,
    },
    /// Not forty hexadecimal octets.
    #[error("an RSS key is 40 octets, written as 80 hexadecimal digits with or without colons; {reason}")]
    RssKey {
        /// The fault of the given text.
        reason: String,
    },
}
