//! The front end of the software NIC that is a libibverbs provider, wholly in this process.
//!
//! [`SoftNic`] hands the stock library an `ibv_device` without sysfs, as mlx5 does in VFIO mode, and from there
//! every verb runs through the library into this crate: `device` and `library` are the private side of the
//! library, with the layouts of `abi`; `provider` has the verbs. What they make is in the NIC of the crate
//! `softnic`. [`preload`] is the provider in programs that know nothing of it.
//!
//! It never changes the library it sits under.

mod abi;
mod acknowledgements;
mod device;
mod error;
mod library;
mod nic;
pub mod preload;
mod provider;
mod soft_context;

pub use error::ProviderError;
pub use nic::SoftNic;
