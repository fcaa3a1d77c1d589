//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod arming;
mod direct;
mod launcher;
mod mlx5;
mod support;
mod uverbs;
