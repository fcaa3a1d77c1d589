//! A draft against what its device has: masks are saved where they are too many, and what is beyond a limit
//! is refused with the rule, the errno and the remedy. Called by `compile` between ranks and flows.

use std::collections::BTreeMap;

use device_model::{Limit, PriorityTable};
use policy::Policy;

use super::super::claims::{MAX_STEPS, MAX_STEPS_IN_ALL};
use super::super::cluster::cluster;
use super::super::cube::Image;
use super::super::emit;
use super::super::findings::{Findings, Obstacle};
use super::super::pack::{Packed, Widest, pack};
use super::super::priority::{Candidate, Ranking};
use super::super::shape::ByMask;
use super::super::witness::shared;
use super::{ACTION_SPECS, Draft, MAX_FLOWS, Plan};

/// The most different masks of one program, before any are saved: each is compared with all others.
const MAX_MASKS: usize = 1 << 14;

impl Draft<'_> {
    /// Ends it where masks are too many to be compared.
    pub(super) fn refuse_masks(&self, problems: &mut Findings) {
        let mut masks: ByMask<Image, ()> = ByMask::default();
        let beyond = self.candidates.iter().find(|candidate| {
            masks.insert(candidate.cube.mask, ());
            masks.len() > MAX_MASKS
        });
        let Some(Candidate { rule, .. }) = beyond else { return };
        let obstacle = Obstacle {
            rule: self.plan.number(*rule),
            reason: format!(
                "the policy takes more than {MAX_MASKS} different masks up to the rule `{}`",
                self.plan.name(*rule)
            ),
            limit: format!("{MAX_MASKS} masks"),
            errno: None,
            remedy: "use fewer different prefix lengths, port ranges, masks of addresses and keys".to_owned(),
        };
        problems.refuse(self.plan.place(*rule), "up to here", obstacle);
    }

    /// Spends flows to save masks, where the device has too few of these: first over all priorities, then
    /// within each.
    pub(crate) fn save_masks(&mut self, ranking: &mut Ranking) {
        let profile = self.plan.profile;
        let most_flows = profile.max_flows.map_or(MAX_FLOWS, |most| (most as usize / 2).min(MAX_FLOWS));
        let budget = |flows: usize| most_flows.saturating_sub(flows);
        if let Some(most) = profile.max_shapes {
            let flows = ranking.kept.len();
            cluster(&mut self.candidates, &mut ranking.kept, most as usize, budget(flows));
            // Another program, with masks of its own, is to find room beside this one: worth some flows.
            let flows = ranking.kept.len();
            let spare = budget(flows).min(flows / 4);
            cluster(&mut self.candidates, &mut ranking.kept, most as usize / 2, spare);
        }
        let Some(table) = profile.priority_table else { return };
        let ranks = ranking.kept.iter().map(|(_, rank)| rank + 1).max().unwrap_or(0);
        let offered = profile.priorities_per_program();
        if pack(&self.candidates, &ranking.kept, profile).fits(offered) || ranks > offered {
            return;
        }
        self.save_masks_in_ranks(ranking, table);
    }

    /// As few as the priorities demand: the more of them a rank may spread over, the more masks it keeps.
    fn save_masks_in_ranks(&mut self, ranking: &mut Ranking, table: PriorityTable) {
        let profile = self.plan.profile;
        let offered = profile.priorities_per_program();
        let mut by_rank: BTreeMap<Option<u32>, Vec<(usize, u32)>> = BTreeMap::new();
        for (index, rank) in &ranking.kept {
            let own = (!self.candidates[*index].comes_last(profile)).then_some(*rank);
            by_rank.entry(own).or_default().push((*index, *rank));
        }
        let before = self.candidates.len();
        for priorities in (1..=offered).rev() {
            self.candidates.truncate(before);
            let mut saved = by_rank.clone();
            for (rank, kept) in &mut saved {
                // What comes after all others has one priority.
                let masks = (table.groups * rank.map_or(1, |_| priorities)) as usize;
                let room = masks * table.group_entries as usize;
                let budget = room.saturating_sub(kept.len());
                cluster(&mut self.candidates, kept, masks, budget);
            }
            ranking.kept = saved.into_values().flatten().collect();
            if pack(&self.candidates, &ranking.kept, profile).fits(offered) {
                break;
            }
        }
        ranking.kept.sort_by_key(|(index, _)| (self.candidates[*index].rule, *index));
    }

    /// What of it the device has too little of; gives the flows their priorities.
    pub(crate) fn pack(&self, ranking: &Ranking, problems: &mut Findings) -> Packed {
        let (plan, profile) = (&self.plan, self.plan.profile);
        let device = &profile.name;
        let packed = pack(&self.candidates, &ranking.kept, profile);
        let priorities = profile.priorities_per_program();
        if packed.priorities > priorities {
            self.too_many_priorities(ranking, &packed, problems);
        }
        self.multicast(&packed, problems);
        let flows = ranking.kept.len();
        let before = plan.previous.map_or(0, |previous| previous.flows.len());
        let most = profile.max_flows.map_or(MAX_FLOWS, |most| (most as usize).saturating_sub(before));
        if let Some((index, _)) = ranking.kept.get(most.min(MAX_FLOWS)) {
            let rule = self.candidates[*index].rule;
            let room =
                if before > 0 { format!(", {before} of them the program before") } else { String::new() };
            let most = profile.max_flows.map_or(MAX_FLOWS, |most| most as usize);
            let obstacle = Obstacle {
                rule: plan.number(rule),
                reason: format!("the policy takes {flows} flows, `{device}` has {most}{room}"),
                limit: format!("{most} flows"),
                errno: Some(profile.errno(Limit::Flows)),
                remedy: "a reload needs the old and the new flows at once; use shorter lists".to_owned(),
            };
            problems.refuse(plan.place(rule), "up to here they fit", obstacle);
        }
        let reading = emit::Reading::of(profile);
        let kept = ranking.kept.iter().map(|(index, _)| &self.candidates[*index]);
        let longest =
            kept.map(|candidate| (emit::spec_count(&candidate.cube, reading), candidate.rule)).max();
        if let Some((specs, rule)) = longest.filter(|(specs, _)| specs + ACTION_SPECS > profile.max_specs) {
            let obstacle = Obstacle {
                rule: plan.number(rule),
                reason: format!(
                    "a flow of the rule `{}` takes {specs} specs and two actions",
                    plan.name(rule)
                ),
                limit: format!("`{device}` takes {} together", profile.max_specs),
                errno: Some(profile.errno(Limit::Specs)),
                remedy: "match fewer layers in one rule".to_owned(),
            };
            problems.refuse(plan.place(rule), "", obstacle);
        }
        packed
    }

    fn too_many_priorities(&self, ranking: &Ranking, packed: &Packed, problems: &mut Findings) {
        let (plan, offered) = (&self.plan, self.plan.profile.priorities_per_program());
        let (device, used) = (&plan.profile.name, packed.priorities);
        let ranks = ranking.longest.last().map_or(0, |(_, rank)| rank + 1);
        let Shortage { rule, label, limit, remedy } = match &packed.widest {
            Some(widest) if ranks <= offered => self.too_many_masks(widest),
            _ => self.too_long_a_chain(ranking, offered),
        };
        let obstacle = Obstacle {
            rule: plan.number(rule),
            reason: format!("the policy needs {used} priorities, `{device}` has {offered} for it"),
            limit,
            errno: Some(plan.profile.errno(Limit::Priorities)),
            remedy,
        };
        problems.refuse(plan.place(rule), label, obstacle);
    }

    /// Flows that need no order need priorities all the same where each takes few masks.
    fn too_many_masks(&self, widest: &Widest) -> Shortage {
        let table = self.plan.profile.priority_table;
        let limit = table.map_or(String::new(), |table| {
            format!("{} masks of {} flows each in one priority", table.groups, table.group_entries)
        });
        let remedy = format!(
            "{} masks in one place take {} priorities: use fewer prefix lengths and port ranges",
            widest.masks, widest.priorities
        );
        let rule = self.candidates[widest.candidate].rule;
        Shortage { rule, label: "one of its masks is the rarest", limit, remedy }
    }

    /// Rules that share packets with one another in turn: named are the two between which the priorities end.
    fn too_long_a_chain(&self, ranking: &Ranking, offered: u32) -> Shortage {
        let rule_of = |place: &(usize, u32)| self.candidates[place.0].rule;
        let limit = format!("{offered} priorities");
        let last = ranking.longest.iter().position(|(_, rank)| *rank >= offered).unwrap_or(0);
        let upto = &ranking.longest[..ranking.longest.len().min(last + 1)];
        // Flows of one rule rank apart as well, by their hash variants.
        let pairs = upto.windows(2).rev();
        let Some([above, below]) = pairs.clone().find(|pair| rule_of(&pair[0]) != rule_of(&pair[1])) else {
            let remedy = "its hash variants (TCP, UDP, other IP, the rest) take a priority each: hash = \"l3\" \
                          takes fewer, \"none\" one";
            let rule = ranking.longest.last().map_or(0, rule_of);
            return Shortage {
                rule,
                label: "has too many flows that overlap",
                limit,
                remedy: remedy.to_owned(),
            };
        };
        let mut chain: Vec<&str> =
            ranking.longest.iter().map(|place| self.plan.name(rule_of(place))).collect();
        chain.dedup();
        let example = shared(&self.candidates[above.0].cube, &self.candidates[below.0].cube);
        let example = example.map_or(String::new(), |packet| format!(", as both take {}", packet.fields()));
        let in_turn = match &*chain {
            [_, _] => String::new(),
            chain => format!("; so do in turn {}", shortened_chain(chain)),
        };
        let variants = match chain.len() < ranking.longest.len() {
            true => "; hash = \"l3\" or \"none\" takes fewer priorities for each of them",
            false => "",
        };
        let remedy = format!(
            "`{}` goes before `{}`{example}{in_turn}: narrow one of them until it shares no packet with the \
             next{variants}",
            self.plan.name(rule_of(above)),
            self.plan.name(rule_of(below)),
        );
        Shortage { rule: rule_of(below), label: "no priority is left for this rule", limit, remedy }
    }
}

/// What there are too few priorities for.
struct Shortage {
    rule: usize,
    label: &'static str,
    limit: String,
    remedy: String,
}

/// A class with so many questions is too long, or all classes up to this rule's are.
pub(super) fn too_many_steps(plan: &Plan<'_>, rule: usize, steps: usize, problems: &mut Findings) {
    let (reason, remedy) = match plan.policy.rules.get(rule) {
        Some(rule) if steps <= MAX_STEPS => (
            format!(
                "workers would hold more than {MAX_STEPS_IN_ALL} questions up to the rule `{}`",
                rule.name
            ),
            "each hybrid rule is followed by those that share packets with it: add exact keys beside the hybrid \
             ones, so that fewer do",
        ),
        Some(rule) => (
            format!("packets of the rule `{}` may belong to more than {MAX_STEPS} rules", rule.name),
            "a worker would try them one by one: add exact keys beside the hybrid ones, so that fewer rules \
             share packets with this one",
        ),
        None => (
            format!("every packet may belong to more than {MAX_STEPS} rules"),
            "the device has no flow tags, so a worker would try them one by one: write fewer rules",
        ),
    };
    let obstacle = Obstacle {
        rule: plan.number(rule),
        reason,
        limit: match steps <= MAX_STEPS {
            true => format!("{MAX_STEPS_IN_ALL} questions in a program"),
            false => format!("{MAX_STEPS} questions per packet"),
        },
        errno: None,
        remedy: remedy.to_owned(),
    };
    problems.refuse(plan.place(rule), "decided by the worker", obstacle);
}

/// The policy has reached [`MAX_FLOWS`] at this rule.
pub(crate) fn too_many_flows(policy: &Policy, rule: usize, problems: &mut Findings) {
    let definition = policy.rules.get(rule);
    let obstacle = Obstacle {
        rule: definition.map(|_| rule),
        reason: match definition {
            Some(rule) => {
                format!("the policy takes more than {MAX_FLOWS} flows up to the rule `{}`", rule.name)
            }
            None => format!("the policy takes more than {MAX_FLOWS} flows"),
        },
        limit: format!("{MAX_FLOWS} flows"),
        errno: None,
        remedy: "use shorter lists or wider prefixes".to_owned(),
    };
    problems.refuse(definition.map_or(&policy.default_place, |rule| &rule.place), "up to here", obstacle);
}

fn shortened_chain(chain: &[&str]) -> String {
    const SHOWN: usize = 6;
    match chain.len() {
        length if length > SHOWN => format!("{}, ... {length} rules", chain[..SHOWN].join(", ")),
        _ => chain.join(", "),
    }
}
