//! Finding and opening a device, and its limits for the compiler. `steerd` calls this at start-up; every
//! error is one line with the existing names or the remedy.

use std::sync::Arc;

use device_model::{DeviceModel, Feature, PriorityTable, RefusalRow};
use verbs::{Context, DeviceAttributes, DeviceList, HashFields, LinkLayer, PortNumber, PortState, Provider};

use crate::ControlError;
use crate::model::{Known, Model};

/// Which device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSelector {
    /// The name of the device; `None` means the only one there is.
    pub name: Option<String>,
}

impl DeviceSelector {
    /// The device of that name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()) }
    }
}

/// One line of the list of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The name of the device.
    pub name: String,
    /// The GUID of the device; 0 where it has none.
    pub guid: u64,
    /// The model of the device, unless the settings name another.
    pub model: Model,
}

/// An opened device.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
    name: String,
    attributes: DeviceAttributes,
    model: Model,
}

impl Device {
    /// The devices of the system or of a provider.
    ///
    /// # Errors
    /// Devices cannot be listed.
    pub fn list(provider: Option<&dyn Provider>) -> Result<Vec<DeviceSummary>, ControlError> {
        let list = device_list(provider)?;
        let summaries = list.iter().map(|device| DeviceSummary {
            name: device.name().to_owned(),
            guid: device.guid().0,
            model: Model::of(device.name(), provider),
        });
        Ok(summaries.collect())
    }

    /// Opens a device and queries its limits.
    ///
    /// # Errors
    /// No such device (with the names that exist), no permission, or a device that cannot steer.
    pub fn open(selector: &DeviceSelector, provider: Option<&dyn Provider>) -> Result<Self, ControlError> {
        let list = device_list(provider)?;
        let mut available: Vec<String> = list.iter().map(|device| device.name().to_owned()).collect();
        available.sort();
        let name = choose(selector, available)?;
        let device = list
            .find(&name)
            .ok_or_else(|| ControlError::NoSuchDevice { name: name.clone(), available: Vec::new() })?;
        let context = device
            .open()
            .map_err(|source| ControlError::Open { device: name.clone(), source: source.into() })?;
        let model = Model::of(&name, provider);
        Self::of(context, model)
    }

    /// Over a context that is open already.
    ///
    /// # Errors
    /// The device's limits cannot be queried, or it cannot steer.
    pub fn of(context: Arc<Context>, model: Model) -> Result<Self, ControlError> {
        let name = context.name().to_owned();
        let attributes = context.attributes().map_err(|source| ControlError::Query {
            device: name.clone(),
            what: "limits".to_owned(),
            source: source.into(),
        })?;
        if !attributes.rss_caps.raw_packet || !attributes.rss_caps.toeplitz {
            return Err(ControlError::NoRss { device: name });
        }
        Ok(Self { context, name, attributes, model })
    }

    /// Returns the device with another model.
    #[must_use]
    pub fn with_model(self, model: Model) -> Self {
        Self { model, ..self }
    }

    /// Sets the priorities of the model to those that were found by trying.
    pub(crate) fn set_priorities(&mut self, priorities: u32) {
        self.model.profile.priorities = priorities;
    }

    /// The model of the device.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The libibverbs context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The attributes of the device.
    #[must_use]
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// The limits for the compiler, beside `workers` workers, each of which has a queue pair.
    #[must_use]
    pub fn profile(&self, workers: usize) -> DeviceModel {
        profile_of(&self.name, &self.model, &self.attributes, workers)
    }

    /// The limits for a controller.
    #[must_use]
    pub fn limits(&self) -> Limits {
        limits_of(&self.name, &self.model, &self.attributes)
    }

    /// Whether packets can be steered on that port now.
    ///
    /// # Errors
    /// No such port, not Ethernet, or no link.
    pub fn check_port(&self, port: u8) -> Result<(), ControlError> {
        let device = || self.name.clone();
        let ports = self.attributes.physical_ports;
        if port == 0 || u32::from(port) > ports {
            return Err(ControlError::NoSuchPort { device: device(), port, ports });
        }
        let attributes = self.context.port(PortNumber(port)).map_err(|source| ControlError::Query {
            device: device(),
            what: format!("port {port}"),
            source: source.into(),
        })?;
        match attributes.link_layer {
            LinkLayer::Ethernet => {}
            other => {
                return Err(ControlError::NotEthernet {
                    device: device(),
                    port,
                    link_layer: other.to_string(),
                });
            }
        }
        match attributes.state {
            PortState::Active | PortState::ActiveDefer => Ok(()),
            other => Err(ControlError::PortDown { device: device(), port, state: other.to_string() }),
        }
    }
}

fn device_list(provider: Option<&dyn Provider>) -> Result<DeviceList, ControlError> {
    provider
        .map_or_else(DeviceList::system, DeviceList::of)
        .map_err(|source| ControlError::List { source: source.into() })
}

fn choose(selector: &DeviceSelector, mut available: Vec<String>) -> Result<String, ControlError> {
    match &selector.name {
        _ if available.is_empty() => Err(ControlError::NoDevices),
        Some(name) if available.contains(name) => Ok(name.clone()),
        Some(name) => Err(ControlError::NoSuchDevice { name: name.clone(), available }),
        None if available.len() == 1 => Ok(available.remove(0)),
        None => Err(ControlError::SeveralDevices { available }),
    }
}

/// The controller has one queue pair and one table of its own, for flows that drop.
const OWN_OBJECTS: u32 = 1;

/// A limit that the device reports, 0 if it reports none. A model that the operator names can be lower: its
/// author may know what the device does not report.
fn limit(model: &Model, of_model: Option<u32>, reported: u32) -> Option<u32> {
    let reported = (reported > 0).then_some(reported);
    let named = of_model.filter(|_| model.known == Known::Named);
    reported.into_iter().chain(named).min()
}

fn max_tables(model: &Model, attributes: &DeviceAttributes) -> Option<u32> {
    let tables = limit(model, model.profile.max_tables, attributes.rss_caps.max_tables);
    tables.map(|tables| tables.saturating_sub(OWN_OBJECTS))
}

/// Whether a device reports a feature that only some devices of its model have. What no dependence of the
/// model is about is as the model says, whatever the device reports: an mlx5 reports inner hashes and refuses
/// them.
fn is_reported(model: &DeviceModel, feature: Feature, attributes: &DeviceAttributes) -> bool {
    let fields = match feature {
        Feature::HashSpi => HashFields::IPSEC_SPI,
        Feature::HashInner => HashFields::INNER,
        _ => return false,
    };
    model.dependence(feature).is_some() && attributes.rss_caps.fields.contains(fields)
}

fn profile_of(name: &str, model: &Model, attributes: &DeviceAttributes, workers: usize) -> DeviceModel {
    // The workers' queue pairs for sending and the controller's own are counted among them.
    let others = u32::try_from(workers).unwrap_or(u32::MAX).saturating_add(OWN_OBJECTS);
    let of_model = &model.profile;
    let max_table = limit(model, Some(of_model.max_table), attributes.rss_caps.max_table_size);
    let max_queues = limit(model, of_model.max_queues, attributes.max_qp);
    let refused = |row: &&RefusalRow| !is_reported(of_model, row.feature, attributes);
    DeviceModel {
        refusals: of_model.refusals.iter().filter(refused).cloned().collect(),
        name: format!("{name} ({})", of_model.name),
        max_table: max_table.unwrap_or(1).clamp(1, DeviceModel::ideal().max_table),
        max_tables: max_tables(model, attributes),
        max_receives: limit(model, of_model.max_receives, attributes.max_qp_wr),
        max_queues: max_queues.map(|queues| queues.saturating_sub(others)),
        ..of_model.clone()
    }
}

/// The limits that a controller checks before it changes a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The name of the device.
    pub device: String,
    /// Flow priorities of the device, of which a program leaves one free.
    pub priorities: u32,
    /// How the device keeps the flows of one priority, if that limits them.
    pub priority_table: Option<PriorityTable>,
    /// Flows that match only multicast are applied after all others, whatever their priority.
    pub multicast_ignores_priority: bool,
    /// Indirection tables of one program, if the device reports a limit: half of those of the device, because
    /// a reload has two programs there.
    pub tables: Option<usize>,
    /// Counters can be read while they have no flow.
    pub reads_idle_counters: bool,
    /// A change that installs more flows than this removes old ones before all new ones are there, so that it
    /// needs little room. If more of the old ones than this have no new one of their match, wider ones are
    /// looked for, which takes time.
    pub spare_flows: usize,
}

const SPARE_FLOWS: usize = 64;

impl Limits {
    /// The limits of a device that is like this model, for plans without one.
    #[must_use]
    pub fn of_model(model: &DeviceModel) -> Self {
        Self {
            device: model.name.clone(),
            reads_idle_counters: model.emulation.reads_idle_counters,
            priorities: model.priorities,
            priority_table: model.flow_table(),
            multicast_ignores_priority: model.multicast_ignores_priority,
            tables: model.max_tables.map(|tables| (tables / 2) as usize),
            spare_flows: SPARE_FLOWS,
        }
    }

    /// The priorities of one program.
    pub(crate) fn priorities_per_program(&self) -> u32 {
        self.priorities.saturating_sub(1)
    }

    /// The device's last priority.
    pub(crate) fn last_level(&self) -> u16 {
        u16::try_from(self.priorities_per_program()).unwrap_or(u16::MAX)
    }
}

fn limits_of(name: &str, model: &Model, attributes: &DeviceAttributes) -> Limits {
    Limits {
        device: name.to_owned(),
        tables: max_tables(model, attributes).map(|tables| (tables / 2) as usize),
        ..Limits::of_model(&model.profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        let error = choose(&DeviceSelector::named("mlx5_9"), names(&["mlx5_0", "mlx5_1"]))
            .expect_err("no such device");
        assert_eq!(error.to_string(), "no device called `mlx5_9`; there is mlx5_0, mlx5_1");
    }

    #[test]
    fn without_a_name_only_a_single_device_will_do() {
        let any = DeviceSelector::default();
        assert_eq!(choose(&any, names(&["a"])).expect("the only one"), "a");
        assert!(matches!(choose(&any, names(&["a", "b"])), Err(ControlError::SeveralDevices { .. })));
        assert!(matches!(choose(&any, names(&[])), Err(ControlError::NoDevices)));
        assert!(matches!(choose(&DeviceSelector::named("a"), names(&[])), Err(ControlError::NoDevices)));
    }

    fn attributes() -> DeviceAttributes {
        let rss_caps = verbs::RssCaps { max_tables: 9, max_table_size: 512, ..verbs::RssCaps::default() };
        DeviceAttributes { max_qp: 100, rss_caps, ..DeviceAttributes::default() }
    }

    /// A model that is known by the driver.
    fn driven(profile: DeviceModel) -> Model {
        Model { profile, known: Known::Driver("driver".to_owned()) }
    }

    #[test]
    fn a_named_model_can_only_narrow_what_the_device_reports() {
        let attributes = DeviceAttributes { max_qp_wr: 1000, ..attributes() };
        let limits = |profile: &DeviceModel| {
            (profile.max_table, profile.max_tables, profile.max_queues, profile.max_receives)
        };
        let model = |max_table, most| DeviceModel {
            max_table,
            max_tables: Some(most),
            max_queues: Some(most),
            max_receives: Some(most),
            ..DeviceModel::mlx5()
        };
        let reported = (512, Some(8), Some(98), Some(1000));
        for (model, expected) in [
            (Model::named(model(64, 5)), (64, Some(4), Some(3), Some(5))),
            (Model::named(model(4096, 5000)), reported),
            (driven(model(64, 5)), reported),
        ] {
            assert_eq!(limits(&profile_of("nic0", &model, &attributes, 1)), expected);
        }
        assert_eq!(limits_of("nic0", &Model::named(model(64, 5)), &attributes).tables, Some(2));
        let silent = profile_of("nic0", &Model::named(model(64, 5)), &DeviceAttributes::default(), 1);
        assert_eq!(limits(&silent), (64, Some(4), Some(3), Some(5)), "what the device does not report");
    }

    #[test]
    fn hash_fields_of_some_devices_count_where_they_are_reported() {
        let refused = |model: DeviceModel, fields: HashFields| {
            let rss_caps = verbs::RssCaps { fields, ..verbs::RssCaps::default() };
            let attributes = DeviceAttributes { rss_caps, ..attributes() };
            let profile = profile_of("nic0", &driven(model), &attributes, 1);
            [Feature::HashSpi, Feature::HashInner].map(|feature| !profile.allows(feature))
        };
        let both = HashFields::IPSEC_SPI | HashFields::INNER;
        assert_eq!(refused(DeviceModel::mlx5(), HashFields::empty()), [true, true]);
        assert_eq!(
            refused(DeviceModel::mlx5(), both),
            [false, true],
            "inner needs a flag that verbs cannot set"
        );
        assert_eq!(refused(DeviceModel::mlx4(), HashFields::empty()), [true, true]);
        assert_eq!(refused(DeviceModel::mlx4(), both), [true, false], "a ConnectX-3 Pro");
    }

    #[test]
    fn queue_pairs_are_those_that_workers_and_the_controller_leave() {
        let ideal = &driven(DeviceModel::ideal());
        assert_eq!(profile_of("nic0", ideal, &attributes(), 3).max_queues, Some(96));
        assert_eq!(profile_of("nic0", ideal, &attributes(), 1000).max_queues, Some(0));
        let silent = DeviceAttributes { max_qp: 0, ..attributes() };
        assert_eq!(profile_of("nic0", ideal, &silent, 3).max_queues, None);
    }

    #[test]
    fn a_program_has_half_the_tables_that_the_controller_leaves() {
        let ideal = &driven(DeviceModel::ideal());
        assert_eq!(limits_of("nic0", ideal, &attributes()).tables, Some(4));
        assert_eq!(limits_of("nic0", ideal, &DeviceAttributes::default()).tables, None);
    }

    #[test]
    fn the_model_gives_what_a_device_does_not_report() {
        let limits = |model| limits_of("nic0", &driven(model), &attributes());
        let (mlx5, mlx4) = (limits(DeviceModel::mlx5()), limits(DeviceModel::mlx4()));
        assert_eq!((mlx5.priorities, mlx4.priorities), (16, 0x1000));
        assert!(!mlx5.reads_idle_counters && limits(DeviceModel::ideal()).reads_idle_counters);
        let profile = profile_of("nic0", &driven(DeviceModel::mlx4()), &attributes(), 1);
        assert!(!profile.hash_field_exclusive);
        assert_eq!(profile.max_table, 512, "the device's own answer goes before the model's");
        assert_eq!(profile_of("nic0", &driven(DeviceModel::mlx5()), &attributes(), 1).name, "nic0 (mlx5)");
    }
}
