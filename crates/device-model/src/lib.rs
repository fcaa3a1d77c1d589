//! What a device can do, as data: limits, the layout of flow tables, and refusals, each with its errno and a
//! source where that can be read. The built-in models are `ideal`, `mlx5`, `mlx4`, `mana` and `bnxt_re`
//! (files in `models/`), and `conservative`, which is the intersection of `mlx5` and `mlx4`. A file can
//! describe another device.
//!
//! The compiler reads a [`DeviceModel`] and does not depend on the vendor, `control` completes one with the
//! answers of the device, and the software NIC imitates one.
//!
//! ```
//! use device_model::{DeviceModel, Limit};
//! use program::{Errno, Feature};
//!
//! let device = DeviceModel::named_or_file("mlx4").expect("a built-in model");
//! assert!(!device.allows(Feature::Ipv6));
//! assert_eq!(device.errno(Limit::Priorities), Errno::Einval);
//! // A program leaves a priority free, for flows that a reload changes.
//! assert_eq!(device.priorities_per_program(), device.priorities - 1);
//! ```
#![forbid(unsafe_code)]

mod model;
mod table_fill;

pub use model::{
    BaseModel, Dependence, DeviceModel, Emulation, Limit, LimitRow, LoadError, Origin, PriorityTable,
    RefusalRow,
};
pub use program::{Errno, Feature};
pub use table_fill::TableFill;

/// The capacity of the software NIC, whatever device it imitates.
pub mod software {
    /// The most flows of all its ports.
    pub const MAX_FLOWS: u32 = 1 << 18;
    /// The most different masks among the flows of one port.
    pub const MAX_MASKS: u32 = 4096;
    /// The most flows of one port that copy (DONT_TRAP). Each frame of the port is compared with each of
    /// them.
    pub const MAX_COPIES: u32 = 1024;
    /// The most packets that one receive queue holds.
    pub const MAX_RECEIVES: u32 = 1 << 16;
}
