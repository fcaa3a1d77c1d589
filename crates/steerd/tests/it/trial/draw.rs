//! Random policies for one personality, and frames at the edges of their rules. Used by the trial of the
//! personalities.

use std::fmt::Write as _;

use analysis::match_text;
use packet::Field;
use policy::policy::{Action, Direction};
use policy::{NoFiles, Policy, Source};
use program::Match;

pub(crate) const GROUPS: &str = "[groups.g0]\nworkers = 'all'\n[groups.g1]\nworkers = [1, 2]\nhash = 'l3'\n\
    symmetric = false\n[groups.g2]\nworkers = [3]\nhash = 'none'\n";

/// The text of one rule.
pub(crate) type Line = (Match, Action, Direction);

/// The kind of rules in a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Features of every device: no copies, and received packets only.
    Plain,
    /// All features.
    Mixed,
    /// Every second rule matches sent packets.
    BothWays,
}

impl Flavour {
    /// The kinds alternate.
    pub(crate) fn of(seed: u64) -> Self {
        [Self::Plain, Self::Mixed, Self::BothWays][(seed % 3) as usize]
    }
}

/// The lines as the language allows them: sent packets are dropped or passed, and one rule may sniff.
pub(crate) fn sayable(lines: Vec<Line>, flavour: Flavour) -> Vec<Line> {
    let mut sniffs = false;
    let mut said = |(index, (matches, action, direction)): (usize, Line)| {
        let matches = consistent(matches);
        let sent = match flavour {
            Flavour::Plain => false,
            Flavour::Mixed => direction == Direction::Egress,
            Flavour::BothWays => index % 2 == 1,
        };
        match action {
            Action::Sniff(_) if flavour != Flavour::Plain && !std::mem::replace(&mut sniffs, true) => {
                (matches, action, Direction::Ingress)
            }
            Action::Drop | Action::Steer(_) if sent => (matches, Action::Drop, Direction::Egress),
            _ if sent => (matches, Action::Pass, Direction::Egress),
            Action::Sniff(group) => (matches, Action::Steer(group), Direction::Ingress),
            Action::Copy(group) if flavour == Flavour::Plain => {
                (matches, Action::Steer(group), Direction::Ingress)
            }
            _ => (matches, action, Direction::Ingress),
        }
    };
    let mut lines: Vec<Line> = lines.into_iter().enumerate().map(&mut said).collect();
    if flavour == Flavour::BothWays {
        // A worker makes no copies, and the device makes none after a hybrid rule.
        lines.sort_by_key(|(_, action, _)| !matches!(action, Action::Copy(_)));
        // Some devices match multicast flows last, and no worker can correct that for sent packets.
        let sent = lines.iter_mut().filter(|(_, _, direction)| *direction == Direction::Egress);
        sent.rev().skip(1).for_each(|(matches, ..)| matches.dst_mac = None);
    }
    lines
}

/// The match without the keys that the parser reports as contradictory.
pub(crate) fn consistent(mut matches: Match) -> Match {
    for _ in 0..MOST_CONFLICTS {
        let line = (matches.clone(), Action::Drop, Direction::Ingress);
        let Err(bad) = parse(&text(&[line], Action::Kernel)) else { break };
        let named = bad.list[0].message.split('`').nth(1).unwrap_or_default();
        forget(&mut matches, named);
    }
    // No packet has both, which the parser does not report.
    if matches.inner.is_some() {
        matches.remove(&[Field::SctpSrcPort, Field::SctpDstPort]);
    }
    matches
}

/// The most contradictory keys of a match.
const MOST_CONFLICTS: usize = 8;

fn forget(matches: &mut Match, key: &str) {
    match key {
        "vlan" => {
            matches.vlan = None;
            matches.remove(&[Field::VlanId]);
        }
        "inner_vlan" => {
            matches.inner_vlan = None;
            matches.remove(&[Field::InnerVlanId]);
        }
        "family" => matches.family = None,
        "src" => matches.src = None,
        "dst" => matches.dst = None,
        "ip_options" => matches.ip_options = None,
        "fragment" => matches.fragment = None,
        "mpls" => matches.mpls = None,
        "esp_spi" | "esp_seq" => matches.remove(&[Field::EspSpi, Field::EspSeq]),
        "gre_protocol" | "gre_key" | "gre_flags" => {
            matches.remove(&[Field::GreProtocol, Field::GreKey, Field::GreFlags]);
        }
        _ => match Field::all().find(|field| field.name() == key && field.is_number()) {
            Some(field) => matches.remove(&[field]),
            None => matches.inner = None,
        },
    }
}

/// The match without the keys that some devices cannot match.
pub(crate) fn in_words(matches: Match) -> Match {
    let mut macs = [matches.dst_mac.clone(), matches.src_mac.clone()];
    macs.iter_mut().flatten().for_each(|macs| macs.none_of.clear());
    let [dst_mac, src_mac] = macs;
    // All ports: only the header is required, no value.
    let is_all =
        |field| matches.get(field).is_some_and(|ports| ports.contains(0) && ports.contains(u16::MAX.into()));
    let ports = [Field::SrcPort, Field::DstPort].into_iter().filter(|field| is_all(*field));
    let mut refused: Vec<Field> = ports.collect();
    refused.extend([
        Field::VlanTpid,
        Field::InnerVlanId,
        Field::InnerVlanTpid,
        Field::Ttl,
        Field::IpFlags,
        Field::TcpFlags,
        Field::SctpSrcPort,
        Field::SctpDstPort,
        Field::IcmpType,
        Field::IcmpCode,
        Field::Icmpv6Type,
        Field::Icmpv6Code,
        Field::GreProtocol,
        Field::EspSeq,
        Field::GreFlags,
        Field::GreKey,
    ]);
    refused.extend(Field::all().filter(|field| field.row().header.is_extended()));
    let mut matches = Match {
        dst_mac,
        src_mac,
        vlan: None,
        inner_vlan: None,
        fragment: None,
        ip_options: None,
        mpls: None,
        inner: None,
        ..matches
    };
    matches.remove(&refused);
    matches
}

pub(crate) fn parse(text: &str) -> Result<Policy, policy::Diagnostics> {
    policy::parse(&Source::new("trial.toml", text), &NoFiles).map(|(policy, _)| policy)
}

/// The policy of these lines.
pub(crate) fn text(lines: &[Line], default: Action) -> String {
    let default = match default {
        Action::Steer(group) => format!("g{}", group.0),
        Action::Drop => "drop".to_owned(),
        _ => "kernel".to_owned(),
    };
    let mut text = format!("version = 1\ndefault = '{default}'\n{GROUPS}");
    for (index, (matches, action, direction)) in lines.iter().enumerate() {
        let action = match action {
            Action::Steer(group) => format!("{{ steer = 'g{}' }}", group.0),
            Action::Copy(group) => format!("{{ copy = 'g{}' }}", group.0),
            Action::Sniff(group) => format!("{{ sniff = 'g{}' }}", group.0),
            Action::Drop => "'drop'".to_owned(),
            Action::Kernel => "'kernel'".to_owned(),
            Action::Pass => "'pass'".to_owned(),
        };
        let matches = match_text(matches);
        let direction = if *direction == Direction::Egress { "direction = 'egress'\n" } else { "" };
        writeln!(text, "[[rules]]\nname = 'r{index}'\nmatch = {matches}\naction = {action}\n{direction}")
            .expect("a String");
    }
    text
}

/// Witness packets of the analysis: of each rule, and of each pair of overlapping rules.
pub(crate) fn edges(policy: &Policy) -> Vec<Vec<u8>> {
    let analysis = analysis::analyse(policy, &mut |_| {});
    let mut frames = Vec::new();
    for rule in analysis.rules {
        if let analysis::Reach::Reached(witness) = rule.reach {
            frames.push(witness.frame);
        }
        if let analysis::Need::Needed(witness) = rule.need {
            frames.push(witness.frame);
        }
        let pairs = rule.conflicts.listed.into_iter().chain(rule.overlaps.listed);
        frames.extend(pairs.map(|pair| pair.witness.frame));
    }
    frames
}
