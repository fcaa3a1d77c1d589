//! The start of a frame, for people who look at single packets.

/// The first bytes of a frame, and its length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    first: [u8; FrameHead::BYTES_MAX],
    /// The length of the whole frame in bytes.
    pub frame_bytes: u32,
}

impl FrameHead {
    /// The most bytes that are kept.
    pub const BYTES_MAX: usize = 128;

    /// The start of a frame.
    #[must_use]
    pub fn of(frame: &[u8]) -> Self {
        let mut first = [0; Self::BYTES_MAX];
        let part = frame.get(..Self::BYTES_MAX).unwrap_or(frame);
        first[..part.len()].copy_from_slice(part);
        Self { first, frame_bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX) }
    }

    /// The bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.first.get(..self.frame_bytes as usize).unwrap_or(&self.first)
    }
}

/// In hexadecimal.
impl std::fmt::Display for FrameHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for FrameHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self} of {} bytes", self.frame_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_frame_is_whole_and_a_long_one_cut() {
        assert_eq!(FrameHead::of(&[1, 0xab]).to_string(), "01ab");
        let long = FrameHead::of(&[7; 300]);
        assert_eq!((long.bytes(), long.frame_bytes), (&[7; 128][..], 300));
        assert_eq!(FrameHead::of(&[]).bytes(), &[] as &[u8]);
    }
}
