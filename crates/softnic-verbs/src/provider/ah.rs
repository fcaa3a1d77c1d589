//! Address handles, and the addresses of datagrams in send requests.
//!
//! A datagram goes from one queue pair of this device to another one of it, and never over a wire: the only
//! addresses there are the GIDs of its own ports. Any other one fails as an address that cannot be resolved.
//! A request takes a copy of the address, so a handle may go while requests with it wait.

use std::ffi::c_int;
use std::ptr::NonNull;

use ibverbs_sys::{ibv_ah, ibv_ah_attr, ibv_pd, ibv_send_wr};
use softnic::Nic;
use softnic::errno::{EINVAL, ENETUNREACH, ENODATA, EOPNOTSUPP, Verb};
use softnic::objects::attributes::{self, GIDS};
use softnic::objects::domains::{release_domain, use_domain};
use softnic::objects::flows::grh_flow;
use softnic::work::{Envelope, MAX_TAGGED_NUMBER, Route, SEND_IMMEDIATE};

use super::Object;
use super::answer::{answer_handle, answer_status};
use super::pd::SoftPd;
use super::qp_send::{Begun, SendPoster};
use crate::soft_context::SoftContext;

/// An address handle.
#[repr(C)]
struct SoftAh {
    ah: ibv_ah,
    /// The domain that it keeps in use: of the route it is the base.
    domain: u32,
    route: Route,
}

// SAFETY: `repr(C)` with `ibv_ah` first; handed out by `into_native` only.
unsafe impl Object for SoftAh {
    type Native = ibv_ah;
}

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    answer_handle(|| {
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let domain = unsafe { SoftPd::of(pd) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the domain keeps the context it was made with.
        let soft = unsafe { SoftContext::of(domain.context()) }?;
        let route = route(soft.nic(), domain.base, attr)?;
        use_domain(&mut soft.nic().control(), domain.slot)?;
        let ah = ibv_ah { context: domain.context(), pd, handle: 0 };
        Ok(SoftAh { ah, domain: domain.slot, route }.into_native())
    })
}

/// In the order of the kernel's checks (core/verbs.c, `rdma_check_ah_attr` and `rdma_fill_sgid_attr`, then
/// the resolution of the address).
fn route(nic: &Nic, domain: u32, attr: &ibv_ah_attr) -> Verb<Route> {
    if !(1..=nic.port_count()).contains(&usize::from(attr.port_num)) {
        return Err(EINVAL);
    }
    // RoCE has no addresses but GIDs.
    if attr.is_global == 0 || c_int::from(attr.grh.sgid_index) >= GIDS {
        return Err(EINVAL);
    }
    if attr.grh.sgid_index != 0 {
        // cache.c, `rdma_get_gid_attr`: an entry without a GID.
        return Err(ENODATA);
    }
    // SAFETY: all members of the union are the same 16 bytes.
    let gid = unsafe { attr.grh.dgid.raw };
    let to_port = attributes::port_of_gid(nic, &gid).ok_or(ENETUNREACH)?;
    Ok(Route {
        domain,
        grh_flow: grh_flow(&attr.grh),
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        from_port: attr.port_num,
        to_port,
    })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or an address handle of this provider, by the verb's contract.
        let object = unsafe { SoftAh::of(ah) }?;
        // SAFETY: the handle keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.ah.context) }?;
        release_domain(&mut soft.nic().control(), object.domain);
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftAh::take(ah) });
        Ok(())
    })
}

impl SendPoster {
    /// Begins a request for a datagram with immediate data.
    pub(super) fn begin_immediate(&mut self, wr_id: u64, flags: u16, immediate: u32) -> Verb<()> {
        if !self.shape.datagram {
            return Err(EOPNOTSUPP);
        }
        self.begin(wr_id, flags | SEND_IMMEDIATE)?;
        self.envelope().immediate = immediate;
        Ok(())
    }

    /// Gives the datagram that was begun the address of its request.
    pub(super) fn set_address_of(&mut self, wr: &ibv_send_wr) -> Verb<()> {
        // SAFETY: of the union, the member for datagrams; any bits are one.
        let to = unsafe { wr.wr.ud };
        self.set_address(to.ah, to.remote_qpn, to.remote_qkey)
    }

    /// Gives the datagram that was begun its address.
    pub(super) fn set_address(&mut self, ah: *mut ibv_ah, number: u32, key: u32) -> Verb<()> {
        if !self.shape.datagram {
            return Err(EOPNOTSUPP);
        }
        let begun = self.batch.begun.filter(|begun| begun.lacks_address).ok_or(EINVAL)?;
        if number > MAX_TAGGED_NUMBER {
            return Err(EINVAL);
        }
        // SAFETY: NULL or an address handle of this provider, by the verb's contract.
        let ah = unsafe { SoftAh::of(ah) }?;
        let envelope = self.envelope();
        (envelope.route, envelope.number, envelope.key) = (ah.route, number, key);
        if begun.lacks_data {
            self.batch.begun = Some(Begun { lacks_address: false, ..begun });
        } else {
            self.finish(begun.header);
        }
        Ok(())
    }

    /// The envelope of the request that was begun.
    fn envelope(&mut self) -> &mut Envelope {
        // SAFETY: the slots of a datagram queue pair hold an envelope there.
        let place = unsafe { self.producer.slot().add(self.shape.envelope_offset()) };
        let place: NonNull<Envelope> = place.cast();
        // SAFETY: there is room since the request was begun, so the slot is this side's; every bit pattern is
        // an envelope.
        unsafe { &mut *place.as_ptr() }
    }
}
