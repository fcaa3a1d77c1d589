//! An example frame for a finding about a policy. The compiler and the analysis build it; reports print it
//! with its header fields.

use std::fmt;

use packet::DeepKey;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::packet_text::short_packet_with_macs;

/// An example packet for a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The frame, without its check sequence.
    pub frame: Vec<u8>,
}

impl Witness {
    /// The parsed headers of the packet.
    #[must_use]
    pub fn key(&self) -> DeepKey {
        DeepKey::of(&self.frame)
    }

    /// The frame in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        self.frame.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An object with the header fields, as `explain --packet` takes them, and the frame in hexadecimal, both
/// strings.
impl Serialize for Witness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut witness = serializer.serialize_struct("Witness", 2)?;
        witness.serialize_field("fields", &self.key().describe())?;
        witness.serialize_field("frame", &self.hex())?;
        witness.end()
    }
}

/// The packet in the short notation, with its MAC addresses if they are unusual.
impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&short_packet_with_macs(&self.key()))
    }
}
