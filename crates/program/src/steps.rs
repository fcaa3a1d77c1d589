//! The rules that the packets of a software class are compared with. All classes of a program take them from one list,
//! so that the list and its index are in memory once, and a class only says which of them it has.

use std::sync::{Arc, OnceLock};

use crate::program::Step;
use crate::step_index::StepIndex;

/// Steps in the order in which they are compared, and their index once a class needed it.
#[derive(Debug, Default)]
pub struct StepList {
    steps: Vec<Step>,
    index: OnceLock<StepIndex>,
}

impl StepList {
    /// A list of steps.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, index: OnceLock::new() }
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
    /// By their places, in rising order.
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
