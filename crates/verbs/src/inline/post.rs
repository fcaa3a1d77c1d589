//! The functions of a queue pair's sending interface, `ibv_qp_ex`: the `ibv_wr_*` inlines of the header.
//!
//! Looked up once, when a queue pair is made with operations (ibv_wr_post(3)); a batch then calls them
//! directly. All but `wr_complete`: rdma-core's mlx5 provider has another one until the queue pair is in RTS,
//! which refuses every batch (`set_qp_operational_state` in providers/mlx5/verbs.c). Only the fields that
//! every release of rdma-core has are read: later ones have more behind them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

use ibverbs_sys::{self as sys, ibv_data_buf, ibv_qp, ibv_qp_ex, ibv_sge};

use crate::SendOperations;

type Plain = unsafe extern "C" fn(*mut ibv_qp_ex);

/// The functions that can be called on one queue pair between `start` and `complete` or `abort`.
#[derive(Clone, Copy)]
pub(crate) struct SendFunctions {
    qp: NonNull<ibv_qp_ex>,
    start: Plain,
    send: Option<Plain>,
    tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
    set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    set_sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    set_inline: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize),
    set_inline_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf),
    abort: Plain,
}

// SAFETY: a pointer and functions; their callers ensure that one thread at a time uses the queue pair.
unsafe impl Send for SendFunctions {}

impl SendFunctions {
    /// The functions of a queue pair that was asked for `operations`. `None`: the provider left one out, or
    /// the queue pair has no such interface.
    ///
    /// # Safety
    /// `qp` is live, and was made by `ibv_create_qp_ex`.
    pub(crate) unsafe fn of(qp: *mut ibv_qp, operations: SendOperations) -> Option<Self> {
        // SAFETY: forwarded contract.
        let qp = NonNull::new(unsafe { sys::ibv_qp_to_qp_ex(qp) })?;
        // SAFETY: `ibv_qp_to_qp_ex` has returned it, so the queue pair is an extended one, and it is live.
        unsafe { Self::read(qp, operations) }
    }

    /// # Safety
    /// `qp` is live, at least as far as `wr_abort`.
    unsafe fn read(qp: NonNull<ibv_qp_ex>, operations: SendOperations) -> Option<Self> {
        /// A field, without a reference to the whole structure, which may be shorter than declared.
        macro_rules! field {
            ($name:ident) => {
                // SAFETY: within the structure by contract; written only by calls that make or modify the
                // queue pair.
                unsafe { (*qp.as_ptr()).$name }
            };
        }
        let (send, tso) = (field!(wr_send), field!(wr_send_tso));
        let _ = field!(wr_complete)?;
        Some(Self {
            qp,
            start: field!(wr_start)?,
            send: if operations.contains(SendOperations::SEND) { Some(send?) } else { None },
            tso: if operations.contains(SendOperations::TSO) { Some(tso?) } else { None },
            set_sge: field!(wr_set_sge)?,
            set_sge_list: field!(wr_set_sge_list)?,
            set_inline: field!(wr_set_inline_data)?,
            set_inline_list: field!(wr_set_inline_data_list)?,
            abort: field!(wr_abort)?,
        })
    }

    /// `ibv_wr_start`.
    ///
    /// # Safety
    /// The queue pair is live, no other thread sends on it, no batch is open.
    pub(crate) unsafe fn start(&self) {
        // SAFETY: forwarded contract.
        unsafe { (self.start)(self.qp.as_ptr()) };
    }

    /// `ibv_wr_send`, or `ibv_wr_send_tso` with a header, its length and the segment size; `wr_id` and
    /// `wr_flags` before. False: not an operation that was asked for; nothing was called.
    ///
    /// # Safety
    /// A batch is open, by this thread. The header stays as it is until the send completes.
    #[inline]
    pub(crate) unsafe fn build(
        &self,
        wr_id: u64,
        wr_flags: c_uint,
        segments: Option<(*mut c_void, u16, u16)>,
    ) -> bool {
        let qp = self.qp.as_ptr();
        // SAFETY: live by contract, and only this thread writes it.
        unsafe { (*qp).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = wr_flags };
        match (segments, self.send, self.tso) {
            (None, Some(send), _) => {
                // SAFETY: forwarded contract.
                unsafe { send(qp) };
                true
            }
            (Some((header, bytes, mss)), _, Some(tso)) => {
                // SAFETY: forwarded contract.
                unsafe { tso(qp, header, bytes, mss) };
                true
            }
            _ => false,
        }
    }

    /// `ibv_wr_set_sge`, or `ibv_wr_set_sge_list` for any other number of entries than one.
    ///
    /// # Safety
    /// After [`SendFunctions::build`]; the memory stays registered and unchanged until the send completes.
    #[inline]
    pub(crate) unsafe fn set_sge(&self, entries: &[ibv_sge]) {
        let qp = self.qp.as_ptr();
        match entries {
            // SAFETY: forwarded contract.
            [one] => unsafe { (self.set_sge)(qp, one.lkey, one.addr, one.length) },
            // SAFETY: forwarded contract; the list is read during the call only.
            list => unsafe { (self.set_sge_list)(qp, list.len(), list.as_ptr()) },
        }
    }

    /// `ibv_wr_set_inline_data`, or `ibv_wr_set_inline_data_list` for any other number of buffers than one.
    /// The data is copied by the call.
    ///
    /// # Safety
    /// After [`SendFunctions::build`]; the buffers are readable.
    pub(crate) unsafe fn set_inline(&self, buffers: &[ibv_data_buf]) {
        let qp = self.qp.as_ptr();
        match buffers {
            // SAFETY: forwarded contract.
            [one] => unsafe { (self.set_inline)(qp, one.addr, one.length) },
            // SAFETY: forwarded contract.
            list => unsafe { (self.set_inline_list)(qp, list.len(), list.as_ptr()) },
        }
    }

    /// `ibv_wr_complete`: 0, or an errno and nothing was posted.
    ///
    /// # Safety
    /// A batch is open, by this thread; it is closed afterwards.
    pub(crate) unsafe fn complete(&self) -> c_int {
        let qp = self.qp.as_ptr();
        // SAFETY: live by contract; what writes it (RESET and RTS of ibv_modify_qp(3)) needs the queue pair
        // exclusively, and an open batch borrows it.
        let complete = unsafe { (*qp).wr_complete };
        // It was there when the functions were read.
        // SAFETY: forwarded contract.
        complete.map_or(libc::EOPNOTSUPP, |complete| unsafe { complete(qp) })
    }

    /// `ibv_wr_abort`.
    ///
    /// # Safety
    /// As for [`SendFunctions::complete`].
    pub(crate) unsafe fn abort(&self) {
        // SAFETY: forwarded contract.
        unsafe { (self.abort)(self.qp.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn plain(_: *mut ibv_qp_ex) {}
    unsafe extern "C" fn tso(_: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {}
    unsafe extern "C" fn sge(qp: *mut ibv_qp_ex, lkey: u32, _: u64, _: u32) {
        // SAFETY: the test's own structure.
        unsafe { (*qp).comp_mask = u64::from(lkey) };
    }
    unsafe extern "C" fn sge_list(qp: *mut ibv_qp_ex, count: usize, _: *const ibv_sge) {
        // SAFETY: the test's own structure.
        unsafe { (*qp).comp_mask = 100 + count as u64 };
    }
    unsafe extern "C" fn data(_: *mut ibv_qp_ex, _: *mut c_void, _: usize) {}
    unsafe extern "C" fn data_list(_: *mut ibv_qp_ex, _: usize, _: *const ibv_data_buf) {}
    unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
        libc::ENOMEM
    }

    fn whole() -> ibv_qp_ex {
        ibv_qp_ex {
            wr_start: Some(plain),
            wr_send: Some(plain),
            wr_send_tso: Some(tso),
            wr_set_sge: Some(sge),
            wr_set_sge_list: Some(sge_list),
            wr_set_inline_data: Some(data),
            wr_set_inline_data_list: Some(data_list),
            wr_complete: Some(complete),
            wr_abort: Some(plain),
            ..ibv_qp_ex::default()
        }
    }

    fn read(qp: &mut ibv_qp_ex, operations: SendOperations) -> Option<SendFunctions> {
        // SAFETY: the test's own structure, which is whole.
        unsafe { SendFunctions::read(NonNull::from(qp), operations) }
    }

    #[test]
    fn an_interface_without_a_needed_function_is_refused() {
        let both = SendOperations::SEND | SendOperations::TSO;
        assert!(read(&mut whole(), both).is_some());
        let without: [fn(&mut ibv_qp_ex); 9] = [
            |qp| qp.wr_start = None,
            |qp| qp.wr_send = None,
            |qp| qp.wr_send_tso = None,
            |qp| qp.wr_set_sge = None,
            |qp| qp.wr_set_sge_list = None,
            |qp| qp.wr_set_inline_data = None,
            |qp| qp.wr_set_inline_data_list = None,
            |qp| qp.wr_complete = None,
            |qp| qp.wr_abort = None,
        ];
        for remove in without {
            let mut qp = whole();
            remove(&mut qp);
            assert!(read(&mut qp, both).is_none());
        }
        let mut qp = ibv_qp_ex { wr_send_tso: None, ..whole() };
        assert!(read(&mut qp, SendOperations::SEND).is_some(), "not asked for");
    }

    #[test]
    fn the_function_that_completes_may_be_replaced() {
        unsafe extern "C" fn completes(_: *mut ibv_qp_ex) -> c_int {
            0
        }
        let mut qp = whole();
        let place = NonNull::from(&mut qp);
        // SAFETY: the test's own structure, which is whole.
        let functions = unsafe { SendFunctions::read(place, SendOperations::SEND) }.unwrap();
        // SAFETY: the test's own structure and functions.
        assert_eq!(unsafe { functions.complete() }, libc::ENOMEM);
        // SAFETY: as above.
        unsafe { (*place.as_ptr()).wr_complete = Some(completes) };
        // SAFETY: as above.
        assert_eq!(unsafe { functions.complete() }, 0);
    }

    #[test]
    fn one_entry_and_a_list_go_different_ways() {
        let mut qp = whole();
        let functions = read(&mut qp, SendOperations::SEND).expect("whole");
        let entry = ibv_sge { addr: 0, length: 0, lkey: 7 };
        for (entries, seen) in [(&[entry][..], 7), (&[entry, entry][..], 102)] {
            // SAFETY: the functions above touch nothing but the structure.
            unsafe { functions.set_sge(entries) };
            // SAFETY: as above.
            assert_eq!(unsafe { (*functions.qp.as_ptr()).comp_mask }, seen);
        }
    }

    #[test]
    fn an_operation_that_was_not_asked_for_is_not_built() {
        let mut qp = whole();
        let functions = read(&mut qp, SendOperations::SEND).expect("whole");
        // SAFETY: as above.
        assert!(unsafe { functions.build(1, 2, None) });
        // SAFETY: as above.
        assert!(!unsafe { functions.build(3, 2, Some((std::ptr::null_mut(), 0, 0))) });
    }
}
