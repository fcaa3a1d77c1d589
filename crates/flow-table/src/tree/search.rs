//! The search: from the root of each tree to a leaf, and the rules of that leaf together.
//!
//! A step of the descent has no branch that depends on the frame, and every frame takes the same number of
//! steps: what the search costs is loads that the processor can overlap, for a burst those of all its frames
//! in all trees. Of the leaves that a burst reaches, the blocks whose first rule could win are listed tree by
//! tree, again without a branch, and then compared one after the other ([`Machine::matching`]). How many they
//! are is not predictable, and all that follows waits for it: so every descent is done before, and long
//! bursts cost less than short ones. The trees whose rules ask for most come first: as a rule what they find
//! wins, and the other trees' leaves are not even fetched.

use std::hint::select_unpredictable;
use std::mem::MaybeUninit;

use super::super::cache::Verdict;
use super::super::key::MatchKey;
use super::super::shape::Ranked;
use super::Family;
use super::machine::{Kind, Machine, Portable, Processor};
#[cfg(target_arch = "x86_64")]
use hugemem::prefetch_read;

use super::machine::{V3, V4};
use super::pool::{LANES, MAX_BLOCKS, Run};
use super::view::{WORDS, Words};

/// Frames of one burst.
pub(in super::super) const BURST: usize = 64;
/// Trees of one family.
pub(super) const TREES: usize = 4;

/// Frames whose steps are written out one after the other.
const GROUP: usize = 4;
const _: () = assert!(BURST.is_multiple_of(GROUP), "a burst is made of groups");

/// The most blocks that are compared in one tree.
const MAX_CANDIDATES: usize = BURST * MAX_BLOCKS;

/// In cache lines of their own.
#[repr(align(64))]
struct Aligned<T>(T);

/// Precedence and group of the best rule found so far for each frame of a burst.
pub(in super::super) struct Winners {
    pub(super) precedences: [u64; BURST],
    pub(in super::super) groups: [u32; BURST],
}

impl Winners {
    /// No rules: the precedence that loses to all.
    pub(in super::super) const NONE: Self =
        Self { precedences: [u64::MAX; BURST], groups: [Verdict::NO_GROUP; BURST] };

    /// The rule that was found for one frame.
    #[inline]
    pub(in super::super) fn ranked(&self, frame: usize) -> Option<Ranked> {
        Ranked::from_words(self.precedences[frame], self.groups[frame].into())
    }

    pub(super) fn set(&mut self, frame: usize, ranked: Option<Ranked>) {
        let nothing = (u64::MAX, u64::from(Verdict::NO_GROUP));
        let (precedence, group) = ranked.map_or(nothing, Ranked::to_words);
        (self.precedences[frame], self.groups[frame]) = (precedence, group as u32);
    }
}

/// The words that the frames of a burst are cut down to. Only as many are written as are read: the rest is
/// kilobytes.
type WordsOfBurst = [MaybeUninit<Words>; BURST];

/// Blocks that a burst may be compared with; the first ones are written.
type Candidates = [MaybeUninit<Candidate>; MAX_CANDIDATES];

/// A block that may have the rule of a frame.
#[derive(Clone, Copy)]
struct Candidate {
    /// The place of the frame among those that are looked up.
    frame: u32,
    block: u32,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn one_v3(family: &Family, image: &MatchKey, winner: Option<Ranked>) -> Option<Ranked> {
    one::<V3>(family, image, winner)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vbmi")]
fn one_v4(family: &Family, image: &MatchKey, winner: Option<Ranked>) -> Option<Ranked> {
    one::<V4>(family, image, winner)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn burst_v3(family: &Family, images: &[MatchKey], winners: &mut Winners) {
    match family.pool.words() {
        2 => burst::<V3, 2>(family, images, winners),
        _ => burst::<V3, 0>(family, images, winners),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vbmi")]
fn burst_v4(family: &Family, images: &[MatchKey], winners: &mut Winners) {
    match family.pool.words() {
        2 => burst::<V4, 2>(family, images, winners),
        _ => burst::<V4, 0>(family, images, winners),
    }
}

impl Family {
    /// The rule in the trees of this family that decides over an image, unless `winner` comes before it.
    #[inline]
    pub(super) fn search_one(
        &self,
        processor: Processor,
        image: &MatchKey,
        winner: Option<Ranked>,
    ) -> Option<Ranked> {
        match processor.0 {
            Kind::Portable => one::<Portable>(self, image, winner),
            // SAFETY: a `Processor` of this kind is made only where the processor has what the function asks
            // for.
            #[cfg(target_arch = "x86_64")]
            Kind::V3 => unsafe { one_v3(self, image, winner) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::V4 => unsafe { one_v4(self, image, winner) },
        }
    }

    /// Searches for up to [`BURST`] images.
    #[inline]
    pub(super) fn search_burst(&self, processor: Processor, images: &[MatchKey], winners: &mut Winners) {
        match processor.0 {
            Kind::Portable => burst::<Portable, 0>(self, images, winners),
            // SAFETY: a `Processor` of this kind is made only where the processor has what the function asks
            // for.
            #[cfg(target_arch = "x86_64")]
            Kind::V3 => unsafe { burst_v3(self, images, winners) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::V4 => unsafe { burst_v4(self, images, winners) },
        }
    }
}

/// The nodes that frames have come to after one step more.
///
/// # Safety
/// The nodes are roots of trees of this family, or what earlier steps from such led to.
#[inline(always)]
unsafe fn step<M: Machine>(family: &Family, nodes: &mut [u32], words: &[Words]) {
    for (at, words) in nodes.iter_mut().zip(words) {
        // SAFETY: by the contract of this function, which is that of `child`.
        *at = unsafe { family.pool.child(*at, words, M::extract) };
    }
}

#[inline(always)]
fn one<M: Machine>(family: &Family, image: &MatchKey, winner: Option<Ranked>) -> Option<Ranked> {
    let words = M::cut(&family.view, image);
    let mut leaves = [0u32; TREES];
    for (leaf, tree) in leaves.iter_mut().zip(&family.trees) {
        *leaf = tree.root;
    }
    let leaves = &mut leaves[..family.trees.len().min(TREES)];
    for _ in 0..family.depth {
        for leaf in leaves.iter_mut() {
            // SAFETY: the first step is from a root.
            unsafe { step::<M>(family, std::slice::from_mut(leaf), &[words]) };
        }
    }
    let stride = family.pool.stride();
    let (mut best, mut found) = winner.map_or((u64::MAX, u64::MAX), Ranked::to_words);
    for leaf in leaves.iter() {
        let run = family.pool.nodes[*leaf as usize].run();
        for block in run.first as usize..(run.first + run.blocks) as usize {
            if family.pool.bests[block] >= best {
                break;
            }
            let block = &family.pool.columns[block * stride..][..stride];
            let Some((ranks, columns)) = block.split_last() else { break };
            let matching = M::matching(columns, &words);
            if matching != 0 {
                let rank = ranks.rank(matching.trailing_zeros() as usize % LANES);
                (best, found) = if rank.0 < best { rank } else { (best, found) };
            }
        }
    }
    Ranked::from_words(best, found)
}

#[inline(always)]
fn burst<M: Machine, const K: usize>(family: &Family, images: &[MatchKey], winners: &mut Winners) {
    let count = images.len().min(BURST);
    let mut words = Aligned([MaybeUninit::uninit(); BURST]);
    let words: &mut WordsOfBurst = &mut words.0;
    for (words, image) in words.iter_mut().zip(&images[..count]) {
        words.write(M::cut(&family.view, image));
    }
    // Frames beyond the last take the steps too: so there is no remainder to be counted.
    let stepping = count.next_multiple_of(GROUP);
    for words in &mut words[count..stepping] {
        words.write([0; WORDS]);
    }
    // SAFETY: `stepping` of them are written.
    let written: &[Words] = unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), stepping) };
    let mut leaves_of_trees = [[0; BURST]; TREES];
    for (tree, leaves) in family.trees.iter().zip(&mut leaves_of_trees) {
        *leaves = [tree.root; BURST];
        let (groups, _) = leaves.as_chunks_mut::<GROUP>();
        let (words_of_groups, _) = written.as_chunks::<GROUP>();
        for _ in 0..tree.depth {
            for (leaves, words) in groups.iter_mut().zip(words_of_groups) {
                // SAFETY: the first step is from a root.
                unsafe { step::<M>(family, leaves, words) };
            }
        }
    }
    let mut candidates: Candidates = [MaybeUninit::uninit(); MAX_CANDIDATES];
    for leaves in &leaves_of_trees[..family.trees.len().min(TREES)] {
        // SAFETY: steps from a root led there.
        let listed = unsafe { list::<K>(family, &leaves[..count], winners, &mut candidates) };
        for candidate in &candidates[..listed] {
            // SAFETY: `list` wrote so many.
            let candidate = unsafe { candidate.assume_init() };
            // SAFETY: `list` named it for this family, and a frame below `count`, whose words are written.
            unsafe { compare::<M, K>(family, candidate, words, winners) };
        }
    }
}

/// Lists the blocks of leaves that may have a rule which comes before what was found, and fetches the first
/// of each leaf; returns how many these are, all of which are written.
///
/// # Safety
/// Steps from a root led to the leaves.
#[inline(always)]
unsafe fn list<const K: usize>(
    family: &Family,
    leaves: &[u32],
    winners: &Winners,
    candidates: &mut Candidates,
) -> usize {
    let pool = &family.pool;
    let mut winning = [(0, 0); BURST];
    let mut listed = 0;
    for (frame, (leaf, limit)) in leaves.iter().zip(&winners.precedences).enumerate() {
        // SAFETY: by the contract of this function.
        let (_, best) = unsafe { pool.leaf(*leaf) };
        winning[listed % BURST] = (frame as u32, *leaf);
        listed += usize::from(best < *limit);
    }
    let winning = &winning[..listed.min(BURST)];
    let stride = if K == 0 { pool.stride() } else { K + 1 };
    listed = 0;
    for (frame, leaf) in winning {
        // SAFETY: as above.
        let (run, _) = unsafe { pool.leaf(*leaf) };
        // SAFETY: the run of a leaf of this pool.
        for column in unsafe { pool.block(run.first, stride) } {
            prefetch_read(column.masks().as_ptr().cast());
            prefetch_read(column.values().as_ptr().cast());
        }
        // Most leaves have one block or two, but which is not predictable.
        for (block, exists) in [(run.first, true), (run.first + 1, run.blocks > 1)] {
            candidates[listed % MAX_CANDIDATES].write(Candidate { frame: *frame, block });
            listed += usize::from(exists);
        }
        if run.blocks > 2 {
            listed = list_others(*frame, run, listed, candidates);
        }
    }
    listed
}

/// Lists the rules of a run's blocks behind the second.
#[cold]
fn list_others(frame: u32, run: Run, mut listed: usize, candidates: &mut Candidates) -> usize {
    for block in run.first + 2..run.first + run.blocks {
        candidates[listed % MAX_CANDIDATES].write(Candidate { frame, block });
        listed += 1;
    }
    listed
}

/// Compares an image with the rules of a block.
///
/// # Safety
/// [`list`] named the block for this family, and the words of the frame are written.
#[inline(always)]
unsafe fn compare<M: Machine, const K: usize>(
    family: &Family,
    Candidate { frame, block }: Candidate,
    words: &WordsOfBurst,
    winners: &mut Winners,
) {
    let frame = frame as usize % BURST;
    // SAFETY: by the contract of this function.
    let words = unsafe { words[frame].assume_init_ref() };
    let stride = if K == 0 { family.pool.stride() } else { K + 1 };
    // SAFETY: by the contract of this function the block is one of this pool.
    let block = unsafe { family.pool.block(block, stride) };
    let Some((ranks, columns)) = block.split_last() else { return };
    let matching = M::matching(columns, words);
    let (precedence, group) = ranks.rank(matching.trailing_zeros() as usize % LANES);
    let (best, winner) = (&mut winners.precedences[frame], &mut winners.groups[frame]);
    let wins = (matching != 0) & (precedence < *best);
    // A branch would be as little predictable as the frames are.
    *best = select_unpredictable(wins, precedence, *best);
    *winner = select_unpredictable(wins, group as u32, *winner);
}
