//! The settings of the workers over reloads: a reload of the policy file reads them again and follows a new
//! list of cores. What takes a restart is reported at its key.

use std::sync::{Mutex, PoisonError};

use crate::cli::RunArgs;
use crate::daemon::reload::Parts;
use crate::daemon::workers;
use crate::settings::{self, Cores, IdleMode, Request, Workers};

/// Where the settings come from, and those of the workers as they were followed last.
pub(crate) struct WorkerSettings {
    request: Request,
    /// Whether workers without work keep their cores busy.
    is_spinning: bool,
    last: Mutex<Workers>,
}

impl WorkerSettings {
    /// `of_start`: the settings that the workers were made with.
    pub(super) fn new(args: &RunArgs, of_start: &Workers) -> Self {
        let is_spinning = of_start.idle == IdleMode::Spin;
        Self { request: Request::from(args), is_spinning, last: Mutex::new(of_start.clone()) }
    }

    /// Returns whether workers without work keep their cores busy, so that none can be spare.
    pub(super) fn is_spinning(&self) -> bool {
        self.is_spinning
    }

    /// Reads the settings again, and brings the workers to their cores if these have changed since they were
    /// followed last: until then what `steerd worker` has changed stays. Returns what could not be followed,
    /// a line each.
    pub(super) fn follow(&self, parts: &Parts) -> Vec<String> {
        let now = match settings::load(&self.request) {
            Ok(loaded) => loaded.settings.workers,
            Err(problems) => {
                return vec![format!(
                    "the workers stay as they are: {problems} (hint: `steerd check --config` shows them)"
                )];
            }
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let of_restart = |key| format!("{key}: the change takes effect at a restart");
        let mut not_followed: Vec<String> = changed_keys(&last, &now).map(of_restart).collect();
        if now.cores != last.cores {
            let followed = match &now.cores {
                Cores::List(cores) => workers::follow_cores(parts, cores).map_err(|refused| refused.why),
                Cores::Auto | Cores::Count(_) => {
                    Err("only a list of cores is followed by a reload (hint: list them, or restart)"
                        .to_owned())
                }
            };
            match followed {
                Ok(()) => last.cores = now.cores,
                Err(why) => not_followed.push(format!("workers.cores: {why}")),
            }
        }
        not_followed.iter().for_each(|line| tracing::warn!("{line}"));
        not_followed
    }
}

/// The keys beside `cores` that differ.
fn changed_keys(before: &Workers, after: &Workers) -> impl Iterator<Item = &'static str> {
    let keys = [
        ("workers.spare", before.spare != after.spare),
        ("workers.frames", before.frames != after.frames),
        ("workers.frame_bytes", before.frame_bytes != after.frame_bytes),
        ("workers.batch", before.batch != after.batch),
        ("workers.pages", before.pages != after.pages),
        ("workers.idle", before.idle != after.idle),
        ("workers.idle_us", before.idle_us != after.idle_us),
        ("workers.timestamps", before.timestamps != after.timestamps),
    ];
    keys.into_iter().filter_map(|(key, is_changed)| is_changed.then_some(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_named() {
        let before = Workers::default();
        let after = Workers { frames: 64, timestamps: true, cores: Cores::Count(3), ..Workers::default() };
        assert_eq!(
            changed_keys(&before, &after).collect::<Vec<_>>(),
            ["workers.frames", "workers.timestamps"]
        );
        assert_eq!(changed_keys(&before, &before).count(), 0);
    }
}
