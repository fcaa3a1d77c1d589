use super::*;

unsafe extern "C" fn refusing_td(_: *mut ibv_td) -> c_int {
    libc::EBUSY
}

/// A context as a library would lay it out; `sz` is the size that it reports.
fn context_of_size(sz: usize) -> Box<VerbsContext> {
    // SAFETY: integers, raw pointers and nullable function pointers are all valid when zero.
    let mut whole: Box<VerbsContext> = Box::new(unsafe { std::mem::zeroed() });
    whole.sz = sz;
    whole.dealloc_td = Some(refusing_td);
    whole.context.abi_compat = ptr::without_provenance_mut(ABI_IS_EXTENDED);
    whole
}

fn dealloc(whole: &mut VerbsContext) -> c_int {
    let context = ptr::from_mut(whole).wrapping_byte_add(offset_of!(VerbsContext, context)).cast();
    // SAFETY: `context` lies inside `whole`; the operation ignores its argument.
    unsafe { dealloc_td(context, ptr::null_mut()) }
}

#[test]
fn an_operation_of_an_extended_context_is_called() {
    assert_eq!(dealloc(&mut context_of_size(size_of::<VerbsContext>())), libc::EBUSY);
}

#[test]
fn an_operation_beyond_the_librarys_size_is_not_touched() {
    let reach = size_of::<VerbsContext>() - offset_of!(VerbsContext, dealloc_td);
    assert_eq!(dealloc(&mut context_of_size(reach)), libc::EBUSY);
    assert_eq!(dealloc(&mut context_of_size(reach - 1)), libc::EOPNOTSUPP);
}

#[test]
fn a_context_of_the_old_abi_has_no_operations() {
    let mut whole = context_of_size(size_of::<VerbsContext>());
    whole.context.abi_compat = ptr::null_mut();
    assert_eq!(dealloc(&mut whole), libc::EOPNOTSUPP);
}

#[test]
fn a_missing_creator_sets_errno() {
    let mut whole = context_of_size(size_of::<VerbsContext>());
    let context = ptr::from_mut(&mut *whole).wrapping_byte_add(offset_of!(VerbsContext, context)).cast();
    let mut attr = ibv_td_init_attr::default();
    // SAFETY: `context` lies inside `whole`.
    let td = unsafe { alloc_td(context, &mut attr) };
    assert!(td.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
}

#[test]
fn what_was_never_posted_is_not_in_doubt() {
    let (mut wq, mut request, mut bad) = (ibv_wq::default(), ibv_recv_wr::default(), ptr::null_mut());
    wq.post_recv = None;
    // SAFETY: a queue without the operation is not touched further.
    let code = unsafe { post_wq_recv(&raw mut wq, &raw mut request, &mut bad) };
    assert_eq!((code, bad), (libc::EOPNOTSUPP, &raw mut request));
}

/// Where rdma-core v44's verbs.h, compiled by a C compiler for x86-64, has them.
#[test]
fn operations_stand_where_the_header_has_them() {
    let found = [
        offset_of!(VerbsContext, query_port),
        offset_of!(VerbsContext, read_counters),
        offset_of!(VerbsContext, attach_counters_point_flow),
        offset_of!(VerbsContext, create_counters),
        offset_of!(VerbsContext, destroy_counters),
        offset_of!(VerbsContext, alloc_parent_domain),
        offset_of!(VerbsContext, dealloc_td),
        offset_of!(VerbsContext, alloc_td),
        offset_of!(VerbsContext, destroy_rwq_ind_table),
        offset_of!(VerbsContext, create_rwq_ind_table),
        offset_of!(VerbsContext, destroy_wq),
        offset_of!(VerbsContext, modify_wq),
        offset_of!(VerbsContext, create_wq),
        offset_of!(VerbsContext, query_rt_values),
        offset_of!(VerbsContext, create_cq_ex),
        offset_of!(VerbsContext, query_device_ex),
        offset_of!(VerbsContext, destroy_flow),
        offset_of!(VerbsContext, create_flow),
        offset_of!(VerbsContext, create_qp_ex),
        offset_of!(VerbsContext, sz),
        size_of::<VerbsContext>(),
    ];
    let expected =
        [0, 24, 32, 40, 48, 112, 120, 128, 152, 160, 168, 176, 184, 192, 200, 216, 224, 240, 264, 312, 648];
    assert_eq!(found, expected);
}
