//! The Toeplitz hash, the internet checksum and the frame check sequence, computed from their definitions.
//! Slow and short; nothing here uses the crates under test.

/// The Toeplitz hash by its definition: for every set bit of the input, the 32 key bits from there on. Keys
/// end in zeros.
pub fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], i: usize| bytes.get(i / 8).map_or(0, |byte| u32::from(byte >> (7 - i % 8) & 1));
    let mut hash = 0;
    for i in 0..input.len() * 8 {
        if bit(input, i) == 1 {
            hash ^= (0..32).fold(0, |window, j| window << 1 | bit(key, i + j));
        }
    }
    hash
}

/// The internet checksum (RFC 1071) over these pieces, each but the last of even length.
pub fn internet_checksum(pieces: &[&[u8]]) -> u16 {
    let pairs = pieces.iter().flat_map(|piece| piece.chunks(2));
    let mut sum: u32 =
        pairs.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The frame check sequence of IEEE 802.3, 3.2.9, bit by bit, in the order of the wire.
pub fn frame_check_sequence(frame: &[u8]) -> [u8; 4] {
    let mut remainder = u32::MAX;
    for byte in frame {
        remainder ^= u32::from(*byte);
        for _ in 0..8 {
            remainder = if remainder & 1 == 1 { remainder >> 1 ^ 0xedb8_8320 } else { remainder >> 1 };
        }
    }
    (!remainder).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_hold() {
        // The first of "Verifying the RSS hash calculation" in the Windows driver documentation.
        let key = packet::RssKey::MICROSOFT.0;
        let input = [66, 9, 149, 187, 161, 142, 100, 80, 10, 234, 6, 230];
        assert_eq!(toeplitz(&key, &input), 0x51cc_c178);
        assert_eq!(toeplitz(&key, &input[..8]), 0x323e_8fc2);
        // RFC 1071, 3, and the catalogue of parametrised CRC algorithms (CRC-32/ISO-HDLC).
        assert_eq!(internet_checksum(&[&[0, 1, 0xf2, 3], &[0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
        assert_eq!(frame_check_sequence(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
    }
}
