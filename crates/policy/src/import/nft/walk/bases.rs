//! The base chains that packets of the port meet, in the order of the kernel, and what the others show about
//! the host.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::super::{WrongFormat, quoted};
use super::super::condition::{Condition, is_interface};
use super::super::ruleset::{Base, Hook, Name};
use super::{Walk, shown};

/// Statements that change addresses or ports, which later chains see.
pub(super) const TRANSLATIONS: [&str; 3] = ["dnat", "redirect", "tproxy"];
/// Verdicts that let packets through.
const ACCEPTS: [&str; 2] = ["accept", "queue"];

impl<'v> Walk<'_, 'v> {
    /// Finds the base chains to convert.
    pub(super) fn choose_bases(&mut self) -> Result<(), WrongFormat> {
        let bases: Vec<(Base, Name<'v>)> = self
            .ruleset
            .chains
            .iter()
            .filter_map(|(name, chain)| Some((chain.base.clone()?, *name)))
            .collect();
        match &self.options.chain {
            Some(wanted) => {
                let (base, name) = chosen(wanted, &bases)?;
                self.choose_one(base, name, &bases);
            }
            None => self.choose(&bases),
        }
        self.find_forwards(&bases);
        self.note_incomplete();
        let mut drops = false;
        for (base, name) in self.order.iter().rev() {
            let may_drop = base.hook != Hook::Input || !self.is_all_forwarded();
            drops = drops || (may_drop && (base.drops || self.ruleset.has(*name, &["drop"])));
            self.drops_from.push(drops);
        }
        self.drops_from.reverse();
        Ok(())
    }

    /// One base chain alone. If a chain before it may translate addresses, it decides about other packets
    /// than the port receives.
    fn choose_one(&mut self, base: Base, name: Name<'v>, bases: &[(Base, Name<'v>)]) {
        if self.leaves_out_inactive(name) {
            return;
        }
        let is_before = |(other, own): &&(Base, Name<'v>)| {
            (other.hook == base.hook || matches!(other.hook, Hook::Ingress | Hook::Prerouting))
                && (other.hook, other.priority) <= (base.hook, base.priority)
                && *own != name
                && !matches!((own.0, name.0), ("ip", "ip6") | ("ip6", "ip"))
                && self.ruleset.inactive(*own).is_none()
                && self.ruleset.has(*own, &TRANSLATIONS)
        };
        let before = bases.iter().find(is_before).map(|(_, own)| format!("chain {}", shown(*own)));
        if let Some(before) = &before {
            self.writer.note(format!(
                "{before} comes first and may translate addresses and ports, so that chain {} drops nothing for certain",
                shown(name)
            ));
        }
        self.sealed = before;
        self.order.push((base, name));
    }

    /// Whether the table of a chain is not active, which is noted.
    fn leaves_out_inactive(&mut self, name: Name<'v>) -> bool {
        let flag = self.ruleset.inactive(name).map(quoted);
        if let Some(flag) = &flag {
            self.writer.note(format!("chain {} is left out: its table is {flag}", shown(name)));
        }
        flag.is_some()
    }

    /// The base chains that received packets meet, in order.
    fn choose(&mut self, bases: &[(Base, Name<'v>)]) {
        let has_ip = bases.iter().any(|(_, name)| matches!(name.0, "ip" | "ip6" | "inet" | "netdev"));
        let devices: BTreeSet<&String> = bases.iter().flat_map(|(base, _)| &base.devices).collect();
        let mut left_out = Vec::new();
        let mut order = Vec::new();
        for (base, name) in bases {
            let chain = shown(*name);
            if self.leaves_out_inactive(*name) {
                continue;
            }
            if matches!(base.hook, Hook::Forward | Hook::Other) {
                left_out.push(chain);
            } else if name.0 == "bridge" && has_ip {
                self.writer.note(format!(
                    "chain {chain} is left out: it sees packets of bridges (hint: --chain {}/{}/{})",
                    name.0, name.1, name.2
                ));
            } else if let Err(reason) = Condition::of_family(name.0) {
                self.writer.note(format!("chain {chain} is left out: {reason}"));
            } else if !self.is_of_port(base, devices.len()) {
                self.writer.note(format!(
                    "chain {chain} is left out: it is one of {} (hint: --interface NAME)",
                    quoted(&base.devices.join(", "))
                ));
            } else {
                order.push((base.clone(), *name));
            }
        }
        order.sort_by_key(|(base, _)| (base.hook, base.priority));
        self.order = order;
        if !left_out.is_empty() {
            let message = format!(
                "received packets to the host do not meet these chains, which are left out: {}",
                left_out.join(", ")
            );
            self.writer.note(message);
        }
    }

    /// Finds a chain that shows that the host forwards packets, and one that translates their addresses.
    fn find_forwards(&mut self, bases: &[(Base, Name<'v>)]) {
        let forwards = |(base, name): &&(Base, Name<'v>)| {
            base.hook == Hook::Forward
                && self.ruleset.inactive(*name).is_none()
                && self.ruleset.chains.get(name).is_some_and(|chain| !chain.rules.is_empty())
                && (!base.drops || self.ruleset.has(*name, &ACCEPTS))
        };
        let translates = |(base, name): &&(Base, Name<'v>)| {
            base.is_nat
                && self.ruleset.inactive(*name).is_none()
                && self.ruleset.has(*name, &["masquerade", "snat", "dnat", "redirect"])
        };
        let named = |(_, name): &(Base, Name<'v>)| format!("chain {}", shown(*name));
        self.translates = bases.iter().find(translates).map(named);
        // Replies to connections that leave with another address are forwarded as well.
        let leaves = |chain: &&(Base, Name<'v>)| chain.0.hook == Hook::Other && translates(chain);
        self.forwards = bases.iter().find(forwards).or_else(|| bases.iter().find(leaves)).map(named);
    }

    /// Returns whether any packet may be forwarded instead of meeting chains of the hook input.
    pub(super) fn is_all_forwarded(&self) -> bool {
        self.forwards.is_some() && self.options.addresses.is_empty()
    }

    /// Whether an ingress chain is one of the port.
    fn is_of_port(&self, base: &Base, devices: usize) -> bool {
        let own = self.options.interface.as_deref();
        match own {
            _ if base.devices.is_empty() => true,
            Some(_) => base
                .devices
                .iter()
                .any(|device| is_interface(&Value::String(device.clone()), own) == Some(true)),
            // Of one interface in all: that of the port.
            None => devices == 1,
        }
    }

    /// Notes what a part of a rule set does not show.
    fn note_incomplete(&mut self) {
        if self.order.is_empty() {
            let message = "there is no active chain of hook ingress, prerouting or input".to_owned();
            self.writer.note(message);
        }
        for (base, name) in self.order.clone() {
            if self.options.interface.is_none() && !base.devices.is_empty() {
                self.writer.note(format!(
                    "chain {} is one of {}, which is taken for the interface of the port (hint: --interface NAME)",
                    shown(name),
                    quoted(&base.devices.join(", "))
                ));
            }
            if !self.ruleset.tables.contains_key(&(name.0, name.1)) {
                self.writer.note(format!(
                    "table {} {} is not listed, so other chains, sets and translations of addresses are not known (hint: use nft -j list ruleset)",
                    quoted(name.0),
                    quoted(name.1)
                ));
            }
        }
        let input = self.order.iter().find(|(base, _)| base.hook == Hook::Input);
        if let (Some((_, name)), true) = (input, self.options.addresses.is_empty()) {
            let name = shown(*name);
            let message = match &self.forwards {
                None => format!(
                    "chain {name} sees packets to this host; the policy, all that the port receives, also those that the host would forward (hint: --address ADDRESS)"
                ),
                Some(other) => format!(
                    "chain {name} sees packets to this host, which forwards others ({other}), so that rules of the hook input that drop are comments (hint: --address ADDRESS)"
                ),
            };
            self.writer.note(message);
        }
    }
}

/// The base chain of a name.
fn chosen<'v>(wanted: &str, bases: &[(Base, Name<'v>)]) -> Result<(Base, Name<'v>), WrongFormat> {
    let is_wanted = |(_, name): &&(Base, Name<'v>)| {
        let short = format!("{}/{}", name.1, name.2);
        wanted == short || wanted == format!("{}/{short}", name.0)
    };
    let found: Vec<&(Base, Name<'v>)> = bases.iter().filter(is_wanted).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        _ => {
            let listed = if found.is_empty() { bases.iter().collect() } else { found };
            let names: Vec<String> =
                listed.iter().map(|(_, name)| format!("{}/{}/{}", name.0, name.1, name.2)).collect();
            let message = format!(
                "--chain {}: not the name of one base chain (hint: {})",
                quoted(wanted),
                names.join(", ")
            );
            Err(WrongFormat { line: 0, message })
        }
    }
}
