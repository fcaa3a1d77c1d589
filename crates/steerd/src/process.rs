//! What the process itself uses, from /proc/self (proc_pid_stat(5)); asked for by metrics only.

use std::fs;

#[derive(Debug, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) open_files: u64,
}

/// `None` where /proc is hidden.
pub(crate) fn usage() -> Option<Usage> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (ticks, pages) = parse(&stat)?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let page_bytes = rustix::param::page_size() as u64;
    #[allow(clippy::cast_precision_loss)]
    let cpu_seconds = ticks as f64 / ticks_per_second as f64;
    let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(Usage { cpu_seconds, resident_bytes: pages * page_bytes, open_files })
}

/// utime + stime and rss, counted after the name, which may itself hold blanks and brackets.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Field 3 (state) is the first here: utime is field 14, stime 15, rss 24.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((field(14)? + field(15)?, field(24)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 23 13 14 15 16 17 18 19 20 555 22";
        assert_eq!(parse(stat), Some((123, 555)));
        assert_eq!(parse("7 no name"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = usage().expect("/proc");
        assert!(usage.resident_bytes > 0 && usage.open_files > 0);
    }
}
