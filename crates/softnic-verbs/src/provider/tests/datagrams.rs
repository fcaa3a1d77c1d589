//! Datagrams between queue pairs of the device: addresses, what arrives, what is lost, what fails.

use std::ffi::c_int;
use std::ptr::null_mut;

use ibverbs_sys::{
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    ibv_ah, ibv_ah_attr, ibv_alloc_pd, ibv_create_ah, ibv_dealloc_pd, ibv_destroy_ah, ibv_gid,
    ibv_global_route, ibv_modify_qp, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
    ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status, ibv_wr_opcode,
};
use softnic::Personality;

use super::extended::Extended;
use super::features::{ALL, errno};
use super::{LOCAL_WRITE, Memory, Raw, create_qp_ex, flow_attr, modify};
use crate::abi::WorkCompletion;

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const KEY: u32 = 0x1111_1111;
const GRH_BYTES: usize = 40;
/// The GID of the wire's address, 02:00:00:00:00:01.
const GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1];

fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: a live queue pair.
    unsafe { (*qp).qp_num }
}

/// Makes a datagram queue pair; with operations an extended one.
fn make(raw: &Raw, operations: Option<u32>) -> Result<*mut ibv_qp, c_int> {
    create_qp_ex(raw, |attr| {
        attr.qp_type = ibv_qp_type::IBV_QPT_UD;
        if let Some(operations) = operations {
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = u64::from(operations);
        }
    })
}

fn step(qp: *mut ibv_qp, state: ibv_qp_state::Type, pkey_index: u16, bits: &[ibv_qp_attr_mask]) -> c_int {
    let mut attr =
        ibv_qp_attr { qp_state: state, port_num: 1, qkey: KEY, pkey_index, ..ibv_qp_attr::default() };
    let mask = bits.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |mask, bit| mask | bit.0);
    // SAFETY: a live queue pair and a whole struct.
    unsafe { ibv_modify_qp(qp, &raw mut attr, mask as c_int) }
}

const INIT: [ibv_qp_attr_mask; 3] =
    [ibv_qp_attr_mask::IBV_QP_PORT, ibv_qp_attr_mask::IBV_QP_QKEY, ibv_qp_attr_mask::IBV_QP_PKEY_INDEX];

/// From RESET to RTS.
fn bring_up(qp: *mut ibv_qp) -> *mut ibv_qp {
    assert_eq!(step(qp, ibv_qp_state::IBV_QPS_INIT, 0, &INIT), 0);
    assert_eq!(step(qp, ibv_qp_state::IBV_QPS_RTR, 0, &[]), 0);
    assert_eq!(step(qp, ibv_qp_state::IBV_QPS_RTS, 0, &[ibv_qp_attr_mask::IBV_QP_SQ_PSN]), 0);
    qp
}

fn attributes() -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: GID },
        flow_label: 0xfff1_2345,
        sgid_index: 0,
        hop_limit: 7,
        traffic_class: 0xab,
    };
    ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
}

fn address(pd: *mut ibv_pd, mut attr: ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    // SAFETY: a live domain and a whole struct.
    let ah = unsafe { ibv_create_ah(pd, &raw mut attr) };
    if ah.is_null() { Err(errno()) } else { Ok(ah) }
}

/// A sender, a receiver, the address, and memory whose upper half is received into.
struct Rig {
    raw: Raw,
    from: *mut ibv_qp,
    to: *mut ibv_qp,
    ah: *mut ibv_ah,
    memory: Memory,
}

const RECEIVED_AT: usize = 4096;

impl Rig {
    fn new(personality: Personality) -> Self {
        let raw = Raw::with_personality(personality);
        let [from, to] = [(); 2].map(|()| bring_up(make(&raw, None).unwrap()));
        let ah = address(raw.pd, attributes()).unwrap();
        let memory = raw.register(2 * RECEIVED_AT, LOCAL_WRITE);
        Self { raw, from, to, ah, memory }
    }

    /// A request to the receiver.
    fn request(&self, list: &mut [ibv_sge]) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            wr_id: 1,
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as c_int,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: SIGNALED,
            ..ibv_send_wr::default()
        };
        wr.wr.ud.ah = self.ah;
        wr.wr.ud.remote_qpn = number(self.to);
        wr.wr.ud.remote_qkey = KEY;
        wr
    }

    fn post(&self, qp: *mut ibv_qp, mut wr: ibv_send_wr) -> c_int {
        let mut bad = null_mut();
        // SAFETY: a live context.
        let post = unsafe { (*self.raw.context).ops.post_send }.unwrap();
        // SAFETY: a live queue pair and a chain of one request.
        let errno = unsafe { post(qp, &raw mut wr, &raw mut bad) };
        assert_eq!(errno != 0, bad == &raw mut wr);
        errno
    }

    /// Sends some bytes, after `change`, and returns the statuses by request.
    fn send(&self, bytes: u32, change: impl FnOnce(&mut ibv_send_wr)) -> Vec<(u64, u32)> {
        let mut list = [self.memory.element(0, bytes)];
        let mut wr = self.request(&mut list);
        change(&mut wr);
        assert_eq!(self.post(self.from, wr), 0);
        self.work().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn receive(&self, wr_id: u64, elements: &[(usize, u32)]) {
        let at = |&(offset, bytes): &(usize, u32)| self.memory.element((RECEIVED_AT + offset) as u64, bytes);
        let mut list: Vec<_> = elements.iter().map(at).collect();
        let (sg_list, num_sge) = (list.as_mut_ptr(), list.len() as c_int);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: a live context.
        let post = unsafe { (*self.raw.context).ops.post_recv }.unwrap();
        // SAFETY: a live queue pair and a chain of one request.
        assert_eq!(unsafe { post(self.to, &raw mut wr, &raw mut bad) }, 0);
    }

    fn work(&self) -> Vec<WorkCompletion> {
        self.raw.deliver([]);
        self.raw.poll()
    }
}

const OK: u32 = ibv_wc_status::IBV_WC_SUCCESS;
const IMMEDIATE: u32 = u32::from_ne_bytes([1, 2, 3, 4]);

#[test]
fn a_datagram_arrives_behind_its_header_on_every_personality() {
    for personality in ALL {
        let rig = Rig::new(personality);
        let data: Vec<u8> = (0..101).collect();
        rig.memory.write(0, &data);
        rig.receive(7, &[(0, 30), (30, 500)]);
        let mut list = [rig.memory.element(0, 11), rig.memory.element(11, 90)];
        let mut wr = rig.request(&mut list);
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        wr.__bindgen_anon_1.imm_data = IMMEDIATE;
        assert_eq!(rig.post(rig.from, wr), 0);
        let completions = rig.work();
        let [received, sent] = completions[..] else { panic!("{} completions", completions.len()) };
        assert_eq!((received.wr_id, received.status, received.opcode), (7, OK, ibv_wc_opcode::IBV_WC_RECV));
        assert_eq!((received.qp_num, received.src_qp), (number(rig.to), number(rig.from)));
        assert_eq!((received.byte_len, received.imm_data), (141, IMMEDIATE));
        let flags = ibv_wc_flags::IBV_WC_GRH.0 | ibv_wc_flags::IBV_WC_WITH_IMM.0;
        assert_eq!(received.wc_flags, flags);
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (1, OK, ibv_wc_opcode::IBV_WC_SEND));
        assert_eq!((sent.qp_num, sent.src_qp, sent.wc_flags), (number(rig.from), 0, 0));
        let whole = rig.memory.read(RECEIVED_AT, 141);
        let (header, payload) = whole.split_at(GRH_BYTES);
        // UDP 8, BTH 12, DETH 8, immediate 4, 101 bytes padded to 104, ICRC 4.
        assert_eq!(header[..8], [0x6a, 0xb1, 0x23, 0x45, 0, 140, 17, 7]);
        assert_eq!((&header[8..24], &header[24..]), (&GID[..], &GID[..]));
        assert_eq!(payload, data);
        assert_eq!((rig.raw.stats().tx_frames, rig.raw.stats().datagrams_lost), (0, 0));
    }
}

#[test]
fn an_empty_datagram_is_its_header() {
    let rig = Rig::new(Personality::Ideal);
    rig.receive(7, &[(0, 40)]);
    assert_eq!(rig.send(0, |_| ()), [(7, OK), (1, OK)]);
}

#[test]
fn datagrams_without_a_receiver_are_lost_without_an_error() {
    let rig = Rig::new(Personality::Ideal);
    assert_eq!(rig.send(100, |_| ()), [(1, OK)], "no buffer");
    rig.receive(7, &[(0, 1064)]);
    let raw_number = number(rig.raw.qp);
    type Change = fn(&mut ibv_send_wr, u32);
    let changes: [(&str, Change); 4] = [
        ("another Q_Key", |wr, _| wr.wr.ud.remote_qkey = KEY + 1),
        ("nobody's number", |wr, _| wr.wr.ud.remote_qpn = 0x00ff_ffff),
        ("a number below all", |wr, _| wr.wr.ud.remote_qpn = 1),
        ("a raw packet queue pair", |wr, raw_number| wr.wr.ud.remote_qpn = raw_number),
    ];
    for (what, change) in changes {
        assert_eq!(rig.send(100, |wr| change(wr, raw_number)), [(1, OK)], "{what}");
    }
    assert_eq!(rig.raw.stats().datagrams_lost, 5);
    assert_eq!(rig.send(100, |wr| wr.wr.ud.remote_qkey = 1 << 31), [(7, OK), (1, OK)], "the sender's own");
    rig.receive(8, &[(0, 1064)]);
    assert_eq!(step(rig.to, ibv_qp_state::IBV_QPS_RESET, 0, &[]), 0);
    assert_eq!(step(rig.to, ibv_qp_state::IBV_QPS_INIT, 0, &INIT), 0);
    rig.receive(9, &[(0, 1064)]);
    assert_eq!(rig.send(100, |_| ()), [(1, OK)], "not yet in RTR");
    assert_eq!(step(rig.to, ibv_qp_state::IBV_QPS_RTR, 0, &[]), 0);
    assert_eq!(rig.send(1024, |_| ()), [(9, OK), (1, OK)], "8 went with the RESET");
    assert_eq!(rig.raw.stats().datagrams_lost, 6);
}

#[test]
fn a_bad_send_fails_with_its_queue_pair() {
    type Spoil = fn(&mut ibv_send_wr, *mut ibv_ah);
    let cases: [(u32, Spoil, u32); 3] = [
        (1025, |_, _| (), ibv_wc_status::IBV_WC_LOC_LEN_ERR),
        (
            100,
            |wr, _| {
                // SAFETY: the request's own list of one.
                unsafe { (*wr.sg_list).lkey ^= 0x100 }
            },
            ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        ),
        (100, |wr, foreign| wr.wr.ud.ah = foreign, ibv_wc_status::IBV_WC_LOC_QP_OP_ERR),
    ];
    for (bytes, change, status) in cases {
        let rig = Rig::new(Personality::Ideal);
        // SAFETY: a live context.
        let other = unsafe { ibv_alloc_pd(rig.raw.context) };
        let foreign = address(other, attributes()).unwrap();
        rig.receive(7, &[(0, 2000)]);
        assert_eq!(rig.send(bytes, |wr| change(wr, foreign)), [(1, status)]);
        assert_eq!(rig.raw.event(), ibverbs_sys::IBV_EVENT_QP_FATAL);
        assert_eq!(rig.send(100, |_| ()), [(1, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)]);
        assert_eq!(rig.raw.stats().tx_errors, 1);
    }
}

#[test]
fn a_short_buffer_is_the_receivers_error() {
    let rig = Rig::new(Personality::Ideal);
    rig.receive(7, &[(0, 139)]);
    assert_eq!(rig.send(100, |_| ()), [(7, ibv_wc_status::IBV_WC_LOC_LEN_ERR), (1, OK)]);
}

#[test]
fn addresses_are_the_devices_own() {
    let raw = Raw::new();
    let refused = |change: fn(&mut ibv_ah_attr)| {
        let mut attr = attributes();
        change(&mut attr);
        address(raw.pd, attr).unwrap_err()
    };
    assert_eq!(refused(|attr| attr.is_global = 0), libc::EINVAL, "RoCE");
    assert_eq!(refused(|attr| attr.port_num = 0), libc::EINVAL);
    assert_eq!(refused(|attr| attr.port_num = 2), libc::EINVAL);
    assert_eq!(refused(|attr| attr.grh.sgid_index = 2), libc::EINVAL, "beyond the table");
    assert_eq!(refused(|attr| attr.grh.sgid_index = 1), libc::ENODATA, "an empty entry");
    assert_eq!(refused(|attr| attr.grh.dgid = ibv_gid { raw: [0xff; 16] }), libc::ENETUNREACH);
    // SAFETY: a live domain; there are no attributes.
    let nothing = unsafe { super::super::ah::create_ah(raw.pd, null_mut()) };
    assert_eq!((nothing, errno()), (null_mut(), libc::EINVAL));
    // SAFETY: a live context.
    let pd = unsafe { ibv_alloc_pd(raw.context) };
    let ah = address(pd, attributes()).unwrap();
    // SAFETY: a live domain.
    assert_eq!(unsafe { ibv_dealloc_pd(pd) }, libc::EBUSY);
    // SAFETY: a live handle, not used after this.
    assert_eq!(unsafe { ibv_destroy_ah(ah) }, 0);
    // SAFETY: a live domain, not used after this.
    assert_eq!(unsafe { ibv_dealloc_pd(pd) }, 0);
}

#[test]
fn posts_are_checked() {
    let rig = Rig::new(Personality::Ideal);
    let refused = |qp, change: fn(&mut ibv_send_wr)| {
        let mut list = [rig.memory.element(0, 100)];
        let mut wr = rig.request(&mut list);
        change(&mut wr);
        rig.post(qp, wr)
    };
    let immediate = |wr: &mut ibv_send_wr| wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
    assert_eq!(refused(rig.from, |wr| wr.wr.ud.ah = null_mut()), libc::EINVAL);
    assert_eq!(refused(rig.from, |wr| wr.wr.ud.remote_qpn = 1 << 24), libc::EINVAL);
    assert_eq!(
        refused(rig.from, |wr| wr.send_flags |= ibv_send_flags::IBV_SEND_IP_CSUM.0),
        libc::EINVAL,
        "there are no checksums"
    );
    assert_eq!(refused(rig.from, |wr| wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE), libc::EINVAL);
    assert_eq!(refused(rig.raw.qp, immediate), libc::EINVAL, "raw packets carry none");
    let fresh = make(&rig.raw, None).unwrap();
    assert_eq!(step(fresh, ibv_qp_state::IBV_QPS_INIT, 1, &INIT), libc::EINVAL, "there is one P_Key");
    assert_eq!(refused(fresh, |_| ()), libc::EINVAL, "in RESET");
    // Nothing of all that is left in the ring.
    assert!(rig.work().is_empty());
    rig.receive(7, &[(0, 1064)]);
    assert_eq!(rig.send(100, |_| ()), [(7, OK), (1, OK)]);
}

type Setters = fn(&Extended, &Rig);

#[test]
fn extended_queue_pairs_take_address_and_data_in_any_order() {
    let rig = Rig::new(Personality::Ideal);
    let operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    assert_eq!(make(&rig.raw, Some(operations | IBV_QP_EX_WITH_TSO)), Err(libc::EOPNOTSUPP));
    let qp = Extended::new(bring_up(make(&rig.raw, Some(operations)).unwrap()));
    let (key, at, to) = (rig.memory.key(), rig.memory.address(), number(rig.to));
    (8..10).for_each(|wr_id| rig.receive(wr_id, &[(0, 1064)]));
    qp.wr_start();
    qp.members(1, SIGNALED);
    qp.wr_send_imm(IMMEDIATE);
    qp.wr_set_ud_addr(rig.ah, to, KEY);
    qp.wr_set_sge(key, at, 100);
    qp.members(2, 0);
    qp.wr_send();
    let mut inline = *b"inline";
    qp.wr_set_inline_data(inline.as_mut_ptr().cast(), inline.len());
    qp.wr_set_ud_addr(rig.ah, to, KEY);
    assert_eq!(qp.wr_complete(), 0);
    inline.fill(0);
    let seen: Vec<_> = rig.work().iter().map(|wc| (wc.wr_id, wc.byte_len, wc.imm_data)).collect();
    assert_eq!(seen, [(8, 140, IMMEDIATE), (1, 100, 0), (9, 46, 0)]);
    assert_eq!(rig.memory.read(RECEIVED_AT + GRH_BYTES, 6), b"inline");
    let batch = |setters: Setters| {
        qp.wr_start();
        qp.wr_send();
        setters(&qp, &rig);
        qp.wr_complete()
    };
    let data: Setters = |qp, rig| qp.wr_set_sge(rig.memory.key(), rig.memory.address(), 1);
    let addressed: Setters = |qp, rig| qp.wr_set_ud_addr(rig.ah, 0x11, KEY);
    assert_eq!(batch(data), libc::EINVAL, "no address");
    assert_eq!(batch(addressed), libc::EINVAL, "no data");
    let twice: [Setters; 2] = [
        |qp, rig| [(); 2].iter().for_each(|()| qp.wr_set_sge(rig.memory.key(), rig.memory.address(), 1)),
        |qp, rig| [(); 2].iter().for_each(|()| qp.wr_set_ud_addr(rig.ah, 0x11, KEY)),
    ];
    assert_eq!(twice.map(batch), [libc::EINVAL; 2]);
    assert!(rig.work().is_empty(), "nothing of a failed batch is sent");
}

#[test]
fn frames_of_a_wire_are_no_datagrams_and_a_flow_for_them_is_refused() {
    for personality in ALL {
        let rig = Rig::new(personality);
        let mut attr = flow_attr();
        // SAFETY: a live queue pair and a block of its own size.
        let flow = unsafe { super::super::flow::create_flow(rig.to, &raw mut attr) };
        assert!(flow.is_null(), "{personality}");
        assert_eq!(errno(), libc::EINVAL, "{personality}");
    }
}

#[test]
fn the_error_state_flushes_both_sides() {
    let rig = Rig::new(Personality::Ideal);
    rig.receive(7, &[(0, 1064)]);
    assert_eq!(modify(rig.to, ibv_qp_state::IBV_QPS_ERR, ibv_qp_attr_mask::IBV_QP_STATE.0), 0);
    let flushed: Vec<_> = rig.work().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(flushed, [(7, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)]);
}
