//! The number of packets that each rule decides in a capture. Which rule that is depends on the policy alone,
//! so that the numbers are the same for all devices.

use compiler::Weights;
use packet::DeepKey;
use policy::Policy;
use program::{Class, Decide, Outcome, Predicate, RuleId, Step};

/// Counts received packets by the rule that decides them: the first that matches.
///
/// ```
/// use policy::{NoFiles, Source};
///
/// let text = "version = 1\n[[rules]]\nname = 'no_dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = 'drop'\n";
/// let (policy, _) = policy::parse(&Source::new("dns.toml", text), &NoFiles)?;
/// let mut counter = reports::RuleCounter::new(&policy);
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
    packets: Vec<u64>,
}

impl RuleCounter {
    /// Without packets yet.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let default = RuleId::of(policy.rules.len());
        let deciding =
            policy.rules.iter().enumerate().filter(|(_, rule)| rule.action.decides(rule.direction));
        let steps = deciding.map(|(index, rule)| {
            let id = RuleId::of(index);
            let outcome = Outcome { rule: id, verdict: rule.action.verdict() };
            Step { rule: id, predicate: Predicate::of(&rule.matches), outcome }
        });
        let otherwise = Outcome { rule: default, verdict: policy.default.verdict() };
        let decide = Decide::Software(steps.collect::<Vec<_>>().into(), otherwise);
        Self { class: Class { rule: default, decide }, packets: vec![0; policy.rules.len() + 1] }
    }

    /// Adds a packet.
    pub fn add(&mut self, key: &DeepKey) {
        let outcome = self.class.resolve_deep_by_index(key);
        self.packets[outcome.rule.index()] += 1;
    }

    /// The packets so far.
    #[must_use]
    pub fn weights(self) -> Weights {
        Weights::new(self.packets)
    }
}
