//! Finding and opening a device, and its limits as the compiler wants them. Called by `steerd` at
//! start-up; every error is one line with the names that exist or the remedy.

use std::ops::RangeInclusive;
use std::sync::Arc;

use device_model::DeviceProfile;
use verbs::{Context, DeviceAttributes, DeviceList, LinkLayer, PortNumber, PortState, Provider};

use crate::Error;

/// Which device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSelector {
    /// Its name; `None` means the only one there is.
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
    /// Its name.
    pub name: String,
    /// Its GUID; 0 where it has none.
    pub guid: u64,
}

/// An opened device.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
    name: String,
    attributes: DeviceAttributes,
    /// The profile of devices like it; `None`: it is taken for able.
    kind: Option<DeviceProfile>,
}

impl Device {
    /// What there is, on the system or from a provider.
    ///
    /// # Errors
    /// The list cannot be had.
    pub fn list(provider: Option<&dyn Provider>) -> Result<Vec<DeviceSummary>, Error> {
        let list = device_list(provider)?;
        let summaries =
            list.iter().map(|device| DeviceSummary { name: device.name().to_owned(), guid: device.guid().0 });
        Ok(summaries.collect())
    }

    /// Opens a device and asks it for its limits.
    ///
    /// # Errors
    /// No such device (with the names that exist), no permission, or a device that cannot steer.
    pub fn open(selector: &DeviceSelector, provider: Option<&dyn Provider>) -> Result<Self, Error> {
        let list = device_list(provider)?;
        let mut available: Vec<String> = list.iter().map(|device| device.name().to_owned()).collect();
        available.sort();
        let name = choose(selector, available)?;
        let device = list
            .find(&name)
            .ok_or_else(|| Error::NoSuchDevice { name: name.clone(), available: Vec::new() })?;
        let context =
            device.open().map_err(|source| Error::Open { device: name.clone(), source: source.into() })?;
        Self::of(context)
    }

    /// Over a context that is open already.
    ///
    /// # Errors
    /// It does not tell its limits, or cannot steer.
    pub fn of(context: Arc<Context>) -> Result<Self, Error> {
        let name = context.name().to_owned();
        let attributes = context.attributes().map_err(|source| Error::Query {
            device: name.clone(),
            what: "limits".to_owned(),
            source: source.into(),
        })?;
        if !attributes.rss_caps.raw_packet || !attributes.rss_caps.toeplitz {
            return Err(Error::NoRss { device: name });
        }
        let kind = known(&attributes);
        Ok(Self { context, name, attributes, kind })
    }

    /// The same device, one in software, taken for the kind that it plays (a name of [`DeviceProfile::NAMES`]): it
    /// does not tell by its ids whose limits it has beside its own.
    #[must_use]
    pub fn taken_for(self, kind: &str) -> Self {
        Self { kind: DeviceProfile::by_name(kind).map(DeviceProfile::in_software), ..self }
    }

    /// The libibverbs context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All that it tells of itself.
    #[must_use]
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Its limits as the compiler wants them, beside so many workers, each of which has a queue pair.
    #[must_use]
    pub fn profile(&self, workers: usize) -> DeviceProfile {
        profile_of(&self.name, self.kind.clone(), &self.attributes, workers)
    }

    /// Its limits as a controller wants them.
    #[must_use]
    pub fn limits(&self) -> Limits {
        limits_of(&self.name, self.kind.clone(), &self.attributes)
    }

    /// Whether packets can be steered on that port now.
    ///
    /// # Errors
    /// No such port, not Ethernet, or no link.
    pub fn check_port(&self, port: u8) -> Result<(), Error> {
        let device = || self.name.clone();
        let ports = self.attributes.physical_ports;
        if port == 0 || u32::from(port) > ports {
            return Err(Error::NoSuchPort { device: device(), port, ports });
        }
        let attributes = self.context.port(PortNumber(port)).map_err(|source| Error::Query {
            device: device(),
            what: format!("port {port}"),
            source: source.into(),
        })?;
        match attributes.link_layer {
            LinkLayer::Ethernet => {}
            other => {
                return Err(Error::NotEthernet { device: device(), port, link_layer: other.to_string() });
            }
        }
        match attributes.state {
            PortState::Active | PortState::ActiveDefer => Ok(()),
            other => Err(Error::PortDown { device: device(), port, state: other.to_string() }),
        }
    }
}

fn device_list(provider: Option<&dyn Provider>) -> Result<DeviceList, Error> {
    provider
        .map_or_else(DeviceList::system, DeviceList::of)
        .map_err(|source| Error::List { source: source.into() })
}

fn choose(selector: &DeviceSelector, mut available: Vec<String>) -> Result<String, Error> {
    match &selector.name {
        _ if available.is_empty() => Err(Error::NoDevices),
        Some(name) if available.contains(name) => Ok(name.clone()),
        Some(name) => Err(Error::NoSuchDevice { name: name.clone(), available }),
        None if available.len() == 1 => Ok(available.remove(0)),
        None => Err(Error::SeveralDevices { available }),
    }
}

/// What devices do not tell about themselves, by PCI vendor and part: the profile to begin with.
struct Known {
    name: &'static str,
    vendor_id: u32,
    parts: RangeInclusive<u32>,
}

const KNOWN: &[Known] = &[
    Known { name: "mlx5", vendor_id: 0x02c9, parts: 0x1011..=0x1fff },
    Known { name: "mlx4", vendor_id: 0x02c9, parts: 0x1000..=0x1010 },
];

/// The profile of devices like this one; what is not known is taken for able.
fn known(attributes: &DeviceAttributes) -> Option<DeviceProfile> {
    let known = KNOWN.iter().find(|known| {
        known.vendor_id == attributes.vendor_id && known.parts.contains(&attributes.vendor_part_id)
    })?;
    DeviceProfile::by_name(known.name)
}

/// The controller's own queue pair and table, on which flows that drop hang.
const ANCHORS: u32 = 1;

fn profile_of(
    name: &str,
    known: Option<DeviceProfile>,
    attributes: &DeviceAttributes,
    workers: usize,
) -> DeviceProfile {
    let kind = known.as_ref().map(|known| known.name.clone());
    let known = known.unwrap_or_else(DeviceProfile::ideal);
    // Workers' queue pairs for sending, and the anchor, come out of the same number.
    let others = u32::try_from(workers).unwrap_or(u32::MAX).saturating_add(ANCHORS);
    let ideal_table = DeviceProfile::ideal().max_table;
    let rss = &attributes.rss_caps;
    DeviceProfile {
        name: kind.map_or_else(|| name.to_owned(), |kind| format!("{name} ({kind})")),
        max_table: rss.max_table_size.min(ideal_table).max(1),
        max_tables: (rss.max_tables > 0).then(|| rss.max_tables.saturating_sub(ANCHORS)),
        max_receives: (attributes.max_qp_wr > 0).then_some(attributes.max_qp_wr),
        max_queues: (attributes.max_qp > 0).then(|| attributes.max_qp.saturating_sub(others)),
        ..known
    }
}

/// What a controller checks before it touches a device. Half of everything is one program's: a reload
/// needs both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What the device is called.
    pub device: String,
    /// Flow priorities of one program.
    pub priorities: u32,
    /// Indirection tables of one program, if the device says.
    pub tables: Option<usize>,
    /// Flows that match multicast only come after all others, whatever their priority.
    pub multicast_ignores_priority: bool,
}

fn limits_of(name: &str, known: Option<DeviceProfile>, attributes: &DeviceAttributes) -> Limits {
    let tables = attributes.rss_caps.max_tables;
    Limits {
        device: name.to_owned(),
        multicast_ignores_priority: known.as_ref().is_some_and(|known| known.multicast_ignores_priority),
        priorities: profile_of(name, known, attributes, 0).priorities_per_program(),
        tables: (tables > 0).then(|| (tables.saturating_sub(ANCHORS) / 2) as usize),
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
        assert!(matches!(choose(&any, names(&["a", "b"])), Err(Error::SeveralDevices { .. })));
        assert!(matches!(choose(&any, names(&[])), Err(Error::NoDevices)));
        assert!(matches!(choose(&DeviceSelector::named("a"), names(&[])), Err(Error::NoDevices)));
    }

    fn attributes() -> DeviceAttributes {
        let rss_caps = verbs::RssCaps { max_tables: 9, max_table_size: 512, ..verbs::RssCaps::default() };
        DeviceAttributes { max_qp: 100, rss_caps, ..DeviceAttributes::default() }
    }

    #[test]
    fn queue_pairs_are_those_that_workers_and_the_controller_leave() {
        assert_eq!(profile_of("nic0", None, &attributes(), 3).max_queues, Some(96));
        assert_eq!(profile_of("nic0", None, &attributes(), 1000).max_queues, Some(0));
        let silent = DeviceAttributes { max_qp: 0, ..attributes() };
        assert_eq!(profile_of("nic0", None, &silent, 3).max_queues, None);
    }

    #[test]
    fn a_program_has_half_the_tables_that_the_controller_leaves() {
        assert_eq!(limits_of("nic0", None, &attributes()).tables, Some(4));
        assert_eq!(limits_of("nic0", None, &DeviceAttributes::default()).tables, None);
    }

    #[test]
    fn what_devices_do_not_tell_is_known_by_their_ids() {
        let device = |vendor_part_id| DeviceAttributes { vendor_id: 0x02c9, vendor_part_id, ..attributes() };
        let (connect_x5, connect_x3) = (device(0x1017), device(0x1003));
        let limits = |attributes: &DeviceAttributes| limits_of("nic0", known(attributes), attributes);
        assert_eq!((limits(&connect_x5).priorities, limits(&connect_x3).priorities), (8, 0x800));
        assert!(limits(&connect_x5).multicast_ignores_priority);
        assert!(!limits(&connect_x3).multicast_ignores_priority);
        assert!(!profile_of("nic0", known(&connect_x3), &connect_x3, 1).hash_field_exclusive);
        assert_eq!(profile_of("nic0", known(&connect_x5), &connect_x5, 1).name, "nic0 (mlx5)");
    }
}
