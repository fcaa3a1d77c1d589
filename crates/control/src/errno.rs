//! Errnos in words, with what to do about them when a device refuses a flow.
//! Numbers from asm-generic/errno*.h; meanings from ibv_create_flow(3) and facts about real devices.

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EACCES: i32 = 13;
pub(crate) const ENOSYS: i32 = 38;
pub(crate) const EOPNOTSUPP: i32 = 95;

struct Entry {
    number: i32,
    name: &'static str,
    words: &'static str,
    remedy: &'static str,
}

const PERMISSION: &str = "steering needs CAP_NET_RAW and access to /dev/infiniband/uverbs*: run as root, or grant it (systemd: AmbientCapabilities=CAP_NET_RAW)";

const TABLE: &[Entry] = &[
    Entry { number: EPERM, name: "EPERM", words: "operation not permitted", remedy: PERMISSION },
    Entry {
        number: 5,
        name: "EIO",
        words: "input/output error",
        remedy: "the device failed; see the kernel log",
    },
    Entry { number: 11, name: "EAGAIN", words: "try again", remedy: "the device is busy; reload once more" },
    Entry {
        number: ENOMEM,
        name: "ENOMEM",
        words: "out of memory or of device entries",
        remedy: "the device has no room for this entry or priority: use fewer rules or overlaps; if the locked-memory limit is low (`ulimit -l`), raise it (systemd: LimitMEMLOCK=infinity)",
    },
    Entry { number: EACCES, name: "EACCES", words: "permission denied", remedy: PERMISSION },
    Entry {
        number: 16,
        name: "EBUSY",
        words: "busy",
        remedy: "another process holds the object; stop it or wait",
    },
    Entry {
        number: 17,
        name: "EEXIST",
        words: "exists already",
        remedy: "the same match is installed at the same priority with another action, perhaps by another process on this device",
    },
    Entry {
        number: 19,
        name: "ENODEV",
        words: "no such device",
        remedy: "the device went away; check the cable and the driver",
    },
    Entry {
        number: 22,
        name: "EINVAL",
        words: "invalid argument",
        remedy: "the device does not take this combination of matches, masks or priority; `steerd check` with its profile says which rules it can hold",
    },
    Entry {
        number: 28,
        name: "ENOSPC",
        words: "no space left",
        remedy: "the device's table is full: use fewer rules, ranges or sets",
    },
    Entry {
        number: ENOSYS,
        name: "ENOSYS",
        words: "not implemented",
        remedy: "the driver lacks this operation; a newer rdma-core or another device may have it",
    },
    Entry {
        number: EOPNOTSUPP,
        name: "EOPNOTSUPP",
        words: "not supported",
        remedy: "the device cannot match or do this (copies, sniffers and rules on sent packets depend on its firmware); match something coarser and let the workers finish",
    },
    Entry {
        number: 110,
        name: "ETIMEDOUT",
        words: "timed out",
        remedy: "the device's firmware did not answer; see the kernel log",
    },
];

fn entry(number: i32) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.number == number)
}

/// `EINVAL (invalid argument)`.
pub(crate) fn in_words(number: i32) -> String {
    entry(number).map_or_else(
        || std::io::Error::from_raw_os_error(number).to_string(),
        |entry| format!("{} ({})", entry.name, entry.words),
    )
}

/// What to do about it; empty where nobody knows.
pub(crate) fn remedy(number: i32) -> &'static str {
    entry(number).map_or("", |entry| entry.remedy)
}

/// Whether the device says that it has no such thing at all.
pub(crate) fn unsupported(number: i32) -> bool {
    matches!(number, ENOSYS | EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_agree_with_the_c_library() {
        // strerror's words differ in detail; the number behind each name must not.
        let numbers = [
            ("EPERM", libc::EPERM),
            ("EIO", libc::EIO),
            ("EAGAIN", libc::EAGAIN),
            ("ENOMEM", libc::ENOMEM),
            ("EACCES", libc::EACCES),
            ("EBUSY", libc::EBUSY),
            ("EEXIST", libc::EEXIST),
            ("ENODEV", libc::ENODEV),
            ("EINVAL", libc::EINVAL),
            ("ENOSPC", libc::ENOSPC),
            ("ENOSYS", libc::ENOSYS),
            ("EOPNOTSUPP", libc::EOPNOTSUPP),
            ("ETIMEDOUT", libc::ETIMEDOUT),
        ];
        let table: Vec<_> = TABLE.iter().map(|entry| (entry.name, entry.number)).collect();
        assert_eq!(table, numbers);
        assert!(TABLE.iter().all(|entry| !entry.remedy.is_empty()));
        assert_eq!(in_words(libc::EPERM), "EPERM (operation not permitted)");
        assert!(remedy(libc::EPERM).contains("CAP_NET_RAW"));
        assert!(in_words(libc::ECONNRESET).contains("104") && remedy(libc::ECONNRESET).is_empty());
    }
}
