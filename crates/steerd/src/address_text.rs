//! Finds the addresses in a text, for reports that leave the host: IP and MAC addresses, GUIDs and PCI
//! addresses. An [`AddressRewriter`] decides what becomes of them.
//!
//! A text is cut into words, each of which is an address, or has addresses in it. Words in front of `=`, in
//! brackets or behind escapes are words too, so that an address is found wherever a person sees one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use packet::MacAddr;

/// Hexadecimal digits of a MAC address without separators, and of a GUID.
const MAC_DIGITS: usize = 12;
const GUID_DIGITS: usize = 16;
/// The characters of a MAC address with separators.
const MAC_CHARS: usize = 17;
/// The most characters of a word that is one address or one identifier.
const WHOLE_CHARS_MAX: usize = 200;

/// The texts in place of addresses.
pub(crate) trait AddressRewriter {
    /// The text in place of an IP address. `mask`: the prefix length or the mask behind it.
    fn ip(&self, address: IpAddr, mask: Option<&str>) -> String;

    /// The text in place of an address with a port.
    fn socket(&self, address: SocketAddr) -> String;

    /// The text in place of a range with these ends.
    fn range(&self, first: IpAddr, last: IpAddr) -> String;

    /// The text in place of a MAC address, with colons.
    fn mac(&self, address: MacAddr, mask: Option<MacAddr>) -> String;

    /// The digits in place of those of a GUID, or of a MAC address in a name: as many as before.
    fn digits(&self, digits: &str) -> String;

    /// The text in place of a PCI address.
    fn pci_address(&self, word: &str) -> String;
}

/// Returns whether every network has this address.
pub(crate) fn is_common(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_unspecified() || address.is_loopback() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unspecified() || address.is_loopback(),
    }
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '-' | '_')
}

/// The text with its addresses rewritten.
pub(crate) fn rewritten(text: &str, map: &dyn AddressRewriter) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word_char) {
        let (before, from) = rest.split_at(start);
        redacted += before;
        // The letter of an escape (`\n`) is not the first of a word.
        let skipped =
            usize::from(before.ends_with('\\') && from.starts_with(|c: char| c.is_ascii_alphabetic()));
        let (letter, from) = from.split_at(skipped);
        redacted += letter;
        let end = from.find(|c| !is_word_char(c)).unwrap_or(from.len());
        let (word, behind) = from.split_at(end);
        let mask = mask_behind(behind);
        redacted += &of_word(map, word, mask);
        rest = behind;
        if let Some(mask) = mask.filter(|_| is_address(word)) {
            // A mask says nothing about the network.
            let length = 1 + mask.len();
            redacted += &behind[..length];
            rest = &behind[length..];
        }
    }
    redacted + rest
}

/// The prefix length or the mask behind an address: `/24`, `/255.255.255.0`, `/ff:ff:ff:00:00:00`.
fn mask_behind(behind: &str) -> Option<&str> {
    let from = behind.strip_prefix('/')?;
    let end = from.find(|c| !is_word_char(c)).unwrap_or(from.len());
    let mask = from[..end].trim_end_matches(['.', '-', '_', ':']);
    let is_mask = mask.parse::<u8>().is_ok()
        || mask.parse::<IpAddr>().is_ok_and(is_ip_mask)
        || mask.parse::<MacAddr>().is_ok_and(is_mac_mask);
    is_mask.then_some(mask)
}

/// Returns whether the bits that are set are the first ones: other values may be addresses.
fn is_ip_mask(mask: IpAddr) -> bool {
    match mask {
        IpAddr::V4(mask) => u32::from(mask).leading_ones() + u32::from(mask).trailing_zeros() >= u32::BITS,
        IpAddr::V6(mask) => u128::from(mask).leading_ones() + u128::from(mask).trailing_zeros() >= u128::BITS,
    }
}

/// Returns whether the bits that are set are the first ones, or those of the kind of an address.
fn is_mac_mask(mask: MacAddr) -> bool {
    let [a, b, c, d, e, f] = mask.0;
    let value = u64::from_be_bytes([a, b, c, d, e, f, 0, 0]);
    let is_kind = (1..=3).contains(&a) && mask.0[1..] == [0; 5];
    is_kind || value.leading_ones() + value.trailing_zeros() >= u64::BITS
}

fn is_address(word: &str) -> bool {
    word.parse::<IpAddr>().is_ok() || word.parse::<MacAddr>().is_ok()
}

/// A word with its addresses replaced.
fn of_word(map: &dyn AddressRewriter, word: &str, mask: Option<&str>) -> String {
    let (mut redacted, mut rest) = (String::with_capacity(word.len()), word);
    // Each round returns, or goes on behind a separator or an address.
    loop {
        if let Some(address) = whole(map, rest, mask) {
            return redacted + &address;
        }
        // Punctuation behind a word: `fe80::1:` is that, `fe80::` was whole.
        let trimmed = rest.trim_end_matches(['.', '-', '_', ':']);
        if trimmed.is_empty() {
            return redacted + rest;
        }
        if trimmed.len() < rest.len() {
            return redacted + &of_word(map, trimmed, None) + &rest[trimmed.len()..];
        }
        let trimmed = rest.trim_start_matches(['.', '-', '_']);
        if trimmed.len() < rest.len() {
            redacted += &rest[..rest.len() - trimmed.len()];
            rest = trimmed;
            continue;
        }
        if let Some((first, last)) = rest.split_once('-')
            && let (Ok(first), Ok(last)) = (first.parse::<IpAddr>(), last.parse::<IpAddr>())
        {
            return redacted + &map.range(first, last);
        }
        if let Some(mac) = mac_in_front(rest) {
            redacted += &whole(map, mac, None).unwrap_or_default();
            rest = &rest[mac.len()..];
            continue;
        }
        let Some(at) = rest.find(['-', '_']) else { return redacted + &within(map, rest) };
        redacted += &of_word(map, &rest[..at], None);
        redacted += &rest[at..=at];
        rest = &rest[at + 1..];
    }
}

/// A MAC address with separators in front of other text: `9c-63-c0-aa-01-02-front`.
fn mac_in_front(word: &str) -> Option<&str> {
    let (mac, behind) = (word.get(..MAC_CHARS)?, word.get(MAC_CHARS..)?);
    let is_apart = !behind.starts_with(|c: char| c.is_ascii_hexdigit());
    (is_apart && mac.parse::<MacAddr>().is_ok()).then_some(mac)
}

/// The replacement of a word that is one address.
fn whole(map: &dyn AddressRewriter, word: &str, mask: Option<&str>) -> Option<String> {
    if word.len() > WHOLE_CHARS_MAX {
        return None;
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        if is_netmask(address) {
            return Some(word.to_owned());
        }
        return Some(map.ip(address, mask));
    }
    if let Ok(socket) = word.parse::<SocketAddr>() {
        return Some(map.socket(socket));
    }
    if let Ok(address) = word.parse::<MacAddr>() {
        let is_mask = address.0.starts_with(&[0xff, 0xff]);
        if is_mask {
            return Some(word.to_owned());
        }
        let separator = if word.contains('-') { "-" } else { ":" };
        let new = map.mac(address, mask.and_then(|mask| mask.parse().ok()));
        return Some(new.replace(':', separator));
    }
    if is_pci_address(word) {
        return Some(map.pci_address(word));
    }
    groups(map, word)
}

/// GUIDs and other identifiers in groups of digits: `0c42:a103:0065:1234`, `80:00:02:08:fe:80:...`,
/// `9c-63-c0-ff-fe-aa-01-02`, `9c63.c0aa.0102`.
fn groups(map: &dyn AddressRewriter, word: &str) -> Option<String> {
    let of = |separator: char, digits: usize, least: usize| {
        let parts: Vec<&str> = word.split(separator).collect();
        let is_number = |part: &&str| part.len() == digits && part.chars().all(|c| c.is_ascii_hexdigit());
        if parts.len() < least || parts.len() > 32 || !parts.iter().all(is_number) {
            return None;
        }
        let is_zero = parts.iter().all(|part| part.chars().all(|c| c == '0'));
        if is_zero {
            return Some(word.to_owned());
        }
        // 64 bits at a time, as a GUID is one.
        let group = 16 / digits;
        let new: Vec<String> = parts
            .chunks(group)
            .flat_map(|parts| {
                let new = map.digits(&parts.concat());
                let split =
                    |at: usize| new.get(at * digits..(at + 1) * digits).unwrap_or_default().to_owned();
                (0..parts.len()).map(split).collect::<Vec<_>>()
            })
            .collect();
        Some(new.join(&separator.to_string()))
    };
    of(':', 4, 4).or_else(|| of(':', 2, 7)).or_else(|| of('-', 2, 7)).or_else(|| {
        let is_mac = word.split('.').count() == 3;
        is_mac.then(|| of('.', 4, 3)).flatten()
    })
}

/// A contiguous mask of IPv4 from /8 on, as `ip route` and programs print it beside addresses.
fn is_netmask(address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    let bits = u32::from(address);
    bits.leading_ones() >= 8 && bits.leading_ones() + bits.trailing_zeros() == 32
}

/// `0000:c1:00.0`, also without the domain.
fn is_pci_address(word: &str) -> bool {
    let Some((device, function)) = word.rsplit_once('.') else { return false };
    let parts: Vec<&str> = device.split(':').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let are_digits = parts.iter().all(|part| part.chars().all(|c| c.is_ascii_hexdigit()));
    are_digits && matches!(lengths[..], [4, 2, 2] | [2, 2]) && matches!(function.as_bytes(), [b'0'..=b'7'])
}

/// Replaces addresses that are parts of a word: behind letters (`n10.0.0.1`), and digits of a MAC address or
/// a GUID (`enx9c63c0aa0102`).
fn within(map: &dyn AddressRewriter, word: &str) -> String {
    if let Some((start, end)) = part(
        word,
        |c| c.is_ascii_digit() || c == '.',
        |text| {
            text.parse::<Ipv4Addr>()
                .is_ok_and(|address| !is_common(address.into()) && !is_netmask(address.into()))
        },
    ) && !word[..start].ends_with(".so.")
    {
        let new = whole(map, &word[start..end], None).unwrap_or_default();
        return within(map, &word[..start]) + &new + &within(map, &word[end..]);
    }
    if word.len() > MAC_CHARS
        && let Some(start) = (0..=word.len() - MAC_CHARS)
            .find(|start| word[*start..start + MAC_CHARS].parse::<MacAddr>().is_ok())
    {
        let end = start + MAC_CHARS;
        let new = whole(map, &word[start..end], None).unwrap_or_default();
        return word[..start].to_owned() + &new + &within(map, &word[end..]);
    }
    if let Some((start, end)) = part(
        word,
        |c| c.is_ascii_hexdigit() || c == ':' || c == '.',
        |text| {
            text.matches(':').count() > 2 && text.parse::<IpAddr>().is_ok_and(|address| !is_common(address))
        },
    ) {
        let new = whole(map, &word[start..end], None).unwrap_or_default();
        return word[..start].to_owned() + &new + &word[end..];
    }
    long_numbers(map, word)
}

/// The longest part of a word of these characters that is an address.
fn part(
    word: &str,
    is_char: impl Fn(char) -> bool,
    is_address: impl Fn(&str) -> bool,
) -> Option<(usize, usize)> {
    let mut start = 0;
    while start < word.len() {
        let Some(found) = word[start..].find(&is_char) else { break };
        let begin = start + found;
        let end = word[begin..].find(|c| !is_char(c)).map_or(word.len(), |length| begin + length);
        let run = &word[begin..end];
        let left = begin + (run.len() - run.trim_start_matches('.').len());
        let right = end - (run.len() - run.trim_end_matches(['.', ':']).len());
        if left < right {
            let run = &word[left..right];
            // A colon may be behind a name, as in `dst:2001:db8::9`.
            let is_behind_colon = run.starts_with(':') && !run.starts_with("::");
            // Programs print a port as a fifth part, as in `10.1.2.3.443`.
            let fourth = run.match_indices('.').nth(3).map_or(right, |(at, _)| left + at);
            let parts = [(left, right), (left + usize::from(is_behind_colon), right), (left, fourth)];
            let found = parts.into_iter().find(|(from, to)| from < to && is_address(&word[*from..*to]));
            if found.is_some() {
                return found;
            }
        }
        start = end.max(begin + 1);
    }
    None
}

/// Replaces runs of as many hexadecimal digits as a MAC address or a GUID has. A whole word of decimal digits
/// is a count, and a word of equal low bits a mask.
fn long_numbers(map: &dyn AddressRewriter, word: &str) -> String {
    let number = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let is_mask = number.is_some_and(|number| number & number.wrapping_add(1) == 0);
    if is_mask || word.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return word.to_owned();
    }
    let mut redacted = String::with_capacity(word.len());
    let mut run = String::new();
    let finish = |run: &mut String, redacted: &mut String| {
        let is_long = run.len() == MAC_DIGITS || run.len() == GUID_DIGITS;
        let is_number = is_long && run.contains(|c: char| c.is_ascii_digit());
        *redacted += &if is_number { map.digits(run) } else { run.clone() };
        run.clear();
    };
    for c in word.chars() {
        if c.is_ascii_hexdigit() {
            run.push(c);
        } else {
            finish(&mut run, &mut redacted);
            redacted.push(c);
        }
    }
    finish(&mut run, &mut redacted);
    redacted
}
