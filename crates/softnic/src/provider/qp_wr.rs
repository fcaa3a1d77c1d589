//! `ibv_qp_ex`: posting sends by function calls, between `wr_start` and `wr_complete` or `wr_abort` (ibv_wr_post(3)).
//!
//! Nothing of a batch is shown to the engine before `wr_complete`, and then all of it. The builders and setters answer
//! nothing: the first thing that goes wrong is what `wr_complete` returns, and then nothing is sent.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use ibverbs_sys::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

use super::Object;
use super::answer::{EINVAL, EOPNOTSUPP, Errno, Verb};
use super::qp::SoftQp;
use super::qp_send::{Batch, SendPoster, sender};
use crate::abi::qp_ex_functions;

/// `VERBS_QP_EX` of `enum verbs_qp_mask` (driver.h): `ibv_qp_to_qp_ex` may be answered.
const VERBS_QP_EX: u32 = 1 << 1;

/// Makes a new queue pair extended, for the library of a release.
pub(crate) fn extend(object: &mut SoftQp, release: u32) {
    let functions = qp_ex_functions(release);
    let qp = object.qp.get_mut();
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    // What there is not: a device leaves these NULL, and a call is a crash; here it is an error.
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_word);
    qp.wr_rdma_read = Some(wr_rdma);
    qp.wr_rdma_write = Some(wr_rdma);
    qp.wr_rdma_write_imm = Some(wr_rdma_imm);
    qp.wr_send_inv = Some(wr_word);
    qp.wr_set_xrc_srqn = Some(wr_word);
    // The last two came with later releases; where there is none, the library's own field stands in its place.
    let last = [offset_of!(ibv_qp_ex, wr_atomic_write), offset_of!(ibv_qp_ex, wr_flush)];
    if last[0] < comp_mask_offset(functions) {
        qp.wr_atomic_write = Some(wr_atomic_write);
    }
    if last[1] < comp_mask_offset(functions) {
        qp.wr_flush = Some(wr_flush);
    }
    let place = (&raw mut *object).wrapping_byte_add(comp_mask_offset(functions)).cast::<u32>();
    // SAFETY: `verbs_qp.comp_mask` stands behind the functions that the release has, in the last of those that the newest
    // has or in the slack behind them; all of it is this object's, and so is the reference.
    unsafe { place.write(VERBS_QP_EX) };
}

/// Where `verbs_qp.comp_mask` stands: behind the functions of `ibv_qp_ex`.
fn comp_mask_offset(functions: usize) -> usize {
    offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) + functions * size_of::<*const c_void>()
}

/// The id and the flags for the next request.
#[derive(Clone, Copy)]
struct Members {
    wr_id: u64,
    wr_flags: u32,
}

/// Runs `body` on the ring, if a batch is open and nothing went wrong in it so far.
fn in_batch(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut SendPoster, Members) -> Verb<()>) {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftQp::of(qp.cast()) }) else { return };
    let Some(plain) = &object.plain else { return };
    // SAFETY: called between `wr_start` and `wr_complete`, by the verb's contract, so the lock is held.
    let poster = unsafe { &mut *plain.sends.held() };
    if !poster.batch.open || poster.batch.error.is_some() {
        return;
    }
    let native = object.qp.get();
    // SAFETY: the live handle; the application has set both before this call, on this thread.
    let wr_id = unsafe { (*native).wr_id };
    // SAFETY: as above.
    let wr_flags = unsafe { (*native).wr_flags };
    poster.batch.error = body(poster, Members { wr_id, wr_flags }).err();
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftQp::of(qp.cast()) }) else { return };
    let Some(plain) = &object.plain else { return };
    // SAFETY: locked until `wr_complete` or `wr_abort`.
    let poster = unsafe { &mut *plain.sends.lock() };
    let start = poster.producer.position();
    // A queue pair that cannot send is an error of the whole batch.
    poster.batch = Batch { open: true, start, begun: None, error: sender(object).err() };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    end(qp, |poster| {
        let unfinished = poster.batch.begun.map(|_| EINVAL);
        match poster.batch.error.or(unfinished) {
            None => {
                poster.producer.publish();
                Ok(())
            }
            Some(errno) => {
                poster.producer.rewind(poster.batch.start);
                Err(errno)
            }
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    end(qp, |poster| {
        poster.producer.rewind(poster.batch.start);
        Ok(())
    });
}

/// Closes the batch.
fn end(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut SendPoster) -> Verb<()>) -> c_int {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftQp::of(qp.cast()) }) else { return EINVAL.0 };
    let Some(plain) = &object.plain else { return EINVAL.0 };
    // SAFETY: called after `wr_start`, by the verb's contract, so the lock is held.
    let poster = unsafe { &mut *plain.sends.held() };
    if !poster.batch.open {
        return EINVAL.0;
    }
    let outcome = body(poster);
    poster.batch = Batch::default();
    plain.sends.unlock();
    outcome.map_or_else(|errno| errno.0, |()| 0)
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    in_batch(qp, |poster, members| poster.begin(members.wr_id, poster.flags(members.wr_flags)?));
}

unsafe extern "C" fn wr_send_tso(
    qp: *mut ibv_qp_ex,
    headers: *mut c_void,
    header_bytes: u16,
    segment_bytes: u16,
) {
    in_batch(qp, |poster, members| {
        let flags = poster.flags(members.wr_flags)?;
        poster.begin_segments(members.wr_id, flags, headers, (header_bytes, segment_bytes))
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let element = ibv_sge { addr, length, lkey };
    in_batch(qp, |poster, _| poster.set_list(&raw const element, 1));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    in_batch(qp, |poster, _| poster.set_list(list, u32::try_from(count).map_err(|_| EINVAL)?));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    in_batch(qp, |poster, _| poster.set_inline(std::iter::once(Ok((addr.expose_provenance(), length)))));
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    in_batch(qp, |poster, _| {
        if count > 0 && list.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the application's list has `count` entries.
        let pieces = (0..count).map(|index| unsafe { list.add(index) });
        // SAFETY: as above.
        let pieces = pieces.map(|piece| unsafe { piece.read() });
        poster.set_inline(pieces.map(|piece| Ok((piece.addr.expose_provenance(), piece.length))))
    });
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    in_batch(qp, |poster, members| {
        poster.begin_immediate(members.wr_id, poster.flags(members.wr_flags)?, immediate)
    });
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, key: u32) {
    in_batch(qp, |poster, _| poster.set_address(ah, number, key));
}

/// Operations that there are not.
fn refuse_operation(qp: *mut ibv_qp_ex) {
    const REFUSAL: Errno = EOPNOTSUPP;
    in_batch(qp, |_, _| Err(REFUSAL));
}

macro_rules! refused {
    ($($name:ident($($argument:ty),*);)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $(_: $argument),*) {
            refuse_operation(qp);
        })*
    };
}

refused! {
    wr_atomic_cmp_swp(u32, u64, u64, u64);
    wr_atomic_fetch_add(u32, u64, u64);
    wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_word(u32);
    wr_rdma(u32, u64);
    wr_rdma_imm(u32, u64, u32);
    wr_atomic_write(u32, u64, *const c_void);
    wr_flush(u32, u64, usize, u8, u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_stands_behind_the_functions_of_each_release() {
        // `sizeof(struct ibv_qp_ex)` of the releases, the union before `verbs_qp.comp_mask`.
        let ends = [37, 43, 44, 45, 56, 64].map(|release| comp_mask_offset(qp_ex_functions(release)));
        let whole = size_of::<ibv_qp_ex>();
        assert_eq!(ends, [whole - 16, whole - 16, whole - 8, whole, whole, whole]);
    }
}
