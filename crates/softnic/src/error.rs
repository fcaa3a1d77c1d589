//! What can go wrong while a soft NIC is made. Everything after that is an `errno`, as for any device.

use std::io;

use wire::WireError;

/// Why [`crate::OwnedNic::create`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoftNicError {
    /// The name cannot be an RDMA device name.
    #[error("device name {name:?} must have 1 to {max} characters out of letters, digits, '_' and '-'")]
    DeviceName {
        /// The name that was asked for.
        name: String,
        /// The longest name a device can have.
        max: usize,
    },
    /// No port, or more than a device can have.
    #[error("a soft NIC needs 1 to {max} ports, not {ports}")]
    PortCount {
        /// How many ports were configured.
        ports: usize,
        /// The most ports a device can have.
        max: usize,
    },
    /// No engine thread, or one without a port.
    #[error("a soft NIC with {ports} ports can have 1 to {ports} engine threads, not {threads}")]
    ThreadCount {
        /// How many threads were configured.
        threads: usize,
        /// The ports of the device.
        ports: usize,
    },
    /// The MTU of a port is out of range.
    #[error("port {port}: an MTU of {mtu_bytes} bytes is outside {min}..={max}")]
    Mtu {
        /// The port, counted from 1.
        port: u8,
        /// The MTU that was asked for.
        mtu_bytes: u32,
        /// The smallest allowed MTU.
        min: u32,
        /// The largest allowed MTU.
        max: u32,
    },
    /// The rate of the clock is out of range.
    #[error("a clock of {kilohertz} kHz is outside 1..={max}", max = crate::clock::MAX_KILOHERTZ)]
    Clock {
        /// The rate that was asked for.
        kilohertz: u64,
    },
    /// A variable of the environment makes no sense.
    #[error("{name}={value}: {problem}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// The message.
        value: String,
        /// The problem, with what would make sense.
        problem: String,
    },
    /// The wire of a NIC that was set up by the environment cannot be opened.
    #[error("the wire cannot be opened")]
    Wire {
        /// Why.
        #[source]
        source: WireError,
    },
    /// The eventfd that wakes the engine could not be made.
    #[error("no eventfd for {name}")]
    Wakeup {
        /// The device's name.
        name: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The engine's thread could not be started.
    #[error("the engine thread of {name} cannot be started")]
    EngineThread {
        /// The device's name.
        name: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}
