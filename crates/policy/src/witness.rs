//! A frame that shows a claim about a policy, with its fields in the language's words. The compiler and the analysis
//! build the frames; reports print them.

use std::fmt;

use packet::{DeepKey, EtherType, FlowKey, IpProtocol, Layers, TunnelLayers};
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// A packet that shows what is claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The frame, without its check sequence.
    pub frame: Vec<u8>,
}

impl Witness {
    /// What is in its headers.
    #[must_use]
    pub fn key(&self) -> DeepKey {
        DeepKey::of(&self.frame)
    }

    /// The fields in the language's words.
    #[must_use]
    pub fn fields(&self) -> String {
        Fields(&self.key()).to_string()
    }

    /// The frame in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        self.frame.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// As the line of fields and the frame in hexadecimal.
impl Serialize for Witness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut witness = serializer.serialize_struct("Witness", 2)?;
        witness.serialize_field("fields", &Fields(&self.key()).to_string())?;
        witness.serialize_field("frame", &self.hex())?;
        witness.end()
    }
}

/// The fields as the language names them, then the bytes.
impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key();
        write!(f, "{}", Fields(&key))?;
        write!(f, " [{}]", self.hex())
    }
}

struct Fields<'k>(&'k DeepKey);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&packet_fields(&self.0.outer, true).join(", "))?;
        let tunnel = &self.0.tunnel;
        let has = |layer| tunnel.layers.contains(layer);
        if has(TunnelLayers::ESP) {
            write!(f, ", esp_spi = {}, esp_seq = {}", tunnel.esp_spi, tunnel.esp_seq)?;
        }
        if has(TunnelLayers::VXLAN) {
            write!(f, ", vxlan_vni = {}", tunnel.vxlan_vni)?;
        }
        if has(TunnelLayers::GRE) {
            let (flags, protocol) = (tunnel.gre_flags >> 8, EtherType(tunnel.gre_protocol));
            write!(f, ", gre_protocol = {protocol}, gre_flags = {flags:#04x}")?;
        }
        if has(TunnelLayers::GRE_KEY) {
            write!(f, ", gre_key = {}", tunnel.gre_key)?;
        }
        if has(TunnelLayers::MPLS) {
            let depth = usize::from(tunnel.mpls_depth).min(tunnel.mpls.len());
            let labels: Vec<String> =
                tunnel.mpls[..depth].iter().map(|entry| (entry >> 12).to_string()).collect();
            write!(f, ", mpls labels {}", labels.join(" "))?;
        }
        if has(TunnelLayers::INNER) {
            let fields = packet_fields(&tunnel.inner, has(TunnelLayers::INNER_ETHERNET));
            write!(f, ", inner {{ {} }}", fields.join(", "))?;
        }
        Ok(())
    }
}

fn packet_fields(key: &FlowKey, has_ethernet: bool) -> Vec<String> {
    let has = |layer| key.layers.contains(layer);
    let mut fields = Vec::new();
    if has_ethernet {
        fields.push(format!("dst_mac = {}", key.dst_mac));
        fields.push(format!("src_mac = {}", key.src_mac));
    }
    let id = |tci: u16, tpid: u16| match EtherType(tpid) {
        EtherType::VLAN => (tci & 0x0fff).to_string(),
        other => format!("{} of {other}", tci & 0x0fff),
    };
    if has(Layers::VLAN) {
        fields.push(format!("vlan = {}", id(key.vlan_tci, key.vlan_tpid)));
        fields.push(format!("vlan_priority = {}", key.vlan_tci >> 13));
    }
    if has(Layers::INNER_VLAN) {
        fields.push(format!("inner_vlan = {}", id(key.inner_vlan_tci, key.inner_vlan_tpid)));
    }
    let (Some(src), Some(dst)) = (key.src_addr(), key.dst_addr()) else {
        if has_ethernet {
            fields.push(format!("ethertype = {}", EtherType(key.ether_type)));
        }
        return fields;
    };
    fields.push(format!("src = {src}, dst = {dst}, protocol = {}", IpProtocol(key.protocol)));
    if has(Layers::LATER_FRAGMENT) {
        fields.push("fragment = later".to_owned());
    } else if has(Layers::FRAGMENT) {
        fields.push("fragment = first".to_owned());
    }
    fields.push(format!("tos = {}, ttl = {}", key.tos, key.ttl));
    if key.ip_flags & 6 != 0 {
        fields.push(format!("ip_flags = {}", key.ip_flags));
    }
    if key.flow_label != 0 {
        fields.push(format!("flow_label = {}", key.flow_label));
    }
    if has(Layers::IP_OPTIONS) {
        fields.push("ip_options = true".to_owned());
    }
    if has(Layers::TCP) || has(Layers::UDP) {
        fields.push(format!("src_port = {}, dst_port = {}", key.src_port, key.dst_port));
    }
    if has(Layers::TCP) {
        fields.push(format!("tcp_flags = {:#04x}", key.tcp_flags));
    }
    fields
}
