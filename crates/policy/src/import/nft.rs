//! Rule sets of nftables as `nft -j list ruleset` prints them (libnftables-json(5)). The base chains that
//! packets to the host meet become the policy, in the order of the kernel: those of the hooks ingress,
//! prerouting and input, by priority. Accepted packets stay with the kernel, dropped ones are dropped, and
//! chains that are called are inlined.
//!
//! The policy drops no packet that the rule set accepts, whatever it does not show (the state of connections,
//! interfaces): a rule is known by the packets that it matches at least and at most ([`Packets`]). Only the
//! former are dropped. The latter stay with the kernel, before any later rule that drops. If these are all
//! packets, later rules that drop are comments. Packets that the policy's rules fail to match by their
//! transport header stay with the kernel, too.

mod condition;
mod connection;
mod exceptions;
mod ruleset;
mod text;
mod values;
mod walk;
mod writer;

use std::net::IpAddr;

use super::{Imported, Note, WrongFormat};
use ruleset::{Ruleset, objects_of};
use walk::Walk;

/// Choices for a rule set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftOptions {
    /// The base chain to convert, as table/name or family/table/name; if left out, all that received packets
    /// meet.
    pub chain: Option<String>,
    /// The interface of the port; if left out, rules of any interface but `lo` may apply.
    pub interface: Option<String>,
    /// The addresses of the host. Chains of the hook input then decide about packets to these alone; if left
    /// out, about all that the host does not forward.
    pub addresses: Vec<IpAddr>,
    /// TCP connection requests (SYN without ACK, RST and FIN) are taken for packets of no connection, whose
    /// state is `new`.
    pub is_syn_new: bool,
}

/// Converts a rule set, or several.
///
/// # Errors
/// The text is not JSON of nft, or it has no base chain of that name.
pub fn nft(text: &str, options: &NftOptions) -> Result<Imported, WrongFormat> {
    let objects = objects_of(text)?;
    let ruleset = Ruleset::of(&objects);
    let mut walk = Walk::new(&ruleset, options)?;
    walk.base_chains();
    Ok(walk.finish())
}

/// A note that names its place itself.
fn note(message: String) -> Note {
    Note { line: 0, message }
}
