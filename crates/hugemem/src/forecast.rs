//! The pages that arenas would get, found without mapping any: a check must not take reserved pages from a
//! process that needs them. What others take meanwhile is not foreseen.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::arena::first_kind;
use crate::available::{available, hugepage_limit, text_of};
use crate::error::pool_folder;
use crate::mapping::{memory_available, transparent_allowed};
use crate::{ArenaOptions, HugememError, HugememWarning, PageKind};

/// The arenas so far, each of which takes memory from those after it.
///
/// ```
/// use hugemem::{ArenaForecast, ArenaOptions, PageKind};
///
/// let options = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new("example", 1 << 20) };
/// let mut forecast = ArenaForecast::default();
/// assert!(forecast.add(&options)?.is_empty());
/// assert!(forecast.add(&ArenaOptions { bytes: 1 << 40, ..options }).is_err());
/// # Ok::<(), hugemem::HugememError>(())
/// ```
#[derive(Debug)]
pub struct ArenaForecast {
    /// The reserved pages of each kind.
    reserved: BTreeMap<PageKind, ReservedPages>,
    /// Bytes of ordinary memory.
    memory_bytes: usize,
    /// Bytes of all arenas, those that were refused among them.
    asked_bytes: usize,
    /// The text of a file of the host.
    read: fn(&Path) -> Option<String>,
}

/// Reserved pages that arenas take.
#[derive(Clone, Debug, Default)]
struct ReservedPages {
    /// All of them, those of nodes among them.
    all: u64,
    by_node: BTreeMap<u32, u64>,
}

impl Default for ArenaForecast {
    fn default() -> Self {
        Self::of_host(text_of)
    }
}

impl ArenaForecast {
    fn of_host(read: fn(&Path) -> Option<String>) -> Self {
        Self { reserved: BTreeMap::new(), memory_bytes: 0, asked_bytes: 0, read }
    }

    /// Adds an arena. Returns the refusals before the kind of page that it would get.
    ///
    /// # Errors
    /// The errors of [`Arena::map`](crate::Arena::map).
    pub fn add(&mut self, options: &ArenaOptions) -> Result<Vec<HugememWarning>, HugememError> {
        self.asked_bytes = self.asked_bytes.saturating_add(options.bytes);
        let (_, refused, ()) = first_kind(options, |kind, bytes| self.take(kind, options.numa_node, bytes))?;
        Ok(refused)
    }

    /// The bytes of all arenas that were added, those that were refused among them.
    #[must_use]
    pub fn asked_bytes(&self) -> usize {
        self.asked_bytes
    }

    /// Adds ordinary memory that is no arena.
    ///
    /// # Errors
    /// The host, or a control group, has less.
    pub fn add_memory(&mut self, bytes: u64) -> io::Result<()> {
        self.take_memory(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn take(&mut self, kind: PageKind, numa_node: Option<u32>, bytes: usize) -> io::Result<()> {
        match kind {
            PageKind::Huge1G | PageKind::Huge2M => self.take_reserved(kind, numa_node, bytes),
            PageKind::Transparent => {
                transparent_allowed(self.read)?;
                self.take_memory(bytes)
            }
            PageKind::Plain => self.take_memory(bytes),
        }
    }

    fn take_memory(&mut self, bytes: usize) -> io::Result<()> {
        let wanted = self.memory_bytes.saturating_add(bytes);
        memory_available(available(self.read), wanted)?;
        self.memory_bytes = wanted;
        Ok(())
    }

    fn take_reserved(&mut self, kind: PageKind, numa_node: Option<u32>, bytes: usize) -> io::Result<()> {
        let pages = (bytes / kind.page_bytes()) as u64;
        let mut wanted = self.reserved.get(&kind).cloned().unwrap_or_default();
        wanted.all += pages;
        if let Some(node) = numa_node {
            *wanted.by_node.entry(node).or_default() += pages;
        }
        if !self.has_pages(kind, &wanted)? {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        self.reserved.insert(kind, wanted);
        Ok(())
    }

    /// Whether the pools and the control groups have these pages: mmap reserves them on the whole host, and
    /// an arena of a node then takes them from the pool of the node, or new ones on the node.
    fn has_pages(&self, kind: PageKind, wanted: &ReservedPages) -> io::Result<bool> {
        let number = |node: Option<u32>, name: &str| {
            let file = format!("{}/{name}", pool_folder(kind, node));
            (self.read)(Path::new(&file))?.trim().parse::<u64>().ok()
        };
        let of_host = |name: &str| number(None, name).unwrap_or(0);
        // mmap(2): EINVAL is a page size that this kernel does not have.
        let free_on = |node: Option<u32>| {
            number(node, "free_hugepages").ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
        };
        // Without the pages that are promised to others.
        let free = free_on(None)?.saturating_sub(of_host("resv_hugepages"));
        // The pages that the kernel makes beyond the pools, of all nodes together.
        let on_demand = of_host("nr_overcommit_hugepages").saturating_sub(of_host("surplus_hugepages"));
        let mut beyond_nodes = 0;
        for (node, pages) in &wanted.by_node {
            beyond_nodes += pages.saturating_sub(free_on(Some(*node))?);
        }
        let bytes = (wanted.all as usize).saturating_mul(kind.page_bytes());
        let has_group_room = hugepage_limit(kind.page_bytes(), bytes, self.read).is_none();
        Ok(wanted.all <= free + on_demand && beyond_nodes <= on_demand && has_group_room)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::Arena;

    #[test]
    fn a_forecast_is_what_mapping_gives() {
        let pages =
            |kinds: &[PageKind]| ArenaOptions { pages: kinds.to_vec(), ..ArenaOptions::new("test", 1 << 20) };
        for options in [
            pages(&[PageKind::Plain]),
            pages(&[PageKind::Huge1G, PageKind::Plain]),
            pages(&[PageKind::Huge2M, PageKind::Plain]),
            pages(&[PageKind::Huge1G]),
            pages(&[]),
            ArenaOptions { bytes: 1 << 40, ..pages(&[PageKind::Plain]) },
            ArenaOptions { bytes: 0, ..pages(&[PageKind::Plain]) },
        ] {
            let texts =
                |refused: &[HugememWarning]| refused.iter().map(ToString::to_string).collect::<Vec<_>>();
            let mapped = Arena::map(&options).map(|arena| texts(arena.warnings()));
            let forecast = ArenaForecast::default().add(&options).map(|refused| texts(&refused));
            let of_error = |result: Result<Vec<String>, HugememError>| {
                result.map_err(|error| error.to_string().lines().count())
            };
            assert_eq!(of_error(forecast), of_error(mapped), "{options:?}");
        }
    }

    const FILES: [(&str, &str); 8] = [
        ("/proc/meminfo", "MemAvailable: 1048576 kB\n"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "1\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "4\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "1\n"),
        ("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "4\n"),
        ("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "6\n"),
    ];

    fn on_example() -> ArenaForecast {
        ArenaForecast::of_host(|path| {
            let (_, text) = FILES.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        })
    }

    fn arena(kind: PageKind, numa_node: Option<u32>, bytes: usize) -> ArenaOptions {
        ArenaOptions { pages: vec![kind], numa_node, ..ArenaOptions::new("test", bytes) }
    }

    fn is_short(forecast: &mut ArenaForecast, options: &ArenaOptions) -> bool {
        match forecast.add(options).unwrap_err() {
            HugememError::Map { refused, .. } => refused.iter().any(HugememWarning::is_shortage),
            error => panic!("{error}"),
        }
    }

    #[test]
    fn arenas_take_memory_from_those_after_them() {
        let most = arena(PageKind::Plain, None, 3 << 28);
        let mut forecast = on_example();
        forecast.add(&most).unwrap();
        assert!(is_short(&mut forecast, &most));
        forecast.add(&arena(PageKind::Plain, None, 1 << 28)).unwrap();
        assert_eq!(forecast.asked_bytes(), 7 << 28, "with the one that was refused");
    }

    /// Ten pages are free, one of which is promised, and three can be made.
    #[test]
    fn arenas_take_reserved_pages_of_the_host_and_of_their_node() {
        let pages = |node, pages: usize| arena(PageKind::Huge2M, node, pages * (2 << 20));
        let mut forecast = on_example();
        let mut has = |node, count| forecast.add(&pages(node, count)).is_ok();
        assert!(has(Some(0), 4));
        assert!(has(Some(0), 3), "those that can be made");
        assert!(!has(Some(0), 1), "others are on the other node");
        assert!(has(Some(1), 5));
        assert!(!has(Some(1), 1) && !has(None, 1), "the host has no more");
        let mut forecast = on_example();
        forecast.add(&pages(None, 12)).unwrap();
        assert!(is_short(&mut forecast, &pages(Some(0), 1)));
    }

    #[test]
    fn a_kind_that_the_host_does_not_give_is_no_shortage() {
        for kind in [PageKind::Huge1G, PageKind::Transparent] {
            assert!(!is_short(&mut on_example(), &arena(kind, None, 1 << 30)));
        }
    }
}
