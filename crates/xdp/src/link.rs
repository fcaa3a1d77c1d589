//! The facts about an interface that decide whether the program can be attached, by rtnetlink(7): aya
//! attaches programs, and does not answer this.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// An interface that gets its packets from others of the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StackedLink {
    /// The kind as the kernel names it: `bond`, `vlan`.
    pub(crate) kind: String,
    /// The names of the interfaces below it, as far as they are in this network namespace.
    pub(crate) below: Vec<String>,
}

/// Returns the number of the XDP program of an interface, in whatever mode it is attached; `None`: it has
/// none. `index`: the number of the interface.
///
/// # Errors
/// There is no such interface, or the kernel does not answer.
pub fn attached_program(index: u32) -> io::Result<Option<u32>> {
    Ok(program_of(&link(index)?))
}

/// Returns what an interface stands on, if it gets its packets from other interfaces.
///
/// The kernel merges packets (GRO) before such an interface sees them, except where the interface has an XDP
/// program; and a bond's packets keep the queue of its member, whose sockets are not those of the bond
/// (net/xdp/xsk.c, `xsk_rcv_check`).
pub(crate) fn stacked_link(index: u32) -> io::Result<Option<StackedLink>> {
    let link = link(index)?;
    let Some(kind) = kind_of(&link).filter(|kind| is_stacked(kind)) else { return Ok(None) };
    // The names are for people only: without them the interface is stacked all the same.
    let below = names_below(&link, &all_links().unwrap_or_default());
    Ok(Some(StackedLink { kind: kind.to_string(), below }))
}

fn is_stacked(kind: &InfoKind) -> bool {
    use InfoKind::*;
    matches!(
        kind,
        Bond | Team
            | Bridge
            | Vrf
            | Vlan
            | MacVlan
            | MacVtap
            | IpVlan
            | IpVtap
            | MacSec
            | Hsr
            | Vxlan
            | Geneve
            | GreTap
            | GreTap6
            | ErSpan
            | Ip6ErSpan
    )
}

/// The names of the interfaces that a link names as its own, or that name it as theirs.
fn names_below(link: &LinkMessage, all: &[LinkMessage]) -> Vec<String> {
    let own = first_attribute(link, |attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    // The number is then one of another network namespace.
    let elsewhere = first_attribute(link, |attribute| match attribute {
        LinkAttribute::LinkNetNsId(id) => Some(*id),
        _ => None,
    });
    let own = own.filter(|_| elsewhere.is_none());
    let below = all.iter().filter(|other| {
        let controller = first_attribute(other, |attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        });
        own == Some(other.header.index) || controller == Some(link.header.index)
    });
    let name = |other| {
        first_attribute(other, |attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })
    };
    below.filter_map(name).collect()
}

/// The first attribute of a link that has a value for this.
fn first_attribute<T>(link: &LinkMessage, value: impl Fn(&LinkAttribute) -> Option<T>) -> Option<T> {
    link.attributes.iter().find_map(value)
}

fn kind_of(link: &LinkMessage) -> Option<&InfoKind> {
    let infos = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos.flatten().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })
}

fn program_of(link: &LinkMessage) -> Option<u32> {
    let attributes = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::Xdp(attributes) => Some(attributes),
        _ => None,
    });
    attributes.flatten().find_map(|attribute| match attribute {
        LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id) => {
            Some(*id)
        }
        _ => None,
    })
}

/// The link of this number.
fn link(index: u32) -> io::Result<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    ask(link, NLM_F_REQUEST)?.pop().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// All links of this network namespace.
fn all_links() -> io::Result<Vec<LinkMessage>> {
    ask(LinkMessage::default(), NLM_F_REQUEST | NLM_F_DUMP)
}

/// Asks for links, and returns the answers.
fn ask(link: LinkMessage, flags: u16) -> io::Result<Vec<LinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetLink(link)));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut links = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let answer =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            // Messages start at multiples of 4 bytes (NLMSG_ALIGN).
            let bytes = (answer.header.length as usize).next_multiple_of(4);
            rest = rest.get(bytes..).unwrap_or_default();
            match answer.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => links.push(link),
                NetlinkPayload::Done(done) if done.code == 0 => return Ok(links),
                NetlinkPayload::Done(done) => return Err(io::Error::from_raw_os_error(-done.code)),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        if flags & NLM_F_DUMP != NLM_F_DUMP {
            return Ok(links);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(index: u32, name: &str, attributes: &[LinkAttribute]) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = attributes.to_vec();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link
    }

    fn kind(kind: InfoKind) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])
    }

    #[test]
    fn members_of_a_bond_are_below_it() {
        let bond = named(3, "bond0", &[kind(InfoKind::Bond)]);
        let all = [
            named(1, "eth0", &[LinkAttribute::Controller(3)]),
            named(2, "eth1", &[LinkAttribute::Controller(3)]),
            bond.clone(),
            named(4, "eth2", &[]),
        ];
        assert_eq!(names_below(&bond, &all), ["eth0", "eth1"]);
        assert!(kind_of(&bond).is_some_and(is_stacked));
    }

    #[test]
    fn a_vlan_stands_on_its_link() {
        let vlan = named(5, "eth0.7", &[kind(InfoKind::Vlan), LinkAttribute::Link(1)]);
        let all = [named(1, "eth0", &[]), named(2, "eth1", &[]), vlan.clone()];
        assert_eq!(names_below(&vlan, &all), ["eth0"]);
    }

    #[test]
    fn numbers_of_other_namespaces_name_nothing_here() {
        let attributes = [kind(InfoKind::MacVlan), LinkAttribute::Link(1), LinkAttribute::LinkNetNsId(0)];
        let container = named(5, "net0", &attributes);
        assert_eq!(names_below(&container, &[named(1, "lo", &[]), container.clone()]), [""; 0]);
    }

    #[test]
    fn interfaces_with_queues_of_their_own_are_not_stacked() {
        for kind in [InfoKind::Veth, InfoKind::Tun, InfoKind::Netkit, InfoKind::Dummy] {
            assert!(!is_stacked(&kind), "{kind}");
        }
    }
}
