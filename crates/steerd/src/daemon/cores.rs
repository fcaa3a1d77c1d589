//! Assigns a core to each worker. Pure: the cores that this process may use are arguments.
//!
//! `check` and `explain` use the number of workers; only the runtime pins threads.

use crate::settings::{Cores, Settings};

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
pub(crate) fn of_workers(settings: &Settings, available: &[usize]) -> Result<Vec<Option<usize>>, String> {
    let engine = settings.softnic.engine_threads();
    let engine: Vec<usize> = engine.into_iter().flatten().collect();
    if let Some(core) = engine.iter().find(|core| !available.contains(core)) {
        let key = if settings.softnic.cores.is_some() { "softnic.cores" } else { "softnic.core" };
        return Err(missing(key, *core, available));
    }
    assign(&settings.workers.cores, &engine, available)
}

/// `engine`: the cores of the soft NIC's engine threads.
fn assign(wanted: &Cores, engine: &[usize], available: &[usize]) -> Result<Vec<Option<usize>>, String> {
    match wanted {
        Cores::List(cores) => match cores.iter().find(|core| !available.contains(core)) {
            Some(core) => Err(missing("workers.cores", *core, available)),
            None => Ok(cores.iter().copied().map(Some).collect()),
        },
        Cores::Count(count) => {
            let free = free(engine, available);
            // Pinning only some would make workers of one group unequal.
            let enough = free.len() >= *count;
            Ok((0..*count).map(|worker| if enough { free.get(worker).copied() } else { None }).collect())
        }
        Cores::Auto => {
            let mut free = free(engine, available);
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

/// `key`: the setting that names the core.
fn missing(key: &str, core: usize, available: &[usize]) -> String {
    let list: Vec<String> = available.iter().map(ToString::to_string).collect();
    format!(
        "{key}: core {core} does not exist or is not allowed to this process (hint: it may use {})",
        list.join(", ")
    )
}

fn free(engine: &[usize], available: &[usize]) -> Vec<usize> {
    available.iter().copied().filter(|core| !engine.contains(core)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_the_available_cores() {
        assert_eq!(assign(&Cores::Auto, &[], &[0, 1]), Ok(vec![Some(0), Some(1)]));
        assert_eq!(assign(&Cores::Auto, &[1], &[0, 1]), Ok(vec![Some(0)]));
        assert_eq!(assign(&Cores::Auto, &[], &[0, 1, 2, 3, 4]), Ok([1, 2, 3, 4].map(Some).to_vec()));
        assert_eq!(assign(&Cores::Auto, &[0], &[0]), Ok(vec![None]), "one core: share it");
        assert_eq!(assign(&Cores::Auto, &[0, 1], &[0, 1]), Ok(vec![None]), "no core is left");
        assert_eq!(assign(&Cores::Count(2), &[1, 2], &[0, 1, 2, 3]), Ok(vec![Some(0), Some(3)]));
    }

    #[test]
    fn a_count_is_kept_even_without_cores() {
        assert_eq!(assign(&Cores::Count(2), &[], &[4, 6, 8]), Ok(vec![Some(4), Some(6)]));
        assert_eq!(assign(&Cores::Count(3), &[], &[0, 1]), Ok(vec![None, None, None]));
    }

    #[test]
    fn a_missing_core_is_named() {
        let error = assign(&Cores::List(vec![1, 7]), &[], &[0, 1]).expect_err("no core 7");
        assert!(error.starts_with("workers.cores: core 7 ") && error.contains("0, 1"), "{error}");
        for (core, cores, key) in [(Some(9), None, "softnic.core"), (None, Some(vec![0, 9]), "softnic.cores")]
        {
            let mut settings = Settings::default();
            (settings.softnic.core, settings.softnic.cores) = (core, cores);
            let error = of_workers(&settings, &[0]).expect_err("no core 9");
            let expected = format!(
                "{key}: core 9 does not exist or is not allowed to this process (hint: it may use 0)"
            );
            assert_eq!(crate::daemon::Error::Cores(error).to_string(), expected);
        }
    }
}
