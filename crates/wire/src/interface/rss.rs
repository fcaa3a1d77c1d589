//! The indirection table by which an interface spreads received packets over its queues (RSS), by the ethtool
//! ioctl (linux/ethtool.h, `struct ethtool_rxfh_indir`). Reading it needs no capability.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::offloads::SIOCETHTOOL;
use super::{interface_request, question_socket};

const ETHTOOL_GRXFHINDIR: u32 = 0x38;
/// The command and the number of entries.
const HEAD_WORDS: usize = 2;
/// The most entries that are read.
const MAX_ENTRIES: usize = 1 << 16;

/// The queue of each entry of an interface's indirection table; `None`: the interface has none, or there is
/// no such interface.
#[must_use]
pub fn rss_table(interface: &str) -> Option<Vec<u32>> {
    if interface.len() >= libc::IFNAMSIZ {
        return None;
    }
    let mut size = [ETHTOOL_GRXFHINDIR, 0];
    ask(interface, &mut size).ok()?;
    let entries = size[1] as usize;
    if entries == 0 || entries > MAX_ENTRIES {
        return None;
    }
    let mut words = vec![0u32; HEAD_WORDS + entries];
    words[..HEAD_WORDS].copy_from_slice(&size);
    ask(interface, &mut words).ok()?;
    // The table may have become smaller meanwhile.
    words.truncate(HEAD_WORDS + (words[1] as usize).min(entries));
    Some(words.split_off(HEAD_WORDS))
}

/// Asks for the table: the second word is the number of words behind it.
fn ask(interface: &str, words: &mut [u32]) -> io::Result<()> {
    let socket = question_socket(interface).map_err(io::Error::other)?;
    let mut request = interface_request(interface);
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `request` and the words that it points to live through the call. Of this command the kernel
    // reads the first two words. It writes the second, and if that was not 0 the table, which has at most so
    // many words: the kernel refuses a smaller number (`ethtool_get_rxfh_indir`).
    let rc = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_a_table_has_none() {
        for name in ["lo", "no-such-if", "a-name-that-is-too-long", ""] {
            assert_eq!(rss_table(name), None, "{name}");
        }
    }
}
