//! Completion queues beyond plain polling: channels and arming, moderation, resizing.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;

use ibverbs_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_cq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_moderate_cq, ibv_modify_cq_attr,
};
use softnic::Personality;
use softnic::objects::channels;

use super::super::{cq, qp};
use super::refusals::errno;
use super::{LOCAL_WRITE, Memory, Raw, udp};

/// The context of the queue of [`Waiter`].
const WORD: *mut c_void = std::ptr::without_provenance_mut(0x77);

/// A device whose queue reports to a channel, and memory to receive in.
struct Waiter {
    raw: Raw,
    channel: *mut ibv_comp_channel,
    memory: Memory,
    posted: u64,
}

impl Waiter {
    fn new(entries: c_int) -> Self {
        Self::on(Personality::Ideal, entries)
    }

    fn on(personality: Personality, entries: c_int) -> Self {
        let mut channel = null_mut();
        let raw = Raw::build(personality, |context| {
            channel = new_channel(context);
            // SAFETY: a live context and channel.
            unsafe { ibv_create_cq(context, entries, WORD, channel, 0) }
        });
        let memory = raw.register(4096, LOCAL_WRITE);
        Self { raw, channel, memory, posted: 0 }
    }

    fn arm(&self, solicited_only: bool) {
        // SAFETY: a live queue.
        assert_eq!(unsafe { cq::req_notify_cq(self.raw.cq, c_int::from(solicited_only)) }, 0);
    }

    /// Receives so many frames, each into a buffer of so many bytes.
    fn receive(&mut self, frames: usize, buffer_bytes: u32) {
        for _ in 0..frames {
            let mut elements = [self.memory.element(0, buffer_bytes)];
            assert_eq!(self.raw.post_receive(self.posted, &mut elements).0, 0);
            self.posted += 1;
        }
        self.raw.deliver((0..frames).map(udp));
    }

    /// The next event, not acknowledged; `None` if there is none now.
    fn read(&self) -> Option<(*mut ibv_cq, *mut c_void)> {
        let (mut cq, mut word) = (null_mut(), null_mut());
        // SAFETY: a live channel.
        let got = unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut word) };
        (got == 0).then_some((cq, word))
    }

    /// How many events there are now, all acknowledged.
    fn events(&self) -> u32 {
        let mut events = 0;
        while let Some(event) = self.read() {
            assert_eq!(event, (self.raw.cq, WORD));
            // SAFETY: an event of just now, of a queue that lives.
            unsafe { ibv_ack_cq_events(event.0, 1) };
            events += 1;
        }
        events
    }

    fn moderate(&self, cq_count: u16, cq_period: u16) -> c_int {
        modify(self.raw.cq, 1, ibv_moderate_cq { cq_count, cq_period })
    }

    fn ids(&self) -> Vec<u64> {
        self.raw.poll().iter().map(|completion| completion.wr_id).collect()
    }

    /// Destroys what uses the queue, so that it can be destroyed itself.
    fn leave_queue_alone(&self) {
        // SAFETY: live handles, not used again.
        assert_eq!(unsafe { super::super::flow::destroy_flow(self.raw.flow) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { qp::destroy_qp(self.raw.qp) }, 0);
    }
}

fn new_channel(context: *mut ibverbs_sys::ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: a live context.
    let channel = unsafe { cq::create_comp_channel(context) };
    assert!(!channel.is_null());
    // SAFETY: a live channel.
    let fd = unsafe { (*channel).fd };
    // SAFETY: the channel keeps its descriptor open.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::io::ioctl_fionbio(fd, true).unwrap();
    channel
}

#[test]
fn mlx5_announces_what_was_not_polled() {
    let mut it = Waiter::on(Personality::Mlx5, 16);
    it.receive(2, 1024);
    assert_eq!(it.events(), 0);
    it.arm(true);
    assert_eq!(it.events(), 0, "no failure");
    it.arm(false);
    assert_eq!(it.events(), 1);
    it.arm(false);
    assert_eq!(it.events(), 1, "still not polled");
    assert_eq!(it.ids(), [0, 1]);
    it.arm(false);
    assert_eq!(it.events(), 0);
    it.receive(1, 1024);
    assert_eq!((it.events(), it.ids()), (1, vec![2]));
    let mut ideal = Waiter::new(16);
    ideal.receive(1, 1024);
    ideal.arm(false);
    assert_eq!(ideal.events(), 0);
}

#[test]
fn mlx5_holds_one_completion_more_than_it_reports() {
    let mut it = Waiter::on(Personality::Mlx5, 4);
    // SAFETY: a live queue.
    assert_eq!(unsafe { (*it.raw.cq).cqe }, 7);
    it.receive(8, 1024);
    assert_eq!(it.ids().len(), 8);
    it.receive(9, 1024);
    assert_eq!(it.ids().len(), 8, "one too many");
}

pub(super) fn modify(cq: *mut ibv_cq, attr_mask: u32, moderate: ibv_moderate_cq) -> c_int {
    let mut attr = ibv_modify_cq_attr { attr_mask, moderate };
    // SAFETY: a live queue and a whole struct.
    unsafe { cq::modify_cq(cq, &raw mut attr) }
}

pub(super) fn create_ex(
    raw: &Raw,
    change: impl FnOnce(&mut ibv_cq_init_attr_ex),
) -> Result<*mut ibv_cq_ex, i32> {
    let mut attr = ibv_cq_init_attr_ex { cqe: 64, ..ibv_cq_init_attr_ex::default() };
    change(&mut attr);
    // SAFETY: a live context and a whole struct.
    let cq = unsafe { cq::create_cq_ex(raw.context, &raw mut attr) };
    if cq.is_null() { Err(errno()) } else { Ok(cq) }
}

pub(super) fn resize(cq: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: a live queue.
    unsafe { cq::resize_cq(cq, entries) }
}

pub(super) fn size(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live queue.
    unsafe { (*cq).cqe }
}

#[test]
fn an_armed_queue_raises_one_event_and_is_armed_no_more() {
    let mut waiter = Waiter::new(64);
    waiter.receive(1, 2048);
    assert_eq!(waiter.events(), 0, "not armed");
    waiter.raw.poll();
    waiter.arm(false);
    waiter.receive(3, 2048);
    assert_eq!(waiter.events(), 1);
    waiter.receive(1, 2048);
    assert_eq!(waiter.events(), 0, "one shot");
}

#[test]
fn poll_arm_poll_loses_nothing() {
    let mut waiter = Waiter::new(64);
    waiter.receive(2, 2048);
    waiter.arm(false);
    assert_eq!(waiter.events(), 0, "what is queued already raises none");
    assert_eq!(waiter.ids(), [0, 1], "so whoever arms polls again");
    waiter.receive(1, 2048);
    assert_eq!(waiter.events(), 1, "and what comes after that does");
    assert_eq!(waiter.ids(), [2]);
}

#[test]
fn only_failed_completions_are_solicited() {
    let mut waiter = Waiter::new(64);
    waiter.arm(true);
    waiter.receive(3, 2048);
    assert_eq!(waiter.events(), 0);
    waiter.receive(1, 8);
    assert_eq!(waiter.events(), 1, "too short a buffer");

    let mut waiter = Waiter::new(64);
    waiter.arm(false);
    waiter.arm(true);
    waiter.receive(1, 2048);
    assert_eq!(waiter.events(), 1, "the wish for any outweighs the one for a solicited one");
}

#[test]
fn flushed_requests_wake_too() {
    let waiter = Waiter::new(64);
    waiter.raw.post_receive(0, &mut [waiter.memory.element(0, 64)]);
    waiter.arm(true);
    let state = ibverbs_sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
    assert_eq!(waiter.raw.modify(ibverbs_sys::ibv_qp_state::IBV_QPS_ERR, state), 0);
    assert_eq!(waiter.events(), 1);
    assert_eq!(waiter.ids(), [0]);
}

#[test]
fn an_unread_event_goes_with_its_queue() {
    let mut waiter = Waiter::new(64);
    waiter.arm(false);
    waiter.receive(1, 2048);
    waiter.leave_queue_alone();
    // SAFETY: a live handle, not used again.
    assert_eq!(unsafe { ibv_destroy_cq(waiter.raw.cq) }, 0);
    assert!(waiter.read().is_none());
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_destroy_comp_channel(waiter.channel) }, 0);
}

#[test]
fn destroying_waits_for_the_acknowledgement_of_what_was_read() {
    let mut waiter = Waiter::new(64);
    waiter.arm(false);
    waiter.receive(1, 2048);
    let (cq, _) = waiter.read().expect("an event");
    waiter.leave_queue_alone();
    let (done, destroyed) = mpsc::channel();
    let address = cq.expose_provenance();
    let thread = std::thread::spawn(move || {
        let cq: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: a live handle, used by the event only until it is acknowledged.
        done.send(unsafe { ibv_destroy_cq(cq) }).unwrap();
    });
    assert!(destroyed.recv_timeout(Duration::from_millis(50)).is_err(), "destroyed under an event");
    // SAFETY: the event of above; its queue still lives.
    unsafe { ibv_ack_cq_events(cq, 1) };
    assert_eq!(destroyed.recv_timeout(Duration::from_secs(10)), Ok(0));
    thread.join().unwrap();
}

#[test]
fn a_channel_outlives_its_queues_and_is_unknown_afterwards() {
    let waiter = Waiter::new(64);
    // SAFETY: a live channel.
    assert_eq!(unsafe { ibv_destroy_comp_channel(waiter.channel) }, libc::EBUSY);
    let other = new_channel(waiter.raw.context);
    // SAFETY: a live channel without queues.
    assert_eq!(unsafe { ibv_destroy_comp_channel(other) }, 0);
    assert_eq!(create_ex(&waiter.raw, |attr| attr.channel = other).err(), Some(libc::EINVAL));
    let foreign = Waiter::new(64);
    assert_eq!(create_ex(&waiter.raw, |attr| attr.channel = foreign.channel).err(), Some(libc::EINVAL));
    assert!(create_ex(&waiter.raw, |attr| attr.channel = waiter.channel).is_ok());
    for _ in 0..100 {
        let channel = new_channel(waiter.raw.context);
        // SAFETY: a live channel without queues.
        assert_eq!(unsafe { ibv_destroy_comp_channel(channel) }, 0);
        let known = channels::count(&waiter.raw.nic.nic().control());
        assert!(known <= 3, "{known} places for channels that are gone");
    }
}

#[test]
fn a_full_channel_gets_its_event_once_there_is_room() {
    let mut waiter = Waiter::new(64);
    let rounds = 10_000;
    for _ in 0..rounds {
        waiter.arm(false);
        waiter.receive(1, 2048);
        waiter.raw.poll();
    }
    assert!((1..rounds).contains(&waiter.events()), "the channel has never been full");
    waiter.raw.nic.pump(1);
    assert_eq!(waiter.events(), 1, "the event was kept");
    assert_eq!(waiter.events(), 0);
}

#[test]
fn moderation_counts_completions() {
    let mut waiter = Waiter::new(64);
    assert_eq!(waiter.moderate(3, 0), 0);
    waiter.arm(false);
    waiter.receive(2, 2048);
    waiter.raw.nic.pump(1);
    assert_eq!(waiter.events(), 0);
    waiter.receive(1, 2048);
    assert_eq!(waiter.events(), 1);
    waiter.arm(false);
    waiter.receive(2, 2048);
    assert_eq!(waiter.events(), 0, "it counts anew for each event");
    assert_eq!(waiter.moderate(0, 0), 0);
    assert_eq!(waiter.events(), 1, "what waits is enough without moderation");
}

#[test]
fn moderation_lets_no_completion_wait_longer_than_its_period() {
    let mut waiter = Waiter::new(64);
    assert_eq!(waiter.moderate(1000, 20_000), 0);
    waiter.arm(false);
    let start = std::time::Instant::now();
    waiter.receive(1, 2048);
    let early = waiter.events();
    if start.elapsed() < Duration::from_millis(20) {
        assert_eq!(early, 0);
    }
    std::thread::sleep(Duration::from_millis(21));
    waiter.raw.nic.pump(1);
    assert_eq!(early + waiter.events(), 1);
}

#[test]
fn moderation_has_the_limits_of_the_device() {
    let waiter = Waiter::new(64);
    let nothing = ibv_moderate_cq { cq_count: 0, cq_period: 0 };
    assert_eq!(modify(waiter.raw.cq, 0, nothing), libc::EINVAL);
    assert_eq!(modify(waiter.raw.cq, 3, nothing), libc::EOPNOTSUPP);
    assert_eq!(waiter.moderate(u16::MAX, u16::MAX), 0);
    let mlx5 = Raw::with_personality(Personality::Mlx5);
    assert_eq!(modify(mlx5.cq, 1, ibv_moderate_cq { cq_count: u16::MAX, cq_period: 4095 }), 0);
    assert_eq!(modify(mlx5.cq, 1, ibv_moderate_cq { cq_count: 0, cq_period: 4096 }), libc::EINVAL);
}

#[test]
fn a_queue_grows_and_shrinks_with_what_is_in_it() {
    let mut waiter = Waiter::new(8);
    waiter.receive(3, 2048);
    assert_eq!(waiter.raw.poll().len(), 3, "so that the indices are not at the start");
    waiter.receive(6, 2048);
    assert_eq!(resize(waiter.raw.cq, 32), 0);
    assert_eq!(size(waiter.raw.cq), 32);
    waiter.receive(10, 2048);
    assert_eq!(resize(waiter.raw.cq, 15), libc::EINVAL, "16 are queued");
    assert_eq!(size(waiter.raw.cq), 32);
    assert_eq!(resize(waiter.raw.cq, 16), 0);
    assert_eq!(size(waiter.raw.cq), 16);
    assert_eq!(waiter.ids(), (3..19).collect::<Vec<_>>());
    waiter.receive(16, 2048);
    assert_eq!(waiter.raw.stats().cq_overrun, 0);
    assert_eq!(waiter.ids(), (19..35).collect::<Vec<_>>());
    assert_eq!(resize(waiter.raw.cq, 1), 0);
    let most = Personality::Ideal.object_rules().completion.max_entries;
    for entries in [0, -1, most as c_int + 1, c_int::MAX] {
        assert_eq!(resize(waiter.raw.cq, entries), libc::EINVAL, "{entries}");
    }
}

#[test]
fn a_resized_queue_is_still_armed() {
    let mut waiter = Waiter::new(8);
    waiter.receive(2, 2048);
    waiter.arm(false);
    assert_eq!(resize(waiter.raw.cq, 64), 0);
    assert_eq!(waiter.events(), 0, "what was moved is not new");
    waiter.receive(1, 2048);
    assert_eq!(waiter.events(), 1);
    assert_eq!(waiter.ids(), [0, 1, 2]);
}

#[test]
fn a_queue_that_overran_cannot_be_resized() {
    let mut waiter = Waiter::new(4);
    waiter.receive(5, 2048);
    assert_eq!(waiter.raw.stats().cq_overrun, 1);
    assert_eq!(resize(waiter.raw.cq, 64), libc::EINVAL);
    assert_eq!(waiter.ids().len(), 4);
}
