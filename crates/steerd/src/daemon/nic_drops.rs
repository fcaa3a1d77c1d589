//! Filters of NICs that drop packets of drop rules, before the XDP program would, on ports with
//! `nic_filters = "drop"`. They follow every change of the program: the thread of the dataplane calls
//! [`NicDrops::begin`] before it and [`NicDrops::finish`] or [`NicDrops::abandon`] after it, in the order
//! that `nic-filters` gives the reasons for. Filters that an earlier process has left are removed at the
//! start, also where none are wanted now.

use std::sync::Arc;

use nic_filters::{CarveError, Carving, DropFigures, EarlyDrops, FilterModel, InterfaceFilters, NicFilters};
use program::{Decider, Program, RuleDeciders, RuleId};

use crate::cli::NicFilterUse;
use crate::daemon::Error;
use crate::daemon::carving::{CarvingError, FilterPurpose, FilterStore, Places, StoreError, noted};
use crate::settings::{Settings, XdpPort};
use crate::state::PortFilters;
use crate::terminal::numbers::counted;

/// The drop filters of all ports; removed when it is dropped.
pub(crate) struct NicDrops {
    ports: Vec<PortDrops<InterfaceFilters>>,
}

/// The drop filters of a port.
struct PortDrops<N: NicFilters> {
    port: u8,
    interface: String,
    model: String,
    drops: EarlyDrops<N, FilterStore>,
    /// Why the interface could not be compared with the filters.
    fault: Option<String>,
    /// The last line of the log, so that it is not repeated.
    logged: String,
}

/// The drop filters of a port as they were after the last change or comparison.
#[derive(Clone, Debug)]
pub(crate) struct PublishedDrops {
    pub(crate) port: u8,
    pub(crate) interface: String,
    pub(crate) model: String,
    pub(crate) figures: DropFigures,
}

impl NicDrops {
    /// Opens the filters of the ports that the settings want them for, and removes those that an earlier
    /// process has left on the others. `given`: the filter model of the command line.
    ///
    /// # Errors
    /// An interface has no filters, or its filters do not drop.
    pub(crate) fn open(settings: &Settings, given: Option<&FilterModel>) -> Result<Self, Error> {
        let places = Places::of(settings.state.folder());
        let mut ports = Vec::new();
        for port in settings.xdp_ports() {
            match port.nic_filters {
                NicFilterUse::Off => remove_left(&port, settings, &places),
                NicFilterUse::Drop => ports.push(open_port(&port, given, &places)?),
            }
        }
        Ok(Self { ports })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Removes the filters that a program does not want, before it is installed.
    ///
    /// # Errors
    /// A filter cannot be removed: the program must not be installed.
    pub(crate) fn begin(&mut self, program: &Program) -> Result<(), Error> {
        self.ports.iter_mut().try_for_each(|port| {
            let of_port = |error: CarveError| Error::NicDrops { port: port.port, source: error.into() };
            port.drops.begin(program).map_err(of_port)
        })
    }

    /// Inserts the filters of the program that has been installed.
    pub(crate) fn finish(&mut self) {
        self.ports.iter_mut().for_each(|port| {
            port.drops.finish();
            port.log();
        });
    }

    /// Ends a change that has failed. `is_in_force`: the program before is in force, and no flow of the other
    /// one is left.
    pub(crate) fn abandon(&mut self, is_in_force: bool) {
        self.ports.iter_mut().for_each(|port| {
            port.drops.abandon(is_in_force);
            port.log();
        });
    }

    /// Puts filters in place that have gone.
    pub(crate) fn restore(&mut self) {
        self.ports.iter_mut().for_each(PortDrops::restore);
    }

    /// Removes all filters.
    ///
    /// # Errors
    /// The first failure; the filters that could not be removed are removed at the next start.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for mut port in self.ports.drain(..) {
            let ended = port.end();
            if first.is_ok() {
                first = ended;
            }
        }
        first
    }

    pub(crate) fn published(&self) -> Arc<[PublishedDrops]> {
        self.ports.iter().map(PortDrops::published).collect()
    }
}

impl Drop for NicDrops {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("{error}");
        }
    }
}

impl<N: NicFilters> PortDrops<N> {
    /// Logs a line if the filters, or what is missing of them, are not as before.
    fn log(&mut self) {
        let figures = self.drops.figures();
        let filters = counted(figures.filters() as u64, "filter", "filters");
        let rules = counted(figures.rules.len() as u64, "rule", "rules");
        let mut line = format!("{}: {filters} of the NIC drop packets of {rules}", self.interface);
        if let Some(why) = &figures.why {
            let missing = counted(figures.missing as u64, "more is missing", "more are missing");
            line.push_str(&format!("; {missing}, whose packets the XDP program drops: {why}"));
        }
        if line == self.logged {
            return;
        }
        match &figures.why {
            Some(_) => tracing::warn!("{line}"),
            None => tracing::info!("{line}"),
        }
        self.logged = line;
    }

    fn restore(&mut self) {
        let before = self.drops.figures().restored;
        let fault = self.drops.restore().err().map(|error| error.to_string());
        if let Some(fault) = fault.as_ref().filter(|fault| self.fault.as_ref() != Some(fault)) {
            tracing::error!("the filters of the NIC are not in place: {fault}");
        }
        self.fault = fault;
        let restored = self.drops.figures().restored - before;
        if restored > 0 {
            let filters = counted(restored, "filter was", "filters were");
            tracing::warn!("{}: {filters} gone and inserted again", self.interface);
        }
        self.log();
    }

    fn end(&mut self) -> Result<(), Error> {
        let removed = self.drops.end();
        let of_port = |error: CarveError| Error::NicDrops { port: self.port, source: error.into() };
        let filters = counted(removed.map_err(of_port)? as u64, "filter", "filters");
        tracing::info!("{}: {filters} of the NIC removed", self.interface);
        Ok(())
    }

    fn published(&self) -> PublishedDrops {
        let mut figures = self.drops.figures();
        figures.why = self.fault.clone().or(figures.why);
        PublishedDrops {
            port: self.port,
            interface: self.interface.clone(),
            model: self.model.clone(),
            figures,
        }
    }
}

impl PublishedDrops {
    /// The state of the port's filters. `program`: the program in force.
    pub(crate) fn state(&self, program: &Program) -> PortFilters {
        let DropFigures { rules, missing, surplus, foreign, restored, why } = self.figures.clone();
        let by_name = rules.iter().filter_map(|(rule, filters)| {
            Some((program.rules.get(rule.index())?.name.to_string(), *filters))
        });
        PortFilters {
            filter_model: self.model.clone(),
            filters: self.figures.filters() as u64,
            rules: by_name.collect(),
            missing: missing as u64,
            unwanted: surplus as u64,
            foreign: foreign as u64,
            restored,
            problem: why,
        }
    }

    /// The reason why filters may drop packets that the policy does not drop.
    pub(crate) fn fault(&self) -> Option<String> {
        let figures = &self.figures;
        (figures.surplus > 0).then(|| {
            let filters = counted(figures.surplus as u64, "filter", "filters");
            let why = figures.why.as_deref().unwrap_or("it could not be removed");
            format!("{filters} of {} may drop packets of other rules: {why}", self.interface)
        })
    }
}

/// Adds the NICs of ports to the deciders of the rules that they drop packets of.
pub(crate) fn add_deciders(deciders: &mut [RuleDeciders], ports: &[PublishedDrops]) {
    add_nic(deciders, ports.iter().flat_map(|port| port.figures.rules.keys()));
}

/// Adds the NIC to the deciders of rules.
pub(crate) fn add_nic<'r>(deciders: &mut [RuleDeciders], rules: impl IntoIterator<Item = &'r RuleId>) {
    for rule in rules {
        if let Some(of_rule) = deciders.get_mut(rule.index()) {
            of_rule.decided_by.insert(Decider::Nic);
        }
    }
}

/// Checks that [`NicDrops::open`] would succeed, and logs what it would log. `given`: the filter model of the
/// command line.
pub(super) fn check(settings: &Settings, given: Option<&FilterModel>) -> Vec<Error> {
    let places = Places::of(settings.state.folder());
    let wanted = settings.xdp_ports().into_iter().filter(|port| port.nic_filters == NicFilterUse::Drop);
    let checked = wanted.map(|port| {
        let (nic, ..) = usable_filters(&port, given)?;
        let stored = FilterStore::check(&places, &port.interface, nic.index());
        stored.map_err(|error| Error::NicDrops { port: port.port, source: error.into() })
    });
    checked.filter_map(Result::err).collect()
}

/// The filters of a port's interface, its driver and the model, if they can drop.
fn usable_filters(
    port: &XdpPort,
    given: Option<&FilterModel>,
) -> Result<(InterfaceFilters, String, FilterModel), Error> {
    let XdpPort { port: number, interface, .. } = port;
    let of_port = |source: CarvingError| Error::NicDrops { port: *number, source };
    let nic = InterfaceFilters::open(interface).map_err(|error| of_port(error.into()))?;
    // An interface without filters is refused before anything is written.
    let facts = nic.facts().map_err(|error| of_port(CarveError::from(error).into()))?;
    let model = port.filter_model(given, &facts.driver);
    let model = model.map_err(|source| Error::FilterModel { port: *number, source })?;
    if !model.drops {
        let (interface, model) = (interface.clone(), model.name);
        return Err(Error::NoNicDrops { port: *number, interface, driver: facts.driver, model });
    }
    if facts.is_on == Some(false) {
        tracing::warn!("the filters of {interface} are switched off: `ethtool -K {interface} ntuple on`");
    }
    Ok((nic, facts.driver, model))
}

fn open_port(
    port: &XdpPort,
    given: Option<&FilterModel>,
    places: &Places,
) -> Result<PortDrops<InterfaceFilters>, Error> {
    let XdpPort { port: number, interface, .. } = port;
    let of_port = |source: CarvingError| Error::NicDrops { port: *number, source };
    let (nic, driver, model) = usable_filters(port, given)?;
    let name = model.name.clone();
    let store = FilterStore::open(places, interface, nic.index(), FilterPurpose::Drops);
    let store = store.map_err(|error| of_port(error.into()))?;
    let left = store.left();
    let drops = EarlyDrops::open(nic, store, model, left).map_err(|error| of_port(error.into()))?;
    tracing::info!("{interface}: driver {driver}, filter model {name}");
    let (interface, logged) = (interface.clone(), String::new());
    Ok(PortDrops { port: *number, interface, model: name, drops, fault: None, logged })
}

/// Removes the filters that an earlier process has left on an interface for which none are wanted now.
/// Another process that has them now keeps them.
fn remove_left(port: &XdpPort, settings: &Settings, places: &Places) {
    let interface = &port.interface;
    // A wire that cannot be opened is an error of its own.
    let Ok(nic) = InterfaceFilters::open(interface) else { return };
    if noted(settings.state.folder(), interface, nic.index()).is_empty() {
        return;
    }
    let removed = || -> Result<usize, CarvingError> {
        let store = FilterStore::open(places, interface, nic.index(), FilterPurpose::Drops)?;
        let left = store.left();
        let model = FilterModel::by_driver(&nic.driver());
        Ok(Carving::open(nic, store, model, left)?.end()?.removed)
    };
    match removed() {
        Ok(removed) => {
            let filters = counted(removed as u64, "filter", "filters");
            tracing::info!("{interface}: {filters} of an earlier process removed");
        }
        Err(CarvingError::Store(StoreError::Held { .. })) => {}
        Err(error) => tracing::error!("{interface}: filters of an earlier process are left: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use nic_filters::ModelledNic;
    use policy::{NoFiles, Source};

    use super::*;
    use crate::daemon::carving::is_carved;

    fn program(rules: &str) -> Program {
        let text = format!("version = 1\n[groups.w]\nworkers = 'all'\n{rules}");
        let (policy, _) = policy::parse(&Source::new("drops.toml", text), &NoFiles).expect("a policy");
        compiler::compile(&policy, &device_model::DeviceModel::ideal(), 1).expect("it has no limits")
    }

    fn drop_rule(name: &str, port: u16) -> String {
        format!(
            "[[rules]]\nname = '{name}'\naction = 'drop'\n\
             match = {{ family = 'ipv4', protocol = 'udp', dst_port = {port} }}\n"
        )
    }

    fn port(nic: &ModelledNic, folder: &Path) -> PortDrops<ModelledNic> {
        let places = Places { records: folder.to_owned(), locks: folder.join("locks") };
        let store = FilterStore::open(&places, "modelled0", 3, FilterPurpose::Drops).expect("a folder");
        let left = store.left();
        let model = FilterModel::by_name("mlx5").expect("built in");
        let drops = EarlyDrops::open(nic.clone(), store, model, left).expect("it has filters");
        let (interface, model) = ("modelled0".to_owned(), "mlx5".to_owned());
        PortDrops { port: 1, interface, model, drops, fault: None, logged: String::new() }
    }

    #[test]
    fn the_filters_of_each_rule_are_published() {
        let nic = ModelledNic::new(FilterModel::by_name("mlx5").expect("built in"), 8);
        let folder = tempfile::tempdir().expect("a folder");
        let mut port = port(&nic, folder.path());
        let program = program(&(drop_rule("dns", 53) + &drop_rule("ntp", 123)));
        port.drops.begin(&program).expect("nothing fails");
        port.drops.finish();
        let published = port.published();
        let state = published.state(&program);
        assert_eq!(state.rules, BTreeMap::from([("dns".to_owned(), 1), ("ntp".to_owned(), 1)]));
        assert_eq!((state.filters, state.missing, published.fault()), (2, 0, None));
        let mut deciders = program.deciders();
        add_deciders(&mut deciders, &[published]);
        let has_nic: Vec<bool> =
            deciders.iter().map(|of_rule| of_rule.decided_by.contains(&Decider::Nic)).collect();
        assert_eq!(has_nic, [true, true, false], "the default is not dropped");
        // One filter is gone, and cannot be inserted again at once.
        let location = *nic.filters().keys().next().expect("2 filters");
        nic.place(location, None);
        nic.fail([0]);
        port.restore();
        let state = port.published().state(&program);
        assert_eq!((state.filters, state.missing, state.restored), (1, 1, 0));
        assert!(state.problem.is_some());
        port.restore();
        let state = port.published().state(&program);
        assert_eq!((state.filters, state.missing, state.restored, state.problem), (2, 0, 1, None));
        port.end().expect("all go");
        assert!(nic.filters().is_empty());
    }

    #[test]
    fn filters_that_a_process_has_left_go_with_the_first_program_that_does_not_want_them() {
        let nic = ModelledNic::new(FilterModel::by_name("mlx5").expect("built in"), 8);
        let folder = tempfile::tempdir().expect("a folder");
        let mut killed = port(&nic, folder.path());
        killed
            .drops
            .begin(&program(&(drop_rule("dns", 53) + &drop_rule("ntp", 123))))
            .expect("nothing fails");
        killed.drops.finish();
        drop(killed);
        let is_of_queues = is_carved(Some(folder.path().to_owned()), "modelled0");
        assert!(!is_of_queues, "a policy with workers may be used in place of one that cannot be read");
        let mut next = port(&nic, folder.path());
        next.drops.begin(&program(&drop_rule("ntp", 123))).expect("nothing fails");
        assert_eq!(nic.filters().len(), 1);
        next.end().expect("all go");
        assert!(nic.filters().is_empty());
        assert!(!folder.path().join("filters-modelled0.json").exists());
    }
}
