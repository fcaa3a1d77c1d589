//! Reading `description` of a rule or a group.

use program::{DescriptionFault, DescriptionText};

use super::reader::{Reader, Table};

/// Reads the key; `None` if there is none, or if it is wrong, which is reported.
pub(super) fn read(reader: &mut Reader, table: &Table<'_>) -> Option<DescriptionText> {
    let value = table.get("description")?;
    let text = reader.string(value, "`description`")?;
    match DescriptionText::new(text) {
        Ok(description) => Some(description),
        Err(fault) => {
            let hint = match fault {
                DescriptionFault::Empty => "write a text, or leave `description` out",
                DescriptionFault::TooLong(_) => "write a shorter text, and the rest in a comment after #",
                DescriptionFault::Control(_) => "write text of one line, or of several between three quotes",
            };
            let message = format!("`description` is not possible: {fault}");
            reader.error_with(value.span(), message, "this text", hint);
            None
        }
    }
}
