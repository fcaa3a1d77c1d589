//! Tunnels, built and cut.
