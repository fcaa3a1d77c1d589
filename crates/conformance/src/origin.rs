//! What a device is, as the documentation of its model: driver, firmware, library, day.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use device_model::{DeviceModel, Origin};
use softnic::Personality;
use verbs::{Context, RawPacketCaps};

/// Seconds of a day.
const DAY: u64 = 86_400;

/// The kernel driver of a device of that name; `None` for one that the kernel does not know. `sysfs`:
/// [`verbs::SYSFS_DEVICES`], or the tree of a test.
pub fn driver(sysfs: &Path, device: &str) -> Option<String> {
    let link = std::fs::read_link(sysfs.join(device).join("device/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// The personality whose answers are expected of a device, by its kernel driver: udev renames devices, so the
/// name shows nothing. `None`: a driver without expectations, or a device that the kernel does not know.
pub fn kind(sysfs: &Path, device: &str) -> Option<Personality> {
    let model = DeviceModel::by_driver(&driver(sysfs, device)?)?;
    [Personality::Mlx5, Personality::Mlx4].into_iter().find(|kind| kind.name() == model.name)
}

/// Returns the origin of a model: an open device with that driver.
///
/// # Errors
/// It cannot be queried.
pub fn origin(context: &Context, driver: &str) -> verbs::Result<Origin> {
    let attributes = context.attributes()?;
    let mut capabilities: Vec<String> = [
        ("RAW_PACKET_CAP_CVLAN_STRIPPING", RawPacketCaps::CVLAN_STRIPPING),
        ("RAW_PACKET_CAP_SCATTER_FCS", RawPacketCaps::SCATTER_FCS),
        ("RAW_PACKET_CAP_IP_CSUM", RawPacketCaps::IP_CSUM),
        ("RAW_PACKET_CAP_DELAY_DROP", RawPacketCaps::DELAY_DROP),
    ]
    .into_iter()
    .filter(|(_, cap)| attributes.raw_packet_caps.contains(*cap))
    .map(|(name, _)| name.to_owned())
    .collect();
    capabilities.push(format!("rx_hash_fields_mask={:#x}", attributes.rss_caps.fields.bits()));
    capabilities.push(format!("completion_timestamp_mask={:#x}", attributes.completion_timestamp_mask));
    if attributes.tso_caps.raw_packet {
        capabilities.push(format!("max_tso={}", attributes.tso_caps.max_bytes));
    }
    Ok(Origin {
        name: context.name().to_owned(),
        driver: driver.to_owned(),
        firmware: attributes.fw_ver,
        libibverbs: library().unwrap_or_default(),
        date: today(),
        capabilities,
        masks_refused: Vec::new(),
    })
}

/// The name of the library's file, whose end is the release (libibverbs.so.1.14.50.0 is of rdma-core 50.0).
fn library() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.split_whitespace().find(|word| word.contains("/libibverbs.so"))?;
    let path = Path::new(path).canonicalize().ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Today as "2026-01-31", in UTC.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / DAY)
}

/// The date of a day since 1970. Years are counted from March, so that the day of a leap year is the last of
/// its year, and in eras of 400 years, which have 146,097 days each.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{:04}-{month:02}-{of_month:02}", era * 400 + year + u64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_device_is_that_of_its_driver_whatever_its_name() {
        let sysfs = tempfile::tempdir().expect("a folder");
        for (device, driver) in [
            ("rocep193s0f0", Some("mlx5_core")),
            ("rocep7s0", Some("mlx5_core.sf")),
            ("ibp1s0", Some("mlx4_core")),
            ("mlx5_0", Some("bnxt_en")),
            ("mlx5_1", None),
        ] {
            let folder = sysfs.path().join(device).join("device");
            std::fs::create_dir_all(&folder).expect("made");
            if let Some(driver) = driver {
                let target = format!("../../../../bus/pci/drivers/{driver}");
                std::os::unix::fs::symlink(target, folder.join("driver")).expect("linked");
            }
        }
        let kind = |device| kind(sysfs.path(), device);
        assert_eq!(kind("rocep193s0f0"), Some(Personality::Mlx5));
        assert_eq!(kind("rocep7s0"), Some(Personality::Mlx5));
        assert_eq!(kind("ibp1s0"), Some(Personality::Mlx4));
        assert_eq!(kind("mlx5_0"), None, "another driver");
        assert_eq!(kind("mlx5_1"), None, "no driver");
        assert_eq!(kind("mlx5_2"), None, "not in sysfs, as a software NIC");
    }

    #[test]
    fn days_have_their_dates() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_453, "2025-12-31"),
            (20_780, "2026-11-23"),
        ] {
            assert_eq!(date(days), expected);
        }
    }
}
