//! A hostile client of the kernel's command interface that `softnic --method mlx5` models: any commands with
//! any blocks, through the ioctl, and any words in the memory of its queues while the generator's frames
//! arrive.
//!
//! The input is a sequence of operations. Addresses in it are made to point into an arena, or nowhere: a
//! client that names memory of the process for its queues owns that memory, and here it is the fuzzer's.
//! Around the arena is a gigabyte that nobody may touch, so that a queue that begins in it and is too long is
//! a fault.
#![no_main]

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use softnic::lazy_nic::{LazyNic, Settings, variable};
use softnic_mlx5::{CommandDescriptors, MappingRequest, VERBS_IOCTL};

const ARENA_BYTES: usize = 1 << 20;
const FENCE_BYTES: usize = 1 << 30;
/// An address that is never mapped.
const NOWHERE: u64 = 1 << 62;
/// A number that stands for the command descriptor; nothing is opened.
const DESCRIPTOR: c_int = 1_000_000;
const EXTENDED: u32 = 1 << 31;
/// A command that there is not.
const UNKNOWN: u32 = 41;
/// Descriptors that commands made and that a client keeps.
const MAX_KEPT: usize = 64;

/// The commands there are, so that the fuzzer need not find them; and one that is not.
static COMMANDS: LazyLock<Vec<u32>> =
    LazyLock::new(|| CommandDescriptors::numbers().chain([UNKNOWN]).collect());
static NIC: LazyLock<LazyNic> = LazyLock::new(|| {
    let settings = Settings::read(|name| match name {
        variable::METHOD => Some("mlx5".to_owned()),
        variable::WIRE => Some("generator:100000".to_owned()),
        _ => None,
    });
    LazyNic::new(settings.expect("valid settings"))
});
static ARENA: LazyLock<usize> = LazyLock::new(|| {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping that nobody can touch.
    let fence = unsafe { libc::mmap(std::ptr::null_mut(), 2 * FENCE_BYTES, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(fence, libc::MAP_FAILED);
    let arena = fence.wrapping_byte_add(FENCE_BYTES);
    // SAFETY: inside the mapping, which is not in use yet.
    let code = unsafe { libc::mprotect(arena, ARENA_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(code, 0);
    arena.expose_provenance()
});

struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }

    /// Some bytes, as many as there are.
    fn bytes(&mut self, wanted: usize) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        bytes.to_vec()
    }
}

/// An address in the arena, mostly aligned, or nowhere.
fn place(value: u64) -> u64 {
    let align = if value >> 62 == 3 { 1 } else { 64 };
    let offset = value as usize % ARENA_BYTES / align * align;
    if value >> 60 == 7 { NOWHERE } else { (*ARENA + offset) as u64 }
}

/// Makes the fields at these offsets addresses.
fn redirect(block: &mut [u8], fields: &[usize]) {
    for &at in fields {
        if let Some(field) = block.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<8>) {
            *field = place(u64::from_ne_bytes(*field)).to_ne_bytes();
        }
    }
}

/// The fields of a command that are addresses, in the core's and in the driver's block.
fn addresses(command: u32, core: &[u8]) -> (&'static [usize], &'static [usize]) {
    const QUEUE_PAIR: u32 = EXTENDED | 24;
    // With an indirection table (`IB_UVERBS_CREATE_QP_MASK_IND_TABLE`) the driver's block is about the hash.
    let has_table = core.get(48).is_some_and(|mask| mask & 1 != 0);
    match command {
        9 => (&[8], &[]),
        19 => (&[], &[0]),
        18 => (&[], &[0, 8]),
        // The buffer to receive, the doorbell record and the buffer to send.
        24 => (&[], &[0, 8, 40]),
        QUEUE_PAIR if !has_table => (&[], &[0, 8, 40]),
        _ if command == EXTENDED | 18 || command == EXTENDED | 52 => (&[], &[0, 8]),
        _ if command == EXTENDED | 50 => (&[], &[8]),
        _ => (&[], &[]),
    }
}

/// Where a command names a completion channel by its descriptor.
fn channel(command: u32) -> Option<usize> {
    const QUEUE: u32 = EXTENDED | 18;
    match command {
        18 => Some(24),
        QUEUE => Some(16),
        _ => None,
    }
}

/// An attribute: {id, bytes, flags, 0, data}.
fn attribute(message: &mut Vec<u8>, id: u16, bytes: usize, data: u64) {
    for field in [id, bytes as u16, 1, 0] {
        message.extend(field.to_ne_bytes());
    }
    message.extend(data.to_ne_bytes());
}

fn input(message: &mut Vec<u8>, id: u16, block: &[u8]) {
    let mut inline = [0; 8];
    let data = if block.len() <= inline.len() {
        inline[..block.len()].copy_from_slice(block);
        u64::from_ne_bytes(inline)
    } else {
        block.as_ptr().expose_provenance() as u64
    };
    attribute(message, id, block.len(), data);
}

/// Sends attributes; returns whether the answer was a success.
fn send(commands: &CommandDescriptors, object: u16, method: u16, attributes: &[u8]) -> bool {
    let mut message = Vec::new();
    let count = attributes.len() / 16;
    for field in [(24 + attributes.len()) as u16, object, method, count as u16] {
        message.extend(field.to_ne_bytes());
    }
    message.extend([0; 16]);
    message.extend(attributes);
    commands.ioctl(DESCRIPTOR, VERBS_IOCTL, message.as_mut_ptr().expose_provenance()).is_ok()
}

fn command(commands: &CommandDescriptors, bytes: &mut Input<'_>, kept: &mut Vec<OwnedFd>) -> Option<()> {
    let number = COMMANDS[usize::from(bytes.u8()?) % COMMANDS.len()];
    let (core_bytes, driver_bytes) = (usize::from(bytes.u8()?), usize::from(bytes.u8()?));
    let (mut core, mut driver) = (bytes.bytes(core_bytes), bytes.bytes(driver_bytes));
    let (core_fields, driver_fields) = addresses(number, &core);
    redirect(&mut core, core_fields);
    redirect(&mut driver, driver_fields);
    if number == 9 && core.len() >= 32 {
        // The two addresses of a region are at the same place of their pages.
        core.copy_within(8..16, 24);
    }
    if let Some(field) = channel(number).and_then(|at| core.get_mut(at..)?.first_chunk_mut::<4>())
        && let Some(end) = kept.get(usize::from(field[0]))
    {
        *field = end.as_raw_fd().to_ne_bytes();
    }
    let (mut reply, mut driver_reply) = ([0_u8; 320], [0_u8; 128]);
    let mut attributes = Vec::new();
    input(&mut attributes, 0, &core);
    attribute(&mut attributes, 1, reply.len(), reply.as_mut_ptr().expose_provenance() as u64);
    attribute(&mut attributes, 2, 4, number.into());
    input(&mut attributes, 0x1000, &driver);
    let room = driver_reply.as_mut_ptr().expose_provenance() as u64;
    attribute(&mut attributes, 0x1001, driver_reply.len(), room);
    if send(commands, 0, 0, &attributes) && matches!(number, 0 | 17) {
        let descriptor = u32::from_ne_bytes([reply[0], reply[1], reply[2], reply[3]]);
        // SAFETY: the descriptor that the command made for its caller.
        let end = unsafe { OwnedFd::from_raw_fd(descriptor.cast_signed()) };
        // Without its end a channel is abandoned, and no queue of it is looked at.
        if kept.len() < MAX_KEPT {
            kept.push(end);
        }
    }
    Some(())
}

/// An ioctl of any method with attributes whose data is an address in the arena, or a number.
fn method(commands: &CommandDescriptors, bytes: &mut Input<'_>) -> Option<()> {
    let objects = [(0, 0), (15, 0), (15, 1), (15, 2), (0x1008, 0x1000), (0x1008, 0x1001), (7, 3)];
    let (object, method) = objects[usize::from(bytes.u8()?) % objects.len()];
    let mut attributes = Vec::new();
    for _ in 0..bytes.u8()? % 6 {
        let (id, size) = (bytes.u8()?, usize::from(bytes.u8()?));
        let id = u16::from(id & 7) | u16::from(id & 0x80) << 5;
        let data = bytes.u64()?;
        let is_number = size <= 8 && data >> 56 == 0;
        attribute(&mut attributes, id, size, if is_number { data } else { place(data) });
    }
    send(commands, object, method, &attributes);
    Some(())
}

/// Writes a word of a queue or of a doorbell record.
fn scribble(bytes: &mut Input<'_>) -> Option<()> {
    let (at, value) = (bytes.u64()?, bytes.u64()?);
    let place = std::ptr::with_exposed_provenance_mut::<u64>(*ARENA + at as usize % ARENA_BYTES / 8 * 8);
    // SAFETY: an aligned word of the arena, which both sides use as atomics.
    unsafe { AtomicU64::from_ptr(place) }.store(value, Ordering::Release);
    Some(())
}

/// Asks what a mapping shows.
fn mapping(commands: &CommandDescriptors, bytes: &mut Input<'_>) -> Option<()> {
    let (page, rest) = (bytes.u64()?, bytes.u8()?);
    // Mostly near one of the pages there are.
    let page = if rest & 0x80 == 0 { page & 0xfff } else { page };
    let offset = page.wrapping_mul(4_096).cast_signed();
    let bytes = usize::from(rest & 3) * 4_096;
    let _ = commands.mapping(DESCRIPTOR, &MappingRequest { offset, bytes, is_written: rest & 4 != 0 });
    Some(())
}

fuzz_target!(|data: &[u8]| {
    let commands = CommandDescriptors::new(&NIC);
    commands.open(DESCRIPTOR).expect("a NIC");
    let (mut bytes, mut kept) = (Input(data), Vec::new());
    while let Some(operation) = bytes.u8() {
        let done = match operation % 9 {
            0..=4 => command(&commands, &mut bytes, &mut kept),
            5 => method(&commands, &mut bytes),
            6 => scribble(&mut bytes),
            7 => mapping(&commands, &mut bytes),
            _ => {
                std::thread::yield_now();
                Some(())
            }
        };
        if done.is_none() {
            break;
        }
    }
    commands.close(DESCRIPTOR);
});
