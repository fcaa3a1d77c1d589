//! The blocks of bytes of a command: fields of the kernel's structures, by their offsets.

use softnic::errno::{EOPNOTSUPP, Verb};

/// The request of a client. Fields behind its end are 0, as in the kernel's `uverbs_request_start`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block<'b>(pub(super) &'b [u8]);

impl Block<'_> {
    fn field<const N: usize>(self, at: usize) -> [u8; N] {
        let mut field = [0; N];
        for (to, from) in field.iter_mut().zip(self.0.iter().skip(at)) {
            *to = *from;
        }
        field
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        u8::from_ne_bytes(self.field(at))
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.field(at))
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.field(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.field(at))
    }

    pub(super) fn len(self) -> usize {
        self.0.len()
    }

    /// EOPNOTSUPP if anything but zeros is behind the part of the structure that is known.
    pub(super) fn known(self, bytes: usize) -> Verb<()> {
        if self.is_zero_from(bytes) { Ok(()) } else { Err(EOPNOTSUPP) }
    }

    pub(super) fn is_zero_from(self, at: usize) -> bool {
        self.0.iter().skip(at).all(|byte| *byte == 0)
    }
}

/// The response: as many bytes as the client has room for, zeros first. Fields behind its end are left out,
/// as by the kernel's `uverbs_response`.
#[derive(Debug, Default)]
pub(super) struct Reply(pub(super) Vec<u8>);

impl Reply {
    pub(super) fn of(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    fn put(&mut self, at: usize, field: &[u8]) {
        for (to, from) in self.0.iter_mut().skip(at).zip(field) {
            *to = *from;
        }
    }

    pub(super) fn put_u8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    pub(super) fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_ne_bytes());
    }

    pub(super) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_ne_bytes());
    }

    pub(super) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }

    /// The bytes of a structure of `known` bytes that the client gets: what its `response_length` names.
    pub(super) fn length(&self, known: usize) -> u32 {
        u32::try_from(self.0.len().min(known)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_behind_the_end_are_zero_and_are_left_out() {
        let block = Block(&[1, 2, 3, 4, 5]);
        assert_eq!(block.u32(0), u32::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!(block.u32(4), u32::from_ne_bytes([5, 0, 0, 0]));
        assert_eq!((block.u64(8), block.u8(usize::MAX)), (0, 0));
        let mut reply = Reply::of(6);
        reply.put_u32(4, u32::MAX);
        reply.put_u64(8, u64::MAX);
        assert_eq!(reply.0, [0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!((reply.length(4), reply.length(40)), (4, 6));
    }

    #[test]
    fn what_follows_a_known_structure_must_be_zero() {
        assert_eq!(Block(&[9, 0, 0]).known(1), Ok(()));
        assert_eq!(Block(&[9, 0, 1]).known(1), Err(EOPNOTSUPP));
        assert_eq!(Block(&[]).known(1), Ok(()));
    }
}
