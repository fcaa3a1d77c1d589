//! Who takes the packets of a rule that gets none, as far as single rules do. Called by `check`, which warns of
//! such rules; nothing is compiled by it.

use crate::policy::{Action, Policy, RuleDefinition};
use crate::profile::DeviceProfile;

use super::expand::{Expansion, expand};

/// Why a rule gets no packets.
pub(crate) enum Taken {
    /// No packet meets it.
    Impossible,
    /// Earlier rules take them all, these among them.
    By(Vec<usize>),
}

/// The covers of a policy's rules, to find who takes whose packets; slow, for diagnostics only.
pub(crate) struct Covers(Vec<(Expansion, bool)>);

impl Covers {
    /// Covers every rule of a policy that compiles.
    pub(crate) fn of(policy: &Policy) -> Self {
        let ideal = DeviceProfile::ideal();
        let cover = |rule: &RuleDefinition| {
            let expansion = expand(&rule.matches, rule.direction, &ideal).unwrap_or(Expansion::NOTHING);
            let claims = !matches!(rule.action, Action::Copy(_) | Action::Sniff(_));
            (expansion, claims)
        };
        Self(policy.rules.iter().map(cover).collect())
    }

    /// Which earlier rules take the packets of a rule that gets none. A hybrid rule takes for certain only
    /// what its other keys leave open, so none of those is named.
    pub(crate) fn taken_by(&self, rule: usize) -> Taken {
        let mut left = self.0.get(rule).map(|(expansion, _)| expansion.cubes.clone()).unwrap_or_default();
        if left.is_empty() {
            return Taken::Impossible;
        }
        let mut takers = Vec::new();
        let claiming = self.0.iter().enumerate().take(rule);
        let claiming = claiming.filter(|(_, (other, claims))| *claims && other.software.is_empty());
        for (earlier, (expansion, _)) in claiming {
            let before = left.len();
            left.retain(|cube| !expansion.cubes.iter().any(|taker| taker.contains(cube)));
            if left.len() < before {
                takers.push(earlier);
            }
            if left.is_empty() {
                break;
            }
        }
        Taken::By(takers)
    }
}
