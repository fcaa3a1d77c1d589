//! The provider as a C program meets it: raw handles through the real libibverbs, and arguments that no safe
//! wrapper would pass.

mod completion;
mod completion_kinds;
mod datagrams;
mod destroyed;
mod domains;
mod events;
mod extended;
mod features;
#[cfg(debug_assertions)]
mod paths;
mod receiving;
mod refusals;
mod segments;
mod sending;
mod work_queues;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use ibverbs_sys::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_QP_INIT_ATTR_PD, ibv_access_flags, ibv_alloc_pd, ibv_async_event,
    ibv_context, ibv_cq, ibv_create_cq, ibv_create_qp, ibv_flow, ibv_flow_attr, ibv_free_device_list,
    ibv_get_async_event, ibv_modify_qp, ibv_mr, ibv_open_device, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
    ibv_recv_wr, ibv_reg_mr, ibv_sge,
};
use packet::MacAddr;
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNicConfig};
use verbs::Provider as _;
use wire::{Burst, RxFrame, TransmitError, Wire};

use crate::SoftNic;
use crate::abi::WorkCompletion;

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const MTU_BYTES: u32 = 1500;

/// The first octet of the source that the wire of the tests refuses.
const REFUSED_STATION: u8 = 0xee;

type Shared<T> = Arc<Mutex<T>>;

/// A wire whose other end is the test.
struct TestWire {
    inbox: Shared<VecDeque<Vec<u8>>>,
    current: Vec<Vec<u8>>,
    sent: Shared<Vec<Vec<u8>>>,
}

impl Wire for TestWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut inbox = self.inbox.lock().unwrap();
        let count = inbox.len().min(burst.capacity_left());
        self.current = inbox.drain(..count).collect();
        for frame in &self.current {
            assert!(burst.push(RxFrame::new(frame)));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        if frame.get(6) == Some(&REFUSED_STATION) {
            return Err(TransmitError::TooLong);
        }
        self.sent.lock().unwrap().push(frame.to_vec());
        Ok(())
    }

    fn describe(&self) -> String {
        "test".to_owned()
    }

    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1])
    }

    fn mtu_bytes(&self) -> u32 {
        MTU_BYTES
    }
}

/// A soft NIC with a context, a domain and a plain queue pair in RTS that gets every frame. Nothing is
/// destroyed one by one: closing the context must do, as for a program that exits.
struct Raw {
    nic: SoftNic,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    flow: *mut ibv_flow,
    inbox: Shared<VecDeque<Vec<u8>>>,
    sent: Shared<Vec<Vec<u8>>>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.close();
    }
}

impl Raw {
    fn new() -> Self {
        Self::with_cq(64)
    }

    fn with_cq(entries: c_int) -> Self {
        Self::build(Personality::Ideal, plain_cq(entries))
    }

    fn with_personality(personality: Personality) -> Self {
        Self::build(personality, plain_cq(64))
    }

    /// With the completion queue that `make_cq` makes of the context.
    fn build(personality: Personality, make_cq: impl FnOnce(*mut ibv_context) -> *mut ibv_cq) -> Self {
        let (inbox, sent) = (Shared::default(), Shared::default());
        let wire = TestWire { inbox: Arc::clone(&inbox), current: Vec::new(), sent: Arc::clone(&sent) };
        let nic = SoftNic::create(SoftNicConfig {
            name: "raw0".to_owned(),
            personality,
            ports: vec![PortConfig { wire: Box::new(wire), mtu_bytes: MTU_BYTES }],
            drive: Drive::Manual,
        })
        .unwrap();
        let mut count = 0;
        let list = nic.device_list(&mut count);
        assert_eq!(count, 1);
        // SAFETY: a list of one device.
        let device = unsafe { *list };
        // SAFETY: the list's device.
        let context = unsafe { ibv_open_device(device) };
        assert!(!context.is_null());
        // SAFETY: the list of above; the context holds the device.
        unsafe { ibv_free_device_list(list) };
        // SAFETY: a live context.
        let pd = unsafe { ibv_alloc_pd(context) };
        let cq = make_cq(context);
        assert!(!pd.is_null() && !cq.is_null());
        let qp = create_qp(pd, cq);
        let mut raw = Self { nic, context, pd, cq, qp, flow: std::ptr::null_mut(), inbox, sent };
        bring_up(raw.qp);
        raw.flow = default_flow(raw.qp);
        raw
    }

    /// Closes the context with everything in it.
    fn close(&mut self) {
        let context = std::mem::replace(&mut self.context, std::ptr::null_mut());
        if !context.is_null() {
            // SAFETY: opened in `new`, closed once.
            unsafe { ibverbs_sys::ibv_close_device(context) };
        }
    }

    fn modify(&self, state: ibv_qp_state::Type, mask: u32) -> c_int {
        modify(self.qp, state, mask)
    }

    /// Registers memory that outlives the test.
    fn register(&self, bytes: usize, access: u32) -> Memory {
        Memory::new(self.pd, bytes, access)
    }

    /// Posts one receive; returns the errno, and whether the request was named as the bad one.
    fn post_receive(&self, wr_id: u64, elements: &mut [ibv_sge]) -> (c_int, bool) {
        let mut wr = ibv_recv_wr {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: elements.as_mut_ptr(),
            num_sge: elements.len() as c_int,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live context.
        let post = unsafe { (*self.context).ops.post_recv }.unwrap();
        // SAFETY: a live queue pair and a chain of one request.
        let errno = unsafe { post(self.qp, &raw mut wr, &raw mut bad) };
        (errno, bad == &raw mut wr)
    }

    fn poll(&self) -> Vec<WorkCompletion> {
        let mut completions = [WorkCompletion::default(); 128];
        // SAFETY: a live context.
        let poll = unsafe { (*self.context).ops.poll_cq }.unwrap();
        // SAFETY: a live queue and an array of 128.
        let count = unsafe { poll(self.cq, 128, completions.as_mut_ptr().cast()) };
        completions[..usize::try_from(count).unwrap()].to_vec()
    }

    /// Hands frames to the device and lets it work.
    fn deliver(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.inbox.lock().unwrap().extend(frames);
        while self.nic.pump(64) > 0 {}
    }

    /// Lets the device work; returns the frames that it has sent since the last call.
    fn sent(&self) -> Vec<Vec<u8>> {
        self.deliver([]);
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    fn stats(&self) -> PortStats {
        let stats = self.nic.port_stats(1);
        assert_eq!(stats.rx_frames, stats.dispositions(), "{stats:?}");
        stats
    }

    /// The next asynchronous event, not acknowledged; `None` if there is none now.
    fn unacknowledged(&self) -> Option<ibv_async_event> {
        // SAFETY: a live context.
        let fd = unsafe { (*self.context).async_fd };
        // SAFETY: the context keeps its descriptor open.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        rustix::io::ioctl_fionbio(fd, true).unwrap();
        let element = ibverbs_sys::ibv_async_event__bindgen_ty_1 { port_num: 0 };
        let mut event = ibv_async_event { element, event_type: 0 };
        // SAFETY: a live context and a whole struct.
        let status = unsafe { ibv_get_async_event(self.context, &raw mut event) };
        (status == 0).then_some(event)
    }

    /// The next asynchronous event's type; there must be one.
    fn event(&self) -> u32 {
        let mut event = self.unacknowledged().expect("an event waits");
        // SAFETY: the event of just now; its object still lives.
        unsafe { ibverbs_sys::ibv_ack_async_event(&raw mut event) };
        event.event_type
    }
}

fn plain_cq(entries: c_int) -> impl FnOnce(*mut ibv_context) -> *mut ibv_cq {
    move |context| {
        // SAFETY: a live context, no channel.
        unsafe { ibv_create_cq(context, entries, std::ptr::null_mut(), std::ptr::null_mut(), 0) }
    }
}

fn modify(qp: *mut ibv_qp, state: ibv_qp_state::Type, mask: u32) -> c_int {
    let mut attr = ibv_qp_attr { qp_state: state, port_num: 1, ..ibv_qp_attr::default() };
    // SAFETY: a live queue pair and a whole struct.
    unsafe { ibv_modify_qp(qp, &raw mut attr, mask as c_int) }
}

/// From RESET to RTS.
fn bring_up(qp: *mut ibv_qp) {
    for (state, mask) in [
        (ibv_qp_state::IBV_QPS_INIT, ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_PORT.0),
        (ibv_qp_state::IBV_QPS_RTR, ibv_qp_attr_mask::IBV_QP_STATE.0),
        (ibv_qp_state::IBV_QPS_RTS, ibv_qp_attr_mask::IBV_QP_STATE.0),
    ] {
        assert_eq!(modify(qp, state, mask), 0, "to state {state}");
    }
}

/// Gives a queue pair every frame that no other flow wants.
fn flow_attr() -> ibv_flow_attr {
    ibv_flow_attr {
        type_: IBV_FLOW_ATTR_ALL_DEFAULT,
        size: size_of::<ibv_flow_attr>() as u16,
        port: 1,
        ..ibv_flow_attr::default()
    }
}

/// A flow for everything.
fn default_flow(qp: *mut ibv_qp) -> *mut ibv_flow {
    let mut attr = flow_attr();
    // SAFETY: a live queue pair and a block of its own size.
    let flow = unsafe { super::flow::create_flow(qp, &raw mut attr) };
    assert!(!flow.is_null());
    flow
}

/// Makes a raw packet queue pair with extended attributes; the errno if it is refused.
fn create_qp_ex(raw: &Raw, change: impl FnOnce(&mut ibv_qp_init_attr_ex)) -> Result<*mut ibv_qp, c_int> {
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: raw.cq,
        recv_cq: raw.cq,
        cap: ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 128,
        },
        qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: raw.pd,
        ..ibv_qp_init_attr_ex::default()
    };
    change(&mut attr);
    // SAFETY: a live context and a whole struct.
    let qp = unsafe { super::qp_create::create_qp_ex(raw.context, &raw mut attr) };
    if qp.is_null() { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(qp) }
}

fn create_qp(pd: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        },
        qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
        sq_sig_all: 0,
    };
    // SAFETY: a live domain and a whole struct.
    let qp = unsafe { ibv_create_qp(pd, &raw mut init) };
    assert!(!qp.is_null());
    qp
}

/// Registered memory, never freed: the device may keep writing to it until its context is closed.
struct Memory {
    mr: *mut ibv_mr,
    bytes: &'static [std::cell::UnsafeCell<u8>],
}

impl Memory {
    fn new(pd: *mut ibv_pd, bytes: usize, access: u32) -> Self {
        let memory: Vec<_> = (0..bytes).map(|_| std::cell::UnsafeCell::new(0u8)).collect();
        let bytes: &'static [std::cell::UnsafeCell<u8>] = memory.leak();
        // SAFETY: leaked memory.
        let mr = unsafe { ibv_reg_mr(pd, bytes.as_ptr().cast_mut().cast(), bytes.len(), access as c_int) };
        assert!(!mr.is_null());
        Self { mr, bytes }
    }

    fn key(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.mr).lkey }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }

    fn element(&self, offset: u64, bytes: u32) -> ibv_sge {
        ibv_sge { addr: self.address() + offset, length: bytes, lkey: self.key() }
    }

    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: the device is not working while a test reads.
        self.bytes[offset..offset + bytes].iter().map(|byte| unsafe { *byte.get() }).collect()
    }

    fn write(&self, offset: usize, from: &[u8]) {
        for (byte, from) in self.bytes[offset..].iter().zip(from) {
            // SAFETY: the device is not working while a test writes.
            unsafe { *byte.get() = *from };
        }
    }
}

fn udp(payload: usize) -> Vec<u8> {
    use std::net::Ipv4Addr;
    packet::build::FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1))
        .udp(4000, 53)
        .payload(&(0..payload).map(|index| index as u8).collect::<Vec<_>>())
        .build()
}

#[test]
fn every_op_has_its_place_in_every_release() {
    use crate::abi::{NEWEST_RELEASE, OLDEST_RELEASE, op_names};
    for release in OLDEST_RELEASE..=NEWEST_RELEASE {
        let names = op_names(release);
        for (name, _) in super::OPS {
            assert!(names.contains(name), "{name} in release {release}");
        }
    }
}
