//! The layout of a flow tag: bits 0 to 21 are the class plus 1, bit 22 is the band, bit 23 is 0. `control`
//! writes tags into flows, workers read them from completions. The tags of two programs can be in use at
//! once, one per band, so that a packet in flight while the program changes is handled by the program that
//! tagged it. No tag is 0, because devices report 0 for a flow without a tag (ibv_wc_read_flow_tag in
//! ibv_create_cq_ex(3)).

use std::fmt;

use crate::ids::ClassId;

/// Bits of the class.
const CLASS_BITS: u32 = 22;
/// The bits of a tag: a class and a band.
pub const TAG_BITS: u32 = CLASS_BITS + 1;
/// The most classes of a program. The largest tag, with the band, is below 2^23 and so not among the last 16
/// of the 2^24 values that devices offer, which DPDK reserves.
pub const CLASSES_MAX: u32 = CLASS_MASK;
const CLASS_MASK: u32 = (1 << CLASS_BITS) - 1;

/// The half of a device's flow tags and priorities that a program uses; two programs can be on a device at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Band {
    /// The half of the priorities with the higher precedence (the lower numbers); the band bit of tags is
    /// clear.
    A,
    /// The other half; the band bit of tags is set.
    B,
}

impl Band {
    /// Both bands.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// 0 or 1.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The band of the next program.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

/// The contents of a flow tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassTag {
    /// The band of the program.
    pub band: Band,
    /// The class in that program.
    pub class: ClassId,
}

impl ClassTag {
    /// The number for the device; `None` for a class that does not fit.
    #[must_use]
    pub const fn encode(self) -> Option<u32> {
        if self.class.0 >= CLASSES_MAX {
            return None;
        }
        Some((self.class.0 + 1) | (self.band as u32) << CLASS_BITS)
    }

    /// The indices of the band and of the class in a number from the device, for tables in which both are
    /// looked up with their bounds. For a number that [`encode`](Self::encode) does not give, one of them is
    /// beyond every table.
    #[must_use]
    #[inline]
    pub const fn indices(tag: u32) -> (usize, usize) {
        ((tag >> CLASS_BITS) as usize, (tag & CLASS_MASK).wrapping_sub(1) as usize)
    }

    /// The contents of a number from the device; `None` if [`encode`](Self::encode) gives no such number.
    #[must_use]
    #[inline]
    pub const fn decode(tag: u32) -> Option<Self> {
        let band = match tag >> CLASS_BITS {
            0 => Band::A,
            1 => Band::B,
            _ => return None,
        };
        match tag & CLASS_MASK {
            0 => None,
            class => Some(Self { band, class: ClassId(class - 1) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_hold_band_and_class_and_fit_the_device() {
        for band in Band::ALL {
            for class in [0, 1, CLASSES_MAX - 1] {
                let tag = ClassTag { band, class: ClassId(class) };
                let number = tag.encode().expect("fits");
                assert!(number < (1 << 24) - 16);
                assert_eq!(ClassTag::decode(number), Some(tag));
                assert_eq!(ClassTag::indices(number), (band.index(), tag.class.index()));
            }
            assert_eq!(ClassTag { band, class: ClassId(CLASSES_MAX) }.encode(), None);
        }
        assert_ne!(
            ClassTag { band: Band::A, class: ClassId(7) }.encode(),
            ClassTag { band: Band::B, class: ClassId(7) }.encode()
        );
        assert_eq!(ClassTag::decode(2 << CLASS_BITS), None);
    }

    #[test]
    fn a_missing_tag_is_no_class_of_either_band() {
        assert_eq!(ClassTag::decode(0), None);
        assert_eq!(ClassTag::decode(1 << CLASS_BITS), None);
        assert!([0, 1 << CLASS_BITS].iter().all(|tag| ClassTag::indices(*tag).1 > CLASSES_MAX as usize));
        assert_eq!(ClassTag::indices(2 << CLASS_BITS).0, 2);
    }
}
