//! MAC addresses with masks; IP addresses, prefixes and ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::MacAddr;
use program::{MaskedMac, Word};

use super::{Parsed, Refused, number};

pub(super) fn mac(text: &str) -> Parsed<MaskedMac> {
    let (value, mask) = match text.split_once('/') {
        _ if text == "multicast" => return Ok(MaskedMac::MULTICAST),
        _ if text == "broadcast" => (MacAddr::BROADCAST, MacAddr::BROADCAST),
        None => (mac_address(text)?, MacAddr::BROADCAST),
        Some((value, mask)) => (mac_address(value)?, mac_address(mask)?),
    };
    if (0..6).any(|i| value.0[i] & !mask.0[i] != 0) {
        let kept = MacAddr(std::array::from_fn(|i| value.0[i] & mask.0[i]));
        return Err(Refused(Some(format!("it has bits outside its mask: write {kept}/{mask}"))));
    }
    Ok(MaskedMac { value, mask })
}

fn mac_address(text: &str) -> Parsed<MacAddr> {
    text.parse().map_err(|_| Refused(None))
}

/// An address, a prefix, or a range of addresses, as its first and last address.
pub(super) fn address(text: &str) -> Parsed<(IpAddr, IpAddr)> {
    if let Some((low, high)) = text.split_once('-') {
        let (low, high) = (ip(low.trim())?, ip(high.trim())?);
        return match (low, high) {
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                Err(Refused(Some("both ends of a range must be IPv4, or both IPv6".to_owned())))
            }
            _ if low > high => Err(Refused(Some(format!("the range runs backwards: write {high}-{low}")))),
            _ => Ok((low, high)),
        };
    }
    let Some((address, length)) = text.split_once('/') else {
        let address = ip(text)?;
        return Ok((address, address));
    };
    let length = number(length).map_err(|_| Refused(None))?;
    let too_long = |most| Err(Refused(Some(format!("a prefix here has at most {most} bits"))));
    let (first, last) = match ip(address)? {
        IpAddr::V4(_) if length > 32 => return too_long(32),
        IpAddr::V6(_) if length > 128 => return too_long(128),
        IpAddr::V4(v4) => {
            let host =
                u64::from(u32::MAX).checked_shr(u32::narrow(length.into())).map_or(0, |host| host as u32);
            let first = u32::from(v4) & !host;
            (IpAddr::from(Ipv4Addr::from(first)), IpAddr::from(Ipv4Addr::from(first | host)))
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX.checked_shr(u32::narrow(length.into())).unwrap_or(0);
            let first = u128::from(v6) & !host;
            (IpAddr::from(Ipv6Addr::from(first)), IpAddr::from(Ipv6Addr::from(first | host)))
        }
    };
    if ip(address)? != first {
        return Err(Refused(Some(format!("it has bits beyond its prefix: write {first}/{length}"))));
    }
    Ok((first, last))
}

fn ip(text: &str) -> Parsed<IpAddr> {
    text.parse().map_err(|_| Refused(None))
}
