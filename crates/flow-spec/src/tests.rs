use super::*;

fn flags(value: u8, mask: u8) -> FlowSpec {
    FlowSpec::Ipv4Ext {
        value: Ipv4ExtMatch { flags: value, ..Ipv4ExtMatch::default() },
        mask: Ipv4ExtMatch { flags: mask, ..Ipv4ExtMatch::default() },
    }
}

fn of_image(kind: SpecKind, slot: Slot, value: u64, mask: u64) -> FlowSpec {
    FlowSpec::from_image(kind, |field| if field == slot { (value, mask) } else { (0, 0) })
}

#[test]
fn ip_flags_are_numbered_as_the_kernel_does() {
    // MF, of the mask MF and DF.
    assert_eq!(of_image(SpecKind::Ipv4Ext, cube::IP_FLAGS, 1, 3), flags(4, 6));
    assert_eq!(flags(4, 6).to_string(), "ipv4 flags=0x1/0x3");
}

#[test]
fn ipv4_is_extended_only_if_a_field_needs_it() {
    let plain = of_image(SpecKind::Ipv4Ext, cube::SRC_IPV4, 0, u32::MAX.into());
    assert_eq!(plain.kind(), SpecKind::Ipv4);
    assert_eq!(plain.to_string(), "ipv4 src=0.0.0.0/32");
    assert_eq!(of_image(SpecKind::Ipv4Ext, cube::IP_FLAGS, 0, 4).kind(), SpecKind::Ipv4Ext);
}

#[test]
fn addresses_and_gre_flags_come_from_their_slots() {
    let low = of_image(SpecKind::Ipv6, cube::DST_LOW, 1, u64::MAX);
    let FlowSpec::Ipv6 { value, mask } = low else { panic!("{low}") };
    assert_eq!((value.dst[15], mask.dst[..9].to_vec()), (1, vec![0, 0, 0, 0, 0, 0, 0, 0, 0xff]));
    let key = of_image(SpecKind::Gre, cube::GRE_FLAGS, 0x20, 0xa0);
    let FlowSpec::Gre { value, mask } = key else { panic!("{key}") };
    assert_eq!((value.c_ks_res0_ver, mask.c_ks_res0_ver), (0x2000, 0xa000));
}

#[test]
fn rows_fit_their_structures_and_do_not_overlap() {
    use SpecKind::{Esp, Ethernet, Gre, Ipv4, Ipv4Ext, Ipv6, Mpls, Tcp, Udp, VxlanTunnel};
    for kind in [Ethernet, Ipv4, Ipv4Ext, Ipv6, Tcp, Udp, Esp, VxlanTunnel, Gre, Mpls] {
        let spec = FlowSpec::any(kind);
        let mut used = [false; MAX_FILTER_BYTES];
        for row in spec.halves().0.rows() {
            assert!(row.bits as usize <= 8 * row.bytes, "{kind:?} {}", row.name);
            assert!(
                row.slots.iter().map(|slot| slot.bits()).sum::<u32>() <= row.bits,
                "{kind:?} {}",
                row.name
            );
            for used in &mut used[row.offset..row.offset + row.bytes] {
                assert!(!std::mem::replace(used, true), "{kind:?} {}", row.name);
            }
        }
        assert_eq!((spec.shape(), spec.to_string()), (spec, kind.name().to_owned()));
    }
}
