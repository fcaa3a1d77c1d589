//! Where frames come from and go to.

/// A port's link to the world.
pub trait Wire: Send {}
