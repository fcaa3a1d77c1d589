//! Assigns a core to each worker. Pure: the cores that this process may use are arguments.
//!
//! `check` and `explain` use the number of workers; only the runtime pins threads.

use crate::settings::Cores;

/// From this many cores on, "auto" leaves the first core to the system and to steerd's other threads.
const ENOUGH_TO_SPARE_ONE: usize = 5;

/// The cores that this process may use, in ascending order.
pub(crate) fn available() -> Vec<usize> {
    let mut cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    cores.sort_unstable();
    cores
}

/// One core per worker; `None` for a worker that is not pinned.
pub(crate) fn assign(
    wanted: &Cores,
    softnic_core: Option<usize>,
    available: &[usize],
) -> Result<Vec<Option<usize>>, String> {
    let missing = |core: usize| {
        let list: Vec<String> = available.iter().map(ToString::to_string).collect();
        format!(
            "core {core} does not exist or is not allowed to this process (hint: it may use {})",
            list.join(", ")
        )
    };
    if let Some(core) = softnic_core
        && !available.contains(&core)
    {
        return Err(format!("softnic.core: {}", missing(core)));
    }
    match wanted {
        Cores::List(cores) => match cores.iter().find(|core| !available.contains(core)) {
            Some(core) => Err(missing(*core)),
            None => Ok(cores.iter().copied().map(Some).collect()),
        },
        Cores::Count(count) => {
            let free = free(softnic_core, available);
            // Pinning only some would make workers of one group unequal.
            let enough = free.len() >= *count;
            Ok((0..*count).map(|worker| if enough { free.get(worker).copied() } else { None }).collect())
        }
        Cores::Auto => {
            let mut free = free(softnic_core, available);
            if free.len() >= ENOUGH_TO_SPARE_ONE {
                free.remove(0);
            }
            if free.is_empty() {
                return Ok(vec![None]);
            }
            Ok(free.into_iter().map(Some).collect())
        }
    }
}

fn free(softnic_core: Option<usize>, available: &[usize]) -> Vec<usize> {
    available.iter().copied().filter(|core| Some(*core) != softnic_core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_the_available_cores() {
        assert_eq!(assign(&Cores::Auto, None, &[0, 1]), Ok(vec![Some(0), Some(1)]));
        assert_eq!(assign(&Cores::Auto, Some(1), &[0, 1]), Ok(vec![Some(0)]));
        assert_eq!(assign(&Cores::Auto, None, &[0, 1, 2, 3, 4]), Ok([1, 2, 3, 4].map(Some).to_vec()));
        assert_eq!(assign(&Cores::Auto, Some(0), &[0]), Ok(vec![None]), "one core: share it");
    }

    #[test]
    fn a_count_is_kept_even_without_cores() {
        assert_eq!(assign(&Cores::Count(2), None, &[4, 6, 8]), Ok(vec![Some(4), Some(6)]));
        assert_eq!(assign(&Cores::Count(3), None, &[0, 1]), Ok(vec![None, None, None]));
    }

    #[test]
    fn a_missing_core_is_named() {
        let error = assign(&Cores::List(vec![1, 7]), None, &[0, 1]).expect_err("no core 7");
        assert!(error.contains("core 7") && error.contains("0, 1"), "{error}");
        let error = assign(&Cores::Auto, Some(9), &[0]).expect_err("no core 9");
        assert!(error.starts_with("softnic.core: core 9"), "{error}");
    }
}
