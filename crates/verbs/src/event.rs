//! Asynchronous events: ports going up and down, queues failing.
//!
//! Called through [`Context::async_event`] by the thread that watches the device. Events are acknowledged
//! before they are returned, so that destroying the object they name never waits.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;

use ibverbs_sys::{
    self as sys, ibv_ack_async_event, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_event_type,
    ibv_get_async_event,
};

use crate::error::{forget_last, last};
use crate::{Context, PortNumber, QueueNumber, Result, VerbsError};

/// The kind of an asynchronous event (`ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // the names are those of ibv_get_async_event(3)
pub enum EventKind {
    CompletionQueueError,
    QueuePairFatal,
    QueuePairRequestError,
    QueuePairAccessError,
    CommunicationEstablished,
    SendQueueDrained,
    PathMigrated,
    PathMigrationError,
    DeviceFatal,
    PortActive,
    PortError,
    LidChange,
    PkeyChange,
    SubnetManagerChange,
    SharedReceiveQueueError,
    SharedReceiveQueueLimit,
    LastWorkRequest,
    ClientReregister,
    GidChange,
    WorkQueueFatal,
    /// An event this crate has no name for.
    Unknown(u32),
}

impl From<ibv_event_type> for EventKind {
    fn from(raw: ibv_event_type) -> Self {
        match raw {
            sys::IBV_EVENT_CQ_ERR => Self::CompletionQueueError,
            sys::IBV_EVENT_QP_FATAL => Self::QueuePairFatal,
            sys::IBV_EVENT_QP_REQ_ERR => Self::QueuePairRequestError,
            sys::IBV_EVENT_QP_ACCESS_ERR => Self::QueuePairAccessError,
            sys::IBV_EVENT_COMM_EST => Self::CommunicationEstablished,
            sys::IBV_EVENT_SQ_DRAINED => Self::SendQueueDrained,
            sys::IBV_EVENT_PATH_MIG => Self::PathMigrated,
            sys::IBV_EVENT_PATH_MIG_ERR => Self::PathMigrationError,
            sys::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            sys::IBV_EVENT_PORT_ACTIVE => Self::PortActive,
            sys::IBV_EVENT_PORT_ERR => Self::PortError,
            sys::IBV_EVENT_LID_CHANGE => Self::LidChange,
            sys::IBV_EVENT_PKEY_CHANGE => Self::PkeyChange,
            sys::IBV_EVENT_SM_CHANGE => Self::SubnetManagerChange,
            sys::IBV_EVENT_SRQ_ERR => Self::SharedReceiveQueueError,
            sys::IBV_EVENT_SRQ_LIMIT_REACHED => Self::SharedReceiveQueueLimit,
            sys::IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastWorkRequest,
            sys::IBV_EVENT_CLIENT_REREGISTER => Self::ClientReregister,
            sys::IBV_EVENT_GID_CHANGE => Self::GidChange,
            sys::IBV_EVENT_WQ_FATAL => Self::WorkQueueFatal,
            other => Self::Unknown(other),
        }
    }
}

/// Whom it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // one variant per kind of object; the fields are the device's numbers
pub enum EventSource {
    Device,
    Port(PortNumber),
    CompletionQueue { handle: u32 },
    QueuePair { number: QueueNumber },
    WorkQueue { number: QueueNumber },
    SharedReceiveQueue { handle: u32 },
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// The kind of event.
    pub kind: EventKind,
    /// Whom it happened to.
    pub source: EventSource,
}

impl fmt::Display for EventKind {
    /// A description, from ibv_get_async_event(3).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CompletionQueueError => "completion queue overrun",
            Self::QueuePairFatal => "queue pair in its error state",
            Self::QueuePairRequestError => "invalid request to a queue pair",
            Self::QueuePairAccessError => "access violation at a queue pair",
            Self::CommunicationEstablished => "communication established",
            Self::SendQueueDrained => "send queue drained",
            Self::PathMigrated => "path migrated",
            Self::PathMigrationError => "path migration failed",
            Self::DeviceFatal => "device in its fatal state",
            Self::PortActive => "link active",
            Self::PortError => "link down",
            Self::LidChange => "LID changed",
            Self::PkeyChange => "P_Key table changed",
            Self::SubnetManagerChange => "subnet manager changed",
            Self::SharedReceiveQueueError => "error of a shared receive queue",
            Self::SharedReceiveQueueLimit => "limit of a shared receive queue reached",
            Self::LastWorkRequest => "last work request reached",
            Self::ClientReregister => "reregistration wanted",
            Self::GidChange => "GID table changed",
            Self::WorkQueueFatal => "work queue in its error state",
            Self::Unknown(number) => return write!(f, "event {number}"),
        })
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("the device"),
            Self::Port(number) => write!(f, "port {number}"),
            Self::CompletionQueue { handle } => write!(f, "completion queue {handle}"),
            Self::QueuePair { number } => write!(f, "queue pair {number}"),
            Self::WorkQueue { number } => write!(f, "work queue {number}"),
            Self::SharedReceiveQueue { handle } => write!(f, "shared receive queue {handle}"),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.kind)
    }
}

impl AsyncEvent {
    /// # Safety
    /// `raw` was returned by `ibv_get_async_event` and is not acknowledged yet: until then the library does
    /// not destroy the object it points to (ibv_get_async_event(3)).
    unsafe fn read(raw: &ibv_async_event) -> Self {
        let kind = EventKind::from(raw.event_type);
        let element = raw.element;
        // SAFETY: forwarded contract; `kind` determines which member is set.
        let source = unsafe { source_of(kind, element) };
        Self { kind, source }
    }
}

/// # Safety
/// As for [`AsyncEvent::read`].
unsafe fn source_of(kind: EventKind, element: ibv_async_event__bindgen_ty_1) -> EventSource {
    match kind {
        EventKind::CompletionQueueError => {
            // SAFETY: events of this kind carry a completion queue.
            let cq = unsafe { element.cq };
            // SAFETY: not destroyed before the acknowledgement.
            EventSource::CompletionQueue { handle: unsafe { (*cq).handle } }
        }
        EventKind::QueuePairFatal
        | EventKind::QueuePairRequestError
        | EventKind::QueuePairAccessError
        | EventKind::CommunicationEstablished
        | EventKind::SendQueueDrained
        | EventKind::PathMigrated
        | EventKind::PathMigrationError
        | EventKind::LastWorkRequest => {
            // SAFETY: events of these kinds carry a queue pair.
            let qp = unsafe { element.qp };
            // SAFETY: not destroyed before the acknowledgement.
            EventSource::QueuePair { number: QueueNumber(unsafe { (*qp).qp_num }) }
        }
        EventKind::SharedReceiveQueueError | EventKind::SharedReceiveQueueLimit => {
            // SAFETY: events of these kinds carry a shared receive queue.
            let srq = unsafe { element.srq };
            // SAFETY: not destroyed before the acknowledgement.
            EventSource::SharedReceiveQueue { handle: unsafe { (*srq).handle } }
        }
        EventKind::WorkQueueFatal => {
            // SAFETY: events of this kind carry a work queue.
            let wq = unsafe { element.wq };
            // SAFETY: not destroyed before the acknowledgement.
            EventSource::WorkQueue { number: QueueNumber(unsafe { (*wq).wq_num }) }
        }
        EventKind::PortActive
        | EventKind::PortError
        | EventKind::LidChange
        | EventKind::PkeyChange
        | EventKind::SubnetManagerChange
        | EventKind::ClientReregister
        | EventKind::GidChange => {
            // SAFETY: events of these kinds carry a port number.
            let port = unsafe { element.port_num };
            EventSource::Port(PortNumber(u8::try_from(port).unwrap_or(0)))
        }
        EventKind::DeviceFatal | EventKind::Unknown(_) => EventSource::Device,
    }
}

impl Context {
    /// The next asynchronous event, acknowledged; `None` when there is none now. Never waits.
    pub fn async_event(&self) -> Result<Option<AsyncEvent>> {
        let mut raw = MaybeUninit::<ibv_async_event>::zeroed();
        loop {
            // The library reads the descriptor and compares lengths (libibverbs/device.c): at the end of the
            // file, which a device that is gone can come to, it fails and leaves errno as it was.
            forget_last();
            // SAFETY: the context is open and `raw` is writable.
            if unsafe { ibv_get_async_event(self.raw(), raw.as_mut_ptr()) } == 0 {
                break;
            }
            let source = last();
            match source.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(None),
                _ => return Err(VerbsError::AsyncEvent { device: self.name().into(), source }),
            }
        }
        // SAFETY: zero is a valid event, and the library has filled it in.
        let mut raw = unsafe { raw.assume_init() };
        // SAFETY: fresh from the library and not acknowledged.
        let event = unsafe { AsyncEvent::read(&raw) };
        // SAFETY: acknowledged once, right here.
        unsafe { ibv_ack_async_event(&mut raw) };
        Ok(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_keep_unknown_numbers() {
        assert_eq!(EventKind::from(sys::IBV_EVENT_WQ_FATAL), EventKind::WorkQueueFatal);
        assert_eq!(EventKind::from(77), EventKind::Unknown(77));
        let named = (0..=sys::IBV_EVENT_WQ_FATAL).map(EventKind::from);
        assert!(
            named.into_iter().all(|kind| !matches!(kind, EventKind::Unknown(_))),
            "verbs.h's are all named"
        );
    }

    #[test]
    fn a_port_event_names_its_port_and_a_queue_event_its_queue() {
        let element = ibv_async_event__bindgen_ty_1 { port_num: 2 };
        let raw = ibv_async_event { element, event_type: sys::IBV_EVENT_PORT_ERR };
        // SAFETY: a port event is not behind a pointer.
        let event = unsafe { AsyncEvent::read(&raw) };
        let source = EventSource::Port(PortNumber(2));
        assert_eq!(event, AsyncEvent { kind: EventKind::PortError, source });

        let mut qp = sys::ibv_qp { qp_num: 17, ..sys::ibv_qp::default() };
        let element = ibv_async_event__bindgen_ty_1 { qp: &raw mut qp };
        let raw = ibv_async_event { element, event_type: sys::IBV_EVENT_QP_FATAL };
        // SAFETY: `qp` lives on this stack.
        let event = unsafe { AsyncEvent::read(&raw) };
        assert_eq!(event.source, EventSource::QueuePair { number: QueueNumber(17) });

        let mut srq = sys::ibv_srq { handle: 3, ..sys::ibv_srq::default() };
        let element = ibv_async_event__bindgen_ty_1 { srq: &raw mut srq };
        let raw = ibv_async_event { element, event_type: sys::IBV_EVENT_SRQ_LIMIT_REACHED };
        // SAFETY: as above.
        let event = unsafe { AsyncEvent::read(&raw) };
        assert_eq!(event.source, EventSource::SharedReceiveQueue { handle: 3 });
    }
}
