//! SIGHUP: the policy is read again and takes the old one's place, all or nothing.
//!
//! The daemon calls it from the run loop. A policy with errors, or one that the device refuses,
//! changes nothing but a counter and the log; there is no state in between.

use std::sync::atomic::Ordering;
use std::time::Instant;

use policy::Severity;

use crate::error::chain;
use crate::plant::Plant;
use crate::{notify, policy_file};

pub(crate) fn run(plant: &Plant) {
    notify::reloading();
    let begun = Instant::now();
    let source = plant.policy_source();
    let status = match replace(plant) {
        Ok(()) => {
            plant.reloads_succeeded.fetch_add(1, Ordering::Relaxed);
            tracing::info!("reload: {source} is in force after {} ms", begun.elapsed().as_millis());
            format!("reloaded {source}")
        }
        Err(error) => {
            plant.reload_failed(&error);
            tracing::error!("reload: {error}");
            tracing::error!("reload: {source} is not taken, the policy before stays in force");
            format!("reload of {source} failed, the policy before stays in force")
        }
    };
    notify::ready(&status);
}

fn replace(plant: &Plant) -> Result<(), String> {
    let source = plant.policy_source();
    let profile = plant.opened().device.profile();
    let compiled =
        policy_file::compile(&source, profile, Some(plant.worker_count())).map_err(|diagnostics| {
            for diagnostic in &diagnostics.list {
                match diagnostic.severity {
                    Severity::Error => tracing::error!("{diagnostic}"),
                    Severity::Warning => tracing::warn!("{diagnostic}"),
                }
            }
            let first = diagnostics.list.iter().find(|one| one.severity == Severity::Error);
            let first = first.map_or_else(String::new, |diagnostic| format!(", the first: {diagnostic}"));
            format!("{} in {source}{first}", policy_file::error_count(&diagnostics))
        })?;
    compiled.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    plant.install(compiled.program).map_err(|error| chain(&error))
}
