//! `check` of a policy for ports with `nic_filters = "drop"`: which drop rules the filters of the NIC carry
//! out, and why not the others.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nic_filters::{
    FilterMatch, FilterModel, FilterRoom, InterfaceFilters, ListedFilter, NicFilters, WantedDrops, drops,
};
use packet::FlowKey;
use program::{Program, RuleDeciders, RuleId, Verdict};
use serde::Serialize;

use crate::cli::NicFilterUse;
use crate::commands::Error;
use crate::daemon;
use crate::daemon::carving::noted;
use crate::daemon::nic_drops::add_nic;
use crate::settings::{Settings, XdpPort};
use crate::terminal::numbers::counted;
use crate::terminal::style::{Layout, Style};
use crate::terminal::table::Grid;

/// The filters of a port for the drop rules of a policy.
#[derive(Serialize)]
pub(super) struct DropsOfPort {
    port: u8,
    interface: String,
    filter_model: String,
    /// Why the daemon would not start.
    problem: Option<String>,
    filters: usize,
    /// The drop rules in their order.
    rules: Vec<DropRule>,
    #[serde(skip)]
    matches: Vec<FilterMatch>,
    #[serde(skip)]
    dropped: Vec<RuleId>,
}

#[derive(Serialize)]
struct DropRule {
    rule: String,
    /// The filters, as people read them.
    filters: Vec<String>,
    /// Why the NIC does not drop all of its packets.
    reason: Option<String>,
}

impl DropsOfPort {
    /// The filters for a policy on the ports of the settings that want them. `given`: the filter model of the
    /// command line.
    ///
    /// # Errors
    /// The file of a filter model cannot be read any more.
    pub(super) fn all(
        settings: &Settings,
        program: &Program,
        given: Option<&FilterModel>,
    ) -> Result<Vec<Self>, Error> {
        let ports = settings.xdp_ports();
        let wanted = ports.iter().filter(|port| port.nic_filters == NicFilterUse::Drop);
        wanted.map(|port| Self::of(port, settings, program, given)).collect()
    }

    fn of(
        port: &XdpPort,
        settings: &Settings,
        program: &Program,
        given: Option<&FilterModel>,
    ) -> Result<Self, Error> {
        let table = NicTable::of(&port.interface, settings);
        let failed = |source| daemon::Error::FilterModel { port: port.port, source };
        let model = port.filter_model(given, &table.driver).map_err(failed).map_err(Error::Daemon)?;
        let problem = table.problem.or_else(|| {
            (!model.drops).then(|| {
                let XdpPort { port, interface, .. } = port.clone();
                let (driver, model) = (table.driver.clone(), model.name.clone());
                daemon::Error::NoNicDrops { port, interface, driver, model }.to_string()
            })
        });
        let WantedDrops { filters, refused } = drops(program, &model, table.room, &table.foreign);
        let mut of_rule: BTreeMap<RuleId, Vec<String>> = BTreeMap::new();
        for wanted in &filters.filters {
            of_rule.entry(wanted.rule).or_default().push(wanted.matches.to_string());
        }
        let dropped = of_rule.keys().copied().collect();
        let rules = program.rules.iter().enumerate().map(|(index, rule)| (RuleId::of(index), rule));
        let rules = rules.filter(|(_, rule)| rule.action == Verdict::Drop).map(|(id, rule)| DropRule {
            rule: rule.name.to_string(),
            filters: of_rule.remove(&id).unwrap_or_default(),
            reason: refused.get(&id).map(|why| why.explain(program)),
        });
        Ok(Self {
            port: port.port,
            interface: port.interface.clone(),
            filter_model: model.name,
            problem,
            rules: rules.collect(),
            filters: filters.filters.len(),
            matches: filters.filters.into_iter().map(|wanted| wanted.matches).collect(),
            dropped,
        })
    }

    /// Why the daemon would not start.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The number of filters.
    pub(super) fn filters(&self) -> usize {
        self.filters
    }

    /// Adds the NIC to the deciders of the rules that it drops packets of.
    pub(super) fn add_deciders(&self, rules: &mut [RuleDeciders]) {
        add_nic(rules, &self.dropped);
    }

    /// Whether a filter matches the packet.
    pub(super) fn drops(&self, key: &FlowKey) -> bool {
        self.matches.iter().any(|matches| matches.matches(key))
    }

    /// The drop rules with their filters, and the reasons for those that the NIC does not carry out.
    pub(super) fn text(&self, layout: Layout) -> String {
        let Self { interface, filter_model, rules, .. } = self;
        let title = format!("drop rules in the NIC of {interface}, by the filters of {filter_model}");
        let mut grid = Grid::new(&["rule", "filters"]);
        for rule in rules {
            grid.row(vec![rule.rule.clone(), rule.filters.len().to_string()]);
        }
        let mut out = format!("\n{}\n{}", layout.text(Style::Heading, &title), grid.text());
        for rule in rules {
            for filter in &rule.filters {
                let _ = writeln!(out, "  {}: {filter}", rule.rule);
            }
            if let Some(reason) = &rule.reason {
                out.push_str(&layout.lines(Style::Warning, &format!("  {}: not all: ", rule.rule), reason));
            }
        }
        let filters = counted(self.filters as u64, "filter", "filters");
        let _ = writeln!(
            out,
            "  {filters}; other packets of these rules are dropped by the XDP program or later"
        );
        out
    }
}

/// The table of filters of an interface, as far as it can be asked.
#[derive(Default)]
struct NicTable {
    driver: String,
    room: FilterRoom,
    foreign: Vec<ListedFilter>,
    problem: Option<String>,
}

impl NicTable {
    /// The table of an interface, which need not exist.
    fn of(interface: &str, settings: &Settings) -> Self {
        let Ok(nic) = InterfaceFilters::open(interface) else { return Self::default() };
        let driver = nic.driver();
        let ours = noted(settings.state.folder(), interface, nic.index());
        let asked = nic.facts().and_then(|facts| Ok((facts, nic.list()?)));
        match asked {
            Ok((facts, listed)) => {
                let foreign: Vec<_> = listed.into_iter().filter(|listed| !ours.has(listed)).collect();
                Self { driver, room: facts.room(foreign.len()), foreign, problem: None }
            }
            Err(error) => Self { driver, problem: Some(error.to_string()), ..Self::default() },
        }
    }
}
