//! Counter sets.

use device_model::{Feature, Limit};

use crate::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb};
use crate::limits::MAX_COUNTER_POINTS;
use crate::nic::Nic;
pub use crate::state::CounterPoint;
use crate::state::{CounterState, State};

/// Refuses counter sets of a device that has none.
///
/// # Errors
/// EOPNOTSUPP.
pub fn check_supported(nic: &Nic) -> Verb<()> {
    nic.rules().flow.check(Feature::Count).map_err(|_| EOPNOTSUPP)
}

/// Makes a counter set of a context, without points; returns its slot.
///
/// # Errors
/// The device has no more.
pub fn create(state: &mut State, owner: u32) -> Verb<u32> {
    let set = CounterState {
        owner,
        users: 0,
        bound: false,
        points: Vec::new(),
        packets: 0,
        bytes: 0,
        of_wires: Vec::new(),
    };
    let full = state.limits.of(Limit::Counters);
    state.counters.insert(set).ok_or(full)
}

/// Returns whether a slot is that of a counter set of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, slot: u32) -> bool {
    state.counters.get(slot).is_some_and(|set| set.owner == owner)
}

/// The number of all counter sets.
#[must_use]
pub fn count(state: &State) -> usize {
    state.counters.iter().count()
}

/// The points of a set, each with its index in the application's array; `None` if there is no such set.
#[must_use]
pub fn points(state: &State, slot: u32) -> Option<&[(u32, CounterPoint)]> {
    state.counters.get(slot).map(|set| &*set.points)
}

/// Adds a point to a set that no flow was bound to.
///
/// # Errors
/// EINVAL if there is no such set, EBUSY if a flow was bound, and ENOMEM if it can have no more points.
pub fn attach(state: &mut State, slot: u32, index: u32, point: CounterPoint) -> Verb<()> {
    let set = state.counters.get_mut(slot).ok_or(EINVAL)?;
    if set.bound {
        return Err(EBUSY);
    }
    if set.points.len() >= MAX_COUNTER_POINTS {
        return Err(ENOMEM);
    }
    set.points.push((index, point));
    Ok(())
}

/// The first values of an array of `count`, up to the last index of the set; points with the same index add
/// up (ibv_attach_counters_point_flow(3)).
///
/// # Errors
/// EINVAL if there is no such set, if it has no point, if the array is too short, or if no flow uses it and
/// the device does not read such a set.
pub fn values(nic: &Nic, state: &State, slot: u32, count: usize) -> Verb<Vec<u64>> {
    let set = state.counters.get(slot).ok_or(EINVAL)?;
    if set.users == 0 && !nic.rules().flow.emulation.reads_idle_counters {
        return Err(EINVAL);
    }
    // As the kernel: every index that was attached must have its place in the array.
    let last = set.points.iter().map(|&(index, _)| index as usize).max().ok_or(EINVAL)?;
    if last >= count {
        return Err(EINVAL);
    }
    let mut values = vec![0_u64; last + 1];
    let counted = set.of_wires.iter().map(|(_, counter)| counter.read());
    let (packets, bytes) = counted.fold((set.packets, set.bytes), |(packets, bytes), dropped| {
        (packets + dropped.packets, bytes + dropped.bytes)
    });
    for &(index, point) in &set.points {
        let value = match point {
            CounterPoint::Packets => packets,
            CounterPoint::Bytes => bytes,
        };
        if let Some(place) = values.get_mut(index as usize) {
            *place = place.wrapping_add(value);
        }
    }
    Ok(values)
}

/// Removes a set that no flow uses.
///
/// # Errors
/// EINVAL if there is no such set, and EBUSY if it is in use.
pub fn destroy(state: &mut State, slot: u32) -> Verb<()> {
    if state.counters.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    state.counters.remove(slot);
    Ok(())
}
