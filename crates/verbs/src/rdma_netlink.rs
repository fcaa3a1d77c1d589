//! Questions to the kernel about RDMA devices, by the netlink of rdma-dev(8) (rdma/rdma_netlink.h; kernel
//! drivers/infiniband/core/nldev.c). It answers every user. sysfs names the interface of a port only by its
//! GIDs, which the ports of a device in switchdev mode do not have (kernel hw/mlx5/ib_rep.c,
//! `raw_eth_profile`).
//!
//! Every length in an answer is checked before it is used. What contradicts itself ends the answer there.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};

/// linux/netlink.h.
const NETLINK_RDMA: libc::c_int = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_MULTI: u16 = 0x2;
const NLM_F_DUMP: u16 = 0x300;
/// The flags for nesting and byte order in the type of an attribute are not part of its number.
const NLA_TYPE_MASK: u16 = 0x3fff;
/// rdma/rdma_netlink.h: `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command)` is the type of a message.
const RDMA_NL_NLDEV: u16 = 5;
const RDMA_NLDEV_CMD_GET: u16 = 1;
const RDMA_NLDEV_CMD_PORT_GET: u16 = 5;
const RDMA_NLDEV_CMD_RES_GET: u16 = 9;
const RDMA_NLDEV_ATTR_DEV_INDEX: u16 = 1;
const RDMA_NLDEV_ATTR_DEV_NAME: u16 = 2;
const RDMA_NLDEV_ATTR_PORT_INDEX: u16 = 3;
const RDMA_NLDEV_ATTR_RES_SUMMARY: u16 = 15;
const RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY: u16 = 16;
const RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME: u16 = 17;
const RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR: u16 = 18;
const RDMA_NLDEV_ATTR_NDEV_NAME: u16 = 51;
/// The name of contexts among the resources of a device (nldev.c, `fill_res_info`).
const CONTEXTS: &[u8] = b"ctx";

/// `struct nlmsghdr` and `struct nlattr`, in bytes.
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// No datagram of the kernel is longer (net/netlink/af_netlink.c, `netlink_recvmsg`: 32 KiB).
const DATAGRAM_BYTES: usize = 1 << 16;
/// The most datagrams of an answer.
const DATAGRAMS_MAX: usize = 1024;

/// The network interface that the kernel has for a port of an RDMA device, in the network namespace of this
/// process. `None`: it has none.
///
/// # Errors
/// The kernel has no RDMA, no such device or port, or does not answer about interfaces.
pub(crate) fn interface_of_port(device: &str, port: u8) -> io::Result<Option<String>> {
    let index = device_index(device)?;
    interface_in(&ask(RDMA_NLDEV_CMD_PORT_GET, NLM_F_DUMP, Some(index))?, port.into())
}

/// How many verbs contexts are open on an RDMA device, those of this process among them. `None`: the kernel
/// does not count them.
///
/// # Errors
/// The kernel has no RDMA, or no such device.
pub fn open_contexts(device: &str) -> io::Result<Option<u64>> {
    let index = device_index(device)?;
    Ok(contexts_in(&ask(RDMA_NLDEV_CMD_RES_GET, 0, Some(index))?))
}

fn device_index(device: &str) -> io::Result<u32> {
    let answer = ask(RDMA_NLDEV_CMD_GET, NLM_F_DUMP, None)?;
    index_in(&answer, device).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Asks the kernel, which answers at once, and returns all messages of its answer.
fn ask(command: u16, flags: u16, device: Option<u32>) -> io::Result<Vec<u8>> {
    // SAFETY: the call has no pointers.
    let descriptor = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            NETLINK_RDMA,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: socket(2) has made this descriptor, and nothing else has it.
    let mut socket = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    socket.write_all(&question(command, flags, device))?;
    let (mut answer, mut datagram) = (Vec::new(), vec![0; DATAGRAM_BYTES]);
    for _ in 0..DATAGRAMS_MAX {
        let received = socket.read(&mut datagram)?;
        let datagram = datagram.get(..received).unwrap_or_default();
        answer.extend_from_slice(datagram);
        if is_last(datagram)? {
            break;
        }
    }
    Ok(answer)
}

/// A request, about this device if one is named.
fn question(command: u16, flags: u16, device: Option<u32>) -> Vec<u8> {
    let attribute_bytes = if device.is_some() { ATTRIBUTE_BYTES + size_of::<u32>() } else { 0 };
    let mut bytes = ((HEADER_BYTES + attribute_bytes) as u32).to_ne_bytes().to_vec();
    bytes.extend(((RDMA_NL_NLDEV << 10) + command).to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number and port.
    bytes.extend([0; 8]);
    if let Some(index) = device {
        bytes.extend((attribute_bytes as u16).to_ne_bytes());
        bytes.extend(RDMA_NLDEV_ATTR_DEV_INDEX.to_ne_bytes());
        bytes.extend(index.to_ne_bytes());
    }
    bytes
}

/// Returns whether an answer ends with this datagram.
///
/// # Errors
/// It is the refusal of the question, or the dump has failed.
fn is_last(datagram: &[u8]) -> io::Result<bool> {
    let mut is_last = true;
    for NetlinkMessage { kind, flags, payload } in messages(datagram) {
        let errno = payload.first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno));
        // A dump that fails ends with its negative errno (net/netlink/af_netlink.c, `netlink_dump_done`).
        if kind == NLMSG_ERROR || kind == NLMSG_DONE && errno < 0 {
            return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
        }
        is_last = kind == NLMSG_DONE || flags & NLM_F_MULTI == 0;
    }
    Ok(is_last)
}

/// A message of an answer.
struct NetlinkMessage<'a> {
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

/// The messages in these bytes.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, ..] = *header;
        let message_bytes = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        let payload = bytes.get(HEADER_BYTES..message_bytes)?;
        bytes = bytes.get(message_bytes.checked_next_multiple_of(4)?..).unwrap_or_default();
        let (kind, flags) = (u16::from_ne_bytes([k0, k1]), u16::from_ne_bytes([f0, f1]));
        Some(NetlinkMessage { kind, flags, payload })
    })
}

/// The attributes in these bytes: number and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [l0, l1, k0, k1] = *bytes.first_chunk::<ATTRIBUTE_BYTES>()?;
        let attribute_bytes = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(ATTRIBUTE_BYTES..attribute_bytes)?;
        bytes = bytes.get(attribute_bytes.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & NLA_TYPE_MASK, value))
    })
}

/// The value of the first attribute of that number.
fn attribute(bytes: &[u8], number: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == number).map(|(_, value)| value)
}

fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    attribute(bytes, kind)?.first_chunk().map(|value| u32::from_ne_bytes(*value))
}

/// A string, which ends at its zero byte.
fn string(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attribute(bytes, kind)?.split(|byte| *byte == 0).next()
}

/// The index of the device of that name, in the answer to `RDMA_NLDEV_CMD_GET`.
fn index_in(answer: &[u8], device: &str) -> Option<u32> {
    let is_it = |message: &NetlinkMessage<'_>| {
        string(message.payload, RDMA_NLDEV_ATTR_DEV_NAME) == Some(device.as_bytes())
    };
    number(messages(answer).find(is_it)?.payload, RDMA_NLDEV_ATTR_DEV_INDEX)
}

/// The interface of the port of that number, in the answer to `RDMA_NLDEV_CMD_PORT_GET`.
///
/// # Errors
/// The answer lacks the port, or the interfaces of all ports: older kernels do not name them.
fn interface_in(answer: &[u8], port: u32) -> io::Result<Option<String>> {
    let is_it =
        |message: &NetlinkMessage<'_>| number(message.payload, RDMA_NLDEV_ATTR_PORT_INDEX) == Some(port);
    let entry = messages(answer).find(is_it).ok_or(io::ErrorKind::NotFound)?;
    let name_of = |message: &NetlinkMessage<'_>| {
        let name = string(message.payload, RDMA_NLDEV_ATTR_NDEV_NAME)?;
        String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())
    };
    match name_of(&entry) {
        Some(name) => Ok(Some(name)),
        None if messages(answer).any(|message| name_of(&message).is_some()) => Ok(None),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// The number of contexts, in the answer to `RDMA_NLDEV_CMD_RES_GET`.
fn contexts_in(answer: &[u8]) -> Option<u64> {
    let summary = attribute(messages(answer).next()?.payload, RDMA_NLDEV_ATTR_RES_SUMMARY)?;
    let mut entries = attributes(summary)
        .filter(|(kind, _)| *kind == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY)
        .map(|(_, entry)| entry);
    let contexts =
        entries.find(|entry| string(entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME) == Some(CONTEXTS))?;
    let count = attribute(contexts, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)?;
    count.first_chunk().map(|count| u64::from_ne_bytes(*count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
        bytes.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn kind(command: u16) -> u16 {
        (RDMA_NL_NLDEV << 10) + command
    }

    /// A device or a port as nldev.c writes it: no answer of a kernel with RDMA was recorded.
    fn entry(command: u16, device: &str, port: Option<u32>, interface: Option<&str>) -> Vec<u8> {
        let mut payload = Vec::new();
        let text = |text: &str| [text.as_bytes(), &[0]].concat();
        put(&mut payload, RDMA_NLDEV_ATTR_DEV_INDEX, &[device.len() as u8, 0, 0, 0]);
        put(&mut payload, RDMA_NLDEV_ATTR_DEV_NAME, &text(device));
        if let Some(port) = port {
            put(&mut payload, RDMA_NLDEV_ATTR_PORT_INDEX, &port.to_ne_bytes());
        }
        // RDMA_NLDEV_ATTR_CAP_FLAGS
        put(&mut payload, 4, &[0; 8]);
        if let Some(interface) = interface {
            put(&mut payload, 50, &[7, 0, 0, 0]);
            put(&mut payload, RDMA_NLDEV_ATTR_NDEV_NAME, &text(interface));
        }
        message(kind(command), NLM_F_MULTI, &payload)
    }

    /// A device in switchdev mode: the wire is its last port.
    fn ports() -> Vec<u8> {
        let port = |number, interface| entry(RDMA_NLDEV_CMD_PORT_GET, "rocep1s0f0", Some(number), interface);
        [port(1, Some("pf0hpf")), port(2, None), port(3, Some("ens1f0np0")), message(NLMSG_DONE, 2, &[0; 4])]
            .concat()
    }

    fn resources(entries: &[(&str, u64)]) -> Vec<u8> {
        let (mut summary, mut payload) = (Vec::new(), Vec::new());
        for (name, count) in entries {
            let mut entry = Vec::new();
            put(&mut entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, &[name.as_bytes(), &[0]].concat());
            put(&mut entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, &count.to_ne_bytes());
            put(&mut summary, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY, &entry);
        }
        put(&mut payload, RDMA_NLDEV_ATTR_DEV_NAME, b"mlx5_0\0");
        put(&mut payload, RDMA_NLDEV_ATTR_RES_SUMMARY | 0x8000, &summary);
        message(kind(RDMA_NLDEV_CMD_RES_GET), 0, &payload)
    }

    #[test]
    fn the_interface_of_each_port_is_in_the_answer() {
        let answer = ports();
        let found = |port| interface_in(&answer, port).expect("it is in the answer");
        assert_eq!(found(1).as_deref(), Some("pf0hpf"));
        assert_eq!(found(2), None, "a port without an interface");
        assert_eq!(found(3).as_deref(), Some("ens1f0np0"));
        assert!(is_last(&answer).expect("no refusal"));
        assert!(!is_last(&answer[..answer.len() - 20]).expect("no refusal"), "the end is still to come");
    }

    #[test]
    fn answers_without_the_interface_are_errors() {
        let missing = interface_in(&ports(), 4).expect_err("there is no port 4");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let older = entry(RDMA_NLDEV_CMD_PORT_GET, "mlx5_0", Some(1), None);
        let older = interface_in(&older, 1).expect_err("the kernel names no interface");
        assert_eq!(older.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn failed_dumps_have_their_errno() {
        let done = |errno: i32| message(NLMSG_DONE, NLM_F_MULTI, &errno.to_ne_bytes());
        let port = entry(RDMA_NLDEV_CMD_PORT_GET, "mlx5_0", Some(1), None);
        let failed = is_last(&[port.clone(), done(-13)].concat()).expect_err("the dump failed");
        assert_eq!(failed.raw_os_error(), Some(13));
        assert!(is_last(&[port, done(0)].concat()).expect("a whole dump"));
    }

    #[test]
    fn devices_are_found_by_their_whole_names() {
        let devices = ["mlx5_0", "mlx5_01"].map(|name| entry(RDMA_NLDEV_CMD_GET, name, None, None));
        let answer = devices.concat();
        assert_eq!(index_in(&answer, "mlx5_0"), Some(6));
        assert_eq!(index_in(&answer, "mlx5_01"), Some(7));
        assert_eq!(index_in(&answer, "mlx5"), None);
    }

    #[test]
    fn contexts_are_counted_by_their_name() {
        assert_eq!(contexts_in(&resources(&[("pd", 3), ("ctx", 2), ("srq", 9)])), Some(2));
        assert_eq!(contexts_in(&resources(&[("pd", 3)])), None, "an older kernel");
        assert!(is_last(&resources(&[])).expect("no refusal"), "the answer is one message");
    }

    #[test]
    fn refusals_have_their_errno() {
        let refusal = message(NLMSG_ERROR, 0, &[(-19i32).to_ne_bytes().as_slice(), &[0; 16]].concat());
        assert_eq!(is_last(&refusal).expect_err("refused").raw_os_error(), Some(19));
    }

    #[test]
    fn a_question_names_the_device_by_its_index() {
        let bytes = question(RDMA_NLDEV_CMD_PORT_GET, NLM_F_DUMP, Some(0x0102_0304));
        assert_eq!(bytes.len() as u32, u32::from_ne_bytes(*bytes.first_chunk().expect("a header")));
        assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), 0x1405);
        assert_eq!(u16::from_ne_bytes([bytes[6], bytes[7]]), 0x301);
        assert_eq!(attributes(&bytes[16..]).next(), Some((1, 0x0102_0304u32.to_ne_bytes().as_slice())));
        assert_eq!(question(RDMA_NLDEV_CMD_GET, NLM_F_DUMP, None).len(), HEADER_BYTES);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no netlink")]
    fn the_kernel_refuses_or_does_not_know_the_device() {
        assert!(interface_of_port("no-such-device", 1).is_err());
        assert!(open_contexts("no-such-device").is_err());
    }

    proptest! {
        /// Answers that are cut or altered have no more messages than bytes, and end.
        #[test]
        fn altered_answers_are_read_without_panic(cut in 0usize..400, at in 0usize..400, byte: u8) {
            for mut answer in [ports(), resources(&[("pd", 3), ("ctx", 2)])] {
                answer.truncate(cut);
                if let Some(place) = answer.get_mut(at) {
                    *place = byte;
                }
                prop_assert!(messages(&answer).count() <= answer.len() / HEADER_BYTES);
                let _ = (is_last(&answer), index_in(&answer, "mlx5_0"), contexts_in(&answer));
                let _ = (1..4).filter_map(|port| interface_in(&answer, port).ok()).count();
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(attributes(&bytes).count() <= bytes.len() / ATTRIBUTE_BYTES);
            let _ = (is_last(&bytes), index_in(&bytes, ""), contexts_in(&bytes), interface_in(&bytes, 0));
        }
    }
}
