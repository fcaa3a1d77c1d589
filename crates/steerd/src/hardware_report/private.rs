//! Finds what identifies a host or its network in a text: MAC, IP and PCI addresses, GUIDs, and the name of
//! this host where it is known.
//!
//! Addresses that no station has are not private: those of tests and documentation, which rows and flows use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::target::TEST_MAC;

/// The bytes that both MAC addresses of test frames begin with.
const SHARED_BYTES: usize = 5;
/// Hexadecimal digits of a MAC address that is written without separators, and of a GUID.
const MAC_DIGITS: usize = 12;
const GUID_DIGITS: usize = 16;
/// In place of what was found.
const REDACTED: &str = "redacted";
/// Host names that say nothing.
const COMMON_NAMES: [&str; 3] = ["localhost", "host", "none"];

/// Something private in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivateWord<'t> {
    pub(super) kind: &'static str,
    pub(super) word: &'t str,
}

/// The name of this host; empty if the kernel does not show it.
pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The first private word of a text. `host`: the name of this host.
pub(super) fn find<'t>(text: &'t str, host: &str) -> Option<PrivateWord<'t>> {
    words(text).find_map(|word| Some(PrivateWord { kind: kind(word, host)?, word }))
}

/// The text with every private word replaced.
pub(super) fn redact(text: &str, host: &str) -> String {
    let (mut redacted, mut rest) = (String::new(), text);
    while let Some(PrivateWord { word, .. }) = find(rest, host) {
        // The word is a part of `rest`.
        let (before, from) = rest.split_at(word.as_ptr().addr() - rest.as_ptr().addr());
        redacted.push_str(before);
        redacted.push_str(REDACTED);
        rest = from.split_at(word.len()).1;
    }
    redacted + rest
}

/// The longest runs of characters that an address or a name can have.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '-' | '_')));
    parts.map(|word| word.trim_matches(['.', '-', '_'])).filter(|word| !word.is_empty())
}

fn kind(word: &str, host: &str) -> Option<&'static str> {
    if word == host && host.len() > 2 && !COMMON_NAMES.contains(&host) {
        return Some("host name");
    }
    if is_pci_address(word) {
        return Some("PCI address");
    }
    if let Some(mac) = mac(word) {
        return (!TEST_MAC.0.starts_with(mac.get(..SHARED_BYTES).unwrap_or(&mac))
            && mac != [0; 6]
            && mac != [0xff; 6])
            .then_some("MAC address");
    }
    if is_guid(word) {
        return Some("GUID");
    }
    let addresses = word.split(['-', '_']).filter_map(address);
    if addresses.into_iter().any(|address| !is_for_tests(address)) {
        return Some("IP address");
    }
    // A name of udev can end with the MAC address or the GUID.
    has_long_number(word).then_some("MAC address or GUID")
}

/// An IP address, also with a port.
fn address(word: &str) -> Option<IpAddr> {
    let with_port = || word.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    word.parse().ok().or_else(|| word.trim_end_matches(':').parse().ok()).or_else(with_port)
}

/// Six bytes or more with separators, or three numbers of four digits.
fn mac(word: &str) -> Option<Vec<u8>> {
    let word = word.trim_end_matches(':');
    let numbers = |separator: char, digits: usize, least: usize| -> Option<Vec<u64>> {
        let parts: Vec<&str> = word.split(separator).collect();
        let number = |part: &&str| {
            let is_number = part.len() == digits && part.chars().all(|c| c.is_ascii_hexdigit());
            is_number.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        (parts.len() >= least).then(|| parts.iter().map(number).collect()).flatten()
    };
    let bytes = numbers(':', 2, 6).or_else(|| numbers('-', 2, 6));
    let dotted = || {
        let words = numbers('.', 4, 3).filter(|words| words.len() == 3)?;
        Some(words.into_iter().flat_map(|word| [word >> 8, word & 0xff]).collect())
    };
    Some(bytes.or_else(dotted)?.into_iter().map(|byte| byte as u8).collect())
}

/// `0000:c1:00.0`, also without the domain.
fn is_pci_address(word: &str) -> bool {
    let Some((device, function)) = word.trim_end_matches(':').rsplit_once('.') else { return false };
    let parts: Vec<&str> = device.split(':').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let are_digits = parts.iter().all(|part| part.chars().all(|c| c.is_ascii_hexdigit()));
    are_digits && matches!(lengths[..], [4, 2, 2] | [2, 2]) && matches!(function.as_bytes(), [b'0'..=b'7'])
}

/// Four groups of four digits, as ibv_devinfo(1) and sysfs write it.
fn is_guid(word: &str) -> bool {
    let parts: Vec<&str> = word.split(':').collect();
    parts.len() == 4
        && parts.iter().all(|part| part.len() == 4 && part.chars().all(|c| c.is_ascii_hexdigit()))
        && parts.iter().any(|part| *part != "0000")
}

/// A run of as many digits as a MAC address or a GUID has, unless it is a mask.
fn has_long_number(word: &str) -> bool {
    let number = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    // All bits of it are the lowest ones.
    if number.is_some_and(|number| number & number.wrapping_add(1) == 0) {
        return false;
    }
    let is_long = |run: &str| run.len() == MAC_DIGITS || run.len() == GUID_DIGITS;
    word.split(|c: char| !c.is_ascii_hexdigit())
        .any(|run| is_long(run) && run.contains(|c: char| c.is_ascii_digit()))
}

fn is_for_tests(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.is_documentation()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_loopback()
                || is_for_benchmarks(address)
        }
        IpAddr::V6(address) => address.is_unspecified() || address.is_loopback() || is_documentation(address),
    }
}

/// 198.18.0.0/15 (RFC 2544).
fn is_for_benchmarks(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    first == 198 && second & 0xfe == 18
}

/// 2001:db8::/32 (RFC 3849).
fn is_documentation(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    (first, second) == (0x2001, 0xdb8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<&'static str> {
        find(text, "build-host7").map(|word| word.kind)
    }

    #[test]
    fn addresses_and_names_are_found() {
        for (text, kind) in [
            ("link/ether 9c:63:c0:aa:01:02 brd", "MAC address"),
            ("mac 9c-63-c0-aa-01-02.", "MAC address"),
            ("to 10.20.30.40, refused", "IP address"),
            ("from 10.20.30.40: refused", "IP address"),
            ("fe80::9e63:c0ff:feaa:102", "IP address"),
            ("to 10.20.30.40:4791", "IP address"),
            ("route 10.20.30.0/24", "IP address"),
            ("10.20.30.40-10.20.30.50", "IP address"),
            ("[fe80::9e63:c0ff:feaa:102]:80", "IP address"),
            ("9c63.c0aa.0102", "MAC address"),
            ("80:00:02:08:fe:80:00:00", "MAC address"),
            ("0x9c63c0aa0102", "MAC address or GUID"),
            ("mlx5_core 0000:c1:00.0: failed", "PCI address"),
            ("c1:00.1", "PCI address"),
            ("guid 0c42:a103:0065:1234", "GUID"),
            ("rocex0c42a10300651234", "MAC address or GUID"),
            ("enx9c63c0aa0102", "MAC address or GUID"),
            ("written on build-host7", "host name"),
        ] {
            assert_eq!(found(text), Some(kind), "{text}");
        }
    }

    #[test]
    fn versions_and_test_addresses_are_not_private() {
        for text in [
            "libibverbs.so.1.14.50.0",
            "22.35.2000",
            "6.8.0-45-generic",
            "5.15.0-1053.61~20.04.1",
            "completion_timestamp_mask=0xffffffffffffffff",
            "0x7fffffffffffffff",
            "02:73:74:65:65:72 and 192.0.2.1",
            "198.18.1.2, 2001:db8::1, 0.0.0.0",
            "ff:ff:ff:ff:ff:ff",
            "rocep193s0f0",
            "15b3:101d",
            "2026-01-31",
            "ibv_create_flow: IBV_FLOW_SPEC_ETH",
        ] {
            assert_eq!(find(text, "build-host7"), None, "{text}");
        }
    }

    #[test]
    fn redacted_texts_have_nothing_private() {
        let text =
            redact("rocex0c42a10300651234 at 10.20.30.40 of build-host7, twice 10.20.30.40", "build-host7");
        assert_eq!(text, "redacted at redacted of redacted, twice redacted");
        assert_eq!(redact("af_packet of af", "af"), "af_packet of af", "a name of two letters");
        assert_eq!(redact("mlx5 and mlx5_0", "mlx5"), "redacted and mlx5_0", "whole words");
        assert_eq!(find(&text, "build-host7"), None);
    }

    #[test]
    fn the_addresses_of_this_machine_are_found() {
        let mut addresses = Vec::new();
        for interface in std::fs::read_dir("/sys/class/net").expect("interfaces").flatten() {
            let file = interface.path().join("address");
            let address = std::fs::read_to_string(file).unwrap_or_default();
            addresses.push(address.trim().to_owned());
        }
        addresses.retain(|address| address.len() == 17 && address != "00:00:00:00:00:00");
        for address in addresses {
            assert_eq!(found(&format!("port 1 has {address}")), Some("MAC address"), "{address}");
        }
    }
}
