//! Tables of claims that no program reads: how exactly the trees represent some claims can be asked before
//! they are put on an interface, and without privileges.

use crate::blocks::{BLOCK_ENTRIES, BLOCKS_PER_CLAIM, ROOT_WORDS, RULE_WORDS, TreeMemory};
use crate::claims::ClaimTable;
use crate::drops::{DROP_WORDS, DropMemory};
use crate::grace::GracePeriod;
use crate::memory::SharedWords;
use crate::program::{DROP_SLOTS, MAX_CLAIMS};
use crate::tree::Trees;

/// No program runs.
struct NoPrograms;

impl GracePeriod for NoPrograms {
    fn wait(&mut self) -> bool {
        true
    }
}

impl ClaimTable {
    /// A table for up to so many different claims, of the size that [`load`](crate::load) gives it, which no
    /// program reads.
    #[must_use]
    pub fn offline(claims: u32) -> Self {
        let claims = claims.clamp(1, MAX_CLAIMS);
        let (rules, blocks) = (claims as usize + 1, (claims * BLOCKS_PER_CLAIM) as usize);
        let memory = TreeMemory::new(
            SharedWords::own(ROOT_WORDS),
            SharedWords::own(blocks * BLOCK_ENTRIES),
            SharedWords::own(rules * RULE_WORDS),
            Box::new(NoPrograms),
        );
        let drops = DropMemory::new(SharedWords::own(DROP_SLOTS * DROP_WORDS), DROP_SLOTS);
        Self::new(Trees::new(memory), drops, claims)
    }
}

#[cfg(test)]
mod tests {
    use packet::cube::LEVEL_WORDS;

    use crate::{Claim, ClaimAction, ClaimReport, ClaimTable};

    /// A claim that compares one of each four bits, so that no choice of four divides many of them.
    fn scattered(number: u64) -> Claim {
        let value = (0..16).fold(0, |value, bit| value | (number >> bit & 1) << (4 * bit));
        Claim::new([value; LEVEL_WORDS], [0x1111_1111_1111_1111; LEVEL_WORDS])
    }

    #[test]
    fn claims_that_nothing_divides_widen_a_place() {
        let mut table = ClaimTable::offline(1000);
        for number in 0..8 {
            table.add(&scattered(number), 0, ClaimAction::Redirect).expect("there is room");
        }
        assert_eq!(table.report(), ClaimReport { claims: 8, dropping: 0, widened: 0 });
        assert!(!table.leads_beyond(&[0; LEVEL_WORDS]));
        let counter = table.drop_counter().expect("there is one");
        for number in 8..500 {
            table.add(&scattered(number), 0, ClaimAction::Drop(counter.clone())).expect("there is room");
        }
        let report = table.report();
        assert!(report.widened > 0 && report.dropping == 492, "{report:?}");
        assert!(table.leads_beyond(&[0; LEVEL_WORDS]), "no claim of those that drop matches it");
    }
}
