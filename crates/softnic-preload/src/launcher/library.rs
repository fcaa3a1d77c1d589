//! Where the shared library is: beside the launcher, as cargo or a package puts it.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::Error;

/// Names the library outright.
const VARIABLE: &str = "SOFTNIC_LIBRARY";

/// Where it may be from the launcher's folder: cargo's two places, then that of a package.
const PLACES: [&str; 3] =
    ["libsoftnic_preload.so", "deps/libsoftnic_preload.so", "../lib/softnic/libsoftnic-rdmav34.so"];

/// The library; of several the newest, because cargo keeps one of its two copies behind.
pub(crate) fn find() -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        return named
            .canonicalize()
            .map_err(|source| Error::Step { step: format!("{VARIABLE}={}", named.display()), source });
    }
    let exe = std::env::current_exe()
        .map_err(|source| Error::Step { step: "finding this program's own file".to_owned(), source })?;
    let folder = exe.parent().unwrap_or(&exe).to_owned();
    let found = PLACES.iter().filter_map(|place| {
        let path = folder.join(place).canonicalize().ok()?;
        let modified = path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        Some((modified, path))
    });
    let newest = found.max_by_key(|(modified, _)| *modified);
    newest.map(|(_, path)| path).ok_or_else(|| Error::NoLibrary { names: PLACES.join(" or "), exe })
}
