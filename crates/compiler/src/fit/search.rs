//! The search for limits of the ranking with which a program fits on the device. Fewer shared flows and fewer
//! ranks need fewer masks, for which some devices have little room in one priority; they leave more packets
//! to workers. Each round of the passes from ranking to priorities tries one set of limits.

use device_model::DeviceModel;

use crate::fit::limit_ranks::Limits;

/// The most rounds for one policy. Beyond them only the narrowest limits are tried.
pub(crate) const MAX_ROUNDS: u32 = 24;

/// Shared flows are left out at once where a part of them would be so few.
const FEW_SHARED_FLOWS: usize = 1 << 9;

/// The step after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The result is the best that was found.
    Accept,
    Try(Limits),
    /// The device has no room, whatever the limits.
    Refuse,
}

/// The result of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// How many priorities the flows take.
    pub(crate) priorities: u32,
    /// How many shared flows were made.
    pub(crate) shared_flows: usize,
    /// How many ranks the flows have.
    pub(crate) ranks: u32,
}

/// The rounds for one set of cubes: first with all shared flows, then with none, then with an eighth of them
/// if there is room without, or else with the most ranks that fit.
#[derive(Debug)]
pub(crate) struct Search {
    offered: u32,
    limits: Limits,
    /// How many shared flows there are without a limit.
    all: usize,
    /// Without shared flows, so many ranks are known to fit; 0: none.
    fits: u32,
    /// A number that is known not to fit.
    fails: u32,
    is_one_round: bool,
}

impl Search {
    pub(crate) fn new(profile: &DeviceModel, shared_of_flow: usize) -> Self {
        let offered = profile.priorities_per_program();
        let limits = Limits { ranks: offered, shared_flows: usize::MAX, shared_of_flow };
        Self { offered, limits, all: 0, fits: 0, fails: offered + 1, is_one_round: false }
    }

    /// One round without shared flows, which may have new masks.
    pub(crate) fn of_one_round(profile: &DeviceModel) -> Self {
        let search = Self::new(profile, 0);
        Self { limits: Limits { shared_flows: 0, ..search.limits }, is_one_round: true, ..search }
    }

    /// The limits of the next round.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The step after a round; `may_go_on`: whether there may be more rounds than one.
    pub(crate) fn next(&mut self, round: Round, may_go_on: bool) -> Next {
        let tried = self.limits;
        let has_room = round.priorities <= self.offered;
        let is_known = tried.ranks == self.fits || round.ranks < tried.ranks;
        if has_room && (tried.shared_flows > 0 || is_known) {
            return Next::Accept;
        }
        if self.is_one_round {
            return if has_room { Next::Accept } else { Next::Refuse };
        }
        let first = tried.shared_flows == usize::MAX;
        if first {
            self.all = round.shared_flows;
        }
        if has_room {
            self.fits = tried.ranks;
        } else if round.shared_flows == 0 {
            self.fails = tried.ranks.min(round.ranks);
            // Since that was found, rules may have got workers, which takes more flows.
            self.fits = if self.fits < self.fails { self.fits } else { 0 };
        }
        if self.fails <= 1 {
            return Next::Refuse;
        }
        let few = self.all / 8;
        self.limits = match self.fails - self.fits {
            _ if !may_go_on => Limits { ranks: self.fits.max(1), shared_flows: 0, ..tried },
            _ if first && round.shared_flows > 0 => Limits { shared_flows: 0, ..tried },
            _ if self.fits == self.offered && tried.shared_flows == 0 && few > FEW_SHARED_FLOWS => {
                Limits { shared_flows: few, ..tried }
            }
            1 => Limits { ranks: self.fits, shared_flows: 0, ..tried },
            _ => Limits { ranks: self.guess(tried.ranks, round.priorities), shared_flows: 0, ..tried },
        };
        if has_room && self.limits == tried { Next::Accept } else { Next::Try(self.limits) }
    }

    /// The most ranks that may fit, if each rank more takes one priority more.
    fn guess(&self, tried: u32, priorities: u32) -> u32 {
        let guess = (tried + self.offered).saturating_sub(priorities);
        guess.clamp(self.fits + 1, self.fails - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits that are tried until the search ends, on an mlx5 where so many ranks take so many
    /// priorities and more than so many shared flows one more than there are.
    fn tried(
        mut search: Search,
        priorities: impl Fn(u32) -> u32,
        (most, made): (usize, usize),
        most_rounds: usize,
    ) -> (Vec<(u32, usize)>, Next) {
        let mut tried = Vec::new();
        loop {
            let Limits { ranks, shared_flows, .. } = search.limits();
            let shared_flows = shared_flows.min(made);
            tried.push((ranks, shared_flows));
            let priorities = if shared_flows > most { 9 } else { priorities(ranks) };
            match search.next(Round { priorities, shared_flows, ranks }, tried.len() < most_rounds) {
                Next::Try(limits) => assert_eq!(limits, search.limits()),
                next => return (tried, next),
            }
        }
    }

    fn mlx5() -> DeviceModel {
        DeviceModel { priorities: 9, ..DeviceModel::mlx5() }
    }

    fn search() -> Search {
        Search::new(&mlx5(), 9)
    }

    #[test]
    fn as_many_shared_flows_as_there_is_room_for_are_kept() {
        let of = |most, made| {
            let (tried, next) = tried(search(), |ranks| ranks, (most, made), 99);
            assert_eq!(next, Next::Accept);
            tried
        };
        assert_eq!(of(8_000, 8_000), [(8, 8_000)]);
        assert_eq!(of(1_000, 8_000), [(8, 8_000), (8, 0), (8, 1_000)]);
        assert_eq!(of(0, 8_000), [(8, 8_000), (8, 0), (8, 1_000), (8, 0)]);
        // An eighth of these is too few to be worth a round.
        assert_eq!(of(0, 80), [(8, 80), (8, 0)]);
    }

    #[test]
    fn the_most_ranks_that_fit_are_found_in_few_rounds() {
        for most in 1..=7 {
            let steep = |ranks| if ranks > most { 30 } else { ranks };
            let (all, next) = tried(search(), steep, (0, 8_000), 99);
            assert_eq!((all.last(), next), (Some(&(most, 0)), Next::Accept));
            assert!(all.len() <= 10, "{all:?}");
            let (all, _) = tried(search(), |ranks| ranks + 8 - most, (0, 8_000), 99);
            assert!(all.len() <= 5 && all.last() == Some(&(most, 0)), "{all:?}");
        }
    }

    #[test]
    fn a_device_without_room_refuses() {
        let (all, next) = tried(search(), |_| 9, (0, 8_000), 99);
        assert_eq!((all.last(), next), (Some(&(1, 0)), Next::Refuse));
        assert!(all.len() <= 9, "{all:?}");
    }

    #[test]
    fn one_round_fits_or_is_refused() {
        let one = || Search::of_one_round(&mlx5());
        assert_eq!(tried(one(), |_| 8, (0, 8_000), 99), (vec![(8, 0)], Next::Accept));
        assert_eq!(tried(one(), |_| 9, (0, 8_000), 99), (vec![(8, 0)], Next::Refuse));
    }

    #[test]
    fn without_more_rounds_only_the_narrowest_limits_follow() {
        let steep = |ranks| if ranks > 3 { 30 } else { ranks };
        assert_eq!(tried(search(), steep, (0, 8_000), 1), (vec![(8, 8_000), (1, 0)], Next::Accept));
        assert_eq!(tried(search(), |_| 9, (0, 8_000), 1), (vec![(8, 8_000), (1, 0)], Next::Refuse));
    }
}
