//! The offloads of an interface that change received packets before anybody sees them, by the ethtool ioctl
//! (linux/ethtool.h). Reading them needs no capability, changing them CAP_NET_ADMIN.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use packet::MacAddr;
use rustix::net::netdevice;

use super::{Interface, interface_request, mac_of};

pub(super) const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
/// The string set with the names of the features.
const ETH_SS_FEATURES: u32 = 4;
/// Bytes of a name in a string set.
const NAME_BYTES: usize = 32;
/// The most features that a kernel may have; Linux 6.18 has 64 at most.
const MAX_FEATURES: usize = 256;
/// Features of a block of `ETHTOOL_GFEATURES`.
const BLOCK_FEATURES: usize = 32;
/// Words of a block: available, requested, active, never changed.
const BLOCK_WORDS: usize = 4;
/// The words of a block by their place.
const AVAILABLE_WORD: usize = 0;
const ACTIVE_WORD: usize = 2;
const FIXED_WORD: usize = 3;

/// An offload, as the kernel and as ethtool(8) name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offload {
    /// The name of the feature.
    feature: &'static str,
    /// The option of `ethtool -K`.
    option: &'static str,
    /// The change that it makes to received packets, as a verb of the offload.
    effect: &'static str,
}

/// The offloads that take parts of packets away or merge them.
const OFFLOADS: [Offload; 4] = [
    Offload { feature: "rx-vlan-hw-parse", option: "rxvlan", effect: "strips VLAN tags" },
    Offload { feature: "rx-vlan-stag-hw-parse", option: "rx-vlan-stag-hw-parse", effect: "strips VLAN tags" },
    Offload { feature: "rx-lro", option: "lro", effect: "merges packets" },
    Offload { feature: "rx-gro-hw", option: "rx-gro-hw", effect: "merges packets" },
];

/// An offload that is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveOffload {
    offload: Offload,
    /// It cannot be switched off.
    is_fixed: bool,
}

/// Drivers without hardware, whose offloads change nothing: the sender of a veth decides whether tags are
/// beside the packet.
const SOFTWARE_DRIVERS: [&str; 1] = ["veth"];

/// The offloads of an interface that are on and change received packets. None if the interface does not
/// answer: it has none then.
pub(crate) fn active(socket: BorrowedFd<'_>, interface: &str) -> Vec<ActiveOffload> {
    match driver(socket, interface) {
        Ok(driver) if SOFTWARE_DRIVERS.contains(&&*driver) => Vec::new(),
        _ => of_features(socket, interface).unwrap_or_default(),
    }
}

/// The problem and the command that remedies it, if one of these offloads hides parts of packets.
pub(crate) fn problem(interface: &str, active: &[ActiveOffload]) -> Option<String> {
    let listed = |offloads: &mut dyn Iterator<Item = Offload>| {
        let effects: Vec<_> = offloads.map(|one| format!("{} {}", one.option, one.effect)).collect();
        effects.join(", ")
    };
    let mut fixed = active.iter().filter(|one| one.is_fixed).map(|one| one.offload).peekable();
    if fixed.peek().is_some() {
        return Some(format!(
            "its driver hides parts of packets from XDP and cannot be told otherwise ({}): use the wire af_packet",
            listed(&mut fixed)
        ));
    }
    let offloads: Vec<Offload> = active.iter().map(|one| one.offload).collect();
    (!active.is_empty()).then(|| {
        format!(
            "its offloads hide parts of packets from XDP ({}): `{}`",
            listed(&mut offloads.iter().copied()),
            command(interface, &offloads, "off")
        )
    })
}

/// The offloads that were switched off, and are switched on again when this is dropped.
#[derive(Debug)]
pub(crate) struct DisabledOffloads {
    questions: OwnedFd,
    held: Option<HeldOffloads>,
}

/// The offloads of one interface.
#[derive(Debug)]
struct HeldOffloads {
    index: u32,
    /// Tells the interface from another one that has got its number.
    mac: MacAddr,
    offloads: Vec<Offload>,
}

impl DisabledOffloads {
    /// None yet. The socket answers questions.
    pub(crate) fn none(questions: OwnedFd) -> Self {
        Self { questions, held: None }
    }

    /// Switches the offloads off that hide parts of packets. Those of another interface are forgotten: this
    /// one has taken its place.
    ///
    /// # Errors
    /// The problem, if one of them cannot be switched off, with the remedy.
    pub(crate) fn disable(&mut self, interface: &Interface) -> Result<(), String> {
        let active = active(self.questions.as_fd(), &interface.name);
        self.disable_these(interface, &active)
    }

    /// Switches these offloads of an interface off.
    pub(crate) fn disable_these(
        &mut self,
        interface: &Interface,
        active: &[ActiveOffload],
    ) -> Result<(), String> {
        let Interface { name, index, mac, .. } = interface;
        let index = index.cast_unsigned();
        self.held = self.held.take().filter(|held| held.mac == *mac);
        if let Some(held) = &mut self.held {
            held.index = index;
        }
        if active.iter().any(|one| one.is_fixed) {
            return problem(name, active).map_or(Ok(()), Err);
        }
        if active.is_empty() {
            return Ok(());
        }
        // From here on they are switched on again, whatever comes.
        let held = self.held.get_or_insert(HeldOffloads { index, mac: *mac, offloads: Vec::new() });
        for ActiveOffload { offload, .. } in active {
            if !held.offloads.contains(offload) {
                held.offloads.push(*offload);
            }
        }
        let switched = switch(self.questions.as_fd(), name, &held.offloads, false);
        let mut left = of_features(self.questions.as_fd(), name)
            .map_err(|error| format!("its offloads cannot be read after they were switched off: {error}"))?;
        left.retain(|one| held.offloads.contains(&one.offload));
        let problem = problem(name, &left).map(|problem| match switched {
            Ok(()) => problem,
            Err(error) => format!("{problem} (steerd could not switch them off: {error})"),
        });
        problem.map_or(Ok(()), Err)
    }

    /// The command that switches them on again; `None`: nothing was switched off.
    pub(crate) fn undo_command(&self, interface: &str) -> Option<String> {
        self.held.as_ref().map(|held| command(interface, &held.offloads, "on"))
    }
}

impl Drop for DisabledOffloads {
    fn drop(&mut self) {
        let Some(HeldOffloads { index, mac, offloads }) = &self.held else { return };
        let questions = self.questions.as_fd();
        // Without the interface there is nothing to be done.
        let Ok(name) = netdevice::index_to_name(questions, *index) else { return };
        if !mac_of(questions, &name).is_ok_and(|known| known == *mac) {
            return;
        }
        let switched = switch(questions, &name, offloads, true);
        let are_on = of_features(questions, &name).is_ok_and(|active| {
            offloads.iter().all(|offload| active.iter().any(|one| one.offload == *offload))
        });
        if !are_on {
            let error = switched.err().map(|error| format!(" ({error})")).unwrap_or_default();
            let remedy = command(&name, offloads, "on");
            tracing::warn!(interface = %name, "offloads are not on again{error}: `{remedy}`");
        }
    }
}

/// The command that switches offloads on or off.
fn command(interface: &str, offloads: &[Offload], state: &str) -> String {
    let options: Vec<_> = offloads.iter().map(|one| format!("{} {state}", one.option)).collect();
    format!("ethtool -K {interface} {}", options.join(" "))
}

/// Switches offloads on or off.
fn switch(socket: BorrowedFd<'_>, interface: &str, offloads: &[Offload], on: bool) -> io::Result<()> {
    let names = feature_names(socket, interface)?;
    let blocks = names.len().div_ceil(BLOCK_FEATURES);
    // The command, the number of blocks, the blocks: which features are meant, and those that are to be on.
    let mut words = vec![0u32; 2 + blocks * 2];
    (words[0], words[1]) = (ETHTOOL_SFEATURES, blocks as u32);
    for offload in offloads {
        let Some(feature) = names.iter().position(|name| name == offload.feature) else { continue };
        let (block, bit) = (2 + feature / BLOCK_FEATURES * 2, 1 << (feature % BLOCK_FEATURES));
        words[block] |= bit;
        words[block + 1] |= if on { bit } else { 0 };
    }
    ask(socket, interface, &mut words)
}

/// The offloads of [`OFFLOADS`] that are on, whatever the driver.
pub(crate) fn of_features(socket: BorrowedFd<'_>, interface: &str) -> io::Result<Vec<ActiveOffload>> {
    let (names, words) = features(socket, interface)?;
    let active = OFFLOADS.into_iter().filter_map(|offload| {
        let feature = names.iter().position(|name| name == offload.feature)?;
        // Neither available to be changed, or never to be changed.
        let is_fixed = !is_set(&words, feature, AVAILABLE_WORD) || is_set(&words, feature, FIXED_WORD);
        is_set(&words, feature, ACTIVE_WORD).then_some(ActiveOffload { offload, is_fixed })
    });
    Ok(active.collect())
}

/// The names of all features, and the answer of `ETHTOOL_GFEATURES`.
fn features(socket: BorrowedFd<'_>, interface: &str) -> io::Result<(Vec<String>, Vec<u32>)> {
    let names = feature_names(socket, interface)?;
    let blocks = names.len().div_ceil(BLOCK_FEATURES);
    // The command, the number of blocks, the blocks.
    let mut words = vec![0u32; 2 + blocks * BLOCK_WORDS];
    (words[0], words[1]) = (ETHTOOL_GFEATURES, blocks as u32);
    ask(socket, interface, &mut words)?;
    Ok((names, words))
}

/// A bit of a feature in the answer of `ETHTOOL_GFEATURES`, by the word of its block.
fn is_set(words: &[u32], feature: usize, word: usize) -> bool {
    words[2 + feature / BLOCK_FEATURES * BLOCK_WORDS + word] >> (feature % BLOCK_FEATURES) & 1 == 1
}

/// The names of all features, by their bit.
fn feature_names(socket: BorrowedFd<'_>, interface: &str) -> io::Result<Vec<String>> {
    // The command, a reserved word, the mask of string sets in two words, the length of the one set.
    let mut words = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
    ask(socket, interface, &mut words)?;
    let count = if words[2] == 0 { 0 } else { words[4] as usize };
    if count > MAX_FEATURES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // The command, the set, the number of names, the names.
    let mut words = vec![0u32; 3 + count * NAME_BYTES / 4];
    words[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
    ask(socket, interface, &mut words)?;
    Ok(words[3..].chunks(NAME_BYTES / 4).map(text).collect())
}

/// Whether a feature is on, by its name; `None`: the kernel does not know it.
pub(super) fn is_on(socket: BorrowedFd<'_>, interface: &str, feature: &str) -> io::Result<Option<bool>> {
    let (names, words) = features(socket, interface)?;
    let feature = names.iter().position(|name| name == feature);
    Ok(feature.map(|feature| is_set(&words, feature, ACTIVE_WORD)))
}

/// The name of the driver.
pub(super) fn driver(socket: BorrowedFd<'_>, interface: &str) -> io::Result<String> {
    // `struct ethtool_drvinfo`: the command, the driver's name, and more that is not read.
    const DRVINFO_BYTES: usize = 196;
    let mut words = [0u32; DRVINFO_BYTES / 4];
    words[0] = ETHTOOL_GDRVINFO;
    ask(socket, interface, &mut words)?;
    Ok(text(&words[1..][..NAME_BYTES / 4]))
}

/// The text in words of memory, which ends before a zero byte.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Asks one of the `ETHTOOL_G*` questions, whose answer fits into the words by its own numbers, or carries
/// `ETHTOOL_SFEATURES` out, or what [`rx_filters`](super::rx_filters) asks for.
pub(super) fn ask(socket: BorrowedFd<'_>, interface: &str, words: &mut [u32]) -> io::Result<()> {
    let mut request = interface_request(interface);
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `request` and the words that it points to live through the call. The kernel reads the blocks of
    // `ETHTOOL_SFEATURES`, of which there are as many as the second word says. It writes the
    // structure of the command and its elements, for which the callers made room: one for the one set in
    // the mask of `ETHTOOL_GSSET_INFO`; for `ETHTOOL_GSTRINGS` the number of features, which is a
    // constant of the running kernel that the caller just asked for; at most the number in the second
    // word for `ETHTOOL_GFEATURES`. The commands of `rx_filters` write `struct ethtool_rxnfc`, of which that
    // module always passes all words, and behind it at most as many locations as its `rule_cnt` says; or
    // `struct ethtool_rxfh` and behind it as many words and bytes as its two sizes say.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    // More than 0 are flags of `ETHTOOL_SFEATURES`: it has not, or not yet, done what was asked, which the
    // callers see by reading.
    if rc >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::question_socket;

    fn on(which: usize, is_fixed: bool) -> ActiveOffload {
        ActiveOffload { offload: OFFLOADS[which], is_fixed }
    }

    #[test]
    fn a_refusal_has_the_command_for_all_offloads() {
        assert_eq!(problem("eth0", &[]), None);
        let text = problem("eth0", &[on(0, false), on(2, false), on(3, false)]).unwrap();
        assert!(text.ends_with("`ethtool -K eth0 rxvlan off lro off rx-gro-hw off`"), "{text}");
        assert!(text.contains("rxvlan strips VLAN tags, lro merges packets"), "{text}");
        let text = problem("eth0", &[on(0, true), on(2, false)]).unwrap();
        assert!(text.contains("(rxvlan strips VLAN tags)") && text.ends_with("af_packet"), "{text}");
    }

    #[test]
    fn the_kernel_names_every_offload() {
        let socket = question_socket("lo").unwrap();
        let names = feature_names(socket.as_fd(), "lo").unwrap();
        for offload in OFFLOADS {
            assert!(names.iter().any(|name| name == offload.feature), "{offload:?} in {names:?}");
        }
        assert!(feature_names(socket.as_fd(), "no-such-interface").is_err());
        assert_eq!(active(socket.as_fd(), "lo"), []);
    }
}
