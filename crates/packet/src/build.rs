//! Frames by description, for tests and the generator.

use std::net::IpAddr;

use crate::{EtherType, IpProtocol, MacAddr};

/// Describes a frame; [`FrameBuilder::build`] makes it.
#[derive(Clone, Debug, Default)]
pub struct FrameBuilder {}

#[allow(unused_variables, missing_docs)]
impl FrameBuilder {
    pub fn new() -> Self {
        todo!()
    }
    pub fn ethernet(self, dst: MacAddr, src: MacAddr) -> Self {
        todo!()
    }
    /// Adds a tag; the first call is the outermost.
    pub fn vlan(self, tpid: EtherType, tci: u16) -> Self {
        todo!()
    }
    pub fn ether_type(self, ether_type: EtherType) -> Self {
        todo!()
    }
    /// IPv4 or IPv6; the family of `src` decides.
    pub fn ip(self, src: IpAddr, dst: IpAddr) -> Self {
        todo!()
    }
    pub fn protocol(self, protocol: IpProtocol) -> Self {
        todo!()
    }
    pub fn tos(self, tos: u8) -> Self {
        todo!()
    }
    pub fn ttl(self, ttl: u8) -> Self {
        todo!()
    }
    pub fn flow_label(self, flow_label: u32) -> Self {
        todo!()
    }
    /// An IPv4 fragment (offset in units of 8 bytes).
    pub fn fragment(self, offset: u16, more: bool) -> Self {
        todo!()
    }
    pub fn ip_options(self, options: &[u8]) -> Self {
        todo!()
    }
    pub fn tcp(self, src_port: u16, dst_port: u16, flags: u8) -> Self {
        todo!()
    }
    pub fn udp(self, src_port: u16, dst_port: u16) -> Self {
        todo!()
    }
    /// ICMP or ICMPv6 echo request, after `ip`.
    pub fn icmp_echo(self, identifier: u16, sequence: u16) -> Self {
        todo!()
    }
    pub fn payload(self, payload: &[u8]) -> Self {
        todo!()
    }
    /// Lengthens the payload with zeros until the frame has this many bytes (without FCS).
    pub fn frame_bytes(self, frame_bytes: usize) -> Self {
        todo!()
    }
    pub fn build(&self) -> Vec<u8> {
        todo!()
    }
}
