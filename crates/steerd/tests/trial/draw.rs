//! Random policies as an operator would write them, for one personality, and the frames at their edges. Used by the
//! trial of the personalities; judges nothing.

use std::fmt::Write as _;

use analysis::match_text;
use policy::policy::{Action, Direction};
use policy::{NoFiles, Policy, Source};
use program::{Match, RangeSet, VlanMatch};

pub(crate) const GROUPS: &str = "[groups.g0]\nworkers = 'all'\n[groups.g1]\nworkers = [1, 2]\nhash = 'l3'\n\
    symmetric = false\n[groups.g2]\nworkers = [3]\nhash = 'none'\n";

/// One rule to be.
pub(crate) type Line = (Match, Action, Direction);

/// What a policy is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// What every device can: nothing is copied, and only what is received is spoken of.
    Plain,
    /// Whatever was drawn.
    Mixed,
    /// Every second rule is about what the host sends.
    BothWays,
}

impl Flavour {
    /// They take turns.
    pub(crate) fn of(seed: u64) -> Self {
        [Self::Plain, Self::Mixed, Self::BothWays][(seed % 3) as usize]
    }
}

/// The lines as the language allows them: what the host sends is dropped or passed, and one rule may sniff.
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
        // A worker makes no copies: behind a rule that takes one, the device can make none either.
        lines.sort_by_key(|(_, action, _)| !matches!(action, Action::Copy(_)));
        // Some devices look at flows on multicast last, and no worker can put that right for what is sent.
        let sent = lines.iter_mut().filter(|(_, _, direction)| *direction == Direction::Egress);
        sent.rev().skip(1).for_each(|(matches, ..)| matches.dst_mac = None);
    }
    lines
}

/// The match without the keys that cannot be met together with its others, as the parser names them.
pub(crate) fn consistent(mut matches: Match) -> Match {
    for _ in 0..MOST_CONFLICTS {
        let line = (matches.clone(), Action::Drop, Direction::Ingress);
        let Err(bad) = parse(&text(&[line], Action::Kernel)) else { break };
        let named = bad.list[0].message.split('`').nth(1).unwrap_or_default();
        forget(&mut matches, named);
    }
    matches
}

/// More keys than this are never at odds.
const MOST_CONFLICTS: usize = 8;

fn forget(matches: &mut Match, key: &str) {
    match key {
        "vlan" => matches.vlan = None,
        "vlan_priority" => matches.vlan_priority = None,
        "vlan_tpid" => matches.vlan_tpid = None,
        "inner_vlan" => matches.inner_vlan = None,
        "inner_vlan_tpid" => matches.inner_vlan_tpid = None,
        "ethertype" => matches.ethertype = None,
        "family" => matches.family = None,
        "src" => matches.src = None,
        "dst" => matches.dst = None,
        "protocol" => matches.protocol = None,
        "src_port" => matches.src_port = None,
        "dst_port" => matches.dst_port = None,
        "tcp_flags" => matches.tcp_flags = None,
        "flow_label" => matches.flow_label = None,
        "ip_flags" => matches.ip_flags = None,
        "ip_options" => matches.ip_options = None,
        "fragment" => matches.fragment = None,
        "mpls" => matches.mpls = None,
        "inner" => matches.inner = None,
        "vxlan_vni" => matches.vxlan_vni = None,
        "esp_spi" | "esp_seq" => (matches.esp_spi, matches.esp_seq) = (None, None),
        "gre_protocol" | "gre_key" | "gre_flags" => {
            (matches.gre_protocol, matches.gre_key, matches.gre_flags) = (None, None, None);
        }
        _ => matches.inner = None,
    }
}

/// The match without the keys that some device leaves to its workers.
pub(crate) fn in_words(matches: Match) -> Match {
    let mut macs = [matches.dst_mac, matches.src_mac];
    macs.iter_mut().flatten().for_each(|macs| macs.none_of.clear());
    let [dst_mac, src_mac] = macs;
    // All ports, which asks for no value, only for the header.
    let some = |ports: &RangeSet<u16>| !(ports.contains(0) && ports.contains(u16::MAX));
    Match {
        dst_mac,
        src_mac,
        vlan: matches.vlan.filter(|vlan| matches!(vlan, VlanMatch::Ids(_))),
        vlan_tpid: None,
        inner_vlan: None,
        inner_vlan_tpid: None,
        ttl: None,
        ip_flags: None,
        fragment: None,
        tcp_flags: None,
        ip_options: None,
        src_port: matches.src_port.filter(some),
        dst_port: matches.dst_port.filter(some),
        gre_protocol: None,
        esp_seq: None,
        gre_flags: None,
        gre_key: None,
        mpls: None,
        inner: None,
        ..matches
    }
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

/// Packets that the analysis thinks worth looking at: of each rule, and of each pair that shares some.
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
