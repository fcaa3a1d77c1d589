//! What completions say, and what kinds of completion queues each personality has.

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SLID, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_poll_cq_attr, ibv_values_ex,
};
use softnic::Personality;

use super::super::{context, cq};
use super::completion::{create_ex, resize, size};
use super::refusals::errno;
use super::{LOCAL_WRITE, Raw, udp};
use crate::abi::WorkCompletion;

#[test]
fn a_queue_that_ignores_overruns_loses_completions_and_lives() {
    let raw = Raw::build(Personality::Ideal, |context| {
        let mut attr = ibv_cq_init_attr_ex {
            cqe: 4,
            comp_mask: 1,
            flags: IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            ..ibv_cq_init_attr_ex::default()
        };
        // SAFETY: a live context and a whole struct.
        unsafe { ibverbs_create_cq_ex(context, &mut attr) }
    });
    let memory = raw.register(2048, LOCAL_WRITE);
    for id in 0..8 {
        raw.post_receive(id, &mut [memory.element(0, 2048)]);
    }
    raw.deliver((0..6).map(udp));
    let stats = raw.stats();
    assert_eq!((stats.delivered, stats.cq_overrun), (4, 2));
    assert!(raw.unacknowledged().is_none());
    assert_eq!(raw.poll().len(), 4);
    raw.deliver((0..2).map(udp));
    assert_eq!(raw.poll().len(), 2);
}

/// The verb as the library makes it, so that the queue is initialised.
///
/// # Safety
/// A live context.
unsafe fn ibverbs_create_cq_ex(
    context: *mut ibverbs_sys::ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq {
    // SAFETY: by the contract of this function.
    let cq = unsafe { cq::create_cq_ex(context, attr) };
    assert!(!cq.is_null(), "{}", errno());
    cq.cast()
}

/// Reads the only completion of a queue by iterating: (status, wall clock, ticks).
fn read_clocks(cq: *mut ibv_cq_ex) -> (u32, u64, u64) {
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: a live queue.
    let (start, end, wall, ticks) = unsafe {
        let cq = &*cq;
        (cq.start_poll, cq.end_poll, cq.read_completion_wallclock_ns, cq.read_completion_ts)
    };
    // SAFETY: a live queue and a whole struct.
    assert_eq!(unsafe { start.unwrap()(cq, &raw mut attr) }, 0);
    // SAFETY: within a poll, and so on below.
    let wall_ns = wall.map_or(0, |read| unsafe { read(cq) });
    // SAFETY: as above.
    let ticks = unsafe { ticks.unwrap()(cq) };
    // SAFETY: as above.
    unsafe { end.unwrap()(cq) };
    // SAFETY: a live queue.
    (unsafe { (*cq).status }, wall_ns, ticks)
}

#[test]
fn the_plain_verb_polls_an_extended_queue_but_not_in_the_middle_of_a_batch() {
    let raw = Raw::build(Personality::Ideal, |context| {
        // Without a lock, or the second poll would wait for the first.
        let flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        let mut attr = ibv_cq_init_attr_ex { cqe: 4, comp_mask: 1, flags, ..ibv_cq_init_attr_ex::default() };
        // SAFETY: a live context.
        unsafe { ibverbs_create_cq_ex(context, &mut attr) }
    });
    let memory = raw.register(2048, LOCAL_WRITE);
    for id in 0..3 {
        raw.post_receive(id, &mut [memory.element(0, 2048)]);
    }
    raw.deliver((0..2).map(udp));
    let cq = raw.cq.cast::<ibv_cq_ex>();
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: a live queue, whose functions do not change.
    let ibv_cq_ex { start_poll, end_poll, .. } = unsafe { *cq };
    let (start, end) = (start_poll.unwrap(), end_poll.unwrap());
    // SAFETY: a live queue and a whole struct.
    assert_eq!(unsafe { start(cq, &raw mut attr) }, 0);
    let mut completion = [WorkCompletion::default()];
    // SAFETY: a live queue and an array of one.
    assert_eq!(unsafe { cq::poll_cq(raw.cq, 1, completion.as_mut_ptr().cast()) }, -1);
    assert_eq!(resize(raw.cq, 64), libc::EBUSY);
    // SAFETY: within a poll.
    unsafe { end(cq) };
    assert_eq!(raw.poll()[0].wr_id, 1, "the first was read by the batch");
    raw.deliver([udp(5)]);
    assert_eq!(raw.poll()[0].wc_flags, ibverbs_sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK.0);
}

fn raw_clock(raw: &Raw) -> u64 {
    let mut values = ibv_values_ex { comp_mask: 1, ..ibv_values_ex::default() };
    // SAFETY: a live context and a whole struct.
    assert_eq!(unsafe { context::query_rt_values(raw.context, &raw mut values) }, 0);
    assert_eq!((values.comp_mask, values.raw_clock.tv_sec), (1, 0));
    values.raw_clock.tv_nsec as u64
}

#[test]
fn timestamps_have_the_rate_of_the_device_and_the_wall_clock_is_in_nanoseconds() {
    for personality in Personality::ALL {
        let rules = personality.object_rules();
        let has = |field: u32| rules.completion.check_fields(field.into()).is_ok();
        let both = [IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK];
        let raw = Raw::build(personality, |context| {
            let wc_flags = both.into_iter().filter(|field| has(*field)).map(u64::from).sum();
            let mut attr = ibv_cq_init_attr_ex { cqe: 4, wc_flags, ..ibv_cq_init_attr_ex::default() };
            // SAFETY: a live context.
            unsafe { ibverbs_create_cq_ex(context, &mut attr) }
        });
        let memory = raw.register(2048, LOCAL_WRITE);
        raw.post_receive(1, &mut [memory.element(0, 2048)]);
        let (before, before_ns) = (raw_clock(&raw), softnic::clock::now_ns());
        raw.deliver([udp(1)]);
        let (after, after_ns) = (raw_clock(&raw), softnic::clock::now_ns());
        let (status, wall_ns, ticks) = read_clocks(raw.cq.cast());
        assert_eq!(status, 0);
        assert!((before..=after).contains(&ticks), "{before} {ticks} {after} ({personality})");
        if has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
            assert!((before_ns..=after_ns).contains(&wall_ns));
            assert_eq!(ticks, rules.clock.ticks(wall_ns));
        }
    }
}

#[test]
fn each_personality_refuses_what_its_hardware_refuses() {
    let exclusive = u64::from(IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    let ignore = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    for (personality, expected) in [
        (Personality::Ideal, [0, 0, 0, 0, 0, libc::EINVAL]),
        (Personality::Mlx5, [0, 0, 0, 0, libc::EINVAL, libc::EINVAL]),
        (
            Personality::Mlx4,
            [
                libc::EOPNOTSUPP,
                libc::EOPNOTSUPP,
                libc::EOPNOTSUPP,
                libc::EOPNOTSUPP,
                libc::EINVAL,
                libc::EINVAL,
            ],
        ),
    ] {
        let raw = Raw::with_personality(personality);
        let pd = raw.pd;
        let outcomes = [
            create_ex(&raw, |attr| attr.wc_flags = u64::from(IBV_WC_EX_WITH_FLOW_TAG)),
            create_ex(&raw, |attr| attr.wc_flags = u64::from(IBV_WC_EX_WITH_CVLAN)),
            create_ex(&raw, |attr| attr.wc_flags = exclusive),
            create_ex(&raw, |attr| (attr.comp_mask, attr.flags) = (1, ignore)),
            create_ex(&raw, |attr| (attr.comp_mask, attr.parent_domain) = (2, pd)),
            create_ex(&raw, |attr| attr.comp_mask = 4),
        ];
        let errnos = outcomes.map(|outcome| outcome.err().unwrap_or(0));
        assert_eq!(errnos, expected, "{personality}");
    }
}

#[test]
fn mlx5_reads_a_packets_number_in_its_tag_and_a_vendors_error_in_the_clock() {
    for personality in [Personality::Ideal, Personality::Mlx5] {
        let raw = Raw::build(personality, |context| {
            let wc_flags = u64::from(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_QP_NUM);
            let mut attr = ibv_cq_init_attr_ex { cqe: 4, wc_flags, ..ibv_cq_init_attr_ex::default() };
            // SAFETY: a live context.
            unsafe { ibverbs_create_cq_ex(context, &mut attr) }
        });
        let memory = raw.register(2048, LOCAL_WRITE);
        raw.post_receive(1, &mut [memory.element(0, 2048)]);
        raw.deliver([udp(1)]);
        let cq = raw.cq.cast::<ibv_cq_ex>();
        // SAFETY: a live queue, whose functions do not change.
        let functions = unsafe { *cq };
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: a live queue and a whole struct.
        assert_eq!(unsafe { functions.start_poll.unwrap()(cq, &raw mut attr) }, 0);
        // SAFETY: within a poll, as the next two.
        let number = unsafe { functions.read_qp_num.unwrap()(cq) };
        // SAFETY: as above.
        let vendor_error = unsafe { functions.read_vendor_err.unwrap()(cq) };
        // SAFETY: as above.
        let [_, byte, ..] = unsafe { functions.read_completion_ts.unwrap()(cq) }.to_le_bytes();
        // SAFETY: as above.
        unsafe { functions.end_poll.unwrap()(cq) };
        // SAFETY: a live queue pair.
        let own = unsafe { (*raw.qp).qp_num };
        let expected = if personality == Personality::Mlx5 { (0, byte.into()) } else { (own, 0) };
        assert_eq!((number, vendor_error), expected, "{personality}");
    }
}

#[test]
fn a_queue_has_the_readers_that_were_asked_for_and_no_others() {
    let raw = Raw::new();
    let readers = |wc_flags: u64| {
        let cq = create_ex(&raw, |attr| attr.wc_flags = wc_flags).unwrap();
        // SAFETY: a live queue, whose functions do not change.
        let cq = unsafe { *cq };
        assert!(cq.start_poll.is_some() && cq.next_poll.is_some() && cq.end_poll.is_some());
        assert!(cq.read_opcode.is_some() && cq.read_vendor_err.is_some() && cq.read_wc_flags.is_some());
        [
            cq.read_byte_len.is_some(),
            cq.read_imm_data.is_some(),
            cq.read_qp_num.is_some(),
            cq.read_src_qp.is_some(),
            cq.read_slid.is_some(),
            cq.read_sl.is_some(),
            cq.read_dlid_path_bits.is_some(),
            cq.read_completion_ts.is_some(),
            cq.read_cvlan.is_some(),
            cq.read_flow_tag.is_some(),
            cq.read_tm_info.is_some(),
            cq.read_completion_wallclock_ns.is_some(),
        ]
    };
    assert_eq!(readers(0), [false; 12]);
    for bit in 0..12 {
        let mut expected = [false; 12];
        expected[bit] = true;
        assert_eq!(readers(1 << bit), expected, "enum ibv_create_cq_wc_flags, bit {bit}");
    }
}

#[test]
fn the_device_reports_the_features_of_its_personality() {
    for (personality, clock_khz, timestamp_bits, period_us, max_cqe) in [
        (Personality::Ideal, 1_000_000, 64, u16::MAX, 1 << 22),
        (Personality::Mlx5, 156_250, 63, 4095, (1 << 22) - 1),
        (Personality::Mlx4, 427_000, 48, u16::MAX, (1 << 22) - 1),
    ] {
        let raw = Raw::with_personality(personality);
        let mut attr = ibv_device_attr_ex::default();
        let bytes = size_of::<ibv_device_attr_ex>();
        // SAFETY: a live context and a whole struct.
        let status = unsafe { context::query_device_ex(raw.context, std::ptr::null(), &raw mut attr, bytes) };
        assert_eq!(status, 0);
        assert_eq!(attr.hca_core_clock, clock_khz, "{personality}");
        assert_eq!(attr.completion_timestamp_mask.count_ones(), timestamp_bits);
        assert_eq!(attr.cq_mod_caps.max_cq_period, period_us);
        assert_eq!(attr.orig_attr.max_cqe, max_cqe);
        // SAFETY: a live context.
        assert_eq!(unsafe { (*raw.context).num_comp_vectors }, 8);
    }
}

#[test]
fn hardware_gives_a_queue_one_entry_less_than_a_power_of_two() {
    for (personality, entries) in
        [(Personality::Ideal, 64), (Personality::Mlx5, 127), (Personality::Mlx4, 127)]
    {
        let raw = Raw::with_personality(personality);
        assert_eq!(size(raw.cq), entries, "{personality}");
        assert_eq!(resize(raw.cq, 128), 0);
        assert_eq!(size(raw.cq), if personality == Personality::Ideal { 128 } else { 255 });
        let most = personality.object_rules().completion.max_entries;
        assert_eq!(create_ex(&raw, |attr| attr.cqe = most + 1).err(), Some(libc::EINVAL));
    }
}
