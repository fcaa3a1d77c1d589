//! The JSON Schema of the language.
pub(crate) mod keys;
