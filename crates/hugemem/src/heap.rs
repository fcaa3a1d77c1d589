//! The process's heap: returning freed memory to the kernel.

/// Returns freed memory of the heap, and of [scopes](crate::in_scope), to the kernel, also between blocks that are in use, in all arenas
/// (malloc_trim(3)). To be called after work that allocated much and freed it: glibc by itself returns only the top
/// of an arena, and a thread's arena keeps what its short life has used. Takes milliseconds; allocations of other
/// threads wait meanwhile. Does nothing with a C library other than glibc.
pub fn release_free_heap() {
    crate::scoped::release();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim takes any padding, and locks each arena while it works on it (MT-Safe by its man
        // page); it only gives pages back that no live allocation uses.
        unsafe { libc::malloc_trim(0) };
    }
}

/// The smallest block that is mapped by itself, and the most free memory at the top of the heap: glibc's initial values of
/// M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 128 << 10;

/// Has all threads allocate from one heap, for a process whose threads allocate rarely (M_ARENA_MAX of mallopt(3)):
/// with an arena per thread, what each short-lived thread has used stays with its arena. Has large blocks always be mapped
/// by themselves (M_MMAP_THRESHOLD), so that they are returned when they are freed: otherwise glibc takes later blocks of a
/// size that was freed once, up to 32 MiB, from the heap. `false`: there are other threads already, or the C library is
/// another; nothing has changed.
pub fn use_one_heap() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
        let options = [
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
            (libc::M_TRIM_THRESHOLD, LARGE_BYTES),
        ];
        // SAFETY: mallopt is MT-unsafe only while other threads allocate (its man page: "init"), and this is the
        // only thread, so none can start one meanwhile.
        is_alone && options.into_iter().all(|(option, value)| unsafe { libc::mallopt(option, value) } == 1)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_between_blocks_in_use_goes_back() {
        let resident_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
            line.split_whitespace().next().and_then(|kib| kib.parse::<i64>().ok()).expect("a number")
        };
        // 64 MiB in blocks that glibc does not map one by one, a few of which stay.
        let mut blocks: Vec<Option<Vec<u8>>> = (0..4096).map(|_| Some(vec![1; 16 * 1024])).collect();
        for (index, block) in blocks.iter_mut().enumerate() {
            if index % 64 != 63 {
                *block = None;
            }
        }
        let before = resident_kib();
        super::release_free_heap();
        let after = resident_kib();
        assert!(before - after > 32 * 1024, "{before} KiB before, {after} KiB after");
        assert_eq!(blocks.iter().flatten().count(), 64);
    }
}
