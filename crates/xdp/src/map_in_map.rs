//! A map that contains a map, by bpf(2): aya has none. [`crate::grace`] replaces the inner map for the sake
//! of what the kernel does then.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;

/// The part of `union bpf_attr` that creates a map.
#[repr(C)]
struct CreateMap {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
    flags: u32,
    inner_map_fd: u32,
}

/// The part of `union bpf_attr` that writes an element.
#[repr(C)]
struct UpdateElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

mod sealed {
    /// A prefix of `union bpf_attr`: integers without gaps between them.
    ///
    /// # Safety
    /// The addresses in it are those of memory that the command reads only, and that lives through the call.
    pub(crate) unsafe trait Attributes {}
}

// SAFETY: `CreateMap` has no address.
unsafe impl sealed::Attributes for CreateMap {}
// SAFETY: `OuterMap::replace_inner` alone makes this, and keeps key and value through the call;
// `BPF_MAP_UPDATE_ELEM` reads both.
unsafe impl sealed::Attributes for UpdateElement {}

/// An array of one map, and the map that it contains.
#[derive(Debug)]
pub(crate) struct OuterMap {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl OuterMap {
    /// Makes the two maps.
    pub(crate) fn new() -> io::Result<Self> {
        let inner = created(BPF_MAP_TYPE_ARRAY, 0)?;
        let outer = created(BPF_MAP_TYPE_ARRAY_OF_MAPS, inner.as_raw_fd().cast_unsigned())?;
        Ok(Self { outer, inner })
    }

    /// Puts the inner map in its own place again. When this returns, every program that ran when it was
    /// called has ended.
    pub(crate) fn replace_inner(&self) -> io::Result<()> {
        let (key, value) = (0u32, self.inner.as_raw_fd());
        let element = UpdateElement {
            map_fd: self.outer.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: (&raw const key).expose_provenance() as u64,
            value: (&raw const value).expose_provenance() as u64,
            flags: 0,
        };
        bpf(BPF_MAP_UPDATE_ELEM, &element).map(drop)
    }
}

/// A map with one element of four bytes.
fn created(map_type: u32, inner_map_fd: u32) -> io::Result<OwnedFd> {
    let map = CreateMap { map_type, key_bytes: 4, value_bytes: 4, max_entries: 1, flags: 0, inner_map_fd };
    let fd = bpf(BPF_MAP_CREATE, &map)?;
    // SAFETY: `BPF_MAP_CREATE` succeeded, so this is a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<A: sealed::Attributes>(command: libc::c_int, attributes: &A) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads `size_of::<A>()` bytes at this address, which live through the call, and the
    // memory that they name as `Attributes` promises; it takes the rest of the union as zero.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<A>()) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as libc::c_int) }
}
