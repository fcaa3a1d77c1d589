//! Which workers serve, and which are spare. A worker keeps its number, its receive queue, its part of each
//! sink and its counters from the start of the daemon to its end; a spare one is in no group's table.

use program::WorkerId;

use crate::state::WorkerPlace;

/// The workers, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerSet {
    places: Vec<WorkerPlace>,
    /// The workers in service that get no packets as long as they make no progress.
    stalled: Vec<WorkerId>,
    /// The number of workers that policies may name: at least those that serve have lower numbers.
    known: usize,
}

impl WorkerSet {
    /// The last `spare` of the workers with these cores are spare, and policies cannot name them yet.
    pub(crate) fn new(cores: &[Option<usize>], spare: usize) -> Self {
        let known = cores.len().saturating_sub(spare);
        let place =
            |(index, core): (usize, &Option<usize>)| WorkerPlace { spare: index >= known, core: *core };
        Self { places: cores.iter().enumerate().map(place).collect(), stalled: Vec::new(), known }
    }

    /// The number of workers among which groups choose theirs. It never decreases, so that a policy stays
    /// valid when a worker of it becomes spare.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    /// The spare workers, in ascending order.
    pub(crate) fn spare(&self) -> Vec<WorkerId> {
        self.ids().filter(|worker| self.is_spare(*worker)).collect()
    }

    /// The workers that get no packets, in ascending order: spare and stalled ones.
    pub(crate) fn absent(&self) -> Vec<WorkerId> {
        self.ids().filter(|worker| self.is_spare(*worker) || self.stalled.contains(worker)).collect()
    }

    /// The workers that are not spare, in ascending order.
    pub(crate) fn serving(&self) -> impl Iterator<Item = WorkerId> {
        self.ids().filter(|worker| !self.is_spare(*worker))
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = WorkerId> {
        (0..self.places.len()).map(WorkerId::of)
    }

    pub(crate) fn contains(&self, worker: WorkerId) -> bool {
        worker.index() < self.places.len()
    }

    pub(crate) fn is_spare(&self, worker: WorkerId) -> bool {
        self.place(worker).spare
    }

    /// Where a worker is; of one that does not exist, that it serves nowhere.
    pub(crate) fn place(&self, worker: WorkerId) -> WorkerPlace {
        self.places.get(worker.index()).copied().unwrap_or_default()
    }

    /// With this spare worker in service.
    pub(super) fn with(&self, worker: WorkerId, core: Option<usize>) -> Self {
        let known = self.known.max(worker.index() + 1);
        Self { known, ..self.replaced(worker, WorkerPlace { spare: false, core }) }
    }

    /// With this worker as a spare one.
    pub(super) fn without(&self, worker: WorkerId) -> Self {
        self.replaced(worker, WorkerPlace { spare: true, core: None })
    }

    /// With these workers as the stalled ones, as far as they are in service; `None`: none would be left.
    pub(super) fn with_stalled(&self, stalled: &[WorkerId]) -> Option<Self> {
        let stalled: Vec<WorkerId> = self.serving().filter(|worker| stalled.contains(worker)).collect();
        (stalled.len() < self.serving().count()).then(|| Self { stalled, ..self.clone() })
    }

    /// With one worker on each of these cores. Workers in service stay where they can: one on another core
    /// moves to a new one, then surplus ones become spare, or spare ones come into service. `None`: there are
    /// more cores than workers.
    pub(super) fn on_cores(&self, cores: &[usize]) -> Option<Self> {
        let is_wanted =
            |worker: &WorkerId| self.place(*worker).core.is_some_and(|core| cores.contains(&core));
        let (stay, mut others): (Vec<WorkerId>, Vec<WorkerId>) = self.serving().partition(is_wanted);
        let is_taken = |core: &usize| stay.iter().any(|worker| self.place(*worker).core == Some(*core));
        let mut free = cores.iter().copied().filter(|core| !is_taken(core));
        others.extend(self.spare());
        let mut set = self.clone();
        for worker in others {
            set = match free.next() {
                Some(core) => set.with(worker, Some(core)),
                None => set.without(worker),
            };
        }
        free.next().is_none().then_some(set)
    }

    fn replaced(&self, worker: WorkerId, place: WorkerPlace) -> Self {
        let mut set = self.clone();
        set.stalled.retain(|stalled| *stalled != worker);
        set.places.iter_mut().skip(worker.index()).take(1).for_each(|known| *known = place);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_workers_stay_known() {
        let set = WorkerSet::new(&[Some(3), Some(4), None, None], 2);
        let spare = |set: &WorkerSet| set.spare().iter().map(|worker| worker.0).collect::<Vec<_>>();
        assert_eq!((set.known(), spare(&set)), (2, vec![2, 3]));
        let set = set.without(WorkerId(1));
        assert_eq!((set.known(), spare(&set), set.place(WorkerId(1)).core), (2, vec![1, 2, 3], None));
        let set = set.with(WorkerId(3), Some(7));
        assert_eq!((set.known(), spare(&set), set.place(WorkerId(3)).core), (4, vec![1, 2], Some(7)));
        assert_eq!(set.serving().map(|worker| worker.0).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(set.without(WorkerId(3)).known(), 4);
        assert!(!set.contains(WorkerId(4)));
    }

    #[test]
    fn new_cores_move_few_workers() {
        let set = WorkerSet::new(&[Some(3), Some(4), Some(5), None], 1);
        let cores = |set: &WorkerSet| set.ids().map(|worker| set.place(worker).core).collect::<Vec<_>>();
        let moved = set.on_cores(&[5, 7, 3]).expect("enough workers");
        assert_eq!(
            (cores(&moved), moved.spare()),
            (vec![Some(3), Some(7), Some(5), None], vec![WorkerId(3)])
        );
        let fewer = set.on_cores(&[4]).expect("enough workers");
        assert_eq!((cores(&fewer), fewer.known()), (vec![None, Some(4), None, None], 3));
        let more = set.on_cores(&[3, 4, 5, 6]).expect("enough workers");
        assert_eq!((cores(&more), more.known()), ([3, 4, 5, 6].map(Some).to_vec(), 4));
        assert_eq!(set.on_cores(&[1, 2, 3, 4, 5]), None);
        assert_eq!(set.on_cores(&[3, 4, 5]), Some(set));
    }

    #[test]
    fn stalled_workers_are_absent_while_others_serve() {
        let set = WorkerSet::new(&[Some(3), Some(4), None], 1);
        let stalled = set.with_stalled(&[WorkerId(1), WorkerId(2)]).expect("one is left");
        assert_eq!((stalled.absent(), stalled.spare()), (vec![WorkerId(1), WorkerId(2)], vec![WorkerId(2)]));
        assert_eq!(set.with_stalled(&[WorkerId(0), WorkerId(1)]), None);
        assert_eq!(stalled.with_stalled(&[]), Some(set.clone()));
        let drained = stalled.without(WorkerId(1));
        assert_eq!(drained.with(WorkerId(1), Some(4)), set, "it is not stalled any more");
    }
}
