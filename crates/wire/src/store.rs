//! Frames in memory that are replayed, each from the start of a cache line: most then take one line fewer.
//!
//! Used by the generator and the replay of captures, which fill a store when they are opened.

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Where a frame is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    offset: u32,
    bytes: u32,
}

/// Frames, one after the other.
#[derive(Debug, Default)]
pub(super) struct FrameStore {
    bytes: Vec<u8>,
    /// Where the first line begins.
    start: usize,
}

impl FrameStore {
    /// The bytes that it takes, those of a frame of `frame_bytes` that may be added included.
    pub(super) fn bytes_with(&self, frame_bytes: usize) -> usize {
        self.bytes.len().next_multiple_of(LINE_BYTES) + frame_bytes
    }

    /// Adds a frame. All of them must take less than 4 GiB.
    pub(super) fn push(&mut self, frame: &[u8]) -> Place {
        let offset = self.bytes.len().next_multiple_of(LINE_BYTES);
        self.bytes.resize(offset, 0);
        self.bytes.extend_from_slice(frame);
        Place { offset: offset as u32, bytes: frame.len() as u32 }
    }

    /// To be called after the last frame was added: moves all of them to where lines begin. Their places stay
    /// valid.
    pub(super) fn align(&mut self) {
        let end = self.bytes.len();
        // May move to other memory, so before a look at the address.
        self.bytes.resize(end + LINE_BYTES, 0);
        let start = self.bytes.as_ptr().align_offset(LINE_BYTES);
        if start < LINE_BYTES {
            self.bytes.copy_within(..end, start);
            self.start = start;
        }
    }

    /// All frames, to be read.
    #[inline]
    pub(super) fn frames(&self) -> Frames<'_> {
        Frames(&self.bytes[self.start..])
    }
}

/// The frames of a store: for loops over many.
#[derive(Clone, Copy)]
pub(super) struct Frames<'s>(&'s [u8]);

impl<'s> Frames<'s> {
    /// The frame at a place.
    #[inline]
    pub(super) fn at(self, place: Place) -> &'s [u8] {
        let start = place.offset as usize;
        &self.0[start..start + place.bytes as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_bytes_and_begin_with_a_line() {
        let frames: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 3 * usize::from(number)]).collect();
        let mut store = FrameStore::default();
        let places: Vec<Place> = frames.iter().map(|frame| store.push(frame)).collect();
        let read = |store: &FrameStore| -> Vec<Vec<u8>> {
            places.iter().map(|place| store.frames().at(*place).to_vec()).collect()
        };
        assert_eq!(read(&store), frames);
        store.align();
        assert_eq!(read(&store), frames);
        for place in &places {
            assert!(store.frames().at(*place).as_ptr().addr().is_multiple_of(LINE_BYTES));
        }
    }
}
