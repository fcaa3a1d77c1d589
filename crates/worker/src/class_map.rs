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
    /// The entries, by class.
    entries: Box<[Entry]>,
    /// The first table that has a class for packets without a tag.
    untagged: Option<(usize, ClassId)>,
    /// Whether a program lets rules at run time decide packets.
    pub(crate) allows_rules_at_run_time: bool,
}

impl ClassMap {
    pub(crate) fn new(tables: [Option<Arc<ClassTable>>; TABLES_MAX]) -> Self {
        let present =
            || tables.iter().enumerate().filter_map(|(place, table)| Some((place, table.as_deref()?)));
        let classes = present().map(|(_, table)| table.entries().len()).max().unwrap_or(0);
        let mut entries = vec![Entry::NONE; classes];
        for (place, table) in present().rev() {
            for (entry, own) in entries.iter_mut().zip(table.entries()) {
                if let Some(own) = own {
                    // Two tables at most.
                    *entry = Entry { table: place as u32, ..*own };
                }
            }
        }
        let untagged = present().find_map(|(place, table)| Some((place, table.program().untagged?)));
        let allows_rules_at_run_time = present().any(|(_, table)| table.allows_rules_at_run_time());
        Self { entries: entries.into_boxed_slice(), untagged, allows_rules_at_run_time, tables }
    }

    /// The entries, by class.
    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The tables by their place in entries.
    #[inline]
    pub(crate) fn tables(&self) -> [Option<&ClassTable>; TABLES_MAX] {
        self.tables.each_ref().map(Option::as_deref)
    }

    /// The tables that there are, that of the program in force first.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Arc<ClassTable>> {
        self.tables.iter().flatten()
    }

    /// The table that decides on a class, and its place.
    #[inline]
    pub(crate) fn table_of(&self, class: ClassId) -> Option<(usize, &ClassTable)> {
        let place = self.entries.get(class.index())?.table as usize;
        Some((place, self.tables.get(place)?.as_deref()?))
    }

    /// The class of packets without a tag, and the table that decides on them. Such packets do not tell which
    /// flow they came by, so while one program replaces another the one in force classifies them.
    pub(crate) fn untagged(&self) -> Option<(usize, &ClassTable, ClassId)> {
        let (place, class) = self.untagged?;
        Some((place, self.tables[place].as_deref()?, class))
    }
}
