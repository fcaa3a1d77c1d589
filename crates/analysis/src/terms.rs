//! A match taken apart into what it asks of single fields and of the kind of packet; the one place that knows
//! what each key of a match means, besides `Predicate`, which the tests hold it to.

use packet::IpProtocol;
use program::{Addresses, ByteSet, Family, Fragments, Macs, Match, MplsEntry, RangeSet, VlanMatch, Word};

use super::field::{FRAGMENT_CODES, Field, Level};
use super::kind::{Structure, present};

pub(super) type Ranges = Vec<(u128, u128)>;

/// One condition; a match is all of its conditions.
pub(super) enum Term<'m> {
    /// The packet is one of these.
    Only(Structure),
    /// The field, where there is one, has one of these values.
    Ranges(Field, Ranges),
    /// The address is one of these.
    Macs(Field, &'m Macs),
}

/// The conditions of a match.
pub(super) fn terms(matches: &Match) -> Vec<Term<'_>> {
    let mut terms = Terms { list: Vec::new() };
    terms.packet(Level::Outer, matches);
    terms.tunnel(matches);
    if let Some(inner) = &matches.inner {
        terms.list.push(Term::Only(Structure::kinds(|kind| kind.inside.is_some())));
        terms.packet(Level::Inner, inner);
        if let Some(labels) = &inner.mpls {
            terms.list.push(Term::Only(present(Field::Label(Level::Inner, 0))));
            if let Some(entry) = labels.first() {
                terms.label(Level::Inner, 0, entry);
            }
        }
    }
    terms.list
}

struct Terms<'m> {
    list: Vec<Term<'m>>,
}

impl<'m> Terms<'m> {
    fn packet(&mut self, level: Level, matches: &'m Match) {
        self.macs(Field::DstMac(level), matches.dst_mac.as_ref());
        self.macs(Field::SrcMac(level), matches.src_mac.as_ref());
        self.numbers(Field::EtherType(level), matches.ethertype.as_ref());
        self.tag(level, 1, matches.vlan.as_ref(), Field::VlanId(level));
        self.numbers(Field::VlanPriority(level), matches.vlan_priority.as_ref());
        self.numbers(Field::VlanTpid(level), matches.outer_tpid().as_ref());
        self.tag(level, 2, matches.inner_vlan.as_ref(), Field::SecondId(level));
        self.numbers(Field::SecondTpid(level), matches.inner_tpid().as_ref());
        match matches.family {
            Some(Family::V4) => self.has(Field::Src4(level)),
            Some(Family::V6) => self.has(Field::Src6(level)),
            None => {}
        }
        self.addresses(matches.src.as_ref(), Field::Src4(level), Field::Src6(level));
        self.addresses(matches.dst.as_ref(), Field::Dst4(level), Field::Dst6(level));
        self.numbers(Field::Protocol(level), matches.protocol.as_ref());
        self.bytes(Field::Tos(level), matches.tos);
        self.numbers(Field::Ttl(level), matches.ttl.as_ref());
        self.numbers(Field::FlowLabel(level), matches.flow_label.as_ref());
        if let Some(flags) = matches.ip_flags {
            self.has(Field::FlagsAndFragment(level));
            self.flags_and_fragment(level, &[0, 1, 2], &flags);
        }
        if let Some(fragments) = matches.fragment {
            self.fragments(level, fragments);
        }
        if matches.or_no_ports {
            self.ports_if_any(level, matches);
        } else {
            self.numbers(Field::SrcPort(level), matches.src_port.as_ref());
            self.numbers(Field::DstPort(level), matches.dst_port.as_ref());
        }
        self.bytes(Field::TcpFlags(level), matches.tcp_flags);
        if let Some(options) = matches.ip_options {
            self.has(Field::Options(level));
            self.list.push(Term::Ranges(Field::Options(level), vec![(options.into(), options.into())]));
        }
    }

    fn tunnel(&mut self, matches: &'m Match) {
        self.numbers(Field::EspSpi, matches.esp_spi.as_ref());
        self.numbers(Field::EspSeq, matches.esp_seq.as_ref());
        self.numbers(Field::Vni, matches.vxlan_vni.as_ref());
        self.numbers(Field::GreProtocol, matches.gre_protocol.as_ref());
        self.numbers(Field::GreKey, matches.gre_key.as_ref());
        self.bytes(Field::GreFlags, matches.gre_flags);
        let Some(labels) = &matches.mpls else { return };
        let is_bottom = |place: usize, depth: u8, bottom: bool| place + 1 == usize::from(depth) && bottom;
        self.list.push(Term::Only(Structure::kinds(|kind| {
            kind.stack.is_some_and(|stack| {
                labels.len() <= usize::from(stack.depth)
                    && labels.iter().enumerate().all(|(place, entry)| {
                        entry
                            .bottom
                            .is_none_or(|bottom| bottom == is_bottom(place, stack.depth, stack.bottom))
                    })
            })
        })));
        for (place, entry) in (0u8..).zip(labels) {
            self.label(Level::Outer, place, entry);
        }
    }

    fn label(&mut self, level: Level, place: u8, entry: &MplsEntry) {
        self.numbers(Field::Label(level, place), entry.label.as_ref());
        self.numbers(Field::LabelClass(level, place), entry.tc.as_ref());
        self.numbers(Field::LabelTtl(level, place), entry.ttl.as_ref());
        if let (Level::Inner, Some(bottom)) = (level, entry.bottom) {
            let label = super::kind::TopLabel::Bottom;
            self.list.push(Term::Only(Structure::kinds(|kind| {
                let top = kind.inside.and_then(|inside| inside.label);
                top.is_some_and(|top| bottom == (top == label))
            })));
        }
    }

    fn has(&mut self, field: Field) {
        self.list.push(Term::Only(present(field)));
    }

    fn numbers<T: Word>(&mut self, field: Field, numbers: Option<&RangeSet<T>>) {
        if let Some(numbers) = numbers {
            self.has(field);
            self.list.push(Term::Ranges(field, within(field, numbers)));
        }
    }

    fn bytes(&mut self, field: Field, bytes: Option<ByteSet>) {
        self.numbers(field, bytes.map(|bytes| bytes.ranges()).as_ref());
    }

    fn macs(&mut self, field: Field, macs: Option<&'m Macs>) {
        if let Some(macs) = macs {
            self.has(field);
            self.list.push(Term::Macs(field, macs));
        }
    }

    fn tag(&mut self, level: Level, number: u8, tag: Option<&VlanMatch>, id: Field) {
        match tag {
            None => {}
            Some(VlanMatch::None) => {
                self.list.push(Term::Only(Structure::tags(level, |tags| tags < number)));
            }
            Some(VlanMatch::Any) => {
                self.list.push(Term::Only(Structure::tags(level, |tags| tags >= number)));
            }
            Some(VlanMatch::Ids(ids)) => self.numbers(id, Some(ids)),
        }
    }

    fn addresses(&mut self, addresses: Option<&Addresses>, v4: Field, v6: Field) {
        if let Some(addresses) = addresses {
            self.list.push(Term::Only(present(v4).or(&present(v6))));
            self.list.push(Term::Ranges(v4, within(v4, &addresses.v4)));
            self.list.push(Term::Ranges(v6, within(v6, &addresses.v6)));
        }
    }

    /// A kind without ports meets the conditions on ports: they hold where there are ports.
    fn ports_if_any(&mut self, level: Level, matches: &Match) {
        self.has(Field::Tos(level));
        let transports = [IpProtocol::TCP, IpProtocol::UDP].map(|one| (one.0.into(), one.0.into()));
        self.list.push(Term::Ranges(Field::Protocol(level), transports.to_vec()));
        for (field, ports) in
            [(Field::SrcPort(level), &matches.src_port), (Field::DstPort(level), &matches.dst_port)]
        {
            self.list.extend(ports.as_ref().map(|ports| Term::Ranges(field, within(field, ports))));
        }
    }

    fn fragments(&mut self, level: Level, fragments: Fragments) {
        let mut allowed = present(Field::Tos(level));
        if !fragments.contains(Fragments::WHOLE) {
            let v6_whole = present(Field::Src6(level)).without(&present(Field::Fragment6(level)));
            allowed = allowed.without(&v6_whole);
        }
        self.list.push(Term::Only(allowed));
        let classes = [Fragments::WHOLE, Fragments::FIRST, Fragments::LATER];
        let codes: Vec<usize> = (0..3).filter(|class| fragments.contains(classes[*class])).collect();
        self.flags_and_fragment(level, &codes, &ByteSet::ALL);
        let v6 =
            codes.iter().filter_map(|class| class.checked_sub(1)).map(|code| (code as u128, code as u128));
        self.list.push(Term::Ranges(Field::Fragment6(level), v6.collect()));
    }

    fn flags_and_fragment(&mut self, level: Level, classes: &[usize], flags: &ByteSet) {
        let flags: Vec<u8> = (0..8).filter(|value| flags.contains(*value)).collect();
        let codes = classes.iter().flat_map(|class| flags.iter().map(|flags| FRAGMENT_CODES[*class] + flags));
        let codes = codes.map(|code| (u128::from(code), u128::from(code))).collect();
        self.list.push(Term::Ranges(Field::FlagsAndFragment(level), codes));
    }
}

/// The values that the field has room for.
fn within<T: Word>(field: Field, numbers: &RangeSet<T>) -> Ranges {
    let most = field.most();
    let ranges = numbers.ranges().iter().map(|(low, high)| (low.wide(), high.wide().min(most)));
    ranges.filter(|(low, _)| *low <= most).collect()
}
