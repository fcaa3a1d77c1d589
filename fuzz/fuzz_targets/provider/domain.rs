//! Allocators of parent domains, correct and faulty. Each records its allocations and accepts only those
//! back.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;

use ibverbs_sys::ibv_pd;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

/// The behaviour of an allocator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Null,
    Default,
    Memory,
    /// Memory without the requested alignment.
    Misaligned,
    /// Memory up to a limit.
    SomeMemory(u8),
}

/// The target of `pd_context`.
pub struct Allocator {
    mood: Cell<Mood>,
    given: RefCell<HashMap<usize, (*mut u8, Layout, u64)>>,
}

impl Allocator {
    pub fn new(mood: Mood) -> Box<Self> {
        Box::new(Self { mood: Cell::new(mood), given: RefCell::default() })
    }

    /// Whether everything was freed.
    pub fn is_whole(&self) -> bool {
        self.given.borrow().is_empty()
    }

    fn give(&self, bytes: usize, align: usize, resource: u64, shift: usize) -> *mut c_void {
        let layout = Layout::from_size_align(bytes + shift, align).expect("a layout");
        assert!(bytes > 0, "nothing is asked for");
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(layout) };
        assert!(!base.is_null());
        // SAFETY: just allocated with that size. Not zero: the device must not rely on it.
        unsafe { base.write_bytes(0xa5, bytes + shift) };
        let given = base.wrapping_add(shift);
        self.given.borrow_mut().insert(given.addr(), (base, layout, resource));
        given.cast()
    }
}

pub unsafe extern "C" fn allocate(
    _: *mut ibv_pd,
    context: *mut c_void,
    bytes: usize,
    align: usize,
    resource: u64,
) -> *mut c_void {
    // SAFETY: the context given with this function, which outlives the device.
    let Some(allocator) = (unsafe { context.cast::<Allocator>().as_ref() }) else { return USE_DEFAULT };
    match allocator.mood.get() {
        Mood::Null | Mood::SomeMemory(0) => std::ptr::null_mut(),
        Mood::Default => USE_DEFAULT,
        Mood::Memory => allocator.give(bytes, align, resource, 0),
        Mood::Misaligned => allocator.give(bytes, align, resource, 8),
        Mood::SomeMemory(left) => {
            allocator.mood.set(Mood::SomeMemory(left - 1));
            allocator.give(bytes, align, resource, 0)
        }
    }
}

pub unsafe extern "C" fn free(_: *mut ibv_pd, context: *mut c_void, memory: *mut c_void, resource: u64) {
    // SAFETY: as in `allocate`.
    let allocator =
        unsafe { context.cast::<Allocator>().as_ref() }.expect("nothing was given without a context");
    let (base, layout, given_for) =
        allocator.given.borrow_mut().remove(&memory.addr()).expect("given once, and not yet freed");
    assert_eq!(resource, given_for);
    // SAFETY: allocated in `give` with this layout.
    unsafe { dealloc(base, layout) };
}
