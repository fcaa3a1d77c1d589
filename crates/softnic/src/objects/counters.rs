//! Counter sets.

use crate::errno::{EINVAL, Verb};
use crate::personality::Rules;
use crate::state::{CounterPoint, CounterState};

/// The first values of an array of `count`, up to the last index of the set; points with the same index add
/// up (ibv_attach_counters_point_flow(3)).
pub(crate) fn values(set: &CounterState, count: usize, rules: &Rules) -> Verb<Vec<u64>> {
    if set.users == 0 && !rules.flow.emulation.reads_idle_counters {
        return Err(EINVAL);
    }
    // As the kernel: every index that was attached must have its place in the array.
    let last = set.points.iter().map(|&(index, _)| index as usize).max().ok_or(EINVAL)?;
    if last >= count {
        return Err(EINVAL);
    }
    let mut values = vec![0_u64; last + 1];
    for &(index, point) in &set.points {
        let value = match point {
            CounterPoint::Packets => set.packets,
            CounterPoint::Bytes => set.bytes,
        };
        if let Some(place) = values.get_mut(index as usize) {
            *place = place.wrapping_add(value);
        }
    }
    Ok(values)
}
