//! Finding and opening a device, and its limits as the compiler wants them. Called by `steerd` at
//! start-up; every error is one line with the names that exist or the remedy.

use std::ops::RangeInclusive;
use std::sync::Arc;

use policy::DeviceProfile;
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
    profile: DeviceProfile,
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
        let profile = profile_of(&name, &attributes);
        Ok(Self { context, name, attributes, profile })
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

    /// Its limits as the compiler wants them.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
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
                return Err(Error::NotEthernet { device: device(), port, link_layer: format!("{other:?}") });
            }
        }
        match attributes.state {
            PortState::Active | PortState::ActiveDefer => Ok(()),
            other => {
                let state = format!("{other:?}").to_lowercase();
                Err(Error::PortDown { device: device(), port, state })
            }
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

/// What devices do not tell about themselves, by PCI vendor and part (kernel: mlx5/fs.c, mlx4/main.c).
struct Known {
    name: &'static str,
    vendor_id: u32,
    parts: RangeInclusive<u32>,
    priorities: u32,
    hash_field_exclusive: bool,
}

const KNOWN: &[Known] = &[
    Known {
        name: "mlx5",
        vendor_id: 0x02c9,
        parts: 0x1011..=0x1fff,
        priorities: 16,
        hash_field_exclusive: true,
    },
    Known {
        name: "mlx4",
        vendor_id: 0x02c9,
        parts: 0x1000..=0x1010,
        priorities: 0x1000,
        hash_field_exclusive: false,
    },
];

fn profile_of(name: &str, attributes: &DeviceAttributes) -> DeviceProfile {
    let ideal = DeviceProfile::ideal();
    let known = KNOWN.iter().find(|known| {
        known.vendor_id == attributes.vendor_id && known.parts.contains(&attributes.vendor_part_id)
    });
    let caps = &attributes.rss_caps;
    DeviceProfile {
        name: known.map_or_else(|| name.to_owned(), |known| format!("{name} ({})", known.name)),
        priorities: known.map_or(ideal.priorities, |known| known.priorities),
        hash_field_exclusive: known.map_or(ideal.hash_field_exclusive, |known| known.hash_field_exclusive),
        max_table: caps.max_table_size.min(ideal.max_table).max(1),
        max_queues: (caps.max_tables > 0).then_some(caps.max_tables),
        ..ideal
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
}
