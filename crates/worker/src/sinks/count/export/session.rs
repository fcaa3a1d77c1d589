//! A transport session with a collector (RFC 7011, 10): the socket, and how long its messages may be.

use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use program::{CollectorTransport, FlowCollector};
use rustix::net::sockopt;

/// The longest time that a connection by TCP, and each write to it, may take.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);
/// The milliseconds without an acknowledgement after which a connection fails (tcp(7)). Messages that a
/// collector has not acknowledged by then count as sent.
const TCP_USER_TIMEOUT_MS: u32 = 10_000;
/// The time without messages after which TCP asks whether the collector is still there, and the time between
/// two such probes. With the timeout above one probe without an answer ends the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The time for which a message by UDP waits for room in the buffer of the socket.
const UDP_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest packet where the MTU of the path is not known (RFC 7011, 10.3.3).
const PACKET_BYTES_UNKNOWN: usize = 512;
/// The longest packet otherwise: that of Ethernet, also where the first link would carry more.
const PACKET_BYTES_MAX: usize = 1500;
/// The headers of IP and UDP.
const IPV4_UDP_BYTES: usize = 20 + 8;
const IPV6_UDP_BYTES: usize = 40 + 8;

/// The addresses of the collector. May take seconds.
pub(super) fn addresses(collector: &FlowCollector) -> io::Result<impl Iterator<Item = SocketAddr>> {
    (&*collector.host, collector.port).to_socket_addrs()
}

#[derive(Debug)]
enum SessionSocket {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

#[derive(Debug)]
pub(super) struct Session {
    socket: SessionSocket,
    peer: SocketAddr,
}

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The socket has accepted the message.
    Whole,
    /// The socket has accepted the message, and the collector's host has answered to an earlier one that the
    /// port is not open.
    AfterRefusal,
}

impl Session {
    /// Looks up the collector's host and connects. May take seconds.
    pub(super) fn open(collector: &FlowCollector) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        for peer in addresses(collector)? {
            match Self::connect(collector.transport, peer) {
                Ok(socket) => return Ok(Self { socket, peer }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect(transport: CollectorTransport, peer: SocketAddr) -> io::Result<SessionSocket> {
        match transport {
            CollectorTransport::Udp => {
                let any: SocketAddr = match peer {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(peer)?;
                socket.set_write_timeout(Some(UDP_TIMEOUT))?;
                Ok(SessionSocket::Udp(socket))
            }
            CollectorTransport::Tcp => {
                let stream = TcpStream::connect_timeout(&peer, TCP_TIMEOUT)?;
                stream.set_write_timeout(Some(TCP_TIMEOUT))?;
                stream.set_nodelay(true)?;
                sockopt::set_tcp_user_timeout(&stream, TCP_USER_TIMEOUT_MS)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
                sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
                Ok(SessionSocket::Tcp(stream))
            }
        }
    }

    /// The address of the collector.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether templates are to be sent again and again.
    pub(super) fn forgets_templates(&self) -> bool {
        matches!(self.socket, SessionSocket::Udp(_))
    }

    /// The most bytes of a message, by the present MTU of the path.
    pub(super) fn message_bytes_max(&self) -> usize {
        let SessionSocket::Udp(socket) = &self.socket else { return PACKET_BYTES_MAX };
        let (mtu, headers) = match self.peer {
            SocketAddr::V4(_) => (sockopt::ip_mtu(socket), IPV4_UDP_BYTES),
            SocketAddr::V6(_) => (sockopt::ipv6_mtu(socket), IPV6_UDP_BYTES),
        };
        let packet_bytes = mtu.map_or(PACKET_BYTES_UNKNOWN, |mtu| (mtu as usize).min(PACKET_BYTES_MAX));
        packet_bytes.max(PACKET_BYTES_UNKNOWN) - headers
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<Sent> {
        match &mut self.socket {
            SessionSocket::Tcp(stream) => stream.write_all(message).map(|()| Sent::Whole),
            SessionSocket::Udp(socket) => match socket.send(message) {
                // The answer to an earlier message; this one was not sent (udp(7)).
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    socket.send(message).map(|_| Sent::AfterRefusal)
                }
                sent => sent.map(|_| Sent::Whole),
            },
        }
    }
}
