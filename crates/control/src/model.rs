//! Which model a device is: the limits and refusals that it has beside those that it reports itself.
//!
//! A real device is known by its kernel driver, which is the same for a ConnectX, a BlueField, a virtual
//! function and what comes next, while lists of PCI numbers fall behind. A device of a provider in this
//! process is known by what the provider reports. The settings can name the model. An unknown device is
//! [`DeviceModel::conservative`]: with a more capable model it could refuse every reload and ignore fields
//! that it was expected to match.

use std::fmt;
use std::path::Path;

use device_model::DeviceModel;
use verbs::{Provider, SYSFS_DEVICES};

/// A device's model, and how it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The limits and refusals. The device's own answers go before the model's numbers; of a model that the
    /// settings name, the lower one counts.
    pub profile: DeviceModel,
    /// How it is known.
    pub known: Known,
}

/// How a device's model is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Known {
    /// The settings name it.
    Named,
    /// The provider of the device names it.
    Provider,
    /// The model was chosen by the kernel driver.
    Driver(String),
    /// The device is not known: its kernel driver is another one, or it has none.
    Not(Option<String>),
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("named by the settings"),
            Self::Provider => f.write_str("software"),
            Self::Driver(driver) => write!(f, "driver {driver}"),
            Self::Not(Some(driver)) => write!(f, "driver {driver}, which is not known"),
            Self::Not(None) => f.write_str("its driver is not known"),
        }
    }
}

impl Model {
    /// The model that the operator names.
    #[must_use]
    pub fn named(profile: DeviceModel) -> Self {
        Self { profile, known: Known::Named }
    }

    /// The model that a software NIC of this process imitates.
    #[must_use]
    pub fn imitated(profile: DeviceModel) -> Self {
        Self { profile: profile.in_software(), known: Known::Provider }
    }

    /// The model of a device that libibverbs or a provider lists under that name.
    pub(crate) fn of(device: &str, provider: Option<&dyn Provider>) -> Self {
        let provided = provider.and_then(Provider::model).and_then(DeviceModel::by_name);
        match provided {
            Some(profile) => Self::imitated(profile),
            None => Self::by_driver(Path::new(SYSFS_DEVICES), device),
        }
    }

    fn by_driver(sysfs: &Path, device: &str) -> Self {
        let driver = driver_in(sysfs, device);
        match (driver.as_deref().and_then(DeviceModel::by_driver), driver) {
            (Some(profile), Some(driver)) => Self { profile, known: Known::Driver(driver) },
            (_, driver) => Self { profile: DeviceModel::conservative(), known: Known::Not(driver) },
        }
    }

    /// The warning for a device of that name whose model is not known.
    #[must_use]
    pub fn warning(&self, device: &str) -> Option<String> {
        let Known::Not(_) = self.known else { return None };
        let steers = |name: &&str| DeviceModel::by_name(name).is_some_and(|model| model.can_steer());
        let models: Vec<_> =
            DeviceModel::NAMES.into_iter().filter(steers).map(|name| format!("{name:?}")).collect();
        Some(format!(
            "the model of {device} is not known ({}): it is used as far as all known models go, most packets are \
             decided by workers, and nothing is counted or copied by the device (hint: if it is like one of these, name \
             it with device.model: {}; `steerd devices --probe {device}` writes a model of its own)",
            self.known,
            models.join(", ")
        ))
    }
}

/// The kernel driver of an RDMA device, whatever its model; `None`: it has none.
#[must_use]
pub fn kernel_driver(device: &str) -> Option<String> {
    driver_in(Path::new(SYSFS_DEVICES), device)
}

fn driver_in(sysfs: &Path, device: &str) -> Option<String> {
    let link = std::fs::read_link(sysfs.join(device).join("device/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs in which `device` has that driver.
    fn model(driver: Option<&str>) -> Model {
        let sysfs = tempfile::tempdir().expect("folder");
        let folder = sysfs.path().join("rdma0/device");
        std::fs::create_dir_all(&folder).expect("made");
        if let Some(driver) = driver {
            let target = format!("../../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(target, folder.join("driver")).expect("linked");
        }
        Model::by_driver(sysfs.path(), "rdma0")
    }

    #[test]
    fn a_real_device_is_known_by_its_driver_whatever_its_numbers() {
        for (driver, name) in [
            ("mlx5_core", "mlx5"),
            ("mlx5_core.sf", "mlx5"),
            ("mlx4_core", "mlx4"),
            ("mana", "mana"),
            ("bnxt_en", "bnxt_re"),
        ] {
            let model = model(Some(driver));
            assert_eq!(model.profile.name, name);
            assert_eq!(model.known, Known::Driver(driver.to_owned()));
            assert_eq!(model.warning("rdma0"), None);
        }
    }

    #[test]
    fn an_unknown_device_is_never_taken_for_ideal() {
        for driver in [None, Some("irdma"), Some("mlx5_corex")] {
            let model = model(driver);
            assert_eq!(model.profile, DeviceModel::conservative());
            assert_eq!(model.known, Known::Not(driver.map(str::to_owned)));
            let warning = model.warning("rdma0").expect("it is not known");
            assert!(warning.starts_with("the model of rdma0 is not known"), "{warning}");
            assert!(
                warning.contains("device.model: \"ideal\", \"mlx5\", \"mlx4\", \"conservative\""),
                "{warning}"
            );
            assert!(warning.contains("`steerd devices --probe rdma0`"), "{warning}");
        }
        assert_eq!(Model::by_driver(Path::new("/nowhere"), "rdma0").known, Known::Not(None));
    }
}
