//! The search for the number of a device's flow priorities, which no verb reports.

/// The number of flow priorities up to `most` that a device accepts, at least 1. `is_accepted` tries one; a
/// device accepts all priorities below one that it accepts. The last one is tried first, so that one trial is
/// enough if there are as many. Priority 0 is never tried: of the number 1 it is only known that the device
/// refuses priority 1.
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
