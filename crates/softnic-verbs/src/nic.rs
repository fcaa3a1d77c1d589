//! The soft NIC as libibverbs has it.

use std::ops::Deref;

use softnic::clock::check_rate;
use softnic::{OwnedNic, SoftNicConfig};

use crate::ProviderError;
use crate::library::Library;

/// A software NIC whose device the stock `ibv_open_device(3)` opens. Dropping it stops the engines; open
/// contexts stay valid and see no more traffic.
pub struct SoftNic(OwnedNic);

impl Deref for SoftNic {
    type Target = OwnedNic;

    fn deref(&self) -> &OwnedNic {
        &self.0
    }
}

impl SoftNic {
    /// Checks that the device can be made, and makes none.
    ///
    /// # Errors
    /// The errors of [`SoftNic::create`].
    pub fn check(config: &SoftNicConfig) -> Result<(), ProviderError> {
        config.check()?;
        Library::load()?;
        Ok(())
    }

    /// Makes the device and starts its engine threads, if it is to have some.
    ///
    /// # Errors
    /// A configuration out of range, or a libibverbs whose private layout is not known.
    pub fn create(config: SoftNicConfig) -> Result<Self, ProviderError> {
        Self::check(&config)?;
        Ok(Self(OwnedNic::create(config)?))
    }

    /// Makes a soft NIC with another clock: see [`OwnedNic::create_with_clock`].
    ///
    /// # Errors
    /// The errors of [`SoftNic::create`], and for a rate of 0 or above 1 GHz.
    pub fn create_with_clock(config: SoftNicConfig, kilohertz: u64) -> Result<Self, ProviderError> {
        check_rate(kilohertz)?;
        config.check()?;
        Library::load()?;
        Ok(Self(OwnedNic::create_with_clock(config, kilohertz)?))
    }
}
