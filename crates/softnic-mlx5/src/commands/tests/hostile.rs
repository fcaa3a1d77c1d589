//! A client that writes nonsense: it is refused, or its own queue fails, and another client's goes on.

use softnic::errno::{EFAULT, EINVAL};

use super::*;

const GOOD: u8 = 2;
const ERROR: u8 = 14;
const PROTECTION: u8 = 4;

/// Two queues with flows of their own, for UDP to ports 1 and 2.
struct Two {
    rig: Rig,
    key: u32,
    frames: u64,
    queues: [(Completions, WorkQueue); 2],
}

impl Two {
    fn new() -> Self {
        Self::on(Rig::new(), -1)
    }

    /// The first one with a completion channel, if there is one.
    fn on(mut rig: Rig, channel: i32) -> Self {
        let domain = rig.domain();
        let frames = rig.arena.take(8_192);
        let key = rig.register(domain, frames, 8_192);
        let queues = [1_u16, 2].map(|port| {
            let cq = rig.completion_queue(15, if port == 1 { channel } else { -1 });
            let wq = rig.work_queue(domain, cq.handle, 8);
            let qp = rig.queue_pair(domain, wq.handle);
            rig.flow(qp, port, u32::from(port)).unwrap();
            (cq, wq)
        });
        Self { rig, key, frames, queues }
    }

    /// Delivers a frame to each, and expects that the second one receives it.
    fn neighbour_receives(&mut self) -> Vec<Completed> {
        let (key, frames) = (self.key, self.frames);
        self.queues[1].1.post(&[(key, frames + 4_096, 2_048)]);
        self.rig.deliver([udp(1, 10), udp(2, 10)]);
        let completed = self.queues[1].0.poll_all();
        assert_eq!(completed.iter().map(|one| (one.opcode, one.tag)).collect::<Vec<_>>(), [(GOOD, 2)]);
        self.queues[0].0.poll_all()
    }

    fn failed(&self) -> bool {
        let mut events = std::iter::from_fn(|| self.rig.event());
        events.any(|(kind, token)| kind == ibverbs_sys::IBV_EVENT_WQ_FATAL && token == WQ_TOKEN)
    }
}

#[test]
fn requests_for_memory_of_others_fail_their_queue_alone() {
    let faulty: [(u32, u64, u32); 6] = [
        (0, 0x1000, 2_048),
        (0x100, 0, 2_048),
        (u32::MAX, 0, 2_048),
        (0x1_0001, u64::MAX, u32::MAX),
        (0x1_0001, 0, 0),
        (0x0001, 0, 2_048),
    ];
    for entry in faulty {
        let mut two = Two::new();
        two.queues[0].1.post(&[entry]);
        let (key, frames) = (two.key, two.frames);
        two.queues[0].1.post(&[(key, frames, 2_048)]);
        let completed = two.neighbour_receives();
        assert_eq!(
            (completed[0].opcode, completed[0].syndrome, completed[0].counter),
            (ERROR, PROTECTION, 0)
        );
        assert!(two.failed(), "{entry:?}");
        // What was posted behind it is flushed by the next pass at the latest.
        two.neighbour_receives();
        assert!(!two.failed(), "once");
    }
}

#[test]
fn a_region_is_not_written_beyond_its_end() {
    let mut two = Two::new();
    let (key, frames) = (two.key, two.frames);
    two.queues[0].1.post(&[(key, frames + 8_192 - 64, 128)]);
    let completed = two.neighbour_receives();
    assert_eq!((completed[0].opcode, completed[0].syndrome), (ERROR, PROTECTION));
}

#[test]
fn a_doorbell_beyond_the_queue_fails_it() {
    for counter in [9_u32, 0x7fff, 0x8000, 0xffff] {
        let mut two = Two::new();
        word(two.queues[0].1.doorbell).store(counter.to_be(), Ordering::Release);
        assert_eq!(two.neighbour_receives(), []);
        assert!(two.failed(), "{counter:#x}");
        assert_eq!(two.neighbour_receives(), []);
    }
}

#[test]
fn an_index_that_no_consumer_can_have_fails_the_completion_queue() {
    for index in [1_u32, 0x00ff_ff00, 0x0080_0000, u32::MAX] {
        let mut two = Two::new();
        let (key, frames) = (two.key, two.frames);
        two.queues[0].1.post(&[(key, frames, 2_048)]);
        word(two.queues[0].0.doorbell).store(index.to_be(), Ordering::Release);
        // The index is looked at when there seems to be no room; a full queue comes to that.
        for _ in 0..20 {
            two.queues[0].1.post(&[(key, frames, 2_048)]);
            two.rig.deliver([udp(1, 10)]);
        }
        let failed = (ibverbs_sys::IBV_EVENT_CQ_ERR, CQ_TOKEN);
        let events: Vec<_> = std::iter::from_fn(|| two.rig.event()).collect();
        assert!(events.contains(&failed), "{index:#x}: {events:?}");
        two.queues[0].0.next = 0;
        two.queues[1].1.post(&[(key, frames + 4_096, 2_048)]);
        two.rig.deliver([udp(2, 10)]);
        assert_eq!(two.queues[1].0.poll_all().len(), 1);
    }
}

#[test]
fn a_nonsensical_arm_word_raises_nothing_but_what_comes() {
    // Indices that no consumer can have reached, and bits without a meaning. One word asks for solicited
    // completions.
    for (word_of_client, expected) in
        [(0x0012_3456_u32, 1), (0x0080_0000, 1), (0xf000_0000, 1), (0x3fff_ffff, 0)]
    {
        let rig = Rig::new();
        let (channel, descriptor) = channel(&rig);
        let mut two = Two::on(rig, descriptor);
        word(two.queues[0].0.doorbell + 4).store(word_of_client.to_be(), Ordering::Release);
        two.rig.deliver([]);
        assert_eq!(events(&channel), 0, "{word_of_client:#x}: nothing was completed");
        let (key, frames) = (two.key, two.frames);
        for expected in [expected, 0] {
            two.queues[0].1.post(&[(key, frames, 2_048)]);
            assert_eq!(two.neighbour_receives().len(), 1);
            assert_eq!(events(&channel), expected, "{word_of_client:#x}");
        }
    }
}

#[test]
fn memory_that_is_not_the_clients_is_refused() {
    let mut rig = Rig::new();
    let domain = rig.domain();
    let cq = rig.completion_queue(7, -1);
    let (buffer, doorbell) = (rig.arena.take(4_096), rig.arena.take(8));
    let good = WorkQueue { buffer, doorbell, requests: 8, next: 0, handle: 0 };
    assert!(rig.create_work_queue(&good, domain, cq.handle).is_ok());
    let faults = [
        (WorkQueue { buffer: 0, ..good }, EINVAL),
        (WorkQueue { buffer: 1 << 62, ..good }, EFAULT),
        (WorkQueue { buffer: buffer + 4, ..good }, EINVAL),
        (WorkQueue { doorbell: doorbell + 2, ..good }, EINVAL),
        (WorkQueue { doorbell: 4_096, ..good }, EFAULT),
        (WorkQueue { requests: 0, ..good }, EINVAL),
        (WorkQueue { requests: 7, ..good }, EINVAL),
        (WorkQueue { requests: 1 << 16, ..good }, EINVAL),
        (WorkQueue { requests: 1 << 31, ..good }, EINVAL),
    ];
    for (queue, errno) in faults {
        assert_eq!(rig.create_work_queue(&queue, domain, cq.handle), Err(errno));
    }
    for (domain, cq) in [(domain + 1, cq.handle), (domain, cq.handle + 1), (u32::MAX, u32::MAX)] {
        assert_eq!(rig.create_work_queue(&good, domain, cq), Err(EINVAL));
    }
    let register = |start: u64, length: u64| {
        let core = bytes().u64(0).u64(start).u64(length).u64(start).u32(domain).u32(LOCAL_WRITE);
        rig.call(9, &core, &bytes(), (12, 0)).map(|_| ()).unwrap_err()
    };
    assert_eq!(register(4_096, 4_096), EFAULT);
    assert_eq!(register(buffer, 1 << 40), EFAULT);
    assert_eq!([register(buffer, 0), register(u64::MAX - 1, 8)], [EINVAL, EFAULT]);
}

#[test]
fn specs_that_do_not_fit_their_block_are_refused() {
    let mut rig = Rig::new();
    let domain = rig.domain();
    let cq = rig.completion_queue(7, -1);
    let wq = rig.work_queue(domain, cq.handle, 8);
    let qp = rig.queue_pair(domain, wq.handle);
    let create = |core: &Bytes| rig.call(EXTENDED | 50, core, &bytes(), (8, 0)).map(|_| ());
    assert_eq!(create(&flow(qp, &[spec_udp(1)])), Ok(()));
    let changed = |at: usize, value: u8| {
        let mut core = flow(qp, &[spec_udp(1)]);
        core.0[at] = value;
        core
    };
    // The block's size, the number of specs, a reserved field, and the spec's type, size and reserved field.
    for (at, value) in
        [(12, 15), (12, 17), (16, 0), (16, 2), (16, 255), (17, 1), (24, 0x77), (28, 0), (28, 200)]
    {
        assert!(create(&changed(at, value)).is_err(), "{value} at {at}");
    }
    assert_eq!(create(&changed(30, 1)), Err(EINVAL));
    assert_eq!(create(&changed(4, 99)), Err(EINVAL), "no such queue pair");
    let mut cut = flow(qp, &[spec_udp(1)]);
    cut.0.pop();
    assert_eq!(create(&cut), Err(EINVAL));
}

/// Every command with every length of its blocks, and with all bits set: an error or an object, never a
/// panic.
#[test]
fn blocks_of_any_length_are_answered() {
    let rig = Rig::new();
    for row in ROWS {
        for fill in [0_u8, 1, 0xff] {
            for length in 0..200 {
                let core = Bytes(vec![fill; row.sizes.request + length]);
                let driver = Bytes(vec![fill; length]);
                let room = (row.sizes.response + length, 200 - length);
                let answer = rig.call(row.number, &core, &driver, room);
                if let (0 | 17, Ok(answer)) = (row.number, answer) {
                    // SAFETY: the descriptor that the command made for its caller.
                    drop(unsafe { OwnedFd::from_raw_fd(answer.u32(0).cast_signed()) });
                }
            }
        }
    }
    assert!(sizes(EXTENDED | 99).is_none() && sizes(41).is_none());
}

/// A page that can be read only.
struct Frozen(*mut libc::c_void);

impl Frozen {
    const BYTES: usize = 4_096;

    fn new(content: &Bytes) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, access, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        assert!(content.0.len() <= Self::BYTES);
        // SAFETY: room for so many bytes, by the assertion.
        unsafe { page.cast::<u8>().copy_from_nonoverlapping(content.0.as_ptr(), content.0.len()) };
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::mprotect(page, Self::BYTES, libc::PROT_READ) }, 0);
        Self(page)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody else knows.
        unsafe { libc::munmap(self.0, Self::BYTES) };
    }
}

/// An answer that cannot be written must leave no object that the client does not know of.
#[test]
fn an_ioctl_that_cannot_be_answered_makes_nothing() {
    let rig = Rig::new();
    let header = |object: u16, method: u16, attributes: u16| {
        bytes().u16(24 + 16 * attributes).u16(object).u16(method).u16(attributes).u64(0).u64(0)
    };
    let carry_out = |message: &Bytes| {
        let page = Frozen::new(message);
        let request = crate::VERBS_IOCTL;
        crate::ioctl::carry_out(&rig.context, request, page.0.expose_provenance() as u64)
    };
    let counters = header(15, 0, 1).u16(0).u16(0).u16(1).u16(0).u64(0);
    assert_eq!(carry_out(&counters), Err(EFAULT));
    assert_eq!(softnic::objects::counters::count(&rig.nic.nic().control()), 0);
    let (core, mut reply) = ([0_u64; 2], [0_u64; 2]);
    let places = [core.as_ptr().expose_provenance(), reply.as_mut_ptr().expose_provenance()];
    let channel = header(0, 0, 3)
        .u16(0)
        .u16(16)
        .u16(1)
        .u16(0)
        .u64(places[0] as u64)
        .u16(1)
        .u16(16)
        .u16(1)
        .u16(0)
        .u64(places[1] as u64)
        .u16(2)
        .u16(4)
        .u16(1)
        .u16(0)
        .u64(17);
    assert_eq!(carry_out(&channel), Err(EFAULT));
    assert_eq!(softnic::objects::channels::count(&rig.nic.nic().control()), 0);
}
