//! Ethernet addresses as values: printed, read and asked about, never looked up.

use std::fmt;
use std::str::FromStr;

use crate::PacketTextError;

/// A 48-bit Ethernet address, in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set; broadcast is a group address too (IEEE 802-2014, 8.2.2).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this is the all-ones address.
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = PacketTextError;

    /// Reads `aa:bb:cc:dd:ee:ff` or `aa-bb-cc-dd-ee-ff`; each octet has one or two digits.
    fn from_str(text: &str) -> Result<Self, PacketTextError> {
        let fail = || PacketTextError::MacAddr { text: text.to_owned() };
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part = parts.next().ok_or_else(fail)?;
            // `from_str_radix` would also take a sign.
            if !(1..=2).contains(&part.len()) || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(fail());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| fail())?;
        }
        if parts.next().is_some() {
            return Err(fail());
        }
        Ok(Self(octets))
    }
}

/// A MAC address as a number of 48 bits.
pub fn mac_number(mac: MacAddr) -> u128 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f]).into()
}

/// The MAC address of a number of 48 bits.
pub fn mac_address(number: u64) -> MacAddr {
    let [_, _, octets @ ..] = number.to_be_bytes();
    MacAddr(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let mac = MacAddr([0x02, 0x00, 0x5e, 0x10, 0xff, 0x0a]);
        assert_eq!(mac.to_string(), "02:00:5e:10:ff:0a");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("2-0-5E-10-FF-A".parse(), Ok(mac));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "02",
            "02:00:5e:10:ff",
            "02:00:5e:10:ff:0a:01",
            "02:00:5e:10:ff:0g",
            "02:00:5e:10:ff:+a",
            "02:00:5e:10:ff:",
            "002:00:5e:10:ff:0a",
            "02:00-5e:10:ff:0a",
            "02005e10ff0a",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(PacketTextError::MacAddr { text: text.to_owned() }));
        }
    }

    #[test]
    fn the_group_bit_decides_multicast() {
        assert!(MacAddr([0x01, 0, 0x5e, 0, 0, 1]).is_multicast());
        assert!(MacAddr([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
        assert!(!MacAddr([0x02, 0xff, 0xff, 0xff, 0xff, 0xff]).is_multicast());
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(!MacAddr([0x01, 0, 0x5e, 0, 0, 1]).is_broadcast());
    }
}
