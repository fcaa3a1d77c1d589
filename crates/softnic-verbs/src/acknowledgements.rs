//! The wait of an object that is destroyed for the acknowledgements of its events: an event that was read
//! points to its object.

/// Where an object counts acknowledgements: what `ibv_ack_async_event` locks, counts up and signals.
pub(crate) struct Acknowledgements {
    pub(crate) mutex: *mut libc::pthread_mutex_t,
    pub(crate) condition: *mut libc::pthread_cond_t,
    pub(crate) count: *const u32,
}

/// The [`Acknowledgements`] of a native object: its pointer, its type and the name of the counter.
macro_rules! acknowledgements {
    ($object:expr, $type:ty, $count:ident) => {
        $crate::acknowledgements::Acknowledgements {
            mutex: $object.wrapping_byte_add(std::mem::offset_of!($type, mutex)).cast(),
            condition: $object.wrapping_byte_add(std::mem::offset_of!($type, cond)).cast(),
            count: $object.wrapping_byte_add(std::mem::offset_of!($type, $count)).cast_const().cast(),
        }
    };
}
pub(crate) use acknowledgements;

impl Acknowledgements {
    /// Waits until all of the `read` events are acknowledged.
    ///
    /// # Safety
    /// The object is a live one of this provider, and its mutex and condition are initialised.
    pub(crate) unsafe fn wait(&self, read: u32) {
        if read == 0 {
            return;
        }
        // SAFETY: by the contract of this function.
        unsafe { libc::pthread_mutex_lock(self.mutex) };
        // SAFETY: under the mutex, which `ibv_ack_async_event` takes to count up.
        while unsafe { self.count.read_volatile() } < read {
            // SAFETY: the mutex is held by this thread.
            unsafe { libc::pthread_cond_wait(self.condition, self.mutex) };
        }
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.mutex) };
    }
}
