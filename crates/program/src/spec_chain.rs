//! The specs of a flow, in a form in which flows of several programs share them.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, OnceLock};

use flow_spec::{FlowSpec, PortMatch};
use packet::DeepKey;
use packet::cube::Cube;

use crate::flow_cube::cube_of;

/// The specs of a flow, outer headers first.
///
/// Clones share them, and so may equal chains of programs that follow each other
/// ([`Program::share_specs`](crate::Program::share_specs)): these are compared without a look at the specs.
/// The first call of [`SpecChain::cube`] or [`SpecChain::mask_digest`] stores the cube, which takes 320
/// bytes.
#[derive(Clone)]
pub struct SpecChain {
    shared: Arc<Shared>,
    // These are asked of thousands of flows in a row, so they are not behind the pointer.
    digest: u64,
    front: FlowFront,
    is_multicast: bool,
    // A copy of the shared one, which is asked of thousands of flows as well.
    mask_digest: OnceLock<u64>,
}

/// The random keys of all digests, chosen once for each process.
pub(crate) static DIGEST_KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

struct Shared {
    specs: Box<[FlowSpec]>,
    inner_from: usize,
    // These are computed when they are asked for.
    cube: OnceLock<Option<Box<Cube>>>,
    mask_digest: OnceLock<u64>,
}

impl SpecChain {
    /// A chain of these specs. `inner_from` is the index of the first spec of the packet inside a tunnel;
    /// `specs.len()` if there is none.
    #[must_use]
    pub fn new(specs: Vec<FlowSpec>, inner_from: usize) -> Self {
        let outer = &specs[..inner_from.min(specs.len())];
        Self {
            digest: DIGEST_KEYS.hash_one((inner_from, &specs)),
            front: FlowFront::of(outer),
            is_multicast: outer.first().is_some_and(is_multicast),
            shared: Arc::new(Shared {
                specs: specs.into(),
                inner_from,
                cube: OnceLock::new(),
                mask_digest: OnceLock::new(),
            }),
            mask_digest: OnceLock::new(),
        }
    }

    /// A chain without a spec of the packet inside a tunnel.
    #[must_use]
    pub fn outer(specs: Vec<FlowSpec>) -> Self {
        let inner_from = specs.len();
        Self::new(specs, inner_from)
    }

    /// The index of the first spec of the packet inside a tunnel; the number of specs if there is none.
    #[must_use]
    pub fn inner_from(&self) -> usize {
        self.shared.inner_from
    }

    /// The part of the match that tells most pairs of flows apart.
    #[must_use]
    pub fn front(&self) -> FlowFront {
        self.front
    }

    /// The packets that match all specs, with everything implied; `None` if no packet has these headers.
    #[must_use]
    pub fn cube(&self) -> Option<&Cube> {
        let compute = || cube_of(self, self.inner_from()).map(Box::new);
        self.shared.cube.get_or_init(compute).as_deref()
    }

    /// A digest of the bits that a device compares ([`Cube::matchable_mask`]). Chains with equal masks have
    /// equal digests; others differ, as a rule. If they do not, a device may have no room that it was
    /// expected to have.
    #[must_use]
    pub fn mask_digest(&self) -> u64 {
        let mask = || self.cube().unwrap_or(&Cube::ANY).matchable_mask();
        let shared = || *self.shared.mask_digest.get_or_init(|| DIGEST_KEYS.hash_one(mask()));
        *self.mask_digest.get_or_init(shared)
    }

    /// A digest of the specs. Two chains that differ have the same one with a probability of 2^-64, even if
    /// an attacker chooses them, because the keys are random.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether the first spec, of the outer packet, asks for a multicast address.
    pub(crate) fn begins_with_multicast(&self) -> bool {
        self.is_multicast
    }

    /// Whether a packet matches every spec.
    #[must_use]
    pub fn matches(&self, key: &DeepKey) -> bool {
        self.iter().enumerate().all(|(index, spec)| spec.matches_deep(key, index >= self.inner_from()))
    }
}

/// Whether mlx5 takes the spec for one of multicast (Linux drivers/infiniband/hw/mlx5/fs.c,
/// `flow_is_multicast_only`): an Ethernet address by value and mask, an IPv4 address by the value.
fn is_multicast(spec: &FlowSpec) -> bool {
    let is_multicast = |address: u32| Ipv4Addr::from_bits(address).is_multicast();
    match spec {
        FlowSpec::Ethernet { value, mask } => value.dst_mac[0] & mask.dst_mac[0] & 1 == 1,
        FlowSpec::Ipv4 { value, .. } => is_multicast(value.dst),
        FlowSpec::Ipv4Ext { value, .. } => is_multicast(value.dst),
        _ => false,
    }
}

impl Deref for SpecChain {
    type Target = [FlowSpec];

    fn deref(&self) -> &[FlowSpec] {
        &self.shared.specs
    }
}

impl PartialEq for SpecChain {
    fn eq(&self, other: &Self) -> bool {
        let has_same_specs = || self.inner_from() == other.inner_from() && **self == **other;
        self.digest == other.digest && (Arc::ptr_eq(&self.shared, &other.shared) || has_same_specs())
    }
}

impl Eq for SpecChain {}

impl Hash for SpecChain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

impl fmt::Debug for SpecChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (outer, inside) = self.split_at(self.inner_from().min(self.len()));
        f.debug_struct("SpecChain").field("outer", &outer).field("inside", &inside).finish()
    }
}

/// The IPv4 addresses and the ports of the outer packet that a flow asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowFront {
    value: [u64; 2],
    mask: [u64; 2],
}

impl FlowFront {
    fn of(outer: &[FlowSpec]) -> Self {
        let mut front = Self::default();
        for spec in outer {
            let (word, value, mask) = match spec {
                FlowSpec::Ipv4 { value, mask } => (0, [value.src, value.dst], [mask.src, mask.dst]),
                FlowSpec::Ipv4Ext { value, mask } => (0, [value.src, value.dst], [mask.src, mask.dst]),
                FlowSpec::Udp { value, mask } | FlowSpec::Tcp { value, mask } => {
                    let ports = |of: &PortMatch| [u32::from(of.src_port), u32::from(of.dst_port)];
                    (1, ports(value), ports(mask))
                }
                _ => continue,
            };
            let join = |[high, low]: [u32; 2]| u64::from(high) << 32 | u64::from(low);
            (front.value[word], front.mask[word]) = (join(value), join(mask));
        }
        front
    }

    /// Whether two flows plainly share no packets. False: they may.
    #[must_use]
    #[inline]
    pub fn is_apart(&self, other: &Self) -> bool {
        (0..2).any(|word| (self.value[word] ^ other.value[word]) & self.mask[word] & other.mask[word] != 0)
    }
}
