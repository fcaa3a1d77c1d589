//! Sample rules at run time that need most of a device: of each form and action rules with different values,
//! which share packets with as many rules of the policy, and of other forms, as one rule can.
//!
//! A rule takes its own priority between the rules before and behind it that share packets with it. So the
//! values come from these rules: from a first one, and then from each other one that still shares a packet,
//! those nearest to the place of the rules at run time first. Free bits are numbered, by the same number in
//! each form, so that the rules of different forms overlap too. Where few bits are free, only so many rules
//! can have such values.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use compiler::cover_match;
use device_model::DeviceModel;
use packet::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_PORT, HAS_TCP, HAS_UDP, Image, PROTOCOL, SRC_HIGH, SRC_IPV4,
    SRC_LOW, SRC_PORT, Slot, VLAN_ID, WORDS,
};
use policy::Policy;
use policy::policy::{Action, Direction, InsertedRule, RuleDefinition, RuntimeDefinition};
use program::{AddressPrefix, ProtocolNumber, RuntimeFields, RuntimeMatch};

/// How many rules before and behind the rules at run time give values.
const NEAR_RULES: usize = 128;
/// How many cubes of one rule are compared.
const CUBES_OF_RULE: usize = 4;
/// How many different sets of rules a form shares packets with in the samples.
const SEEDS_MAX: usize = 16;
/// About so many samples of all forms and actions are compiled at once.
const SAMPLES_MAX: usize = 128;
/// The addresses of IPv4, and the halves of those of IPv6.
const SRC: [Slot; 3] = [SRC_IPV4, SRC_HIGH, SRC_LOW];
const DST: [Slot; 3] = [DST_IPV4, DST_HIGH, DST_LOW];
/// Multiplication by an odd number permutes the numbers of any count of bits.
const ODD: u64 = 0x9e37_79b1;

/// A sample.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    /// The index of its form.
    pub(super) form: usize,
    /// The index of the seed of its values, among those of the form.
    pub(super) seed: usize,
    /// The index of its action.
    pub(super) action: usize,
    matches: RuntimeMatch,
}

/// The kind of a sample: the indices of their form, of the seed of their values, and of their action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampleKind {
    pub(super) form: usize,
    pub(super) seed: usize,
    pub(super) action: usize,
}

/// The values of samples, by form.
pub(super) struct Samples<'p> {
    policy: &'p Policy,
    runtime: &'p RuntimeDefinition,
    /// The seeds of each form.
    seeds: Vec<Vec<Seed>>,
}

/// Packets that give samples their values.
struct Seed {
    packets: Cube,
    /// How many rules can share packets with as many rules of the policy as these do, about.
    rules: u64,
}

/// A cube of a rule of the policy, which stands for so many of its cubes.
struct NearCube {
    cube: Cube,
    count: u64,
}

impl<'p> Samples<'p> {
    /// `None`: the policy allows no rules at run time.
    pub(super) fn of(policy: &'p Policy, profile: &DeviceModel) -> Option<Self> {
        let runtime = policy.runtime.as_ref()?;
        let before = runtime.before.min(policy.rules.len());
        let (earlier, later) = policy.rules.split_at(before);
        let earlier: Vec<NearCube> =
            earlier.iter().rev().take(NEAR_RULES).flat_map(|rule| near(rule, profile)).collect();
        let later: Vec<NearCube> =
            later.iter().take(NEAR_RULES).flat_map(|rule| near(rule, profile)).collect();
        let seeds = runtime.forms.iter().map(|form| seeds(*form, profile, &earlier, &later)).collect();
        Some(Self { policy, runtime, seeds })
    }

    /// How many values a form has that differ; the most rules of it.
    pub(super) fn values(&self, form: usize) -> u64 {
        free_values(self.runtime.forms[form], &Cube::ANY)
    }

    /// How many rules of a form can have values like those of a seed, about.
    pub(super) fn rules_of_seed(&self, form: usize, seed: usize) -> u64 {
        self.seeds[form].get(seed).map_or(0, |seed| seed.rules)
    }

    /// The number of seeds of a form.
    pub(super) fn seeds_of(&self, form: usize) -> usize {
        self.seeds[form].len()
    }

    /// Samples of all actions and of the wanted forms; `rounds` times as many as there are seeds.
    pub(super) fn few(&self, is_wanted: &dyn Fn(usize) -> bool, rounds: usize) -> Vec<Sample> {
        let (forms, actions) = (self.runtime.forms.len(), self.runtime.actions.len());
        let seeds = (SAMPLES_MAX / (forms * actions).max(1)).clamp(1, SEEDS_MAX);
        let mut samples = Vec::new();
        for form in (0..forms).filter(|form| is_wanted(*form)) {
            let mut known = HashSet::new();
            for number in 0..seeds * rounds * actions {
                let seed = number / actions % seeds;
                samples.extend(self.sample(form, number % actions, seed, number, &mut known));
            }
        }
        samples
    }

    /// Returns `count` samples of one form and action, as many as possible with values like those of a seed.
    /// They are fewer only if the form has too few values.
    pub(super) fn many(&self, kind: SampleKind, count: usize) -> Vec<Sample> {
        let SampleKind { form, seed, action } = kind;
        let seeds = self.seeds[form].len();
        let mut known = HashSet::new();
        let mut samples = Vec::with_capacity(count);
        for seed in (0..seeds).map(|next| (seed + next) % seeds) {
            // Numbers give one value twice only where few bits are free.
            for number in 0..count.saturating_mul(2) {
                if samples.len() == count {
                    return samples;
                }
                samples.extend(self.sample(form, action, seed, number, &mut known));
            }
        }
        samples
    }

    /// The number of forms.
    pub(super) fn forms(&self) -> usize {
        self.runtime.forms.len()
    }

    /// The number of actions.
    pub(super) fn actions(&self) -> usize {
        self.runtime.actions.len()
    }

    /// Whether rules of this action have no flows of their own: other flows leave their packets out.
    pub(super) fn leaves_packets(&self, action: usize) -> bool {
        self.action(action) == Action::Kernel
    }

    /// The sample with this number of a form, unless it has the values of a known one.
    fn sample(
        &self,
        form: usize,
        action: usize,
        seed: usize,
        number: usize,
        known: &mut HashSet<RuntimeMatch>,
    ) -> Option<Sample> {
        let seeds = &self.seeds[form];
        let seed = seed % seeds.len().max(1);
        let matches = values(self.runtime.forms[form], &seeds.get(seed)?.packets, number as u64);
        known.insert(matches).then_some(Sample { form, seed, action, matches })
    }

    /// The policy with these samples as rules, and the samples in the order of these rules. The first is at
    /// the place that [`RuntimeDefinition::before`] has in the policy without them.
    pub(super) fn insert(&self, mut samples: Vec<Sample>) -> (Policy, Vec<Sample>) {
        samples.sort_by_key(|sample| sample.form);
        let rules = samples.iter().enumerate().map(|(number, sample)| InsertedRule {
            name: format!("({number})"),
            matches: sample.matches,
            action: self.action(sample.action),
        });
        let mut policy = self.policy.clone();
        policy.insert_at_run_time(rules.collect());
        (policy, samples)
    }

    fn action(&self, index: usize) -> Action {
        self.runtime.actions.get(index).map_or(Action::Drop, |(_, action)| *action)
    }
}

/// The first cubes of a rule.
fn near(rule: &RuleDefinition, profile: &DeviceModel) -> Vec<NearCube> {
    if !rule.action.decides(rule.direction) {
        return Vec::new();
    }
    let Some(expansion) = cover_match(&rule.matches, rule.direction, profile) else { return Vec::new() };
    let count = expansion.cubes.len().div_ceil(CUBES_OF_RULE) as u64;
    expansion.cubes.into_iter().take(CUBES_OF_RULE).map(|cube| NearCube { cube, count }).collect()
}

/// The seeds of a form: all its packets, and those that it has in common with each near rule, but of many of
/// these some; each as it is, and the part of it that shares packets with most near rules.
fn seeds(form: RuntimeFields, profile: &DeviceModel, earlier: &[NearCube], later: &[NearCube]) -> Vec<Seed> {
    let all =
        cover_match(&form.to_match(), Direction::Ingress, profile).map_or_else(Vec::new, |all| all.cubes);
    let compared = compared(form, profile);
    // A rule before that compares nothing else takes all packets of a rule that shares one with it.
    let takes_all = |cube: &Cube| (0..WORDS).all(|word| cube.mask[word] & !compared[word] == 0);
    let near: Vec<&NearCube> = earlier.iter().filter(|near| !takes_all(&near.cube)).chain(later).collect();
    let starts = all.iter().flat_map(|form| {
        near.iter().filter_map(|near| Some(NearCube { cube: form.and(&near.cube)?, count: near.count }))
    });
    let starts: Vec<NearCube> = starts.collect();
    let step = starts.len().div_ceil(SEEDS_MAX / 2).max(1);
    let whole = all.iter().map(|cube| (*cube, 1));
    let parts = starts
        .chunks(step)
        .map(|starts| (starts[0].cube, starts.iter().map(|start| start.count).sum::<u64>()));
    let mut found: Vec<Seed> = Vec::new();
    let mut known = HashSet::new();
    for (start, count) in whole.chain(parts) {
        let most = near.iter().fold(start, |seed, near| seed.and(&near.cube).unwrap_or(seed));
        for packets in [start, most] {
            // Fields that the form does not compare make no difference.
            if known.insert([1, 2].map(|number| values(form, &packets, number))) {
                found.push(Seed { packets, rules: free_values(form, &packets).saturating_mul(count) });
            }
        }
    }
    found.truncate(SEEDS_MAX);
    found
}

/// How many values the fields of a form have in these packets.
fn free_values(form: RuntimeFields, packets: &Cube) -> u64 {
    let address = |length: u8, [v4, high, low]: [Slot; 3]| {
        let mask = if form.is_v6 == Some(true) {
            u128::from(packets.mask_of(high)) << 64 | u128::from(packets.mask_of(low))
        } else {
            u128::from(packets.mask_of(v4)) << 96
        };
        let compared = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        (compared & !mask).count_ones()
    };
    let narrow = |is_there: bool, slot: Slot| {
        if is_there { (slot.ones() & !packets.mask_of(slot)).count_ones() } else { 0 }
    };
    let bits = address(form.src, SRC)
        + address(form.dst, DST)
        + narrow(form.protocol, PROTOCOL)
        + narrow(form.src_port, SRC_PORT)
        + narrow(form.dst_port, DST_PORT)
        + narrow(form.vlan, VLAN_ID);
    1u64.checked_shl(bits).unwrap_or(u64::MAX)
}

/// The bits that flows of a form's rules compare.
fn compared(form: RuntimeFields, profile: &DeviceModel) -> Image {
    let matches = values(form, &Cube::ANY, 0).to_match();
    let cubes = cover_match(&matches, Direction::Ingress, profile).map_or_else(Vec::new, |all| all.cubes);
    cubes.iter().fold([0; WORDS], |all, cube| std::array::from_fn(|word| all[word] | cube.mask[word]))
}

/// The match of a form with the values of a packet, and with a number in the bits that it leaves free.
fn values(form: RuntimeFields, packet: &Cube, number: u64) -> RuntimeMatch {
    let number = number.wrapping_mul(ODD);
    let field = |slot: Slot, free: u64| {
        let mask = packet.mask_of(slot);
        packet.value_of(slot) & mask | free & !mask & slot.ones()
    };
    let narrow = |is_there: bool, slot: Slot| is_there.then(|| field(slot, number) as u16);
    let address = |length: u8, slots: [Slot; 3]| {
        (length > 0).then(|| prefix(form.is_v6 == Some(true), length, number, slots, &field))
    };
    RuntimeMatch {
        src: address(form.src, SRC),
        dst: address(form.dst, DST),
        protocol: form.protocol.then(|| ProtocolNumber(protocol(form, packet, number))),
        src_port: narrow(form.src_port, SRC_PORT),
        dst_port: narrow(form.dst_port, DST_PORT),
        vlan: narrow(form.vlan, VLAN_ID).map(|vlan| vlan & 0xfff),
    }
}

/// A prefix of that length; the number is in its last bits.
fn prefix(
    is_v6: bool,
    length: u8,
    number: u64,
    [v4, high, low]: [Slot; 3],
    field: &dyn Fn(Slot, u64) -> u64,
) -> AddressPrefix {
    let whole: u32 = if is_v6 { 128 } else { 32 };
    let free = u128::from(number).checked_shl(whole - u32::from(length)).unwrap_or(0);
    let mask = u128::MAX << (whole - u32::from(length));
    let address = if is_v6 {
        let bits = u128::from(field(high, (free >> 64) as u64)) << 64 | u128::from(field(low, free as u64));
        Ipv6Addr::from_bits(bits & mask).into()
    } else {
        Ipv4Addr::from_bits((u128::from(field(v4, free as u64)) & mask) as u32).into()
    };
    AddressPrefix { address, length }
}

/// The protocol of a packet, or else one of those with headers of their own, or any.
fn protocol(form: RuntimeFields, packet: &Cube, number: u64) -> u8 {
    const COMMON: [u8; 4] = [6, 17, 1, 47];
    let has_ports = form.src_port || form.dst_port;
    if packet.has(HAS_TCP) {
        6
    } else if packet.has(HAS_UDP) {
        17
    } else if packet.mask_of(PROTOCOL) == PROTOCOL.ones() {
        packet.value_of(PROTOCOL) as u8
    } else if has_ports {
        COMMON[(number >> 4 & 1) as usize]
    } else {
        (number >> 3) as u8
    }
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;

    #[test]
    fn there_are_as_many_samples_as_asked_for_where_most_seeds_leave_no_bit_free() {
        let host = |number: u32| {
            format!("[[rules]]\nname = 'h{number}'\nmatch = {{ src = '10.0.0.{number}' }}\naction = 'drop'\n")
        };
        let head =
            "version = 1\n[runtime]\nbefore = 'h1'\nmatches = ['src/32']\nactions = ['drop', 'kernel']\n";
        let text = (1..40).fold(head.to_owned(), |text, number| text + &host(number));
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let samples = Samples::of(&policy, &DeviceModel::ideal()).expect("[runtime]");
        for seed in 0..samples.seeds_of(0) {
            let many = samples.many(SampleKind { form: 0, seed, action: 1 }, 1000);
            let different: HashSet<RuntimeMatch> = many.iter().map(|sample| sample.matches).collect();
            assert_eq!((many.len(), different.len()), (1000, 1000), "seed {seed}");
            assert!(many.iter().all(|sample| sample.action == 1));
        }
    }
}
