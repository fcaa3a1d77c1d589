//! The passes that write the program: `assemble` makes its flows, queues and classes, and `separate` takes
//! apart what cannot be on the device beside the program that is replaced.

pub(crate) mod assemble;
pub(crate) mod reasons;
pub(crate) mod separate;
