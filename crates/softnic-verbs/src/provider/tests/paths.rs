//! Twin paths: the same random posts and frames down the short paths, their portable form and the general
//! paths alone must have the same effects, in memory, completions, counters and on the wire.

use std::ffi::c_int;
use std::net::Ipv4Addr;

use ibverbs_sys::{
    IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_SPEC_ETH, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, ibv_flow_attr,
    ibv_flow_eth_filter, ibv_flow_spec_eth, ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge, ibv_wr_opcode,
};
use packet::build::FrameBuilder;
use proptest::prelude::*;
use softnic::paths::{Paths, choose};

use super::completion::create_ex;
use super::{LOCAL_WRITE, Memory, Raw, bring_up, create_qp_ex, default_flow};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const CHECKSUM: u32 = ibv_send_flags::IBV_SEND_IP_CSUM.0;
const SEGMENT_BYTES: u16 = 60;
const MEMORY_BYTES: usize = 1 << 16;

/// An element of a request: offset and length in the registered memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u16,
    bytes: u16,
    key: Key,
}

#[derive(Clone, Copy, Debug)]
enum Key {
    OfRegion,
    Zero,
    Unknown,
}

/// A step of a scene. Queue pairs are given by number.
#[derive(Clone, Debug)]
enum Step {
    /// A chain of receives for one of the queue pairs.
    Receive(usize, Vec<Vec<Piece>>),
    /// Frames of these lengths, each to a station.
    Deliver(Vec<(u16, u8)>),
    /// A chain of sends.
    Send(usize, Vec<Send>),
    Poll,
}

#[derive(Clone, Debug)]
struct Send {
    pieces: Vec<Piece>,
    flags: u32,
    /// The data is a stream of TCP, to be cut into segments.
    is_stream: bool,
}

/// The dimensions of the queues.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    receive_pieces: u32,
    send_pieces: u32,
    requests: u32,
    completions: u32,
}

fn piece(most: u16) -> impl Strategy<Value = Piece> {
    let key = prop_oneof![60 => Just(Key::OfRegion), 2 => Just(Key::Zero), 1 => Just(Key::Unknown)];
    let bytes = prop_oneof![3 => Just(most), 2 => 0..=most];
    (0..60_000u16, bytes, key).prop_map(|(offset, bytes, key)| Piece { offset, bytes, key })
}

/// One piece most times, as the short paths are for.
fn pieces(most: u16) -> impl Strategy<Value = Vec<Piece>> {
    prop_oneof![
        12 => prop::collection::vec(piece(most), 1),
        1 => prop::collection::vec(piece(most), 0..4),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let frame = (prop_oneof![4 => 14..300u16, 1 => 0..1700u16], prop_oneof![4 => Just(0u8), 1 => 0..3u8]);
    let flags = prop_oneof![10 => Just(0), 10 => Just(SIGNALED), 1 => Just(INLINE), 1 => Just(CHECKSUM)];
    let send = (pieces(200), flags, prop::bool::weighted(0.05));
    let send = send.prop_map(|(pieces, flags, is_stream)| Send { pieces, flags, is_stream });
    prop_oneof![
        4 => (0..2usize, prop::collection::vec(pieces(1600), 1..40)).prop_map(|(qp, list)| Step::Receive(qp, list)),
        4 => prop::collection::vec(frame, 1..90).prop_map(Step::Deliver),
        3 => (0..2usize, prop::collection::vec(send, 1..40)).prop_map(|(qp, list)| Step::Send(qp, list)),
        1 => Just(Step::Poll),
    ]
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let pieces = || prop_oneof![3 => Just(1u32), 1 => 2..5u32];
    let sizes =
        (pieces(), pieces(), prop_oneof![Just(16u32), Just(64)], prop_oneof![1 => 8..40u32, 3 => Just(500)]);
    sizes.prop_map(|(receive_pieces, send_pieces, requests, completions)| Sizes {
        receive_pieces,
        send_pieces,
        requests,
        completions,
    })
}

/// A flow on the destination of frames, as libibverbs gets it.
#[repr(C)]
struct StationFlow {
    attr: ibv_flow_attr,
    spec: ibv_flow_spec_eth,
}

/// Gives a queue pair the frames to a station, or copies of them.
fn station_flow(qp: *mut ibv_qp, station: u8, is_copy: bool) {
    let mask = ibv_flow_eth_filter { dst_mac: [0xff; 6], ..ibv_flow_eth_filter::default() };
    let val = ibv_flow_eth_filter { dst_mac: [2, 0, 0, 0, 0, station], ..ibv_flow_eth_filter::default() };
    let mut flow = StationFlow {
        attr: ibv_flow_attr {
            size: size_of::<StationFlow>() as u16,
            num_of_specs: 1,
            port: 1,
            flags: if is_copy { IBV_FLOW_ATTR_FLAGS_DONT_TRAP } else { 0 },
            ..ibv_flow_attr::default()
        },
        spec: ibv_flow_spec_eth {
            type_: IBV_FLOW_SPEC_ETH,
            size: size_of::<ibv_flow_spec_eth>() as u16,
            val,
            mask,
        },
    };
    // SAFETY: a live queue pair, and a block of the size that it names.
    let made = unsafe { super::super::flow::create_flow(qp, (&raw mut flow).cast()) };
    assert!(!made.is_null());
}

/// A device with two queue pairs: the first gets all frames, the second those to station 1, and copies of
/// those to station 2.
struct Scene {
    raw: Raw,
    qps: [*mut ibv_qp; 2],
    memory: Memory,
    /// The number of the next request.
    requests: u64,
    /// All that was seen.
    trace: Vec<String>,
}

impl Scene {
    fn new(sizes: Sizes) -> Self {
        let mut raw = Raw::new();
        let cq = create_ex(&raw, |attr| attr.cqe = sizes.completions).unwrap();
        raw.cq = cq.cast();
        let qps = [(); 2].map(|()| {
            let qp = create_qp_ex(&raw, |attr| {
                attr.cap.max_recv_wr = sizes.requests;
                attr.cap.max_send_wr = sizes.requests;
                attr.cap.max_recv_sge = sizes.receive_pieces;
                attr.cap.max_send_sge = sizes.send_pieces;
                attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
                attr.max_tso_header = 128;
            })
            .unwrap();
            bring_up(qp);
            qp
        });
        // SAFETY: the flow of `Raw::new`, destroyed once.
        assert_eq!(unsafe { super::super::flow::destroy_flow(raw.flow) }, 0);
        raw.flow = default_flow(qps[0]);
        station_flow(qps[1], 1, false);
        station_flow(qps[1], 2, true);
        let memory = raw.register(MEMORY_BYTES, LOCAL_WRITE);
        // Frames to send are where a piece begins: some of them are refused by the wire.
        let pattern: Vec<u8> =
            (0..MEMORY_BYTES).map(|at| if at % 97 == 0 { 0xee } else { at as u8 }).collect();
        memory.write(0, &pattern);
        Self { raw, qps, memory, requests: 0, trace: Vec::new() }
    }

    fn elements(&self, pieces: &[Piece]) -> Vec<ibv_sge> {
        let of = |piece: &Piece| {
            let mut element = self.memory.element(piece.offset.into(), piece.bytes.into());
            match piece.key {
                Key::OfRegion => {}
                Key::Zero => element.lkey = 0,
                Key::Unknown => element.lkey = !element.lkey,
            }
            element
        };
        pieces.iter().map(of).collect()
    }

    /// Numbers for a chain of requests, the first of which is returned.
    fn number(&mut self, requests: usize) -> u64 {
        let first = self.requests;
        self.requests += requests as u64;
        first
    }

    fn receive(&mut self, qp: usize, list: &[Vec<Piece>]) {
        let first = self.number(list.len());
        let mut elements: Vec<Vec<ibv_sge>> = list.iter().map(|pieces| self.elements(pieces)).collect();
        let mut chain: Vec<ibv_recv_wr> = (first..)
            .zip(&mut elements)
            .map(|(wr_id, elements)| ibv_recv_wr {
                wr_id,
                next: std::ptr::null_mut(),
                sg_list: elements.as_mut_ptr(),
                num_sge: elements.len() as c_int,
            })
            .collect();
        let begin = link(&mut chain, |wr, next| wr.next = next);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live context.
        let post = unsafe { (*self.raw.context).ops.post_recv }.unwrap();
        // SAFETY: a live queue pair and a chain that ends.
        let errno = unsafe { post(self.qps[qp], begin, &raw mut bad) };
        let place = (errno != 0).then(|| chain.iter().position(|wr| std::ptr::eq(wr, bad)));
        self.trace.push(format!("receive {errno} {place:?}"));
    }

    fn send(&mut self, qp: usize, list: &[Send]) {
        let first = self.number(list.len());
        let mut elements: Vec<Vec<ibv_sge>> = list.iter().map(|send| self.elements(&send.pieces)).collect();
        let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1));
        let mut headers = FrameBuilder::new().ipv4(from, to).tcp(4000, 80, 0x18).build();
        let tso = ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
            hdr: headers.as_mut_ptr().cast(),
            hdr_sz: headers.len() as u16,
            mss: SEGMENT_BYTES,
        };
        let mut chain: Vec<ibv_send_wr> = (first..)
            .zip(&mut elements)
            .zip(list)
            .map(|((wr_id, elements), send)| ibv_send_wr {
                wr_id,
                sg_list: elements.as_mut_ptr(),
                num_sge: elements.len() as c_int,
                opcode: if send.is_stream { ibv_wr_opcode::IBV_WR_TSO } else { ibv_wr_opcode::IBV_WR_SEND },
                send_flags: send.flags,
                __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 { tso },
                ..ibv_send_wr::default()
            })
            .collect();
        let begin = link(&mut chain, |wr, next| wr.next = next);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live context.
        let post = unsafe { (*self.raw.context).ops.post_send }.unwrap();
        // SAFETY: a live queue pair and a chain that ends.
        let errno = unsafe { post(self.qps[qp], begin, &raw mut bad) };
        let place = (errno != 0).then(|| chain.iter().position(|wr| std::ptr::eq(wr, bad)));
        let sent = self.raw.sent();
        self.trace.push(format!("send {errno} {place:?} {sent:02x?}"));
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Receive(qp, list) => self.receive(*qp, list),
            Step::Send(qp, list) => self.send(*qp, list),
            Step::Deliver(frames) => {
                let frame = |(nth, (bytes, station)): (usize, &(u16, u8))| {
                    let mut frame: Vec<u8> = (0..*bytes).map(|at| (nth + usize::from(at)) as u8).collect();
                    let head = [2, 0, 0, 0, 0, *station, 2, 0, 0, 0, 0, 9, 8, 0];
                    let head = &head[..head.len().min(frame.len())];
                    frame[..head.len()].copy_from_slice(head);
                    frame
                };
                self.raw.deliver(frames.iter().enumerate().map(frame).collect::<Vec<_>>());
                self.trace.push(format!("{:?}", self.raw.stats()));
            }
            Step::Poll => self.poll(),
        }
    }

    fn poll(&mut self) {
        for wc in self.raw.poll() {
            let ends = (wc.wr_id, wc.status, wc.opcode, wc.vendor_err, wc.byte_len, wc.qp_num, wc.wc_flags);
            self.trace.push(format!("{ends:?}"));
        }
    }

    /// All effects of the steps.
    fn effects(mut self, steps: &[Step]) -> (Vec<String>, Vec<u8>) {
        steps.iter().for_each(|step| self.take(step));
        for _ in 0..8 {
            self.poll();
        }
        self.trace.push(format!("{:?}", self.raw.stats()));
        while let Some(event) = self.raw.unacknowledged() {
            self.trace.push(format!("event {}", event.event_type));
            let mut event = event;
            // SAFETY: the event of just now; its object still lives.
            unsafe { ibverbs_sys::ibv_ack_async_event(&raw mut event) };
        }
        let memory = self.memory.read(0, MEMORY_BYTES);
        (std::mem::take(&mut self.trace), memory)
    }
}

/// Makes a chain of requests; returns the first one.
fn link<R>(chain: &mut [R], set_next: impl Fn(&mut R, *mut R)) -> *mut R {
    let begin = chain.as_mut_ptr();
    for (index, request) in chain.iter_mut().enumerate().rev().skip(1) {
        set_next(request, begin.wrapping_add(index + 1));
    }
    begin
}

fn effects(paths: Paths, sizes: Sizes, steps: &[Step]) -> (Vec<String>, Vec<u8>) {
    choose(paths);
    let effects = Scene::new(sizes).effects(steps);
    choose(Paths::Short);
    effects
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn twin_paths_have_the_same_effects(
        sizes in sizes(),
        steps in prop::collection::vec(step(), 1..14),
    ) {
        let general = effects(Paths::General, sizes, &steps);
        for paths in [Paths::Portable, Paths::Short] {
            let (trace, memory) = effects(paths, sizes, &steps);
            prop_assert_eq!(&trace, &general.0, "{:?}", paths);
            prop_assert!(memory == general.1, "{:?}: other bytes in memory", paths);
        }
    }
}
