//! The layout of a flow tag: bits 0..22 are the class and 1, bit 22 is the band, bit 23 is free. Written
//! by `control` into flows, read by workers from completions. Two bands live at once, so that a packet
//! on its way while the program changes is still judged by the program that tagged it. No tag is 0,
//! because that is what devices give for a flow without one (ibv_wc_read_flow_tag in
//! ibv_create_cq_ex(3)): an untagged packet is nobody's class.

use std::fmt;

use crate::ids::ClassId;

/// Bits of the class.
const CLASS_BITS: u32 = 22;
/// Most classes of a program. With the band the largest tag is below 2^23, so that the last 16 of the
/// 2^24 that devices offer, reserved by DPDK, are never met.
pub const CLASSES_MAX: u32 = CLASS_MASK;
const CLASS_MASK: u32 = (1 << CLASS_BITS) - 1;

/// Which of the two programs that can be on a device at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Band {
    /// The upper half of the priorities by precedence (the lower numbers); tags without the band bit.
    A,
    /// The other half; tags with the band bit.
    B,
}

impl Band {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// 0 or 1.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The one that the next program takes.
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

/// What a flow tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassTag {
    /// Whose program.
    pub band: Band,
    /// Which class of it.
    pub class: ClassId,
}

impl ClassTag {
    /// The number to put on the device; `None` for a class that does not fit.
    #[must_use]
    pub const fn encode(self) -> Option<u32> {
        if self.class.0 >= CLASSES_MAX {
            return None;
        }
        Some((self.class.0 + 1) | (self.band as u32) << CLASS_BITS)
    }

    /// What a number from the device means; `None` if no program can have written it.
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
    fn tags_say_band_and_class_and_fit_the_device() {
        for band in Band::ALL {
            for class in [0, 1, CLASSES_MAX - 1] {
                let tag = ClassTag { band, class: ClassId(class) };
                let number = tag.encode().expect("fits");
                assert!(number < (1 << 24) - 16);
                assert_eq!(ClassTag::decode(number), Some(tag));
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
    fn the_absence_of_a_tag_is_no_class_of_either_band() {
        assert_eq!(ClassTag::decode(0), None);
        assert_eq!(ClassTag::decode(1 << CLASS_BITS), None);
    }
}
