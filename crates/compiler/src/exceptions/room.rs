//! What exceptions may cost: how many pieces they may add to flows. Called by `exceptions`; cuts nothing.

use device_model::DeviceProfile;
use program::Untold;

use super::super::classes::Expanded;

/// The most pieces that exceptions may add to one rule.
const MAX_PIECES_PER_RULE: usize = 1 << 12;
/// The most pieces that they may add to a program: each may be a flow for every hash variant.
const MAX_PIECES: usize = 1 << 14;
/// The same of those around packets without ports. These are cut out of a flow once, into a dozen pieces, whatever
/// ports exceptions ask for.
const MAX_NO_PORTS: usize = 1 << 16;
/// The most pieces that are tried for a program, those counted that no flow can be told.
const MAX_TRIALS: usize = 1 << 18;

/// What one cut takes.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    /// Whose flow is cut.
    pub(super) rule: usize,
    /// How many pieces the rule has more.
    pub(super) more: usize,
    /// Whether the hole is of packets without ports.
    pub(super) no_ports: bool,
}

/// What may still be added.
pub(super) struct Room {
    /// By rule, how many pieces it has more, those around packets without ports not counted.
    added: Vec<usize>,
    /// Around packets with all their headers, and around those without ports.
    pieces: [usize; 2],
    /// By rule, whether it copies.
    copies: Vec<bool>,
    /// Flows that copy, as far as there is room for them; `None`: the device does not say.
    copies_left: Option<usize>,
    /// Pieces that may yet be tried, whatever comes of it.
    trials: usize,
}

impl Room {
    pub(super) fn new(profile: &DeviceProfile, rules: &[Expanded]) -> Self {
        let copying = rules.iter().filter(|rule| rule.copies()).map(|rule| rule.expansion.cubes.len()).sum();
        Self {
            added: vec![0; rules.len() + 1],
            pieces: [0; 2],
            copies: rules.iter().map(Expanded::copies).chain([false]).collect(),
            copies_left: profile.copies_per_program().map(|most| most.saturating_sub(copying)),
            trials: MAX_TRIALS,
        }
    }

    /// Whether the program may have so many pieces more.
    pub(super) fn holds(&self, cost: Cost) -> Result<(), Untold> {
        let (pieces, most) = self.in_all(cost);
        if pieces > most { Err(Untold::TooMany { pieces, most }) } else { Ok(()) }
    }

    fn in_all(&self, cost: Cost) -> (usize, usize) {
        let most = if cost.no_ports { MAX_NO_PORTS } else { MAX_PIECES };
        (self.pieces[usize::from(cost.no_ports)] + cost.more, most)
    }

    pub(super) fn take(&mut self, cost: Cost) -> Result<(), Untold> {
        let Cost { rule, more, no_ports } = cost;
        let copies_left = self.copies_left.filter(|_| self.copies[rule]);
        let of_rule = if no_ports { 0 } else { more };
        let limits = [
            (self.added[rule] + of_rule, MAX_PIECES_PER_RULE),
            self.in_all(cost),
            (more, copies_left.unwrap_or(usize::MAX)),
            (more, self.trials),
        ];
        if let Some((pieces, most)) = limits.into_iter().find(|(pieces, most)| pieces > most) {
            return Err(Untold::TooMany { pieces, most });
        }
        self.trials -= more;
        self.added[rule] += of_rule;
        self.pieces[usize::from(no_ports)] += more;
        self.copies_left = self.copies_left.map(|left| if self.copies[rule] { left - more } else { left });
        Ok(())
    }

    pub(super) fn give_back(&mut self, Cost { rule, more, no_ports }: Cost) {
        self.added[rule] -= if no_ports { 0 } else { more };
        self.pieces[usize::from(no_ports)] -= more;
        self.copies_left = self.copies_left.map(|left| if self.copies[rule] { left + more } else { left });
    }
}
