//! The text of a predicate in printed programs and in `explain`. It is not parsed again.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use packet::{Field, Form, Layers, MacAddr, TunnelLayers};

use crate::matching::{Addresses, Fragments, Macs, MaskedMac, MplsEntry};
use crate::ranges::RangeSet;

use super::{Predicate, Test, TunnelTest, Values};

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outer = self.outer.iter().map(ToString::to_string);
        let tunnel = self.tunnel.iter().map(ToString::to_string);
        let inner = self.inner.iter().map(|test| format!("inner {test}"));
        let tests: Vec<String> = outer.chain(tunnel).chain(inner).collect();
        if tests.is_empty() {
            return f.write_str("any");
        }
        f.write_str(&tests.join(" and "))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(layers) => write!(f, "{}", layer_names(*layers, "+")),
            Self::HasAny(layers) => write!(f, "{}", layer_names(*layers, "|")),
            Self::Lacks(layers) => write!(f, "not {}", layer_names(*layers, "|")),
            Self::Fragment(set) => write!(f, "fragment {set}"),
            Self::Value(field, values) => write_value(f, *field, values),
            Self::PortsIfAny([_, src_port, dst_port], ports) => {
                let [src, dst] = &**ports;
                for (field, ports) in [(src_port, src), (dst_port, dst)] {
                    if let Some(ports) = ports {
                        write!(f, "{} {ports} ", field.name())?;
                    }
                }
                f.write_str("or no ports")
            }
            Self::Mac(field, macs) => write!(f, "{} {macs}", field.name()),
            Self::Src(addresses) => write!(f, "src {addresses}"),
            Self::Dst(addresses) => write!(f, "dst {addresses}"),
        }
    }
}

impl fmt::Display for TunnelTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(layers) => write!(f, "{}", tunnel_names(*layers)),
            Self::Value(field, values) => write_value(f, *field, values),
            Self::Mpls(stack) => {
                let entries: Vec<String> = stack.iter().map(ToString::to_string).collect();
                write!(f, "mpls [{}]", entries.join(", "))
            }
            Self::InnerMpls(entry) => match &**entry {
                Some(entry) => write!(f, "inner mpls [{entry}]"),
                None => f.write_str("inner mpls"),
            },
        }
    }
}

fn write_value(f: &mut fmt::Formatter<'_>, field: Field, values: &Values) -> fmt::Result {
    let (name, row) = (field.name(), field.row());
    match (values, row.form) {
        (Values::Bytes(bytes), Form::Flags(_)) => match &*bytes.patterns(row.bits) {
            [(value, mask)] => write!(f, "{name} & {mask:#04x} = {value:#04x}"),
            _ => write!(f, "{name} {bytes}"),
        },
        (Values::Bytes(bytes), Form::Bits) => write!(f, "{name} {bytes}"),
        (Values::Bytes(bytes), _) => write_numbers(f, field, &bytes.ranges()),
        (Values::Numbers(numbers), _) => write_numbers(f, field, numbers),
    }
}

/// Single values by name if the field has names, others as ranges.
fn write_numbers(f: &mut fmt::Formatter<'_>, field: Field, numbers: &RangeSet<u32>) -> fmt::Result {
    let is_hex = field.row().form == Form::EtherType;
    let one = |(low, high): &(u32, u32)| match (low == high, is_hex) {
        (true, _) => field.text((*low).into()),
        (false, true) => format!("{low:#06x}-{high:#06x}"),
        (false, false) => format!("{low}-{high}"),
    };
    let shown: Vec<String> = numbers.ranges().iter().map(one).collect();
    write!(f, "{} {}", field.name(), shown.join(","))
}

/// `100`, or `{label 100, tc 3}`; an entry that may be anything is `any`.
impl fmt::Display for MplsEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.label.as_ref().map(|set| format!("label {set}")));
        parts.extend(self.tc.as_ref().map(|set| format!("tc {set}")));
        parts.extend(self.bottom.map(|bottom| format!("bottom {bottom}")));
        parts.extend(self.ttl.as_ref().map(|set| format!("ttl {set}")));
        match (&*parts, &self.label) {
            ([], _) => f.write_str("any"),
            ([_], Some(label)) => write!(f, "{label}"),
            _ => write!(f, "{{{}}}", parts.join(", ")),
        }
    }
}

impl fmt::Display for Fragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::WHOLE, "none"), (Self::FIRST, "first"), (Self::LATER, "later")];
        let names: Vec<&str> =
            names.iter().filter(|(one, _)| self.contains(*one)).map(|(_, name)| *name).collect();
        f.write_str(&names.join("|"))
    }
}

fn layer_names(layers: Layers, joint: &str) -> String {
    let names: Vec<String> = layers.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    names.join(joint)
}

fn tunnel_names(layers: TunnelLayers) -> String {
    let names: Vec<String> = layers.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    names.join("+")
}

impl fmt::Display for Macs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mac_list(&self.any_of))?;
        match &*self.none_of {
            [] => Ok(()),
            excluded => write!(f, " but not {}", mac_list(excluded)),
        }
    }
}

fn mac_list(macs: &[MaskedMac]) -> String {
    let name = |mac: &MaskedMac| match mac.mask {
        MacAddr::BROADCAST => mac.value.to_string(),
        _ if *mac == MaskedMac::ANY => "any".to_owned(),
        mask => format!("{}/{mask}", mac.value),
    };
    macs.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Prefixes; of a long list the first ones, and how many there are.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let v4 = self.v4.prefixes(32);
        let v6 = self.v6.prefixes(128);
        let v4_names = v4.iter().map(|(net, mask)| format!("{}/{}", Ipv4Addr::from(*net), mask.count_ones()));
        let v6_names = v6.iter().map(|(net, mask)| format!("{}/{}", Ipv6Addr::from(*net), mask.count_ones()));
        let shown: Vec<String> = v4_names.chain(v6_names).take(SHOWN).collect();
        f.write_str(&shown.join(","))?;
        match v4.len() + v6.len() {
            total if total > SHOWN => write!(f, ",... {total} prefixes"),
            _ => Ok(()),
        }
    }
}
