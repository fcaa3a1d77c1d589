//! The hash variants that a group's queue pairs need, by which flows are split.

use device_model::DeviceModel;
use packet::HashFields;
use program::{Group, HashVariant};

use crate::cube::{Cube, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, Slot};

/// A hash variant as the packets that it serves.
pub(crate) struct Variant {
    pub(crate) variant: HashVariant,
    pub(crate) fields: HashFields,
    pub(crate) packets: Cube,
}

/// The variants of a group that hash something of their own, specific ones first, `Other` last.
///
/// A variant that would hash no more than the more general one after it is left out.
pub(crate) fn variants(group: &Group, profile: &DeviceModel) -> Vec<Variant> {
    let everything = |variant| Variant { variant, fields: group.fields, packets: Cube::ANY };
    if !profile.hash_field_exclusive && !group.fields.is_empty() {
        return vec![everything(HashVariant::All)];
    }
    let mut variants = Vec::new();
    for (ip, ip_fields, names) in [
        (HAS_IPV4, HashFields::IPV4, [HashVariant::V4Tcp, HashVariant::V4Udp, HashVariant::V4]),
        (HAS_IPV6, HashFields::IPV6, [HashVariant::V6Tcp, HashVariant::V6Udp, HashVariant::V6]),
    ] {
        let addresses = group.fields & ip_fields;
        for (variant, transport, ports) in
            [(names[0], HAS_TCP, HashFields::TCP), (names[1], HAS_UDP, HashFields::UDP)]
        {
            let fields = group.fields & (ip_fields | ports);
            if fields != addresses {
                variants.extend(packets(&[ip, transport]).map(|packets| Variant {
                    variant,
                    fields,
                    packets,
                }));
            }
        }
        if !addresses.is_empty() {
            let variant = names[2];
            variants.extend(packets(&[ip]).map(|packets| Variant { variant, fields: addresses, packets }));
        }
    }
    variants.push(Variant { fields: HashFields::empty(), ..everything(HashVariant::Other) });
    variants
}

fn packets(layers: &[Slot]) -> Option<Cube> {
    layers.iter().try_fold(Cube::ANY, |cube, layer| cube.layer(*layer, true))?.closed()
}

#[cfg(test)]
mod tests {
    use program::WorkerId;

    use super::*;

    #[test]
    fn variants_follow_the_hashed_fields() {
        let group = |fields| Group {
            name: "g".to_owned(),
            description: None,
            table: vec![WorkerId(0)],
            key: packet::RssKey::SYMMETRIC,
            fields,
            symmetric: true,
        };
        let names = |fields| -> Vec<HashVariant> {
            variants(&group(fields), &DeviceModel::ideal()).iter().map(|variant| variant.variant).collect()
        };
        assert_eq!(names(HashFields::L3L4).len(), 7);
        assert_eq!(names(HashFields::L3), [HashVariant::V4, HashVariant::V6, HashVariant::Other]);
        assert_eq!(names(HashFields::empty()), [HashVariant::Other]);
        assert_eq!(
            names(HashFields::SRC_PORT_TCP),
            [HashVariant::V4Tcp, HashVariant::V6Tcp, HashVariant::Other]
        );
        let mixed = DeviceModel { hash_field_exclusive: false, ..DeviceModel::ideal() };
        assert_eq!(variants(&group(HashFields::L3L4), &mixed).len(), 1);
    }
}
