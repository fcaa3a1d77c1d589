//! The search for the number of a device's flow priorities, which no verb reports.

/// The number of flow priorities up to `most` that a device accepts, at least 1. `is_accepted` tries one; a
/// device accepts all priorities below one that it accepts. The last one is tried first, so that one trial is
/// enough if the device has `most` of them. Priority 0 is never tried: of the number 1 it is only known that
/// the device refuses priority 1.
///
/// ```
/// let of_eight = |priority: u16| Ok::<_, std::convert::Infallible>(priority < 8);
/// assert_eq!(verbs::accepted_priorities(16, of_eight), Ok(8));
/// ```
///
/// # Errors
/// Those of a trial.
pub fn accepted_priorities<E>(
    most: u32,
    mut is_accepted: impl FnMut(u16) -> Result<bool, E>,
) -> Result<u32, E> {
    // There are no more than 65,536.
    let mut is_accepted = |priority: u32| u16::try_from(priority).map_or(Ok(false), &mut is_accepted);
    // The first refused one is in `least..=first_refused`; all below `least` are accepted.
    let (mut least, mut first_refused) = (1, most.max(1));
    let mut next = first_refused - 1;
    while least < first_refused {
        match is_accepted(next)? {
            true => least = next + 1,
            false => first_refused = next,
        }
        next = least.midpoint(first_refused);
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::accepted_priorities;

    /// The result for a device of this many priorities, and the priorities that were tried. The trial of
    /// `fault` fails.
    fn tried(most: u32, limit: u32, fault: Option<u16>) -> (Result<u32, u16>, Vec<u16>) {
        let mut trials = Vec::new();
        let found = accepted_priorities(most, |priority| {
            trials.push(priority);
            if fault == Some(priority) { Err(priority) } else { Ok(u32::from(priority) < limit) }
        });
        (found, trials)
    }

    #[test]
    fn one_trial_is_enough_where_all_are_accepted() {
        for (most, found, trials) in [
            (0, 1, vec![]),
            (1, 1, vec![]),
            (2, 2, vec![1]),
            (3, 3, vec![2]),
            (1 << 16, 1 << 16, vec![u16::MAX]),
        ] {
            assert_eq!(tried(most, most, None), (Ok(found), trials), "{most}");
        }
    }

    #[test]
    fn a_device_that_accepts_none_is_tried_once_for_each_halving() {
        for (most, trials) in [(0, vec![]), (1, vec![]), (2, vec![1]), (3, vec![2, 1])] {
            assert_eq!(tried(most, 0, None), (Ok(1), trials), "{most}");
        }
        let halves = (0..16).rev().map(|bit| 1 << bit);
        let trials: Vec<u16> = [u16::MAX].into_iter().chain(halves).collect();
        assert_eq!(tried(1 << 16, 0, None), (Ok(1), trials));
    }

    #[test]
    fn the_search_is_between_accepted_and_refused_priorities() {
        assert_eq!(tried(16, 8, None), (Ok(8), vec![15, 8, 4, 6, 7]));
        assert_eq!(tried(16, 15, None), (Ok(15), vec![15, 8, 12, 14]));
        // No device has more than there are numbers.
        assert_eq!(tried(1 << 17, 1 << 17, None).0, Ok(1 << 16));
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(tried(2, 2, Some(1)), (Err(1), vec![1]));
        assert_eq!(tried(3, 1, Some(1)), (Err(1), vec![2, 1]));
        assert_eq!(tried(1 << 16, 0, Some(u16::MAX)), (Err(u16::MAX), vec![u16::MAX]));
        assert_eq!(tried(16, 8, Some(4)), (Err(4), vec![15, 8, 4]));
        assert_eq!(tried(16, 8, Some(3)), (Ok(8), vec![15, 8, 4, 6, 7]));
    }
}
