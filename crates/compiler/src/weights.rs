//! How many packets each rule decides in some traffic. Where a device cannot decide all rules in hardware, the compiler
//! prefers those with most packets. [`RuleCounter`] counts them in a capture; what a rule decides depends on the policy
//! alone, so that the numbers are the same for all devices.

use packet::DeepKey;
use policy::Policy;
use program::{Class, ClassIndex, Outcome, Predicate, RuleId, Step};

use crate::classes::Deciding;
use crate::cover::{decides, verdict};

/// The packets that each rule decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The default's last.
    packets: Vec<u64>,
}

impl Weights {
    /// From the packets of each rule in the order of the policy, those of the default last. Rules beyond the list have none.
    #[must_use]
    pub fn new(packets: Vec<u64>) -> Self {
        Self { packets }
    }

    /// The packets of a rule.
    #[must_use]
    pub fn of(&self, rule: RuleId) -> u64 {
        self.packets.get(rule.index()).copied().unwrap_or(0)
    }

    /// By rule, the default's last.
    #[must_use]
    pub fn packets(&self) -> &[u64] {
        &self.packets
    }
}

/// Counts received packets by the rule that decides them: the first that matches.
///
/// ```
/// use policy::{NoFiles, Source};
///
/// let text = "version = 1\n[[rules]]\nname = 'no_dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = 'drop'\n";
/// let (policy, _) = policy::parse(&Source::new("dns.toml", text), &NoFiles)?;
/// let mut counter = compiler::RuleCounter::new(&policy);
/// let ip = packet::build::FrameBuilder::new().ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
/// for port in [53, 53, 80] {
///     counter.add(&packet::DeepKey::of(&ip.clone().udp(1024, port).build()));
/// }
/// assert_eq!(counter.weights().packets(), [2, 1]);
/// # Ok::<(), policy::Diagnostics>(())
/// ```
#[derive(Debug)]
pub struct RuleCounter {
    /// All rules that decide packets.
    class: Class,
    /// `None`: there are few.
    index: Option<ClassIndex>,
    packets: Vec<u64>,
}

impl RuleCounter {
    /// Without packets yet.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let default = RuleId::of(policy.rules.len());
        let deciding =
            policy.rules.iter().enumerate().filter(|(_, rule)| decides(rule.direction, rule.action));
        let steps = deciding.map(|(index, rule)| {
            let id = RuleId::of(index);
            let outcome = Outcome { rule: id, verdict: verdict(rule.action) };
            Step { rule: id, predicate: Predicate::of(&rule.matches), outcome }
        });
        let otherwise = Outcome { rule: default, verdict: verdict(policy.default) };
        let decide = Deciding::of_steps(steps.collect()).decide_all(otherwise);
        let class = Class { rule: default, decide };
        let index = ClassIndex::of(&class);
        Self { class, index, packets: vec![0; policy.rules.len() + 1] }
    }

    /// Adds a packet.
    pub fn add(&mut self, key: &DeepKey) {
        let outcome = match &self.index {
            Some(index) => index.resolve_deep(&self.class, key),
            None => self.class.resolve_deep(key),
        };
        self.packets[outcome.rule.index()] += 1;
    }

    /// The packets so far.
    #[must_use]
    pub fn weights(self) -> Weights {
        Weights::new(self.packets)
    }
}
