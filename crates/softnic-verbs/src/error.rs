//! What can go wrong while a soft NIC is put below libibverbs. Everything after that is an `errno`, as for
//! any device.

use softnic::SoftNicError;

/// Why a soft NIC cannot be used with libibverbs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The NIC cannot be made.
    #[error(transparent)]
    Nic(#[from] SoftNicError),
    /// libibverbs could not be loaded.
    #[error("libibverbs.so.1 cannot be loaded: {reason} (install rdma-core's libibverbs1)")]
    LibraryMissing {
        /// The message of the dynamic linker.
        reason: String,
    },
    /// libibverbs has no such private symbol.
    #[error("libibverbs has no symbol {symbol}, which a provider needs")]
    LibrarySymbol {
        /// The symbol that was looked up.
        symbol: &'static str,
    },
    /// The library's release is not one whose private layout is known.
    #[error("the private layout of libibverbs {found} is not known (known: releases {oldest} to {newest})")]
    LibraryRelease {
        /// The file the library was loaded from.
        found: String,
        /// The oldest supported release.
        oldest: u32,
        /// The newest supported release.
        newest: u32,
    },
}
