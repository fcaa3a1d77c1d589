//! The rules that the packets of a software class are compared with. All classes of a program take them from
//! one list, so that the list and its index are in memory once. A class stores the places of its steps in the
//! list.

use std::sync::{Arc, OnceLock};

use crate::outcome::Step;
use crate::step_index::StepIndex;

/// Steps in the order in which they are compared, and their index once a class needed it.
#[derive(Debug, Default)]
pub struct StepList {
    steps: Vec<Step>,
    /// The places of the steps that test headers of a tunnel.
    deep: Vec<u32>,
    index: OnceLock<StepIndex>,
}

impl StepList {
    /// A list of steps.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        let deep = (0..).zip(&steps).filter(|(_, step)| step.predicate.needs_tunnel());
        let deep = deep.map(|(place, _)| place).collect();
        Self { steps, deep, index: OnceLock::new() }
    }

    /// The steps in their order.
    #[must_use]
    #[inline]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The index of all steps, made at the first call.
    pub(crate) fn index(&self) -> &StepIndex {
        self.index.get_or_init(|| StepIndex::build(&self.steps))
    }
}

/// The steps of one class: some of a list that classes share. Cheap to clone but for the places of its steps.
#[derive(Clone, Debug)]
pub struct Steps {
    list: Arc<StepList>,
    members: Members,
    len: usize,
}

/// Which steps of the list.
#[derive(Clone, Debug)]
enum Members {
    All,
    /// Steps by their places, in rising order.
    Few(Box<[u32]>),
    /// One bit for each step of the list.
    Many(Box<[u64]>),
}

impl From<Vec<Step>> for Steps {
    fn from(steps: Vec<Step>) -> Self {
        Self::all(&Arc::new(StepList::new(steps)))
    }
}

impl PartialEq for Steps {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for Steps {}

impl Steps {
    /// All steps of a list.
    #[must_use]
    pub fn all(list: &Arc<StepList>) -> Self {
        Self { list: Arc::clone(list), members: Members::All, len: list.steps.len() }
    }

    /// The steps at these places of a list; places beyond its end are ignored.
    #[must_use]
    pub fn of(list: &Arc<StepList>, mut places: Vec<u32>) -> Self {
        places.sort_unstable();
        places.dedup();
        places.truncate(places.partition_point(|place| (*place as usize) < list.steps.len()));
        let len = places.len();
        let members = if len == list.steps.len() {
            Members::All
        } else if len * 32 < list.steps.len() {
            Members::Few(places.into())
        } else {
            let mut bits = vec![0u64; list.steps.len().div_ceil(64)];
            places.iter().for_each(|place| bits[*place as usize / 64] |= 1 << (place % 64));
            Members::Many(bits.into())
        };
        Self { list: Arc::clone(list), members, len }
    }

    /// How many there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The list that the steps are taken from.
    #[must_use]
    #[inline]
    pub fn list(&self) -> &Arc<StepList> {
        &self.list
    }

    /// Whether some step tests headers of a tunnel.
    pub(crate) fn needs_tunnel(&self) -> bool {
        let deep = &self.list.deep;
        if deep.len() <= self.len {
            return deep.iter().any(|place| self.contains(*place));
        }
        self.iter().any(|step| step.predicate.needs_tunnel())
    }

    /// Adds the places of the steps to a set of places of their list: one bit for each, from the lowest.
    pub fn add_places(&self, set: &mut Vec<u64>) {
        set.resize(self.list.steps.len().div_ceil(64).max(set.len()), 0);
        match &self.members {
            Members::All => set.fill(u64::MAX),
            Members::Few(places) => {
                places.iter().for_each(|place| set[*place as usize / 64] |= 1 << (place % 64));
            }
            Members::Many(bits) => set.iter_mut().zip(bits).for_each(|(all, own)| *all |= own),
        }
    }

    /// Whether the step at a place of the list is one of them.
    #[inline]
    pub(crate) fn contains(&self, place: u32) -> bool {
        match &self.members {
            Members::All => true,
            Members::Few(places) => places.binary_search(&place).is_ok(),
            Members::Many(bits) => {
                bits.get(place as usize / 64).is_some_and(|word| word >> (place % 64) & 1 != 0)
            }
        }
    }

    /// The steps in their order.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { steps: self, next: 0 }
    }
}

impl<'s> IntoIterator for &'s Steps {
    type Item = &'s Step;
    type IntoIter = Iter<'s>;

    fn into_iter(self) -> Iter<'s> {
        self.iter()
    }
}

/// The steps of one class, in their order.
#[derive(Clone, Debug)]
pub struct Iter<'s> {
    steps: &'s Steps,
    /// The next place of the list, or of the places.
    next: usize,
}

impl<'s> Iterator for Iter<'s> {
    type Item = &'s Step;

    fn next(&mut self) -> Option<&'s Step> {
        let place = match &self.steps.members {
            Members::All => self.next,
            Members::Few(places) => *places.get(self.next)? as usize,
            Members::Many(bits) => {
                self.next = next_bit(bits, self.next)?;
                self.next
            }
        };
        self.next += 1;
        self.steps.list.steps.get(place)
    }
}

/// The first place from this one on whose bit is set.
fn next_bit(bits: &[u64], from: usize) -> Option<usize> {
    let (first, shift) = (from / 64, from % 64);
    let rest = bits.get(first)? >> shift;
    if rest != 0 {
        return Some(from + rest.trailing_zeros() as usize);
    }
    let later = bits.get(first + 1..)?.iter().position(|word| *word != 0)? + first + 1;
    Some(later * 64 + bits.get(later)?.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Match, Outcome, Predicate, RuleId, Verdict};

    #[test]
    fn the_places_of_few_many_and_all_steps_are_added() {
        let step = |rule| Step {
            rule: RuleId(rule),
            predicate: Predicate::of(&Match::default()),
            outcome: Outcome { rule: RuleId(rule), verdict: Verdict::Drop },
        };
        let list = Arc::new(StepList::new((0..200).map(step).collect()));
        let added = |places: &[Vec<u32>]| -> Vec<u32> {
            let mut set = Vec::new();
            places.iter().for_each(|places| Steps::of(&list, places.clone()).add_places(&mut set));
            (0..200).filter(|place| set[*place as usize / 64] >> (place % 64) & 1 != 0).collect()
        };
        assert_eq!(added(&[vec![1, 130], vec![70]]), [1, 70, 130]);
        let even: Vec<u32> = (0..200).step_by(2).collect();
        assert_eq!(added(&[even.clone(), vec![0]]), even);
        assert_eq!(added(&[vec![7], (0..200).collect()]).len(), 200);
    }
}
