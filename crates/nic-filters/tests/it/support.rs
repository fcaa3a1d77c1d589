//! Policies, packets, and a store of ledgers in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};

use nic_filters::{
    CarveRefusal, Filter, FilterModel, FilterOrder, FilterRoom, Ledger, LedgerStore, ModelledNic,
    NicDecision, WantedFilters, carve,
};
use packet::FlowKey;
use packet::build::FrameBuilder;
use policy::policy::Action;
use policy::{NoFiles, Policy, Source};
use program::Predicate;

pub(crate) const QUEUES: u32 = 8;

/// A NIC whose filters are ordered by their locations and have any masks, as ternary memories do.
pub(crate) fn ternary() -> FilterModel {
    FilterModel {
        name: "ternary".to_owned(),
        order: FilterOrder::Location,
        takes_equal_matches: true,
        filters: Some(4096),
        ..FilterModel::by_name("mlx5").expect("built in")
    }
}

pub(crate) fn model(name: &str) -> FilterModel {
    FilterModel::by_name(name).expect("built in")
}

/// A policy with groups of queue 1, of queue 2, and of queues 4 to 6.
pub(crate) fn policy(rules: &str) -> Policy {
    let text = format!(
        "version = 1\n[groups.one]\nqueues = [1]\n[groups.two]\nqueues = [2]\n[groups.many]\nqueues = [4, 5, 6]\n{rules}"
    );
    policy::parse(&Source::new("carve.toml", text), &NoFiles).expect("a policy").0
}

/// A rule by its match and its action.
pub(crate) fn rule(name: &str, matches: &str, action: &str) -> String {
    let action = match action {
        "drop" | "kernel" => format!("'{action}'"),
        group => format!("{{ steer = '{group}' }}"),
    };
    format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = {action}\n")
}

/// The room of an interface with so many queues.
pub(crate) fn room(queues: u32) -> FilterRoom {
    FilterRoom { queues: Some(queues), filters: None, context_entries: Some(128) }
}

/// The filters of a policy; the refusal of the compiler as one of no rule.
pub(crate) fn carved(policy: &Policy, model: &FilterModel) -> Result<WantedFilters, CarveRefusal> {
    let room = room(QUEUES);
    let program = compiler::compile(policy, &model.device(room), QUEUES as usize)
        .map_err(|_| CarveRefusal::default())?;
    carve(&program, model, room)
}

/// The decision of a policy, by its rules in their order.
pub(crate) fn decision(policy: &Policy, key: &FlowKey) -> NicDecision {
    let rule = policy.rules.iter().find(|rule| Predicate::of(&rule.matches).matches(key));
    match rule.map_or(policy.default, |rule| rule.action) {
        Action::Drop => NicDecision::Drop,
        Action::Steer(group) => NicDecision::Queues(match policy.groups[group.index()].name.as_str() {
            "one" => BTreeSet::from([1]),
            "two" => BTreeSet::from([2]),
            _ => BTreeSet::from([4, 5, 6]),
        }),
        _ => NicDecision::Kernel,
    }
}

/// The decision of the NIC about a packet, if only one is possible.
pub(crate) fn decided(
    nic: &ModelledNic,
    filters: &BTreeMap<u32, Filter>,
    key: &FlowKey,
) -> Option<NicDecision> {
    let mut decisions = nic.decisions(filters, key).into_iter();
    decisions.next().filter(|_| decisions.next().is_none())
}

/// Addresses and ports of few values, so that rules and packets meet.
pub(crate) const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "192.0.2.7"];
pub(crate) const PREFIXES: [&str; 5] = ["10.0.0.0/24", "10.0.0.0/16", "10.0.0.1", "10.0.1.1", "192.0.2.0/24"];
pub(crate) const PORTS: [u16; 5] = [53, 80, 81, 443, 8080];

/// Packets with all of these addresses, ports and protocols, and some without ports.
pub(crate) fn packets() -> Vec<FlowKey> {
    let mut keys = Vec::new();
    for src in ADDRESSES {
        for dst in ADDRESSES {
            let ip = || {
                FrameBuilder::new().ipv4(src.parse().expect("an address"), dst.parse().expect("an address"))
            };
            for src_port in PORTS {
                for dst_port in PORTS {
                    keys.push(FlowKey::of(&ip().udp(src_port, dst_port).build()));
                    keys.push(FlowKey::of(&ip().tcp(src_port, dst_port, 0x10).build()));
                }
            }
        }
    }
    let ip6 = || {
        FrameBuilder::new()
            .ipv6("2001:db8::1".parse().expect("an address"), "2001:db8::2".parse().expect("one"))
    };
    keys.extend(PORTS.iter().map(|port| FlowKey::of(&ip6().udp(1024, *port).build())));
    keys.extend(PORTS.iter().map(|port| FlowKey::of(&ip6().tcp(1024, *port, 0x10).build())));
    keys
}

/// Numbers that follow from a seed.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    pub(crate) fn of<'v, T>(&mut self, values: &'v [T]) -> &'v T {
        &values[self.below(values.len())]
    }

    /// A policy of rules that often overlap. `is_exact`: addresses and ports are single values.
    pub(crate) fn policy(&mut self, rules: usize, actions: &[&str], is_exact: bool) -> String {
        let mut text = String::new();
        for index in 0..rules {
            let mut keys = format!("family = 'ipv4', protocol = '{}'", self.of(&["udp", "tcp"]));
            if self.below(2) == 0 {
                let dst = if is_exact { self.of(&ADDRESSES) } else { self.of(&PREFIXES) };
                write!(keys, ", dst = '{dst}'").expect("strings take text");
            }
            if self.below(3) == 0 {
                let src = if is_exact { self.of(&ADDRESSES) } else { self.of(&PREFIXES) };
                write!(keys, ", src = '{src}'").expect("strings take text");
            }
            match self.below(3) {
                0 => {}
                1 => write!(keys, ", dst_port = {}", self.of(&PORTS)).expect("strings take text"),
                _ if is_exact => write!(keys, ", dst_port = [80, 81]").expect("strings take text"),
                _ => write!(keys, ", dst_port = '80-95'").expect("strings take text"),
            }
            text.push_str(&rule(&format!("r{index}"), &keys, self.of::<&str>(actions)));
        }
        text
    }
}

/// A store that outlives the process that writes to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryStore {
    text: Arc<Mutex<String>>,
    end: Arc<Mutex<Option<ProcessEnd>>>,
}

/// The call to a NIC with which a process ends: it writes nothing afterwards.
#[derive(Debug)]
struct ProcessEnd {
    nic: ModelledNic,
    call: usize,
}

impl MemoryStore {
    pub(crate) fn ledger(&self) -> Ledger {
        let text = self.text.lock().expect("nobody panics").clone();
        if text.is_empty() { Ledger::default() } else { serde_json::from_str(&text).expect("a ledger") }
    }

    /// Ignores what is saved after this call to the NIC, counted from the last [`ModelledNic::fail`].
    pub(crate) fn end_with_call(&self, nic: &ModelledNic, call: usize) {
        *self.end.lock().expect("nobody panics") = Some(ProcessEnd { nic: nic.clone(), call });
    }

    /// The store with the same text, to which the next process writes.
    pub(crate) fn of_next_process(&self) -> Self {
        Self { text: Arc::clone(&self.text), end: Arc::default() }
    }
}

impl LedgerStore for MemoryStore {
    fn save(&mut self, ledger: &Ledger) -> io::Result<()> {
        let end = self.end.lock().expect("nobody panics");
        if end.as_ref().is_some_and(|end| end.nic.calls() > end.call) {
            return Ok(());
        }
        *self.text.lock().expect("nobody panics") = serde_json::to_string(ledger)?;
        Ok(())
    }
}
