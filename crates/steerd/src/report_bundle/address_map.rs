//! A map of addresses to other addresses, by a random key of one run: equal addresses become equal, and two
//! addresses share as long a prefix afterwards as before.
//!
//! Bit n is flipped or not by a hash of the key and the n bits before it, as in Crypto-PAn (Xu, Fan, Ammar
//! and Moon, "Prefix-Preserving IP Address Anonymization", ICNP 2002). So prefixes stay nested as they were,
//! and adjacent prefixes stay adjacent. Two kinds of bits differ from that paper:
//!
//! - Bits that choose a class which steerd and the network treat apart are kept: multicast of IPv4 and IPv6,
//!   the link-local addresses of IPv6, the group bit and the local bit of a MAC address.
//! - The first bit behind these is always flipped, so that no address becomes itself.
//!
//! Addresses that no network has of its own stay: unspecified, loopback, broadcast. They are not private, and
//! programs treat them apart. The prefixes 0.0.0.0/n and 127.0.0.0/n stay with them; other addresses of
//! 0.0.0.0/8, which no host has (RFC 1122, section 3.2.1.3), are replaced as any.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use packet::MacAddr;
use sha2::{Digest, Sha256};

use crate::address_text::{AddressRewriter, is_common};

const KEY_BYTES: usize = 32;
/// Bits of the address forms.
const IPV4_BITS: u32 = 32;
const IPV6_BITS: u32 = 128;
const MAC_BITS: u32 = 48;

/// 224.0.0.0/4, fe80::/10 and ff00::/8 as the first bits of an address, and their number.
const IPV4_CLASSES: [(u128, u32); 1] = [(0b1110, 4)];
const IPV6_CLASSES: [(u128, u32); 2] = [(0b11_1111_1010, 10), (0b1111_1111, 8)];
/// The bits of the first byte of a MAC address that say whether it is a group's, and locally administered.
const MAC_KIND_BITS: [u32; 2] = [6, 7];
/// Bits of a group address that name the protocol: 01:00:5e for IPv4, 33:33 for IPv6.
const MAC_GROUP_BITS: u32 = 24;

/// A map of addresses.
pub(super) struct AddressMap {
    key: [u8; KEY_BYTES],
}

/// The form of an address, which is a part of what is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressForm {
    Ipv4,
    Ipv6,
    Mac,
    /// Digits of an identifier: a GUID, or a MAC address in a name.
    Digits,
}

impl AddressMap {
    /// A map with a key of the system's random numbers.
    ///
    /// # Errors
    /// The system gives none.
    pub(super) fn random() -> io::Result<Self> {
        let mut key = [0; KEY_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Self { key })
    }

    /// A map with this key, for tests.
    #[cfg(test)]
    pub(super) fn with_key(byte: u8) -> Self {
        Self { key: [byte; KEY_BYTES] }
    }

    /// The address in place of an IP address.
    pub(super) fn ip(&self, address: IpAddr) -> IpAddr {
        self.prefix(address, u8::MAX)
    }

    /// The address in place of a prefix of this length. Bits behind the prefix become zero if they are zero.
    pub(super) fn prefix(&self, address: IpAddr, length: u8) -> IpAddr {
        match address {
            IpAddr::V4(old) => {
                let old = u32::from(old);
                let bits = u32::from(length).min(IPV4_BITS);
                let behind = u32::MAX.checked_shr(bits).unwrap_or(0);
                let bits = if old & behind == 0 { bits } else { IPV4_BITS };
                IpAddr::V4(Ipv4Addr::from(self.ipv4(old, bits)))
            }
            IpAddr::V6(old) => {
                let old = u128::from(old);
                let bits = u32::from(length).min(IPV6_BITS);
                let behind = u128::MAX.checked_shr(bits).unwrap_or(0);
                let bits = if old & behind == 0 { bits } else { IPV6_BITS };
                IpAddr::V6(Ipv6Addr::from(self.ipv6(old, bits)))
            }
        }
    }

    /// The addresses in place of the ends of a range. Where they share a prefix behind the bits that are
    /// kept, it is replaced alone, so that the range has as many addresses as before.
    pub(super) fn range(&self, first: IpAddr, last: IpAddr) -> (IpAddr, IpAddr) {
        let (first_new, last_new) = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let common = (u32::from(first) ^ u32::from(last)).leading_zeros();
                let map = |old: Ipv4Addr| {
                    let old = u32::from(old);
                    let kept = u32::MAX.checked_shr(common).unwrap_or(0) & old;
                    Ipv4Addr::from(self.ipv4(old & !kept, common) | kept)
                };
                (IpAddr::V4(map(first)), IpAddr::V4(map(last)))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let common = (u128::from(first) ^ u128::from(last)).leading_zeros();
                let map = |old: Ipv6Addr| {
                    let old = u128::from(old);
                    let kept = u128::MAX.checked_shr(common).unwrap_or(0) & old;
                    Ipv6Addr::from(self.ipv6(old & !kept, common) | kept)
                };
                (IpAddr::V6(map(first)), IpAddr::V6(map(last)))
            }
            (first, last) => (self.ip(first), self.ip(last)),
        };
        let is_kept = |old: IpAddr, new: IpAddr| old == new && !is_common(old);
        if is_kept(first, first_new) || is_kept(last, last_new) {
            // The common prefix is so short that all of its bits are kept.
            let (one, other) = (self.ip(first), self.ip(last));
            return (one.min(other), one.max(other));
        }
        (first_new, last_new)
    }

    fn ipv4(&self, old: u32, bits: u32) -> u32 {
        if is_common(IpAddr::V4(Ipv4Addr::from(old))) {
            return old;
        }
        let is_kept = |prefix: u128, bit: u32| is_on_way_to(prefix, bit, &IPV4_CLASSES);
        // The value has so many bits.
        self.flipped(AddressForm::Ipv4, old.into(), IPV4_BITS, bits, is_kept) as u32
    }

    fn ipv6(&self, old: u128, bits: u32) -> u128 {
        if is_common(IpAddr::V6(Ipv6Addr::from(old))) {
            return old;
        }
        let is_kept = |prefix: u128, bit: u32| is_on_way_to(prefix, bit, &IPV6_CLASSES);
        self.flipped(AddressForm::Ipv6, old, IPV6_BITS, bits, is_kept)
    }

    /// The address in place of a MAC address.
    pub(super) fn mac(&self, address: MacAddr) -> MacAddr {
        if address.0 == [0; 6] || address.0 == [0xff; 6] {
            return address;
        }
        let old = address.0.iter().fold(0, |value: u128, byte| value << 8 | u128::from(*byte));
        let is_group = address.0[0] & 1 != 0;
        let is_kept = |_: u128, bit: u32| match is_group {
            true => bit < MAC_GROUP_BITS,
            false => MAC_KIND_BITS.contains(&bit),
        };
        let new = self.flipped(AddressForm::Mac, old, MAC_BITS, MAC_BITS, is_kept);
        let [.., a, b, c, d, e, f] = new.to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    /// As many hexadecimal digits in place of these: for those of a MAC address the digits of its new one.
    /// Digits that are no number stay.
    pub(super) fn digits(&self, digits: &str) -> String {
        let Ok(old) = u128::from_str_radix(digits, 16) else { return digits.to_owned() };
        if digits.len() as u32 * 4 == MAC_BITS {
            let [.., a, b, c, d, e, f] = old.to_be_bytes();
            return self.mac(MacAddr([a, b, c, d, e, f])).to_string().replace(':', "");
        }
        let (count, bits) = (digits.len(), digits.len() as u32 * 4);
        let new = self.flipped(AddressForm::Digits, old, bits, bits, |_, _| false);
        format!("{new:0count$x}")
    }

    /// Flips the first `bits` bits of a value of `width` bits. `is_kept`: whether the bit behind this prefix,
    /// of this number, is kept.
    fn flipped(
        &self,
        form: AddressForm,
        old: u128,
        width: u32,
        bits: u32,
        is_kept: impl Fn(u128, u32) -> bool,
    ) -> u128 {
        let mut new = old;
        let mut is_first = true;
        for bit in 0..bits {
            let prefix = old.checked_shr(width - bit).unwrap_or(0);
            if is_kept(prefix, bit) {
                continue;
            }
            if is_first || self.chooses(form, prefix, bit) {
                new ^= 1 << (width - 1 - bit);
            }
            is_first = false;
        }
        new
    }

    /// A random bit for this prefix.
    fn chooses(&self, form: AddressForm, prefix: u128, bit: u32) -> bool {
        let hash = Sha256::new()
            .chain_update(self.key)
            .chain_update([form as u8, bit as u8])
            .chain_update(prefix.to_be_bytes())
            .finalize();
        hash[0] & 1 == 1
    }
}

/// Returns whether a prefix of so many bits is the beginning of a class: the next bit decides about it.
fn is_on_way_to(prefix: u128, bits: u32, classes: &[(u128, u32)]) -> bool {
    classes.iter().any(|(class, length)| bits < *length && class >> (length - bits) == prefix)
}

impl AddressRewriter for AddressMap {
    fn ip(&self, address: IpAddr, mask: Option<&str>) -> String {
        let length = mask.and_then(|mask| mask.parse().ok());
        let new = length.map_or_else(|| self.ip(address), |length| self.prefix(address, length));
        let bits = mask.and_then(|mask| mask.parse::<IpAddr>().ok());
        bits.map_or(new, |bits| masked(new, bits)).to_string()
    }

    fn socket(&self, address: SocketAddr) -> String {
        SocketAddr::new(self.ip(address.ip()), address.port()).to_string()
    }

    fn range(&self, first: IpAddr, last: IpAddr) -> String {
        let (first, last) = self.range(first, last);
        format!("{first}-{last}")
    }

    fn mac(&self, address: MacAddr, mask: Option<MacAddr>) -> String {
        let mut new = self.mac(address);
        if let Some(mask) = mask {
            new.0.iter_mut().zip(mask.0).for_each(|(byte, mask)| *byte &= mask);
        }
        new.to_string()
    }

    fn digits(&self, digits: &str) -> String {
        self.digits(digits)
    }

    /// The address stays: it names a slot, not a host.
    fn pci_address(&self, word: &str) -> String {
        word.to_owned()
    }
}

fn masked(address: IpAddr, mask: IpAddr) -> IpAddr {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => IpAddr::V4(address & mask),
        (IpAddr::V6(address), IpAddr::V6(mask)) => IpAddr::V6(address & mask),
        (address, _) => address,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shared_bits(one: IpAddr, other: IpAddr) -> u32 {
        match (one, other) {
            (IpAddr::V4(one), IpAddr::V4(other)) => (u32::from(one) ^ u32::from(other)).leading_zeros(),
            (IpAddr::V6(one), IpAddr::V6(other)) => (u128::from(one) ^ u128::from(other)).leading_zeros(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn shared_prefixes_stay_as_long(one: u32, other: u32, key: u8, shared in 0u32..32) {
            let keep = u32::MAX.checked_shl(32 - shared).unwrap_or(0);
            let other = (one & keep) | (other & !keep);
            let map = AddressMap::with_key(key);
            let [one, other] = [one, other].map(|bits| IpAddr::V4(Ipv4Addr::from(bits)));
            prop_assume!(!is_common(one) && !is_common(other));
            prop_assert_eq!(shared_bits(map.ip(one), map.ip(other)), shared_bits(one, other));
            prop_assert_ne!(map.ip(one), one);
        }

        #[test]
        fn ipv6_addresses_keep_their_class(one: u128, other: u128, key: u8, shared in 0u32..128) {
            let keep = u128::MAX.checked_shl(128 - shared).unwrap_or(0);
            let other = (one & keep) | (other & !keep);
            let map = AddressMap::with_key(key);
            let [one, other] = [one, other].map(Ipv6Addr::from);
            let [new, other_new] = [one, other].map(|address| map.ip(IpAddr::V6(address)));
            prop_assert_eq!(shared_bits(new, other_new), shared_bits(one.into(), other.into()));
            prop_assert_ne!(new, IpAddr::V6(one));
            let IpAddr::V6(new) = new else { panic!("{new}") };
            prop_assert_eq!(new.is_multicast(), one.is_multicast());
            prop_assert_eq!(new.is_unicast_link_local(), one.is_unicast_link_local());
        }

        #[test]
        fn ranges_keep_their_length(first: u32, length in 0u32..70_000, key: u8) {
            let last = first.saturating_add(length);
            let map = AddressMap::with_key(key);
            let ip = |bits: u32| IpAddr::V4(Ipv4Addr::from(bits));
            // Such a range is not across the addresses of a class.
            prop_assume!((first ^ last).leading_zeros() >= 5 && !is_common(ip(first)) && !is_common(ip(last)));
            let (new_first, new_last) = map.range(ip(first), ip(last));
            let bits = |address| match address {
                IpAddr::V4(address) => u32::from(address),
                IpAddr::V6(_) => panic!("IPv4"),
            };
            prop_assert_eq!(bits(new_last) - bits(new_first), last - first);
            prop_assert!(new_first != ip(first) && new_last != ip(last));
        }

        #[test]
        fn mac_addresses_keep_their_kind(old: [u8; 6], key: u8) {
            let new = AddressMap::with_key(key).mac(MacAddr(old));
            prop_assert_eq!(new.0[0] & 3, old[0] & 3);
            prop_assert!(new.0 != old || old == [0; 6] || old == [0xff; 6]);
        }
    }

    #[test]
    fn classes_and_prefixes_stay_what_they_are() {
        let map = AddressMap::with_key(7);
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for text in ["0.0.0.0", "127.0.0.1", "127.9.8.7", "255.255.255.255", "::", "::1"] {
            assert_eq!(map.ip(ip(text)), ip(text));
        }
        for (text, length) in [("0.0.0.0", 8), ("127.0.0.0", 8)] {
            assert_eq!(map.prefix(ip(text), length), ip(text));
        }
        assert_ne!(map.ip(ip("0.1.2.3")), ip("0.1.2.3"));
        let IpAddr::V4(group) = map.ip(ip("239.1.2.3")) else { panic!("IPv4") };
        assert!(group.is_multicast());
        let net = map.prefix(ip("10.20.0.0"), 16);
        assert!(net.to_string().ends_with(".0.0") && net != ip("10.20.0.0"), "{net}");
        assert_eq!(shared_bits(net, map.ip(ip("10.20.30.40"))), 16 + shared_bits_behind(&map));
        // An address with its prefix length: all of it is replaced.
        assert_eq!(map.prefix(ip("10.20.30.40"), 16), map.ip(ip("10.20.30.40")));
        let wide = map.range(ip("10.0.0.1"), ip("200.0.0.9"));
        assert!(wide.0 < wide.1 && wide.0 != ip("10.0.0.1"), "{wide:?}");
        let group = map.mac("01:00:5e:01:02:03".parse().expect("a MAC address"));
        assert!(group.to_string().starts_with("01:00:5e:"), "{group}");
    }

    /// The bits behind the prefix 10.20.0.0/16 that the new address of 10.20.30.40 shares with its network.
    fn shared_bits_behind(map: &AddressMap) -> u32 {
        let IpAddr::V4(new) = map.ip("10.20.30.40".parse().expect("an address")) else { panic!("IPv4") };
        (u32::from(new) << 16).leading_zeros()
    }

    #[test]
    fn other_keys_give_other_addresses() {
        let address: IpAddr = "192.0.2.77".parse().expect("an address");
        let all: std::collections::BTreeSet<IpAddr> =
            (0..50).map(|key| AddressMap::with_key(key).ip(address)).collect();
        assert!(all.len() > 40, "{}", all.len());
        let random = AddressMap::random().expect("random numbers");
        assert_eq!(random.ip(address), random.ip(address));
        assert_eq!(random.digits("9c63c0aa0102").len(), 12);
        assert_ne!(random.digits("9c63c0aa0102"), "9c63c0aa0102");
    }
}
