//! What a device can do, as data: limits, how it stores flows, what it refuses, each with the errno that it answers
//! and the place where that can be read. The models that are known are `ideal`, `mlx5` and `mlx4`.
//!
//! The software NIC takes the numbers of [`ideal`], [`mlx5`] and [`mlx4`] from here too.
//! The compiler reads a [`DeviceProfile`] and never asks which vendor made the device; `control` completes one with
//! a device's own answers. No I/O.
//!
//! ```
//! use device_model::{DeviceProfile, Limit};
//! use program::{Errno, Feature};
//!
//! let device = DeviceProfile::by_name("mlx4").expect("a known model");
//! assert!(!device.allows(Feature::Ipv6));
//! assert_eq!(device.errno(Limit::Priorities), Errno::Einval);
//! // A program takes half of the priorities: the next one is installed beside it.
//! assert_eq!(device.priorities_per_program(), device.priorities / 2);
//! ```
#![forbid(unsafe_code)]

mod limits;
mod profile;

pub use limits::{ideal, mlx4, mlx5};
pub use profile::{Dependence, DeviceProfile, Limit, LimitRow, PriorityTable, Refusal};
