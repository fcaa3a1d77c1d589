//! Why a plan is not carried out.

use program::DanglingFlow;

/// How a plan breaks the rules. Flows are counted in the order of their program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// The program refers to a part that it does not have.
    #[error(transparent)]
    Dangling(#[from] DanglingFlow),
    /// It gives no level to some flow, or does not say whether it stays.
    #[error("the plan is for {planned} flows, and the program has {flows}")]
    Length {
        /// Flows of the plan.
        planned: usize,
        /// Flows of the program.
        flows: usize,
    },
    /// A level beyond the device's priorities.
    #[error("flow {0} is at priority {1}, which the device does not have")]
    Level(usize, u16),
    /// A flow is said to stay that is not on the device, or is another one there.
    #[error("flow {0} is said to be on the device, and is not")]
    NotThere(usize),
    /// Two flows share packets, and their levels contradict the program.
    #[error("flow {0} must have precedence over flow {1}, which shares packets with it")]
    Precedence(usize, usize),
    /// A flow is installed before one of higher precedence, or not at all before old flows go.
    #[error("new flow {0} is installed too early, twice, too late or never")]
    Installed(usize),
    /// A flow is removed before one of lower precedence, or while new flows that could decide its packets are
    /// missing, or stays.
    #[error("old flow {0} is removed too early, twice, or never")]
    Removed(usize),
    /// A flow of the same match and priority is on the device.
    #[error("new flow {0} has the match and the priority of a flow that is on the device")]
    Clash(usize),
    /// The flows of the new program find no priorities beside those that are on the device.
    #[error(
        "too many flows that overlap in turn change at once: the new ones find no free priorities beside those \
         that are on the device; reload in two steps, or start again"
    )]
    NoLevels,
    /// The device has no room for the flow at its priority.
    #[error(
        "new flow {0} has no room at its priority beside the flows that are on the device; reload in two steps, \
         or start again"
    )]
    NoRoom(usize),
    /// A number means something else in the new program, and some flow that has it is only in one of them.
    #[error("class {0} means something else in the new program, and its flows change")]
    Meaning(u32),
    /// A queue pair that a flow needs is not there.
    #[error("new flow {0} needs a queue pair that is not there")]
    NoQueue(usize),
    /// Workers learn the classes too late, or twice, or not at all.
    #[error("a stage of the workers is missing or out of order")]
    Stage,
}
