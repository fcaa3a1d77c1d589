//! The messages of the control channel, each 128 bytes in the byte order of the machine: a type in 2 bytes,
//! then the packed fields. Decoding is total: any bytes are a message or not one, and nothing is decided here
//! about values.

/// The length of every message.
pub const MESSAGE_BYTES: usize = 128;
/// The longest name of an application or interface, with the final zero.
const NAME_BYTES: usize = 32;
const SECRET_BYTES: usize = 24;
const REASON_BYTES: usize = 96;

const ACK: u16 = 1;
const HELLO: u16 = 2;
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// In the flags of ADD_RING: the ring is of the direction client to server.
const ADD_RING_C2S: u16 = 1;

/// The direction of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingDirection {
    /// Client to server.
    C2s,
    /// Server to client.
    S2c,
}

/// The offer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name of the application.
    pub name: String,
    /// The lowest supported version.
    pub min_version: u16,
    /// The highest supported version.
    pub max_version: u16,
    /// The highest index of a region.
    pub max_region: u16,
    /// The highest index of a ring to the client.
    pub max_s2c_ring: u16,
    /// The highest index of a ring to the server.
    pub max_c2s_ring: u16,
    /// The binary logarithm of the largest ring.
    pub max_log2_ring_size: u8,
}

/// Which interface a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// The version of the protocol.
    pub version: u16,
    /// The number of the interface.
    pub id: u32,
    /// 0: Ethernet frames.
    pub mode: u8,
    /// Up to 24 bytes, zeros if there is no secret.
    pub secret: [u8; SECRET_BYTES],
    /// The name of the application.
    pub name: String,
}

/// A ring that the client has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRing {
    /// The direction of the ring.
    pub direction: RingDirection,
    /// The index among the rings of the direction.
    pub index: u16,
    /// The region that contains it.
    pub region: u16,
    /// The offset of the ring in the region, in bytes.
    pub offset: u32,
    /// The binary logarithm of the number of descriptors.
    pub log2_size: u8,
}

/// A message of the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The server has accepted a message.
    Ack,
    /// First message of the server.
    Hello(Hello),
    /// First message of the client.
    Init(Init),
    /// A region of shared memory; its file comes with the message.
    AddRegion {
        /// The index of the region.
        index: u16,
        /// The size of the region in bytes.
        bytes: u64,
    },
    /// A ring; the eventfd for interrupts comes with the message.
    AddRing(AddRing),
    /// The client is complete; the name of its interface.
    Connect(String),
    /// The server is complete; the name of its interface.
    Connected(String),
    /// The sender closes the connection, with a code and the reason.
    Disconnect(u32, String),
}

impl Message {
    /// The bytes of the message. Names and reasons that are too long are cut.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut to = Writer { bytes: &mut bytes, at: 0 };
        match self {
            Self::Ack => to.u16(ACK),
            Self::Hello(hello) => {
                to.u16(HELLO);
                to.text::<NAME_BYTES>(&hello.name);
                to.u16(hello.min_version);
                to.u16(hello.max_version);
                to.u16(hello.max_region);
                to.u16(hello.max_s2c_ring);
                to.u16(hello.max_c2s_ring);
                to.put(&[hello.max_log2_ring_size]);
            }
            Self::Init(init) => {
                to.u16(INIT);
                to.u16(init.version);
                to.u32(init.id);
                to.put(&[init.mode]);
                to.put(&init.secret);
                to.text::<NAME_BYTES>(&init.name);
            }
            Self::AddRegion { index, bytes } => {
                to.u16(ADD_REGION);
                to.u16(*index);
                to.put(&bytes.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                to.u16(ADD_RING);
                to.u16(if ring.direction == RingDirection::C2s { ADD_RING_C2S } else { 0 });
                to.u16(ring.index);
                to.u16(ring.region);
                to.u32(ring.offset);
                to.put(&[ring.log2_size]);
            }
            Self::Connect(name) => {
                to.u16(CONNECT);
                to.text::<NAME_BYTES>(name);
            }
            Self::Connected(name) => {
                to.u16(CONNECTED);
                to.text::<NAME_BYTES>(name);
            }
            Self::Disconnect(code, reason) => {
                to.u16(DISCONNECT);
                to.u32(*code);
                to.text::<REASON_BYTES>(reason);
            }
        }
        bytes
    }

    /// The message in these bytes; `None` if the length or the type is unknown.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let mut from = Reader { bytes, at: 0 };
        Some(match from.u16() {
            ACK => Self::Ack,
            HELLO => Self::Hello(Hello {
                name: from.text::<NAME_BYTES>(),
                min_version: from.u16(),
                max_version: from.u16(),
                max_region: from.u16(),
                max_s2c_ring: from.u16(),
                max_c2s_ring: from.u16(),
                max_log2_ring_size: from.u8(),
            }),
            INIT => Self::Init(Init {
                version: from.u16(),
                id: from.u32(),
                mode: from.u8(),
                secret: from.take(),
                name: from.text::<NAME_BYTES>(),
            }),
            ADD_REGION => Self::AddRegion { index: from.u16(), bytes: u64::from_ne_bytes(from.take()) },
            ADD_RING => {
                let to_server = from.u16() & ADD_RING_C2S != 0;
                Self::AddRing(AddRing {
                    direction: if to_server { RingDirection::C2s } else { RingDirection::S2c },
                    index: from.u16(),
                    region: from.u16(),
                    offset: from.u32(),
                    log2_size: from.u8(),
                })
            }
            CONNECT => Self::Connect(from.text::<NAME_BYTES>()),
            CONNECTED => Self::Connected(from.text::<NAME_BYTES>()),
            DISCONNECT => Self::Disconnect(from.u32(), from.text::<REASON_BYTES>()),
            _ => return None,
        })
    }

    /// The word of the specification for the type.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ack => "ACK",
            Self::Hello(_) => "HELLO",
            Self::Init(_) => "INIT",
            Self::AddRegion { .. } => "ADD_REGION",
            Self::AddRing(_) => "ADD_RING",
            Self::Connect(_) => "CONNECT",
            Self::Connected(_) => "CONNECTED",
            Self::Disconnect(..) => "DISCONNECT",
        }
    }
}

struct Writer<'b> {
    bytes: &'b mut [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, from: &[u8]) {
        let end = self.at + from.len();
        if let Some(to) = self.bytes.get_mut(self.at..end) {
            to.copy_from_slice(from);
        }
        self.at = end;
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    /// The text, cut so that a zero follows, in a field of `N` bytes.
    fn text<const N: usize>(&mut self, text: &str) {
        let mut field = [0; N];
        let cut = boundary(text, N - 1);
        field[..cut].copy_from_slice(&text.as_bytes()[..cut]);
        self.put(&field);
    }
}

struct Reader<'b> {
    bytes: &'b [u8; MESSAGE_BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let field = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        self.at += N;
        field.copied().unwrap_or([0; N])
    }

    fn u8(&mut self) -> u8 {
        let [value] = self.take();
        value
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// The text before the first zero, with control characters and invalid UTF-8 replaced: it goes to logs.
    fn text<const N: usize>(&mut self) -> String {
        let field: [u8; N] = self.take();
        let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        String::from_utf8_lossy(text).chars().map(printable).collect()
    }
}

/// The largest boundary between characters of `text` that is at most `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> Vec<Message> {
        vec![
            Message::Ack,
            Message::Hello(Hello {
                name: "steerd".to_owned(),
                min_version: 0x200,
                max_version: 0x200,
                max_region: 15,
                max_s2c_ring: 7,
                max_c2s_ring: 6,
                max_log2_ring_size: 14,
            }),
            Message::Init(Init { version: 0x200, id: 3, mode: 0, secret: [7; 24], name: "a".to_owned() }),
            Message::AddRegion { index: 1, bytes: 1 << 33 },
            Message::AddRing(AddRing {
                direction: RingDirection::C2s,
                index: 2,
                region: 1,
                offset: 4096,
                log2_size: 10,
            }),
            Message::Connect("net_memif0".to_owned()),
            Message::Connected("apps".to_owned()),
            Message::Disconnect(9, "no room".to_owned()),
        ]
    }

    #[test]
    fn every_message_is_read_as_it_was_written() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    /// The places of the fields, from `drivers/net/memif/memif.h` of DPDK (packed structs after a 16-bit
    /// type).
    #[test]
    fn fields_are_where_the_specification_has_them() {
        let encoded: Vec<_> = messages().iter().map(Message::encode).collect();
        let u16_at =
            |message: usize, at: usize| u16::from_ne_bytes([encoded[message][at], encoded[message][at + 1]]);
        assert_eq!([34, 36, 38, 40, 42].map(|at| u16_at(1, at)), [0x200, 0x200, 15, 7, 6]);
        assert_eq!((encoded[1][44], &encoded[1][2..9]), (14, &b"steerd\0"[..]));
        assert_eq!((u16_at(2, 2), u16_at(2, 4), encoded[2][8], encoded[2][9]), (0x200, 3, 0, 7));
        assert_eq!(encoded[2][33], b'a');
        assert_eq!((u16_at(3, 2), encoded[3][4..12].iter().map(|b| u32::from(*b)).sum::<u32>()), (1, 2));
        assert_eq!([2, 4, 6, 8].map(|at| u16_at(4, at)), [1, 2, 1, 4096]);
        assert_eq!((encoded[4][12], &encoded[7][6..9]), (10, &b"no "[..]));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let message = Message::Connect("ä".repeat(40));
        assert_eq!(Message::decode(&message.encode()), Some(Message::Connect("ä".repeat(15))));
    }

    #[test]
    fn control_characters_of_a_peer_do_not_reach_the_log() {
        let message = Message::Connect("a\x1b[31m\n".to_owned());
        let Some(Message::Connect(name)) = Message::decode(&message.encode()) else { panic!() };
        assert!(!name.chars().any(char::is_control), "{name:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u16..10) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_chunk_mut::<2>() {
                *first = kind.to_ne_bytes();
            }
            let message = Message::decode(&bytes);
            prop_assert_eq!(message.is_some(), bytes.len() == MESSAGE_BYTES && (1..=8).contains(&kind));
        }
    }
}
