//! What processors differ in: cutting an image down, taking bits out of a word, and comparing the rules of a
//! block.
//!
//! [`super::search`] is written once over [`Machine`]. What the processor has is looked for when the process
//! runs; a [`Processor`] can only be made for what was found. All machines give the same results, which the
//! tests compare.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_or_si128, _mm_set1_epi8, _mm_setzero_si128,
    _mm_shuffle_epi8, _mm_storeu_si128, _mm_sub_epi8, _mm256_and_si256, _mm256_castsi256_pd,
    _mm256_cmpeq_epi64, _mm256_loadu_si256, _mm256_movemask_pd, _mm256_or_si256, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_xor_si256, _mm512_loadu_si512, _mm512_maskz_permutexvar_epi8,
    _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64,
    _mm512_testn_epi64_mask, _pext_u64,
};

use super::super::key::MatchKey;
use super::build::extract;
use super::pool::{Column, LANES};
use super::view::{View, WORDS, Words};

/// The steps of a search that take different instructions.
pub(super) trait Machine {
    /// [`View::cut`].
    fn cut(view: &View, image: &MatchKey) -> Words;

    /// The bits of a word that a mask names, next to each other.
    fn extract(word: u64, mask: u64) -> u64;

    /// The rules of a block that match, one bit each: their values equal the words under their masks.
    fn matching(columns: &[Column], words: &Words) -> u32;
}

/// Which machine this processor can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Processor(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any processor.
    Portable,
    /// With AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    V3,
    /// Besides with AVX-512 F, BW and VBMI.
    #[cfg(target_arch = "x86_64")]
    V4,
}

impl Default for Processor {
    /// The fastest one.
    fn default() -> Self {
        #[cfg(target_arch = "x86_64")]
        if has_v4() {
            return Self(Kind::V4);
        } else if has_v3() {
            return Self(Kind::V3);
        }
        Self(Kind::Portable)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_v3() -> bool {
    use std::arch::is_x86_feature_detected;
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2")
}

#[cfg(target_arch = "x86_64")]
fn has_v4() -> bool {
    use std::arch::is_x86_feature_detected;
    has_v3()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
}

#[cfg(test)]
impl Processor {
    /// All that this one can be. The others are not tested on this computer, which is reported on stderr.
    pub(super) fn all() -> Vec<Self> {
        static REPORT: std::sync::Once = std::sync::Once::new();
        #[cfg(target_arch = "x86_64")]
        let faster = [(Kind::V3, has_v3()), (Kind::V4, has_v4())];
        #[cfg(not(target_arch = "x86_64"))]
        let faster: [(Kind, bool); 0] = [];
        REPORT.call_once(|| {
            for (kind, _) in faster.iter().filter(|(_, has)| !has) {
                let text = format!(
                    "NOT RUN: flow::tree::machine on {kind:?}: this processor lacks its instructions\n"
                );
                // Not `eprintln!`, whose output the test harness discards if the test passes.
                let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            }
        });
        let faster = faster.into_iter().filter(|(_, has)| *has).map(|(kind, _)| Self(kind));
        std::iter::once(Self(Kind::Portable)).chain(faster).collect()
    }
}

/// On any processor.
pub(super) struct Portable;

impl Machine for Portable {
    #[inline(always)]
    fn cut(view: &View, image: &MatchKey) -> Words {
        view.cut(image)
    }

    #[inline(always)]
    fn extract(word: u64, mask: u64) -> u64 {
        extract(word, mask)
    }

    #[inline(always)]
    fn matching(columns: &[Column], words: &Words) -> u32 {
        let mut differences = [0u64; LANES];
        for (column, word) in columns.iter().zip(words) {
            for ((difference, mask), value) in differences.iter_mut().zip(column.masks()).zip(column.values())
            {
                *difference |= (word & mask) ^ value;
            }
        }
        let mut matching = 0;
        for (lane, bits) in differences.iter().enumerate() {
            matching |= u32::from(*bits == 0) << lane;
        }
        matching
    }
}

/// [`Kind::V3`].
#[cfg(target_arch = "x86_64")]
pub(super) struct V3;

#[cfg(target_arch = "x86_64")]
impl Machine for V3 {
    #[inline(always)]
    fn cut(view: &View, image: &MatchKey) -> Words {
        // SAFETY: `super::search` uses this machine only for a `Processor` of its kind, which is made where
        // AVX2 is.
        unsafe { cut_v3(view, image) }
    }

    #[inline(always)]
    fn extract(word: u64, mask: u64) -> u64 {
        // SAFETY: as above, BMI2.
        unsafe { _pext_u64(word, mask) }
    }

    #[inline(always)]
    fn matching(columns: &[Column], words: &Words) -> u32 {
        // SAFETY: as above, AVX2.
        unsafe { matching_v3(columns, words) }
    }
}

/// [`Kind::V4`].
#[cfg(target_arch = "x86_64")]
pub(super) struct V4;

#[cfg(target_arch = "x86_64")]
impl Machine for V4 {
    #[inline(always)]
    fn cut(view: &View, image: &MatchKey) -> Words {
        // SAFETY: `super::search` uses this machine only for a `Processor` of its kind, which is made where
        // AVX-512 F, BW and VBMI are.
        unsafe { cut_v4(view, image) }
    }

    #[inline(always)]
    fn extract(word: u64, mask: u64) -> u64 {
        // SAFETY: as above, BMI2.
        unsafe { _pext_u64(word, mask) }
    }

    #[inline(always)]
    fn matching(columns: &[Column], words: &Words) -> u32 {
        // SAFETY: as above, AVX-512 F.
        unsafe { matching_v4(columns, words) }
    }
}

/// Each byte of the result is looked for in the four quarters of the image; it is in one of them.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn cut_v3(view: &View, image: &MatchKey) -> Words {
    let mut words = [0u64; WORDS];
    for (words, source) in words.chunks_exact_mut(2).zip(view.source().chunks_exact(16)).take(view.quarters())
    {
        // SAFETY: reads the 16 bytes of the part.
        let source = unsafe { _mm_loadu_si128(source.as_ptr().cast()) };
        let mut bytes = _mm_setzero_si128();
        for (quarter, part) in (0i8..).zip(image.0.chunks_exact(2)) {
            // SAFETY: reads the two words of the part.
            let part: __m128i = unsafe { _mm_loadu_si128(part.as_ptr().cast()) };
            // A place of another quarter becomes negative, or 16 and more: adding 112 makes both negative,
            // for a zero.
            let place = _mm_sub_epi8(source, _mm_set1_epi8(16 * quarter));
            let place = std::arch::x86_64::_mm_adds_epu8(place, _mm_set1_epi8(112));
            bytes = _mm_or_si128(bytes, _mm_shuffle_epi8(part, place));
        }
        // SAFETY: writes the two words of the part.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), bytes) };
    }
    words
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn matching_v3(columns: &[Column], words: &Words) -> u32 {
    let mut differences = [_mm256_setzero_si256(); 2];
    for (column, word) in columns.iter().zip(words) {
        let word = _mm256_set1_epi64x(word.cast_signed());
        let halves = column.masks().chunks_exact(LANES / 2).zip(column.values().chunks_exact(LANES / 2));
        for (difference, (masks, values)) in differences.iter_mut().zip(halves) {
            // SAFETY: reads the four words of the half.
            let masks: __m256i = unsafe { _mm256_loadu_si256(masks.as_ptr().cast()) };
            // SAFETY: as above.
            let values: __m256i = unsafe { _mm256_loadu_si256(values.as_ptr().cast()) };
            let different = _mm256_xor_si256(_mm256_and_si256(word, masks), values);
            *difference = _mm256_or_si256(*difference, different);
        }
    }
    let [low, high] = differences.map(|difference| {
        let equal = _mm256_cmpeq_epi64(difference, _mm256_setzero_si256());
        _mm256_movemask_pd(_mm256_castsi256_pd(equal)).cast_unsigned()
    });
    low | high << (LANES / 2)
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn cut_v4(view: &View, image: &MatchKey) -> Words {
    // SAFETY: reads the 64 bytes of the array.
    let source: __m512i = unsafe { _mm512_loadu_si512(view.source().as_ptr().cast()) };
    // SAFETY: reads the eight words of the image.
    let image: __m512i = unsafe { _mm512_loadu_si512(image.0.as_ptr().cast()) };
    let cut = _mm512_maskz_permutexvar_epi8(view.places(), source, image);
    let mut words = [0; WORDS];
    // SAFETY: writes the eight words of the array.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), cut) };
    words
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn matching_v4(columns: &[Column], words: &Words) -> u32 {
    /// The truth table of `a & b ^ c`.
    const AND_XOR: i32 = 0x6a;
    let mut differences = _mm512_setzero_si512();
    for (column, word) in columns.iter().zip(words) {
        // SAFETY: reads the eight words of the column.
        let masks: __m512i = unsafe { _mm512_loadu_si512(column.masks().as_ptr().cast()) };
        // SAFETY: as above.
        let values: __m512i = unsafe { _mm512_loadu_si512(column.values().as_ptr().cast()) };
        let word = _mm512_set1_epi64(word.cast_signed());
        let different = _mm512_ternarylogic_epi64::<AND_XOR>(word, masks, values);
        differences = _mm512_or_si512(differences, different);
    }
    u32::from(_mm512_testn_epi64_mask(differences, differences))
}

#[cfg(test)]
mod tests {
    use super::super::view::Bytes;
    use super::*;

    fn cut_on(processor: Processor, view: &View, image: &MatchKey) -> Words {
        match processor.0 {
            Kind::Portable => Portable::cut(view, image),
            #[cfg(target_arch = "x86_64")]
            Kind::V3 => V3::cut(view, image),
            #[cfg(target_arch = "x86_64")]
            Kind::V4 => V4::cut(view, image),
        }
    }

    #[test]
    fn all_machines_cut_images_alike() {
        let image = MatchKey(std::array::from_fn(|word| {
            u64::from_le_bytes(std::array::from_fn(|byte| (8 * word + byte + 1) as u8))
        }));
        let mut mask = MatchKey([0x0123_4567_89ab_cdef; 8]);
        for round in 0..500u32 {
            mask.0[round as usize % 8] =
                mask.0[round as usize % 8].wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            let byte = |word: u64| word & 0x8080_8080_8080_8080;
            let view = View::new(Bytes::of(&MatchKey(mask.0.map(byte))));
            for processor in Processor::all() {
                assert_eq!(cut_on(processor, &view, &image), view.cut(&image), "{processor:?}, {view:?}");
            }
        }
    }

    /// The features that the kernel lists are found by other means than `is_x86_feature_detected`.
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    #[test]
    fn the_machine_is_the_fastest_that_the_kernel_lists_the_features_of() {
        let list = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = list.lines().find_map(|line| line.strip_prefix("flags")).unwrap();
        let has = |features: &str| {
            features.split(' ').all(|feature| flags.split_whitespace().any(|flag| flag == feature))
        };
        let is_v3 = has("avx2 bmi1 bmi2");
        let expected = match (is_v3, is_v3 && has("avx512f avx512bw avx512vbmi")) {
            (_, true) => Kind::V4,
            (true, false) => Kind::V3,
            (false, false) => Kind::Portable,
        };
        assert_eq!(Processor::default().0, expected);
        assert!(Processor::all().contains(&Processor(expected)), "the tests reach it");
    }
}
