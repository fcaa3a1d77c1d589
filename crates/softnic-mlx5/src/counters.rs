//! Counter sets. Their points come with the first flow that has them (`struct mlx5_ib_create_flow`), as with
//! the kernel's driver (hw/mlx5/fs.c, `flow_counters_set_data`).

use softnic::errno::{EINVAL, Verb, VerbErrno};
use softnic::limits::MAX_COUNTER_POINTS;
use softnic::objects::State;
use softnic::objects::counters::{self, CounterPoint};

use super::block::{Block, Reply};
use super::context::Context;
use super::user_memory::copy_in;

const ENOENT: VerbErrno = VerbErrno::new(libc::ENOENT);

pub(super) fn create(context: &Context) -> Verb<u32> {
    let owner = context.slot()?;
    counters::create(&mut context.nic.control(), owner)
}

/// The slot of one of the context's sets.
pub(super) fn find(state: &State, owner: u32, handle: u64, errno: VerbErrno) -> Verb<u32> {
    let slot = u32::try_from(handle).map_err(|_| errno)?;
    if counters::is_owned(state, owner, slot) { Ok(slot) } else { Err(errno) }
}

pub(super) fn destroy(context: &Context, handle: u64) -> Verb<()> {
    let owner = context.slot()?;
    let mut state = context.nic.control();
    let slot = find(&state, owner, handle, ENOENT)?;
    counters::destroy(&mut state, slot)
}

/// Fills the client's array with the values of a set.
pub(super) fn read(context: &Context, handle: u64, flags: u32, array: &mut Reply) -> Verb<()> {
    /// `IB_UVERBS_READ_COUNTERS_PREFER_CACHED`: these counters are always at hand.
    const PREFER_CACHED: u32 = 1;
    if flags & !PREFER_CACHED != 0 {
        return Err(EINVAL);
    }
    let owner = context.slot()?;
    let state = context.nic.control_without_wakeup();
    let slot = find(&state, owner, handle, EINVAL)?;
    let count = array.0.len() / size_of::<u64>();
    let values = counters::values(&context.nic, &state, slot, count)?;
    for (index, value) in values.iter().enumerate() {
        array.put_u64(index * size_of::<u64>(), *value);
    }
    Ok(())
}

/// Reads `struct mlx5_ib_create_flow`: the points of the counters of a flow.
pub(super) fn points(driver: Block<'_>) -> Verb<Vec<(u32, CounterPoint)>> {
    /// Before the counters' data, in each, and in each point.
    const HEADER_BYTES: usize = 8;
    const DATA_BYTES: usize = 16;
    const POINT_BYTES: usize = 8;
    if driver.len() == 0 {
        return Ok(Vec::new());
    }
    // kernel hw/mlx5/fs.c, `mlx5_ib_create_flow`: one set of counters for a flow.
    let sets = driver.u32(0);
    if driver.len() < HEADER_BYTES || driver.u32(4) != 0 || sets > 1 {
        return Err(EINVAL);
    }
    if sets == 0 {
        return Ok(Vec::new());
    }
    let count = driver.u32(HEADER_BYTES + 8) as usize;
    if driver.len() < HEADER_BYTES + DATA_BYTES || count > MAX_COUNTER_POINTS {
        return Err(EINVAL);
    }
    let mut bytes = vec![0; count * POINT_BYTES];
    copy_in(driver.u64(HEADER_BYTES), &mut bytes)?;
    let point = |chunk: &[u8]| {
        let (kind, index) = (Block(chunk).u32(0), Block(chunk).u32(4));
        let point = match kind {
            ibverbs_sys::IBV_COUNTER_PACKETS => CounterPoint::Packets,
            ibverbs_sys::IBV_COUNTER_BYTES => CounterPoint::Bytes,
            _ => return Err(EINVAL),
        };
        Ok((index, point))
    };
    bytes.chunks_exact(POINT_BYTES).map(point).collect()
}
