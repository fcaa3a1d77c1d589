//! The contents of the rings: completions, receive requests and send requests, with their opcodes and
//! statuses.
//!
//! Written and read by a front end's posting and polling calls on one side and the engine on the other. Sizes
//! matter: a completion is half a cache line.

use ibverbs_sys::{ibv_sge, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::limits::MAX_QPS;

/// Queue numbers take 24 bits.
pub const MAX_TAGGED_NUMBER: u32 = 0x00ff_ffff;

/// Queue pairs are numbered from here, away from QP 0 and 1 and from the numbers of work queues.
pub(crate) const FIRST_QP_NUMBER: u32 = 0x11;

/// The number of the queue pair in a slot.
#[inline]
pub fn qp_number(slot: u32) -> u32 {
    (FIRST_QP_NUMBER + slot) & MAX_TAGGED_NUMBER
}

/// The outcomes this device can report, with the values of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The request was carried out.
    Success = 0,
    /// A frame is longer than its buffer or than the port's MTU.
    LocalLength = 1,
    /// The request makes no sense.
    LocalOperation = 2,
    /// A memory key does not allow what the request needs.
    LocalProtection = 4,
    /// The request was not carried out, because its queue has failed.
    WorkRequestFlush = 5,
    /// The wire has refused the frame; the queue goes on.
    General = 21,
}

const _: () = {
    assert!(Status::LocalLength as u32 == ibv_wc_status::IBV_WC_LOC_LEN_ERR);
    assert!(Status::LocalOperation as u32 == ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
    assert!(Status::LocalProtection as u32 == ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    assert!(Status::General as u32 == ibv_wc_status::IBV_WC_GENERAL_ERR);
    assert!(Status::WorkRequestFlush as u32 == ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
};

/// The kind of work that was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOpcode {
    /// A frame was sent.
    Send,
    /// A TCP stream was sent in segments.
    Segments,
    /// A frame was received.
    Receive,
}

const FLAG_RECEIVE: u8 = 1;
const FLAG_CHECKSUM_OK: u8 = 2;
const FLAG_SEGMENTS: u8 = 4;
/// A datagram from the queue pair in the slot that is in the place of the C-VLAN.
const FLAG_DATAGRAM: u8 = 8;
/// With immediate data, which is in the place of the flow tag.
const FLAG_IMMEDIATE: u8 = 16;
const FLAG_SOLICITED: u8 = 32;

/// A sender's slot has the room of a C-VLAN tag.
const _: () = assert!(MAX_QPS <= 1 << u16::BITS);

/// One completion.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// The number that identifies the request.
    pub wr_id: u64,
    /// The time, in nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// The bytes that were received.
    pub byte_len: u32,
    /// The tag of the flow.
    pub flow_tag: u32,
    /// The number of the queue or queue pair.
    pub queue_number: u32,
    /// The C-VLAN tag that was taken out of the frame, 0 if none was.
    pub cvlan: u16,
    status: u8,
    flags: u8,
}

const _: () = assert!(size_of::<Cqe>() == 32);

impl Cqe {
    /// The completion that is read outside a poll.
    const EMPTY: Self = Self {
        wr_id: 0,
        timestamp_ns: 0,
        byte_len: 0,
        flow_tag: 0,
        queue_number: 0,
        cvlan: 0,
        status: 0,
        flags: 0,
    };

    /// A successful completion; the caller fills in the rest.
    #[inline]
    #[must_use]
    pub fn new(wr_id: u64, opcode: WorkOpcode, status: Status, queue_number: u32) -> Self {
        let flags = match opcode {
            WorkOpcode::Send => 0,
            WorkOpcode::Segments => FLAG_SEGMENTS,
            WorkOpcode::Receive => FLAG_RECEIVE,
        };
        Self { wr_id, queue_number, status: status as u8, flags, ..Self::EMPTY }
    }

    /// A failed completion, without details.
    #[must_use]
    pub fn failed(wr_id: u64, opcode: WorkOpcode, status: Status, queue_number: u32) -> Self {
        Self::new(wr_id, opcode, status, queue_number)
    }

    /// Notes whether the checksums were verified and hold.
    #[inline]
    pub fn set_checksum_ok(&mut self, ok: bool) {
        if ok {
            self.flags |= FLAG_CHECKSUM_OK;
        }
    }

    /// Whether the checksums were verified and hold.
    #[inline]
    #[must_use]
    pub fn is_checksum_ok(&self) -> bool {
        self.flags & FLAG_CHECKSUM_OK != 0
    }

    /// Makes it that of a datagram from the queue pair in slot `from`. It has neither C-VLAN nor flow tag;
    /// who reads them all the same gets the value in their place, as with mlx5.
    pub(crate) fn set_datagram(&mut self, from: u32, immediate: Option<u32>, solicited: bool) {
        self.flags |= FLAG_DATAGRAM;
        self.cvlan = from as u16;
        if let Some(immediate) = immediate {
            self.flags |= FLAG_IMMEDIATE;
            self.flow_tag = immediate;
        }
        if solicited {
            self.flags |= FLAG_SOLICITED;
        }
    }

    /// The number of the queue pair that sent it, 0 if it was none.
    #[inline]
    pub fn source(&self) -> u32 {
        if self.flags & FLAG_DATAGRAM == 0 { 0 } else { qp_number(u32::from(self.cvlan)) }
    }

    /// Immediate data, in network byte order, 0 if there is none.
    #[inline]
    pub fn immediate(&self) -> u32 {
        if self.flags & FLAG_IMMEDIATE == 0 { 0 } else { self.flow_tag }
    }

    /// Whether it is that of a receive request.
    pub(crate) fn is_receive(&self) -> bool {
        self.flags & FLAG_RECEIVE != 0
    }

    /// Whether the sender wants the receiver to be woken.
    #[inline]
    pub(crate) fn is_solicited(&self) -> bool {
        self.flags & FLAG_SOLICITED != 0
    }

    /// The flags as `enum ibv_wc_flags`.
    #[inline]
    pub fn wc_flags(&self) -> u32 {
        let says = |flag: u8, wc: ibv_wc_flags| if self.flags & flag == 0 { 0 } else { wc.0 };
        says(FLAG_CHECKSUM_OK, ibv_wc_flags::IBV_WC_IP_CSUM_OK)
            | says(FLAG_DATAGRAM, ibv_wc_flags::IBV_WC_GRH)
            | says(FLAG_IMMEDIATE, ibv_wc_flags::IBV_WC_WITH_IMM)
    }

    /// Where one word has both: the flow tag of a packet, and otherwise the queue's number.
    #[inline]
    pub fn tag_or_number(&self) -> u32 {
        let is_packet = self.flags & (FLAG_RECEIVE | FLAG_DATAGRAM) == FLAG_RECEIVE;
        if is_packet && self.status == Status::Success as u8 { self.flow_tag } else { self.queue_number }
    }

    /// The status as `enum ibv_wc_status`.
    #[inline]
    #[must_use]
    pub fn status(&self) -> u32 {
        u32::from(self.status)
    }

    /// The kind of work as `enum ibv_wc_opcode`.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> u32 {
        match self.flags & (FLAG_RECEIVE | FLAG_SEGMENTS) {
            0 => ibv_wc_opcode::IBV_WC_SEND,
            FLAG_SEGMENTS => ibv_wc_opcode::IBV_WC_TSO,
            _ => ibv_wc_opcode::IBV_WC_RECV,
        }
    }
}

/// The completion that is read outside a poll, at a fixed address.
pub static EMPTY_CQE: Cqe = Cqe::EMPTY;

/// A key that no region ever has: it represents a key of 0 in a request, because 0 ends a list of elements.
const INVALID_KEY: u32 = u32::MAX;

/// One scatter/gather element in a ring; a key of 0 ends the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The start, as the region has it.
    pub address: u64,
    /// The length.
    pub bytes: u32,
    /// The key of the region.
    pub key: u32,
}

impl Element {
    /// The end of a list that is shorter than the ring's `max_sge`.
    pub const END: Self = Self { address: 0, bytes: 0, key: 0 };

    /// The length and the key in one number.
    #[inline]
    pub(crate) fn shape(&self) -> u64 {
        u64::from(self.key) << u32::BITS | u64::from(self.bytes)
    }

    /// The element of an application's list. A key of 0, which would end the list, becomes one that no region
    /// has.
    #[inline]
    #[must_use]
    pub fn of(sge: &ibv_sge) -> Self {
        let key = if sge.lkey == 0 { INVALID_KEY } else { sge.lkey };
        Self { address: sge.addr, bytes: sge.length, key }
    }
}

/// Bytes before the elements of a receive request: its id.
pub const RECEIVE_HEADER_BYTES: usize = 8;

/// Bytes of a receive request with up to `max_sge` elements.
pub const fn receive_slot_bytes(max_sge: u32) -> usize {
    RECEIVE_HEADER_BYTES + max_sge as usize * size_of::<Element>()
}

/// The bytes before the elements or the inline bytes of a send request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendHeader {
    /// The number that identifies the request.
    pub wr_id: u64,
    /// A combination of the `SEND_` flags.
    pub flags: u16,
    /// Payload bytes of a segment, if [`SEND_SEGMENTS`] is set.
    pub segment_bytes: u16,
    /// Bytes that are in the request itself: the frame with [`SEND_INLINE`], its headers with
    /// [`SEND_SEGMENTS`].
    pub inline_bytes: u32,
}

/// A completion is wanted.
pub const SEND_SIGNALED: u16 = 1;
/// The frame's bytes are in the request.
pub const SEND_INLINE: u16 = 2;
/// The IPv4 header's and the layer 4 checksum are to be filled in.
pub const SEND_CHECKSUM: u16 = 4;
/// The elements are a TCP stream to be cut; the headers are in the request, behind the room for the elements.
pub const SEND_SEGMENTS: u16 = 8;

/// A datagram with immediate data.
pub const SEND_IMMEDIATE: u16 = 16;
/// A datagram whose receiver is to be woken.
pub const SEND_SOLICITED: u16 = 32;

/// Where a datagram goes; it is behind the body of its request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The destination.
    pub route: Route,
    /// The queue pair's number.
    pub number: u32,
    /// The Q_Key of the destination.
    pub key: u32,
    /// In network byte order, if [`SEND_IMMEDIATE`] is set.
    pub immediate: u32,
}

/// The destination of an address handle. Datagrams go from one port of the device to another, or back to the
/// same.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The protection domain that it may be used in.
    pub domain: u32,
    /// The flow label of the GRH.
    pub grh_flow: u32,
    /// The traffic class of the GRH.
    pub traffic_class: u8,
    /// The hop limit of the GRH.
    pub hop_limit: u8,
    /// The port that it leaves by.
    pub from_port: u8,
    /// The port that it arrives at.
    pub to_port: u8,
}

/// Bytes before the elements of a send request.
pub const SEND_HEADER_BYTES: usize = size_of::<SendHeader>();

/// The room in each request of a send ring. Both sides of the ring hold the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendShape {
    /// The most elements.
    pub max_sge: u32,
    /// The most bytes of a frame in the request itself.
    pub max_inline: u32,
    /// The most bytes of headers of a stream that is cut into segments.
    pub max_tso_header: u32,
    /// The requests are datagrams: each has an [`Envelope`].
    pub datagram: bool,
}

impl SendShape {
    /// Bytes of a request.
    pub fn slot_bytes(&self) -> usize {
        let envelope = if self.datagram { size_of::<Envelope>().next_multiple_of(16) } else { 0 };
        self.envelope_offset() + envelope
    }

    /// Where the envelope of a datagram is, counted from the header.
    #[inline]
    pub fn envelope_offset(&self) -> usize {
        let body = (self.elements_bytes() + self.max_tso_header as usize).max(self.max_inline as usize);
        SEND_HEADER_BYTES + body.next_multiple_of(16)
    }

    /// Where the headers of segments are, counted from the body.
    #[inline]
    pub fn elements_bytes(&self) -> usize {
        self.max_sge as usize * size_of::<Element>()
    }
}
