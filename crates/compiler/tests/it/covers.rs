//! Covers: wide flows that lead the packets of flows without room to a worker. Every packet is decided as by
//! the policy.

use compiler::{Job, Weights};
use device_model::DeviceModel;
use packet::build::FrameBuilder;
use packet::{DeepKey, MacAddr};
use policy::{NoFiles, Policy, Source};
use program::{Class, Decide, Flow, Program, RuleId, Verdict};

use crate::few_flows::mlx5_with;

fn parsed(rules: &str) -> Policy {
    let text = format!(
        "version = 1\nallow_lost_exceptions = true\n[groups.g]\nworkers = \"all\"\n[groups.a]\nworkers = \"all\"\n{rules}"
    );
    policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
}

/// Rules that drop the packets of nested networks to a port each, in many masks.
fn nested_drops() -> Policy {
    let rule = |number: u32| {
        let (length, port) = (9 + number % 20, 1_000 + number);
        format!(
            "[[rules]]\nname = 'r{number}'\naction = 'drop'\n\
             match = {{ protocol = 'udp', src = '10.0.0.0/{length}', dst_port = {port} }}\n"
        )
    };
    parsed(&(0..60).map(rule).collect::<String>())
}

/// Covers would take packets from the host that nobody gives back, only to spare hops.
#[test]
fn hops_are_not_spared_with_the_host_s_packets() {
    let allowed = nested_drops();
    let strict = Policy { allow_lost_exceptions: false, ..allowed.clone() };
    let dear = DeviceModel { ns_per_group: Some(500), ..DeviceModel::mlx5() };
    let has_covers = |policy: &Policy| {
        let program = compiler::compile(policy, &dear, 2).expect("it compiles");
        program.flows.iter().any(|flow| flow.rule == program.default_rule())
    };
    assert!(has_covers(&allowed) && !has_covers(&strict));
}

/// Wide covers would take packets from the host that nobody gives back, only to spare groups.
#[test]
fn prices_widen_no_strict_covers() {
    let allowed = nested_drops();
    let strict = Policy { allow_lost_exceptions: false, ..allowed.clone() };
    let outside = FrameBuilder::new().ethernet(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 9]));
    let outside = outside.ipv4([192, 0, 2, 1].into(), [10, 0, 0, 1].into()).udp(9, 1_001).build();
    let mut widened = Vec::new();
    for room in
        [(Some(8), Some(40)), (Some(24), Some(80)), (Some(64), Some(60)), (None, Some(40)), (None, Some(80))]
    {
        let program = |policy: &Policy, ns_per_group| {
            let few = DeviceModel { ns_per_group, ..mlx5_with(room.0, room.1) };
            compiler::compile(policy, &few, 2).expect("it compiles")
        };
        // Whether a worker receives a packet that the policy leaves to the host.
        let takes = |program: &Program| program.explain_deep(&DeepKey::of(&outside)).flow.is_some();
        let [cheap, dear, allowed] = [(&strict, None), (&strict, Some(500)), (&allowed, Some(500))]
            .map(|(policy, ns)| program(policy, ns));
        assert_eq!(dear, cheap, "{room:?}");
        widened.push((room, takes(&cheap), takes(&allowed)));
    }
    assert!(widened.iter().any(|(_, narrow, wide)| !narrow && *wide), "{widened:?}");
}

/// A packet of the search for wrong decisions: TCP or UDP over IPv4.
#[derive(Clone, Copy, Debug)]
struct SmallPacket {
    is_multicast: bool,
    src: u32,
    dst: u32,
    is_tcp: bool,
    port: u16,
}

impl SmallPacket {
    const ADDRESSES: [u32; 3] = [0x0a00_0001, 0x0a01_0001, 0xac10_0001];
    const PORTS: [u16; 4] = [22, 23, 80, 200];

    fn all() -> Vec<Self> {
        let mut packets = Vec::new();
        for src in Self::ADDRESSES {
            for dst in Self::ADDRESSES {
                for port in Self::PORTS {
                    for bits in 0..4u8 {
                        let (is_multicast, is_tcp) = (bits & 1 == 1, bits & 2 == 2);
                        packets.push(Self { is_multicast, src, dst, is_tcp, port });
                    }
                }
            }
        }
        packets
    }

    fn frame(&self) -> Vec<u8> {
        let dst_mac = if self.is_multicast { [1, 0, 0x5e, 0, 0, 1] } else { [2, 0, 0, 0, 0, 1] };
        let frame = FrameBuilder::new()
            .ethernet(MacAddr(dst_mac), MacAddr([2, 0, 0, 0, 0, 9]))
            .ipv4(self.src.into(), self.dst.into());
        let frame = if self.is_tcp { frame.tcp(9, self.port, 2) } else { frame.udp(9, self.port) };
        frame.build()
    }
}

/// A rule of the search. Its meaning shares no code with the compiler.
#[derive(Clone, Debug)]
struct SmallRule {
    is_multicast: bool,
    /// Sources and destinations, each with the length of its prefix; none: any.
    prefixes: [Vec<(u32, u32)>; 2],
    /// The protocol, TCP or not, and the destination ports.
    ports: Option<(bool, u16, u16)>,
    action: &'static str,
    weight: u64,
}

impl SmallRule {
    const ACTIONS: [&str; 5] = ["'kernel'", "'kernel'", "'drop'", "{ steer = 'g' }", "{ steer = 'a' }"];

    fn random(next: &mut impl FnMut(u32) -> u32) -> Self {
        let mut prefixes = || {
            let count = [0, 0, 0, 1, 2][next(5) as usize];
            let prefix = |_| (SmallPacket::ADDRESSES[next(3) as usize], [8, 15, 16, 32][next(4) as usize]);
            (0..count).map(prefix).collect::<Vec<_>>()
        };
        let prefixes = [prefixes(), prefixes()];
        let low = [22, 22, 23, 80, 100][next(5) as usize];
        let ports = (next(2) == 0).then(|| (next(2) == 0, low, low + [0, 0, 1, 60, 180][next(5) as usize]));
        let action = Self::ACTIONS[next(5) as usize];
        Self { is_multicast: next(4) == 0, prefixes, ports, action, weight: [0, 1, 100][next(3) as usize] }
    }

    fn holds(&self, packet: &SmallPacket) -> bool {
        let is_inside = |(prefixes, address): (&Vec<(u32, u32)>, u32)| {
            let contains =
                |(prefix, length): &(u32, u32)| prefix >> (32 - length) == address >> (32 - length);
            prefixes.is_empty() || prefixes.iter().any(contains)
        };
        (!self.is_multicast || packet.is_multicast)
            && self.prefixes.iter().zip([packet.src, packet.dst]).all(is_inside)
            && self.ports.is_none_or(|(is_tcp, low, high)| {
                is_tcp == packet.is_tcp && (low..=high).contains(&packet.port)
            })
    }

    fn text(&self, number: usize) -> String {
        let mut keys = Vec::new();
        if self.is_multicast {
            keys.push("dst_mac = 'multicast'".to_owned());
        }
        let prefix = |(address, length): &(u32, u32)| {
            format!("'{}/{length}'", std::net::Ipv4Addr::from_bits(address >> (32 - length) << (32 - length)))
        };
        for (key, prefixes) in
            ["src", "dst"].into_iter().zip(&self.prefixes).filter(|(_, all)| !all.is_empty())
        {
            let list: Vec<String> = prefixes.iter().map(prefix).collect();
            keys.push(format!("{key} = [{}]", list.join(", ")));
        }
        keys.extend(self.ports.map(|(is_tcp, low, high)| {
            format!("protocol = '{}', dst_port = '{low}-{high}'", if is_tcp { "tcp" } else { "udp" })
        }));
        let keys = if keys.is_empty() { "any = true".to_owned() } else { keys.join(", ") };
        format!("[[rules]]\nname = 'r{number}'\nmatch = {{ {keys} }}\naction = {}\n", self.action)
    }
}

/// The programs of a search that had covers, and what else these had.
#[derive(Clone, Copy, Debug, Default)]
struct CoveredPrograms {
    all: usize,
    /// A rule that leaves packets to the kernel, with flows, of which a worker compares packets of covers.
    with_kernel_flows: usize,
    /// A flow for multicast alone, which the device applies after the covers.
    with_late_multicast: usize,
}

impl CoveredPrograms {
    fn note(&mut self, program: &Program) {
        let default = program.default_rule();
        if !program.flows.iter().any(|flow| flow.rule == default) {
            return;
        }
        let covers = program.classes.iter().flatten().filter(|class| class.rule == default);
        let has_flows = |rule: RuleId| program.flows.iter().any(|flow| flow.rule == rule);
        let compares_kernel = |class: &Class| match &class.decide {
            Decide::Exact(_) => false,
            Decide::Software(steps, _) => steps.iter().any(|step| {
                step.outcome.verdict == Verdict::Kernel && step.rule != default && has_flows(step.rule)
            }),
        };
        self.all += 1;
        self.with_kernel_flows += usize::from(covers.into_iter().any(compares_kernel));
        self.with_late_multicast += usize::from(program.flows.iter().any(Flow::is_multicast_only));
    }
}

/// Compiles so many random policies for devices with room for few flows or masks; returns which programs
/// had covers. Among the first thousands are policies where a worker has to compare packets of covers with a
/// rule that has flows: one that leaves packets to the kernel, some of them without a flow, and one for
/// multicast alone, whose flows the device applies after the covers.
fn search_wrong_decisions(policies: usize, mut seed: u64) -> CoveredPrograms {
    let mut next = |below: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32 % below
    };
    let packets: Vec<(SmallPacket, DeepKey)> =
        SmallPacket::all().into_iter().map(|packet| (packet, DeepKey::of(&packet.frame()))).collect();
    let mut covered = CoveredPrograms::default();
    for _ in 0..policies {
        let count = 3 + next(5) as usize;
        let mut rules: Vec<SmallRule> = (0..count).map(|_| SmallRule::random(&mut next)).collect();
        // Flows for multicast alone come last on the device, if no later rule meets them.
        if let Some(last) = rules.last_mut().filter(|_| next(2) == 0) {
            (last.is_multicast, last.weight) = (true, 100);
        }
        let text: String = rules.iter().enumerate().map(|(number, rule)| rule.text(number)).collect();
        let policy = parsed(&text);
        let weights = Weights::new(rules.iter().map(|rule| rule.weight).collect());
        let masks = (next(2) == 0).then(|| 1 + next(8));
        let flows = (masks.is_none() || next(2) == 0).then(|| 2 * (2 + next(16)));
        let profile = DeviceModel { priorities: 3 + next(14), ..mlx5_with(masks, flows) };
        let Ok(program) = Job::new(&policy, &profile, 2).weighted(Some(&weights)).compile() else { continue };
        covered.note(&program);
        for (packet, key) in &packets {
            let wanted = rules.iter().position(|rule| rule.holds(packet)).unwrap_or(rules.len());
            let found = program.explain_deep(key).outcome.rule.index();
            assert_eq!(found, wanted, "{packet:?}, {masks:?} masks, {flows:?} flows\n{text}\n{program}");
        }
    }
    covered
}

#[test]
fn covers_decide_as_the_policy() {
    let covered = search_wrong_decisions(2_000, 1);
    println!("{covered:?}");
    assert!(covered.all > 200, "{covered:?}");
    assert!(covered.with_kernel_flows > 0 && covered.with_late_multicast > 0, "{covered:?}");
}

#[test]
#[ignore = "takes minutes: run with --release"]
fn covers_decide_as_many_policies() {
    println!("{:?}", search_wrong_decisions(200_000, 2));
}

/// A rule that leaves packets to the kernel may keep flows that match more than its packets. They come before
/// those for multicast alone, which the device applies last.
#[test]
fn wide_kernel_flows_do_not_hide_multicast() {
    let policy = parsed(
        "[[rules]]\nname = 'drop'\naction = 'drop'\nmatch = { dst_mac = 'multicast', protocol = 'udp', dst_port = 22, \
         src = ['10.0.0.0/15', '10.1.0.1/32'], dst = ['10.0.0.0/8', '10.1.0.1/32'] }\n\
         [[rules]]\nname = 'kernel'\naction = 'kernel'\nmatch = { protocol = 'udp', dst_port = '100-160' }\n\
         [[rules]]\nname = 'late'\naction = { steer = 'a' }\n\
         match = { dst_mac = 'multicast', protocol = 'udp', dst_port = 100, src = ['10.1.0.1/32', '10.0.0.0/15'], \
         dst = ['10.0.0.0/8', '10.1.0.0/16'] }\n\
         [[rules]]\nname = 'far'\naction = { steer = 'g' }\nmatch = { dst = '172.0.0.0/8' }\n\
         [[rules]]\nname = 'near'\naction = 'kernel'\nmatch = { protocol = 'udp', dst_port = '22-23', \
         src = ['10.0.0.0/16', '10.1.0.1/32'] }\n",
    );
    let address = SmallPacket::ADDRESSES[0];
    let packet = SmallPacket { is_multicast: true, src: address, dst: address, is_tcp: false, port: 22 };
    let (mut compiled, mut keeps_wide) = (0, 0);
    for (masks, flows) in [(None, None), (Some(5), Some(24)), (Some(5), Some(16)), (None, Some(24))] {
        for priorities in [6, 16] {
            let device = DeviceModel { priorities, ..mlx5_with(masks, flows) };
            let Ok(program) = compiler::compile(&policy, &device, 2) else { continue };
            let found = program.explain_deep(&DeepKey::of(&packet.frame())).outcome.rule.index();
            assert_eq!(found, 0, "{masks:?} masks, {flows:?} flows, {priorities} priorities\n{program}");
            compiled += 1;
            // The precondition: a rule that leaves packets to the kernel has flows.
            keeps_wide += usize::from(program.flows.iter().any(|flow| [1, 4].contains(&flow.rule.index())));
        }
    }
    println!("{compiled} programs, {keeps_wide} with flows of kernel rules");
    assert!(compiled == 8 && keeps_wide > 0, "{compiled} programs, {keeps_wide} with flows of kernel rules");
}
