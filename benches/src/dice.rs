//! Numbers that look random and are the same on every machine: SplitMix64, by its published constants.

/// A sequence that its seed determines.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// The next 64 bits.
    pub(crate) fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.throw() % u64::from(bound)) as u32
    }
}
