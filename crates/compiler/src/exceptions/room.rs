//! What exceptions may cost: how many pieces they may add to flows. Called by `exceptions`; cuts nothing.

use device_model::DeviceProfile;
use program::Untold;

use super::super::classes::Expanded;

/// The most pieces that exceptions may add to one rule.
const MAX_PIECES_PER_RULE: usize = 1 << 12;
/// The most pieces that they may add to a program: each may be a flow for every hash variant.
const MAX_PIECES: usize = 1 << 14;
/// The most pieces that are tried for a program, those counted that no flow can be told.
const MAX_TRIALS: usize = 1 << 18;

/// What may still be added.
pub(super) struct Room {
    /// By rule, how many pieces it has more.
    added: Vec<usize>,
    pieces: usize,
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
            pieces: 0,
            copies: rules.iter().map(Expanded::copies).chain([false]).collect(),
            copies_left: profile.copies_per_program().map(|most| most.saturating_sub(copying)),
            trials: MAX_TRIALS,
        }
    }

    /// Whether the program may have so many pieces more.
    pub(super) fn holds(&self, more: usize) -> Result<(), Untold> {
        let (pieces, most) = (self.pieces + more, MAX_PIECES);
        if pieces > most { Err(Untold::TooMany { pieces, most }) } else { Ok(()) }
    }

    pub(super) fn take(&mut self, rule: usize, more: usize) -> Result<(), Untold> {
        let copies_left = self.copies_left.filter(|_| self.copies[rule]);
        let limits = [
            (self.added[rule] + more, MAX_PIECES_PER_RULE),
            (self.pieces + more, MAX_PIECES),
            (more, copies_left.unwrap_or(usize::MAX)),
            (more, self.trials),
        ];
        if let Some((pieces, most)) = limits.into_iter().find(|(pieces, most)| pieces > most) {
            return Err(Untold::TooMany { pieces, most });
        }
        self.trials -= more;
        self.added[rule] += more;
        self.pieces += more;
        self.copies_left = self.copies_left.map(|left| if self.copies[rule] { left - more } else { left });
        Ok(())
    }

    pub(super) fn give_back(&mut self, rule: usize, more: usize) {
        self.added[rule] -= more;
        self.pieces -= more;
        self.copies_left = self.copies_left.map(|left| if self.copies[rule] { left + more } else { left });
    }
}
