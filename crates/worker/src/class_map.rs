//! The programs whose packets a worker can meet, and which of them decides on each class. While one program
//! replaces another there are two; a map is never changed, but replaced by the next ([`crate::mailbox`]).

use std::sync::Arc;

use program::ClassId;

use crate::class_table::{ClassTable, Entry};

/// The most programs of a map.
pub(crate) const TABLES_MAX: usize = 2;

/// The classes of one or two programs.
#[derive(Debug)]
pub(crate) struct ClassMap {
    /// Of a number that both have, the class of the first counts.
    tables: [Option<Arc<ClassTable>>; TABLES_MAX],
    /// The first table that has a class for packets without a tag.
    untagged: Option<(usize, ClassId)>,
    /// Whether a program lets rules at run time decide packets.
    pub(crate) allows_rules_at_run_time: bool,
}

impl ClassMap {
    pub(crate) fn new(tables: [Option<Arc<ClassTable>>; TABLES_MAX]) -> Self {
        let present =
            || tables.iter().enumerate().filter_map(|(place, table)| Some((place, table.as_deref()?)));
        let untagged = present().find_map(|(place, table)| Some((place, table.program().untagged?)));
        let allows_rules_at_run_time = present().any(|(_, table)| table.allows_rules_at_run_time());
        Self { untagged, allows_rules_at_run_time, tables }
    }

    /// The entries of the program in force, by class. The other one's are not there: few packets are of a
    /// class that only that one has, while one program replaces another.
    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        self.tables[0].as_deref().map_or(&[], ClassTable::entries)
    }

    /// The tables by their place.
    #[inline]
    pub(crate) fn tables(&self) -> [Option<&ClassTable>; TABLES_MAX] {
        self.tables.each_ref().map(Option::as_deref)
    }

    /// The tables that there are, that of the program in force first.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Arc<ClassTable>> {
        self.tables.iter().flatten()
    }

    /// The table that decides on a class, and its place.
    pub(crate) fn table_of(&self, class: ClassId) -> Option<(usize, &ClassTable)> {
        let tables = self.tables().into_iter().enumerate();
        tables.filter_map(|(place, table)| Some((place, table?))).find(|(_, table)| table.has(class))
    }

    /// The class of packets without a tag, and the table that decides on them. Such packets do not tell which
    /// flow they came by, so while one program replaces another the one in force classifies them.
    pub(crate) fn untagged(&self) -> Option<(usize, &ClassTable, ClassId)> {
        let (place, class) = self.untagged?;
        Some((place, self.tables[place].as_deref()?, class))
    }
}
