//! The filters of a policy on an interface: put there, changed by their difference, and removed.
//!
//! Invariants:
//! - Locations of others are never written to. A filter is ours if the ledger has it and the interface lists
//!   it unchanged; every change begins with a list.
//! - The ledger has every filter before it is on the interface.
//! - A filter counts as inserted once the driver lists it as it was asked for, so a condition that a driver
//!   ignores is found before packets are lost to it.
//! - A change that fails is undone step by step, in the reverse order. So each packet meets the old filters
//!   or the new ones there, too.

use std::collections::{BTreeSet, HashSet};
use std::io;

use crate::filter::{Destination, Filter, FilterMatch};
use crate::ledger::{Ledger, LedgerContext, LedgerFilter, LedgerStore};
use crate::model::{FilterModel, FilterOrder};
use crate::nic::{FilterRoom, ListedFilter, NicError, NicFacts, NicFilters};
use crate::plan::{InstalledFilter, Plan, PlanError, RankedFilter, Step, Table, plan};
use crate::translate::{Target, WantedFilters};

/// Why filters could not be changed. They are as before, unless it is [`CarveError::NotUndone`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarveError {
    /// A call failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// There is no room.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The ledger could not be saved, without which filters would not be found after a crash.
    #[error("the list of filters cannot be saved: {0} (hint: state.folder must be writable)")]
    Save(io::Error),
    /// The driver lists another filter than the one that was inserted.
    #[error(
        "the driver took the filter \"{asked}\" and lists it as \"{listed}\" (hint: it does not compare all that \
         was asked for: use a filter model that `steerd devices --probe-filters` writes)"
    )]
    Altered {
        /// The filter.
        asked: Filter,
        /// The answer.
        listed: String,
    },
    /// A filter of another program has the match of one of ours.
    #[error(
        "a filter of another program has the same match: {listed} (hint: remove it: `ethtool -N INTERFACE delete \
         {}`)", listed.location
    )]
    Taken {
        /// The filter.
        listed: ListedFilter,
    },
    /// A filter of another program has other masks than ours, and the NIC takes one set of masks.
    #[error(
        "all filters of the NIC have the same masks, and a filter of another program has others: {listed} (hint: \
         remove it: `ethtool -N INTERFACE delete {}`, or compare the same fields in all rules)", listed.location
    )]
    OtherMasks {
        /// The filter.
        listed: ListedFilter,
    },
    /// The interface has no table for RSS contexts.
    #[error("the driver reports no indirection table for RSS contexts (hint: name one queue for each group)")]
    NoContextTable,
    /// A change failed, and it could not be undone.
    #[error(
        "{failed}; it could not be undone: {undo}; filters of both policies may be on the interface until the next check \
         or reload succeeds"
    )]
    NotUndone {
        /// Why the change failed.
        failed: Box<CarveError>,
        /// Why it could not be undone.
        undo: Box<CarveError>,
    },
}

impl CarveError {
    /// Returns whether the interface is gone, and its filters with it.
    #[must_use]
    pub fn is_of_absent_interface(&self) -> bool {
        matches!(self, Self::Nic(error) if error.is_of_absent_interface())
    }

    fn is_of_full_table(&self) -> bool {
        matches!(self, Self::Nic(error) if error.is_full())
    }

    /// Returns whether another filter may be taken where this one was refused.
    fn is_of_one_filter(&self) -> bool {
        match self {
            Self::Altered { .. } => true,
            Self::Nic(error) => error.is_refusal() && !self.is_of_full_table(),
            _ => false,
        }
    }
}

/// The room of an interface, and the filters of others there.
#[derive(Clone, Debug, Default)]
pub struct FilterSurvey {
    /// The room beside those filters.
    pub room: FilterRoom,
    /// The filters of others.
    pub foreign: Vec<ListedFilter>,
}

/// The result of [`Carving::add_drops`].
#[derive(Debug, Default)]
pub struct AddedDrops {
    /// Filters that were inserted.
    pub inserted: usize,
    /// Wanted filters that are not there.
    pub missing: usize,
    /// The first failure.
    pub why: Option<CarveError>,
    /// Whether the insertion ended at a failure that is neither about one filter nor that the table is full,
    /// so that another attempt may succeed.
    pub is_cut_short: bool,
}

/// The counts of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSummary {
    /// Filters that were not touched.
    pub kept: usize,
    /// Filters that were inserted.
    pub inserted: usize,
    /// Filters that another one with the same match has taken the place of. Their packets met neither for the
    /// time of a call.
    pub replaced: usize,
    /// Filters that were removed.
    pub removed: usize,
    /// Removed filters, among those above, that had to go before the first new one came, because the NIC
    /// takes one set of masks. Their packets met neither the old policy nor the new one until the last one
    /// was inserted.
    pub removed_first: usize,
}

impl ChangeSummary {
    /// Returns whether nothing was done.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.inserted + self.replaced + self.removed == 0
    }
}

/// The difference between the filters in force and those on the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deviation {
    /// Filters that are not there any more, or have changed.
    pub missing: usize,
    /// Our filters that are there beside those in force, after a change that could not be undone.
    pub surplus: usize,
    /// Contexts that are not there any more, or have changed.
    pub missing_contexts: usize,
}

impl Deviation {
    /// Returns whether the filters in force are in place, and no others of ours.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The filters of a policy on an interface. They stay when it is dropped; [`Carving::end`] removes them.
#[derive(Debug)]
pub struct Carving<N, S> {
    nic: N,
    store: S,
    model: FilterModel,
    facts: NicFacts,
    ledger: Ledger,
    /// The filters and contexts of the policy in force, as they were on the interface after the last change
    /// that succeeded.
    in_force: Ledger,
}

impl<N: NicFilters, S: LedgerStore> Carving<N, S> {
    /// Takes the filters of an interface over from the process that has left this ledger; an empty one if
    /// there is none.
    ///
    /// # Errors
    /// The interface has no filters, or is gone.
    pub fn open(nic: N, store: S, model: FilterModel, left: Ledger) -> Result<Self, CarveError> {
        let facts = nic.facts()?;
        let mut carving = Self { nic, store, model, facts, ledger: left, in_force: Ledger::default() };
        let saved = carving.ledger.clone();
        let (ours, _) = carving.listed()?;
        carving.ledger.filters = as_ledger(&ours);
        let mut contexts = Vec::new();
        for known in std::mem::take(&mut carving.ledger.contexts) {
            if carving.nic.context_table(known.context)?.as_ref() == Some(&known.table) {
                contexts.push(known);
            }
        }
        carving.ledger.contexts = contexts;
        carving.in_force = carving.ledger.clone();
        if carving.ledger != saved {
            carving.save_late();
        }
        Ok(carving)
    }

    /// The facts that the interface reported when it was opened, or before the last change.
    #[must_use]
    pub fn facts(&self) -> &NicFacts {
        &self.facts
    }

    /// The filter model.
    #[must_use]
    pub fn model(&self) -> &FilterModel {
        &self.model
    }

    /// Our filters and contexts.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The filters of others.
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    pub fn foreign(&self) -> Result<Vec<ListedFilter>, CarveError> {
        Ok(self.listed()?.1)
    }

    /// The room for a policy, from facts that are read again: queues may have been added or removed
    /// (`ethtool -L`).
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    pub fn room(&mut self) -> Result<FilterRoom, CarveError> {
        Ok(self.survey()?.room)
    }

    /// The room for a policy, as [`Carving::room`], and the filters of others.
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    pub fn survey(&mut self) -> Result<FilterSurvey, CarveError> {
        self.facts = self.nic.facts()?;
        let foreign = self.foreign()?;
        Ok(FilterSurvey { room: self.facts.room(foreign.len()), foreign })
    }

    /// Compares the filters and contexts in force with those on the interface.
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    pub fn deviation(&self) -> Result<Deviation, CarveError> {
        let (ours, _) = self.listed()?;
        // Where nothing orders the filters, a filter that was undone may be at another location than before.
        let is_ordered = self.model.order == FilterOrder::Location;
        let key = |location: Option<u32>, filter: &Filter| (location.filter(|_| is_ordered), filter.clone());
        let listed: HashSet<_> = ours.iter().map(|ours| key(Some(ours.location), &ours.filter)).collect();
        let in_force: HashSet<_> =
            self.in_force.filters.iter().map(|known| key(known.location, &known.filter)).collect();
        let mut deviation = Deviation {
            missing: in_force.difference(&listed).count(),
            surplus: listed.difference(&in_force).count(),
            missing_contexts: 0,
        };
        for known in &self.in_force.contexts {
            if self.nic.context_table(known.context)?.as_ref() != Some(&known.table) {
                deviation.missing_contexts += 1;
            }
        }
        Ok(deviation)
    }

    /// Changes the filters to these.
    ///
    /// # Errors
    /// The reason; the filters are as before, unless it is [`CarveError::NotUndone`].
    pub fn change(&mut self, wanted: &WantedFilters) -> Result<ChangeSummary, CarveError> {
        self.facts = self.nic.facts()?;
        let before = self.ledger.clone();
        let changed = self.make_contexts(wanted).and_then(|contexts| self.change_filters(wanted, &contexts));
        if changed.is_err() {
            // Filters of the new contexts are gone, unless undoing has failed; then their removal fails, and
            // they stay in the ledger.
            self.remove_contexts(&before.contexts);
            self.save_late();
        }
        changed
    }

    /// Removes all our filters and contexts. A removal that fails does not keep the others from being
    /// removed.
    ///
    /// # Errors
    /// The first failure; the filters and contexts that could not be removed are in the ledger.
    pub fn end(&mut self) -> Result<ChangeSummary, CarveError> {
        let ended = self.remove_others(|_| false);
        self.save_late();
        ended
    }

    /// Removes our filters and contexts but those of these filters that drop. A removal that fails does not
    /// keep the others from being removed.
    ///
    /// # Errors
    /// The first failure, as of [`Carving::end`].
    pub fn retain_drops(&mut self, wanted: &WantedFilters) -> Result<ChangeSummary, CarveError> {
        let wanted = dropped_matches(wanted);
        self.remove_others(|filter| {
            filter.destination == Destination::Drop && wanted.contains(&filter.matches)
        })
    }

    /// Returns whether all our filters, as far as it is known, are among these filters that drop.
    #[must_use]
    pub fn are_among(&self, wanted: &WantedFilters) -> bool {
        let wanted = dropped_matches(wanted);
        let is_wanted = |ours: &LedgerFilter| {
            ours.filter.destination == Destination::Drop && wanted.contains(&ours.filter.matches)
        };
        self.ledger.filters.iter().all(is_wanted)
    }

    /// Inserts those of these filters that drop and are not there yet. One that the driver refuses is left
    /// out, as the others do not depend on it; at a full table or another failure the insertion ends.
    ///
    /// # Errors
    /// Nothing could be inserted.
    pub fn add_drops(&mut self, wanted: &WantedFilters) -> Result<AddedDrops, CarveError> {
        self.facts = self.nic.facts()?;
        let matches = dropped_matches(wanted);
        let mut known = HashSet::new();
        let dropping = wanted.filters.iter().filter(|wanted| wanted.target == Target::Drop);
        let filters: Vec<RankedFilter> = dropping
            .filter(|wanted| known.insert(&wanted.matches))
            .map(|wanted| Filter { matches: wanted.matches.clone(), destination: Destination::Drop })
            .map(|filter| RankedFilter { rank: 0, filter })
            .collect();
        // Filters that all drop need no order, so none of them has to be moved.
        let model = FilterModel { order: FilterOrder::None, ..self.model.clone() };
        let (installed, foreign) = self.listed()?;
        let occupied: BTreeSet<u32> = foreign.iter().map(|listed| listed.location).collect();
        let size = self.facts.filters.or(model.filters);
        let table = Table { model: &model, installed: &installed, occupied: &occupied, size };
        let plan = plan(&table, &filters)?;
        self.announce(&installed, &plan)?;
        let mut added = AddedDrops::default();
        for step in &plan.steps {
            match self.make(step) {
                Ok(Step::Insert { .. }) => added.inserted += 1,
                Ok(_) => {}
                Err(error) => {
                    let is_last = !error.is_of_one_filter();
                    added.is_cut_short = is_last && !error.is_of_full_table();
                    added.why.get_or_insert(error);
                    if is_last {
                        break;
                    }
                }
            }
        }
        let is_wanted = |ours: &&LedgerFilter| matches.contains(&ours.filter.matches);
        let there: Vec<LedgerFilter> = self.ledger.filters.iter().filter(is_wanted).cloned().collect();
        added.missing = filters.len().saturating_sub(there.len());
        self.in_force = Ledger { filters: there, contexts: Vec::new() };
        self.save_late();
        Ok(added)
    }

    /// Removes our contexts, and the filters that `is_kept` rejects; those that it accepts are in force.
    fn remove_others(&mut self, is_kept: impl Fn(&Filter) -> bool) -> Result<ChangeSummary, CarveError> {
        let saved = self.ledger.clone();
        let (mut ours, _) = self.listed()?;
        self.ledger.filters = as_ledger(&ours);
        ours.sort_by_key(|ours| std::cmp::Reverse(ours.location));
        let mut summary = ChangeSummary::default();
        let mut first = None;
        for InstalledFilter { location, filter } in &ours {
            if is_kept(filter) {
                summary.kept += 1;
                continue;
            }
            match self.nic.remove(*location) {
                // Drivers differ in their answer to a free location.
                Err(error) if !error.is_absence() && !matches!(self.nic.read(*location), Ok(None)) => {
                    first.get_or_insert(error);
                }
                _ => {
                    self.forget(*location, filter);
                    summary.removed += 1;
                }
            }
        }
        let mut left = Vec::new();
        for known in std::mem::take(&mut self.ledger.contexts) {
            if let Err(error) = self.end_context(&known) {
                left.push(known);
                first.get_or_insert(error);
            }
        }
        self.ledger.contexts = left;
        let kept = self.ledger.filters.iter().filter(|ours| is_kept(&ours.filter)).cloned();
        self.in_force = Ledger { filters: kept.collect(), contexts: Vec::new() };
        if self.ledger != saved {
            self.save_late();
        }
        first.map_or(Ok(summary), |error| Err(error.into()))
    }

    /// Removes a context that is still ours.
    fn end_context(&mut self, known: &LedgerContext) -> Result<(), NicError> {
        if self.nic.context_table(known.context)?.as_ref() != Some(&known.table) {
            return Ok(());
        }
        match self.nic.remove_context(known.context) {
            Err(error) if !error.is_absence() => Err(error),
            _ => Ok(()),
        }
    }

    fn change_filters(
        &mut self,
        wanted: &WantedFilters,
        contexts: &[u32],
    ) -> Result<ChangeSummary, CarveError> {
        let wanted: Vec<RankedFilter> = wanted
            .filters
            .iter()
            .map(|wanted| {
                let destination = match wanted.target {
                    Target::Drop => Destination::Drop,
                    Target::Queue(queue) => Destination::Queue(queue),
                    Target::Group(group) => Destination::Context(contexts[group]),
                };
                RankedFilter {
                    rank: wanted.rank,
                    filter: Filter { matches: wanted.matches.clone(), destination },
                }
            })
            .collect();
        let (installed, foreign) = self.listed()?;
        refuse_conflict(&self.model, &wanted, &foreign)?;
        let occupied: BTreeSet<u32> = foreign.iter().map(|listed| listed.location).collect();
        let size = self.facts.filters.or(self.model.filters);
        let table = Table { model: &self.model, installed: &installed, occupied: &occupied, size };
        let plan = plan(&table, &wanted)?;
        self.announce(&installed, &plan)?;
        let summary = self.carry_out(&plan)?;
        // Every filter that is there now was listed or read back as it was asked for.
        let needed = self.ledger.contexts.iter().filter(|known| contexts.contains(&known.context)).cloned();
        let needed: Vec<LedgerContext> = needed.collect();
        self.in_force = Ledger { filters: self.ledger.filters.clone(), contexts: needed.clone() };
        self.remove_contexts(&needed);
        self.save_late();
        Ok(summary)
    }

    /// Saves the ledger with the filters that a plan inserts.
    fn announce(&mut self, installed: &[InstalledFilter], plan: &Plan) -> Result<(), CarveError> {
        self.ledger.filters = as_ledger(installed);
        let intent = self.ledger.filters.iter().cloned().chain(plan.steps.iter().filter_map(announced));
        let intent = Ledger { filters: intent.collect(), contexts: self.ledger.contexts.clone() };
        self.store.save(&intent).map_err(CarveError::Save)
    }

    /// Our filters on the interface, and those of others.
    fn listed(&self) -> Result<(Vec<InstalledFilter>, Vec<ListedFilter>), CarveError> {
        let (ours, foreign): (Vec<ListedFilter>, Vec<_>) =
            self.nic.list()?.into_iter().partition(|listed| self.ledger.has(listed));
        let installed = |ListedFilter { location, filter }: ListedFilter| {
            filter.ok().map(|filter| InstalledFilter { location, filter })
        };
        Ok((ours.into_iter().filter_map(installed).collect(), foreign))
    }

    /// A context for each group of queues; those that are there are used again.
    fn make_contexts(&mut self, wanted: &WantedFilters) -> Result<Vec<u32>, CarveError> {
        let mut contexts = Vec::new();
        for queues in &wanted.groups {
            let entries = self.facts.context_entries.ok_or(CarveError::NoContextTable)? as usize;
            let table: Vec<u32> = queues.iter().copied().cycle().take(entries).collect();
            if let Some(at) = self.ledger.contexts.iter().position(|known| known.table == table) {
                let context = self.ledger.contexts[at].context;
                if self.nic.context_table(context)?.as_ref() == Some(&table) {
                    contexts.push(context);
                    continue;
                }
                // It has gone with a reset of the driver, or somebody has changed it.
                self.ledger.contexts.remove(at);
            }
            let context = self.nic.create_context(&table)?;
            self.ledger.contexts.push(LedgerContext { context, table });
            contexts.push(context);
            self.store.save(&self.ledger).map_err(CarveError::Save)?;
        }
        Ok(contexts)
    }

    /// Removes our contexts but these. One that cannot be removed stays in the ledger.
    fn remove_contexts(&mut self, needed: &[LedgerContext]) {
        let mut left = Vec::new();
        for known in std::mem::take(&mut self.ledger.contexts) {
            if needed.contains(&known) {
                left.push(known);
            } else if let Err(error) = self.nic.remove_context(known.context) {
                tracing::warn!("{error}");
                left.push(known);
            }
        }
        self.ledger.contexts = left;
    }

    /// Saves the ledger after a change. The one that was saved before has more entries and does as well.
    fn save_late(&mut self) {
        if let Err(error) = self.store.save(&self.ledger) {
            tracing::warn!("{}", CarveError::Save(error));
        }
    }

    /// Makes the steps; if one fails, undoes those before it.
    fn carry_out(&mut self, plan: &Plan) -> Result<ChangeSummary, CarveError> {
        let mut done: Vec<Step> = Vec::new();
        let mut summary = ChangeSummary {
            kept: plan.kept.len(),
            removed_first: plan.removed_first,
            ..ChangeSummary::default()
        };
        for step in &plan.steps {
            match self.make(step) {
                Ok(made) => done.push(made),
                Err(failed) => return Err(self.undo(done, failed)),
            }
            match step {
                Step::Insert { .. } => summary.inserted += 1,
                Step::Replace { .. } => summary.replaced += 1,
                Step::Remove { .. } => summary.removed += 1,
            }
        }
        Ok(summary)
    }

    fn undo(&mut self, done: Vec<Step>, failed: CarveError) -> CarveError {
        for step in done.into_iter().rev() {
            let reversed = match step {
                Step::Insert { location: None, .. } => continue,
                Step::Insert { location: Some(location), filter } => Step::Remove { location, filter },
                Step::Replace { location, old, new } => Step::Replace { location, old: new, new: old },
                Step::Remove { location, filter } => {
                    let location = (!self.model.driver_chooses_location).then_some(location);
                    Step::Insert { location, filter }
                }
            };
            if let Err(undo) = self.make(&reversed) {
                return CarveError::NotUndone { failed: Box::new(failed), undo: Box::new(undo) };
            }
        }
        failed
    }

    /// Makes a step, and notes it in the ledger in memory; returns it with the location that the driver has
    /// chosen.
    fn make(&mut self, step: &Step) -> Result<Step, CarveError> {
        match step {
            Step::Insert { location, filter } => {
                let location = self.insert(*location, filter)?;
                Ok(Step::Insert { location: Some(location), filter: filter.clone() })
            }
            Step::Replace { location, old, new } => {
                let location = self.replace(*location, old, new)?;
                Ok(Step::Replace { location, old: old.clone(), new: new.clone() })
            }
            Step::Remove { location, filter } => {
                self.remove(*location, filter)?;
                Ok(step.clone())
            }
        }
    }

    /// Replaces a filter by one with the same match; returns the location of the new one. If it fails, the
    /// old one is put back.
    fn replace(&mut self, location: u32, old: &Filter, new: &Filter) -> Result<u32, CarveError> {
        let chosen = (!self.model.driver_chooses_location).then_some(location);
        if chosen.is_none() {
            self.remove(location, old)?;
        }
        let replaced = match self.insert(chosen, new) {
            Ok(location) => Ok(location),
            Err(failed) => match self.insert(chosen, old) {
                Ok(_) => Err(failed),
                // The old one may still be there, and stays in the ledger.
                Err(undo) => Err(CarveError::NotUndone { failed: Box::new(failed), undo: Box::new(undo) }),
            },
        };
        // In its place is the new one, or the old one that was inserted again and is in the ledger once more.
        if chosen.is_some() && !matches!(replaced, Err(CarveError::NotUndone { .. })) {
            self.forget(location, old);
        }
        replaced
    }

    /// Inserts a filter and checks that it is there as it was asked for.
    fn insert(&mut self, location: Option<u32>, filter: &Filter) -> Result<u32, CarveError> {
        let location = self.nic.insert(location, filter)?;
        let listed = self.nic.read(location);
        if let Ok(Some(listed)) = &listed
            && listed.filter.as_ref() == Ok(filter)
        {
            self.ledger.filters.push(LedgerFilter { location: Some(location), filter: filter.clone() });
            return Ok(location);
        }
        let text = match &listed {
            Ok(Some(listed)) => listed.to_string(),
            Ok(None) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        let altered = CarveError::Altered { asked: filter.clone(), listed: text };
        let Err(error) = self.nic.remove(location) else { return Err(altered) };
        // It stays in the ledger as it is listed, for the next attempt.
        let known = listed.ok().flatten().and_then(|listed| listed.filter.ok());
        let filter = known.unwrap_or_else(|| filter.clone());
        self.ledger.filters.push(LedgerFilter { location: Some(location), filter });
        Err(CarveError::NotUndone { failed: Box::new(altered), undo: Box::new(CarveError::Nic(error)) })
    }

    fn remove(&mut self, location: u32, filter: &Filter) -> Result<(), CarveError> {
        self.nic.remove(location)?;
        self.forget(location, filter);
        Ok(())
    }

    fn forget(&mut self, location: u32, filter: &Filter) {
        let is_it = |ours: &LedgerFilter| ours.location == Some(location) && ours.filter == *filter;
        if let Some(at) = self.ledger.filters.iter().position(is_it) {
            self.ledger.filters.remove(at);
        }
    }
}

/// Refuses filters beside those of other programs that the NIC would not take.
fn refuse_conflict(
    model: &FilterModel,
    wanted: &[RankedFilter],
    foreign: &[ListedFilter],
) -> Result<(), CarveError> {
    let matches: HashSet<_> = wanted.iter().map(|wanted| &wanted.filter.matches).collect();
    let masks = wanted.first().filter(|_| model.one_mask).map(|wanted| wanted.filter.matches.shared_masks());
    for listed in foreign {
        let Ok(filter) = &listed.filter else { continue };
        if matches.contains(&filter.matches) {
            return Err(CarveError::Taken { listed: listed.clone() });
        }
        if masks.as_ref().is_some_and(|masks| *masks != filter.matches.shared_masks()) {
            return Err(CarveError::OtherMasks { listed: listed.clone() });
        }
    }
    Ok(())
}

/// The matches of the filters that drop.
fn dropped_matches(wanted: &WantedFilters) -> HashSet<&FilterMatch> {
    let dropping = wanted.filters.iter().filter(|wanted| wanted.target == Target::Drop);
    dropping.map(|wanted| &wanted.matches).collect()
}

/// The entry of a filter that a step inserts.
fn announced(step: &Step) -> Option<LedgerFilter> {
    match step {
        Step::Insert { location, filter } => {
            Some(LedgerFilter { location: *location, filter: filter.clone() })
        }
        // Where the driver chooses locations, the new one may be at another.
        Step::Replace { new, .. } => Some(LedgerFilter { location: None, filter: new.clone() }),
        Step::Remove { .. } => None,
    }
}

fn as_ledger(installed: &[InstalledFilter]) -> Vec<LedgerFilter> {
    let entry =
        |ours: &InstalledFilter| LedgerFilter { location: Some(ours.location), filter: ours.filter.clone() };
    installed.iter().map(entry).collect()
}
