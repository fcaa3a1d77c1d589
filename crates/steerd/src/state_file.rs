//! Files in the state folder, as JSON with the number of their format: a reader finds the old or the new
//! content, whenever the machine stops. Only the daemon's user may read them, as policies may be secret.

use std::fs;
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The number of the format of all files.
const FORMAT: u32 = 1;

/// The content of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Saved<C> {
    format: u32,
    #[serde(flatten)]
    pub(crate) content: C,
}

/// Reads a file.
pub(crate) fn read<C: DeserializeOwned>(path: &Path) -> io::Result<Saved<C>> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let bytes = fs::read(path)?;
    // A later format may have other content.
    match serde_json::from_slice::<Format>(&bytes)?.format {
        FORMAT => Ok(serde_json::from_slice(&bytes)?),
        other => Err(io::Error::other(format!("its format is {other}, this program reads {FORMAT}"))),
    }
}

/// Logs an error if there is a file that cannot be read. `what`: its content.
pub(crate) fn check<C: DeserializeOwned>(path: &Path, what: &str) {
    match read::<C>(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!("{}", lost(path, what, &error));
        }
        _ => {}
    }
}

/// The message about a file that cannot be read.
pub(crate) fn lost(path: &Path, what: &str, error: &io::Error) -> String {
    format!("{what} in {} is lost: {error}", path.display())
}

/// Moves a file that cannot be read out of the way of the next one that is written.
pub(crate) fn keep_unreadable(path: &Path) {
    let kept = path.with_extension("bad");
    match fs::rename(path, &kept) {
        Ok(()) => tracing::warn!("{} is kept as {}", path.display(), kept.display()),
        Err(error) => tracing::error!("{} cannot be kept: {error}", path.display()),
    }
}

/// Replaces a file as a whole.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let next = path.with_extension("new");
    // A file that is there keeps its mode.
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
    let mut writer = BufWriter::new(file);
    serde_json::to_writer(&mut writer, &Saved { format: FORMAT, content })?;
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    // The name is in the folder for good only after this.
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Content {
        numbers: Vec<u32>,
    }

    #[test]
    fn files_are_private_and_those_of_another_format_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("numbers.json");
        let content = Content { numbers: vec![1, 2] };
        replace(&path, &content).expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(read::<Content>(&path).expect("read").content, content);
        fs::write(&path, r#"{"format": 2, "letters": "a"}"#).expect("written");
        let why = read::<Content>(&path).expect_err("a later format").to_string();
        assert_eq!(why, "its format is 2, this program reads 1");
        keep_unreadable(&path);
        replace(&path, &content).expect("written");
        assert!(fs::read_to_string(folder.path().join("numbers.bad")).expect("kept").contains("letters"));
    }
}
