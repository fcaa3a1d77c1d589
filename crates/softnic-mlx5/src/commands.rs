//! The commands: what the client sends, what goes back, and how long both must be (kernel core/uverbs_cmd.c,
//! `uapi_def` tables). A file per family carries them out.

mod device;
mod domains;
mod flows;
mod queue_pairs;
mod queues;
mod raw_queue_pairs;
mod steering;

use softnic::errno::{EOPNOTSUPP, Verb, VerbErrno};

use super::block::{Block, Reply};
use super::context::Context;

/// The kernel's answer to a destroyed or unknown handle of an object to be destroyed.
const ENOENT: VerbErrno = VerbErrno::new(libc::ENOENT);

/// One command: the core's and the driver's request, and room for both responses.
#[derive(Debug, Default)]
pub(super) struct Call<'c> {
    pub(super) core: Block<'c>,
    pub(super) driver: Block<'c>,
    pub(super) reply: Reply,
    pub(super) driver_reply: Reply,
}

/// The fewest bytes of a command's core request and response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) request: usize,
    pub(super) response: usize,
}

/// `IB_USER_VERBS_CMD_FLAG_EXTENDED`.
const EXTENDED: u32 = 1 << 31;

type Handler = fn(&Context, &mut Call<'_>) -> Verb<()>;

/// A row: the number (`enum ib_uverbs_write_cmds`), the sizes and what carries it out.
struct Row {
    number: u32,
    sizes: Sizes,
    handler: Handler,
}

const fn row(number: u32, request: usize, response: usize, handler: Handler) -> Row {
    Row { number, sizes: Sizes { request, response }, handler }
}

static ROWS: &[Row] = &[
    row(0, 8, 8, device::create_context),
    row(1, 8, 176, device::query_device),
    row(2, 16, 40, device::query_port),
    row(3, 8, 4, domains::allocate),
    row(4, 4, 0, domains::free),
    row(9, 40, 12, domains::register_memory),
    row(13, 4, 0, domains::deregister_memory),
    row(17, 8, 4, queues::create_channel),
    row(18, 32, 8, queues::create_completion_queue),
    row(19, 16, 8, queues::resize_completion_queue),
    row(20, 16, 8, queues::destroy_completion_queue),
    row(24, 56, 32, raw_queue_pairs::create),
    row(25, 16, 128, raw_queue_pairs::query),
    row(26, 112, 0, raw_queue_pairs::modify),
    row(27, 16, 4, queue_pairs::destroy),
    row(EXTENDED | 1, 8, 184, device::query_device_extended),
    row(EXTENDED | 18, 32, 16, queues::create_completion_queue_extended),
    row(EXTENDED | 24, 52, 40, queue_pairs::create),
    row(EXTENDED | 26, 112, 8, raw_queue_pairs::modify_extended),
    row(EXTENDED | 50, 24, 8, flows::create),
    row(EXTENDED | 51, 8, 0, flows::destroy),
    row(EXTENDED | 52, 32, 24, queues::create_work_queue),
    row(EXTENDED | 53, 16, 0, queues::modify_work_queue),
    row(EXTENDED | 54, 8, 12, queues::destroy_work_queue),
    row(EXTENDED | 55, 8, 16, steering::create_table),
    row(EXTENDED | 56, 8, 0, steering::destroy_table),
    row(EXTENDED | 57, 12, 0, queues::moderate),
];

fn find(number: u32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.number == number)
}

pub(super) fn numbers() -> impl Iterator<Item = u32> {
    ROWS.iter().map(|row| row.number)
}

/// How long a command must be; `None` if there is no such command.
pub(super) fn sizes(number: u32) -> Option<Sizes> {
    find(number).map(|row| row.sizes)
}

/// Carries a command out whose blocks are as long as [`sizes`] demands.
pub(super) fn carry_out(context: &Context, number: u32, call: &mut Call<'_>) -> Verb<()> {
    let handler = find(number).ok_or(EOPNOTSUPP)?.handler;
    handler(context, call)
}

#[cfg(test)]
mod tests;
