//! How many packets each rule decides in some traffic. Where a device cannot decide all rules in hardware,
//! the compiler prefers those with most packets.

use device_model::DeviceModel;
use packet::cube::Cube;
use policy::Policy;
use program::RuleId;

use crate::cover::expand::expand;

/// The packets that each rule decides, or numbers in proportion to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The default's last.
    packets: Vec<u64>,
}

/// The weight of all counted packets together, a power of two. Rules with less than about 0.7
/// packets in a million count as having none, because such a part is rounded to less than 1.
const COUNTED: u64 = 1 << 20;

/// A rule keeps its previous weight while the binary logarithms of its part and of that weight differ by at
/// most this, which is while the part is between 1/1.68 and 1.68 times the weight. Rounding alone would
/// change the weight at a difference of 0.5, and counters near such a point would change it back and forth.
/// So a rule can keep the weight above that of another one that has up to 1.41 times its packets.
const KEPT_DISTANCE: f64 = 0.75;

impl Weights {
    /// From the packets of each rule in the order of the policy, those of the default last. Rules beyond the
    /// list have none.
    #[must_use]
    pub fn new(packets: Vec<u64>) -> Self {
        Self { packets }
    }

    /// From the counters of rules that run, in the order of the policy, the default's last; `None`: the rule
    /// has none. `None` if nothing was counted. Rules that do not decide received packets have no weight.
    ///
    /// Each weight is the rule's part of all counted packets, rounded to the nearest power of two; rules of
    /// equal weight stay in the order of the policy. Parts do not change while all counters grow alike.
    /// `previous`, in the same order, are the weights for which the running program was compiled; `None`: the
    /// rule had none, as all those beyond the list. A rule keeps such a weight while its part is between
    /// 1/1.68 and 1.68 times it. A rule without a counter gets the mean of the others, multiplied by the
    /// logarithm of the number of packets that it matches and divided by the mean of these logarithms.
    #[must_use]
    pub fn of_counters(policy: &Policy, counters: &[Option<u64>], previous: &[Option<u64>]) -> Option<Self> {
        let deciding = policy.rules.iter().map(|rule| rule.action.decides(rule.direction)).chain([true]);
        let deciding: Vec<bool> = deciding.collect();
        // By rule that decides packets. Others count packets that another rule decides, or sent ones.
        let counters: Vec<(usize, Option<u64>)> = (0..deciding.len())
            .filter(|rule| deciding[*rule])
            .map(|rule| (rule, counters.get(rule).copied().flatten()))
            .collect();
        let given = || counters.iter().filter_map(|(_, packets)| *packets);
        let counted = given().fold(0u64, u64::saturating_add);
        if counted == 0 {
            return None;
        }
        let volumes = volumes(policy);
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
            sum / f64::from(count.max(1))
        };
        let part = |packets: u64| packets as f64 / counted as f64;
        let mean_part = mean(&mut given().map(part));
        let mean_volume = mean(&mut counters.iter().map(|(rule, _)| volumes[*rule]));
        let mut packets = vec![0; volumes.len()];
        for (rule, counter) in &counters {
            let part = counter.map_or(mean_part * volumes[*rule] / mean_volume, part);
            packets[*rule] = rounded(part, previous.get(*rule).copied().flatten());
        }
        Some(Self { packets })
    }

    /// The packets of a rule.
    #[must_use]
    pub fn of(&self, rule: RuleId) -> u64 {
        self.packets.get(rule.index()).copied().unwrap_or(0)
    }

    /// The packets by rule, the default's last.
    #[must_use]
    pub fn packets(&self) -> &[u64] {
        &self.packets
    }
}

/// A part of all packets as a weight, a power of two or 0: the previous one if it is close, else the nearest.
fn rounded(part: f64, previous: Option<u64>) -> u64 {
    // -1 stands for a weight of 0, and for all smaller parts.
    let exponent = (part * COUNTED as f64).log2().max(-1.0);
    let exponent_of = |weight: u64| weight.checked_ilog2().map_or(-1.0, f64::from);
    if let Some(previous) = previous.filter(|weight| (exponent - exponent_of(*weight)).abs() <= KEPT_DISTANCE)
    {
        return previous;
    }
    let nearest = exponent.round();
    if nearest >= 0.0 { 1 << nearest.min(62.0) as u32 } else { 0 }
}

/// The logarithm of the number of packets that each rule matches, the default last: 1 for the rule that
/// matches fewest, and one more for twice as many.
fn volumes(policy: &Policy) -> Vec<f64> {
    let ideal = DeviceModel::ideal();
    let part = |cubes: &[Cube]| -> f64 {
        let bits = |cube: &Cube| cube.mask.iter().map(|word| word.count_ones()).sum::<u32>();
        // Cubes of one rule may overlap, as those of lists of addresses do; an estimate is enough.
        cubes.iter().map(|cube| (-f64::from(bits(cube))).exp2()).sum::<f64>().log2()
    };
    let expanded = policy.rules.iter().map(|rule| expand(&rule.matches, rule.direction, &ideal));
    let mut parts: Vec<f64> =
        expanded.map(|found| found.map_or(f64::NEG_INFINITY, |found| part(&found.cubes))).collect();
    parts.push(0.0);
    let least = parts.iter().copied().filter(|part| part.is_finite()).fold(0.0, f64::min);
    parts.into_iter().map(|part| if part.is_finite() { 1.0 + part - least } else { 1.0 }).collect()
}
