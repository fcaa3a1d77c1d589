//! Arguments that must come back as an errno: NULL everywhere, unknown bits, sizes out of range; and contexts
//! that are closed with everything still in them.

use std::ptr::null_mut;

use ibverbs_sys::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_WQT_RQ, ibv_cq_init_attr_ex, ibv_device_attr_ex,
    ibv_parent_domain_init_attr, ibv_port_attr, ibv_qp_init_attr_ex, ibv_qp_type,
    ibv_rwq_ind_table_init_attr, ibv_td_init_attr, ibv_values_ex, ibv_wq_init_attr,
};
use softnic::Personality;

use super::super::{context, counters, cq, flow, mr, pd, qp, qp_create, qp_send, wq};
use super::{LOCAL_WRITE, Raw, create_qp_ex, udp};

pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// The limits are those that mlx5 and mlx4 report, and no more is accepted than is reported.
#[test]
fn queues_have_the_requests_of_their_personality() {
    for (personality, most) in
        [(Personality::Ideal, 1 << 16), (Personality::Mlx5, 1 << 15), (Personality::Mlx4, 16_351)]
    {
        let raw = Raw::with_personality(personality);
        let make = |requests| {
            create_qp_ex(&raw, |attr| (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (requests, 1)).err()
        };
        assert_eq!((make(most), make(most + 1)), (None, Some(libc::EINVAL)), "{personality}");
    }
}

#[test]
fn a_stock_sender_has_512_bytes_inline() {
    let raw = Raw::new();
    let make = |bytes| create_qp_ex(&raw, |attr| attr.cap.max_inline_data = bytes).err();
    assert_eq!([make(512), make(972), make(973)], [None, None, Some(libc::EINVAL)]);
}

/// Calls with their text, and what each returns with errno after it.
macro_rules! named {
    ($($call:expr),* $(,)?) => { [$((stringify!($call), $call, errno())),*] };
}

#[test]
fn null_is_refused_by_every_op() {
    let raw = Raw::new();
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "forty calls with the same sentence")]
    // SAFETY: NULL is what each of these ops must bear.
    unsafe {
        let context = raw.context;
        let n = libc::EINVAL;
        for (call, handle, errno) in named![
            pd::alloc_pd(null_mut()).cast::<u8>(),
            pd::alloc_parent_domain(context, null_mut()).cast(),
            pd::alloc_td(context, null_mut()).cast(),
            mr::reg_mr(null_mut(), null_mut(), 1, 0, 0).cast(),
            mr::reg_mr(raw.pd, null_mut(), 1, 0, 0).cast(),
            cq::create_cq(null_mut(), 1, null_mut(), 0).cast(),
            cq::create_cq_ex(context, null_mut()).cast(),
            wq::create_wq(context, null_mut()).cast(),
            wq::create_rwq_ind_table(context, null_mut()).cast(),
            qp_create::create_qp(null_mut(), null_mut()).cast(),
            qp_create::create_qp(raw.pd, null_mut()).cast(),
            qp_create::create_qp_ex(context, null_mut()).cast(),
            flow::create_flow(null_mut(), null_mut()).cast(),
            flow::create_flow(raw.qp, null_mut()).cast(),
            counters::create_counters(context, null_mut()).cast(),
        ] {
            assert!(handle.is_null(), "{call}");
            assert_eq!(errno, n, "{call}");
        }
        for (call, status, _) in named![
            context::query_device_ex(context, std::ptr::null(), null_mut(), 1 << 12),
            context::query_port(context, 1, null_mut()),
            context::query_port(null_mut(), 1, null_mut()),
            context::query_rt_values(context, null_mut()),
            pd::dealloc_pd(null_mut()),
            pd::dealloc_td(null_mut()),
            mr::dereg_mr(null_mut()),
            cq::destroy_cq(null_mut()),
            wq::modify_wq(null_mut(), null_mut()),
            wq::destroy_wq(null_mut()),
            wq::destroy_rwq_ind_table(null_mut()),
            qp::modify_qp(raw.qp, null_mut(), 0),
            qp::modify_qp(null_mut(), null_mut(), 0),
            qp::query_qp(raw.qp, null_mut(), 0, null_mut()),
            qp::destroy_qp(null_mut()),
            qp::post_recv(null_mut(), null_mut(), null_mut()),
            qp_send::post_send(null_mut(), null_mut(), null_mut()),
            flow::destroy_flow(null_mut()),
            counters::attach_counters_point_flow(null_mut(), null_mut(), null_mut()),
            counters::read_counters(null_mut(), null_mut(), 0, 0),
            counters::destroy_counters(null_mut()),
        ] {
            assert_eq!(status, n, "{call}");
        }
        assert_eq!(cq::poll_cq(raw.cq, 1, null_mut()), -1);
        assert_eq!(cq::poll_cq(null_mut(), 1, null_mut()), -1);
        assert_eq!(cq::poll_cq(raw.cq, -1, null_mut()), -1);
    }
}

fn vectors() -> u32 {
    Personality::Ideal.object_rules().completion.vectors
}

#[test]
fn completion_queues_have_limits() {
    let raw = Raw::new();
    let create = |change: fn(&mut ibv_cq_init_attr_ex)| {
        let mut attr = ibv_cq_init_attr_ex { cqe: 64, ..ibv_cq_init_attr_ex::default() };
        change(&mut attr);
        // SAFETY: a live context and a whole struct.
        let cq = unsafe { cq::create_cq_ex(raw.context, &raw mut attr) };
        if cq.is_null() { errno() } else { 0 }
    };
    assert_eq!(create(|_| {}), 0);
    assert_eq!(create(|attr| attr.cqe = 0), libc::EINVAL);
    assert_eq!(create(|attr| attr.cqe = u32::MAX), libc::EINVAL);
    assert_eq!(create(|attr| attr.comp_mask = 1 << 7), libc::EINVAL);
    assert_eq!(create(|attr| attr.comp_vector = vectors() - 1), 0);
    assert_eq!(create(|attr| attr.comp_vector = vectors()), libc::EINVAL);
    assert_eq!(create(|attr| attr.wc_flags = 1 << 10), 0, "tag matching");
    assert_eq!(create(|attr| attr.wc_flags = 1 << 40), libc::EOPNOTSUPP);
    assert_eq!(create(|attr| (attr.comp_mask, attr.flags) = (1, 1 << 5)), libc::EINVAL);
    assert_eq!(create(|attr| attr.comp_mask = 2), libc::EINVAL, "a parent domain that is NULL");
}

#[test]
fn work_queues_and_tables_have_limits() {
    let raw = Raw::new();
    let create = |change: fn(&mut ibv_wq_init_attr)| {
        let mut attr = ibv_wq_init_attr {
            wq_context: null_mut(),
            wq_type: IBV_WQT_RQ,
            max_wr: 16,
            max_sge: 1,
            pd: raw.pd,
            cq: raw.cq,
            comp_mask: 0,
            create_flags: 0,
        };
        change(&mut attr);
        // SAFETY: a live context and a whole struct.
        unsafe { wq::create_wq(raw.context, &raw mut attr) }
    };
    let refused = |change| if create(change).is_null() { errno() } else { 0 };
    assert_eq!(refused(|attr| attr.max_wr = 0), libc::EINVAL);
    assert_eq!(refused(|attr| attr.max_wr = u32::MAX), libc::EINVAL);
    assert_eq!(refused(|attr| attr.max_sge = 0), libc::EINVAL);
    assert_eq!(refused(|attr| attr.max_sge = 5), libc::EINVAL);
    assert_eq!(refused(|attr| attr.wq_type = 3), libc::EINVAL);
    assert_eq!(refused(|attr| attr.pd = null_mut()), libc::EINVAL);
    assert_eq!(refused(|attr| attr.cq = null_mut()), libc::EINVAL);
    assert_eq!(
        refused(|attr| (attr.comp_mask, attr.create_flags) = (1, 4)),
        libc::EOPNOTSUPP,
        "delayed drops"
    );
    let mut queues = [create(|_| {}); 2];
    let table = |log, list| {
        let mut attr = ibv_rwq_ind_table_init_attr { log_ind_tbl_size: log, ind_tbl: list, comp_mask: 0 };
        // SAFETY: a live context and a whole struct; the list has two entries or is not read.
        !unsafe { wq::create_rwq_ind_table(raw.context, &raw mut attr) }.is_null()
    };
    assert!(table(1, queues.as_mut_ptr()));
    assert!(!table(12, queues.as_mut_ptr()));
    assert!(!table(64, queues.as_mut_ptr()));
    assert!(!table(u32::MAX, queues.as_mut_ptr()));
    assert!(!table(0, null_mut()));
    // SAFETY: the two entries are the same live queue, which the table uses.
    assert_eq!(unsafe { wq::destroy_wq(queues[0]) }, libc::EBUSY);
}

#[test]
fn queue_pairs_must_be_raw_and_whole() {
    let raw = Raw::new();
    let create = |change: fn(&mut ibv_qp_init_attr_ex)| {
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: raw.cq,
            recv_cq: raw.cq,
            qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
            comp_mask: 1,
            pd: raw.pd,
            ..ibv_qp_init_attr_ex::default()
        };
        change(&mut attr);
        // SAFETY: a live context and a whole struct.
        let qp = unsafe { qp_create::create_qp_ex(raw.context, &raw mut attr) };
        if qp.is_null() { errno() } else { 0 }
    };
    assert_eq!(create(|_| {}), 0);
    assert_eq!(create(|attr| attr.qp_type = ibv_qp_type::IBV_QPT_RC), libc::EOPNOTSUPP);
    assert_eq!(create(|attr| attr.comp_mask = 0), libc::EINVAL, "no domain");
    assert_eq!(create(|attr| attr.comp_mask = 1 | 16), libc::EINVAL, "a table without a hash");
    assert_eq!(create(|attr| attr.comp_mask = 1 | 16 | 32), libc::EINVAL, "a table that is NULL");
    assert_eq!(create(|attr| attr.comp_mask = 1 | 1 << 20), libc::EOPNOTSUPP);
    assert_eq!(create(|attr| attr.send_cq = null_mut()), libc::EINVAL);
    assert_eq!(create(|attr| attr.cap.max_send_wr = 1 << 20), libc::EINVAL);
    assert_eq!(create(|attr| attr.cap.max_recv_sge = 5), libc::EINVAL);
    assert_eq!(create(|attr| attr.cap.max_inline_data = 1 << 12), libc::EINVAL);
}

#[test]
fn queries_write_no_more_than_they_were_given() {
    let raw = Raw::new();
    let bytes = size_of::<ibverbs_sys::ibv_device_attr>();
    let mut attr = [0xaau8; size_of::<ibv_device_attr_ex>()];
    // SAFETY: a live context; the first `bytes` bytes are given, as `ibv_query_device` does.
    let status =
        unsafe { context::query_device_ex(raw.context, std::ptr::null(), attr.as_mut_ptr().cast(), bytes) };
    assert_eq!(status, 0);
    assert!(attr[bytes..].iter().all(|byte| *byte == 0xaa));
    assert!(attr[..7].eq(b"softnic"));
    // The struct of releases before 54 is four bytes shorter.
    let mut port = [0xaau8; size_of::<ibv_port_attr>()];
    // SAFETY: a live context and a whole struct.
    assert_eq!(unsafe { context::query_port(raw.context, 1, port.as_mut_ptr().cast()) }, 0);
    assert!(port[size_of::<ibv_port_attr>() - 4..].iter().all(|byte| *byte == 0xaa));
    for port_number in [0, 2, 255] {
        let mut port = ibv_port_attr::default();
        // SAFETY: as above.
        assert_eq!(unsafe { context::query_port(raw.context, port_number, &raw mut port) }, libc::EINVAL);
    }
    let mut values = ibv_values_ex { comp_mask: 2, ..ibv_values_ex::default() };
    // SAFETY: a live context and a whole struct.
    assert_eq!(unsafe { context::query_rt_values(raw.context, &raw mut values) }, libc::EINVAL);
}

#[test]
fn invalid_domains_are_refused() {
    let raw = Raw::new();
    let alloc = |attr: &mut ibv_parent_domain_init_attr| {
        // SAFETY: a live context and a whole struct.
        unsafe { pd::alloc_parent_domain(raw.context, attr) }
    };
    let plain = || ibv_parent_domain_init_attr { pd: raw.pd, ..ibv_parent_domain_init_attr::default() };
    let mut half = plain();
    half.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    assert!(alloc(&mut half).is_null(), "an allocator without callbacks");
    let mut unknown = plain();
    unknown.comp_mask = 1 << 9;
    assert!(alloc(&mut unknown).is_null());
    let parent = alloc(&mut plain());
    assert!(!parent.is_null());
    let mut nested = plain();
    nested.pd = parent;
    assert!(!alloc(&mut nested).is_null(), "mlx5 takes a parent domain of a parent domain");
    // SAFETY: a live domain, used by the parent domain.
    assert_eq!(unsafe { pd::dealloc_pd(raw.pd) }, libc::EBUSY);
    let mut attr = ibv_td_init_attr { comp_mask: 1 };
    // SAFETY: a live context and a whole struct.
    assert!(unsafe { pd::alloc_td(raw.context, &raw mut attr) }.is_null());
}

#[test]
fn regions_must_lie_somewhere() {
    let raw = Raw::new();
    let register = |address: usize, bytes: usize, virtual_address: u64, access: i32| {
        let address = std::ptr::without_provenance_mut(address);
        // SAFETY: a live domain; the memory is not touched.
        let mr = unsafe { mr::reg_mr(raw.pd, address, bytes, virtual_address, access) };
        if mr.is_null() { errno() } else { 0 }
    };
    let memory = Box::new([0u8; 64]);
    assert_eq!(register((&raw const *memory).addr(), 64, 0x1000, 1), 0);
    assert_eq!(register(0x1000, 64, 0x1000, 1), libc::EFAULT, "nothing is mapped there");
    assert_eq!(register(0x1000, 0, 0x1000, 1), libc::EINVAL);
    assert_eq!(register(usize::MAX - 3, 64, 0, 1), libc::EFAULT);
    assert_eq!(register(0x1000, 64, u64::MAX - 3, 1), libc::EINVAL);
    assert_eq!(register(0x1000, 64, 0x1000, 2), libc::EINVAL, "remote write without local write");
    assert_eq!(register(0x1000, 64, 0x1000, 1 << 6), libc::EOPNOTSUPP, "on demand");
    for optional in [20, 29] {
        assert_eq!(
            register((&raw const *memory).addr(), 64, 0x1000, 1 | 1 << optional),
            0,
            "1 << {optional}"
        );
    }
    assert_eq!(
        register((&raw const *memory).addr(), 64, 0x1000, 1 | 1 << 30),
        libc::EOPNOTSUPP,
        "not optional"
    );
}

#[test]
fn a_context_closed_with_live_objects_leaves_the_device_working() {
    let mut raw = Raw::new();
    let memory = raw.register(2048, LOCAL_WRITE);
    raw.post_receive(1, &mut [memory.element(0, 2048)]);
    raw.close();
    raw.deliver([udp(10)]);
    let stats = raw.stats();
    assert_eq!((stats.rx_frames, stats.unmatched), (1, 1), "its flows are gone");
    assert!(memory.read(0, 64).iter().all(|byte| *byte == 0));
}

/// The last bytes of a page that has some rights, before one that has none.
fn page_before_nothing(rights: i32) -> *mut u8 {
    const PAGE: usize = 1 << 16;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, where the kernel likes.
    let both = unsafe { libc::mmap(null_mut(), 2 * PAGE, rights, flags, -1, 0) }.cast::<u8>();
    assert_ne!(both.cast(), libc::MAP_FAILED);
    // SAFETY: the second half of just now; nothing points into it.
    assert_eq!(unsafe { libc::mprotect(both.wrapping_add(PAGE).cast(), PAGE, libc::PROT_NONE) }, 0);
    both.wrapping_add(PAGE - 16)
}

#[test]
fn memory_that_is_not_there_or_cannot_be_written_is_not_registered() {
    let raw = Raw::new();
    let access = LOCAL_WRITE as i32;
    let register = |address: *mut u8, bytes, access| {
        // SAFETY: a live domain; of the memory nothing is promised.
        let region = unsafe { mr::reg_mr(raw.pd, address.cast(), bytes, 0, access) };
        if region.is_null() { Err(errno()) } else { Ok(region) }
    };
    let plain = page_before_nothing(libc::PROT_READ | libc::PROT_WRITE);
    let region = register(plain, 16, access).unwrap();
    assert_eq!(register(plain, 17, access), Err(libc::EFAULT), "one byte too long");
    // SAFETY: a live region; of the memory nothing is promised.
    let moved = unsafe { mr::rereg_mr(region.cast(), 1, raw.pd, plain.cast(), 17, 0) };
    assert_eq!(moved, libc::EFAULT);
    let constant = page_before_nothing(libc::PROT_READ);
    assert_eq!(register(constant, 16, access), Err(libc::EFAULT));
    let region = register(constant, 16, 0).unwrap();
    // SAFETY: a live region.
    assert_eq!(unsafe { mr::rereg_mr(region.cast(), 4, raw.pd, null_mut(), 0, access) }, libc::EFAULT);
    assert_eq!(register(page_before_nothing(libc::PROT_NONE), 16, 0), Err(libc::EFAULT));
}
