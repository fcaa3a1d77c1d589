//! What a worker does without, and what it cannot do without, when it is built.

use hugemem::PageKind;
use softnic::Personality;

use super::*;
use crate::receiver::tests::{FRAME_BYTES, config, nic, nic_like, parts};

#[test]
fn frames_too_short_for_a_port_are_warned_of() {
    let short = |port, packet_bytes| Warning::ShortFrames { port, frame_bytes: FRAME_BYTES, packet_bytes };
    let ports = |mtus: &[Option<u32>]| {
        let port = |(number, mtu_bytes): (u8, &Option<u32>)| ServedPort { number, mtu_bytes: *mtu_bytes };
        WorkerConfig { ports: (1..).zip(mtus).map(port).collect(), ..config() }
    };
    let both = ports(&[None, None]);
    assert_eq!(parts("short0", 1500, &both).1.warnings, []);
    assert_eq!(parts("short1", 9000, &both).1.warnings, [short(1, 4118), short(2, 4118)]);
    assert_eq!(parts("short2", 9000, &config()).1.warnings, [short(1, 4118)]);
    // The interface's MTU is the one that packets have; verbs round it down to a power of two.
    assert_eq!(parts("short3", 9000, &ports(&[Some(9000), Some(1500)])).1.warnings, [short(1, 9022)]);
    assert_eq!(parts("short4", 9000, &ports(&[Some(1500)])).1.warnings, []);
}

#[test]
fn each_worker_has_an_interrupt_of_the_device() {
    let (nic, context) = nic("vectors0", 1500);
    let vectors = context.completion_vectors();
    assert!(vectors > 1, "{vectors}");
    let worker = |id, completion_vector| WorkerConfig { completion_vector, id: WorkerId::of(id), ..config() };
    let configs =
        [worker(0, None), worker(1, None), worker(vectors as usize, None), worker(0, Some(vectors - 1))];
    let parts: Vec<_> =
        configs.iter().map(|config| assemble(&context, config).expect("a worker's parts")).collect();
    assert_eq!(nic.completion_vectors(), [0, 1, 0, vectors - 1]);
    drop(parts);
    let error = assemble(&context, &worker(0, Some(vectors))).err().expect("there is no such interrupt");
    assert!(matches!(error, Error::Verb { object: Object::CompletionQueue, .. }), "{error}");
}

#[test]
fn a_completion_queue_is_not_rounded_up_to_twice_the_frames() {
    for (name, personality, frames, expected) in [
        ("round0", Personality::Mlx5, 4096, (4095, 4095)),
        ("round1", Personality::Mlx4, 64, (63, 63)),
        ("round2", Personality::Mlx5, 100, (100, 127)),
        ("round3", Personality::Ideal, 64, (64, 64)),
    ] {
        let (_nic, context) = nic_like(personality, name, 1500);
        let parts = assemble(&context, &WorkerConfig { frames, ..config() }).expect("a worker's parts");
        let receiver = &parts.receiver;
        assert_eq!((receiver.pool.frame_count(), receiver.path.completion_entries()), expected, "{name}");
    }
}

#[test]
fn frames_are_registered_with_relaxed_ordering_if_wanted() {
    let relaxed = WorkerConfig { relaxed_ordering: true, ..config() };
    assert_eq!(frame_access(&relaxed), Access::LOCAL_WRITE | Access::RELAXED_ORDERING);
    assert_eq!(frame_access(&config()), Access::LOCAL_WRITE);
    // The software NIC ignores it, as a device that cannot.
    let _parts = parts("relaxed0", 1500, &relaxed);
}

#[test]
fn an_arena_too_small_for_the_rings_still_holds_the_frames() {
    let (_nic, context) = nic("small0", 1500);
    // Whole pages: nothing is left for a ring.
    let config = WorkerConfig { frames: 64, ..config() };
    let bytes = frames_total_bytes(&config);
    assert!(bytes.is_multiple_of(FRAMES_ALIGN));
    let options =
        ArenaOptions { bytes, pages: vec![PageKind::Plain], numa_node: None, label: "small".to_owned() };
    let arena = Arena::map(&options).expect("plain pages");
    let _rest = arena.carve(arena.bytes() - bytes, 64);
    let parts = assemble_in(&arena, &context, &config, config.frames).expect("all it needs");
    assert_eq!(parts.receiver.pool.frame_count(), 64);
    assert!(!parts.warnings.is_empty());
    assert!(parts.warnings.iter().all(|warning| matches!(warning, Warning::OutsideArena { .. })));
}

#[test]
fn more_completions_than_the_device_can_hold_are_refused_with_what_to_lower() {
    let most = config().frames;
    assert_eq!(completion_entries(&config(), most).expect("just enough"), most);
    let error = completion_entries(&config(), most - 1).expect_err("one too many").to_string();
    assert_eq!(
        error,
        "worker 0: 16 completion queue entries, one for each frame, are more than the device's 15; lower `frames`"
    );
}

#[test]
fn more_frames_than_a_receive_queue_holds_are_refused_before_anything_is_made() {
    let (_nic, context) = nic("limit0", 1500);
    let limit = context.attributes().expect("a soft NIC answers").max_qp_wr;
    let frames = limit + 1;
    let error = assemble(&context, &WorkerConfig { frames, ..config() }).err().expect("one too many");
    assert_eq!(
        error.to_string(),
        format!(
            "worker 0: {frames} frames are more than the {limit} receives that a queue of the device holds \
             (max_qp_wr); lower `frames`"
        )
    );
    assert!(receives_fit(&config(), 0).is_ok(), "no limit is reported");
}

#[test]
fn a_lack_of_room_for_frames_says_what_to_lower() {
    let options =
        ArenaOptions { bytes: 4096, pages: vec![PageKind::Plain], numa_node: None, label: "tiny".to_owned() };
    let arena = Arena::map(&options).expect("plain pages");
    let _all = arena.carve(arena.bytes(), 64).expect("the arena is unused");
    let error = frame_memory(&config(), &arena).expect_err("25 KiB of frames").to_string();
    assert!(error.ends_with("25600 bytes of frames: lower `frames` or `frame_bytes`"), "{error}");
    let error = Error::FirstFill { worker: WorkerId(0), posted: 5, frames: 16 }.to_string();
    assert!(error.ends_with("took 5 of 16 frames: lower `frames` to that"), "{error}");
}

#[test]
fn frames_begin_in_all_sets_of_a_cache() {
    const LINE: u32 = 64;
    const SETS: u32 = 1024;
    for bytes in [64, 65, 128, 1536, 2048, 2049, 2112, 9216, 65_536] {
        let spread = spread_bytes(bytes);
        assert!((bytes..bytes + 2 * LINE).contains(&spread), "{bytes}: {spread}");
        let sets: std::collections::BTreeSet<_> = (0..SETS).map(|nth| (nth * spread / LINE) % SETS).collect();
        assert_eq!(sets.len(), SETS as usize, "{bytes}: {spread}");
    }
}
