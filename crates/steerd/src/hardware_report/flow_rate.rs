//! How fast a device installs and removes flows, and where it refuses: by `ibv_create_flow` itself, on a
//! queue of the report's own.
//!
//! None of these flows takes a packet of others (`target`), and all are removed when a pattern ends, however
//! it ends: handles remove their flows when they are dropped, and the kernel removes those of a process that
//! is killed (uverbs_destroy_ufile_hw).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs::{
    Context, EthernetMatch, FlowAttr, FlowHandle, FlowKind, FlowSpec, FlowTarget, Ipv4Match, PortNumber,
    VerbsErrno,
};

use super::target::TEST_MAC;
use super::{FlowEvidence, PatternResult, ReportError, UNTIL_REFUSED};

/// Addresses for benchmarks (RFC 2544), and how many there are: twice what mlx5 keeps at one priority
/// (crates/device-model/models/mlx5.toml, `priority_table`).
const ADDRESSES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const BENCHMARK_ADDRESSES: u32 = 1 << 17;
pub(super) const OTHER_ADDRESSES: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
/// The longest time for adding the flows of a pattern, in which a device with 5,000 flows a second installs
/// all of the longest one. Their removal has no bound: all have to go.
const PATTERN_TIME: Duration = Duration::from_secs(30);
/// Flows of a pattern that differ in the bits that every mask has, per mask.
const PER_MASK: u32 = 16;
/// The number of the lowest of these bits.
const PER_MASK_SHIFT: u32 = 8;

/// A set of flows to install.
#[derive(Clone, Copy, Debug)]
struct FlowPattern {
    name: &'static str,
    masks: u32,
    flows: u32,
    /// The match of one of them, by its number.
    address: fn(u32) -> AddressMatch,
}

/// A match of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressMatch {
    pub(super) value: Ipv4Match,
    pub(super) mask: Ipv4Match,
}

/// The patterns of a report.
const PATTERNS: [FlowPattern; 4] = [
    FlowPattern { name: "one_mask", masks: 1, flows: 4096, address: one_mask },
    FlowPattern { name: "sixteen_of_each_mask", masks: 64, flows: 64 * PER_MASK, address: sixteen_of_each },
    FlowPattern { name: "one_of_each_mask", masks: 512, flows: 512, address: one_of_each },
    FlowPattern { name: UNTIL_REFUSED, masks: 1, flows: BENCHMARK_ADDRESSES, address: one_mask },
];
/// With `--quick` so many times fewer.
const QUICK: u32 = 16;

/// Flows that differ in their destination.
fn one_mask(number: u32) -> AddressMatch {
    let dst = u32::from(ADDRESSES) + number;
    AddressMatch { value: Ipv4Match { src: 0, dst }, mask: Ipv4Match { src: 0, dst: u32::MAX } }
}

/// 64 masks, of /25 to /32 of the source and /17 to /24 of the destination. Their values differ in bits that
/// all masks of the source have.
fn sixteen_of_each(number: u32) -> AddressMatch {
    let (mask, value) = (number / PER_MASK, number % PER_MASK);
    let mask = Ipv4Match { src: prefix(25 + mask / 8), dst: prefix(17 + mask % 8) };
    let src = u32::from(ADDRESSES) + (value << PER_MASK_SHIFT);
    let value = Ipv4Match { src: src & mask.src, dst: u32::from(OTHER_ADDRESSES) & mask.dst };
    AddressMatch { value, mask }
}

/// 512 masks: /1 to /32 of the source and /17 to /32 of the destination.
pub(super) fn one_of_each(number: u32) -> AddressMatch {
    let mask = Ipv4Match { src: prefix(1 + number / 16), dst: prefix(17 + number % 16) };
    let src = u32::from(ADDRESSES) & mask.src;
    AddressMatch { value: Ipv4Match { src, dst: u32::from(ADDRESSES) & mask.dst }, mask }
}

/// The mask of a prefix of 1 to 32 bits.
fn prefix(bits: u32) -> u32 {
    u32::MAX << (u32::BITS - bits)
}

/// A normal flow for frames to the test address and one of these addresses.
pub(super) fn flow(port: PortNumber, priority: u16, address: AddressMatch) -> FlowAttr {
    let ethernet = FlowSpec::Ethernet {
        value: EthernetMatch { dst_mac: TEST_MAC.0, ..EthernetMatch::default() },
        mask: EthernetMatch { dst_mac: [0xff; 6], ..EthernetMatch::default() },
    };
    let AddressMatch { value, mask } = address;
    FlowAttr::new(FlowKind::Normal, port)
        .spec(ethernet)
        .spec(FlowSpec::Ipv4 { value, mask })
        .priority(priority)
}

/// The name of the errno of a refusal.
pub(super) fn refusal(error: &verbs::VerbsError) -> String {
    let Some(errno) = error.errno() else { return error.to_string() };
    VerbsErrno(errno).name().map_or_else(|| format!("errno {errno}"), str::to_owned)
}

/// Installed flows; all are removed when this is dropped.
#[derive(Default)]
pub(super) struct InstalledFlows(Vec<FlowHandle>);

impl InstalledFlows {
    /// Adds a flow.
    pub(super) fn add(&mut self, target: &FlowTarget, attr: &FlowAttr) -> Result<(), verbs::VerbsError> {
        self.0.push(FlowHandle::create(target, attr)?);
        Ok(())
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Removes all and returns how many the device refused to remove.
    fn remove(&mut self) -> u32 {
        self.0.drain(..).map(|flow| u32::from(flow.destroy().is_err())).sum()
    }
}

/// Measures all patterns. `priorities`: how many the device has.
///
/// # Errors
/// The device refuses a queue, or the process may make no flow.
pub(super) fn measure(
    context: &Arc<Context>,
    port: PortNumber,
    priorities: u32,
    is_quick: bool,
    steps: &mut dyn FnMut(&str),
    is_stopped: &dyn Fn() -> bool,
) -> Result<FlowEvidence, ReportError> {
    let target = control::unused_target(context).map_err(ReportError::Verbs)?;
    let priority = u16::try_from(priorities.saturating_sub(1)).unwrap_or(u16::MAX);
    let mut evidence = FlowEvidence { priority, left_behind: 0, patterns: Vec::new() };
    for pattern in PATTERNS {
        if is_stopped() {
            break;
        }
        let scale = if is_quick { QUICK } else { 1 };
        let (flows, masks) = (pattern.flows / scale, (pattern.masks / scale).max(1));
        let pattern = FlowPattern { flows, masks, ..pattern };
        steps(pattern.name);
        let attr = |number| flow(port, priority, (pattern.address)(number));
        let (result, left_behind) = run(&target, pattern, &attr, is_stopped);
        if evidence.patterns.is_empty()
            && result.installed == 0
            && result.ended_by.as_deref() == Some("EPERM")
        {
            return Err(ReportError::NotPermitted);
        }
        evidence.left_behind += left_behind;
        evidence.patterns.push(result);
    }
    Ok(evidence)
}

/// Installs the flows of a pattern and removes them. Returns the result and the flows that could not be
/// removed.
fn run(
    target: &FlowTarget,
    pattern: FlowPattern,
    attr: &dyn Fn(u32) -> FlowAttr,
    is_stopped: &dyn Fn() -> bool,
) -> (PatternResult, u32) {
    let mut flows = InstalledFlows::default();
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    let mut last = begun;
    let mut ended_by = None;
    for number in 0..pattern.flows {
        if is_stopped() {
            ended_by = Some("interrupted".to_owned());
            break;
        }
        if last - begun > PATTERN_TIME {
            ended_by = Some("time".to_owned());
            break;
        }
        if let Err(error) = flows.add(target, &attr(number)) {
            ended_by = Some(refusal(&error));
            break;
        }
        let now = Instant::now();
        slowest = slowest.max(now - last);
        last = now;
    }
    let installed = flows.len();
    let inserting = last - begun;
    let removing = Instant::now();
    let left_behind = flows.remove();
    let result = PatternResult {
        name: pattern.name.to_owned(),
        masks: pattern.masks,
        wanted: pattern.flows,
        installed,
        ended_by,
        inserts_per_second: per_second(u64::from(installed), inserting),
        removes_per_second: per_second(u64::from(installed - left_behind), removing.elapsed()),
        slowest_insert_us: slowest.as_micros() as u64,
    };
    (result, left_behind)
}

/// A rate; 0 of nothing.
pub(super) fn per_second(count: u64, time: Duration) -> u64 {
    let nanoseconds = time.as_nanos().max(1);
    u64::try_from(u128::from(count) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;

    use super::*;
    use crate::hardware_report::target::OpenTarget;
    use softnic::Personality;
    use verbs::{ActionSpec, FlowTag};

    fn matches(pattern: FlowPattern) -> Vec<AddressMatch> {
        (0..pattern.flows).map(pattern.address).collect()
    }

    #[test]
    fn patterns_have_their_flows_and_masks() {
        for pattern in PATTERNS {
            let all = matches(pattern);
            let flows: HashSet<String> = all.iter().map(|one| format!("{one:?}")).collect();
            let masks: HashSet<String> = all.iter().map(|one| format!("{:?}", one.mask)).collect();
            assert_eq!(flows.len() as u32, pattern.flows, "{}", pattern.name);
            assert_eq!(masks.len() as u32, pattern.masks, "{}", pattern.name);
            for AddressMatch { value, mask } in all {
                assert_eq!((value.src & !mask.src, value.dst & !mask.dst), (0, 0), "{}", pattern.name);
            }
        }
    }

    /// A destination within 198.18.0.0/15 is in the match of every flow.
    #[test]
    fn flows_match_addresses_for_benchmarks_only() {
        for one in PATTERNS.into_iter().flat_map(matches) {
            let benchmarks = prefix(15);
            assert_eq!(one.mask.dst & benchmarks, benchmarks);
            assert_eq!(one.value.dst & benchmarks, u32::from(ADDRESSES), "{one:?}");
        }
    }

    /// A soft NIC of an mlx5; `None`, reported, without the right to create flows.
    fn rig() -> Option<(OpenTarget, FlowTarget)> {
        let open = OpenTarget::soft("report0", Personality::Mlx5).expect("a soft NIC");
        let target = control::unused_target(&open.context).expect("a queue");
        match FlowHandle::create(&target, &flow(open.port, 0, one_mask(0))) {
            Ok(_) => Some((open, target)),
            Err(error) => {
                test_support::not_run("flow rates", &error.to_string());
                None
            }
        }
    }

    #[test]
    fn an_interrupted_pattern_leaves_no_flow() {
        let Some((open, target)) = rig() else { return };
        let asked = Cell::new(0);
        let is_stopped = || {
            asked.set(asked.get() + 1);
            asked.get() > 100
        };
        let attr = |number| flow(open.port, 15, one_mask(number));
        let pattern = FlowPattern { name: "test", masks: 1, flows: 4096, address: one_mask };
        let (result, left_behind) = run(&target, pattern, &attr, &is_stopped);
        assert_eq!((result.installed, result.ended_by.as_deref()), (100, Some("interrupted")));
        assert_eq!(left_behind, 0);
        // A flow is refused while one of the same match has another tag.
        let tagged = |number, tag| attr(number).action(ActionSpec::Tag(FlowTag(tag)));
        let mut again = InstalledFlows::default();
        for number in 0..100 {
            again.add(&target, &tagged(number, 1)).expect("the flow is gone");
        }
        let refused = again.add(&target, &tagged(7, 2)).expect_err("the check above can fail");
        assert_eq!(refusal(&refused), "EEXIST");
    }

    #[test]
    fn the_first_refusal_is_named() {
        let Some((open, target)) = rig() else { return };
        let tag = |number| ActionSpec::Tag(FlowTag(number));
        let attr = |number: u32| flow(open.port, 15, one_mask(number % 10)).action(tag(number));
        let pattern = FlowPattern { name: "test", masks: 1, flows: 64, address: one_mask };
        let (result, _) = run(&target, pattern, &attr, &|| false);
        assert_eq!((result.installed, result.ended_by.as_deref()), (10, Some("EEXIST")));
    }
}
