//! Error numbers: their names, their meanings, and what to do about those that refuse a flow.
//! Meanings from ibv_create_flow(3) and the kernel's checks (drivers/infiniband/core/uverbs_cmd.c).

use std::fmt;

/// An error number of the C library, displayed as `EINVAL (invalid argument)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VerbsErrno(pub i32);

struct Entry {
    number: i32,
    name: &'static str,
    meaning: &'static str,
    remedy: &'static str,
}

const PERMISSION: &str = "steering needs CAP_NET_RAW and access to /dev/infiniband/uverbs*: run as root, or grant it (systemd: AmbientCapabilities=CAP_NET_RAW)";

const DEVICE_GONE: &str = "the device went away; check the cable and the driver";

const TABLE: &[Entry] = &[
    Entry { number: libc::EPERM, name: "EPERM", meaning: "operation not permitted", remedy: PERMISSION },
    Entry {
        number: libc::ENOENT,
        name: "ENOENT",
        meaning: "no such object",
        // Linux of 2025 and later, mlx5/core/fs_pool.c, `mlx5_fs_pool_acquire_index`: no counter is left.
        remedy: "an object that the flow refers to no longer exists, or the device has no counter left (mlx5, kernels since 2025): \
                 reload once more, or with fewer rules that drop",
    },
    Entry {
        number: libc::EIO,
        name: "EIO",
        meaning: "input/output error",
        remedy: "the device failed; see the kernel log",
    },
    Entry { number: libc::ENXIO, name: "ENXIO", meaning: "no such device or address", remedy: DEVICE_GONE },
    Entry {
        number: libc::EAGAIN,
        name: "EAGAIN",
        meaning: "try again",
        remedy: "the device is busy; reload once more",
    },
    Entry {
        number: libc::ENOMEM,
        name: "ENOMEM",
        meaning: "out of memory or of device entries",
        remedy: "the priority is above the device's highest, or its flow table is full: use fewer rules or overlaps; if the locked-memory limit is low (`ulimit -l`), raise it (systemd: LimitMEMLOCK=infinity)",
    },
    Entry { number: libc::EACCES, name: "EACCES", meaning: "permission denied", remedy: PERMISSION },
    Entry {
        number: libc::EBUSY,
        name: "EBUSY",
        meaning: "busy",
        remedy: "another process holds the object; stop it or wait",
    },
    Entry {
        number: libc::EEXIST,
        name: "EEXIST",
        meaning: "exists already",
        remedy: "the same match is installed at the same priority with another action, perhaps by another process on this device",
    },
    Entry { number: libc::ENODEV, name: "ENODEV", meaning: "no such device", remedy: DEVICE_GONE },
    Entry {
        number: libc::EINVAL,
        name: "EINVAL",
        meaning: "invalid argument",
        remedy: "the device does not take this combination of matches, masks or priority; `steerd check` with its device model shows which rules it can hold",
    },
    Entry {
        number: libc::ENOSPC,
        name: "ENOSPC",
        meaning: "no space left",
        remedy: "the device's table is full: use fewer rules, ranges or sets",
    },
    Entry {
        number: libc::ENOSYS,
        name: "ENOSYS",
        meaning: "not implemented",
        remedy: "the driver lacks this operation; a newer rdma-core or another device may have it",
    },
    Entry {
        number: libc::EOPNOTSUPP,
        name: "EOPNOTSUPP",
        meaning: "not supported",
        remedy: "the device cannot match or do this (copies, sniffers and rules on sent packets depend on its firmware); match something coarser and let the workers finish",
    },
    Entry {
        number: libc::ETIMEDOUT,
        name: "ETIMEDOUT",
        meaning: "timed out",
        remedy: "the device's firmware did not answer; see the kernel log",
    },
];

impl VerbsErrno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(libc::EPERM);
    /// An argument that is not valid.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// No memory, or no room in a queue.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// In use by another thread.
    pub const EBUSY: Self = Self(libc::EBUSY);
    /// The device or its driver lacks the operation.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);

    fn entry(self) -> Option<&'static Entry> {
        TABLE.iter().find(|entry| entry.number == self.0)
    }

    /// The name of the number, such as `EINVAL`.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.name)
    }

    /// The remedy when a device refuses a flow with this number, if one is known.
    #[must_use]
    pub fn flow_remedy(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.remedy)
    }

    /// Whether the device or its driver lacks the operation.
    #[must_use]
    pub const fn is_unsupported(self) -> bool {
        matches!(self.0, libc::ENOSYS | libc::EOPNOTSUPP)
    }
}

impl fmt::Display for VerbsErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some(entry) => write!(f, "{} ({})", entry.name, entry.meaning),
            None => std::io::Error::from_raw_os_error(self.0).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_meanings_and_remedies() {
        let names: Vec<_> = TABLE.iter().map(|entry| entry.name).collect();
        assert_eq!(
            names.join(" "),
            "EPERM ENOENT EIO ENXIO EAGAIN ENOMEM EACCES EBUSY EEXIST ENODEV EINVAL ENOSPC ENOSYS EOPNOTSUPP ETIMEDOUT"
        );
        let numbers: Vec<_> = TABLE.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [1, 2, 5, 6, 11, 12, 13, 16, 17, 19, 22, 28, 38, 95, 110], "asm-generic/errno.h");
        assert!(TABLE.iter().all(|entry| !entry.remedy.is_empty()));
        assert_eq!(VerbsErrno(libc::EPERM).to_string(), "EPERM (operation not permitted)");
        assert!(VerbsErrno(libc::EPERM).flow_remedy().is_some_and(|remedy| remedy.contains("CAP_NET_RAW")));
        assert!(VerbsErrno(libc::ECONNRESET).to_string().contains("104"));
        assert_eq!(VerbsErrno(libc::ECONNRESET).flow_remedy(), None);
    }
}
