//! Assigns a core to each worker: of those that this process may use, for "auto" those near the NIC, one for
//! each physical core. Pure but for [`HostCores::of`].
//!
//! `check` and `explain` use the number of workers; only the runtime pins threads.

use std::collections::BTreeMap;
use std::path::Path;

use crate::daemon::placement::{CoreSet, device_cores, thread_siblings};
use crate::settings::{Cores, Settings};

/// From this many cores on, "auto" leaves the first core to the system and to steerd's other threads.
const ENOUGH_TO_SPARE_ONE: usize = 5;

/// The most workers of "auto": each takes a receive queue of the device, and memory for its frames.
const AUTO_WORKERS_MAX: usize = 16;

/// The cores of this host, as far as workers are placed by them.
#[derive(Debug, Default)]
pub(crate) struct HostCores {
    /// The cores that this process may use, in ascending order.
    available: Vec<usize>,
    /// The threads of the physical core that each is of; none where the kernel does not list them.
    siblings: BTreeMap<usize, CoreSet>,
    /// The cores on the NUMA node of the real device in the settings; `None`: not known, or a soft NIC.
    local: Option<CoreSet>,
}

impl HostCores {
    /// The cores for workers with these settings, read from the kernel.
    pub(crate) fn of(settings: &Settings) -> Self {
        let available = available();
        let name = (!settings.chooses_soft()).then_some(settings.device.name.as_str());
        Self::read(Path::new("/"), available, name)
    }

    /// Reads the files of the kernel below a root. `device`: the name of a real device, or "auto".
    fn read(root: &Path, available: Vec<usize>, device: Option<&str>) -> Self {
        let siblings = |core: &usize| Some((*core, thread_siblings(root, *core)?));
        let siblings = available.iter().filter_map(siblings).collect();
        let local = device.and_then(|device| device_cores(root, device)).filter(|cores| !cores.is_empty());
        Self { available, siblings, local }
    }

    /// A warning if a worker is pinned to a core of another NUMA node than the device's.
    pub(crate) fn remote_warning(&self, device: &str, workers: &[Option<usize>]) -> Option<String> {
        let local = self.local.as_ref()?;
        let remote: CoreSet =
            workers.iter().flatten().copied().filter(|core| !local.contains(*core)).collect();
        (!remote.is_empty()).then(|| {
            format!(
                "workers run on cores {remote}, which are not on the NUMA node of {device}: each packet crosses \
                 the link between the nodes (hint: choose workers.cores from {local})"
            )
        })
    }

    /// The cores that no engine thread has.
    fn free(&self, engine: &[usize]) -> Vec<usize> {
        self.available.iter().copied().filter(|core| !engine.contains(core)).collect()
    }

    /// The cores near the device, if any of these are, and of each physical core the first.
    fn best_of(&self, free: Vec<usize>) -> Vec<usize> {
        let is_local = |core: &usize| self.local.as_ref().is_none_or(|local| local.contains(*core));
        let near: Vec<usize> = free.iter().copied().filter(is_local).collect();
        let mut best: Vec<usize> = Vec::new();
        for core in if near.is_empty() { free } else { near } {
            let siblings = self.siblings.get(&core);
            if !best.iter().any(|taken| siblings.is_some_and(|siblings| siblings.contains(*taken))) {
                best.push(core);
            }
        }
        best
    }
}

/// One core per worker; `None` for a worker that is not pinned.
pub(crate) fn of_workers(settings: &Settings, host: &HostCores) -> Result<Vec<Option<usize>>, String> {
    let engine = settings.softnic.engine_threads();
    let engine: Vec<usize> = engine.into_iter().flatten().collect();
    if let Some(core) = engine.iter().find(|core| !host.available.contains(core)) {
        let key = if settings.softnic.cores.is_some() { "softnic.cores" } else { "softnic.core" };
        return Err(missing(key, *core, &host.available));
    }
    assign(&settings.workers.cores, &engine, host)
}

/// The cores of all workers: those of [`of_workers`], then `None` for each spare one.
pub(crate) fn with_spare(settings: &Settings, host: &HostCores) -> Result<Vec<Option<usize>>, String> {
    let mut cores = of_workers(settings, host)?;
    cores.resize(cores.len() + settings.workers.spare, None);
    Ok(cores)
}

/// The cores that this process may use, in ascending order.
pub(super) fn available() -> Vec<usize> {
    let mut available: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    available.sort_unstable();
    available
}

/// `engine`: the cores of the soft NIC's engine threads.
fn assign(wanted: &Cores, engine: &[usize], host: &HostCores) -> Result<Vec<Option<usize>>, String> {
    match wanted {
        Cores::List(cores) => match cores.iter().find(|core| !host.available.contains(core)) {
            Some(core) => Err(missing("workers.cores", *core, &host.available)),
            None => Ok(cores.iter().copied().map(Some).collect()),
        },
        Cores::Count(count) => {
            let free = host.free(engine);
            // Pinning only some would make workers of one group unequal.
            let enough = free.len() >= *count;
            Ok((0..*count).map(|worker| if enough { free.get(worker).copied() } else { None }).collect())
        }
        Cores::Auto => {
            let mut best = host.best_of(host.free(engine));
            if best.len() >= ENOUGH_TO_SPARE_ONE {
                best.remove(0);
            }
            if best.is_empty() {
                return Ok(vec![None]);
            }
            Ok(best.into_iter().take(AUTO_WORKERS_MAX).map(Some).collect())
        }
    }
}

/// `key`: the setting, or the command, that names the core.
pub(super) fn missing(key: &str, core: usize, available: &[usize]) -> String {
    let list: Vec<String> = available.iter().map(ToString::to_string).collect();
    format!(
        "{key}: core {core} does not exist or is not allowed to this process (hint: it may use {})",
        list.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn on(available: &[usize]) -> HostCores {
        HostCores { available: available.to_vec(), ..HostCores::default() }
    }

    fn assign_on(
        wanted: &Cores,
        engine: &[usize],
        available: &[usize],
    ) -> Result<Vec<Option<usize>>, String> {
        assign(wanted, engine, &on(available))
    }

    /// A host of two nodes with `per_node` physical cores each, of two threads: core `n` and core
    /// `n + 2 * per_node`. The device `rocep1s0` is on node 1.
    fn host(per_node: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        let write = |path: String, text: String| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text + "\n").expect("written");
        };
        let all = 2 * per_node;
        for core in 0..2 * all {
            let first = core % all;
            let file = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            write(file, format!("{first},{}", first + all));
        }
        let local = format!("{per_node}-{},{}-{}", all - 1, all + per_node, 2 * all - 1);
        write("sys/class/infiniband/rocep1s0/device/local_cpulist".into(), local);
        folder
    }

    fn auto(host: &HostCores) -> Vec<usize> {
        assign(&Cores::Auto, &[], host).expect("cores").into_iter().flatten().collect()
    }

    #[test]
    fn auto_takes_one_thread_of_each_physical_core_near_the_device() {
        let folder = host(4);
        let read = |available: Vec<usize>, device| HostCores::read(folder.path(), available, device);
        for name in ["rocep1s0", "auto"] {
            assert_eq!(auto(&read((0..16).collect(), Some(name))), [4, 5, 6, 7], "{name}");
        }
        assert_eq!(auto(&read((0..16).collect(), None)), [1, 2, 3, 4, 5, 6, 7], "a soft NIC is nowhere");
        assert_eq!(auto(&read((0..16).collect(), Some("rocep9s0"))), [1, 2, 3, 4, 5, 6, 7], "not known");
        assert_eq!(auto(&read(vec![0, 1, 8, 14, 15], Some("rocep1s0"))), [14, 15], "what the mask allows");
        assert_eq!(auto(&read(vec![0, 1, 8], Some("rocep1s0"))), [0, 1], "the mask allows none nearby");
    }

    #[test]
    fn auto_has_a_limit() {
        let folder = host(32);
        let host = HostCores::read(folder.path(), (0..128).collect(), Some("rocep1s0"));
        assert_eq!(auto(&host), (33..49).collect::<Vec<_>>());
    }

    #[test]
    fn workers_on_another_node_are_warned_of() {
        let folder = host(4);
        let host = HostCores::read(folder.path(), (0..16).collect(), Some("rocep1s0"));
        assert_eq!(host.remote_warning("rocep1s0", &[Some(4), Some(15), None]), None);
        let warning = host.remote_warning("rocep1s0", &[Some(4), Some(2), Some(3), Some(8)]).expect("remote");
        assert!(warning.contains("cores 2-3,8, ") && warning.contains("from 4-7,12-15)"), "{warning}");
        assert_eq!(on(&[0, 1]).remote_warning("softnic0", &[Some(1)]), None, "nothing is known");
    }

    #[test]
    fn auto_takes_the_available_cores() {
        assert_eq!(assign_on(&Cores::Auto, &[], &[0, 1]), Ok(vec![Some(0), Some(1)]));
        assert_eq!(assign_on(&Cores::Auto, &[1], &[0, 1]), Ok(vec![Some(0)]));
        assert_eq!(assign_on(&Cores::Auto, &[], &[0, 1, 2, 3, 4]), Ok([1, 2, 3, 4].map(Some).to_vec()));
        assert_eq!(assign_on(&Cores::Auto, &[0], &[0]), Ok(vec![None]), "one core: share it");
        assert_eq!(assign_on(&Cores::Auto, &[0, 1], &[0, 1]), Ok(vec![None]), "no core is left");
        assert_eq!(assign_on(&Cores::Count(2), &[1, 2], &[0, 1, 2, 3]), Ok(vec![Some(0), Some(3)]));
    }

    #[test]
    fn a_count_is_kept_even_without_cores() {
        assert_eq!(assign_on(&Cores::Count(2), &[], &[4, 6, 8]), Ok(vec![Some(4), Some(6)]));
        assert_eq!(assign_on(&Cores::Count(3), &[], &[0, 1]), Ok(vec![None, None, None]));
    }

    #[test]
    fn a_missing_core_is_named() {
        let error = assign_on(&Cores::List(vec![1, 7]), &[], &[0, 1]).expect_err("no core 7");
        assert!(error.starts_with("workers.cores: core 7 ") && error.contains("0, 1"), "{error}");
        for (core, cores, key) in [(Some(9), None, "softnic.core"), (None, Some(vec![0, 9]), "softnic.cores")]
        {
            let mut settings = Settings::default();
            (settings.softnic.core, settings.softnic.cores) = (core, cores);
            let error = of_workers(&settings, &on(&[0])).expect_err("no core 9");
            let expected = format!(
                "{key}: core 9 does not exist or is not allowed to this process (hint: it may use 0)"
            );
            assert_eq!(crate::daemon::Error::Cores(error).to_string(), expected);
        }
    }
}
