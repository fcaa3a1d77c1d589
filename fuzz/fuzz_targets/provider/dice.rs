//! The fuzzer's bytes as decisions. After the last byte all are zero.

use libfuzzer_sys::arbitrary::{Arbitrary, Unstructured};

/// The remaining bytes.
pub struct Dice<'a>(pub Unstructured<'a>);

impl<'a> Dice<'a> {
    pub fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 256 { usize::from(self.any::<u8>()) % end } else { usize::from(self.any::<u16>()) % end }
    }

    /// True with a low probability.
    pub fn rarely(&mut self) -> bool {
        self.any::<u8>() >= 0xf0
    }

    pub fn coin(&mut self) -> bool {
        self.any::<u8>() & 1 == 1
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A count: mostly small, sometimes at a limit, rarely arbitrary.
    pub fn size(&mut self) -> u32 {
        const EDGES: [u32; 8] = [0, 255, 256, 4096, 1 << 16, (1 << 16) + 1, i32::MAX as u32, u32::MAX];
        match self.any::<u8>() {
            0xff => self.any(),
            0xf0.. => self.of(&EDGES),
            small => u32::from(small % 33),
        }
    }

    /// Some of the bits of `known`, rarely arbitrary bits.
    pub fn bits(&mut self, known: u64) -> u64 {
        if self.rarely() { self.any() } else { self.any::<u64>() & known }
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let _ = self.0.fill_buffer(&mut bytes);
        bytes
    }
}
