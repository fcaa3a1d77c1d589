//! A check with the rights of another user on files and folders: the kernel applies them itself, on a thread
//! with the file system ids of that user (setfsuid(2)). Capabilities of the process that are not about files
//! stay.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, getgrouplist, setfsgid, setfsuid};
use rustix::thread::set_thread_groups;

/// Calls a function on a thread with these rights. `user`: a name or a number.
///
/// # Errors
/// There is no such user, or the process may not take its rights.
pub(super) fn with_rights_of<T: Send>(user: &str, act: impl FnOnce() -> T + Send) -> Result<T, String> {
    let found = match user.parse() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(user),
    };
    let found = found.map_err(|errno| format!("the user {user} cannot be looked up: {errno}"))?;
    let found = found.ok_or_else(|| format!("there is no user {user} on this host"))?;
    if found.uid == nix::unistd::geteuid() {
        return Ok(act());
    }
    let name = CString::new(found.name.as_str()).map_err(|_| format!("the user {user} has no name"))?;
    let groups = getgrouplist(&name, found.gid).map_err(|errno| format!("the groups of {user}: {errno}"))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user(&found, &groups)?;
            Ok(act())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives the calling thread the rights of a user on files.
fn become_user(user: &User, groups: &[Gid]) -> Result<(), String> {
    let groups: Vec<_> = groups.iter().map(|group| rustix::process::Gid::from_raw(group.as_raw())).collect();
    let refused = || {
        let name = &user.name;
        format!("only root can check for {name} (hint: run the command as {name}, or as root)")
    };
    set_thread_groups(&groups).map_err(|_| refused())?;
    setfsgid(user.gid);
    setfsuid(user.uid);
    // Both return the id before, and change nothing if they are not permitted.
    let is_changed = setfsuid(user.uid) == user.uid && setfsgid(user.gid) == user.gid;
    if is_changed { Ok(()) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs root, as all tests of this crate that change ids.
    #[test]
    fn the_rights_are_those_of_the_user_on_this_thread_only() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let writes = || regular_file::check_folder(folder.path()).is_ok();
        assert!(writes());
        assert_eq!(with_rights_of("nobody", writes), Ok(false), "the folder is root's");
        assert!(writes());
        assert!(with_rights_of("no such user", writes).is_err_and(|why| why.contains("no such user")));
    }
}
