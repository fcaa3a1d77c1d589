//! `steerd run --interface` with a policy that carves queues: filters of the NIC, and no device, no socket
//! and no worker of steerd's own.
//!
//! The filters are put on the interface, watched, changed on SIGHUP by their difference, and removed at the
//! end. Everything that can be refused is tried before a filter is inserted. Filters that an earlier process
//! has left are taken over: those of the policy stay, the others go.

mod store;

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel;
use nic_filters::{CarveError, Carving, FilterModel, InterfaceFilters, NicFilters};
use policy::Diagnostics;

use crate::carving::CarvedPolicy;
use crate::cli::{NicFilterUse, RunArgs};
use crate::daemon::signals::{Event, Signals};
use crate::daemon::watch::{PolicyWatch, WatchedFiles};
use crate::daemon::{Error, notify, preflight, watch};
use crate::policy_file::{self, PolicyErrors, Read};
use crate::policy_tests::RequiredTests;
use crate::server::Server;
use crate::settings::{Listen, Loaded, PolicySource};
use crate::telemetry::carving::{CarvingFigures, CarvingStatus};
use crate::telemetry::http;
use crate::terminal::numbers::counted;
use crate::terminal::output;
#[cfg(test)]
pub(super) use store::is_carved;
pub(super) use store::{FilterPurpose, FilterStore, Places};
pub(crate) use store::{StoreError, noted};

/// How often the filters are compared with those that should be there, and systemd's watchdog is fed.
const TICK: Duration = Duration::from_secs(5);
/// How long the HTTP server may take to end.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The most filters of others that are listed in the log.
const LISTED_FILTERS: usize = 8;

/// Why filters cannot be put on an interface.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarvingError {
    #[error(transparent)]
    Interface(#[from] wire::WireError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Filters(#[from] CarveError),
}

/// The interface whose queues the policy of these arguments carves; `None`: the policy needs workers, or
/// cannot be read, which the usual start reports.
///
/// # Errors
/// The arguments are for such a policy, and it needs workers or cannot be read; or it cannot be read, and an
/// earlier process has carved the queues of the interface. The usual start would then put an earlier policy
/// with workers on it.
pub(super) fn interface_of<'a>(args: &'a RunArgs, loaded: &Loaded) -> Result<Option<&'a str>, Error> {
    let Some(interface) = args.interface.as_deref() else { return Ok(None) };
    let is_for_drops = args.nic_filters == Some(NicFilterUse::Drop);
    let is_for_queues = args.filter_model.is_some() && !is_for_drops;
    match policy_file::load(&loaded.policy) {
        Ok(read) if read.policy.carves_queues() && is_for_drops => Err(Error::QueuesAndDrops),
        Ok(read) if read.policy.carves_queues() => Ok(Some(interface)),
        Ok(_) if is_for_queues => Err(Error::NoQueues),
        Ok(_) => Ok(None),
        Err(diagnostics) => {
            let is_for_queues = is_for_queues || store::is_carved(loaded.settings.state.folder(), interface);
            if is_for_queues { Err(refused(&loaded.policy, &diagnostics)) } else { Ok(None) }
        }
    }
}

/// Prints why a policy is refused; returns the error with which the process ends.
fn refused(source: &PolicySource, diagnostics: &Diagnostics) -> Error {
    output::print_diagnostics(diagnostics);
    match diagnostics.is_unreadable() {
        true => Error::PolicyUnreadable { file: source.to_string() },
        false => PolicyErrors::of(source, diagnostics).into(),
    }
}

/// Puts the policy on the interface and keeps it there until a signal.
pub(super) fn run(args: &RunArgs, loaded: &Loaded, interface: &str, signals: &Signals) -> Result<(), Error> {
    preflight::before_carving(&loaded.settings)?;
    let bound = match loaded.settings.http.listen {
        Listen::On(address) => Some(http::bind(address, &loaded.settings.http)?),
        Listen::Off => None,
    };
    let nic = InterfaceFilters::open(interface).map_err(CarvingError::from)?;
    // An interface without filters is refused before anything is written.
    nic.facts().map_err(|error| CarvingError::from(CarveError::from(error)))?;
    let model = args.filter_model.clone().unwrap_or_else(|| FilterModel::by_driver(&nic.driver()));
    let places = Places::of(loaded.settings.state.folder());
    let store = FilterStore::open(&places, interface, nic.index(), FilterPurpose::Queues)
        .map_err(CarvingError::from)?;
    let left = store.left();
    let carving = Carving::open(nic, store, model, left).map_err(CarvingError::from)?;
    let mut daemon = CarvingDaemon::new(carving, loaded.policy.clone());
    // Before the policy is read: a later change is reported.
    let watched = WatchedFiles::of(&loaded.settings, &loaded.policy)?;
    let server = match bound {
        Some(bound) => {
            tracing::info!("http://{}/metrics", bound.address);
            Some(bound.serve_carving(Arc::clone(&daemon.status))?)
        }
        None => None,
    };
    let ran = daemon.start().and_then(|()| {
        let watch = watched.map(WatchedFiles::start).transpose()?;
        notify::ready(&daemon.describe());
        daemon.keep(args, signals, watch.as_ref())
    });
    notify::stopping();
    let ended = daemon.end();
    server.map(|server: Server| server.stop(SERVER_TIMEOUT));
    if let (Err(_), Err(error)) = (&ran, &ended) {
        // The process ends with the first error.
        tracing::error!("not all filters are removed: {error}");
    }
    ran.and(ended)
}

/// The policy on an interface.
struct CarvingDaemon<N> {
    carving: Carving<N, FilterStore>,
    source: PolicySource,
    status: Arc<CarvingStatus>,
    /// The filters of the policy in force.
    wanted: Option<nic_filters::WantedFilters>,
}

impl<N: NicFilters> CarvingDaemon<N> {
    fn new(carving: Carving<N, FilterStore>, source: PolicySource) -> Self {
        let status = Arc::new(CarvingStatus::new(&carving.facts().interface, &carving.facts().driver));
        Self { carving, source, status, wanted: None }
    }

    /// Puts the policy on the interface.
    fn start(&mut self) -> Result<(), Error> {
        let facts = self.carving.facts().clone();
        let queues = facts.queues.map_or_else(|| "?".to_owned(), |queues| queues.to_string());
        let model = &self.carving.model().name;
        tracing::info!(
            "{}: driver {}, {queues} receive queues, filter model {model}",
            facts.interface,
            facts.driver
        );
        if facts.is_on == Some(false) {
            let interface = &facts.interface;
            tracing::warn!("the filters of {interface} are switched off: `ethtool -K {interface} ntuple on`");
        }
        let left = self.carving.ledger().filters.len();
        if left > 0 {
            tracing::info!(
                "{} of an earlier process are taken over",
                counted(left as u64, "filter", "filters")
            );
        }
        self.log_foreign()?;
        self.install(policy_file::load(&self.source)).map_err(|why| match why {
            Refused::Policy(diagnostics) => refused(&self.source, &diagnostics),
            Refused::Carving(error) => CarvingError::from(error).into(),
        })?;
        self.status.tick();
        self.status.set_fault(None);
        Ok(())
    }

    /// Lists the filters of others, which are left alone, also where they take packets of ours.
    fn log_foreign(&self) -> Result<(), Error> {
        let foreign = self.carving.foreign().map_err(CarvingError::from)?;
        for listed in foreign.iter().take(LISTED_FILTERS) {
            tracing::warn!("a filter of another program stays: {listed}");
        }
        let more = foreign.len().saturating_sub(LISTED_FILTERS);
        if more > 0 {
            tracing::warn!("and {more} more filters of other programs (hint: `ethtool -n` lists them)");
        }
        Ok(())
    }

    /// Compiles the policy and changes the filters to it.
    fn install(&mut self, read: Result<Read, Diagnostics>) -> Result<(), Refused> {
        let read = read.map_err(Refused::Policy)?;
        if !read.policy.carves_queues() {
            let hint = "end steerd and start it again: with workers it uses the interface in another way";
            let error =
                read.policy.default_place.error("the policy has no groups with `queues` any more", "");
            return Err(Refused::Policy(vec![error.hint(hint)].into()));
        }
        let tests = RequiredTests::of(&self.source, &read).map_err(Refused::Policy)?;
        tests.finish(None).map_err(Refused::Policy)?;
        let room = self.carving.room().map_err(Refused::Carving)?;
        let carved = CarvedPolicy::of(&read, self.carving.model(), room);
        let (wanted, warnings) = carved.into_filters().map_err(Refused::Policy)?;
        policy_file::log(&warnings, 0);
        self.change(&wanted).map_err(Refused::Carving)?;
        self.wanted = Some(wanted);
        Ok(())
    }

    fn change(&mut self, wanted: &nic_filters::WantedFilters) -> Result<(), CarveError> {
        let changed = self.carving.change(wanted);
        self.note_figures();
        let summary = changed?;
        let filters = |count: usize| counted(count as u64, "filter", "filters");
        tracing::info!(
            "{} in force: {} inserted, {} replaced, {} removed, {} unchanged",
            filters(wanted.filters.len()),
            summary.inserted,
            summary.replaced,
            summary.removed,
            summary.kept
        );
        if summary.replaced > 0 {
            tracing::warn!(
                "the NIC takes each match once: packets of {} went to the queues of the interface while their destination \
                 changed",
                filters(summary.replaced)
            );
        }
        if summary.removed_first > 0 {
            tracing::warn!(
                "the NIC takes one set of masks: {} with other masks were removed first, and packets went to the queues of \
                 the interface until the new filters were inserted",
                filters(summary.removed_first)
            );
        }
        Ok(())
    }

    fn note_figures(&self) {
        let foreign = self.carving.foreign().map_or(0, |foreign| foreign.len());
        let ledger = self.carving.ledger();
        self.status.update(|figures| {
            *figures = CarvingFigures {
                filters: ledger.filters.len(),
                contexts: ledger.contexts.len(),
                foreign_filters: foreign,
                ..*figures
            };
        });
    }

    /// Waits for signals and changes of the policy's files, and keeps the filters in place.
    fn keep(&mut self, args: &RunArgs, signals: &Signals, watch: Option<&PolicyWatch>) -> Result<(), Error> {
        let mut changes = watch.map_or_else(channel::never, |watch| watch.changes().clone());
        let watchdog = notify::Watchdog::new();
        let ticks = channel::tick(watchdog.interval().map_or(TICK, |interval| TICK.min(interval / 2)));
        let deadline = args.run_for.map_or_else(channel::never, channel::after);
        loop {
            match signals.take() {
                Some(Event::Reload) => {
                    watch.into_iter().for_each(PolicyWatch::forget);
                    self.reload(policy_file::load(&self.source));
                }
                Some(Event::Record) => {
                    tracing::warn!("SIGUSR1: there is no recorder: no worker receives packets");
                }
                Some(Event::Stop { why }) => {
                    tracing::info!("{why}: removing the filters");
                    return Ok(());
                }
                None => {}
            }
            channel::select! {
                recv(signals.wake()) -> _ => {}
                recv(changes) -> changed => match changed {
                    Ok(changed) => self.reload(changed.read.clone()),
                    Err(_) => {
                        tracing::error!("{}", watch::ENDED);
                        changes = channel::never();
                    }
                },
                recv(deadline) -> _ => return Ok(()),
                recv(ticks) -> _ => {
                    self.restore();
                    notify::alive();
                }
            }
        }
    }

    /// Puts the policy in force that was read. If it is refused, the one before stays.
    fn reload(&mut self, read: Result<Read, Diagnostics>) {
        notify::reloading();
        let outcome = self.install(read);
        let error = match &outcome {
            Ok(()) => None,
            Err(Refused::Policy(diagnostics)) => {
                policy_file::log(&diagnostics.list, diagnostics.omitted);
                Some(format!("{}: {}", self.source, policy_file::error_count(diagnostics)))
            }
            Err(Refused::Carving(error)) => Some(error.to_string()),
        };
        match (&outcome, &error) {
            (Err(Refused::Carving(CarveError::NotUndone { .. })), Some(error)) => {
                tracing::error!("the reload has failed, and the filters are not in place: {error}");
                self.status.set_fault(Some(error.clone()));
            }
            (_, Some(error)) => {
                tracing::error!("the policy is refused, the previous one stays in force: {error}");
            }
            (_, None) => {
                self.status.set_fault(None);
            }
        }
        self.status.update(|figures| {
            figures.reloads += 1;
            figures.is_last_reload_successful = error.is_none();
        });
        self.status.tick();
        notify::ready(&self.describe());
    }

    /// Puts the filters in place again if they differ from those in force: somebody has removed some, as a
    /// driver does that is reset, or a change could not be undone.
    fn restore(&mut self) {
        let Some(wanted) = self.wanted.clone() else { return };
        let fault = self.repair(&wanted).err().map(|error| error.to_string());
        let is_new = self.status.set_fault(fault.clone());
        if let Some(fault) = fault.filter(|_| is_new) {
            tracing::error!("the filters are not in place: {fault}");
        }
        self.status.tick();
    }

    fn repair(&mut self, wanted: &nic_filters::WantedFilters) -> Result<(), CarveError> {
        let deviation = self.carving.deviation()?;
        if deviation.is_none() {
            return Ok(());
        }
        self.change(wanted)?;
        self.status.update(|figures| figures.lost_filters += deviation.missing as u64);
        let filters = |count: usize| counted(count as u64, "filter", "filters");
        tracing::warn!(
            "{} and {} were gone and are in place again; {} of a change that failed were removed",
            filters(deviation.missing),
            counted(deviation.missing_contexts as u64, "RSS context", "RSS contexts"),
            filters(deviation.surplus)
        );
        Ok(())
    }

    /// Removes all filters.
    fn end(&mut self) -> Result<(), Error> {
        self.status.set_fault(Some("stopping".to_owned()));
        let ended = self.carving.end();
        self.note_figures();
        let summary = ended.map_err(CarvingError::from)?;
        tracing::info!("{} removed", counted(summary.removed as u64, "filter", "filters"));
        Ok(())
    }

    fn describe(&self) -> String {
        let figures = self.status.figures();
        format!(
            "{} on {}: {}, {}",
            self.source,
            self.carving.facts().interface,
            counted(figures.filters as u64, "filter", "filters"),
            counted(figures.contexts as u64, "RSS context", "RSS contexts")
        )
    }
}

/// Why a policy is not in force.
#[derive(Debug)]
enum Refused {
    Policy(Diagnostics),
    Carving(CarveError),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use nic_filters::{Destination, Ledger, ModelledNic};

    use super::*;
    use crate::telemetry::http::Probes as _;

    const POLICY: &str = "version = 1\n[groups.zc]\nqueues = [4]\n[groups.many]\nqueues = [5, 6]\n";

    fn rule(name: &str, port: u16, group: &str) -> String {
        format!(
            "[[rules]]\nname = '{name}'\nmatch = {{ family = 'ipv4', protocol = 'udp', dst_port = {port} }}\n\
             action = {{ steer = '{group}' }}\n"
        )
    }

    fn daemon(nic: &ModelledNic, folder: &Path) -> CarvingDaemon<ModelledNic> {
        let store =
            FilterStore::open(&places(folder), "modelled0", 3, FilterPurpose::Queues).expect("a folder");
        let left = store.left();
        let model = FilterModel::by_name("mlx5").expect("built in");
        let carving = Carving::open(nic.clone(), store, model, left).expect("it has filters");
        let source = PolicySource::file(folder.join("carve.toml"), std::collections::BTreeMap::new());
        CarvingDaemon::new(carving, source)
    }

    fn places(folder: &Path) -> Places {
        Places { records: folder.to_owned(), locks: folder.join("locks") }
    }

    fn write(folder: &Path, rules: &str) {
        fs::write(folder.join("carve.toml"), format!("{POLICY}{rules}")).expect("written");
    }

    fn nic() -> ModelledNic {
        ModelledNic::new(FilterModel::by_name("mlx5").expect("built in"), 8)
    }

    #[test]
    fn a_policy_is_put_on_the_nic_reloaded_and_removed() {
        let (nic, folder) = (nic(), tempfile::tempdir().expect("a folder"));
        write(folder.path(), &rule("dns", 53, "zc"));
        let mut daemon = daemon(&nic, folder.path());
        assert!(daemon.status.ready().is_err(), "no filter is there");
        daemon.start().expect("the NIC takes it");
        assert_eq!(daemon.status.ready(), Ok(()));
        let first = nic.filters();
        assert_eq!(first.len(), 1);
        write(folder.path(), &(rule("dns", 53, "zc") + &rule("ntp", 123, "many")));
        daemon.reload(policy_file::load(&daemon.source));
        assert!(
            first.iter().all(|(location, filter)| nic.filters().get(location) == Some(filter)),
            "unchanged"
        );
        assert_eq!((nic.filters().len(), nic.contexts().len()), (2, 1));
        write(
            folder.path(),
            "[[rules]]\nname = 'x'\nmatch = { tcp_flags = 'syn' }\naction = { steer = 'zc' }\n",
        );
        daemon.reload(policy_file::load(&daemon.source));
        assert_eq!(nic.filters().len(), 2, "a policy that no NIC takes changes nothing");
        let figures = daemon.status.figures();
        assert_eq!((figures.filters, figures.contexts, figures.reloads), (2, 1, 2));
        assert!(!figures.is_last_reload_successful);
        fs::write(folder.path().join("carve.toml"), "version = 1\n[groups.w]\nworkers = 'all'\n")
            .expect("written");
        daemon.reload(policy_file::load(&daemon.source));
        assert_eq!(nic.filters().len(), 2, "a policy with workers changes nothing");
        assert!(store::is_carved(Some(folder.path().to_owned()), "modelled0"));
        daemon.end().expect("all go");
        assert!(daemon.status.ready().is_err(), "the filters are gone");
        assert!(!store::is_carved(Some(folder.path().to_owned()), "modelled0"));
        assert!(nic.filters().is_empty() && nic.contexts().is_empty());
        assert!(!daemon_file(folder.path()).exists(), "nothing is left to be noted");
    }

    fn daemon_file(folder: &Path) -> std::path::PathBuf {
        folder.join("filters-modelled0.json")
    }

    #[test]
    fn filters_of_a_process_that_was_killed_are_found_and_those_of_others_are_not_touched() {
        let (nic, folder) = (nic(), tempfile::tempdir().expect("a folder"));
        write(folder.path(), &(rule("dns", 53, "zc") + &rule("ntp", 123, "zc")));
        let mut first = daemon(&nic, folder.path());
        first.start().expect("the NIC takes it");
        let foreign = nic_filters::Filter {
            matches: nic_filters::FilterMatch::new(nic_filters::FilterKind::Tcp4, []),
            destination: Destination::Queue(0),
        };
        nic.place(900, Some(foreign.clone()));
        drop(first);
        write(folder.path(), &rule("dns", 53, "zc"));
        let mut second = daemon(&nic, folder.path());
        assert_eq!(second.carving.ledger().filters.len(), 2);
        second.start().expect("the NIC takes it");
        assert_eq!(nic.filters().len(), 2, "one of ours, one of others");
        drop(second);
        // After another start of the kernel the numbers mean nothing.
        let text = fs::read_to_string(daemon_file(folder.path())).expect("noted");
        let other = text.replacen("\"boot\":\"", "\"boot\":\"other-", 1);
        fs::write(daemon_file(folder.path()), other).expect("written");
        let third = daemon(&nic, folder.path());
        assert_eq!(third.carving.ledger(), &Ledger::default());
        drop(third);
        fs::write(daemon_file(folder.path()), text).expect("written");
        let mut last = daemon(&nic, folder.path());
        last.end().expect("ours go");
        assert_eq!(nic.filters().into_values().collect::<Vec<_>>(), [foreign]);
    }

    #[test]
    fn a_second_process_does_not_get_the_interface() {
        let (nic, folder) = (nic(), tempfile::tempdir().expect("a folder"));
        let first = daemon(&nic, folder.path());
        // Neither another folder of the state nor another name of the interface is a way around the lock.
        let others = Places { records: folder.path().join("other"), ..places(folder.path()) };
        let second = FilterStore::open(&others, "renamed0", 3, FilterPurpose::Drops);
        assert!(matches!(second, Err(StoreError::Held { .. })));
        let checked = FilterStore::check(&others, "renamed0", 3);
        assert!(matches!(checked, Err(StoreError::Held { .. })));
        FilterStore::check(&others, "modelled1", 4).expect("it would be opened");
        let relative = Places { records: "not-there/yet".into(), ..others.clone() };
        FilterStore::check(&relative, "modelled1", 4).expect("it would be made in the current folder");
        assert!(!others.records.exists() && !relative.records.exists(), "a check makes nothing");
        assert!(
            FilterStore::open(&others, "modelled1", 4, FilterPurpose::Queues).is_ok(),
            "another interface"
        );
        drop(first);
        let free = FilterStore::open(&places(folder.path()), "modelled0", 3, FilterPurpose::Queues)
            .expect("the lock is free");
        assert_eq!(free.path(), daemon_file(folder.path()));
    }

    #[test]
    fn filters_that_vanish_are_inserted_again() {
        let (nic, folder) = (nic(), tempfile::tempdir().expect("a folder"));
        write(folder.path(), &rule("dns", 53, "zc"));
        let mut daemon = daemon(&nic, folder.path());
        daemon.start().expect("the NIC takes it");
        let location = *nic.filters().keys().next().expect("one filter");
        nic.place(location, None);
        daemon.restore();
        assert_eq!(nic.filters().len(), 1);
        assert_eq!(daemon.status.figures().lost_filters, 1);
        nic.place(location, None);
        nic.fail([0]);
        daemon.restore();
        assert!(daemon.status.fault().is_some());
        assert_eq!(daemon.status.figures().lost_filters, 1, "it is not in place again");
        daemon.restore();
        assert_eq!((nic.filters().len(), daemon.status.fault()), (1, None));
        assert_eq!(daemon.status.figures().lost_filters, 2);
    }

    #[test]
    fn a_reload_that_cannot_be_undone_is_a_fault_until_the_old_policy_is_in_place() {
        let (nic, folder) = (nic(), tempfile::tempdir().expect("a folder"));
        write(folder.path(), &rule("dns", 53, "zc"));
        let mut daemon = daemon(&nic, folder.path());
        daemon.start().expect("the NIC takes it");
        let before = nic.filters();
        write(folder.path(), &(rule("dns", 53, "zc") + &rule("ntp", 123, "zc") + &rule("sip", 5060, "zc")));
        nic.fail([1, 2]);
        daemon.reload(policy_file::load(&daemon.source));
        assert_eq!(nic.filters().len(), 2, "one filter of the new policy");
        assert!(daemon.status.ready().is_err_and(|fault| fault.contains("could not be undone")));
        nic.fail([]);
        daemon.restore();
        assert_eq!((nic.filters(), daemon.status.ready()), (before, Ok(())));
    }
}
