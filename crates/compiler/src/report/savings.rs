//! Which pairs of rules keep packets from being decided in hardware, because they overlap and the device has
//! too few priorities. Each of the likeliest pairs is tried: the policy is compiled as if the two shared no
//! packets, and the packets decided in hardware are counted anew. Those that both rules match are left out,
//! as nothing is known of them then.

use program::{Decide, Predicate, Program, RuleId, UndecidedReason};
use serde::Serialize;

use policy::Witness;

use crate::capacity::shared_packet;
use crate::cover::expand::expand;
use crate::job::Job;
use crate::traffic::share::{MAX_FLOWS_TRIED, Sample};

/// How many pairs are tried.
const MAX_TRIED: usize = 3;
/// Programs with more flows take too long to compile several times.
const MAX_FLOWS: usize = 1 << 14;
/// The most cubes of a rule that are searched for a shared packet.
const MAX_CUBES: usize = 1 << 8;

/// Two rules without whose overlap the device would decide more packets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// The earlier rule.
    pub earlier: RuleId,
    /// The later one, of which workers compare packets with the earlier one.
    pub later: RuleId,
    /// A packet that both match.
    pub witness: Option<Witness>,
    /// How many percent more the device would decide. Estimated from packets drawn from the rules, without
    /// those that both rules match. If the policy is compiled for a capture, they are weighted by the
    /// capture's packets of each rule.
    pub percent: f64,
}

impl Job<'_> {
    /// The pairs of rules that keep most packets from hardware in the job's program, most first. Not all
    /// pairs are tried.
    #[must_use]
    pub fn savings(&self, program: &Program) -> Vec<Saving> {
        if program.flows.len() > MAX_FLOWS {
            return Vec::new();
        }
        let sample = Sample::of(self.policy, program, MAX_FLOWS_TRIED);
        let mut tried: Vec<Saving> = pairs(program, &sample)
            .into_iter()
            .filter_map(|(earlier, later)| self.saving(program, &sample, earlier, later))
            .collect();
        tried.sort_by(|one, other| other.percent.total_cmp(&one.percent));
        tried
    }

    fn saving(&self, program: &Program, sample: &Sample, earlier: RuleId, later: RuleId) -> Option<Saving> {
        let apart = Job { apart: Some((earlier, later)), ..*self }.program().ok()?;
        let matches =
            [earlier, later].map(|rule| self.policy.rules.get(rule.index()).map(|rule| &rule.matches));
        let both: Vec<Predicate> = matches.iter().flatten().map(|matches| Predicate::of(matches)).collect();
        let counted = |key: &_| !both.iter().all(|predicate| predicate.matches_deep(key));
        let [before, after] = [program, &apart]
            .map(|program| sample.hardware_percent(program, self.weights, counted).unwrap_or(0.0));
        let percent = after - before;
        let direction = self.policy.rules.get(earlier.index())?.direction;
        let cubes = matches.map(|matches| match matches {
            Some(matches) => expand(matches, direction, self.profile).map(|found| found.cubes).ok(),
            None => Some(vec![packet::cube::Cube::ANY]),
        });
        let [Some(one), Some(other)] = cubes else { return None };
        let pairs = one
            .iter()
            .take(MAX_CUBES)
            .flat_map(|one| other.iter().take(MAX_CUBES).map(move |two| (one, two)));
        let witness = pairs.filter_map(|(one, other)| shared_packet(one, other)).next();
        (percent > 0.0).then_some(Saving { earlier, later, witness, percent })
    }
}

/// The pairs worth a trial: a later rule with many packets that are compared with few earlier rules.
fn pairs(program: &Program, sample: &Sample) -> Vec<(RuleId, RuleId)> {
    let compared = sample.compared(program);
    let by_order = |rule: RuleId| {
        let notes = program.rules.get(rule.index()).map(|rule| &*rule.undecided).unwrap_or_default();
        notes.iter().any(|note| matches!(note.why, UndecidedReason::Order { .. }))
    };
    let mut pairs: Vec<(f64, RuleId, RuleId)> = Vec::new();
    for class in program.classes.iter().flatten().filter(|class| by_order(class.rule)) {
        let Decide::Software(steps, _) = &class.decide else { continue };
        let packets = compared.get(class.rule.index()).copied().unwrap_or(0);
        let earlier: Vec<RuleId> =
            steps.iter().map(|step| step.rule).filter(|rule| *rule < class.rule).collect();
        let value = packets as f64 / earlier.len().max(1) as f64;
        pairs.extend(earlier.into_iter().filter(|_| value > 0.0).map(|rule| (value, rule, class.rule)));
    }
    pairs.sort_by(|one, other| other.0.total_cmp(&one.0).then((one.2, one.1).cmp(&(other.2, other.1))));
    pairs.into_iter().map(|(_, earlier, later)| (earlier, later)).take(MAX_TRIED).collect()
}
