//! Arenas on the system as it is: nothing here reserves hugepages or changes a setting.

use std::fs;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use test_support::not_run;

use super::*;
use crate::free_list::{BLOCK_GRANULE_BYTES, MAX_BLOCKS};
use crate::mapping::tests::{page_bytes, resident_pages};

fn plain(bytes: usize) -> Arc<Arena> {
    arena(bytes, &[PageKind::Plain])
}

fn arena(bytes: usize, pages: &[PageKind]) -> Arc<Arena> {
    Arena::map(&ArenaOptions { pages: pages.to_vec(), ..ArenaOptions::new("test", bytes) }).unwrap()
}

/// Hugepages of this size that a process could get now; what is reserved counts as free until it is touched.
fn obtainable(kib: usize) -> usize {
    let count = |file: &str| -> usize {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{file}");
        fs::read_to_string(path).map_or(0, |text| text.trim().parse().unwrap())
    };
    count("free_hugepages").saturating_sub(count("resv_hugepages")) + count("nr_overcommit_hugepages")
}

/// The lines of /proc/self/smaps about the mapping that holds `address`.
fn smaps(address: usize) -> Vec<String> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let holds = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        Some(range.contains(&address))
    };
    smaps
        .lines()
        .skip_while(|line| holds(line) != Some(true))
        .enumerate()
        .take_while(|(i, line)| *i == 0 || holds(line).is_none())
        .map(|(_, line)| line.to_owned())
        .collect()
}

#[test]
fn unreserved_hugepages_fall_back_in_order_and_say_how_to_reserve_them() {
    let tried = [PageKind::Huge1G, PageKind::Huge2M, PageKind::Plain];
    let there = [obtainable(1 << 20) > 0, obtainable(2 << 10) > 0, true];
    let refused: Vec<PageKind> =
        tried.iter().zip(there).take_while(|(_, there)| !there).map(|(kind, _)| *kind).collect();
    if refused.is_empty() {
        return not_run("falling back from 1 GiB hugepages", "some are free");
    }
    let arena = arena(1 << 20, &tried);
    assert_eq!(arena.page_kind(), tried[refused.len()]);
    let kinds: Vec<PageKind> = arena
        .warnings()
        .iter()
        .filter_map(|warning| match warning {
            HugememWarning::Refused { kind, .. } => Some(*kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, refused);
    for warning in arena.warnings() {
        let text = warning.to_string();
        assert!(
            text.contains("arena test") && (text.contains("hugepages") || text.contains("leave")),
            "{text}"
        );
    }
    assert!(arena.carve(1 << 20, 64).is_some());
}

#[test]
fn when_every_kind_is_refused_the_error_lists_them() {
    let there = fs::read_to_string("/proc/meminfo").unwrap();
    let total_kib: usize = there.split_whitespace().nth(1).unwrap().parse().unwrap();
    let options = ArenaOptions {
        pages: vec![PageKind::Transparent, PageKind::Plain],
        ..ArenaOptions::new("greedy", total_kib * 1024)
    };
    let error = Arena::map(&options).unwrap_err();
    let HugememError::Map { refused, .. } = &error else { panic!("{error}") };
    assert_eq!(refused.len(), 2);
    let text = error.to_string();
    assert!(text.contains("greedy") && text.contains("no plain pages"), "{text}");
    assert_eq!(text.matches("MiB are available").count(), 2, "both refusals give their reason: {text}");
}

#[test]
fn impossible_options_are_refused() {
    for bytes in [0, MAX_ARENA_BYTES + 1, usize::MAX] {
        assert!(matches!(Arena::map(&ArenaOptions::new("test", bytes)), Err(HugememError::Size { .. })));
    }
    let none = ArenaOptions { pages: Vec::new(), ..ArenaOptions::new("test", 4096) };
    assert!(matches!(Arena::map(&none), Err(HugememError::NoPageKind { .. })));
}

#[test]
fn arenas_are_resident_and_stay_out_of_forked_children() {
    let arena = plain(3 << 20);
    let address = arena.mapping.base().addr().get();
    let smaps = smaps(address);
    let field = |name: &str| smaps.iter().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert!(field("VmFlags:").split(' ').any(|flag| flag == "dc"), "{smaps:?}");
    assert_eq!(resident_pages(&arena.mapping), (3 << 20) / page_bytes());
}

#[test]
fn transparent_arenas_start_on_a_huge_page() {
    let arena = arena(3 << 20, &[PageKind::Transparent, PageKind::Plain]);
    if arena.page_kind() == PageKind::Plain {
        assert_eq!(arena.warnings().len(), 1);
        return;
    }
    assert_eq!(arena.bytes(), 4 << 20);
    assert!(arena.carve(4 << 20, 2 << 20).is_some());
    let flags = smaps(arena.mapping.base().addr().get());
    assert!(flags.iter().any(|line| line.starts_with("VmFlags:") && line.contains(" hg")), "{flags:?}");
}

#[test]
fn reserved_hugepages_are_used_where_there_are_some() {
    if obtainable(2 << 10) == 0 {
        return not_run("hugepages of 2 MiB", "none is free (sysctl -w vm.nr_hugepages=16)");
    }
    let arena = arena(1 << 20, &[PageKind::Huge2M]);
    assert_eq!((arena.page_kind(), arena.bytes(), arena.warnings().len()), (PageKind::Huge2M, 2 << 20, 0));
    assert!(arena.carve(2 << 20, 2 << 20).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn node_zero_binds_or_says_why_not() {
    let options = ArenaOptions {
        pages: vec![PageKind::Plain],
        numa_node: Some(0),
        ..ArenaOptions::new("test", 1 << 20)
    };
    let arena = Arena::map(&options).unwrap();
    let Ok(numa_maps) = fs::read_to_string("/proc/self/numa_maps") else {
        return not_run("binding to a NUMA node", "the kernel has no /proc/self/numa_maps");
    };
    let bound = numa_maps.lines().any(|line| {
        line.starts_with(&format!("{:x} ", arena.mapping.base().addr())) && line.contains(" bind:0 ")
    });
    assert_eq!(bound, arena.warnings().is_empty(), "{:?}", arena.warnings());
}

#[test]
fn an_absent_node_is_a_warning() {
    for numa_node in [1023, 1024, u32::MAX] {
        let options = ArenaOptions {
            pages: vec![PageKind::Plain],
            numa_node: Some(numa_node),
            ..ArenaOptions::new("test", 1 << 20)
        };
        let arena = Arena::map(&options).unwrap();
        let [warning @ HugememWarning::NumaBind { .. }] = arena.warnings() else {
            panic!("{:?}", arena.warnings())
        };
        assert!(warning.to_string().contains(&format!("node {numa_node} ")), "{warning}");
    }
}

#[test]
fn used_memory_is_zero_when_carved_again() {
    let arena = plain(64 << 10);
    let mut block = arena.carve(64 << 10, 64).unwrap();
    block.fill(0xa5);
    drop(block);
    let block = arena.carve(100, 64).unwrap();
    assert_eq!(block.len(), 100);
    assert!(block.iter().all(|byte| *byte == 0));
}

#[test]
fn blocks_keep_their_arena() {
    let arena = plain(64 << 10);
    let mut block = arena.carve(4096, 4096).unwrap();
    drop(arena);
    block.fill(1);
    assert_eq!(block.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 4096);
    assert_eq!(block.arena.free_bytes(), (64 << 10) - 4096);
}

#[test]
fn what_does_not_fit_is_none() {
    let arena = plain(64 << 10);
    for (bytes, align) in [(0, 64), (1, 3), (1, 0), ((64 << 10) + 1, 1), (usize::MAX, 1), (1, 1 << 63)] {
        assert!(arena.carve(bytes, align).is_none(), "{bytes} at {align}");
    }
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn threads_carve_and_drop_side_by_side() {
    let arena = plain(1 << 20);
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let arena = &arena;
            scope.spawn(move || {
                for turn in 0..500_usize {
                    let Some(mut block) = arena.carve(64 + turn * 16 % 5000, 256) else { continue };
                    assert!(block.iter().all(|byte| *byte == 0));
                    block.fill(thread);
                    std::thread::yield_now();
                    assert!(block.iter().all(|byte| *byte == thread), "another thread wrote here");
                }
            });
        }
    });
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn limits_hold_together() {
    // The list of free ranges has at most one more entry than there are blocks.
    const { assert!(MAX_BLOCKS < MAX_ARENA_BYTES / BLOCK_GRANULE_BYTES) };
    for kind in PageKind::ALL {
        assert!(kind.page_bytes().is_multiple_of(BLOCK_GRANULE_BYTES));
        assert!(MAX_ARENA_BYTES.is_multiple_of(kind.page_bytes()), "rounding up must not pass the limit");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_never_overlap_and_the_arena_recovers(steps in proptest::collection::vec((any::<bool>(), 1..20_000_usize, 0..13_u32, any::<prop::sample::Index>()), 1..60)) {
        let arena = plain(128 << 10);
        let mut blocks: Vec<(u8, Block)> = Vec::new();
        for (step, (free, bytes, align_log2, which)) in steps.into_iter().enumerate() {
            if free && !blocks.is_empty() {
                let (mark, block) = blocks.swap_remove(which.index(blocks.len()));
                prop_assert!(block.iter().all(|byte| *byte == mark), "a block was written through another");
            } else if let Some(mut block) = arena.carve(bytes, 1 << align_log2) {
                prop_assert_eq!(block.len(), bytes);
                prop_assert!(block.as_ptr().addr().is_multiple_of(1 << align_log2));
                prop_assert!(block.iter().all(|byte| *byte == 0));
                let mark = step as u8 + 1;
                block.fill(mark);
                blocks.push((mark, block));
            }
        }
        for (mark, block) in &blocks {
            prop_assert!(block.iter().all(|byte| byte == mark), "a block was written through another");
        }
        drop(blocks);
        prop_assert_eq!(arena.free_bytes(), arena.bytes());
        prop_assert!(arena.carve(arena.bytes(), 1).is_some());
    }
}

#[test]
fn threads_share_the_words_of_a_block() {
    let arena = plain(1 << 16);
    assert!(arena.carve_words(usize::MAX).is_none() && arena.carve_words(0).is_none());
    let words = arena.carve_words(1000).unwrap();
    assert!(words.len() == 1000 && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    std::thread::scope(|scope| {
        for first in [0, 1] {
            let words = &words;
            scope.spawn(move || {
                words.iter().skip(first).step_by(2).for_each(|word| word.store(7, Ordering::Relaxed));
            });
        }
    });
    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 7));
    drop(words);
    assert_eq!(arena.free_bytes(), arena.bytes());
}
