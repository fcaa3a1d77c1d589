//! Sets of processor cores in the two forms of the kernel's files: lists (`0-3,8`) and masks (`0000010f`).

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// The highest core of a list or mask that is read.
const MAX_CORE: usize = 1 << 16;
/// Cores of a word of a mask.
const WORD_CORES: usize = 32;

/// Cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct CoreSet(BTreeSet<usize>);

impl CoreSet {
    /// The cores of a list; `None`: it is none.
    pub(crate) fn of_list(text: &str) -> Option<Self> {
        let ranges = text.split(',').filter(|range| !range.is_empty());
        let cores = ranges.map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            (last <= MAX_CORE).then_some(first..=last)
        });
        Some(Self(cores.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect()))
    }

    /// The cores of a mask: words of 32 bits in hexadecimal, the highest first; `None`: it is none.
    pub(super) fn of_mask(text: &str) -> Option<Self> {
        let words =
            text.rsplit(',').map(|word| u32::from_str_radix(word, 16).ok()).collect::<Option<Vec<_>>>()?;
        let bits = |(index, word): (usize, u32)| {
            let set = (0..WORD_CORES).filter(move |bit| word >> bit & 1 == 1);
            set.map(move |bit| index * WORD_CORES + bit)
        };
        Some(Self(words.into_iter().enumerate().flat_map(bits).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, core: usize) -> bool {
        self.0.contains(&core)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The mask that the kernel's files take.
    pub(super) fn mask(&self) -> String {
        let mut words = vec![0u32; self.0.last().map_or(0, |last| last / WORD_CORES) + 1];
        self.0.iter().for_each(|core| words[core / WORD_CORES] |= 1 << (core % WORD_CORES));
        let mut words = words.iter().rev();
        let first = words.next().map(|word| format!("{word:x}"));
        first.into_iter().chain(words.map(|word| format!("{word:08x}"))).collect::<Vec<_>>().join(",")
    }
}

impl FromIterator<usize> for CoreSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cores: I) -> Self {
        Self(cores.into_iter().collect())
    }
}

/// The list.
impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for core in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => ranges.push((core, core)),
            }
        }
        let text = |(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.write_str(&ranges.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_are_read_and_written() {
        let set = |cores: &[usize]| Some(cores.iter().copied().collect::<CoreSet>());
        assert_eq!(CoreSet::of_list("0-3,8"), set(&[0, 1, 2, 3, 8]));
        assert_eq!(CoreSet::of_list(""), set(&[]));
        assert_eq!(CoreSet::of_mask("00000002,0000010f"), set(&[0, 1, 2, 3, 8, 33]));
        assert_eq!(CoreSet::of_mask("0"), set(&[]));
        for broken in ["x", "3-", "0-4294967295", "1;2"] {
            assert_eq!(CoreSet::of_list(broken), None, "{broken}");
        }
        assert_eq!(CoreSet::of_mask("0x1"), None);
        for (list, mask) in [("0-3,8", "10f"), ("33", "2,00000000"), ("", "0"), ("1,3,5-6", "6a")] {
            let cores = CoreSet::of_list(list).expect("a list");
            assert_eq!((cores.to_string().as_str(), cores.mask().as_str()), (list, mask));
            assert_eq!(CoreSet::of_mask(mask), Some(cores));
        }
    }
}
