//! The claims as their owner sees them: added and removed, any of them several times.

use std::collections::HashMap;

use crate::XdpError;
use crate::blocks::RulePlace;
use crate::tree::{Claim, Trees};

/// The claims that the program looks packets up in. Its owner is any thread, not that of the wire: adding and
/// removing may wait for a grace period of the kernel, some ten milliseconds, when memory runs short.
#[derive(Debug)]
pub struct ClaimTable {
    trees: Trees,
    /// The rule of each claim, and how often it was added.
    rules: HashMap<Claim, (RulePlace, u64)>,
    limit: u32,
    /// The number of widened places, unless the trees have changed since it was counted.
    widened: Option<usize>,
}

/// How exactly the trees represent the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimReport {
    /// Different claims.
    pub claims: usize,
    /// Places of the trees where packets are redirected although no claim may match them.
    pub widened: usize,
}

impl ClaimTable {
    pub(crate) fn new(trees: Trees, limit: u32) -> Self {
        Self { trees, rules: HashMap::new(), limit, widened: None }
    }

    /// Adds a claim. When this has returned, no packet that arrives and is claimed is passed. A claim that
    /// was added twice has to be removed twice.
    ///
    /// # Errors
    /// There are too many claims; nothing has changed.
    pub fn add(&mut self, claim: &Claim) -> Result<(), XdpError> {
        if let Some((_, times)) = self.rules.get_mut(claim) {
            *times += 1;
            return Ok(());
        }
        self.widened = None;
        let rule = self.trees.add(claim).map_err(|_| XdpError::Full { limit: self.limit })?;
        self.rules.insert(*claim, (rule, 1));
        Ok(())
    }

    /// Takes back one [`add`](Self::add) of a claim. When it was the last, no packet that arrives after this
    /// has returned is redirected for it. Returns whether the claim was there.
    pub fn remove(&mut self, claim: &Claim) -> bool {
        let Some((rule, times)) = self.rules.get_mut(claim) else { return false };
        *times -= 1;
        if *times == 0 {
            let rule = *rule;
            self.widened = None;
            self.rules.remove(claim);
            self.trees.remove(rule);
        }
        true
    }

    /// How exactly the trees represent the claims. Walks through all of them if they have changed since it
    /// was last asked.
    #[must_use]
    pub fn report(&mut self) -> ClaimReport {
        let widened = *self.widened.get_or_insert_with(|| self.trees.widened());
        ClaimReport { claims: self.rules.len(), widened }
    }
}
