//! Files in the state folder, as JSON: a reader finds the old or the new content, whenever the machine stops.

use std::fs;
use std::io::{self, BufWriter};
use std::path::Path;

use serde::Serialize;

/// Replaces a file as a whole.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let next = path.with_extension("new");
    let mut writer = BufWriter::new(fs::File::create(&next)?);
    serde_json::to_writer(&mut writer, content)?;
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    // The name is in the folder for good only after this.
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
