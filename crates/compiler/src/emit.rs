//! The passes that write the program: `assemble` makes its flows, queues and classes (`classes`), and
//! `separate` takes apart what cannot be on the device beside the program that is replaced. `runtime` has
//! what a policy allows of rules at run time.

pub(crate) mod assemble;
mod classes;
pub(crate) mod reasons;
mod runtime;
pub(crate) mod separate;
