//! The ioctl of a command descriptor: attributes to blocks, and the answers back (kernel core/uverbs_ioctl.c;
//! rdma-core libibverbs/cmd_ioctl.c).
//!
//! Only `INVOKE_WRITE`, counters and UAR pages are there. Every other method is EPROTONOSUPPORT, upon which
//! libibverbs sends the older command of the same meaning through `INVOKE_WRITE`. A command that is not there
//! is EOPNOTSUPP.

use softnic::errno::{EFAULT, EINVAL, ENOSPC, EOPNOTSUPP, Verb, VerbErrno};

use super::block::{Block, Reply};
use super::commands::{self, Call};
use super::context::Context;
use super::counters;
use super::user_memory::{copy_in, copy_out};

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub const VERBS_IOCTL: u64 = 3 << 30 | (HEADER_BYTES as u64) << 16 | 0x1b << 8 | 1;

const EPROTONOSUPPORT: VerbErrno = VerbErrno::new(libc::EPROTONOSUPPORT);
const ENOTTY: VerbErrno = VerbErrno::new(libc::ENOTTY);

const HEADER_BYTES: usize = 24;
const ATTRIBUTE_BYTES: usize = 16;
/// A header and its attributes fit into a page.
const MAX_BYTES: usize = 4_096;
/// Data of up to this many bytes is in the attribute itself.
const INLINE_BYTES: usize = size_of::<u64>();
/// `UVERBS_ATTR_F_MANDATORY` and `UVERBS_ATTR_F_VALID_OUTPUT`.
const MANDATORY: u16 = 1;
const VALID_OUTPUT: u16 = 2;

/// The driver's own objects, methods and attributes count from here.
const DRIVER: u16 = 1 << 12;
/// `UVERBS_OBJECT_DEVICE` with `UVERBS_METHOD_INVOKE_WRITE`.
const INVOKE_WRITE: (u16, u16) = (0, 0);
/// `UVERBS_OBJECT_COUNTERS` with its methods.
const COUNTERS_CREATE: (u16, u16) = (15, 0);
const COUNTERS_DESTROY: (u16, u16) = (15, 1);
const COUNTERS_READ: (u16, u16) = (15, 2);
/// `MLX5_IB_OBJECT_UAR` with its methods.
const UAR_ALLOC: (u16, u16) = (DRIVER + 8, DRIVER);
const UAR_DESTROY: (u16, u16) = (DRIVER + 8, DRIVER + 1);

/// Attributes of `INVOKE_WRITE`.
const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_COMMAND: u16 = 2;
const DRIVER_IN: u16 = DRIVER;
const DRIVER_OUT: u16 = DRIVER + 1;

#[derive(Clone, Copy, Debug)]
struct Attribute {
    id: u16,
    bytes: u16,
    flags: u16,
    data: u64,
    /// Where it is, to be written back.
    address: u64,
}

/// The attributes of one ioctl.
struct Attributes(Vec<Attribute>);

impl Attributes {
    /// Reads a header with its attributes; returns the method as well.
    fn read(address: u64) -> Verb<((u16, u16), Self)> {
        let mut header = [0; HEADER_BYTES];
        copy_in(address, &mut header)?;
        let header = Block(&header);
        let (length, count) = (usize::from(header.u16(0)), usize::from(header.u16(6)));
        if length > MAX_BYTES || length != HEADER_BYTES + count * ATTRIBUTE_BYTES {
            return Err(EINVAL);
        }
        if header.u64(8) != 0 || header.u32(20) != 0 {
            return Err(EPROTONOSUPPORT);
        }
        let mut bytes = vec![0; count * ATTRIBUTE_BYTES];
        let start = address.checked_add(HEADER_BYTES as u64).ok_or(EFAULT)?;
        copy_in(start, &mut bytes)?;
        let attributes: Vec<_> = bytes
            .chunks_exact(ATTRIBUTE_BYTES)
            .zip((start..).step_by(ATTRIBUTE_BYTES))
            .map(|(chunk, address)| {
                let chunk = Block(chunk);
                let (id, bytes, flags) = (chunk.u16(0), chunk.u16(2), chunk.u16(4));
                Attribute { id, bytes, flags, data: chunk.u64(8), address }
            })
            .collect();
        let repeated = |at: usize| attributes[..at].iter().any(|before| before.id == attributes[at].id);
        if (0..count).any(repeated) {
            return Err(EINVAL);
        }
        Ok(((header.u16(2), header.u16(4)), Self(attributes)))
    }

    /// Refuses attributes that a method does not have, unless they are optional.
    fn check(&self, known: &[u16]) -> Verb<()> {
        let unknown = |one: &Attribute| one.flags & MANDATORY != 0 && !known.contains(&one.id);
        if self.0.iter().any(unknown) { Err(EPROTONOSUPPORT) } else { Ok(()) }
    }

    fn find(&self, id: u16) -> Option<&Attribute> {
        self.0.iter().find(|one| one.id == id)
    }

    fn need(&self, id: u16) -> Verb<&Attribute> {
        self.find(id).ok_or(EINVAL)
    }

    /// The bytes of an input; none if it is not there.
    fn input(&self, id: u16) -> Verb<Vec<u8>> {
        let Some(attribute) = self.find(id) else { return Ok(Vec::new()) };
        let bytes = usize::from(attribute.bytes);
        if bytes <= INLINE_BYTES {
            return Ok(attribute.data.to_ne_bytes()[..bytes].to_vec());
        }
        let mut input = vec![0; bytes];
        copy_in(attribute.data, &mut input)?;
        Ok(input)
    }

    /// Room for an output; none if it is not wanted. Zeros are written to the client's first, and the flags
    /// of the attribute as they are: if that fails nothing was done yet that would have to be undone.
    fn output(&self, id: u16) -> Verb<Reply> {
        let Some(attribute) = self.find(id) else { return Ok(Reply::default()) };
        let reply = Reply::of(usize::from(attribute.bytes));
        copy_out(attribute.data, &reply.0)?;
        attribute.write_flags(attribute.flags)?;
        Ok(reply)
    }

    /// The attribute for the handle of a new object. It is written as it is, for the reason that
    /// [`output`](Self::output) writes zeros.
    fn handle(&self, id: u16) -> Verb<&Attribute> {
        let attribute = self.need(id)?;
        attribute.write_data(attribute.data)?;
        Ok(attribute)
    }

    fn answer(&self, id: u16, reply: &Reply) -> Verb<()> {
        let Some(attribute) = self.find(id) else { return Ok(()) };
        copy_out(attribute.data, &reply.0)?;
        attribute.write_flags(attribute.flags | VALID_OUTPUT)
    }
}

impl Attribute {
    fn write_flags(&self, flags: u16) -> Verb<()> {
        copy_out(self.address + 4, &flags.to_ne_bytes())
    }

    fn write_data(&self, data: u64) -> Verb<()> {
        copy_out(self.address + 8, &data.to_ne_bytes())
    }
}

/// Carries out an ioctl whose argument is at `address`.
pub(super) fn carry_out(context: &Context, request: u64, address: u64) -> Verb<()> {
    if request != VERBS_IOCTL {
        return Err(ENOTTY);
    }
    // A device that is gone has no command left (kernel core/uverbs_ioctl.c, `ib_uverbs_ioctl`).
    context.nic.check_alive()?;
    let (method, attributes) = Attributes::read(address)?;
    match method {
        INVOKE_WRITE => invoke_write(context, &attributes),
        COUNTERS_CREATE => {
            attributes.check(&[0])?;
            let handle = attributes.handle(0)?;
            handle.write_data(counters::create(context)?.into())
        }
        COUNTERS_DESTROY => {
            attributes.check(&[0])?;
            counters::destroy(context, attributes.need(0)?.data)
        }
        COUNTERS_READ => {
            attributes.check(&[0, 1, 2])?;
            let flags = Block(&attributes.input(2)?).u32(0);
            let mut values = attributes.output(1)?;
            counters::read(context, attributes.need(0)?.data, flags, &mut values)?;
            attributes.answer(1, &values)
        }
        UAR_ALLOC => allocate_page(context, &attributes),
        UAR_DESTROY => {
            attributes.check(&[DRIVER])?;
            context.free_page(attributes.need(DRIVER)?.data)
        }
        _ => Err(EPROTONOSUPPORT),
    }
}

fn invoke_write(context: &Context, attributes: &Attributes) -> Verb<()> {
    attributes.check(&[CORE_IN, CORE_OUT, WRITE_COMMAND, DRIVER_IN, DRIVER_OUT])?;
    let number = attributes.need(WRITE_COMMAND)?.data;
    let number = u32::try_from(number).map_err(|_| EINVAL)?;
    let size = |id| attributes.find(id).map_or(0, |attribute| usize::from(attribute.bytes));
    // kernel core/rdma_core.h, `uapi_get_method`, and core/uverbs_uapi.c, `ib_uverbs_notsupp`.
    let needed = commands::sizes(number).ok_or(EOPNOTSUPP)?;
    // kernel core/uverbs_std_types_device.c, `UVERBS_HANDLER(UVERBS_METHOD_INVOKE_WRITE)`.
    if size(CORE_IN) < needed.request || size(CORE_OUT) < needed.response {
        return Err(ENOSPC);
    }
    let (core, driver) = (attributes.input(CORE_IN)?, attributes.input(DRIVER_IN)?);
    let mut call = Call {
        core: Block(&core),
        driver: Block(&driver),
        reply: attributes.output(CORE_OUT)?,
        driver_reply: attributes.output(DRIVER_OUT)?,
    };
    commands::carry_out(context, number, &mut call)?;
    attributes.answer(CORE_OUT, &call.reply)?;
    attributes.answer(DRIVER_OUT, &call.driver_reply)
}

/// `UAR_OBJ_ALLOC` (kernel hw/mlx5/main.c): a doorbell page, to be mapped.
fn allocate_page(context: &Context, attributes: &Attributes) -> Verb<()> {
    const HANDLE: u16 = DRIVER;
    const KIND: u16 = DRIVER + 1;
    const OFFSET: u16 = DRIVER + 2;
    const LENGTH: u16 = DRIVER + 3;
    const NUMBER: u16 = DRIVER + 4;
    /// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF` and `_NC`.
    const LAST_KIND: u64 = 1;
    attributes.check(&[HANDLE, KIND, OFFSET, LENGTH, NUMBER])?;
    if attributes.need(KIND)?.data > LAST_KIND {
        return Err(EINVAL);
    }
    for id in [OFFSET, LENGTH, NUMBER] {
        attributes.need(id)?;
    }
    let handle = attributes.handle(HANDLE)?;
    let (mut offset, mut length) = (attributes.output(OFFSET)?, attributes.output(LENGTH)?);
    let mut number = attributes.output(NUMBER)?;
    let page = context.add_page()?;
    offset.put_u64(0, page.offset);
    length.put_u32(0, page.bytes);
    number.put_u32(0, page.number);
    attributes.answer(OFFSET, &offset)?;
    attributes.answer(LENGTH, &length)?;
    attributes.answer(NUMBER, &number)?;
    handle.write_data(page.number.into())
}
