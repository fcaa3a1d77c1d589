//! The mode of a NIC's eswitch, by the netlink of devlink-dev(8) (linux/devlink.h, linux/genetlink.h,
//! Documentation/netlink/specs/devlink.yaml). One question for the number of the family, one for the mode.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

/// linux/genetlink.h: the family that knows the others, its command and its attributes.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// linux/devlink.h.
const DEVLINK_FAMILY: &str = "devlink";
const DEVLINK_CMD_ESWITCH_GET: u8 = 29;
const DEVLINK_ATTR_BUS_NAME: u16 = 1;
const DEVLINK_ATTR_DEV_NAME: u16 = 2;
const DEVLINK_ATTR_ESWITCH_MODE: u16 = 25;
/// Both families are of this version.
const VERSION: u8 = 1;
/// `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// A message of a generic netlink family.
#[derive(Debug)]
struct GenericMessage {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

/// The payload of an answer, behind the netlink header.
struct GenericAnswer(Vec<u8>);

impl NetlinkSerializable for GenericMessage {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEADER_BYTES + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEADER_BYTES].copy_from_slice(&[self.command, VERSION, 0, 0]);
        self.attributes.as_slice().emit(&mut buffer[HEADER_BYTES..]);
    }
}

impl NetlinkDeserializable for GenericAnswer {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(payload.to_vec()))
    }
}

/// The mode of the eswitch of a device, as a number of `enum devlink_eswitch_mode`. `bus`, `device`: `pci`,
/// `0000:c1:00.0`.
///
/// # Errors
/// ENOENT: the kernel has no devlink; ENODEV: the device is not known to it; EOPNOTSUPP: it has no eswitch;
/// EPERM without CAP_NET_ADMIN.
pub(super) fn eswitch_mode(bus: &str, device: &str) -> io::Result<u16> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let family = family_in(&ask(&socket, &family_question(DEVLINK_FAMILY))?)?;
    mode_in(&ask(&socket, &mode_question(family, bus, device))?)
}

/// Sends a question to the kernel, which answers at once.
fn ask(socket: &Socket, question: &[u8]) -> io::Result<Vec<u8>> {
    socket.send(question, 0)?;
    Ok(socket.recv_from_full()?.0)
}

fn family_question(name: &str) -> Vec<u8> {
    question(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &[(CTRL_ATTR_FAMILY_NAME, name)])
}

fn mode_question(family: u16, bus: &str, device: &str) -> Vec<u8> {
    let handle = [(DEVLINK_ATTR_BUS_NAME, bus), (DEVLINK_ATTR_DEV_NAME, device)];
    question(family, DEVLINK_CMD_ESWITCH_GET, &handle)
}

/// A request with these strings, which end with a zero byte.
fn question(family: u16, command: u8, strings: &[(u16, &str)]) -> Vec<u8> {
    let attribute = |(kind, text): &(u16, &str)| DefaultNla::new(*kind, [text.as_bytes(), &[0]].concat());
    let attributes = strings.iter().map(attribute).collect();
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let payload = NetlinkPayload::InnerMessage(GenericMessage { family, command, attributes });
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn family_in(answer: &[u8]) -> io::Result<u16> {
    number_in(answer, CTRL_ATTR_FAMILY_ID)
}

fn mode_in(answer: &[u8]) -> io::Result<u16> {
    number_in(answer, DEVLINK_ATTR_ESWITCH_MODE)
}

/// The attribute of 16 bits of that type in an answer.
fn number_in(answer: &[u8], kind: u16) -> io::Result<u16> {
    let message = NetlinkMessage::<GenericAnswer>::deserialize(answer).map_err(io::Error::other)?;
    let payload = match message.payload {
        NetlinkPayload::InnerMessage(GenericAnswer(payload)) => payload,
        NetlinkPayload::Error(error) => return Err(error.to_io()),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let attributes = payload.get(HEADER_BYTES..).unwrap_or_default();
    let mut found = NlasIterator::new(attributes).flatten().filter(|attribute| attribute.kind() == kind);
    let value = found.next().and_then(|attribute| attribute.value().first_chunk().copied());
    value.map(u16::from_ne_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer in the layout of linux/devlink.h, as devlink-dev(8) gets it for a ConnectX: no answer of a
    /// device was recorded.
    fn answer(mode: u16) -> Vec<u8> {
        let mut attributes = Vec::new();
        let mut put = |kind: u16, value: &[u8]| {
            attributes.extend(((4 + value.len()) as u16).to_ne_bytes());
            attributes.extend(kind.to_ne_bytes());
            attributes.extend(value);
            attributes.resize(attributes.len().next_multiple_of(4), 0);
        };
        put(DEVLINK_ATTR_BUS_NAME, b"pci\0");
        put(DEVLINK_ATTR_DEV_NAME, b"0000:c1:00.0\0");
        put(DEVLINK_ATTR_ESWITCH_MODE, &mode.to_ne_bytes());
        // DEVLINK_ATTR_ESWITCH_INLINE_MODE
        put(26, &[1]);
        message(21, &[&[DEVLINK_CMD_ESWITCH_GET, 1, 0, 0], attributes.as_slice()].concat())
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((16 + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(16, 0);
        bytes.extend(payload);
        bytes
    }

    fn error(errno: i32) -> Vec<u8> {
        message(2, &[(-errno).to_ne_bytes().as_slice(), &[0; 16]].concat())
    }

    #[test]
    fn the_mode_is_in_the_answer() {
        assert_eq!(mode_in(&answer(0)).expect("a mode"), 0);
        assert_eq!(mode_in(&answer(1)).expect("a mode"), 1);
        let refused = |errno| mode_in(&error(errno)).expect_err("refused").raw_os_error();
        assert_eq!(refused(95), Some(95));
        assert_eq!(refused(1), Some(1));
        assert!(
            mode_in(&message(21, &[DEVLINK_CMD_ESWITCH_GET, 1, 0, 0])).is_err(),
            "the attribute is not there"
        );
        for cut in 0..answer(1).len() {
            let _no_panic = mode_in(&answer(1)[..cut]);
        }
    }

    #[test]
    fn a_question_names_the_device() {
        let question = mode_question(21, "pci", "0000:c1:00.0");
        assert_eq!(question.len() as u32, u32::from_ne_bytes(*question.first_chunk().expect("a header")));
        assert_eq!(question.len(), 16 + 4 + 8 + 20, "bus and device, on words");
        assert_eq!(u16::from_ne_bytes([question[4], question[5]]), 21);
        assert_eq!(question[16..20], [29, 1, 0, 0]);
        assert_eq!(&question[24..28], b"pci\0");
        assert_eq!(&question[32..45], b"0000:c1:00.0\0");
    }

    /// The kernel itself: the family of families is there on each, devlink on some.
    #[test]
    fn the_kernel_answers() {
        let mut socket = Socket::new(NETLINK_GENERIC).expect("netlink");
        socket.bind_auto().expect("bound");
        socket.connect(&SocketAddr::new(0, 0)).expect("connected");
        let family = |name| ask(&socket, &family_question(name)).and_then(|answer| family_in(&answer));
        assert_eq!(family("nlctrl").expect("a number"), GENL_ID_CTRL);
        assert_eq!(family("no-such").expect_err("no family").raw_os_error(), Some(2));
        assert!(eswitch_mode("pci", "0000:ff:1f.7").is_err(), "there is no such device");
    }
}
