//! The interrupt of each worker: the completion vector of a real device whose interrupt goes to the worker's
//! core, so that an idle worker is woken where it runs, and not all workers by one core.
//!
//! mlx5 names the interrupt of completion vector 3 `mlx5_comp3@pci:...` (kernel mlx5 core/pci_irq.c,
//! `irq_set_name`). A device whose interrupts have other names is used as one whose affinities are not known.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{CoreSet, InterruptPlacement, interrupt, numbers, rdma_devices};

/// The name of the interrupt of a completion vector, before the vector's number.
const COMPLETION_INTERRUPT: &str = "mlx5_comp";

/// The completion vector of each worker, on a device with `vectors` of them. `workers`: their cores.
pub(crate) fn completion_vectors(
    root: &Path,
    device: &str,
    vectors: u32,
    workers: &[Option<usize>],
) -> Vec<u32> {
    choose(&affinities(root, device), vectors, workers)
}

/// The cores that the interrupt of each completion vector goes to, as far as they can be read.
fn affinities(root: &Path, device: &str) -> BTreeMap<u32, CoreSet> {
    let folder = rdma_devices(root).join(device).join("device/msi_irqs");
    let affinity = |number: u32| {
        let vector = vector_of(root, number)?;
        let InterruptPlacement { cores, .. } = interrupt(root, number)?;
        Some((vector, cores))
    };
    numbers(&folder, "").into_iter().filter_map(affinity).collect()
}

/// The completion vector that an interrupt is of, by the folder in the name of its handler.
fn vector_of(root: &Path, interrupt: u32) -> Option<u32> {
    let folder = root.join("proc/irq").join(interrupt.to_string());
    let vector = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.split('@').next()?.strip_prefix(COMPLETION_INTERRUPT)?;
        number.parse().ok()
    };
    fs::read_dir(folder).ok()?.flatten().find_map(vector)
}

/// The vector of each worker: of those whose interrupt goes to its core the one that fewest workers have, and
/// then the one that goes to fewest cores. A worker without such a vector gets its number modulo the vectors.
fn choose(affinities: &BTreeMap<u32, CoreSet>, vectors: u32, workers: &[Option<usize>]) -> Vec<u32> {
    let mut chosen: Vec<u32> = Vec::with_capacity(workers.len());
    for (number, core) in (0..).zip(workers) {
        let is_near = |(vector, cores): &(&u32, &CoreSet)| {
            **vector < vectors && core.is_some_and(|core| cores.contains(core))
        };
        let uses = |vector: u32| chosen.iter().filter(|used| **used == vector).count();
        let near = affinities.iter().filter(is_near);
        let best = near.min_by_key(|(vector, cores)| (uses(**vector), cores.iter().count(), **vector));
        let vector = best.map_or_else(|| number % vectors.max(1), |(vector, _)| *vector);
        chosen.push(vector);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose device `rocep1s0` has these interrupts: number, name of the handler, cores.
    fn host(interrupts: &[(u32, &str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        for (number, name, cores) in interrupts {
            let irqs = folder.path().join("sys/class/infiniband/rocep1s0/device/msi_irqs");
            fs::create_dir_all(&irqs).expect("made");
            fs::write(irqs.join(number.to_string()), "msix\n").expect("written");
            let irq = folder.path().join("proc/irq").join(number.to_string());
            fs::create_dir_all(irq.join(name)).expect("made");
            fs::write(irq.join("smp_affinity_list"), format!("{cores}\n")).expect("written");
        }
        folder
    }

    #[test]
    fn a_worker_has_the_vector_whose_interrupt_goes_to_its_core() {
        let host = host(&[
            (40, "mlx5_async@pci:0000:01:00.0", "0-7"),
            (41, "mlx5_comp0@pci:0000:01:00.0", "4"),
            (42, "mlx5_comp1@pci:0000:01:00.0", "3"),
            (43, "mlx5_comp2@pci:0000:01:00.0", "2-3"),
            (44, "mlx5_comp3@pci:0000:01:00.0", "3"),
        ]);
        let vectors = |vectors, workers: &[Option<usize>]| {
            completion_vectors(host.path(), "rocep1s0", vectors, workers)
        };
        assert_eq!(vectors(4, &[Some(2), Some(3), Some(4)]), [2, 1, 0]);
        assert_eq!(vectors(4, &[Some(3), Some(3)]), [1, 3], "one each");
        assert_eq!(vectors(2, &[Some(2), Some(4)]), [0, 0], "vector 2 cannot be chosen");
        assert_eq!(vectors(4, &[Some(7), Some(7), None]), [0, 1, 2], "no interrupt goes there");
    }

    #[test]
    fn without_known_interrupts_workers_are_spread_by_their_numbers() {
        let workers = [Some(1), None, Some(2), Some(3), Some(0)];
        let spread = |host: &tempfile::TempDir, vectors| {
            completion_vectors(host.path(), "rocep1s0", vectors, &workers)
        };
        let other = host(&[(41, "virtio0-input.0", "1"), (42, "mlx5_compX@pci:0000:01:00.0", "1")]);
        assert_eq!(spread(&other, 4), [0, 1, 2, 3, 0]);
        assert_eq!(spread(&host(&[]), 2), [0, 1, 0, 1, 0]);
        assert_eq!(spread(&host(&[]), 0), [0; 5], "a device that has no vectors is asked for the first");
    }
}
