//! Shared fixtures of the benches.
