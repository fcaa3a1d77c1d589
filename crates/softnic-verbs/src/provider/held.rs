//! The memory of objects that the application holds, and what happens to handles of objects that it
//! destroyed.
//!
//! A handle that was destroyed is answered with EINVAL. libibverbs reads a handle's context before it calls
//! an op, and the op must tell a handle that is gone from one that lives; so the contents of a destroyed
//! object are dropped at once (its queues' memory goes back), but its own memory, a few hundred bytes, is
//! kept with a mark in it. Of the objects of a process the last [`MAX_KEPT`] that were destroyed are kept,
//! oldest out first, so the promise holds while the context is open and until as many others were destroyed
//! after it. After that a stale handle is what it is to any provider: a pointer to freed memory.
//!
//! Used by [`Object`](super::Object) alone. Nothing here locks or allocates on the data path: the mark is one
//! load.

use std::alloc::{Layout, dealloc};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use softnic::errno::{EINVAL, Verb};

/// Destroyed objects whose memory is kept.
pub(crate) const MAX_KEPT: usize = if cfg!(miri) { 64 } else { 4_096 };

/// The mark of an object that lives.
const LIVES: u32 = 0x534e_4c56;
/// The mark of one that was destroyed.
const GONE: u32 = 0;

/// An object with its mark. The object comes first, and so does the library's struct in it.
#[repr(C)]
pub(crate) struct Held<T> {
    object: T,
    mark: AtomicU32,
}

impl<T> Held<T> {
    pub(crate) fn boxed(object: T) -> Box<Self> {
        Box::new(Self { object, mark: AtomicU32::new(LIVES) })
    }

    /// The object behind a handle, unless it was destroyed.
    ///
    /// # Safety
    /// `handle` is NULL or came from [`Held::boxed`] for this type and is live, or destroyed by
    /// [`Held::destroy`] and kept.
    #[inline]
    pub(crate) unsafe fn find<'a>(handle: *mut Self) -> Verb<&'a T> {
        if handle.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: live or kept by the contract, and the mark is never anything but an atomic word.
        let mark = unsafe { &(*handle).mark };
        if mark.load(Ordering::Relaxed) != LIVES {
            return Err(EINVAL);
        }
        // SAFETY: an object is alive while its mark is set.
        Ok(unsafe { &(*handle).object })
    }

    /// Drops a live object's contents and keeps its memory.
    ///
    /// # Safety
    /// `handle` came from [`Held::boxed`] for this type and is live; no reference to it is left.
    pub(crate) unsafe fn destroy(handle: NonNull<Self>) {
        // SAFETY: by the contract.
        let mark = unsafe { &(*handle.as_ptr()).mark };
        mark.store(GONE, Ordering::Relaxed);
        // SAFETY: live by the contract, so within its allocation.
        let object = unsafe { &raw mut (*handle.as_ptr()).object };
        // SAFETY: dropped once, since the mark is cleared from now on; the bytes stay as they are.
        unsafe { object.drop_in_place() };
        keep(Kept { memory: handle.cast(), layout: Layout::new::<Self>() });
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.object
    }
}

/// The memory of a destroyed object.
struct Kept {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory that nothing but a stale handle points to. Of it only the mark, the library's struct and the
// cursor of a completion queue (`SoftCq::cursor`) are read. The cursor is followed too, and does not lead
// into memory that is gone: `destroy_cq` has set it to `Cursor::NONE`, which points to a static.
unsafe impl Send for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: from a `Box` of a `Held` of this layout, whose contents were dropped; freed only here.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// The memory of the objects that were destroyed last.
struct Keeper(VecDeque<Kept>);

impl Keeper {
    /// Keeps one more; returns what there is no room for any more.
    fn keep(&mut self, memory: Kept) -> Option<Kept> {
        let oldest = if self.0.len() >= MAX_KEPT { self.0.pop_front() } else { None };
        self.0.push_back(memory);
        oldest
    }
}

static KEEPER: Mutex<Keeper> = Mutex::new(Keeper(VecDeque::new()));

fn keep(memory: Kept) {
    let oldest = KEEPER.lock().unwrap_or_else(PoisonError::into_inner).keep(memory);
    drop(oldest);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_destroyed_object_is_known_as_such_and_its_contents_are_gone() {
        let content = Arc::new(7);
        let handle = Box::into_raw(Held::boxed(Arc::clone(&content)));
        // SAFETY: a live object.
        assert_eq!(**unsafe { Held::find(handle) }.unwrap(), 7);
        // SAFETY: as above; the reference of the line before is not used any more.
        unsafe { Held::destroy(NonNull::new(handle).unwrap()) };
        assert_eq!(Arc::strong_count(&content), 1);
        for _ in 0..2 {
            // SAFETY: destroyed, and kept: this test destroys one object.
            assert_eq!(unsafe { Held::find(handle) }.err(), Some(EINVAL));
        }
        // SAFETY: NULL.
        assert_eq!(unsafe { Held::<u8>::find(std::ptr::null_mut()) }.err(), Some(EINVAL));
    }

    #[test]
    fn no_more_than_the_bound_is_kept_and_the_oldest_goes_first() {
        // Not the process's own: other tests count on that.
        let mut keeper = Keeper(VecDeque::new());
        let kept = || {
            let handle = NonNull::from(Box::leak(Held::boxed(7u8)));
            Kept { memory: handle.cast(), layout: Layout::new::<Held<u8>>() }
        };
        let first = kept();
        let address = first.memory;
        assert!(keeper.keep(first).is_none());
        for _ in 1..MAX_KEPT {
            assert!(keeper.keep(kept()).is_none());
        }
        assert_eq!(keeper.keep(kept()).map(|oldest| oldest.memory), Some(address));
        assert_eq!(keeper.0.len(), MAX_KEPT);
    }
}
