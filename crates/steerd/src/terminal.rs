//! Output on stdout, stderr and the terminal: styles, tables, the live table and the summary.

pub(crate) mod hang_up;
pub(crate) mod numbers;
pub(crate) mod output;
pub(crate) mod screen;
pub(crate) mod style;
pub(crate) mod summary;
pub(crate) mod table;
