//! The plugin: a mount namespace of the command's own, in which the stock library finds a provider without
//! other help.
//!
//! `/dev` becomes a tmpfs with everything that was there, a command channel for the device, the sysfs tree
//! that the library looks through, and the plugin under the name of each private version. Nobody else sees
//! any of it, and it goes with the last process of the namespace. Root needs no user namespace for that and
//! gets none, to keep what it may do.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::num::NonZero;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use rustix::thread::UnshareFlags;
use softnic::lazy_nic::Settings;
use softnic_verbs::preload::sysfs::{self, Provider};

use crate::Error;

/// The tree that the library is shown instead of `/sys`.
pub(crate) const SYSFS: &str = "/dev/softnic/sys";
/// The value of `IBV_DRIVERS`; the library appends `-rdmavNN.so`.
pub(crate) const DRIVER: &str = "/dev/softnic/lib/libsoftnic";
/// The preloaded library.
pub(crate) const LIBRARY: &str = "/dev/softnic/lib/libsoftnic-preload.so";

/// The private versions of libibverbs, after which plugins are named.
const PRIVATE_VERSIONS: [u32; 5] = [34, 57, 59, 64, 65];

/// NETLINK_RDMA of linux/netlink.h. Where it answers the library asks it for devices and never looks at
/// sysfs.
const NETLINK_RDMA: NonZero<u32> = NonZero::new(20).expect("not zero");

/// Without these no program works.
const NEEDED: [&str; 4] = ["null", "zero", "full", "urandom"];
/// Where the library looks for command channels; whatever is there belongs to devices that the tree does not
/// show.
const CHANNELS: &str = "infiniband";
/// The tree and the plugin. What is there is another launcher's, which this one was started under.
const OURS: &str = "softnic";

/// Whether this method works for this user, tried by a process of its own; otherwise why not.
pub(crate) fn probe() -> Result<(), String> {
    let message = |error: io::Error| error.to_string();
    let output =
        Command::new("/proc/self/exe").arg("probe").stdin(Stdio::null()).output().map_err(message)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.trim().trim_start_matches("softnic: ").to_owned())
}

/// Puts this process into the namespace, with everything that the library needs in place.
pub(crate) fn enter(settings: &Settings, library: &Path) -> Result<(), Error> {
    if kernel_has_rdma() {
        let reason =
            "this kernel knows RDMA devices, and the library then asks it instead of looking at a tree";
        return Err(Error::Plugin { reason: reason.to_owned() });
    }
    unshare()?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("making the mounts private", mount_change("/", private))?;
    replace_dev()?;
    write_tree(Path::new(SYSFS), settings)
        .map_err(|source| Error::Step { step: "writing the sysfs tree".to_owned(), source })?;
    link_plugin(library).map_err(|source| Error::Step { step: "naming the plugin".to_owned(), source })
}

fn step<T>(what: &str, result: rustix::io::Result<T>) -> Result<T, Error> {
    result.map_err(|errno| Error::Step { step: what.to_owned(), source: errno.into() })
}

fn kernel_has_rdma() -> bool {
    let protocol = Protocol::from_raw(NETLINK_RDMA);
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).is_ok()
}

/// A mount namespace; with a user namespace in which this user is itself where that alone is not permitted.
fn unshare() -> Result<(), Error> {
    match unshare_with(UnshareFlags::NEWNS) {
        Err(rustix::io::Errno::PERM) => {}
        result => return step("a private mount namespace", result),
    }
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    step("a private user namespace", unshare_with(UnshareFlags::NEWUSER | UnshareFlags::NEWNS))?;
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{user} {user} 1")),
        ("/proc/self/gid_map", format!("{group} {group} 1")),
    ];
    for (file, text) in maps {
        fs::write(file, text).map_err(|source| Error::Step { step: format!("writing {file}"), source })?;
    }
    Ok(())
}

/// Only namespaces are unshared, never descriptors, and this process has one thread.
fn unshare_with(flags: UnshareFlags) -> rustix::io::Result<()> {
    #[allow(deprecated)] // the newer name is unsafe for the sake of CLONE_FILES
    rustix::thread::unshare(flags)
}

/// Puts a tmpfs in the place of /dev, binds what was there into it, and adds the device's command channel.
fn replace_dev() -> Result<(), Error> {
    let dev = Path::new("/dev");
    let old = step("opening /dev", open(dev, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()))?;
    let failed = |what: &str| {
        let step = what.to_owned();
        move |source| Error::Step { step, source }
    };
    let names: Vec<_> = fs::read_dir(dev)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect())
        .map_err(failed("reading /dev"))?;
    step("a private /dev", mount("tmpfs", dev, "tmpfs", MountFlags::NOSUID, c"mode=0755"))?;
    // Through the descriptor the old /dev is still reachable, although it is covered.
    let old_path = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    for name in names.iter().filter(|name| *name != CHANNELS && *name != OURS) {
        let bound = carry_over(&old_path.join(name), &dev.join(name));
        if NEEDED.iter().any(|needed| name == needed) {
            bound.map_err(failed(&format!("binding /dev/{}", name.to_string_lossy())))?;
        }
    }
    let channel = dev.join(CHANNELS).join("uverbs0");
    folder(&dev.join(CHANNELS)).map_err(failed("making /dev/infiniband"))?;
    File::create(&channel).map_err(failed("making the command channel"))?;
    // Commands fail on it with the errors that make the library fall back, see `softnic`.
    step("binding the command channel", mount_bind(old_path.join("full"), &channel))
}

fn carry_over(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        folder(to)?;
        return Ok(mount_bind_recursive(from, to)?);
    }
    File::create(to)?;
    Ok(mount_bind(from, to)?)
}

fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn link_plugin(library: &Path) -> io::Result<()> {
    let folder_path = Path::new(DRIVER).parent().unwrap_or(Path::new("/dev"));
    folder(folder_path)?;
    symlink(library, LIBRARY)?;
    // Not the same file again: the dynamic linker would take the plugin for loaded and initialised.
    let copy = format!("{DRIVER}.so");
    fs::copy(library, &copy)?;
    for version in PRIVATE_VERSIONS {
        symlink(&copy, format!("{DRIVER}-rdmav{version}.so"))?;
    }
    Ok(())
}

/// Writes what libibverbs reads of sysfs about the device.
fn write_tree(root: &Path, settings: &Settings) -> io::Result<()> {
    for (path, line) in sysfs::files(settings, Provider::Own) {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            folder(parent)?;
        }
        fs::write(path, format!("{line}\n"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_written_as_the_library_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::read(|name| (name == "SOFTNIC_NAME").then(|| "left".to_owned())).unwrap();
        write_tree(folder.path(), &settings).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(read("class/infiniband_verbs/uverbs0/ibdev"), "left\n");
        assert_eq!(read("class/infiniband/left/ports/1/pkeys/0"), "0xffff\n");
    }
}
