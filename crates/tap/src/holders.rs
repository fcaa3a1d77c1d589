//! The processes that hold queues of an interface, by proc_pid_fdinfo(5): the entry of an attached queue has
//! the interface's name (`tun_chr_show_fdinfo`).

use std::fs;
use std::path::Path;

/// How many queues of the interface this process holds; `None`: /proc cannot be read.
#[must_use]
pub fn own_queues(interface: &str) -> Option<usize> {
    queues_in(Path::new("/proc/self/fdinfo"), interface)
}

/// Another process in this network namespace that holds a queue of the interface, as `process 123 (qemu)`;
/// `None`: there is none that this process may look into. Interfaces of other namespaces have names of their
/// own, so a process there may hold a queue of another interface of this name.
#[must_use]
pub fn other_holder(interface: &str) -> Option<String> {
    let own = std::process::id().to_string();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let here = namespace("self")?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let mut others = numbers.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own);
    let process = others.find(|process| {
        if namespace(process).as_ref() != Some(&here) {
            return false;
        }
        let folder = Path::new("/proc").join(process).join("fdinfo");
        queues_in(&folder, interface).is_some_and(|queues| queues > 0)
    })?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some(format!("process {process} ({})", name.trim()))
}

fn queues_in(folder: &Path, interface: &str) -> Option<usize> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    // One that cannot be read was closed meanwhile.
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    Some(texts.filter(|text| names(text, interface)).count())
}

/// Whether an entry is that of a queue of the interface.
fn names(entry: &str, interface: &str) -> bool {
    entry.lines().any(|line| line.strip_prefix("iff:").is_some_and(|name| name.trim() == interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_the_whole_interface() {
        let entry = "pos:\t0\nflags:\t0104002\nmnt_id:\t15\nino:\t7\niff:\thost0\n";
        assert!(names(entry, "host0"));
        assert!(!names(entry, "host"));
        assert!(!names("pos:\t0\nflags:\t02\n", "host0"));
    }
}
