//! Checks of memory: locked memory, reserved and transparent hugepages, swap.

use std::collections::BTreeMap;

use hugemem::PageKind;

use super::rights::{CAP_IPC_LOCK, effective, of_process};
use super::{CheckNotes, FindingLevel, HostView};
use crate::terminal::numbers::bytes;

const KIB: usize = 1024;

/// The memory that the kernel pins for the device may be locked (getrlimit(2), RLIMIT_MEMLOCK; kernel
/// drivers/infiniband/core/umem.c and net/xdp/xdp_umem.c).
pub(super) fn locked(view: &HostView<'_>, notes: &mut CheckNotes) {
    let setup = view.setup;
    if !setup.pins_memory() {
        return notes.skip("neither an RDMA device nor AF_XDP pins memory");
    }
    if !notes.knows_daemon(setup) {
        return;
    }
    let Some(effective) = effective(view, notes) else { return };
    if effective >> CAP_IPC_LOCK & 1 == 1 {
        return;
    }
    let path = format!("{}/limits", setup.process_folder());
    let limit = notes.take(view.files.parsed(&path, "limits with a line Max locked memory", locked_limit));
    let Some(limit) = limit else {
        if notes.unread.is_empty() {
            notes.skip(format!("{path} is not there"));
        }
        return;
    };
    let needed: u64 = setup.memory.iter().map(|worker| worker.bytes).sum();
    let Some(limit) = limit.filter(|limit| *limit < needed) else { return };
    notes.find(
        of_process(view),
        format!("{} may lock {}, and the workers need {}", setup.process_name(), bytes(limit), bytes(needed)),
        "queues and frames are memory that the device reads and writes, and the kernel pins it",
        "systemctl edit steerd: [Service] LimitMEMLOCK=infinity; by hand: ulimit -l unlimited",
    );
}

/// The soft limit in bytes in the text of proc_pid_limits(5): `Some(None)` is unlimited.
fn locked_limit(text: &str) -> Option<Option<u64>> {
    let rest = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// The hugepages that the settings prefer are reserved on the nodes of the workers
/// (Documentation/admin-guide/mm/hugetlbpage.rst).
pub(super) fn hugepages(view: &HostView<'_>, notes: &mut CheckNotes) {
    let setup = view.setup;
    let is_huge = |kind: &PageKind| matches!(kind, PageKind::Huge1G | PageKind::Huge2M);
    let Some(kind) = setup.pages.first().copied().filter(is_huge) else {
        return notes.skip("workers.pages begins with no reserved pages");
    };
    if !notes.knows_daemon(setup) {
        return;
    }
    let is_only = setup.pages.iter().all(is_huge);
    let size = kind.page_bytes();
    let mut wanted: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for worker in &setup.memory {
        *wanted.entry(worker.numa_node).or_default() += worker.bytes.div_ceil(size as u64);
    }
    // Nodes that the kernel does not show have one pool together.
    let mut pools: BTreeMap<String, u64> = BTreeMap::new();
    for (node, pages) in wanted {
        let of_node = node.map(|node| format!("/sys/devices/system/node/node{node}/hugepages"));
        let is_shown = of_node.as_ref().and_then(|folder| notes.take(view.files.exists(folder).map(Some)));
        let folder = of_node.filter(|_| is_shown == Some(true));
        let folder = folder.unwrap_or_else(|| "/sys/kernel/mm/hugepages".to_owned());
        *pools.entry(format!("{folder}/hugepages-{}kB", size / KIB)).or_default() += pages;
    }
    for (pool, pages) in pools {
        examine_pool(view, notes, &ReservedPool { folder: pool, kind, pages, is_only });
    }
}

/// A pool of reserved pages, and the pages that workers take of it.
struct ReservedPool {
    folder: String,
    kind: PageKind,
    pages: u64,
    /// Whether the settings allow no other pages.
    is_only: bool,
}

fn examine_pool(view: &HostView<'_>, notes: &mut CheckNotes, pool: &ReservedPool) {
    let ReservedPool { folder, kind, pages, is_only } = pool;
    let level = if *is_only { FindingLevel::Must } else { FindingLevel::Should };
    let reason = "with smaller pages the processor and the device look up more addresses for each packet";
    let before = notes.unread.len();
    let reserved = notes.take(view.files.number(&format!("{folder}/nr_hugepages")));
    let free = notes.take(view.files.number(&format!("{folder}/free_hugepages")));
    let (Some(reserved), Some(free)) = (reserved, free) else {
        if notes.unread.len() == before {
            notes.find(
                level,
                format!("the kernel has no pool of {kind} pages: {folder}"),
                reason,
                format!(
                    "kernel command line: hugepagesz={}M hugepages={pages}",
                    kind.page_bytes() / KIB / KIB
                ),
            );
        }
        return;
    };
    // The running daemon has its pages already, as those that are not free.
    let usable = if view.setup.daemon.is_some() { reserved } else { free };
    if usable < *pages {
        let of_daemon = if view.setup.daemon.is_some() { "reserved" } else { "free" };
        notes.find(
            level,
            format!("the workers need {pages} {kind} pages, and {usable} are {of_daemon} in {folder}"),
            reason,
            format!("echo {} > {folder}/nr_hugepages", reserved + pages - usable),
        );
    }
}

/// The kernel gives transparent hugepages where the settings ask for them
/// (Documentation/admin-guide/mm/transhuge.rst).
pub(super) fn transparent(view: &HostView<'_>, notes: &mut CheckNotes) {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    if !view.setup.pages.contains(&PageKind::Transparent) {
        return notes.skip("workers.pages has no transparent pages");
    }
    let chosen =
        |name: &str| view.files.parsed(&format!("{FOLDER}/{name}"), "a list with a [choice]", chosen);
    let Some(enabled) = notes.take(chosen("enabled")) else {
        if notes.unread.is_empty() {
            notes.skip("the kernel has no transparent hugepages");
        }
        return;
    };
    if enabled == "never" {
        notes.find(
            FindingLevel::Should,
            "transparent hugepages are off",
            "workers without reserved pages get plain ones",
            format!("echo madvise > {FOLDER}/enabled"),
        );
    }
    if notes.take(chosen("defrag")).is_some_and(|defrag| defrag == "always") {
        notes.find(
            FindingLevel::Note,
            "every program compacts memory when it needs a hugepage",
            "compaction moves pages, and stops threads that use them, for milliseconds",
            format!("echo madvise > {FOLDER}/defrag"),
        );
    }
}

/// The choice in a text such as `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// No swap: memory of the daemon that is not pinned may be swapped out (swapon(8), proc_swaps(5)).
pub(super) fn swap(view: &HostView<'_>, notes: &mut CheckNotes) {
    let Some(text) = notes.take(view.files.text("/proc/swaps")) else {
        if notes.unread.is_empty() {
            notes.skip("the kernel has no swap");
        }
        return;
    };
    // The first line has the names of the columns.
    let areas: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    if !areas.is_empty() {
        notes.find(
            FindingLevel::Note,
            format!("swap is on: {}", areas.join(", ")),
            "a thread that meets a page that was swapped out waits for the disk",
            "swapoff -a, or MemorySwapMax=0 in the unit",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_choices_are_read() {
        let limits = |value: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         {value}              8388608              bytes\n"
            )
        };
        assert_eq!(locked_limit(&limits("65536")), Some(Some(65536)));
        assert_eq!(locked_limit(&limits("unlimited")), Some(None));
        assert_eq!(locked_limit(&limits("many")), None);
        assert_eq!(locked_limit("Max cpu time unlimited"), None);
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("always madvise never"), None);
    }
}
