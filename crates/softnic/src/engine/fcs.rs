//! The frame check sequence, for queues that want it (`IBV_WQ_FLAGS_SCATTER_FCS`).
//!
//! The wires carry frames without it, as network interfaces hand them over, so the engine computes what the medium
//! would have carried. It is never verified: a medium drops what does not hold before this device could see it.

/// Bytes of a frame check sequence.
pub(super) const FCS_BYTES: usize = 4;

/// The generator polynomial of IEEE 802.3, 3.2.9, lowest bit first.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The remainder of every byte.
const REMAINDERS: [u32; 256] = remainders();

const fn remainders() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < u8::BITS {
            remainder = (remainder >> 1) ^ if remainder & 1 == 0 { 0 } else { POLYNOMIAL };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// The check sequence of a frame, in the order in which it follows the frame.
pub(super) fn fcs(frame: &[u8]) -> [u8; FCS_BYTES] {
    let remainder = frame
        .iter()
        .fold(u32::MAX, |remainder, byte| (remainder >> 8) ^ REMAINDERS[usize::from(remainder as u8 ^ byte)]);
    (!remainder).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_hold() {
        // The check value of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms.
        assert_eq!(fcs(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
        assert_eq!(fcs(b""), [0; FCS_BYTES]);
    }

    #[test]
    fn a_frame_with_its_check_sequence_leaves_the_magic_remainder() {
        for length in [1, 14, 60, 1514] {
            let mut frame: Vec<u8> = (0..length).map(|index| (index * 31) as u8).collect();
            frame.extend(fcs(&frame));
            // IEEE 802.3, 3.2.9: what a receiver's shift register holds after a frame without errors.
            assert_eq!(fcs(&frame), 0x2144_df1c_u32.to_le_bytes());
            frame[0] ^= 1;
            assert_ne!(fcs(&frame), 0x2144_df1c_u32.to_le_bytes());
        }
    }
}
