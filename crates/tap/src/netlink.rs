//! One question of rtnetlink(7): how many queues of a TAP interface are attached.

use std::io;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socket_with};

/// linux/netlink.h and linux/rtnetlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const HEADER_BYTES: usize = 16;
/// `struct ifinfomsg`.
const LINK_BYTES: usize = 16;
/// linux/if_link.h: attributes of a link, those of IFLA_LINKINFO, and those of a tun in its IFLA_INFO_DATA.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
/// NLA_TYPE_MASK
const TYPE_MASK: u16 = 0x3fff;
/// An answer about one link has a few kilobytes.
const ANSWER_BYTES: usize = 32 << 10;

/// How many queues of the interface are attached, by whatever process. `None`: there is no such interface, or
/// it is no multi-queue TAP interface.
///
/// # Errors
/// The kernel has no netlink, or does not answer.
pub fn queues(interface: &str) -> io::Result<Option<usize>> {
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &question(interface), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES];
    let (bytes, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    queues_of(&answer[..bytes])
}

/// RTM_GETLINK, by name.
fn question(interface: &str) -> Vec<u8> {
    let attribute_bytes = 4 + interface.len() + 1;
    let bytes = HEADER_BYTES + LINK_BYTES + attribute_bytes.next_multiple_of(4);
    let mut message = vec![0; bytes];
    message[..4].copy_from_slice(&(bytes as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let attribute = &mut message[HEADER_BYTES + LINK_BYTES..];
    attribute[..2].copy_from_slice(&(attribute_bytes as u16).to_ne_bytes());
    attribute[2..4].copy_from_slice(&IFLA_IFNAME.to_ne_bytes());
    attribute[4..4 + interface.len()].copy_from_slice(interface.as_bytes());
    message
}

fn queues_of(answer: &[u8]) -> io::Result<Option<usize>> {
    let cut = || io::Error::new(io::ErrorKind::InvalidData, "the answer of rtnetlink is cut");
    let kind = half(answer, 4).ok_or_else(cut)?;
    if kind == NLMSG_ERROR {
        let errno = -(word(answer, HEADER_BYTES).ok_or_else(cut)?.cast_signed());
        return match Errno::from_raw_os_error(errno) {
            Errno::NODEV => Ok(None),
            errno => Err(errno.into()),
        };
    }
    let attributes = answer.get(HEADER_BYTES + LINK_BYTES..).filter(|_| kind == RTM_NEWLINK);
    let link = find(attributes.ok_or_else(cut)?, IFLA_LINKINFO).unwrap_or_default();
    let is_tun = find(link, IFLA_INFO_KIND).is_some_and(|kind| kind.starts_with(b"tun"));
    let data = find(link, IFLA_INFO_DATA).filter(|_| is_tun);
    let queues = data.and_then(|data| find(data, IFLA_TUN_NUM_QUEUES)).and_then(|value| word(value, 0));
    Ok(queues.map(|queues| queues as usize))
}

/// The value of the first attribute of a type.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let bytes = usize::from(half(attributes, 0)?);
        let value = attributes.get(4..bytes)?;
        if half(attributes, 2)? & TYPE_MASK == kind {
            return Some(value);
        }
        attributes = attributes.get(bytes.next_multiple_of(4)..)?;
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|half| u16::from_ne_bytes(*half))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + LINK_BYTES];
        bytes[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn the_number_of_queues_is_that_of_a_multi_queue_tap() {
        let data = attribute(IFLA_INFO_DATA, &attribute(IFLA_TUN_NUM_QUEUES, &3u32.to_ne_bytes()));
        let link = |kind: &[u8]| {
            let info = [attribute(IFLA_INFO_KIND, kind), data.clone()].concat();
            answer(&[attribute(IFLA_IFNAME, b"host0\0"), attribute(IFLA_LINKINFO, &info)].concat())
        };
        assert_eq!(queues_of(&link(b"tun\0")).expect("an answer"), Some(3));
        assert_eq!(queues_of(&link(b"veth\0")).expect("an answer"), None);
        assert_eq!(queues_of(&answer(&[])).expect("an answer"), None);
        for cut in 0..HEADER_BYTES + LINK_BYTES {
            assert!(queues_of(&link(b"tun\0")[..cut]).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn the_loopback_interface_is_no_tap() {
        assert_eq!(queues("lo").expect("the kernel answers"), None);
    }
}
