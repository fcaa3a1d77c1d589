//! The search: from the root of each tree to a leaf, and the rules of that leaf together.
//!
//! A step of the descent has no branch that depends on the frame, and every frame takes the same number of steps: what
//! the search costs is loads that the processor can overlap, for a burst those of all its frames. Rules of a block are
//! compared together, which the compiler makes vector instructions of; with AVX2 and BMI2, which are looked for when the
//! process runs, a block takes some ten of them and a step one `pext`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_movemask_pd, _mm256_set_epi64x, _mm256_setzero_si256,
    _pext_u64,
};

use super::super::key::MatchKey;
use super::super::shape::Ranked;
use super::Family;
use super::build::extract;
use super::pool::{Column, LANES};
use super::view::{WORDS, Words};
use crate::prefetch::prefetch_read;

/// Frames of one burst.
pub(in super::super) const BURST: usize = 32;
/// Trees of one family.
pub(super) const TREES: usize = 4;

/// Precedence and group of the best rule found so far for a frame.
pub(super) type Found = (u64, u64);
/// No rule.
pub(super) const NOTHING: Found = (u64::MAX, u64::MAX);

/// The group that a search found.
pub(super) fn ranked(found: Found) -> Option<Ranked> {
    Ranked::from_words(found.0, found.1)
}

/// What processors differ in.
trait Machine {
    /// The bits of a word that a mask names, next to each other.
    fn extract(word: u64, mask: u64) -> u64;

    /// The lanes that are zero, one bit each.
    fn zeros(lanes: &[u64; LANES]) -> u32;
}

/// On any processor.
struct Portable;

impl Machine for Portable {
    #[inline(always)]
    fn extract(word: u64, mask: u64) -> u64 {
        extract(word, mask)
    }

    #[inline(always)]
    fn zeros(lanes: &[u64; LANES]) -> u32 {
        let mut zeros = 0;
        for (lane, bits) in lanes.iter().enumerate() {
            zeros |= u32::from(*bits == 0) << lane;
        }
        zeros
    }
}

/// With instructions for both.
#[cfg(target_arch = "x86_64")]
struct V3;

#[cfg(target_arch = "x86_64")]
impl Machine for V3 {
    #[inline(always)]
    fn extract(word: u64, mask: u64) -> u64 {
        // SAFETY: used by `one_v3` and `burst_v3` alone, which are called only where `has_v3` found BMI2.
        unsafe { _pext_u64(word, mask) }
    }

    #[inline(always)]
    fn zeros(lanes: &[u64; LANES]) -> u32 {
        let lane = |at: usize| lanes[at].cast_signed();
        let half = |at: usize| {
            // SAFETY: as above, AVX2; this one needs AVX.
            let four = unsafe { _mm256_set_epi64x(lane(at + 3), lane(at + 2), lane(at + 1), lane(at)) };
            // SAFETY: as above, AVX.
            let zero = unsafe { _mm256_setzero_si256() };
            // SAFETY: as above, AVX2.
            let equal = unsafe { _mm256_cmpeq_epi64(four, zero) };
            // SAFETY: as above, AVX.
            let equal = unsafe { _mm256_castsi256_pd(equal) };
            // SAFETY: as above, AVX.
            unsafe { _mm256_movemask_pd(equal) }.cast_unsigned()
        };
        half(0) | half(4) << 4
    }
}

/// Whether this processor has what the fast search needs.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_v3() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("bmi2")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn one_v3(family: &Family, image: &MatchKey, found: &mut Found) {
    one::<V3>(family, image, found);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn burst_v3(family: &Family, images: &[MatchKey], chosen: &[u8], found: &mut [Found; BURST]) {
    match family.pool.words() {
        2 => burst::<V3, 2>(family, images, chosen, found),
        _ => burst::<V3, 0>(family, images, chosen, found),
    }
}

impl Family {
    /// Replaces `found` if a rule in the trees of this family comes first.
    #[inline]
    pub(super) fn search_one(&self, image: &MatchKey, found: &mut Found) {
        #[cfg(target_arch = "x86_64")]
        if has_v3() {
            // SAFETY: the processor has AVX2 and BMI2, and BMI1 with the latter.
            return unsafe { one_v3(self, image, found) };
        }
        one::<Portable>(self, image, found);
    }

    /// The same for those of up to [`BURST`] images that `chosen` names.
    #[inline]
    pub(super) fn search_burst(&self, images: &[MatchKey], chosen: &[u8], found: &mut [Found; BURST]) {
        #[cfg(target_arch = "x86_64")]
        if has_v3() {
            // SAFETY: the processor has AVX2 and BMI2, and BMI1 with the latter.
            return unsafe { burst_v3(self, images, chosen, found) };
        }
        burst::<Portable, 0>(self, images, chosen, found);
    }
}

/// The child of a node that an image belongs to.
#[inline(always)]
fn step<M: Machine>(family: &Family, at: u32, words: &Words) -> u32 {
    let node = &family.pool.nodes[at as usize];
    node.base + M::extract(words[node.word() % WORDS], node.mask) as u32
}

#[inline(always)]
fn one<M: Machine>(family: &Family, image: &MatchKey, found: &mut Found) {
    let words = family.view.cut(image);
    let mut at = [0u32; TREES];
    for (at, tree) in at.iter_mut().zip(&family.trees) {
        *at = tree.root;
    }
    let trees = family.trees.len().min(TREES);
    let at = &mut at[..trees];
    for _ in 0..family.depth {
        for at in at.iter_mut() {
            *at = step::<M>(family, *at, &words);
        }
    }
    for at in at.iter() {
        compare::<M, 0>(family, *at, &words, found);
    }
}

#[inline(always)]
fn burst<M: Machine, const K: usize>(
    family: &Family,
    images: &[MatchKey],
    chosen: &[u8],
    found: &mut [Found; BURST],
) {
    let count = chosen.len().min(BURST);
    let chosen = &chosen[..count];
    let mut words = [[0; WORDS]; BURST];
    for (words, image) in words.iter_mut().zip(chosen) {
        *words = family.view.cut(&images[usize::from(*image)]);
    }
    for tree in &family.trees {
        let mut at = [tree.root; BURST];
        for _ in 0..tree.depth {
            for (at, words) in at[..count].iter_mut().zip(&words) {
                *at = step::<M>(family, *at, words);
            }
        }
        let stride = family.pool.stride();
        for at in &at[..count] {
            let first = family.pool.nodes[*at as usize].run().first as usize * stride;
            for column in &family.pool.columns[first..first + stride] {
                prefetch_read((&raw const column.mask).cast());
                prefetch_read((&raw const column.value).cast());
            }
        }
        for ((at, words), image) in at.iter().zip(&words).zip(chosen) {
            compare::<M, K>(family, *at, words, &mut found[usize::from(*image) % BURST]);
        }
    }
}

/// Compares an image with the rules of a leaf.
#[inline(always)]
fn compare<M: Machine, const K: usize>(family: &Family, leaf: u32, words: &Words, found: &mut Found) {
    let run = family.pool.nodes[leaf as usize].run();
    let stride = family.pool.stride();
    let first = run.first as usize * stride;
    let mut best = compare_block::<M, K>(&family.pool.columns[first..first + stride], words);
    // Most leaves have one block. The rules of later ones lose to all before them.
    for block in 1..run.blocks as usize {
        if best.0 != u64::MAX {
            break;
        }
        let first = first + block * stride;
        best = compare_block::<M, K>(&family.pool.columns[first..first + stride], words);
    }
    let wins = best.0 < found.0;
    *found = if wins { best } else { *found };
}

/// The first rule of a block that an image matches.
#[inline(always)]
fn compare_block<M: Machine, const K: usize>(block: &[Column], words: &Words) -> Found {
    let Some((ranks, columns)) = block.split_last() else { return NOTHING };
    let columns = if K == 0 { columns } else { &columns[..K] };
    let mut differences = [0u64; LANES];
    for (column, word) in columns.iter().zip(words) {
        for ((difference, mask), value) in differences.iter_mut().zip(&column.mask).zip(&column.value) {
            *difference |= (word & mask) ^ value;
        }
    }
    let equal = M::zeros(&differences);
    let lane = equal.trailing_zeros() as usize % LANES;
    let none = u64::from(equal == 0).wrapping_neg();
    (ranks.mask[lane] | none, ranks.value[lane])
}
