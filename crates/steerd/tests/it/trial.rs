//! The trial of random policies: policies and packets are drawn, a reference matcher decides each packet, and
//! a soft NIC with workers receives or sends it.

pub(crate) mod case;
pub(crate) mod draw;
mod ends;
pub(crate) mod reference;
pub(crate) mod rig;
mod sender;
