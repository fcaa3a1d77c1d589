//! Packets whose transport header nft finds and the policy does not: nft looks behind the extension headers
//! of IPv6, and the kernel puts fragments together before chains of hook input, or before all with connection
//! tracking.
//!
//! A rule on the transport header that leaves packets to the kernel leaves fewer to it than in nft. A later
//! rule must not drop the others. So they stay with the kernel by a rule of their own before the first one
//! that could drop them. Which of them are accepted is then up to the nft of the kernel. A rule that drops
//! matches fewer packets, too, which is safe.

use packet::{Field, IpProtocol};
use program::{Family, Match, RangeSet};

use super::super::Keys;

/// Packets that stay with the kernel by a rule of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exception {
    ExtensionHeaders,
    LaterFragments,
}

impl Exception {
    pub(super) const ALL: [Self; 2] = [Self::ExtensionHeaders, Self::LaterFragments];

    /// The name of its rule.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ExtensionHeaders => "extension-headers",
            Self::LaterFragments => "later-fragments",
        }
    }

    pub(super) fn keys(self) -> Keys {
        let mut keys = Keys::default();
        match self {
            Self::ExtensionHeaders => {
                // Those that nft skips.
                let headers = IpProtocol::EXTENSION_HEADERS.map(|header| format!("\"{header}\""));
                keys.text("family", "ipv6");
                keys.push("protocol", format!("[{}]", headers.join(", ")));
            }
            Self::LaterFragments => {
                keys.text("family", "ipv4");
                keys.text("fragment", "later");
            }
        }
        keys
    }

    /// Whether the match is on headers that are not found in these packets; `is_on_transport` as in nft.
    fn is_missed(self, matches: &Match, is_on_transport: bool) -> bool {
        match self {
            Self::ExtensionHeaders => is_on_transport && matches.implied_family() != Some(Family::V4),
            // A rule on ports that leaves packets to the kernel has later fragments as well.
            Self::LaterFragments => {
                matches.needs_payload()
                    && !matches.or_no_ports
                    && matches.implied_family() != Some(Family::V6)
            }
        }
    }

    /// Whether some of these packets match.
    fn meets(self, matches: &Match) -> bool {
        match self {
            Self::ExtensionHeaders => {
                let headers = RangeSet::each(IpProtocol::EXTENSION_HEADERS.map(|header| header.0.into()));
                let protocol = matches.get(Field::Protocol);
                matches.implied_family() != Some(Family::V4)
                    && protocol.is_none_or(|protocol| !protocol.intersect(&headers).is_empty())
            }
            Self::LaterFragments => matches.implied_family() != Some(Family::V6) && !matches.needs_payload(),
        }
    }
}

/// The exceptions of the rules so far.
#[derive(Default)]
pub(super) struct Exceptions {
    /// The exceptions that a rule may have left to the kernel in nft, but not in the policy.
    missed: Vec<Exception>,
    /// The exceptions that have a rule.
    written: Vec<Exception>,
    /// Whether a rule is on the transport header of IPv6 packets.
    is_note_due: bool,
}

impl Exceptions {
    /// Takes note of a rule.
    pub(super) fn add(&mut self, matches: &Match, is_on_transport: bool, drops: bool) {
        self.is_note_due |= Exception::ExtensionHeaders.is_missed(matches, is_on_transport);
        for exception in Exception::ALL {
            if !drops && exception.is_missed(matches, is_on_transport) && !self.missed.contains(&exception) {
                self.missed.push(exception);
            }
        }
    }

    /// The rules that are needed before a rule that drops. They are then taken for written.
    pub(super) fn before_drop(&mut self, matches: &Match, is_on_transport: bool) -> Vec<Exception> {
        let needed = |exception: &Exception| {
            // The rule itself may match other headers than in nft, as the first header is never TCP behind an
            // extension.
            let is_other = exception.is_missed(matches, is_on_transport);
            !self.written.contains(exception)
                && (self.missed.contains(exception) || is_other)
                && exception.meets(matches)
        };
        let needed: Vec<Exception> = Exception::ALL.into_iter().filter(needed).collect();
        self.written.extend(&needed);
        needed
    }

    /// How the policy differs from the chain.
    pub(super) fn notes(&self) -> Vec<String> {
        let rule = |exception: Exception| {
            self.written.contains(&exception).then(|| format!("rule `{}`", exception.name()))
        };
        let mut notes = Vec::new();
        let headers = rule(Exception::ExtensionHeaders);
        if self.is_note_due || headers.is_some() {
            let remedy =
                headers.as_ref().map(|rule| format!(" and remove {rule}; needs a sink of kind `kernel`"));
            let rest = headers
                .map(|rule| format!("; {rule} leaves the others to the kernel, where one could drop them"));
            notes.push(format!(
                "rules on protocols, ports and types of messages match IPv6 packets without extension headers only (hint: ipv6_extensions = \"skip\"{}){}",
                remedy.unwrap_or_default(),
                rest.unwrap_or_default()
            ));
        }
        notes.extend(rule(Exception::LaterFragments).map(|rule| {
            format!("rules on SCTP ports, types of messages and TCP flags do not match later fragments of IPv4; {rule} leaves them to the kernel")
        }));
        notes
    }
}
