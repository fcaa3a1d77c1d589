//! The search: from the root of each tree to a leaf, and the rules of that leaf together.
//!
//! A step of the descent has no branch that depends on the frame, and every frame takes the same number of
//! steps. So the cost of a search is memory loads, and the processor overlaps those of all frames of a burst
//! in all trees. For each tree, `list` finds the leaves whose first rule could win, without a branch, and
//! lists their blocks, which are then compared one after the other ([`Machine::matching`]). The number of
//! listed blocks is unpredictable, and the comparisons wait for it. Therefore all descents come first, and
//! long bursts cost less for each frame than short ones. Trees of rules that compare most fields come first,
//! as `Family::trees` orders them: a rule found there usually wins, and the leaves of the other trees are not
//! fetched.

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

/// The most frames of a burst.
pub(in super::super) const BURST: usize = 64;
/// The most trees of a family.
pub(super) const TREES: usize = 4;

/// Frames that take each step of the descent together: the compiler unrolls the loop over them.
const STEPPED_TOGETHER: usize = 4;
const _: () = assert!(BURST.is_multiple_of(STEPPED_TOGETHER), "a burst is divided without a remainder");

/// The most blocks that are compared in one tree.
const MAX_CANDIDATES: usize = BURST * MAX_BLOCKS;

/// A value that begins on a cache line.
#[repr(align(64))]
struct Aligned<T>(T);

/// Precedence and group of the best rule found so far for each frame of a burst.
pub(in super::super) struct Winners {
    pub(super) precedences: [u64; BURST],
    pub(in super::super) groups: [u32; BURST],
}

impl Winners {
    /// The state before the search: no rule was found for any frame.
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

/// The words that the frames of a burst are cut down to. Only those that are read are initialized, which
/// saves writing kilobytes.
type WordsOfBurst = [MaybeUninit<Words>; BURST];

/// The blocks that a burst may be compared with. Only as many are initialized as [`list`] returned.
type Candidates = [MaybeUninit<Candidate>; MAX_CANDIDATES];

/// A block that may have the rule of a frame.
#[derive(Clone, Copy)]
struct Candidate {
    /// The place of the frame among those that are looked up.
    frame: u32,
    /// The index of the block in the pool.
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
    /// The better one of `winner` and the first rule of this family's trees that matches the image.
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
            // SAFETY: a `Processor` of this kind is made only where the processor has what the function asks
            // for.
            #[cfg(target_arch = "x86_64")]
            Kind::V4 => unsafe { one_v4(self, image, winner) },
        }
    }

    /// Replaces each winner of the first [`BURST`] images by the rule of this family that comes before it.
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

/// Replaces each node by the child that the words of its frame select.
///
/// # Safety
/// The nodes are roots of trees of this family, or nodes that earlier steps from such roots led to.
#[inline(always)]
unsafe fn step<M: Machine>(family: &Family, nodes: &mut [u32], words: &[Words]) {
    for (node, words) in nodes.iter_mut().zip(words) {
        // SAFETY: by the contract of this function, which is that of `child`.
        *node = unsafe { family.pool.child(*node, words, M::extract) };
    }
}

#[inline(always)]
fn one<M: Machine>(family: &Family, image: &MatchKey, winner: Option<Ranked>) -> Option<Ranked> {
    let words = M::cut(&family.view, image);
    let mut nodes = [0u32; TREES];
    for (node, tree) in nodes.iter_mut().zip(&family.trees) {
        *node = tree.root;
    }
    let nodes = &mut nodes[..family.trees.len().min(TREES)];
    for _ in 0..family.depth {
        for node in nodes.iter_mut() {
            // SAFETY: the first step is from a root, each later one from the node that the step before led
            // to.
            unsafe { step::<M>(family, std::slice::from_mut(node), &[words]) };
        }
    }
    let stride = family.pool.stride();
    let (mut best, mut found) = winner.map_or((u64::MAX, u64::MAX), Ranked::to_words);
    for leaf in nodes.iter() {
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
    // Zeroed frames fill the last group, so that the loop over groups has no remainder.
    let stepping = count.next_multiple_of(STEPPED_TOGETHER);
    for words in &mut words[count..stepping] {
        words.write([0; WORDS]);
    }
    // SAFETY: `stepping` of them are written.
    let written: &[Words] = unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), stepping) };
    let mut nodes_of_trees = [[0; BURST]; TREES];
    for (tree, nodes) in family.trees.iter().zip(&mut nodes_of_trees) {
        *nodes = [tree.root; BURST];
        let (chunks, _) = nodes.as_chunks_mut::<STEPPED_TOGETHER>();
        let (words_of_chunks, _) = written.as_chunks::<STEPPED_TOGETHER>();
        for _ in 0..tree.depth {
            for (nodes, words) in chunks.iter_mut().zip(words_of_chunks) {
                // SAFETY: the first step is from a root, each later one from a node that the step before led
                // to.
                unsafe { step::<M>(family, nodes, words) };
            }
        }
    }
    let mut candidates: Candidates = [MaybeUninit::uninit(); MAX_CANDIDATES];
    for leaves in &nodes_of_trees[..family.trees.len().min(TREES)] {
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

/// Lists the blocks of those leaves whose first rule comes before the winner of their frame, and prefetches
/// the first block of each such leaf. Returns the number of candidates, all of which are initialized.
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
    let mut contenders = [(0, 0); BURST];
    let mut count = 0;
    for (frame, (leaf, limit)) in leaves.iter().zip(&winners.precedences).enumerate() {
        // SAFETY: by the contract of this function.
        let (_, best) = unsafe { pool.leaf(*leaf) };
        contenders[count % BURST] = (frame as u32, *leaf);
        count += usize::from(best < *limit);
    }
    let contenders = &contenders[..count.min(BURST)];
    let stride = if K == 0 { pool.stride() } else { K + 1 };
    let mut listed = 0;
    for (frame, leaf) in contenders {
        // SAFETY: by the contract of this function: it is one of `leaves`.
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

/// Lists the blocks of a run after the second.
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
    // A branch here would be mispredicted as often as the frames differ.
    *best = select_unpredictable(wins, precedence, *best);
    *winner = select_unpredictable(wins, group as u32, *winner);
}
