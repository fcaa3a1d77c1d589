//! Policies on a live interface: packets are sent through a veth pair to a wire of AF_XDP, those of real
//! captures and random ones. Each goes where `explain` says: to a worker, with the outcome, to the rule's
//! drop counter, or to the host, which gets every byte of it.
//!
//! Needs root: without it the test reports that it was not run and, in CI, fails.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use control::DropTotals;
use packet::{DeepKey, EtherType};
use program::{ClassId, FlowAction, Outcome, Program, WorkerId, XdpVerdict};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use softnic::PortStats;
use test_support::namespaces::is_isolated;
use test_support::{CAPTURE_RULES, Patience, captures, corpora, not_run};
use wire::{
    AfPacketConfig, AfPacketWire, AfXdpConfig, AfXdpWire, Burst, HandOver, MergedFrames, TransmitError, Wire,
    WireError, WireState, XdpMode, ZeroCopy,
};

use crate::explain;
use crate::support::{Rig, Seen, small};

/// The largest MTU with which a veth has XDP in its driver.
const MTU: &str = "3498";
/// How long a frame may take through a veth pair on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Frames that are under way at a time.
const CHUNK: usize = 64;
const RANDOM_FRAMES: usize = 2000;
const WORKERS: usize = 3;

/// A steered host at one end of a pair, and its peer at the other.
struct Link {
    rig: Rig,
    sender: AfPacketWire,
    host: AfPacketWire,
    /// The packets that each rule had dropped at the last call of [`Link::arrived`].
    dropped: BTreeMap<String, u64>,
}

/// The numbers of packets by verdict of the XDP program; the engine gives back some of the redirected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct XdpCounts {
    passed: u64,
    dropped: u64,
    redirected: u64,
    given_back: u64,
}

/// The places that a packet can go to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places {
    host: Vec<Vec<u8>>,
    /// The worker, the tag and the outcome of each packet.
    workers: Vec<(Vec<u8>, WorkerId, Option<ClassId>, Outcome)>,
    /// The numbers of packets that each rule has dropped.
    dropped: BTreeMap<String, u64>,
}

impl Places {
    /// The places that explain says, and the verdicts of the XDP program.
    fn explained(program: &Program, frames: &[Vec<u8>]) -> (Self, XdpCounts) {
        let (mut places, mut taken) = (Self::default(), XdpCounts::default());
        for frame in frames {
            let key = DeepKey::of(frame);
            let explained = program.explain_deep(&key);
            match program.xdp_verdict(&key) {
                XdpVerdict::Pass => taken.passed += 1,
                XdpVerdict::Drop => taken.dropped += 1,
                XdpVerdict::Redirect => {
                    taken.redirected += 1;
                    taken.given_back += u64::from(explained.flow.is_none());
                }
            }
            match explained.flow.map(|flow| program.flows[flow].action) {
                None => places.host.push(frame.clone()),
                Some(FlowAction::Drop | FlowAction::Pass) => {
                    let rule = program.rules[explained.rule.index()].name.to_string();
                    *places.dropped.entry(rule).or_default() += 1;
                }
                Some(FlowAction::Steer { .. }) => {
                    let worker = explained.worker.expect("a queue has a worker");
                    places.workers.push((frame.clone(), worker, explained.class, explained.outcome));
                }
            }
            for copy in explained.copies {
                let worker = copy.worker.expect("a queue has a worker");
                places.workers.push((frame.clone(), worker, copy.class, copy.outcome));
            }
        }
        (places.sorted(), taken)
    }

    fn count(&self) -> usize {
        self.host.len() + self.workers.len() + self.dropped.values().sum::<u64>() as usize
    }

    /// Queues have no order among each other.
    fn sorted(mut self) -> Self {
        self.host.sort();
        self.workers.sort_by(|one, other| one.0.cmp(&other.0));
        self
    }
}

impl Link {
    /// `None`, after [`not_run`]: the kernel does not permit AF_XDP.
    fn new(mode: XdpMode) -> Option<Self> {
        ip(&format!("link add left mtu {MTU} type veth peer name right mtu {MTU}"));
        for end in ["left", "right"] {
            // Without an address of its own the kernel sends nothing over the pair.
            ip(&format!("link set {end} addrgenmode none"));
            ip(&format!("link set {end} up"));
        }
        let config = AfXdpConfig {
            interface: "right".to_owned(),
            promiscuous: true,
            ring_frames: 256,
            mode,
            zero_copy: ZeroCopy::Auto,
            busy_poll: false,
        };
        let wire = match AfXdpWire::open(&config) {
            Ok(wire) => wire,
            Err(error)
                if matches!(error, WireError::NoXdpSockets { .. })
                    || error.to_string().contains("CAP_BPF") =>
            {
                not_run("policies on an interface", &error.to_string());
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let rig = Rig::over(vec![Box::new(wire)], WORKERS, true, small);
        let link = Self { rig, sender: socket("left"), host: socket("right"), dropped: BTreeMap::new() };
        let mut patience = Patience::new(PATIENCE);
        while [&link.sender, &link.host].iter().any(|socket| socket.state() != WireState::Live) {
            assert!(!patience.is_over(), "the veth pair gets no carrier");
        }
        Some(link)
    }

    /// Sends a frame; `false`: the sender's kernel does not send frames of this length.
    fn send(&mut self, frame: &[u8]) -> bool {
        let mut patience = Patience::new(PATIENCE);
        loop {
            match self.sender.transmit(frame) {
                Ok(()) => return true,
                Err(TransmitError::QueueFull) => self.sender.flush(),
                Err(TransmitError::TooLong | TransmitError::TooShort) => return false,
                Err(error @ TransmitError::Down) => panic!("{error}"),
            }
            assert!(!patience.is_over(), "the queue stays full");
        }
    }

    /// Sends frames that go to so many places, and returns where.
    fn places(&mut self, frames: &[Vec<u8>], count: usize) -> Places {
        assert!(frames.iter().all(|frame| self.send(frame)), "sent before, and not now");
        self.sender.flush();
        self.arrived(count)
    }

    /// Waits until the frames that were sent since the last call are in so many places, and returns these.
    fn arrived(&mut self, count: usize) -> Places {
        let mut places = Places::default();
        let mut patience = Patience::new(PATIENCE);
        while places.count() < count {
            self.rig.settle();
            places.dropped = self.newly_dropped();
            let mut burst = Burst::new();
            self.host.receive(&mut burst);
            places.host.extend(burst.iter().map(|frame| frame.bytes.to_vec()));
            let seen = |seen: Seen| (seen.bytes, seen.worker, ClassId::of_tag(seen.tag), seen.outcome);
            places.workers.extend(self.rig.seen().into_iter().map(seen));
            assert!(!patience.is_over(), "of {count}: {places:?}, {:?}", self.rig.port(1));
        }
        for (rule, packets) in &places.dropped {
            *self.dropped.entry(rule.clone()).or_default() += packets;
        }
        places.sorted()
    }

    /// The packets that each rule has dropped since the last call of [`Link::arrived`].
    fn newly_dropped(&mut self) -> BTreeMap<String, u64> {
        let totals = self.rig.controller.drop_counters().into_iter();
        let new = totals.map(|DropTotals { rule, packets, .. }| {
            let before = self.dropped.get(&rule).copied().unwrap_or(0);
            (rule, packets - before)
        });
        new.filter(|(_, packets)| *packets > 0).collect()
    }
}

impl XdpCounts {
    /// The numbers that the port has counted.
    fn counted(port: &PortStats) -> Self {
        Self {
            passed: port.passed,
            dropped: port.dropped_by_wire,
            redirected: port.rx_frames - port.dropped_by_wire,
            given_back: port.given_back,
        }
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.redirected += other.redirected;
        self.given_back += other.given_back;
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip(8) runs");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A packet socket: what the host receives at an end, and a way to send from there.
fn socket(interface: &str) -> AfPacketWire {
    let config = AfPacketConfig {
        interface: interface.to_owned(),
        promiscuous: true,
        ring_frames: 4096,
        merged: MergedFrames::Split,
        hand_over: HandOver::Frames,
        busy_poll: false,
    };
    AfPacketWire::open(&config).expect("AF_PACKET")
}

/// The kernel discards a tagged frame that ends behind its tag before any socket sees it (net/core/dev.c
/// `__netif_receive_skb_core`, net/core/skbuff.c `skb_vlan_untag`).
fn is_lost_in_the_kernel(frame: &[u8]) -> bool {
    /// Two addresses, a type, the tag's own and the type behind it.
    const LEAST_BYTES: usize = 20;
    let is_tagged =
        [EtherType::VLAN, EtherType::SVLAN].iter().any(|tag| frame[12..14] == tag.0.to_be_bytes());
    is_tagged && frame.len() < LEAST_BYTES
}

/// The frames of all captures of the corpora, and random ones.
fn frames() -> Vec<Vec<u8>> {
    let captures = corpora("pcaps").map(|folder| captures(&folder)).unwrap_or_default();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for file in captures.values() {
        frames.extend(test_support::frames(file).into_iter().map(<[u8]>::to_vec));
    }
    let (strategy, mut runner) = (explain::frames(), TestRunner::deterministic());
    frames.extend((0..RANDOM_FRAMES).map(|_| strategy.new_tree(&mut runner).expect("a frame").current()));
    frames
}

/// A policy of many kinds of rules, and policies of one rule each that steers, drops, copies, or is an
/// exception of a rule that takes all others; or that steers, copies or drops before a rule that drops all
/// others.
fn policies() -> Vec<(String, String)> {
    const HEAD: &str = "version = 1\ndefault = 'kernel'\n[groups.g]\nworkers = 'all'\n";
    let rule = |name: &str, matches: &str, action: &str| {
        format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = {action}\n")
    };
    let mut policies = vec![("many kinds".to_owned(), explain::POLICY.to_owned())];
    for (name, matches) in CAPTURE_RULES {
        for (action, rules) in [
            ("steers", rule(name, matches, "{ steer = 'g' }")),
            ("drops", rule(name, matches, "'drop'")),
            ("copies", rule(name, matches, "{ copy = 'g' }")),
            ("leaves", rule(name, matches, "'kernel'") + &rule("rest", "any = true", "{ steer = 'g' }")),
            (
                "steers before drops",
                rule(name, matches, "{ steer = 'g' }") + &rule("rest", "any = true", "'drop'"),
            ),
            (
                "copies before drops",
                rule(name, matches, "{ copy = 'g' }") + &rule("rest", "any = true", "'drop'"),
            ),
            ("drops before drops", rule(name, matches, "'drop'") + &rule("rest", "any = true", "'drop'")),
        ] {
            policies.push((format!("{name} {action}"), format!("{HEAD}{rules}")));
        }
    }
    policies
}

#[test]
fn packets_go_where_explain_says() {
    const NEEDS: &str = "ip link add left type veth peer name right";
    if !is_isolated("interface::packets_go_where_explain_says", NEEDS) {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let Some(mut link) = Link::new(mode) else { return };
        let all = frames();
        let (sent, unsent): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|frame| !is_lost_in_the_kernel(frame) && link.send(frame));
        link.sender.flush();
        let expected = Places { host: sent.clone(), ..Places::default() };
        assert_eq!(link.arrived(sent.len()), expected.sorted(), "without a flow all are the host's");
        let (mut ends, mut beyond) = (BTreeMap::<&str, usize>::new(), BTreeMap::<String, u64>::new());
        let mut taken = XdpCounts { passed: sent.len() as u64, ..XdpCounts::default() };
        for (name, policy) in policies() {
            link.rig.install(&policy);
            // A change may give other numbers to classes.
            let program = link.rig.controller.installed().map(Arc::clone).expect("it was installed");
            for chunk in sent.chunks(CHUNK) {
                let (expected, verdicts) = Places::explained(&program, chunk);
                taken.add(verdicts);
                if verdicts.given_back > 0 && expected.workers.is_empty() {
                    *beyond.entry(name.clone()).or_default() += verdicts.given_back;
                }
                let actual = link.places(chunk, expected.count());
                assert_eq!(actual, expected, "{mode:?}, {name}");
                *ends.entry("host").or_default() += actual.host.len();
                *ends.entry("workers").or_default() += actual.workers.len();
                *ends.entry("dropped").or_default() += actual.dropped.values().sum::<u64>() as usize;
            }
            // How many were passed is read from the kernel now and then.
            let counted = XdpCounts::counted(&link.rig.port(1));
            assert_eq!(XdpCounts { passed: taken.passed, ..counted }, taken, "{mode:?}, {name}");
        }
        let mut patience = Patience::new(PATIENCE);
        while XdpCounts::counted(&link.rig.port(1)) != taken {
            link.rig.settle();
            assert!(!patience.is_over(), "{taken:?} is {:?}", link.rig.port(1));
        }
        let port = link.rig.port(1);
        eprintln!(
            "{mode:?}: {} frames, {} not sent, went to {ends:?}, {taken:?}; taken beyond the flows and given back: {beyond:?}",
            sent.len(),
            unsent.len(),
        );
        assert_eq!(port.rx_frames, port.dispositions());
        assert!(ends.values().all(|count| *count > 1000), "{ends:?}");
        drop(link);
        ip("link delete left");
    }
}
