//! The drop filters of the programs that follow each other below an interface: put there, changed with the
//! program, watched, and removed.
//!
//! A change of the program is made in three steps:
//! 1. [`EarlyDrops::begin`] removes the filters that the new program does not want;
//! 2. the program is installed below, which the caller does;
//! 3. [`EarlyDrops::finish`] inserts the new filters, or [`EarlyDrops::abandon`] puts the old ones back, if
//!    the old program is still in force.
//!
//! So each packet that a filter drops is one that the old program drops, or the new one, whichever decides:
//! - Before step 1 all filters are wanted by the old program, and during it filters are only removed. The old
//!   program is in force.
//! - During step 2 a packet is decided by the old program or the new one. The filters that are left are
//!   wanted by both.
//! - During step 3 all filters are wanted by the program in force. If the step before has left flows of both
//!   programs, the filters stay those that both want.
//!
//! If step 1 fails, filters are left that the new program does not want, so the change must be refused; those
//! that are left are wanted by the old one. If step 3 fails, fewer packets are dropped early. A filter that a
//! driver alters and does not remove may match other packets: it is a fault until it is gone.

use std::collections::{BTreeMap, HashSet};

use program::{Program, RuleId};

use crate::carving::{CarveError, Carving, FilterSurvey};
use crate::drops::{WantedDrops, drops};
use crate::ledger::{Ledger, LedgerStore};
use crate::model::FilterModel;
use crate::nic::NicFilters;

/// The drop filters of the program in force, on an interface. They stay when it is dropped;
/// [`EarlyDrops::end`] removes them.
#[derive(Debug)]
pub struct EarlyDrops<N, S> {
    carving: Carving<N, S>,
    /// The filters of the program in force.
    in_force: WantedDrops,
    /// The filters of these that may be there: not all, while flows of a change that failed are left.
    wanted: WantedDrops,
    /// The filters of the program that is being installed.
    next: Option<WantedDrops>,
    /// Why wanted filters are missing.
    shortage: Option<String>,
    /// The insertion of filters is to be tried again.
    is_cut_short: bool,
    /// Filters that have gone and are not there again.
    lost: usize,
    /// Filters that had gone and were inserted again.
    restored: u64,
    /// The filters of others, and the room beside them, before the last change.
    survey: FilterSurvey,
}

/// The drop filters on an interface, for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropFigures {
    /// The filters of each rule of the program in force that are there.
    pub rules: BTreeMap<RuleId, usize>,
    /// Wanted filters that are not there.
    pub missing: usize,
    /// Filters that are there and not wanted: they may drop packets of other rules.
    pub surplus: usize,
    /// Filters of other programs, after the last change.
    pub foreign: usize,
    /// Filters that had gone, as after the reset of a driver, and were inserted again.
    pub restored: u64,
    /// Why filters are missing or not wanted.
    pub why: Option<String>,
}

impl DropFigures {
    /// The filters that are there and wanted.
    #[must_use]
    pub fn filters(&self) -> usize {
        self.rules.values().sum()
    }
}

impl<N: NicFilters, S: LedgerStore> EarlyDrops<N, S> {
    /// Takes the filters of an interface over from the process that has left this ledger.
    ///
    /// # Errors
    /// The interface has no filters, or is gone.
    pub fn open(nic: N, store: S, model: FilterModel, left: Ledger) -> Result<Self, CarveError> {
        Ok(Self {
            carving: Carving::open(nic, store, model, left)?,
            in_force: WantedDrops::default(),
            wanted: WantedDrops::default(),
            next: None,
            shortage: None,
            is_cut_short: false,
            lost: 0,
            restored: 0,
            survey: FilterSurvey::default(),
        })
    }

    /// The filters on the interface.
    #[must_use]
    pub fn carving(&self) -> &Carving<N, S> {
        &self.carving
    }

    /// Removes the filters that a program does not want, before it is installed. If the interface cannot be
    /// asked, that is no error as long as no filter has to be removed, or they have gone with the interface.
    ///
    /// # Errors
    /// A filter could not be removed. [`EarlyDrops::abandon`] puts the others back.
    pub fn begin(&mut self, program: &Program) -> Result<(), CarveError> {
        let surveyed = self.carving.survey().map(|survey| self.survey = survey);
        let FilterSurvey { room, foreign } = &self.survey;
        let next = drops(program, self.carving.model(), *room, foreign);
        let retained = surveyed.and_then(|()| self.carving.retain_drops(&next.filters));
        if let Err(error) = retained
            && !error.is_of_absent_interface()
            && !self.carving.are_among(&next.filters)
        {
            return Err(error);
        }
        self.next = Some(next);
        Ok(())
    }

    /// Inserts the filters of the program that has been installed.
    pub fn finish(&mut self) {
        self.in_force = self.next.take().unwrap_or_default();
        self.wanted = self.in_force.clone();
        self.lost = 0;
        self.insert();
    }

    /// Ends a change that has failed. `is_in_force`: the program before is in force, and no flow of the other
    /// one is left.
    pub fn abandon(&mut self, is_in_force: bool) {
        let next = self.next.take();
        if is_in_force {
            self.wanted = self.in_force.clone();
        } else if let Some(next) = next {
            self.wanted.retain(&next);
        }
        self.insert();
    }

    /// Puts filters in place that have gone, and removes those that should not be there.
    ///
    /// # Errors
    /// The interface cannot be asked, or a filter cannot be removed.
    pub fn restore(&mut self) -> Result<(), CarveError> {
        let deviation = self.carving.deviation()?;
        if deviation.is_none() && !self.is_cut_short {
            return Ok(());
        }
        self.carving.retain_drops(&self.wanted.filters)?;
        self.lost += deviation.missing;
        let restored = self.insert().min(self.lost);
        self.lost -= restored;
        self.restored += restored as u64;
        Ok(())
    }

    /// Removes all our filters.
    ///
    /// # Errors
    /// The first failure; the filters that could not be removed are in the ledger.
    pub fn end(&mut self) -> Result<usize, CarveError> {
        self.in_force = WantedDrops::default();
        self.wanted = WantedDrops::default();
        match self.carving.end() {
            Ok(summary) => Ok(summary.removed),
            Err(error) if error.is_of_absent_interface() => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The figures after the last change.
    #[must_use]
    pub fn figures(&self) -> DropFigures {
        let ledger = self.carving.ledger();
        let there: HashSet<_> = ledger.filters.iter().map(|ours| &ours.filter.matches).collect();
        let mut figures = DropFigures {
            foreign: self.survey.foreign.len(),
            restored: self.restored,
            why: self.shortage.clone(),
            ..DropFigures::default()
        };
        for wanted in &self.in_force.filters.filters {
            match there.contains(&wanted.matches) {
                true => *figures.rules.entry(wanted.rule).or_default() += 1,
                false => figures.missing += 1,
            }
        }
        figures.surplus = ledger.filters.len().saturating_sub(figures.filters());
        if self.wanted != self.in_force && figures.why.is_none() {
            figures.why = Some("flows of a change that failed are left".to_owned());
        }
        figures
    }

    /// Inserts the wanted filters that are missing; returns how many.
    fn insert(&mut self) -> usize {
        let figures = self.figures();
        if figures.missing + figures.surplus == 0 {
            (self.is_cut_short, self.shortage) = (false, None);
            return 0;
        }
        match self.carving.add_drops(&self.wanted.filters) {
            Ok(added) => {
                self.is_cut_short = added.is_cut_short;
                self.shortage = added.why.map(|why| why.to_string());
                added.inserted
            }
            Err(error) => {
                (self.is_cut_short, self.shortage) = (true, Some(error.to_string()));
                0
            }
        }
    }
}
