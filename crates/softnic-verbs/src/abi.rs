//! The private layouts of libibverbs that a provider shares with the library, as data.
//!
//! `driver.h` is not installed by libibverbs-dev, so the few structs are declared here. Sources: rdma-core
//! `libibverbs/driver.h`, releases 37 to 65 (65 as of commit 691953d8d, before its tag). Used by `library`
//! and `device`; independent of this crate's objects.

use std::ffi::{CStr, c_char, c_int, c_void};

use ibverbs_sys::{ibv_context, ibv_device, ibv_mr};

/// The oldest release that opens a device without sysfs.
pub(crate) const OLDEST_RELEASE: u32 = 37;
/// The newest release whose op table is known.
pub(crate) const NEWEST_RELEASE: u32 = 65;

/// The size of a `verbs_context`: the largest known one is 368 bytes and an `ibv_context`; the rest is slack.
pub(crate) const VERBS_CONTEXT_BYTES: usize = 368 + size_of::<ibv_context>() + 1024;

/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`: without it `ibv_reg_mr` strips the optional access flags.
pub(crate) const CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1;

/// `struct verbs_device_ops`, the same in all releases.
#[repr(C)]
pub(crate) struct VerbsDeviceOps {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    pub(crate) match_table: *const c_void,
    pub(crate) static_providers: *const c_void,
    pub(crate) match_device: unsafe extern "C" fn(*const SysfsDevice) -> bool,
    pub(crate) alloc_context: unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut c_void,
    pub(crate) import_context: *const c_void,
    pub(crate) alloc_device: unsafe extern "C" fn(*const SysfsDevice) -> *mut VerbsDevice,
    pub(crate) uninit_device: unsafe extern "C" fn(*mut VerbsDevice),
}

// SAFETY: immutable once built; the pointers are NULL or name static data.
unsafe impl Sync for VerbsDeviceOps {}

/// The beginning of `struct verbs_sysfs_dev`, the same in all releases.
#[repr(C)]
pub(crate) struct SysfsDevice {
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) provider_data: *mut c_void,
    pub(crate) matched: *const c_void,
    pub(crate) flags: u32,
    pub(crate) sysfs_name: [c_char; SYSFS_NAME_BYTES],
    pub(crate) sysfs_cdev: libc::dev_t,
    pub(crate) ibdev_name: [c_char; SYSFS_NAME_BYTES],
}

/// `IBV_SYSFS_NAME_MAX`.
const SYSFS_NAME_BYTES: usize = 64;

/// `struct verbs_device`, the same in all releases.
#[repr(C)]
pub(crate) struct VerbsDevice {
    pub(crate) device: ibv_device,
    pub(crate) ops: *const VerbsDeviceOps,
    /// Counted by the library with atomic operations, from 1.
    pub(crate) refcount: c_int,
    /// `struct list_node`, unused without sysfs.
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) sysfs: *mut c_void,
    pub(crate) core_support: u64,
}

/// `struct verbs_mr`, the same in all releases.
#[repr(C)]
pub(crate) struct VerbsMr {
    pub(crate) ibv_mr: ibv_mr,
    pub(crate) mr_type: c_int,
    pub(crate) access: c_int,
}

/// `struct ibv_wc`. The bindings leave its fields private, and this side must write them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// The ops of releases 36 to 58, in the order of `struct verbs_context_ops`: by name.
const OPS: [&str; 76] = [
    "advise_mr",
    "alloc_dm",
    "alloc_mw",
    "alloc_null_mr",
    "alloc_parent_domain",
    "alloc_pd",
    "alloc_td",
    "async_event",
    "attach_counters_point_flow",
    "attach_mcast",
    "bind_mw",
    "close_xrcd",
    "cq_event",
    "create_ah",
    "create_counters",
    "create_cq",
    "create_cq_ex",
    "create_flow",
    "create_flow_action_esp",
    "create_qp",
    "create_qp_ex",
    "create_rwq_ind_table",
    "create_srq",
    "create_srq_ex",
    "create_wq",
    "dealloc_mw",
    "dealloc_pd",
    "dealloc_td",
    "dereg_mr",
    "destroy_ah",
    "destroy_counters",
    "destroy_cq",
    "destroy_flow",
    "destroy_flow_action",
    "destroy_qp",
    "destroy_rwq_ind_table",
    "destroy_srq",
    "destroy_wq",
    "detach_mcast",
    "free_context",
    "free_dm",
    "get_srq_num",
    "import_dm",
    "import_mr",
    "import_pd",
    "modify_cq",
    "modify_flow_action_esp",
    "modify_qp",
    "modify_qp_rate_limit",
    "modify_srq",
    "modify_wq",
    "open_qp",
    "open_xrcd",
    "poll_cq",
    "post_recv",
    "post_send",
    "post_srq_ops",
    "post_srq_recv",
    "query_device_ex",
    "query_ece",
    "query_port",
    "query_qp",
    "query_qp_data_in_order",
    "query_rt_values",
    "query_srq",
    "read_counters",
    "reg_dm_mr",
    "reg_dmabuf_mr",
    "reg_mr",
    "req_notify_cq",
    "rereg_mr",
    "resize_cq",
    "set_ece",
    "unimport_dm",
    "unimport_mr",
    "unimport_pd",
];

/// The private versions, after which each release's `verbs_register_driver_NN` is called, newest first.
pub(crate) const REGISTER_SYMBOLS: [&CStr; 5] = [
    c"verbs_register_driver_65",
    c"verbs_register_driver_64",
    c"verbs_register_driver_59",
    c"verbs_register_driver_57",
    c"verbs_register_driver_34",
];

/// The operations that later releases put in between.
const ADDED_OPS: [(u32, &[&str]); 4] = [
    (59, &["alloc_dmah", "dealloc_dmah", "reg_mr_ex"]),
    (62, &["dm_export_dmabuf_fd", "query_port_speed"]),
    (64, &["alloc_buf", "free_buf"]),
    (
        65,
        &[
            "create_comp_cntr",
            "destroy_comp_cntr",
            "inc_comp_cntr",
            "inc_err_comp_cntr",
            "qp_attach_comp_cntr",
            "query_comp_cntr_caps",
            "read_comp_cntr",
            "read_err_comp_cntr",
            "set_comp_cntr",
            "set_err_comp_cntr",
        ],
    ),
];

/// The members of `struct verbs_context_ops` of a release, in order.
pub(crate) fn op_names(release: u32) -> Vec<&'static str> {
    let mut names = OPS.to_vec();
    for (since, added) in ADDED_OPS {
        if release >= since {
            names.extend_from_slice(added);
        }
    }
    names.sort_unstable();
    names
}

/// How many functions `struct ibv_qp_ex` has in a release; `verbs_qp.comp_mask` is behind them.
pub(crate) fn qp_ex_functions(release: u32) -> usize {
    match release {
        ..=43 => 20,
        // With `wr_atomic_write`.
        44 => 21,
        // With `wr_flush`.
        45.. => 22,
    }
}

/// The release in a library's file name, `libibverbs.so.1.<abi>.<release>.<patch>`.
pub(crate) fn release_of(file_name: &str) -> Option<u32> {
    let version = file_name.strip_prefix("libibverbs.so.1.")?;
    let release = version.split('.').nth(1)?.parse().ok()?;
    (OLDEST_RELEASE..=NEWEST_RELEASE).contains(&release).then_some(release)
}

/// Where `ibv_context` lies in an initialised `verbs_context`, found by its self-description: the word before
/// it (`sz`) is the size of the whole, so its own offset plus a word plus an `ibv_context`.
pub(crate) fn context_offset(words: &[usize]) -> Option<usize> {
    let word = size_of::<usize>();
    (0..words.len())
        .map(|index| (index * word + word, words[index]))
        .find(|&(offset, sz)| sz == offset + size_of::<ibv_context>() && offset > word)
        .map(|(offset, _)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_tables_have_the_lengths_of_their_releases() {
        let lengths: Vec<_> =
            [37, 44, 58, 59, 61, 62, 63, 64, 65].map(|release| op_names(release).len()).to_vec();
        assert_eq!(lengths, [76, 76, 76, 79, 79, 81, 81, 83, 93]);
    }

    #[test]
    fn added_ops_shift_their_successors() {
        let names = op_names(64);
        let at = |name| names.iter().position(|candidate| *candidate == name);
        assert_eq!(at("advise_mr"), Some(0));
        assert_eq!(at("alloc_buf"), Some(1));
        assert_eq!(at("alloc_dmah"), Some(3));
        assert_eq!(at("free_buf"), Some(at("free_context").unwrap() - 1));
        assert_eq!(at("reg_mr_ex"), Some(at("reg_mr").unwrap() + 1));
        let names = op_names(65);
        let neighbours = |name| {
            let at = names.iter().position(|candidate| *candidate == name).unwrap();
            [names[at - 1], names[at + 1]]
        };
        assert_eq!(neighbours("create_comp_cntr"), ["create_ah", "create_counters"]);
        assert_eq!(neighbours("inc_comp_cntr"), ["import_pd", "inc_err_comp_cntr"]);
        assert_eq!(neighbours("query_comp_cntr_caps"), ["qp_attach_comp_cntr", "query_device_ex"]);
        assert_eq!(neighbours("read_counters"), ["read_comp_cntr", "read_err_comp_cntr"]);
        assert_eq!(neighbours("set_ece"), ["set_comp_cntr", "set_err_comp_cntr"]);
    }

    #[test]
    fn releases_are_read_from_file_names() {
        assert_eq!(release_of("libibverbs.so.1.14.44.0"), Some(44));
        assert_eq!(release_of("libibverbs.so.1.15.64.1"), Some(64));
        assert_eq!(release_of("libibverbs.so.1.14.36.0"), None, "dereferences sysfs");
        assert_eq!(release_of("libibverbs.so.1.18.65.0"), Some(65));
        assert_eq!(release_of("libibverbs.so.1.19.66.0"), None, "its op table is not known");
        assert_eq!(release_of("libibverbs.so.1"), None);
        assert_eq!(release_of("libmlx5.so.1.24.44.0"), None);
    }

    #[test]
    fn the_name_of_a_sysfs_device_is_at_the_offset_of_the_library() {
        assert_eq!(std::mem::offset_of!(SysfsDevice, sysfs_name), 36);
        assert_eq!(std::mem::offset_of!(SysfsDevice, ibdev_name), 112);
    }

    #[test]
    fn contexts_are_found_at_every_known_offset() {
        for offset in [320, 344, 352, 368] {
            let mut words = [0usize; VERBS_CONTEXT_BYTES / size_of::<usize>()];
            words[offset / size_of::<usize>() - 1] = offset + size_of::<ibv_context>();
            assert_eq!(context_offset(&words), Some(offset));
        }
        assert_eq!(context_offset(&[0; 64]), None);
    }
}
