//! Finds what identifies a host or its network in a text: MAC, IP and PCI addresses, GUIDs, and the name of
//! this host where it is known.
//!
//! Addresses that no station has are not private: those of tests and documentation, which rows and flows use.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use packet::MacAddr;

use super::target::TEST_MAC;
use crate::address_text::{AddressRewriter, is_common, rewritten};

/// The bytes that both MAC addresses of test frames begin with.
const SHARED_BYTES: usize = 5;
/// In place of what was found.
const REDACTED: &str = "redacted";
/// Host names that say nothing.
const COMMON_NAMES: [&str; 3] = ["localhost", "host", "none"];

/// Something private in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrivateWord {
    pub(super) kind: &'static str,
    pub(super) word: String,
}

/// The name of this host; empty if the kernel does not show it.
pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The first private address of a text, or else the name of this host.
pub(super) fn find(text: &str, host: &str) -> Option<PrivateWord> {
    let found = FoundAddresses::default();
    rewritten(text, &found);
    let is_named = without_host(text, host) != text;
    found
        .0
        .into_inner()
        .or_else(|| is_named.then(|| PrivateWord { kind: "host name", word: host.to_owned() }))
}

/// The text with every private word replaced.
pub(super) fn redact(text: &str, host: &str) -> String {
    rewritten(&without_host(text, host), &FoundAddresses::default())
}

/// The text without the name of this host, where it is a word of its own.
fn without_host(text: &str, host: &str) -> String {
    if host.len() <= 2 || COMMON_NAMES.contains(&host) {
        return text.to_owned();
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '-' | '_');
    let word = |word: &str| match word.trim_end_matches(|c| !is_part(c)).trim_matches(['.', '-', '_']) {
        name if name == host => word.replacen(host, REDACTED, 1),
        _ => word.to_owned(),
    };
    text.split_inclusive(|c| !is_part(c)).map(word).collect()
}

/// Replaces private addresses, and keeps the first.
#[derive(Default)]
struct FoundAddresses(RefCell<Option<PrivateWord>>);

impl FoundAddresses {
    fn found(&self, kind: &'static str, word: &str) -> String {
        self.0.borrow_mut().get_or_insert_with(|| PrivateWord { kind, word: word.to_owned() });
        REDACTED.to_owned()
    }
}

impl AddressRewriter for FoundAddresses {
    fn ip(&self, address: IpAddr, _: Option<&str>) -> String {
        let word = address.to_string();
        if is_for_tests(address) { word } else { self.found("IP address", &word) }
    }

    fn socket(&self, address: SocketAddr) -> String {
        let word = address.to_string();
        if is_for_tests(address.ip()) { word } else { self.found("IP address", &word) }
    }

    fn range(&self, first: IpAddr, last: IpAddr) -> String {
        format!("{}-{}", self.ip(first, None), self.ip(last, None))
    }

    fn mac(&self, address: MacAddr, _: Option<MacAddr>) -> String {
        let is_of_tests = address.0[..SHARED_BYTES] == TEST_MAC.0[..SHARED_BYTES];
        let word = address.to_string();
        if is_of_tests || address.0 == [0; 6] { word } else { self.found("MAC address", &word) }
    }

    /// The replacement has no digit, so that it is not found again.
    fn digits(&self, digits: &str) -> String {
        self.found("MAC address or GUID", digits);
        "x".repeat(digits.len())
    }

    fn pci_address(&self, word: &str) -> String {
        self.found("PCI address", word)
    }
}

fn is_for_tests(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_common(address) || v4.is_documentation() || is_for_benchmarks(v4),
        IpAddr::V6(v6) => is_common(address) || is_documentation(v6),
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
            ("9c63.c0aa.0102", "MAC address or GUID"),
            ("80:00:02:08:fe:80:00:00:00", "MAC address or GUID"),
            ("9c-63-c0-ff-fe-aa-01-02", "MAC address or GUID"),
            ("0x9c63c0aa0102", "MAC address or GUID"),
            ("mlx5_core 0000:c1:00.0: failed", "PCI address"),
            ("c1:00.1", "PCI address"),
            ("guid 0c42:a103:0065:1234", "MAC address or GUID"),
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
        assert_eq!(text, "rocexxxxxxxxxxxxxxxxx at redacted of redacted, twice redacted");
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
