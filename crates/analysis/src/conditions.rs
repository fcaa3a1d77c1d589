//! The conditions of a match on single numbers and on header stacks. Besides `Predicate`, which the tests
//! compare it with, only this module defines what each key of a match means.

use packet::stack::{Coordinate, FRAGMENT_CODES, InnerLabel, LabelPart, Level, ValueRanges};
use packet::{Field, Header, IpProtocol};
use program::{Addresses, ByteSet, Family, Fragments, Macs, Match, MplsEntry, RangeSet, Word};

use crate::stack_set::{StackSet, present, with_header};

/// One condition; a packet matches if it meets all conditions of the match.
pub(super) enum Condition<'m> {
    /// The packet has one of these stacks.
    Only(StackSet),
    /// The number, if the packet has it, is in one of these ranges.
    Ranges(Coordinate, ValueRanges),
    /// The address, if the packet has it, is one of these.
    Macs(Coordinate, &'m Macs),
}

/// The conditions of a match.
pub(super) fn conditions(matches: &Match) -> Vec<Condition<'_>> {
    let mut conditions = Conditions { list: Vec::new() };
    conditions.packet(Level::Outer, matches);
    conditions.labels(matches);
    if let Some(inner) = &matches.inner {
        conditions.list.push(Condition::Only(StackSet::of_stacks(|stack| stack.inner.is_some())));
        conditions.packet(Level::Inner, inner);
        if let Some(labels) = &inner.mpls {
            conditions.has(Coordinate::Label(LabelPart::Label, Level::Inner, 0));
            if let Some(entry) = labels.first() {
                conditions.label(Level::Inner, 0, entry);
            }
        }
    }
    conditions.list
}

struct Conditions<'m> {
    list: Vec<Condition<'m>>,
}

impl<'m> Conditions<'m> {
    fn packet(&mut self, level: Level, matches: &'m Match) {
        for (field, macs) in matches.macs() {
            if let Some(macs) = macs {
                let coordinate = Coordinate::Field(field, level);
                self.has(coordinate);
                self.list.push(Condition::Macs(coordinate, macs));
            }
        }
        for (versions, addresses) in matches.addresses() {
            if let Some(addresses) = addresses {
                self.addresses(addresses, versions.map(|field| Coordinate::Field(field, level)));
            }
        }
        for (field, values) in matches.values() {
            self.values(level, field, values, matches.or_no_ports);
        }
        if matches.or_no_ports {
            let [protocol, ..] = matches.transport_fields();
            self.transport_protocol(Coordinate::Field(protocol, level));
        }
        self.tag(level, 1, matches.vlan);
        self.tag(level, 2, matches.inner_vlan);
        for (field, tpids) in
            [(Field::VlanTpid, matches.outer_tpid()), (Field::InnerVlanTpid, matches.inner_tpid())]
        {
            self.numbers(Coordinate::Field(field, level), tpids.as_ref());
        }
        match matches.family {
            Some(Family::V4) => self.has_header(Header::Ipv4, level),
            Some(Family::V6) => self.has_header(Header::Ipv6, level),
            None => {}
        }
        if let Some(fragments) = matches.fragment {
            self.fragments(level, fragments);
        }
        if let Some(options) = matches.ip_options {
            let coordinate = Coordinate::Options(level);
            self.has(coordinate);
            self.list.push(Condition::Ranges(coordinate, vec![(options.into(), options.into())]));
        }
    }

    /// The condition on a field that is a number. With `or_no_ports` a packet without ports meets any
    /// condition on them.
    fn values(&mut self, level: Level, field: Field, values: &RangeSet<u32>, or_no_ports: bool) {
        let coordinate = Coordinate::Field(field, level);
        match field {
            Field::IpFlags => {
                self.has(Coordinate::FlagsAndFragment(level));
                self.flags_and_fragment(level, &[0, 1, 2], &ByteSet::of(values));
            }
            // With the value that an id or a priority implies.
            Field::VlanTpid | Field::InnerVlanTpid => {}
            _ if or_no_ports && field.row().header.has_ports() => {
                self.list.push(Condition::Ranges(coordinate, within(coordinate, values)));
            }
            _ => self.numbers(coordinate, Some(values)),
        }
    }

    fn labels(&mut self, matches: &Match) {
        let Some(labels) = &matches.mpls else { return };
        let is_bottom = |place: usize, depth: u8, bottom: bool| place + 1 == usize::from(depth) && bottom;
        self.list.push(Condition::Only(StackSet::of_stacks(|stack| {
            stack.labels.is_some_and(|stack| {
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
        let parts =
            [(LabelPart::Label, &entry.label), (LabelPart::Class, &entry.tc), (LabelPart::Ttl, &entry.ttl)];
        for (part, values) in parts {
            self.numbers(Coordinate::Label(part, level, place), values.as_ref());
        }
        if let (Level::Inner, Some(bottom)) = (level, entry.bottom) {
            self.list.push(Condition::Only(StackSet::of_stacks(|stack| {
                let label = stack.inner.and_then(|inner| inner.label);
                label.is_some_and(|label| bottom == (label == InnerLabel::Bottom))
            })));
        }
    }

    fn has(&mut self, coordinate: Coordinate) {
        self.list.push(Condition::Only(present(coordinate)));
    }

    fn has_header(&mut self, header: Header, level: Level) {
        self.list.push(Condition::Only(with_header(header, level)));
    }

    fn numbers(&mut self, coordinate: Coordinate, numbers: Option<&RangeSet<u32>>) {
        if let Some(numbers) = numbers {
            self.has(coordinate);
            self.list.push(Condition::Ranges(coordinate, within(coordinate, numbers)));
        }
    }

    fn tag(&mut self, level: Level, number: u8, is_there: Option<bool>) {
        if let Some(is_there) = is_there {
            self.list.push(Condition::Only(StackSet::tags(level, |tags| (tags >= number) == is_there)));
        }
    }

    fn addresses(&mut self, addresses: &Addresses, [v4, v6]: [Coordinate; 2]) {
        self.list.push(Condition::Only(present(v4).or(&present(v6))));
        self.list.push(Condition::Ranges(v4, within(v4, &addresses.v4)));
        self.list.push(Condition::Ranges(v6, within(v6, &addresses.v6)));
    }

    fn transport_protocol(&mut self, protocol: Coordinate) {
        self.has(protocol);
        let transports = [IpProtocol::TCP, IpProtocol::UDP].map(|one| (one.0.into(), one.0.into()));
        self.list.push(Condition::Ranges(protocol, transports.to_vec()));
    }

    fn fragments(&mut self, level: Level, fragments: Fragments) {
        let mut allowed = with_header(Header::Ip, level);
        let fragment6 = Coordinate::Fragment6(level);
        if !fragments.contains(Fragments::WHOLE) {
            let v6_whole = with_header(Header::Ipv6, level).without(&present(fragment6));
            allowed = allowed.without(&v6_whole);
        }
        self.list.push(Condition::Only(allowed));
        let classes = [Fragments::WHOLE, Fragments::FIRST, Fragments::LATER];
        let codes: Vec<usize> = (0..3).filter(|class| fragments.contains(classes[*class])).collect();
        self.flags_and_fragment(level, &codes, &ByteSet::ALL);
        let v6 =
            codes.iter().filter_map(|class| class.checked_sub(1)).map(|code| (code as u128, code as u128));
        self.list.push(Condition::Ranges(fragment6, v6.collect()));
    }

    fn flags_and_fragment(&mut self, level: Level, classes: &[usize], flags: &ByteSet) {
        let flags: Vec<u8> = (0..8).filter(|value| flags.contains(*value)).collect();
        let codes = classes.iter().flat_map(|class| flags.iter().map(|flags| FRAGMENT_CODES[*class] + flags));
        let codes = codes.map(|code| (u128::from(code), u128::from(code))).collect();
        self.list.push(Condition::Ranges(Coordinate::FlagsAndFragment(level), codes));
    }
}

/// The values that fit the number's bits.
fn within<T: Word>(coordinate: Coordinate, numbers: &RangeSet<T>) -> ValueRanges {
    let most = coordinate.max();
    let ranges = numbers.ranges().iter().map(|(low, high)| (low.wide(), high.wide().min(most)));
    ranges.filter(|(low, _)| *low <= most).collect()
}
