//! Names of rules.

use std::fmt;
use std::hash::BuildHasher as _;
use std::ops::Deref;

use crate::spec_chain::DIGEST_KEYS;

/// A rule's name. It has its digest beside it, by which thousands of flows are compared without a look at the
/// text, which is not in the processor's cache.
#[derive(Clone)]
pub struct RuleName {
    text: Box<str>,
    digest: u64,
}

impl RuleName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The digest: equal names have equal ones, others with a probability of 2^-64, as its keys are random
    /// for each process.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}

impl From<String> for RuleName {
    fn from(text: String) -> Self {
        Self { digest: DIGEST_KEYS.hash_one(&text), text: text.into() }
    }
}

impl From<&str> for RuleName {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Deref for RuleName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq for RuleName {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.text == other.text
    }
}

impl Eq for RuleName {}

impl PartialEq<str> for RuleName {
    fn eq(&self, other: &str) -> bool {
        *self.text == *other
    }
}

impl PartialEq<&str> for RuleName {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl PartialEq<String> for RuleName {
    fn eq(&self, other: &String) -> bool {
        *self == **other
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
