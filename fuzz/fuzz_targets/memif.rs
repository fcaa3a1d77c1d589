//! A hostile client of memif: any messages of the handshake with any files, then any bytes in the shared
//! memory while the server puts and takes frames.
//!
//! The input is a sequence of operations. A message is taken from the input as it is, except that its type
//! and, mostly, its version and indices are made plausible, so that handshakes get far.
#![no_main]

use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use shm::memif::message::{AddRing, RingDirection, Init, Message};
use shm::memif::ring::{Put, TakenFrame};
use shm::memif::server::{Connection, ClientLimits, Negotiation, HandshakeStep};
use shm::{Memory, Signaller};

const REGION_BYTES: usize = 32 << 10;
const COOKIE: u32 = 0x3e3_1f20;
/// One for all inputs: the kernel takes milliseconds to destroy one.
static SIGNALLER: LazyLock<Signaller> = LazyLock::new(|| Signaller::new().expect("io_setup"));

struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }
}

/// The client's side: memory, and which messages it has sent.
struct Client {
    memory: Memory,
    file: OwnedFd,
    regions: u16,
    rings: [u16; 2],
}

impl Client {
    fn message(&mut self, input: &mut Input<'_>) -> Option<(Message, Option<OwnedFd>)> {
        let file = || self.file.try_clone().ok();
        Some(match input.u8()? % 8 {
            0 => (
                Message::Init(Init { version: 0x200, id: 0, mode: 0, secret: [0; 24], name: String::new() }),
                None,
            ),
            1 => {
                let index = self.regions;
                self.regions += 1;
                (Message::AddRegion { index, bytes: REGION_BYTES as u64 }, file())
            }
            2 => {
                (Message::AddRegion { index: input.u16()?, bytes: u64::from_ne_bytes(input.take()?) }, file())
            }
            3 | 4 => {
                let to_server = input.u8()? & 1;
                let direction = if to_server == 1 { RingDirection::C2s } else { RingDirection::S2c };
                let index = self.rings[usize::from(to_server)];
                self.rings[usize::from(to_server)] += 1;
                let offset = u32::from(input.u16()?) % REGION_BYTES as u32 & !15;
                let _ = self.memory.write(offset as usize, &COOKIE.to_ne_bytes());
                (
                    Message::AddRing(AddRing {
                        direction,
                        index,
                        region: 0,
                        offset,
                        log2_size: input.u8()? % 8,
                    }),
                    file(),
                )
            }
            5 => (Message::Connect(String::new()), None),
            6 => {
                let mut bytes = [0; 128];
                bytes.iter_mut().for_each(|byte| *byte = input.u8().unwrap_or_default());
                (Message::decode(&bytes)?, file())
            }
            _ => {
                let direction = if input.u8()? & 1 == 1 { RingDirection::C2s } else { RingDirection::S2c };
                let (index, region, offset) = (input.u16()?, input.u16()?, input.u32()?);
                (
                    Message::AddRing(AddRing { direction, index, region, offset, log2_size: input.u8()? }),
                    file(),
                )
            }
        })
    }
}

fn exchange(connection: &mut Connection, client: &Client, input: &mut Input<'_>) -> Option<()> {
    let frame = [7; 9000];
    let mut to = [0; 2048];
    loop {
        let operation = input.u8()?;
        let ring = usize::from(operation >> 4);
        match operation % 4 {
            0 => {
                let at = usize::from(input.u16()?) % REGION_BYTES;
                let _ = client.memory.write(at, &input.take::<2>()?);
            }
            1 => {
                let length = usize::from(input.u16()?) % frame.len() + 1;
                let ring = ring % connection.senders.len();
                match connection.senders[ring].put(&frame[..length]) {
                    Ok(Put::Done | Put::Full | Put::TooLong) => {}
                    Err(_) => return None,
                }
            }
            2 => {
                let ring = ring % connection.senders.len();
                let _ = connection.senders[ring].publish();
            }
            _ if connection.receivers.is_empty() => {}
            _ => {
                let ring = ring % connection.receivers.len();
                match connection.receivers[ring].take(&mut to) {
                    Ok(TakenFrame::Frame(length)) => assert!((1..=to.len()).contains(&length)),
                    Ok(TakenFrame::TooLong(length)) => assert!(length > 0),
                    Ok(TakenFrame::Empty) => {}
                    Err(_) => return None,
                }
                connection.receivers[ring].publish();
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let (memory, file) = Memory::create("fuzz", REGION_BYTES).expect("memory");
    let mut client = Client { memory, file, regions: 0, rings: [0; 2] };
    let mut negotiation =
        Negotiation::new(ClientLimits { rings: 4, log2_ring_size: 7, bytes: 4 * REGION_BYTES as u64 });
    while let Some((message, file)) = client.message(&mut input) {
        match negotiation.receive(message, file.map(Into::into), "fuzz") {
            Ok(HandshakeStep::Reply(reply)) => assert_eq!(reply, Message::Ack),
            Ok(HandshakeStep::Established(_, mut connection)) => {
                // The files are no eventfds.
                if let Some(interrupt) = connection.interrupts.first() {
                    assert!(SIGNALLER.signal(std::os::fd::AsFd::as_fd(interrupt)).is_err());
                }
                exchange(&mut connection, &client, &mut input);
                return;
            }
            Err(refusal) => {
                assert!(!refusal.to_string().is_empty());
                return;
            }
        }
    }
});
