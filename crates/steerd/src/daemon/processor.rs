//! Whether PCI writes of the NIC may be reordered on this host's processor.
//!
//! DPDK registers memory with relaxed ordering except on Intel's Haswell and Broadwell, which gain nothing by
//! it (drivers/common/mlx5/mlx5_common.c, `mlx5_is_haswell_broadwell_cpu`, which has the model numbers).

use std::path::Path;

use crate::settings::RelaxedOrdering;

/// The processor family of all Intel models that are listed here.
const INTEL_FAMILY: u32 = 6;
const HASWELL: [u32; 4] = [0x3c, 0x3f, 0x45, 0x46];
const BROADWELL: [u32; 4] = [0x3d, 0x47, 0x4f, 0x56];

impl RelaxedOrdering {
    /// Whether frames are registered with relaxed ordering on this host.
    pub(crate) fn is_on(self) -> bool {
        self.is_on_with(|| std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default())
    }

    /// `cpuinfo`: the text of /proc/cpuinfo (proc(5)).
    fn is_on_with(self, cpuinfo: impl FnOnce() -> String) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => !is_haswell_or_broadwell(&cpuinfo()),
        }
    }
}

/// Whether the first processor of /proc/cpuinfo is one of these.
fn is_haswell_or_broadwell(cpuinfo: &str) -> bool {
    let value = |key: &str| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines
            .map(|(name, value)| (name.trim(), value.trim()))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    };
    let number = |key: &str| value(key).and_then(|value| value.parse::<u32>().ok());
    let is_listed = |model: u32| HASWELL.contains(&model) || BROADWELL.contains(&model);
    value("vendor_id") == Some("GenuineIntel")
        && number("cpu family") == Some(INTEL_FAMILY)
        && number("model").is_some_and(is_listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpuinfo(vendor: &str, family: u32, model: u32) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n\n\
             processor\t: 1\nvendor_id\t: {vendor}\n"
        )
    }

    #[test]
    fn auto_is_on_but_for_haswell_and_broadwell() {
        let auto = |text: String| RelaxedOrdering::Auto.is_on_with(|| text);
        assert!(!auto(cpuinfo("GenuineIntel", 6, 63)), "Haswell-EP");
        assert!(!auto(cpuinfo("GenuineIntel", 6, 79)), "Broadwell-EP");
        assert!(auto(cpuinfo("GenuineIntel", 6, 85)), "Skylake-SP");
        assert!(auto(cpuinfo("GenuineIntel", 15, 63)), "another family");
        assert!(auto(cpuinfo("AuthenticAMD", 6, 63)));
        assert!(auto("processor\t: 0\nCPU implementer\t: 0x41\n".into()), "ARM");
        assert!(auto(String::new()), "no such file");
    }

    #[test]
    fn the_setting_goes_before_the_processor() {
        let haswell = || cpuinfo("GenuineIntel", 6, 63);
        assert!(RelaxedOrdering::On.is_on_with(haswell));
        assert!(!RelaxedOrdering::Off.is_on_with(String::new));
    }
}
