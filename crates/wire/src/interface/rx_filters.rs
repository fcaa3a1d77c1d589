//! The receive filters of an interface (ntuple rules) and its RSS contexts, by the ethtool ioctl
//! (linux/ethtool.h, `struct ethtool_rxnfc` and `struct ethtool_rxfh`).
//!
//! Here are the system calls alone: `nic-filters` knows the contents of the structures. The kernel has no
//! netlink for ntuple rules. It has one for RSS contexts (`ETHTOOL_MSG_RSS_CREATE_ACT`, Linux 6.17), but the
//! ioctl does the same since Linux 4.17, so one way serves both. All calls need CAP_NET_ADMIN to change
//! something.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::netdevice;

use super::offloads::{self, ask};
use super::{Interface, question_socket};
use crate::WireError;

const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
/// The context number that asks for a new one.
const ETH_RXFH_CONTEXT_ALLOC: u32 = u32::MAX;
/// The feature of an interface whose filters are in use.
const NTUPLE_FEATURE: &str = "rx-ntuple-filter";
/// The flag of a table's size in the answer of `ETHTOOL_GRXCLSRLCNT`: the driver chooses locations itself.
const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;

/// Bytes of `struct ethtool_rxnfc` up to its end, the array of locations not included.
pub const RXNFC_BYTES: usize = 192;
const RXNFC_WORDS: usize = RXNFC_BYTES / 4;
/// Words of it that the arguments of a question use: `data` (the low half on a little-endian machine is not
/// assumed; see [`data_of`]), and `rule_cnt`.
const DATA_WORD: usize = 2;
const COUNT_WORD: usize = 46;
/// The array of locations begins in the padding at the end of the structure.
const LOCATIONS_WORD: usize = 47;
/// Words of `struct ethtool_rxfh` without its tables.
const RXFH_WORDS: usize = 6;
const RXFH_CONTEXT_WORD: usize = 1;
const RXFH_TABLE_WORD: usize = 2;
const RXFH_KEY_WORD: usize = 3;
/// The most rules that are listed, and the most entries of a table: far above those of any NIC.
const MAX_ENTRIES: u32 = 1 << 20;
/// How often rules are listed anew while others change them.
const LIST_TRIES: u32 = 8;

/// A command about one rule. The block is `struct ethtool_rxnfc`; its first word is set here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleCommand {
    /// Inserts the rule, or replaces the one at its location (`ETHTOOL_SRXCLSRLINS`). The kernel writes the
    /// location if the driver has chosen it.
    Insert,
    /// Removes the rule at the location (`ETHTOOL_SRXCLSRLDEL`).
    Remove,
    /// Reads the rule at the location (`ETHTOOL_GRXCLSRULE`).
    Read,
}

/// The rules of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLocations {
    /// The size of the table, if the driver reports one.
    pub size: Option<u32>,
    /// Whether the driver takes the special locations, among them `RX_CLS_LOC_ANY`.
    pub takes_special: bool,
    /// The locations in use.
    pub used: Vec<u32>,
}

/// The answer of `ETHTOOL_GRXCLSRLCNT`.
#[derive(Clone, Copy, Debug)]
struct RuleCount {
    rules: u32,
    data: u64,
}

/// The sizes of an indirection table and of a hash key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssSizes {
    /// Entries of the table.
    pub table: u32,
    /// Bytes of the key.
    pub key: u32,
}

/// The receive filters of one interface. The interface is found again by its number before each call, so a
/// change of its name does no harm.
#[derive(Debug)]
pub struct RxFilterSocket {
    socket: OwnedFd,
    index: u32,
}

impl RxFilterSocket {
    /// Opens the filters of an interface that is up.
    ///
    /// # Errors
    /// There is no such interface, it is down, or it is not Ethernet.
    pub fn open(interface: &str) -> Result<Self, WireError> {
        let index = Interface::find(interface)?.index.cast_unsigned();
        Ok(Self { socket: question_socket(interface)?, index })
    }

    /// The number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The name of the driver.
    ///
    /// # Errors
    /// The interface is gone, or does not answer.
    pub fn driver(&self) -> io::Result<String> {
        offloads::driver(self.socket.as_fd(), &self.name()?)
    }

    /// Returns whether the filters are switched on (`ethtool -K ... ntuple on`); `None`: the kernel does not
    /// know the feature.
    ///
    /// # Errors
    /// The interface is gone, or does not answer.
    pub fn is_on(&self) -> io::Result<Option<bool>> {
        self.has_feature(NTUPLE_FEATURE)
    }

    /// Returns whether a feature of the interface is active, by the kernel's name of it (`rx-lro`,
    /// net/ethtool/common.c, `netdev_features_strings`); `None`: the kernel does not know the feature.
    ///
    /// # Errors
    /// The interface is gone, or does not answer.
    pub fn has_feature(&self, feature: &str) -> io::Result<Option<bool>> {
        offloads::is_on(self.socket.as_fd(), &self.name()?, feature)
    }

    /// The number of receive queues.
    ///
    /// # Errors
    /// The driver does not report them (EOPNOTSUPP), or the interface is gone.
    pub fn queues(&self) -> io::Result<u32> {
        let mut words = [0; RXNFC_WORDS];
        self.ask(ETHTOOL_GRXRINGS, &mut words)?;
        Ok(u32::try_from(data_of(&words)).unwrap_or(u32::MAX))
    }

    /// Carries out a command about one rule.
    ///
    /// # Errors
    /// The driver refuses it, CAP_NET_ADMIN is missing, or the interface is gone.
    pub fn rule(&self, command: RuleCommand, block: &mut [u8; RXNFC_BYTES]) -> io::Result<()> {
        let mut words = [0; RXNFC_WORDS];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let command = match command {
            RuleCommand::Insert => ETHTOOL_SRXCLSRLINS,
            RuleCommand::Remove => ETHTOOL_SRXCLSRLDEL,
            RuleCommand::Read => ETHTOOL_GRXCLSRULE,
        };
        self.ask(command, &mut words)?;
        for (word, bytes) in words.iter().zip(block.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(())
    }

    /// The locations of all rules.
    ///
    /// # Errors
    /// The driver has no filters (EOPNOTSUPP), or the interface is gone.
    pub fn locations(&self) -> io::Result<RuleLocations> {
        let mut asked = self.count()?;
        let mut tries = 0;
        loop {
            let listed = self.locations_of(asked);
            let now = self.count()?;
            tries += 1;
            // Others may insert and remove rules between the questions. A driver may refuse a list of another
            // length than the number of rules: mlx5e answers EINVAL for a longer one, ixgbe EMSGSIZE for a
            // shorter one.
            if now.rules == asked.rules || tries == LIST_TRIES {
                return listed;
            }
            asked = now;
        }
    }

    /// The locations of so many rules.
    fn locations_of(&self, count: RuleCount) -> io::Result<RuleLocations> {
        let mut words = vec![0; RXNFC_WORDS + count.rules as usize];
        words[COUNT_WORD] = count.rules;
        self.ask(ETHTOOL_GRXCLSRLALL, &mut words)?;
        let listed = words[COUNT_WORD].min(count.rules) as usize;
        Ok(RuleLocations {
            size: table_size(count.data, data_of(&words)),
            takes_special: count.data & u64::from(RX_CLS_LOC_SPECIAL) != 0,
            used: words[LOCATIONS_WORD..][..listed].to_vec(),
        })
    }

    fn count(&self) -> io::Result<RuleCount> {
        let mut words = [0; RXNFC_WORDS];
        self.ask(ETHTOOL_GRXCLSRLCNT, &mut words)?;
        Ok(RuleCount { rules: words[COUNT_WORD].min(MAX_ENTRIES), data: data_of(&words) })
    }

    /// The sizes of a context's table and key; context 0 is that of the interface itself.
    ///
    /// # Errors
    /// The driver has no RSS, or no such context.
    pub fn rss_sizes(&self, context: u32) -> io::Result<RssSizes> {
        let mut words = [0; RXFH_WORDS];
        words[RXFH_CONTEXT_WORD] = context;
        self.ask(ETHTOOL_GRSSH, &mut words)?;
        Ok(RssSizes { table: words[RXFH_TABLE_WORD], key: words[RXFH_KEY_WORD] })
    }

    /// The indirection table of a context.
    ///
    /// # Errors
    /// The errors of [`rss_sizes`](Self::rss_sizes).
    pub fn rss_table(&self, context: u32) -> io::Result<Vec<u32>> {
        let size = self.rss_sizes(context)?.table.min(MAX_ENTRIES);
        let mut words = vec![0; RXFH_WORDS + size as usize];
        words[RXFH_CONTEXT_WORD] = context;
        words[RXFH_TABLE_WORD] = size;
        self.ask(ETHTOOL_GRSSH, &mut words)?;
        Ok(words.split_off(RXFH_WORDS))
    }

    /// Creates a context with this indirection table, of the interface's size; returns its number.
    ///
    /// # Errors
    /// The driver has no contexts (EOPNOTSUPP), or no more.
    pub fn create_rss_context(&self, table: &[u32]) -> io::Result<u32> {
        let mut words = vec![0; RXFH_WORDS];
        words[RXFH_CONTEXT_WORD] = ETH_RXFH_CONTEXT_ALLOC;
        words[RXFH_TABLE_WORD] = table.len() as u32;
        words.extend(table);
        self.ask(ETHTOOL_SRSSH, &mut words)?;
        match words[RXFH_CONTEXT_WORD] {
            // Context 0 is the interface's own, and must not be taken for a new one.
            0 | ETH_RXFH_CONTEXT_ALLOC => Err(io::ErrorKind::InvalidData.into()),
            context => Ok(context),
        }
    }

    /// Removes a context, never that of the interface itself.
    ///
    /// # Errors
    /// There is no such context, or rules use it.
    pub fn remove_rss_context(&self, context: u32) -> io::Result<()> {
        if context == 0 || context == ETH_RXFH_CONTEXT_ALLOC {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A table of no entries removes it.
        let mut words = [0; RXFH_WORDS];
        words[RXFH_CONTEXT_WORD] = context;
        self.ask(ETHTOOL_SRSSH, &mut words)
    }

    fn ask(&self, command: u32, words: &mut [u32]) -> io::Result<()> {
        words[0] = command;
        ask(self.socket.as_fd(), &self.name()?, words)
    }

    fn name(&self) -> io::Result<String> {
        Ok(netdevice::index_to_name(self.socket.as_fd(), self.index)?)
    }
}

/// The size of the table, from `data` of the answers of `ETHTOOL_GRXCLSRLCNT` and `ETHTOOL_GRXCLSRLALL`. The
/// second one is used only if the driver reports no size in the first: bnxt writes the number of filters in
/// use there.
fn table_size(of_count: u64, of_list: u64) -> Option<u32> {
    let size = |data: u64| u32::try_from(data).ok().map(|size| size & !RX_CLS_LOC_SPECIAL);
    [of_count, of_list].into_iter().filter_map(size).find(|size| *size > 0)
}

/// `data`, a number of 64 bits in two words.
fn data_of(words: &[u32]) -> u64 {
    let (first, second) = (words[DATA_WORD].to_ne_bytes(), words[DATA_WORD + 1].to_ne_bytes());
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first);
    bytes[4..].copy_from_slice(&second);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_filters_refuses_every_call() {
        let filters = RxFilterSocket::open("lo").expect("every namespace has it");
        let unsupported = |error: io::Error| error.raw_os_error() == Some(libc::EOPNOTSUPP);
        assert!(filters.locations().is_err_and(unsupported));
        assert!(filters.rss_table(0).is_err_and(unsupported));
        let refused = filters.rule(RuleCommand::Read, &mut [0; RXNFC_BYTES]);
        assert!(refused.is_err_and(unsupported));
        assert_eq!(filters.is_on().expect("the kernel names the feature"), Some(false));
    }

    #[test]
    fn the_table_has_the_size_that_the_count_reports() {
        let special = u64::from(RX_CLS_LOC_SPECIAL);
        assert_eq!(table_size(special | 1024, 3), Some(1024));
        assert_eq!(table_size(special, 2046), Some(2046), "no size in the count");
        assert_eq!(table_size(0, 0), None);
    }

    #[test]
    fn the_interfaces_own_context_is_never_removed() {
        let filters = RxFilterSocket::open("lo").expect("every namespace has it");
        let refused = filters.remove_rss_context(0).expect_err("not a context of ours");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
