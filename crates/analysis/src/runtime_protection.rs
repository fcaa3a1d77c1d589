//! Whether rules at run time take protected packets: the rules of the policy before them are indexed once,
//! and asked about any number of rules at run time.
//!
//! A rule takes protected packets if some packet matches it and a protected match, and no earlier final rule
//! of the policy. The dimensions are cut at the values of the policy and of `[protect]` only, so the product
//! of a rule at run time has whole segments, in which its values are. That changes no answer: two values of a
//! segment are in the same conditions of all earlier rules and protected matches, so if a packet with one of
//! them is free and protected, so is the same packet with the other. Rules with the same segments have the
//! same answer, which is kept.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};

use policy::Policy;
use policy::policy::Direction;
use program::{AddressPrefix, Match, ProtocolNumber, RuntimeFields, RuntimeMatch};

use crate::product::Product;
use crate::rule_list::{RuleList, is_final};
use crate::search::{Cover, Free, Space};

/// The most answers that are kept.
const KEPT_MAX: usize = 1 << 16;

/// The earlier rules and protected packets of one policy.
pub struct RuntimeProtection {
    space: Space,
    /// The rules before those at run time, and the default behind them, which decides nothing here.
    earlier: RuleList,
    default: u32,
    /// The products of each protected match.
    protected: Vec<Vec<Product>>,
    forms: Vec<RuntimeFields>,
    /// The protected matches, for each form, of which its rules can take a packet, or for which that is not
    /// known.
    open: Vec<Vec<usize>>,
    /// The answers by the products of rules.
    known: RefCell<HashMap<Product, Option<usize>>>,
}

impl RuntimeProtection {
    /// Indexes the rules of a policy; `None`: it protects nothing, or allows no rules at run time.
    #[must_use]
    pub fn of(policy: &Policy) -> Option<Self> {
        let runtime = policy.runtime.as_ref()?;
        let protected = policy.protect.as_deref().filter(|protected| !protected.is_empty())?;
        let mut earlier = policy.clone();
        earlier.rules.truncate(runtime.before);
        // So that each field of a form has a dimension.
        let examples: Vec<Match> = runtime.forms.iter().map(|form| example(*form).to_match()).collect();
        let forms: Vec<Match> = runtime.forms.iter().map(|form| form.to_match()).collect();
        let others = protected.iter().map(|protected| &protected.matches).chain(&examples).chain(&forms);
        let space = Space::with(&[&earlier], others);
        let products = |matches: &Match| space.dimensions.products(matches);
        let mut protection = Self {
            earlier: RuleList::of(&space.dimensions, &earlier, Direction::Ingress, &|group, _| group),
            default: earlier.rules.len() as u32,
            protected: protected.iter().map(|protected| products(&protected.matches)).collect(),
            forms: runtime.forms.clone(),
            open: Vec::new(),
            known: RefCell::default(),
            space,
        };
        let all = 0..protected.len();
        protection.open = forms
            .iter()
            .map(|form| all.clone().filter(|index| protection.takes(form, *index)).collect())
            .collect();
        Some(protection)
    }

    /// Whether no rule of this form takes a protected packet.
    #[must_use]
    pub fn is_safe_form(&self, form: &RuntimeFields) -> bool {
        self.forms.iter().position(|known| known == form).is_none_or(|index| self.open[index].is_empty())
    }

    /// The index of a protected match of which a rule takes a packet, or of which that is not decided within
    /// the limits.
    #[must_use]
    pub fn taken_by(&self, matches: &RuntimeMatch) -> Option<usize> {
        let fields = matches.fields().ok()?;
        let form = self.forms.iter().position(|form| *form == fields)?;
        if self.open[form].is_empty() {
            return None;
        }
        let wide = matches.to_match();
        // A rule at run time compares no MAC address, so it is one product.
        let product = self.space.dimensions.products(&wide).pop()?;
        if let Some(found) = self.known.borrow().get(&product) {
            return *found;
        }
        let found = self.open[form].iter().copied().find(|index| self.takes(&wide, *index));
        let mut known = self.known.borrow_mut();
        if known.len() >= KEPT_MAX {
            known.clear();
        }
        known.insert(product, found);
        found
    }

    /// Whether a match has a packet of a protected match that no earlier rule decides, or that is not known.
    fn takes(&self, matches: &Match, protected: usize) -> bool {
        // Each question has the whole limit.
        self.space.renew();
        self.space.dimensions.products(matches).iter().any(|product| {
            self.protected[protected].iter().any(|protected| {
                let target = self.space.both(protected, product);
                let near = self.earlier.near(&self.space, &target);
                let decided =
                    near.iter().filter(|entry| entry.rule != self.default && is_final(entry.action));
                let decided: Vec<Cover<'_>> = decided.map(|entry| entry.cover()).collect();
                !matches!(self.space.free_of(&target, &decided, &mut BTreeSet::new()), Free::None)
            })
        })
    }
}

/// A rule of a form.
fn example(form: RuntimeFields) -> RuntimeMatch {
    let address =
        if form.is_v6 == Some(true) { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let prefix = |length: u8| (length > 0).then_some(AddressPrefix { address, length });
    RuntimeMatch {
        src: prefix(form.src),
        dst: prefix(form.dst),
        protocol: form.protocol.then_some(ProtocolNumber(0)),
        src_port: form.src_port.then_some(0),
        dst_port: form.dst_port.then_some(0),
        vlan: form.vlan.then_some(0),
    }
}
