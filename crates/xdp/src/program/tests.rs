use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use packet::build::FrameBuilder;
use packet::cube::{HAS_IPV4, SRC_PORT};
use packet::read_image;
use proptest::prelude::*;
use test_support::not_run;

use super::*;
use crate::{Claim, ClaimAction, DropCounter, Dropped};

type Image = [u64; LEVEL_WORDS];

/// The release of clang that made the object.
const OBJECT_CLANG: &[u8] = b"14.";

/// The program and its claims; claimed frames are dropped, so that trials distinguish them.
fn loaded() -> Option<(SteeringProgram, ClaimTable)> {
    loaded_from(OBJECT, ProgramOptions::default().claims)
}

fn loaded_from(object: &[u8], claims: u32) -> Option<(SteeringProgram, ClaimTable)> {
    loaded_with(object, &ProgramOptions { claims, unserved: Unserved::Drop, ..ProgramOptions::default() })
}

fn loaded_with(object: &[u8], options: &ProgramOptions) -> Option<(SteeringProgram, ClaimTable)> {
    loaded_ordering(object, options, REORDERS_LOADS)
}

fn loaded_ordering(
    object: &[u8],
    options: &ProgramOptions,
    orders_loads: bool,
) -> Option<(SteeringProgram, ClaimTable)> {
    match load_object(object, options, orders_loads) {
        Ok(loaded) => Some(loaded),
        Err(error @ XdpError::NotPermitted { .. }) => {
            not_run("the XDP program", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn image(frame: &[u8]) -> Image {
    let mut words = [0; LEVEL_WORDS];
    read_image(frame, &mut words);
    words
}

/// The program takes the image of a frame to be this one: it claims a frame of exactly this image, and none
/// of an image that differs in one bit.
fn check_image(program: &SteeringProgram, claims: &mut ClaimTable, frame: &[u8]) {
    let exact = Claim::new(image(frame), [u64::MAX; LEVEL_WORDS]);
    claims.add(&exact, 0, ClaimAction::Redirect).unwrap();
    assert!(!program.try_frame(frame, 1).unwrap().is_passed, "{:x?} of {frame:02x?}", image(frame));
    claims.remove(&exact, 0, &ClaimAction::Redirect);
}

/// Frames of every kind that the parser distinguishes.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for tags in
        [&[][..], &[0x8100], &[0x88a8], &[0x88a8, 0x8100], &[0x9100, 0x8100], &[0x8100, 0x8100, 0x8100]]
    {
        let start =
            tags.iter().fold(FrameBuilder::new(), |frame, tag| frame.vlan(packet::EtherType(*tag), 0xa123));
        let v4 = start.clone().ipv4([10, 1, 2, 3].into(), [192, 0, 2, 10].into());
        let v6 = start.ipv6([0xfe80, 1, 2, 3, 4, 5, 6, 7].into(), [0xff02, 8, 9, 10, 11, 12, 13, 14].into());
        for ip in [v4, v6] {
            frames.push(ip.clone().tcp(0x1234, 0x5678, 0x12).frame_bytes(110).build());
            frames.push(ip.udp(0x1234, 0x5678).frame_bytes(110).build());
        }
    }
    frames
}

#[test]
fn the_verdict_precedes_the_statistics() {
    let log = "195: (bc) w5 = w4\n196: (0f) r1 += r3\nR1 has pointer with unsupported alu operation, pointer \
               arithmetic with it prohibited for !root\nverification time 434 usec\nstack depth 40+0+0\n\
               processed 140 insns (limit 1000000) max_states_per_insn 0\n\n";
    let reason = verdict(log).expect("a reason");
    assert!(reason.starts_with("R1 has pointer") && reason.contains(WITHOUT_PERFMON), "{reason}");
    assert_eq!(verdict("processed 1 insns (limit 1000000)\n"), None);
}

#[test]
fn the_program_reads_the_image_of_a_frame_whatever_its_octets() {
    let Some((program, mut claims)) = loaded() else { return };
    for frame in frames() {
        for at in 0..frame.len().min(90) {
            for value in
                [0, 1, 4, 5, 6, 0x0f, 0x11, 0x2c, 0x40, 0x45, 0x46, 0x4f, 0x60, 0x80, 0x81, 0x86, 0x88, 0xff]
            {
                let mut changed = frame.clone();
                changed[at] = value;
                check_image(&program, &mut claims, &changed);
            }
        }
        // The kernel runs programs over frames with an Ethernet header only.
        for bytes in 14..frame.len() {
            check_image(&program, &mut claims, &frame[..bytes]);
        }
    }
}

/// Masks of rules over frames, with the values of a frame in it.
fn claim_of(frame: &Image, choice: &[u8; LEVEL_WORDS], bits: u64) -> Claim {
    let mask: Image = std::array::from_fn(|word| match choice[word] % 6 {
        0 => u64::MAX,
        1 => bits,
        2 => 0xffff,
        3 => 0xffff_ffff << 32,
        _ => 0,
    });
    Claim::new(*frame, mask)
}

/// Whether the program passes what no claim matches, and nothing else but counted exceptions.
fn check_decisions(program: &SteeringProgram, claims: &[Claim], frames: &[Vec<u8>]) -> (u64, u64) {
    let (mut claimed, mut superset) = (0, 0);
    for frame in frames {
        let image = image(frame);
        let is_claimed = claims.iter().any(|claim| claim.matches(&image));
        let is_passed = program.try_frame(frame, 1).unwrap().is_passed;
        assert!(!(is_claimed && is_passed), "a claimed frame is passed: {frame:02x?}");
        claimed += u64::from(is_claimed);
        superset += u64::from(!is_claimed && !is_passed);
    }
    (claimed, superset)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn damaged_frames_meet_the_claims_that_match_them(
        rules in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; LEVEL_WORDS]>(), any::<u64>()), 1..400),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::collection::vec((0..110usize, any::<u8>()), 0..6), 14..=110usize), 100),
    ) {
        let Some((program, mut table)) = loaded() else { return Ok(()) };
        let frames = frames();
        let damaged: Vec<Vec<u8>> = changes.iter().map(|(which, changes, bytes)| {
            let mut frame = which.get(&frames[..]).clone();
            for (at, value) in changes {
                frame[*at] = *value;
            }
            frame.truncate(*bytes);
            frame
        }).collect();
        let claims: Vec<Claim> = rules.iter().map(|(which, choice, bits)| {
            claim_of(&image(which.get::<Vec<u8>>(&damaged)), choice, *bits)
        }).filter(|claim| claim.mask() != &[0; LEVEL_WORDS]).collect();
        for claim in &claims {
            table.add(claim, 0, ClaimAction::Redirect).unwrap();
        }
        let (_, superset) = check_decisions(&program, &claims, &damaged);
        let beyond = program.counters().unwrap().beyond_bounds;
        prop_assert!(superset <= beyond, "each exception is counted: {superset} of {beyond}");
        for claim in &claims {
            table.remove(claim, 0, &ClaimAction::Redirect);
        }
        for frame in &damaged {
            prop_assert!(table.report().widened > 0 || program.try_frame(frame, 1).unwrap().is_passed);
        }
    }
}

/// The frames of all captures; `None` after a notice: they are not there.
fn captured() -> Option<Vec<Vec<u8>>> {
    let folder = test_support::corpora("pcaps")?;
    let mut frames = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "pcap") {
            continue;
        }
        let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        while let Some(packet) = reader.next_packet() {
            let Ok(packet) = packet else { break };
            // A page less what the kernel adds is the most that a program is tried with.
            if (14..=3400).contains(&packet.data.len()) {
                frames.push(packet.data.into_owned());
            }
        }
    }
    Some(frames)
}

#[test]
fn no_frame_of_the_captures_that_a_claim_matches_is_passed() {
    let Some((program, mut table)) = loaded() else { return };
    let Some(frames) = captured() else { return };
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for frame in &frames {
        check_image(&program, &mut table, frame);
    }
    // Each round has other claims, of hundreds of masks.
    let (mut claimed, mut superset) = (0, 0);
    for round in 0..4 {
        let claims: Vec<Claim> = (0..200)
            .map(|_| {
                let frame = &frames[next() as usize % frames.len()];
                let choice = next().to_le_bytes().map(|byte| if round % 2 == 0 { byte | 2 } else { byte });
                claim_of(&image(frame), &choice, next())
            })
            .filter(|claim| claim.mask().iter().map(|word| word.count_ones()).sum::<u32>() > 100)
            .collect();
        for claim in &claims {
            table.add(claim, 0, ClaimAction::Redirect).unwrap();
        }
        let (matched, more) = check_decisions(&program, &claims, &frames);
        (claimed, superset) = (claimed + matched, superset + more);
        for claim in &claims {
            table.remove(claim, 0, &ClaimAction::Redirect);
        }
    }
    println!("{} frames, 4 rounds: {claimed} claimed, {superset} redirected beyond that", frames.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// The program drops what all first claims that match drop, counts it for one of them, and drops nothing
    /// else.
    #[test]
    fn frames_are_dropped_and_counted_for_their_claims(
        rules in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<[u8; LEVEL_WORDS]>(), any::<u64>(), 0..3usize, 0..3u32), 1..60),
    ) {
        let Some((program, mut table)) = loaded() else { return Ok(()) };
        let frames = frames();
        let all = table.all_drops();
        let counters: [DropCounter; 2] = std::array::from_fn(|_| table.drop_counter().unwrap());
        let mut claims: Vec<(Claim, u32, ClaimAction)> = Vec::new();
        for (which, choice, bits, action, precedence) in &rules {
            let claim = claim_of(&image(which.get::<Vec<u8>>(&frames)), choice, *bits);
            if claims.iter().all(|(known, ..)| *known != claim) {
                let action = counters.get(*action).cloned().map_or(ClaimAction::Redirect, ClaimAction::Drop);
                table.add(&claim, *precedence, action.clone()).unwrap();
                claims.push((claim, *precedence, action));
            }
        }
        let drops = |(.., action): &&(Claim, u32, ClaimAction)| *action != ClaimAction::Redirect;
        prop_assert_eq!(table.report().dropping, claims.iter().filter(drops).count());
        for frame in &frames {
            let image = image(frame);
            let (before, beyond) = (all.read(), program.counters().unwrap().beyond_bounds);
            let before_each = counters.each_ref().map(DropCounter::read);
            program.try_frame(frame, 1).unwrap();
            let now = all.read();
            let matching: Vec<&(Claim, u32, ClaimAction)> =
                claims.iter().filter(|(claim, ..)| claim.matches(&image)).collect();
            let first = matching.iter().map(|(_, precedence, _)| *precedence).min();
            let first: Vec<&ClaimAction> = matching
                .iter()
                .filter(|(_, precedence, _)| Some(*precedence) == first)
                .map(|(.., action)| action)
                .collect();
            let is_to_drop = !first.is_empty() && !first.contains(&&ClaimAction::Redirect);
            let grown = |(counter, before): (&DropCounter, &Dropped)| {
                let now = counter.read();
                (now != *before).then(|| (counter.clone(), now.packets - before.packets, now.bytes - before.bytes))
            };
            let grown: Vec<_> = counters.iter().zip(&before_each).filter_map(grown).collect();
            if now == before {
                let is_beyond = program.counters().unwrap().beyond_bounds > beyond;
                prop_assert!(!is_to_drop || is_beyond, "not dropped");
                prop_assert!(grown.is_empty());
            } else {
                prop_assert!(is_to_drop, "dropped");
                let [(counter, packets, bytes)] = &*grown else { panic!("one counter for each packet") };
                prop_assert_eq!((*packets, *bytes), (1, frame.len() as u64));
                prop_assert_eq!(now.packets - before.packets, 1);
                prop_assert!(first.contains(&&ClaimAction::Drop(counter.clone())));
            }
        }
    }
}

/// A program that may drop nothing has no counters, as on a kernel before 5.18.
#[test]
fn a_program_that_drops_nothing_has_no_counters() {
    let options = ProgramOptions { drop_bytes_max: 0, ..ProgramOptions::default() };
    let Some((program, mut table)) = loaded_with(OBJECT, &options) else { return };
    assert!(table.drop_counter().is_none());
    let everything = Claim::new([0; LEVEL_WORDS], [0; LEVEL_WORDS]);
    table.add(&everything, 0, ClaimAction::Redirect).unwrap();
    program.try_frame(&frames()[0], 1).unwrap();
    table.all_drops().allow(false);
    assert_eq!(table.all_drops().read(), Dropped::default());
    assert_eq!(program.counters().unwrap().unserved, 1);
}

/// Longer frames than the program may drop, and all while it may drop none, are redirected.
#[test]
fn the_program_drops_what_it_may() {
    let options = ProgramOptions { drop_bytes_max: 100, ..ProgramOptions::default() };
    let Some((program, mut table)) = loaded_with(OBJECT, &options) else { return };
    let counter = table.drop_counter().unwrap();
    let everything = Claim::new([0; LEVEL_WORDS], [0; LEVEL_WORDS]);
    table.add(&everything, 0, ClaimAction::Drop(counter.clone())).unwrap();
    let ip = FrameBuilder::new().ipv4([10, 1, 2, 3].into(), [192, 0, 2, 10].into());
    let frame = |bytes| ip.clone().udp(1, 2).frame_bytes(bytes).build();
    let try_both = || {
        program.try_frame(&frame(100), 1).unwrap();
        program.try_frame(&frame(101), 1).unwrap();
        (counter.read(), program.counters().unwrap().unserved)
    };
    let one = Dropped { packets: 1, bytes: 100 };
    assert_eq!(try_both(), (one, 1));
    table.all_drops().allow(false);
    assert_eq!(try_both(), (one, 3));
    table.all_drops().allow(true);
    assert_eq!(try_both(), (Dropped { packets: 2, bytes: 200 }, 4));
}

/// While frames arrive, the claim that drops them comes and goes, and another comes before it. A counter that
/// was read after the claim has gone has all that the program dropped; while another comes first, nothing is
/// dropped of frames that have arrived since.
#[test]
fn no_dropped_frame_is_missed_when_its_claim_goes() {
    let Some((program, mut table)) = loaded_from(OBJECT, 1024) else { return };
    let frame = frames().swap_remove(0);
    let exact = Claim::new(image(&frame), [u64::MAX; LEVEL_WORDS]);
    let everything = Claim::new([0; LEVEL_WORDS], [0; LEVEL_WORDS]);
    let (done, batches) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut dropped, rounds) = (0, 400);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                program.try_frame(&frame, 64).unwrap();
                batches.fetch_add(1, Ordering::AcqRel);
            }
        });
        for round in 0..rounds {
            let counter = table.drop_counter().unwrap();
            let action = ClaimAction::Drop(counter.clone());
            table.add(&exact, 0, action.clone()).unwrap();
            let begun = std::time::Instant::now();
            while counter.read().packets == 0 && begun.elapsed().as_secs() < 10 {
                std::hint::spin_loop();
            }
            if round % 2 == 0 {
                table.add(&everything, 0, ClaimAction::Redirect).unwrap();
                let under_way = batches.load(Ordering::Acquire);
                while batches.load(Ordering::Acquire) == under_way && !reader.is_finished() {
                    std::hint::spin_loop();
                }
            } else {
                table.remove(&exact, 0, &action);
            }
            let read = counter.read();
            assert!(read.packets > 0 && read.bytes == read.packets * frame.len() as u64, "{read:?}");
            (0..1000).for_each(|_| std::hint::spin_loop());
            assert_eq!(counter.read(), read, "counted after the claim was gone, or another first");
            dropped += read.packets;
            if round % 2 == 0 {
                table.remove(&everything, 0, &ClaimAction::Redirect);
                table.remove(&exact, 0, &action);
                dropped += counter.read().packets - read.packets;
            }
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert_eq!(table.all_drops().read().packets, dropped);
}

/// Claims come and go by thousands while the program runs; two that stay are never missed, and what is never
/// claimed is redirected only while claims change. There is room for the rules of two rounds, so that their
/// memory is used again after grace periods of the kernel.
#[test]
fn claims_that_stay_are_never_missed_while_others_change() {
    let Some((program, mut table)) = loaded_from(OBJECT, 1024) else { return };
    let frame = |src: u16, dst: u16| {
        let ip = FrameBuilder::new().ipv4([10, 1, 2, 3].into(), [192, 0, 2, 10].into());
        ip.udp(src, dst).frame_bytes(60).build()
    };
    let of_port = |src: u16, dst: u16, mask: u64| {
        let ports = u64::from(src) << 16 | u64::from(dst);
        Claim::new([1 << 60 | ports, 0, 0, 0, 0, 0, 0, 0], [1 << 60 | mask, 0, 0, 0, 0, 0, 0, 0])
    };
    let (both, one) = (0xffff_ffff, 0xffff);
    table.add(&of_port(7, 7, both), 0, ClaimAction::Redirect).unwrap();
    table.add(&of_port(0, 9, one), 0, ClaimAction::Redirect).unwrap();
    let (claimed, unclaimed) = ([frame(7, 7), frame(1, 9)], frame(40_000, 40_000));
    let done = AtomicBool::new(false);
    let runs = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut runs = 0u64;
            while !done.load(Ordering::Acquire) {
                for frame in &claimed {
                    assert!(!program.try_frame(frame, 1).unwrap().is_passed, "a claimed frame was passed");
                }
                program.try_frame(&unclaimed, 1).unwrap();
                runs += 3;
            }
            runs
        });
        for round in 0..40u16 {
            let claims: Vec<Claim> = (0..500)
                .map(|number| of_port(number % 16, number ^ round, if number % 3 == 0 { both } else { one }))
                .collect();
            for claim in &claims {
                table.add(claim, 0, ClaimAction::Redirect).unwrap();
            }
            for claim in &claims {
                table.remove(claim, 0, &ClaimAction::Redirect);
            }
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    let counters = program.counters().unwrap();
    println!("{runs} runs beside 40,000 changes: {counters:?}");
    assert_eq!(counters.unserved, runs / 3 * 2 + counters.beyond_bounds);
    assert_eq!(counters.passed + counters.beyond_bounds, runs / 3);
    assert!(counters.passed > 0, "all are redirected");
    let before = counters;
    (0..1000).for_each(|_| _ = program.try_frame(&unclaimed, 1).unwrap());
    assert_eq!(program.counters().unwrap().passed, before.passed + 1000);
}

/// Runs the program over a frame again and again while one of two claims is in force all the time, each in
/// turn. Returns how often it ran.
fn taking_turns(
    program: &SteeringProgram,
    table: &mut ClaimTable,
    frame: &[u8],
    claims: &[(Claim, ClaimAction); 2],
) -> u64 {
    // The changes and the calls wait for grace periods of the kernel, so a call must be long enough to
    // overlap many changes.
    const BATCH: u32 = 1 << 16;
    let done = AtomicBool::new(false);
    let [one, other] = claims;
    table.add(&one.0, 0, one.1.clone()).unwrap();
    // Each claim has met the frame at least once, however the threads are scheduled.
    program.try_frame(frame, 1).unwrap();
    for (comes, goes) in [(other, one), (one, other)] {
        table.add(&comes.0, 0, comes.1.clone()).unwrap();
        assert!(table.remove(&goes.0, 0, &goes.1));
        program.try_frame(frame, 1).unwrap();
    }
    let alone = 3;
    let beside_changes = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut runs = 0u64;
            while !done.load(Ordering::Acquire) {
                program.try_frame(frame, BATCH).unwrap();
                runs += u64::from(BATCH);
            }
            runs
        });
        for _ in 0..100_000 {
            for (comes, goes) in [(other, one), (one, other)] {
                table.add(&comes.0, 0, comes.1.clone()).unwrap();
                assert!(table.remove(&goes.0, 0, &goes.1));
            }
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    alone + beside_changes
}

/// A claim that redirects and one that drops are in different trees.
#[test]
fn a_claim_that_takes_the_place_of_another_is_never_missed() {
    // On x86 the second run shows only that the kernel takes the program with barriers.
    for orders_loads in [REORDERS_LOADS, true] {
        let options = ProgramOptions { claims: 1024, unserved: Unserved::Drop, ..Default::default() };
        let Some((program, mut table)) = loaded_ordering(OBJECT, &options, orders_loads) else { return };
        let frame = frames().swap_remove(0);
        let exact = Claim::new(image(&frame), [u64::MAX; LEVEL_WORDS]);
        let drops = ClaimAction::Drop(table.drop_counter().unwrap());
        let claims = [(exact, ClaimAction::Redirect), (exact, drops)];
        let runs = taking_turns(&program, &mut table, &frame, &claims);
        let (counters, dropped) = (program.counters().unwrap(), table.all_drops().read().packets);
        println!("{runs} runs beside 200,000 changes: {counters:?}, {dropped} dropped");
        assert_eq!((counters.passed, counters.unserved + dropped), (0, runs));
        assert!(dropped > 0 && counters.unserved > 0);
    }
}

/// Claims of different trees redirect in turn, before one of all packets that drops.
#[test]
fn nothing_is_dropped_while_claims_that_come_first_take_turns() {
    let Some((program, mut table)) = loaded_from(OBJECT, 1024) else { return };
    let frame = frames().swap_remove(0);
    let everything = Claim::new([0; LEVEL_WORDS], [0; LEVEL_WORDS]);
    let drops = ClaimAction::Drop(table.drop_counter().unwrap());
    let exact = Claim::new(image(&frame), [u64::MAX; LEVEL_WORDS]);
    let mut addresses_alone = [u64::MAX; LEVEL_WORDS];
    addresses_alone[SRC_PORT.word()] = 1 << HAS_IPV4.shift();
    let similar = Claim::new(image(&frame), addresses_alone);
    table.add(&everything, 1, drops).unwrap();
    let claims = [(exact, ClaimAction::Redirect), (similar, ClaimAction::Redirect)];
    let runs = taking_turns(&program, &mut table, &frame, &claims);
    let dropped = table.all_drops().read().packets;
    println!("{runs} runs beside 200,000 changes: {:?}, {dropped} dropped", program.counters().unwrap());
    assert_eq!(dropped, 0);
    table.remove(&exact, 0, &ClaimAction::Redirect);
    program.try_frame(&frame, 1).unwrap();
    assert_eq!(table.all_drops().read().packets, 1, "nothing comes first any more");
}

#[test]
fn the_object_is_what_its_source_compiles_to() {
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("steer.o");
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/program/build");
    let run = std::process::Command::new(build).arg(&object).output();
    match run {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            return not_run("the source of the XDP program", &String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => return not_run("the source of the XDP program", &error.to_string()),
    }
    let built = std::fs::read(&object).unwrap();
    let version = std::process::Command::new("clang").arg("-dumpversion").output().unwrap();
    if version.stdout.starts_with(OBJECT_CLANG) {
        assert!(built == OBJECT, "run crates/xdp/program/build and commit the object");
    }
    // Another compiler makes other instructions, of the same effect.
    let Some((program, mut claims)) = loaded_from(&built, 1024) else { return };
    for frame in frames() {
        check_image(&program, &mut claims, &frame);
    }
}
