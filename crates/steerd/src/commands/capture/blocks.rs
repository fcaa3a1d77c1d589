//! The blocks of a pcapng stream (draft-ietf-opsawg-pcapng, 3.1): counts the packets and cuts the stream
//! after a number of them, between two blocks.

use std::io;

/// The type of an enhanced packet block.
const ENHANCED_PACKET: u32 = 6;
/// The longest block: a packet of the largest snap length with its options.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Type and length at the beginning, length at the end.
const BLOCK_BYTES_MIN: usize = 12;

#[derive(Debug)]
pub(in crate::commands) struct Blocks {
    /// The most packets; later ones are left out.
    limit: Option<u64>,
    packets: u64,
    /// The bytes of a block that is not complete.
    rest: Vec<u8>,
    whole: Vec<u8>,
}

impl Blocks {
    pub(in crate::commands) fn new(limit: Option<u64>) -> Self {
        Self { limit, packets: 0, rest: Vec::new(), whole: Vec::new() }
    }

    pub(in crate::commands) fn packets(&self) -> u64 {
        self.packets
    }

    pub(in crate::commands) fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.packets >= limit)
    }

    /// The complete blocks after the next bytes of the stream, without packets beyond the limit.
    ///
    /// # Errors
    /// It is no pcapng stream of this host's byte order.
    pub(in crate::commands) fn take(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.rest.extend_from_slice(bytes);
        self.whole.clear();
        let mut at = 0;
        while let Some(head) = self.rest.get(at..at + 8) {
            let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (kind, length) = (word(0), word(4) as usize);
            if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&length) || !length.is_multiple_of(4) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the daemon sends no valid pcapng"));
            }
            let Some(block) = self.rest.get(at..at + length) else { break };
            at += length;
            if kind == ENHANCED_PACKET {
                if self.limit.is_some_and(|limit| self.packets >= limit) {
                    continue;
                }
                self.packets += 1;
            }
            self.whole.extend_from_slice(block);
        }
        self.rest.drain(..at);
        Ok(&self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, length: u32) -> Vec<u8> {
        let mut block = [kind.to_ne_bytes(), length.to_ne_bytes()].concat();
        block.resize(length as usize - 4, 7);
        block.extend(length.to_ne_bytes());
        block
    }

    #[test]
    fn packets_beyond_the_limit_are_left_out_and_other_blocks_are_not() {
        let stream =
            [block(0x0a0d_0d0a, 28), block(6, 40), block(6, 36), block(6, 40), block(5, 24)].concat();
        let expected = [block(0x0a0d_0d0a, 28), block(6, 40), block(6, 36), block(5, 24)].concat();
        // In any pieces.
        for piece in [1, 7, 64, stream.len()] {
            let mut blocks = Blocks::new(Some(2));
            let mut out = Vec::new();
            for bytes in stream.chunks(piece) {
                out.extend_from_slice(blocks.take(bytes).expect("blocks"));
            }
            assert_eq!((out, blocks.packets(), blocks.is_full()), (expected.clone(), 2, true), "{piece}");
        }
        let mut all = Blocks::new(None);
        assert_eq!(all.take(&stream).expect("blocks"), stream);
        assert!(!all.is_full());
    }

    #[test]
    fn what_is_no_pcapng_is_an_error() {
        for length in [0_u32, 4, 11, 13, u32::MAX] {
            let bytes = [6_u32.to_ne_bytes(), length.to_ne_bytes()].concat();
            assert!(Blocks::new(None).take(&bytes).is_err(), "{length}");
        }
    }
}
