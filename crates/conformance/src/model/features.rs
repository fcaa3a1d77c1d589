//! Which fields, actions and kinds of flows a device refuses or ignores, each by a case of the suite.

use device_model::{Errno, Feature, RefusalRow};
use verbs::{ActionSpec, Counters, FlowAttr, FlowTag, HashFields};

use super::{ADDRESSES, Finder, Note, Seen, feature_name, row};
use crate::filters::any_ipv4;
use crate::{Case, Failure, Outcome, cases};

impl Finder<'_> {
    pub(super) fn features(&mut self) -> Result<(), Failure> {
        let all = cases();
        for feature in Feature::ALL {
            // The base feature comes before, so it is known here.
            if let Some(base) = base(feature).and_then(|base| self.profile.refusal(base)).cloned() {
                self.without(feature, &base);
                continue;
            }
            match self.seen(feature, &all) {
                None => {}
                Some(Seen::Works) => self.tried(&row(feature)),
                Some(Seen::Refused(errno)) => self.refuse(feature, errno),
                Some(Seen::Ignored) => {
                    let source = "found by trying: accepted, without an effect".to_owned();
                    self.profile.refusals.push(RefusalRow { feature, errno: Errno::Silent, source });
                    self.tried(&row(feature));
                }
                Some(Seen::Unobserved(why)) => self.unobserved(feature, &why),
                Some(Seen::Unseen(why)) => self.unseen(feature, &why),
            }
        }
        self.profile.device.masks_refused = self.refused_masks(&all);
        if !self.profile.allows(Feature::Tag) && self.profile.allows(Feature::Sniffer) {
            let source = "follows: without flow tags its copies cannot be distinguished from other packets";
            let (feature, errno) = (Feature::Sniffer, Errno::Silent);
            self.profile.refusals.push(RefusalRow { feature, errno, source: source.to_owned() });
            self.note(row(feature), Note::Follows("there are no flow tags"));
        }
        Ok(())
    }

    /// The masks of some bits that have no effect or are refused, of fields that the device matches.
    fn refused_masks(&self, all: &[Case]) -> Vec<String> {
        let tried =
            MASKS.into_iter().filter(|(feature, ..)| feature.is_none_or(|one| self.profile.allows(one)));
        let refused = tried.filter_map(|(_, field, value)| {
            let case = all.iter().find(|case| (case.field, case.value) == (field, value))?;
            match (case.run)(self.bench).into() {
                seen @ (Seen::Refused(_) | Seen::Ignored) => {
                    Some(format!("{field}, {value}: {}", seen.words()))
                }
                Seen::Works | Seen::Unobserved(_) | Seen::Unseen(_) => None,
            }
        });
        refused.collect()
    }

    /// A part of something that is refused. That a header is there without its fields is not asked for then.
    fn without(&mut self, feature: Feature, base: &RefusalRow) {
        if matches!(feature, Feature::AnyEsp | Feature::AnyVxlan | Feature::AnyGre | Feature::AnyMpls) {
            return;
        }
        let source = format!("follows from {}", feature_name(base.feature));
        self.profile.refusals.push(RefusalRow { feature, errno: base.errno, source });
        self.note(row(feature), Note::Follows("what it is a part of is refused"));
    }

    /// A feature that was accepted is not refused; that it has no effect only the fallback knows.
    fn unobserved(&mut self, feature: Feature, why: &str) {
        if self.fallback.refusal(feature).is_some_and(|refusal| refusal.errno != Errno::Silent) {
            return self.note(row(feature), Note::Tried("accepted; its effect was not seen".into()));
        }
        self.unseen(feature, why);
    }

    /// The row of the fallback for a feature that could not be tried.
    fn unseen(&mut self, feature: Feature, why: &str) {
        self.profile.refusals.extend(self.fallback.refusal(feature).cloned());
        self.keep(&row(feature), why);
    }

    /// The device's treatment of a feature; `None` for features of other steps.
    fn seen(&self, feature: Feature, all: &[Case]) -> Option<Seen> {
        let bench = self.bench;
        if let Some((field, value)) = case_of(feature) {
            let case = all.iter().find(|case| (case.field, case.value) == (field, value))?;
            return Some(match (bench.lacks(case.needs), self.creation(feature)) {
                // Creating the flow is a part of the case.
                (Some(why), Some(attr)) => self.only_created(&attr, why),
                (Some(_), None) if feature == Feature::Sniffer => {
                    Seen::Unseen("it would copy the packets of other users".into())
                }
                _ => (case.run)(bench).into(),
            });
        }
        match feature {
            Feature::Count => Some(self.counts().into()),
            Feature::HashInner => Some(self.hashes_fields(HashFields::INNER | ADDRESSES).into()),
            Feature::HashSpi => Some(self.hashes_fields(HashFields::IPSEC_SPI | ADDRESSES).into()),
            _ => None,
        }
    }

    fn only_created(&self, attr: &FlowAttr, why: &str) -> Seen {
        match self.accepts(attr).into() {
            Seen::Works => Seen::Unobserved(why.to_owned()),
            seen => seen,
        }
    }

    /// The flow of a case that cannot be run without frames.
    fn creation(&self, feature: Feature) -> Option<FlowAttr> {
        let flow = self.bench.flow();
        match feature {
            Feature::Tag => Some(flow.action(ActionSpec::Tag(FlowTag(1)))),
            Feature::Drop => Some(flow.spec(any_ipv4()).action(ActionSpec::Drop)),
            Feature::Copy => Some(flow.dont_trap(true)),
            Feature::Egress => Some(flow.egress(true).action(ActionSpec::Drop)),
            _ => None,
        }
    }

    fn counts(&self) -> Outcome {
        let counters = Counters::new(&self.bench.context)?;
        self.accepts(&self.bench.flow().action(ActionSpec::Count(counters)))
    }
}

/// The feature that a feature is a part of.
fn base(feature: Feature) -> Option<Feature> {
    Some(match feature {
        Feature::HopLimit | Feature::FlowLabel => Feature::Ipv6,
        Feature::EspSeq | Feature::AnyEsp => Feature::Esp,
        Feature::AnyVxlan => Feature::Vxlan,
        Feature::GreFlags | Feature::AnyGre => Feature::Gre,
        Feature::AnyMpls => Feature::Mpls,
        Feature::Inner => Feature::Vxlan,
        _ => return None,
    })
}

/// The cases of masks of some bits, and the features that they are of.
const MASKS: [(Option<Feature>, &str, &str); 5] = [
    (None, "ibv_flow_eth_filter.dst_mac", "a mask of some bits"),
    (Some(Feature::Vlan), "ibv_flow_eth_filter.vlan_tag", "a priority, any VLAN"),
    (None, "ibv_flow_ipv4_filter.dst_ip", "a prefix of 25 bits"),
    (None, "ibv_flow_tcp_udp_filter.dst_port", "a mask of some bits"),
    (Some(Feature::Mpls), "ibv_flow_mpls_filter.label", "traffic class 5"),
];

/// The field and value of the case that tries a feature.
pub(crate) fn case_of(feature: Feature) -> Option<(&'static str, &'static str)> {
    const TYPE: &str = "ibv_flow_spec.type";
    Some(match feature {
        Feature::SrcMac => ("ibv_flow_eth_filter.src_mac", "an address"),
        Feature::EtherType => ("ibv_flow_eth_filter.ether_type", "0x88b5"),
        Feature::Vlan => ("ibv_flow_eth_filter.vlan_tag", "a VLAN"),
        Feature::Ipv6 => (TYPE, "IBV_FLOW_SPEC_IPV6"),
        Feature::Protocol => ("ibv_flow_ipv4_ext_filter.proto", "17"),
        Feature::Tos => ("ibv_flow_ipv4_ext_filter.tos", "0xb8"),
        Feature::Ttl => ("ibv_flow_ipv4_ext_filter.ttl", "3"),
        Feature::HopLimit => ("ibv_flow_ipv6_filter.hop_limit", "3"),
        Feature::IpFlags => ("ibv_flow_ipv4_ext_filter.flags", "don't fragment"),
        Feature::FlowLabel => ("ibv_flow_ipv6_filter.flow_label", "0x12345"),
        Feature::Esp => ("ibv_flow_esp_filter.spi", "4"),
        Feature::EspSeq => ("ibv_flow_esp_filter.seq", "9"),
        Feature::Vxlan => ("ibv_flow_tunnel_filter.tunnel_id", "77"),
        Feature::Gre => ("ibv_flow_gre_filter.protocol", "0x0800"),
        Feature::GreFlags => ("ibv_flow_gre_filter.c_ks_res0_ver", "the key flag"),
        Feature::Mpls => ("ibv_flow_mpls_filter.label", "label 9"),
        Feature::Inner => (TYPE, "IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_INNER"),
        Feature::AnyEsp => (TYPE, "IBV_FLOW_SPEC_ESP without masks"),
        Feature::AnyVxlan => (TYPE, "IBV_FLOW_SPEC_VXLAN_TUNNEL without masks"),
        Feature::AnyGre => (TYPE, "IBV_FLOW_SPEC_GRE without masks"),
        Feature::AnyMpls => (TYPE, "IBV_FLOW_SPEC_MPLS without masks"),
        Feature::AnyPorts => (TYPE, "IBV_FLOW_SPEC_UDP without masks"),
        Feature::Tag => ("ibv_flow_spec_action_tag.tag_id", "1"),
        Feature::Drop => (TYPE, "IBV_FLOW_SPEC_ACTION_DROP"),
        Feature::Copy => ("ibv_flow_attr.flags", "IBV_FLOW_ATTR_FLAGS_DONT_TRAP"),
        Feature::Sniffer => ("ibv_flow_attr.type", "IBV_FLOW_ATTR_SNIFFER"),
        Feature::Egress => ("ibv_flow_attr.flags", "IBV_FLOW_ATTR_FLAGS_EGRESS, DROP"),
        Feature::Normal | Feature::Count | Feature::HashInner | Feature::HashSpi => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_names_a_case_of_the_suite() {
        let all = cases();
        for feature in Feature::ALL {
            let Some((field, value)) = case_of(feature) else { continue };
            assert!(all.iter().any(|case| (case.field, case.value) == (field, value)), "{feature:?}");
        }
        for (_, field, value) in MASKS {
            assert!(all.iter().any(|case| (case.field, case.value) == (field, value)), "{field}: {value}");
        }
    }
}
