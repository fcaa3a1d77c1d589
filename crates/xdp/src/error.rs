//! What can go wrong with the program and its claims.

use std::io;

/// The capabilities of a process that takes packets by AF_XDP, with their numbers (linux/capability.h).
/// Without CAP_PERFMON the verifier refuses the pointer arithmetic of the program.
pub const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_NET_RAW", 13), ("CAP_NET_ADMIN", 12), ("CAP_BPF", 39), ("CAP_PERFMON", 38)];

/// Returns the sentence about the privileges that AF_XDP needs, with the settings of the unit that grant
/// them.
#[must_use]
pub fn privileges() -> String {
    let names = CAPABILITIES.map(|(name, _)| name).join(" ");
    format!(
        "the process needs {names} (systemd: `systemctl edit steerd`, then under [Service] \
         AmbientCapabilities={names}, CapabilityBoundingSet= with the same, RestrictAddressFamilies=AF_XDP, \
         SystemCallFilter=bpf, LimitMEMLOCK=infinity)"
    )
}

/// Why a program could not be loaded, attached or told about a claim.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// A privilege is missing.
    #[error("not permitted to {operation}: {}", privileges())]
    NotPermitted {
        /// The step that failed.
        operation: &'static str,
    },
    /// Another XDP program is attached to the interface.
    #[error(
        "interface `{interface}` has an XDP program already{}: end its owner, or detach it: `ip link set dev {interface} \
         xdp off`, or for a bpf_link `bpftool link detach id LINK`",
        of_program(*program)
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// The number of the other program, if it is known.
        program: Option<u32>,
    },
    /// The interface receives packets of other interfaces: the kernel may have merged them, or they carry
    /// the queue numbers of a member.
    #[error(
        "interface `{interface}` is of kind {kind} and gets its packets from other interfaces, possibly merged: attach to {}",
        below_it(below)
    )]
    Stacked {
        /// The interface.
        interface: String,
        /// The kind as the kernel names it.
        kind: String,
        /// The names of the interfaces below it that are in this network namespace.
        below: Vec<String>,
    },
    /// The driver of the interface cannot run the program in this mode.
    #[error("the driver of interface `{interface}` refuses the program in native mode ({source}): {remedy}")]
    Unsupported {
        /// The interface.
        interface: String,
        /// The remedy.
        remedy: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the program or its maps.
    #[error("the kernel does not take the XDP program: {problem}")]
    Load {
        /// The kernel's answer; for a refusal of the verifier the reason, without the log.
        problem: String,
    },
    /// A system call failed.
    #[error("XDP: {operation}: {source}")]
    System {
        /// The operation.
        operation: &'static str,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The table of claims is full.
    #[error(
        "there are {limit} different claims already, the most that an AF_XDP wire takes: merge rules, or use the wire \
         af_packet"
    )]
    Full {
        /// The most claims.
        limit: u32,
    },
    /// The frame is longer than the kernel lets a program run over in live mode.
    #[error("a frame of {bytes} bytes is longer than the {limit} bytes that the kernel takes back")]
    FrameTooLong {
        /// The length of the frame.
        bytes: usize,
        /// The longest frame.
        limit: usize,
    },
    /// Frames that were given back in generic mode met the program again and did not pass it.
    #[error("the kernel does not pass on in generic mode what is given back: use mode = \"native\"")]
    NotPassed,
    /// The queue is beyond those that the program was loaded for.
    #[error("queue {queue} is beyond the {queues} queues that the XDP program was loaded for")]
    NoSuchQueue {
        /// The queue.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
}

fn of_program(program: Option<u32>) -> String {
    program.map(|id| format!(" (program {id}, `bpftool prog show id {id}`)")).unwrap_or_default()
}

fn below_it(names: &[String]) -> String {
    match names {
        [] => "the interface that receives these packets first".to_owned(),
        [name] => format!("`{name}`"),
        names => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("each of {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_the_drop_in_of_the_page() {
        let text = XdpError::NotPermitted { operation: "load an XDP program" }.to_string();
        assert!(text.starts_with("not permitted to load an XDP program: "), "{text}");
        let page = include_str!("../../../docs/how-to/enforce-on-an-interface.md");
        let names = CAPABILITIES.map(|(name, _)| name).join(" ");
        for setting in [
            &format!("AmbientCapabilities={names}"),
            "RestrictAddressFamilies=AF_XDP",
            "SystemCallFilter=bpf",
            "LimitMEMLOCK=infinity",
        ] {
            assert!(text.contains(setting), "no {setting:?} in {text}");
            assert!(page.contains(&format!("\n{setting}\n")), "no {setting:?} on the page");
        }
        assert!(page.contains(&format!("\nCapabilityBoundingSet={names}\n")));
        let settings = include_str!("../../../config/steerd.toml");
        let notes = include_str!("../../../SECURITY.md");
        for (name, _) in CAPABILITIES {
            assert!(settings.contains(name) && notes.contains(name), "{name}");
        }
    }
}
