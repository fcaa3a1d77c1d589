//! Domains as a C program uses them: what an allocator receives, what it may return, what keeps a domain in
//! use; and regions that change.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

use ibverbs_sys::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_WQT_RQ, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_rereg_mr, ibv_td,
    ibv_td_init_attr, ibv_wq, ibv_wq_init_attr,
};
use softnic::Personality;

use super::super::{cq, mr, pd, qp, wq};
use super::refusals::errno;
use super::{LOCAL_WRITE, Raw, create_qp, udp};

/// Bytes of the two lines that x86 prefetches together: the alignment that queues ask for.
const PREFETCHED_LINES_BYTES: usize = 128;
const BOTH: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

/// The answer that the allocator is to give.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Memory,
    Default,
    Null,
    /// NULL to the second call, memory to the others.
    NullToTheSecond,
}

/// One call of the allocator that gave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Given {
    domain: usize,
    address: usize,
    bytes: usize,
    align: usize,
    resource: u64,
}

/// The heap behind a `pd_context`. Its memory is dirty, so that whoever needs zeroes must make them.
struct Heap {
    answer: Mutex<Answer>,
    asked: Mutex<Vec<u64>>,
    given: Mutex<Vec<Given>>,
}

impl Heap {
    fn new(answer: Answer) -> Box<Self> {
        Box::new(Self { answer: Mutex::new(answer), asked: Mutex::default(), given: Mutex::default() })
    }

    fn resources(&self) -> Vec<u64> {
        self.asked.lock().unwrap().clone()
    }

    fn outstanding(&self) -> usize {
        self.given.lock().unwrap().len()
    }
}

unsafe extern "C" fn allocate(
    domain: *mut ibv_pd,
    context: *mut c_void,
    bytes: usize,
    align: usize,
    resource: u64,
) -> *mut c_void {
    // SAFETY: the context that `parent` gave.
    let heap = unsafe { &*context.cast::<Heap>() };
    let mut asked = heap.asked.lock().unwrap();
    asked.push(resource);
    match *heap.answer.lock().unwrap() {
        Answer::Null => return null_mut(),
        Answer::NullToTheSecond if asked.len() == 2 => return null_mut(),
        Answer::Default => return USE_DEFAULT,
        _ => {}
    }
    let layout = Layout::from_size_align(bytes, align).unwrap();
    // SAFETY: no queue is empty.
    let memory = unsafe { alloc(layout) };
    // SAFETY: just allocated.
    unsafe { memory.write_bytes(0xa5, bytes) };
    let (domain, address) = (domain.addr(), memory.addr());
    heap.given.lock().unwrap().push(Given { domain, address, bytes, align, resource });
    memory.cast()
}

unsafe extern "C" fn free(domain: *mut ibv_pd, context: *mut c_void, memory: *mut c_void, resource: u64) {
    // SAFETY: the context that `parent` gave.
    let heap = unsafe { &*context.cast::<Heap>() };
    let mut given = heap.given.lock().unwrap();
    let place =
        given.iter().position(|given| given.address == memory.addr()).expect("memory of this allocator");
    let Given { domain: its, bytes, align, resource: its_resource, .. } = given.swap_remove(place);
    assert_eq!((its, its_resource), (domain.addr(), resource));
    // SAFETY: allocated above with this layout.
    unsafe { dealloc(memory.cast(), Layout::from_size_align(bytes, align).unwrap()) };
}

fn parent(raw: &Raw, td: *mut ibv_td, heap: &Heap) -> *mut ibv_pd {
    let mut attr = ibv_parent_domain_init_attr {
        pd: raw.pd,
        td,
        comp_mask: BOTH,
        alloc: Some(allocate),
        free: Some(free),
        pd_context: (&raw const *heap).cast_mut().cast(),
    };
    // SAFETY: a live context and a whole struct.
    let parent = unsafe { pd::alloc_parent_domain(raw.context, &raw mut attr) };
    assert!(!parent.is_null());
    parent
}

fn thread_domain(raw: &Raw) -> *mut ibv_td {
    // SAFETY: a live context and a whole struct.
    unsafe { pd::alloc_td(raw.context, &mut ibv_td_init_attr { comp_mask: 0 }) }
}

fn create_cq(raw: &Raw, parent_domain: *mut ibv_pd) -> *mut ibv_cq_ex {
    let mut attr =
        ibv_cq_init_attr_ex { cqe: 16, comp_mask: 2, parent_domain, ..ibv_cq_init_attr_ex::default() };
    // SAFETY: a live context and a whole struct.
    unsafe { cq::create_cq_ex(raw.context, &raw mut attr) }
}

fn create_wq(raw: &Raw, pd: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_wq {
    let mut attr = ibv_wq_init_attr {
        wq_type: IBV_WQT_RQ,
        max_wr: 8,
        max_sge: 1,
        pd,
        cq,
        ..ibv_wq_init_attr::default()
    };
    // SAFETY: a live context and a whole struct.
    unsafe { wq::create_wq(raw.context, &raw mut attr) }
}

#[test]
fn each_kind_of_memory_is_asked_for_by_name_and_given_back() {
    for personality in [Personality::Ideal, Personality::Mlx5] {
        let raw = Raw::with_personality(personality);
        let heap = Heap::new(Answer::Memory);
        let home = parent(&raw, thread_domain(&raw), &heap);
        let cq = create_cq(&raw, home);
        let wq = create_wq(&raw, home, cq.cast());
        let queue_pair = create_qp(home, cq.cast());
        let kinds = &personality.object_rules().domain.resources;
        let (cq_kind, wq_kind, qp_kind, doorbell) =
            (kinds.completion_queue, kinds.work_queue, kinds.queue_pair, kinds.doorbell);
        let expected = [cq_kind, doorbell, wq_kind, doorbell, qp_kind, doorbell, qp_kind, doorbell];
        assert_eq!(heap.resources(), expected, "{personality}");
        for given in heap.given.lock().unwrap().iter() {
            assert_eq!((given.domain, given.align), (home.addr(), PREFETCHED_LINES_BYTES));
            assert!(given.bytes > 0 && given.address.is_multiple_of(given.align));
        }
        // SAFETY: live handles, each destroyed once.
        assert_eq!(unsafe { pd::dealloc_pd(home) }, libc::EBUSY);
        // SAFETY: as above.
        assert_eq!(unsafe { qp::destroy_qp(queue_pair) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { wq::destroy_wq(wq) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { cq::destroy_cq(cq.cast()) }, 0);
        assert_eq!(heap.outstanding(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { pd::dealloc_pd(home) }, 0);
    }
}

#[test]
fn resizing_takes_new_memory_and_gives_the_old_back() {
    let raw = Raw::new();
    let heap = Heap::new(Answer::Memory);
    let cq = create_cq(&raw, parent(&raw, null_mut(), &heap));
    let resize = |entries| {
        // SAFETY: a live queue.
        unsafe { cq::resize_cq(cq.cast(), entries) }
    };
    assert_eq!(resize(64), 0);
    assert_eq!(heap.outstanding(), 2, "a ring and its doorbell");
    *heap.answer.lock().unwrap() = Answer::Null;
    assert_eq!(resize(128), libc::ENOMEM);
    assert_eq!(heap.outstanding(), 2);
    // SAFETY: a live queue.
    assert_eq!(unsafe { (*cq).cqe }, 64);
}

#[test]
fn a_refusal_is_enomem_and_leaves_nothing_behind() {
    for answer in [Answer::Null, Answer::NullToTheSecond] {
        let raw = Raw::new();
        let heap = Heap::new(answer);
        let home = parent(&raw, null_mut(), &heap);
        assert!(create_cq(&raw, home).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        assert_eq!(heap.outstanding(), 0);
        // SAFETY: a live handle that nothing uses.
        assert_eq!(unsafe { pd::dealloc_pd(home) }, 0);
    }
}

#[test]
fn default_memory_is_the_providers_to_free() {
    let raw = Raw::new();
    let heap = Heap::new(Answer::Default);
    let home = parent(&raw, null_mut(), &heap);
    let cq = create_cq(&raw, home);
    assert!(!cq.is_null());
    assert_eq!((heap.resources().len(), heap.outstanding()), (2, 0));
    // SAFETY: a live handle; `free` would fail on memory that it does not know.
    assert_eq!(unsafe { cq::destroy_cq(cq.cast()) }, 0);
}

#[test]
fn a_domain_is_in_use_by_all_that_stands_on_it() {
    let raw = Raw::new();
    let heap = Heap::new(Answer::Memory);
    let td = thread_domain(&raw);
    let home = parent(&raw, td, &heap);
    // SAFETY: live handles; refusals leave them alive.
    assert_eq!(unsafe { pd::dealloc_td(td) }, libc::EBUSY);
    // SAFETY: as above.
    assert_eq!(unsafe { pd::dealloc_pd(raw.pd) }, libc::EBUSY);
    // SAFETY: live handles, destroyed once.
    assert_eq!(unsafe { pd::dealloc_pd(home) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { pd::dealloc_td(td) }, 0);
}

#[test]
fn a_parent_domain_over_another_stands_on_its_protection_domain() {
    let raw = Raw::new();
    let heap = Heap::new(Answer::Memory);
    let between = parent(&raw, null_mut(), &heap);
    let attr = ibv_parent_domain_init_attr { pd: between, ..no_allocator() };
    // SAFETY: a live context and a whole struct.
    let nested = unsafe { pd::alloc_parent_domain(raw.context, &mut { attr }) };
    assert!(!nested.is_null(), "errno {}", errno());
    // SAFETY: live handles, destroyed once; refusals leave them alive.
    assert_eq!(unsafe { pd::dealloc_pd(between) }, 0, "the new one does not stand on it");
    // SAFETY: as above.
    assert_eq!(unsafe { pd::dealloc_pd(raw.pd) }, libc::EBUSY);
    // SAFETY: as above.
    assert_eq!(unsafe { pd::dealloc_pd(nested) }, 0);
}

#[test]
fn memory_of_a_confidential_guest_may_be_allowed_to_be_shared() {
    let raw = Raw::with_personality(softnic::Personality::Mlx5);
    let parent = |comp_mask| {
        let attr = ibv_parent_domain_init_attr { pd: raw.pd, comp_mask, ..no_allocator() };
        // SAFETY: a live context and a whole struct.
        unsafe { pd::alloc_parent_domain(raw.context, &mut { attr }) }
    };
    assert!(!parent(1 << 2).is_null(), "ALLOW_CC_UNPROTECTED_ALLOC, errno {}", errno());
    assert!(parent(1 << 3).is_null());
    assert_eq!(errno(), libc::EINVAL);
}

fn no_allocator() -> ibv_parent_domain_init_attr {
    ibv_parent_domain_init_attr {
        pd: null_mut(),
        td: null_mut(),
        comp_mask: 0,
        alloc: None,
        free: None,
        pd_context: null_mut(),
    }
}

#[test]
fn regions_of_a_parent_domain_serve_the_queues_of_its_base() {
    let raw = Raw::new();
    let heap = Heap::new(Answer::Memory);
    let home = parent(&raw, null_mut(), &heap);
    let memory = super::Memory::new(home, 2048, LOCAL_WRITE);
    raw.post_receive(1, &mut [memory.element(0, 2048)]);
    raw.deliver([udp(3)]);
    assert_eq!(raw.poll()[0].status, 0);
    assert_eq!(heap.resources(), [] as [u64; 0], "packet memory is the application's own");
    // SAFETY: a live handle.
    assert_eq!(unsafe { pd::dealloc_pd(home) }, libc::EBUSY);
}

#[test]
fn mlx4_has_no_thread_and_no_parent_domains() {
    let raw = Raw::with_personality(Personality::Mlx4);
    assert!(thread_domain(&raw).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let attr = ibv_parent_domain_init_attr { pd: raw.pd, ..no_allocator() };
    // SAFETY: a live context and a whole struct.
    assert!(unsafe { pd::alloc_parent_domain(raw.context, &mut { attr }) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
}

fn rereg(mr: *mut ibv_mr, flags: u32, pd: *mut ibv_pd, memory: &super::Memory, access: u32) -> i32 {
    let address = memory.bytes.as_ptr().cast_mut().cast();
    // SAFETY: a live region, and memory that is never freed.
    unsafe { ibv_rereg_mr(mr, flags as i32, pd, address, memory.bytes.len(), access as i32) }
}

#[test]
fn a_region_moves_under_its_key() {
    let raw = Raw::new();
    let (old, new) = (raw.register(2048, LOCAL_WRITE), raw.register(4096, LOCAL_WRITE));
    assert_eq!(rereg(old.mr, IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), &new, 0), 0);
    // SAFETY: a live region.
    let moved = unsafe { *old.mr };
    assert_eq!((moved.addr.addr() as u64, moved.length), (new.address(), 4096));
    let mut there = new.element(100, 2048);
    there.lkey = old.key();
    raw.post_receive(1, &mut [there]);
    raw.deliver([udp(9)]);
    assert_eq!(raw.poll()[0].status, 0);
    assert_eq!(new.read(100, udp(9).len()), udp(9));
    raw.post_receive(2, &mut [old.element(0, 2048)]);
    raw.deliver([udp(9)]);
    let refused = ibverbs_sys::ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    assert_eq!(raw.poll()[0].status, refused, "the old place is no more the device's");
}

#[test]
fn a_region_changes_its_access_and_its_domain() {
    let raw = Raw::new();
    // SAFETY: a live context.
    let other = unsafe { ibverbs_sys::ibv_alloc_pd(raw.context) };
    let memory = raw.register(2048, 0);
    assert_eq!(rereg(memory.mr, IBV_REREG_MR_CHANGE_ACCESS, null_mut(), &memory, LOCAL_WRITE), 0);
    raw.post_receive(1, &mut [memory.element(0, 2048)]);
    raw.deliver([udp(1)]);
    assert_eq!(raw.poll()[0].status, 0, "writable now");
    assert_eq!(rereg(memory.mr, IBV_REREG_MR_CHANGE_PD, other, &memory, 0), 0);
    // SAFETY: a live handle.
    assert_eq!(unsafe { pd::dealloc_pd(other) }, libc::EBUSY, "the region is its user now");
    raw.post_receive(2, &mut [memory.element(0, 2048)]);
    raw.deliver([udp(1)]);
    assert_ne!(raw.poll()[0].status, 0, "another domain's");
    // SAFETY: live handles, destroyed once.
    assert_eq!(unsafe { ibverbs_sys::ibv_dereg_mr(memory.mr) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { pd::dealloc_pd(other) }, 0);
}

#[test]
fn a_change_that_is_refused_leaves_the_region_as_it_was() {
    let raw = Raw::new();
    let memory = raw.register(2048, LOCAL_WRITE);
    let remote_write = 2;
    let all = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS;
    let elsewhere = raw.register(64, LOCAL_WRITE);
    let refuse = |flags: u32, pd, bytes: usize, access: u32| {
        let address = elsewhere.bytes.as_ptr().cast_mut().cast();
        // SAFETY: a live region; the address is only compared.
        unsafe { mr::rereg_mr(memory.mr.cast(), flags as i32, pd, address, bytes, access as i32) }
    };
    assert_eq!(refuse(0, null_mut(), 64, 0), libc::EINVAL);
    assert_eq!(refuse(8, null_mut(), 64, 0), libc::EINVAL);
    assert_eq!(refuse(all, null_mut(), 0, LOCAL_WRITE), libc::EINVAL);
    assert_eq!(refuse(all, null_mut(), usize::MAX, LOCAL_WRITE), libc::EFAULT);
    assert_eq!(refuse(all, null_mut(), 64, remote_write), libc::EINVAL);
    assert_eq!(refuse(all | IBV_REREG_MR_CHANGE_PD, null_mut(), 64, LOCAL_WRITE), libc::EINVAL);
    let foreign = Raw::new();
    assert_eq!(refuse(IBV_REREG_MR_CHANGE_PD, foreign.pd, 64, 0), libc::EINVAL);
    raw.post_receive(1, &mut [memory.element(0, 2048)]);
    raw.deliver([udp(1)]);
    assert_eq!(raw.poll()[0].status, 0);
}
