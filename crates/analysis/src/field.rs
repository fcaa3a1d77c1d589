//! The coordinates of a packet: every number in its headers that a match can ask about. `kind` says which
//! packets have which; what a field's values mean for bytes is known to `witness` alone.

/// Whether a field is of the packet itself or of the packet inside its first tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Level {
    Outer,
    Inner,
}

/// One coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Field {
    Dst4(Level),
    Src4(Level),
    DstPort(Level),
    SrcPort(Level),
    Protocol(Level),
    Dst6(Level),
    Src6(Level),
    DstMac(Level),
    SrcMac(Level),
    EtherType(Level),
    VlanId(Level),
    VlanPriority(Level),
    VlanTpid(Level),
    SecondId(Level),
    SecondTpid(Level),
    Tos(Level),
    Ttl(Level),
    FlowLabel(Level),
    /// IPv4: eight times 0 (whole), 1 (first fragment) or 2 (later fragment), and the three flag bits: the
    /// lowest of those says that more fragments follow, so the two are not free of each other.
    FlagsAndFragment(Level),
    /// IPv6 behind a fragment header: 0 the first fragment, 1 a later one.
    Fragment6(Level),
    Options(Level),
    TcpFlags(Level),
    /// Of the label stack from the top; the packet inside has entry 0 only.
    Label(Level, u8),
    LabelClass(Level, u8),
    LabelTtl(Level, u8),
    EspSpi,
    EspSeq,
    Vni,
    GreProtocol,
    GreKey,
    /// The upper byte of the first word.
    GreFlags,
}

impl Field {
    /// How many bits its values have.
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Dst4(_) | Self::Src4(_) | Self::EspSpi | Self::EspSeq | Self::GreKey => 32,
            Self::Dst6(_) | Self::Src6(_) => 128,
            Self::DstMac(_) | Self::SrcMac(_) => 48,
            Self::DstPort(_)
            | Self::SrcPort(_)
            | Self::EtherType(_)
            | Self::VlanTpid(_)
            | Self::SecondTpid(_)
            | Self::GreProtocol => 16,
            Self::Protocol(_)
            | Self::Tos(_)
            | Self::Ttl(_)
            | Self::TcpFlags(_)
            | Self::LabelTtl(..)
            | Self::GreFlags => 8,
            Self::VlanId(_) | Self::SecondId(_) => 12,
            Self::VlanPriority(_) | Self::LabelClass(..) => 3,
            Self::FlowLabel(_) | Self::Label(..) => 20,
            Self::FlagsAndFragment(_) => 5,
            Self::Fragment6(_) | Self::Options(_) => 1,
            Self::Vni => 24,
        }
    }

    /// Its largest value, were all its bits free.
    pub(super) const fn most(self) -> u128 {
        u128::MAX >> (u128::BITS - self.bits())
    }

    /// Every field.
    pub(super) fn all() -> Vec<Self> {
        let mut all =
            vec![Self::EspSpi, Self::EspSeq, Self::Vni, Self::GreProtocol, Self::GreKey, Self::GreFlags];
        for level in [Level::Outer, Level::Inner] {
            let labels = if level == Level::Outer { packet::MAX_MPLS_LABELS as u8 } else { 1 };
            for entry in 0..labels {
                all.extend([
                    Self::Label(level, entry),
                    Self::LabelClass(level, entry),
                    Self::LabelTtl(level, entry),
                ]);
            }
            all.extend(PACKET_FIELDS.map(|of| of(level)));
        }
        all.sort_unstable();
        all
    }
}

const PACKET_FIELDS: [fn(Level) -> Field; 22] = [
    Field::Dst4,
    Field::Src4,
    Field::DstPort,
    Field::SrcPort,
    Field::Protocol,
    Field::Dst6,
    Field::Src6,
    Field::DstMac,
    Field::SrcMac,
    Field::EtherType,
    Field::VlanId,
    Field::VlanPriority,
    Field::VlanTpid,
    Field::SecondId,
    Field::SecondTpid,
    Field::Tos,
    Field::Ttl,
    Field::FlowLabel,
    Field::FlagsAndFragment,
    Field::Fragment6,
    Field::Options,
    Field::TcpFlags,
];

/// The code of [`Field::FlagsAndFragment`] for an unfragmented packet, the first fragment, a later one.
pub(super) const FRAGMENT_CODES: [u8; 3] = [0, 8, 16];
