//! Receives: scatter lists, every check on the memory they name, queues in error, overruns.

use ibverbs_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, ibv_alloc_pd, ibv_qp_attr_mask, ibv_qp_state, ibv_sge,
    ibv_wc_opcode, ibv_wc_status,
};

use super::{LOCAL_WRITE, MTU_BYTES, Memory, Raw, udp};

#[test]
fn a_frame_arrives_in_a_posted_buffer_with_its_length_and_checksum_verdict() {
    let raw = Raw::new();
    let memory = raw.register(2048, LOCAL_WRITE);
    assert_eq!(raw.post_receive(7, &mut [memory.element(0, 2048)]), (0, false));
    let frame = udp(100);
    raw.deliver([frame.clone()]);
    let completions = raw.poll();
    assert_eq!(completions.len(), 1);
    let wc = completions[0];
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (7, ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_opcode::IBV_WC_RECV)
    );
    assert_eq!(wc.byte_len as usize, frame.len());
    assert_eq!(wc.wc_flags, ibverbs_sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK.0);
    assert_eq!(memory.read(0, frame.len()), frame);
    assert_eq!(raw.stats().delivered, 1);
}

#[test]
fn a_wrong_checksum_is_delivered_without_the_flag() {
    let raw = Raw::new();
    let memory = raw.register(2048, LOCAL_WRITE);
    raw.post_receive(7, &mut [memory.element(0, 2048)]);
    let mut frame = udp(100);
    *frame.last_mut().unwrap() ^= 1;
    raw.deliver([frame]);
    let completions = raw.poll();
    assert_eq!((completions[0].status, completions[0].wc_flags), (ibv_wc_status::IBV_WC_SUCCESS, 0));
}

#[test]
fn a_frame_is_scattered_over_one_to_four_elements() {
    let raw = Raw::new();
    let frame = udp(60);
    for elements in 1..=4u32 {
        let memory = raw.register(4096, LOCAL_WRITE);
        // Apart from each other, and short but for the last.
        let mut list: Vec<ibv_sge> = (0..elements)
            .map(|index| {
                memory.element(u64::from(index) * 1000, if index + 1 == elements { 500 } else { 17 })
            })
            .collect();
        assert_eq!(raw.post_receive(elements.into(), &mut list).0, 0);
        raw.deliver([frame.clone()]);
        assert_eq!(raw.poll()[0].status, ibv_wc_status::IBV_WC_SUCCESS);
        let mut gathered = Vec::new();
        for index in 0..elements as usize {
            let left = frame.len() - gathered.len();
            let bytes = if index + 1 == elements as usize { left } else { left.min(17) };
            gathered.extend(memory.read(index * 1000, bytes));
        }
        assert_eq!(gathered, frame, "{elements} elements");
        let last = (elements as usize - 1) * 1000;
        let end = frame.len() - (elements as usize - 1) * 17;
        assert_eq!(memory.read(last + end, 1), [0], "nothing is written behind the frame");
    }
}

#[test]
fn lists_that_are_too_long_or_missing_are_refused() {
    let raw = Raw::new();
    let memory = raw.register(64, LOCAL_WRITE);
    let mut list = [memory.element(0, 8); 5];
    assert_eq!(raw.post_receive(1, &mut list), (libc::EINVAL, true));
    for index in 0..16 {
        assert_eq!(raw.post_receive(index, &mut [memory.element(0, 64)]).0, 0);
    }
    assert_eq!(raw.post_receive(16, &mut [memory.element(0, 64)]), (libc::ENOMEM, true));
}

/// Each bad element must lead to an error completion, a counted frame, a dead queue, and untouched memory.
fn faults(bad: impl FnOnce(&Raw, &Memory) -> ibv_sge) {
    let raw = Raw::new();
    let memory = raw.register(2048, LOCAL_WRITE);
    let mut list = [bad(&raw, &memory)];
    assert_eq!(raw.post_receive(1, &mut list).0, 0);
    assert_eq!(raw.post_receive(2, &mut [memory.element(0, 2048)]).0, 0);
    raw.deliver([udp(100), udp(100)]);
    let outcome: Vec<_> = raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(
        outcome,
        [(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR), (2, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)],
        "the second receive is flushed, not used"
    );
    let stats = raw.stats();
    assert_eq!((stats.memory_fault, stats.queue_not_ready, stats.delivered), (1, 1, 0));
    assert!(memory.read(0, 2048).iter().all(|byte| *byte == 0));
    assert_eq!(raw.event(), IBV_EVENT_QP_FATAL);
    // What is posted to the dead queue comes back; after a reset it lives again.
    assert_eq!(raw.post_receive(3, &mut [memory.element(0, 2048)]).0, 0);
    raw.deliver([]);
    assert_eq!(raw.poll()[0].status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    let state = ibv_qp_attr_mask::IBV_QP_STATE.0;
    assert_eq!(raw.modify(ibv_qp_state::IBV_QPS_RESET, state), 0);
    assert_eq!(raw.modify(ibv_qp_state::IBV_QPS_INIT, state | ibv_qp_attr_mask::IBV_QP_PORT.0), 0);
    assert_eq!(raw.modify(ibv_qp_state::IBV_QPS_RTR, state), 0);
    assert_eq!(raw.post_receive(4, &mut [memory.element(0, 2048)]).0, 0);
    raw.deliver([udp(100)]);
    assert_eq!(raw.poll()[0].status, ibv_wc_status::IBV_WC_SUCCESS);
}

#[test]
fn an_unknown_key_is_a_fault() {
    faults(|_, memory| ibv_sge { lkey: memory.key() ^ 0x100, ..memory.element(0, 2048) });
}

#[test]
fn a_key_of_zero_is_a_fault() {
    faults(|_, memory| ibv_sge { lkey: 0, ..memory.element(0, 2048) });
}

#[test]
fn an_element_past_the_end_is_a_fault() {
    faults(|_, memory| memory.element(1, 2048));
}

#[test]
fn an_element_before_the_start_is_a_fault() {
    faults(|_, memory| ibv_sge { addr: memory.address() - 1, ..memory.element(0, 2048) });
}

#[test]
fn an_element_that_wraps_is_a_fault() {
    faults(|_, memory| ibv_sge { addr: u64::MAX - 4, ..memory.element(0, 2048) });
}

#[test]
fn memory_of_another_domain_is_a_fault() {
    faults(|raw, _| {
        // SAFETY: a live context.
        let other = unsafe { ibv_alloc_pd(raw.context) };
        Memory::new(other, 2048, LOCAL_WRITE).element(0, 2048)
    });
}

#[test]
fn memory_without_local_write_is_a_fault() {
    faults(|raw, _| raw.register(2048, 0).element(0, 2048));
}

#[test]
fn deregistered_memory_is_a_fault() {
    faults(|raw, _| {
        let gone = raw.register(2048, LOCAL_WRITE);
        let element = gone.element(0, 2048);
        // SAFETY: a live region.
        assert_eq!(unsafe { ibverbs_sys::ibv_dereg_mr(gone.mr) }, 0);
        element
    });
}

#[test]
fn a_short_buffer_takes_nothing_and_the_queue_lives_on() {
    let raw = Raw::new();
    let memory = raw.register(4096, LOCAL_WRITE);
    raw.post_receive(1, &mut [memory.element(0, 50), memory.element(100, 50)]);
    raw.post_receive(2, &mut [memory.element(2048, 2048)]);
    let frame = udp(100);
    raw.deliver([frame.clone(), frame.clone()]);
    let outcome: Vec<_> = raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(outcome, [(1, ibv_wc_status::IBV_WC_LOC_LEN_ERR), (2, ibv_wc_status::IBV_WC_SUCCESS)]);
    let stats = raw.stats();
    assert_eq!((stats.oversize, stats.delivered), (1, 1));
    assert_eq!(memory.read(2048, frame.len()), frame);
}

#[test]
fn frames_beyond_the_mtu_and_below_a_header_meet_no_buffer() {
    let raw = Raw::new();
    let memory = raw.register(4096, LOCAL_WRITE);
    raw.post_receive(1, &mut [memory.element(0, 4096)]);
    let longest = MTU_BYTES as usize + 14 + 8;
    raw.deliver([vec![0; longest + 1], vec![0; 13], Vec::new()]);
    assert!(raw.poll().is_empty());
    let stats = raw.stats();
    assert_eq!((stats.oversize, stats.runt), (1, 2));
    raw.deliver([vec![0; longest]]);
    assert_eq!(raw.poll()[0].byte_len as usize, longest);
}

#[test]
fn frames_without_a_buffer_are_counted_and_do_not_disturb() {
    let raw = Raw::new();
    raw.deliver([udp(1), udp(2)]);
    assert_eq!(raw.stats().out_of_buffer, 2);
    let memory = raw.register(2048, LOCAL_WRITE);
    raw.post_receive(1, &mut [memory.element(0, 2048)]);
    raw.deliver([udp(3)]);
    assert_eq!(raw.stats().delivered, 1);
}

#[test]
fn an_overrun_fails_the_completion_queue_with_one_event() {
    let raw = Raw::with_cq(4);
    let memory = raw.register(2048, LOCAL_WRITE);
    for index in 0..8 {
        raw.post_receive(index, &mut [memory.element(0, 2048)]);
    }
    raw.deliver((0..8).map(udp));
    let stats = raw.stats();
    assert_eq!((stats.delivered, stats.cq_overrun, stats.queue_not_ready), (4, 1, 3));
    assert_eq!(raw.event(), IBV_EVENT_CQ_ERR);
    assert_eq!(raw.event(), IBV_EVENT_QP_FATAL, "what completes to it goes with it");
    assert!(raw.unacknowledged().is_none());
    assert_eq!(raw.poll().len(), 4, "what was completed before stays readable");
    raw.deliver([udp(9)]);
    assert_eq!(raw.stats().queue_not_ready, 4, "the queue stays dead");
}

/// A buffer of one of two regions, one in two pieces, or one that is too short for most frames.
fn buffers(regions: &[Memory; 2], kind: usize, offset: u64) -> Vec<ibv_sge> {
    match kind {
        0 | 1 => vec![regions[kind].element(offset, 2000)],
        2 => vec![regions[0].element(offset, 50), regions[1].element(offset, 1950)],
        _ => vec![regions[1].element(offset, 90)],
    }
}

/// Id, status and length of each completion, the memory, and the counters.
type Outcome = (Vec<Completed>, [Vec<u8>; 2], softnic::PortStats);
type Completed = (u64, u32, u32);

/// The result of requests of these kinds and frames of these payloads, delivered in one burst or one after
/// the other.
fn received(together: bool, kinds: &[(usize, usize)]) -> Outcome {
    const SPACE: usize = 2048;
    // Checksums are verified after the first poll only: before, most deliveries are made in their own loop.
    let raw = Raw::build(softnic::Personality::Ideal, |context| {
        let mut attr =
            ibverbs_sys::ibv_cq_init_attr_ex { cqe: 64, ..ibverbs_sys::ibv_cq_init_attr_ex::default() };
        // SAFETY: a live context and a whole struct.
        unsafe { super::super::cq::create_cq_ex(context, &raw mut attr) }.cast()
    });
    let bytes = SPACE * kinds.len();
    let regions = [raw.register(bytes, LOCAL_WRITE), raw.register(bytes, LOCAL_WRITE)];
    for (index, (kind, _)) in kinds.iter().enumerate() {
        let mut list = buffers(&regions, *kind, (index * SPACE) as u64);
        assert_eq!(raw.post_receive(index as u64, &mut list).0, 0);
    }
    let frames: Vec<_> = kinds.iter().map(|(_, payload)| udp(*payload)).collect();
    if together {
        raw.deliver(frames);
    } else {
        frames.into_iter().for_each(|frame| raw.deliver([frame]));
    }
    let completions = raw.poll().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    let memory = regions.each_ref().map(|region| region.read(0, bytes));
    (completions, memory, raw.stats())
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    #[test]
    fn a_burst_is_delivered_as_its_frames_one_by_one(
        kinds in proptest::collection::vec((0..8usize, 0..200usize), 1..=16),
    ) {
        // Half of the buffers are alike.
        let kinds: Vec<_> = kinds.into_iter().map(|(kind, payload)| (kind.saturating_sub(4), payload)).collect();
        proptest::prop_assert_eq!(received(true, &kinds), received(false, &kinds));
    }
}
