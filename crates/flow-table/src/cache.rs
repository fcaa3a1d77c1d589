//! The exact-match cache in front of the tuple space.
//!
//! Only [`super::port::PortTable`] uses it. It remembers the verdict on the images seen last: a hit costs one
//! hash and one compare, whatever the rules are. It never allocates after it was made, and does not depend on
//! the rules: any change to them makes every entry stale at once by moving the epoch.
//!
//! Why it is right: an entry is used only if epoch and the whole image are equal, and the verdict depends on
//! nothing else. The digest only selects the set, so a collision costs time and never a wrong verdict.

use super::key::Image;

/// Entries of the cache. As many as OVS's exact-match cache has, 640 KiB; for images with tunnels 1.6 MiB.
const ENTRIES: usize = 8192;
/// Entries in which one image can be.
const WAYS: usize = 2;
const SETS: usize = ENTRIES / WAYS;
const _: () = assert!(SETS.is_power_of_two(), "a set is chosen by masking");

/// The result of the rules of a port for an image, as numbers of its [`super::port::PortTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The group that decides; [`Verdict::NO_GROUP`] leaves the frame to the kernel.
    pub(super) group: u32,
    /// How many DONT_TRAP rules there are up to the last one that takes a copy.
    pub(super) dont_trap: u32,
}

impl Verdict {
    pub(super) const NO_GROUP: u32 = u32::MAX;
    /// No rule matches.
    pub const NOTHING: Self = Self { group: Self::NO_GROUP, dont_trap: 0 };
}

#[derive(Clone, Copy, Debug)]
struct Entry<I> {
    image: I,
    /// The cache's epoch, without which the entry is stale.
    epoch: u64,
    verdict: Verdict,
}

/// Remembers verdicts by image.
#[derive(Debug)]
pub(super) struct ExactCache<I> {
    sets: Box<[[Entry<I>; WAYS]]>,
    epoch: u64,
}

impl<I: Image> Default for ExactCache<I> {
    fn default() -> Self {
        let entry = Entry { image: I::default(), epoch: 0, verdict: Verdict::NOTHING };
        Self { sets: vec![[entry; WAYS]; SETS].into_boxed_slice(), epoch: 1 }
    }
}

impl<I: Image> ExactCache<I> {
    /// Forgets everything.
    pub(super) fn invalidate(&mut self) {
        self.epoch += 1;
    }

    /// The verdict on an image, from the cache or else from `classify`.
    #[inline]
    pub(super) fn find_or_insert(&mut self, image: &I, classify: impl FnOnce() -> Verdict) -> Verdict {
        let (digest, epoch) = (image.digest(), self.epoch);
        let set = &mut self.sets[digest as usize & (SETS - 1)];
        for entry in set.iter() {
            if entry.epoch == epoch && entry.image == *image {
                return entry.verdict;
            }
        }
        let verdict = classify();
        // A stale way first; else the digest picks the victim, so that two images do not always displace each
        // other.
        let stale = set.iter().position(|entry| entry.epoch != epoch);
        let way = stale.unwrap_or((digest >> 63) as usize);
        set[way] = Entry { image: *image, epoch, verdict };
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MatchKey;

    fn verdict(group: u32) -> Verdict {
        Verdict { group, dont_trap: 0 }
    }

    #[test]
    fn a_hit_does_not_classify_again_until_the_epoch_moves() {
        let mut cache = ExactCache::default();
        let image = MatchKey([7; 8]);
        assert_eq!(cache.find_or_insert(&image, || verdict(5)), verdict(5));
        assert_eq!(cache.find_or_insert(&image, || verdict(6)), verdict(5));
        cache.invalidate();
        assert_eq!(cache.find_or_insert(&image, || verdict(8)), verdict(8));
    }

    #[test]
    fn more_images_than_entries_displace_each_other_and_stay_right() {
        let mut cache = ExactCache::default();
        for round in 0..2 {
            for n in 0..4 * ENTRIES as u32 {
                let mut image = MatchKey::default();
                image.0[3] = n.into();
                assert_eq!(cache.find_or_insert(&image, || verdict(n)), verdict(n), "round {round}");
            }
        }
    }
}
