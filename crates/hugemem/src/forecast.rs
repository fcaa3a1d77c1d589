//! The pages that arenas would get, found without mapping any: a check must not take reserved pages from a
//! process that needs them. What others take meanwhile is not foreseen.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use crate::arena::first_kind;
use crate::available::hugepage_limit;
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
#[derive(Debug, Default)]
pub struct ArenaForecast {
    /// Pages of each pool, by kind and node.
    pool_pages: BTreeMap<(PageKind, Option<u32>), u64>,
    /// Bytes of ordinary memory.
    memory_bytes: usize,
}

impl ArenaForecast {
    /// Adds an arena. Returns the refusals before the kind of page that it would get.
    ///
    /// # Errors
    /// The errors of [`Arena::map`](crate::Arena::map).
    pub fn add(&mut self, options: &ArenaOptions) -> Result<Vec<HugememWarning>, HugememError> {
        let (_, refused, ()) = first_kind(options, |kind, bytes| self.take(kind, options.numa_node, bytes))?;
        Ok(refused)
    }

    fn take(&mut self, kind: PageKind, numa_node: Option<u32>, bytes: usize) -> io::Result<()> {
        match kind {
            PageKind::Huge1G | PageKind::Huge2M => self.take_reserved(kind, numa_node, bytes),
            PageKind::Transparent => {
                transparent_allowed()?;
                self.take_memory(bytes)
            }
            PageKind::Plain => self.take_memory(bytes),
        }
    }

    fn take_memory(&mut self, bytes: usize) -> io::Result<()> {
        memory_available(self.memory_bytes.saturating_add(bytes))?;
        self.memory_bytes += bytes;
        Ok(())
    }

    fn take_reserved(&mut self, kind: PageKind, numa_node: Option<u32>, bytes: usize) -> io::Result<()> {
        let used = self.pool_pages.entry((kind, numa_node)).or_default();
        let wanted = *used + (bytes / kind.page_bytes()) as u64;
        let folder = pool_folder(kind, numa_node);
        let number =
            |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok()?.trim().parse::<u64>().ok();
        // mmap(2): EINVAL is a page size that this kernel does not have.
        let free = number("free_hugepages").ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // Pages that are promised to others; a node has no such number.
        let promised = number("resv_hugepages").unwrap_or(0);
        let on_demand = number("nr_overcommit_hugepages").unwrap_or(0);
        let on_demand = on_demand.saturating_sub(number("surplus_hugepages").unwrap_or(0));
        let has_group_room = hugepage_limit(kind.page_bytes(), wanted as usize * kind.page_bytes()).is_none();
        if wanted > free.saturating_sub(promised) + on_demand || !has_group_room {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        *used = wanted;
        Ok(())
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

    #[test]
    fn arenas_take_memory_from_those_after_them() {
        let whole = usize::try_from(crate::available::available().unwrap().bytes).unwrap();
        let most = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new("test", whole / 4 * 3) };
        let mut forecast = ArenaForecast::default();
        forecast.add(&most).unwrap();
        assert!(matches!(forecast.add(&most), Err(HugememError::Map { .. })));
    }
}
