//! What an arena could not get, and what to do about it.

/// Something that was asked for and not given; `Display` names the remedy.
#[derive(Debug)]
pub enum Warning {}

impl std::fmt::Display for Warning {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {}
    }
}
