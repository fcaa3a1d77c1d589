//! The kinds of pages that an arena can have, with their names.

use std::fmt;
use std::str::FromStr;

/// A text that is not the name of a kind of page.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not a kind of page: write huge_1g, huge_2m, transparent or plain")]
pub struct UnknownPageKind {
    /// The given text.
    pub text: String,
}

/// A kind of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// Reserved 1 GiB pages (hugetlb). Every arena takes whole ones.
    Huge1G,
    /// Reserved 2 MiB pages (hugetlb).
    Huge2M,
    /// Ordinary memory that the kernel is asked to back with huge pages.
    Transparent,
    /// Ordinary pages.
    Plain,
}

impl PageKind {
    /// Every kind, largest page first.
    pub const ALL: &'static [Self] = &[Self::Huge1G, Self::Huge2M, Self::Transparent, Self::Plain];

    /// The name used in settings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Huge1G => "huge_1g",
            Self::Huge2M => "huge_2m",
            Self::Transparent => "transparent",
            Self::Plain => "plain",
        }
    }

    /// The page size that an arena's size is rounded up to and its start is aligned to.
    pub const fn page_bytes(self) -> usize {
        match self {
            Self::Huge1G => 1 << 30,
            Self::Huge2M | Self::Transparent => 2 << 20,
            // The largest base page of any architecture that Linux runs on; 4 KiB pages divide it.
            Self::Plain => 64 << 10,
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PageKind {
    type Err = UnknownPageKind;

    /// Reads the name that `Display` writes.
    fn from_str(text: &str) -> Result<Self, UnknownPageKind> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownPageKind { text: text.to_owned() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for kind in PageKind::ALL {
            assert_eq!(kind.to_string().parse::<PageKind>().unwrap(), *kind);
        }
        let error = "2M".parse::<PageKind>().unwrap_err();
        assert!(error.to_string().contains("`2M`") && error.to_string().contains("huge_2m"), "{error}");
    }
}
