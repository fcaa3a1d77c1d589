//! Commands, as a client's bytes.

use super::*;
