//! Captures of rules and of dropped packets, traces and records, for clients of the API: the bytes go from
//! the thread of the sink through a bounded channel to the answer.
//!
//! If the client reads slowly the thread waits, the rings of the workers fill, and packets are dropped as
//! `ring_full`; no worker ever waits. A capture ends when it is stopped, when its client goes away, or with
//! the daemon.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc;
use worker::Slot;

use super::request::{CaptureBody, RecordBody, Refused, TraceBody};
use super::router::Daemon;

/// The most captures at once: each takes a ring per worker.
const CAPTURES_MAX: usize = 8;
/// The most writes of the sink's thread that wait for the client.
const CHANNEL_WRITES: usize = 16;

/// A capture, a trace or a record that a client asks for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    /// The packets of a rule, or dropped ones.
    Capture(CaptureBody),
    /// The ways of packets.
    Trace(TraceBody),
    /// The packets that the recorder has kept.
    Record(RecordBody),
}

/// The captures that are running.
pub(super) struct Captures {
    daemon: Arc<dyn Daemon>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    last_id: u64,
    /// `None` while it is being attached, and of a record, which is not.
    slots: BTreeMap<u64, Option<Slot>>,
}

impl Captures {
    pub(super) fn new(daemon: Arc<dyn Daemon>) -> Self {
        Self { daemon, open: Mutex::default() }
    }

    /// Starts a capture; may wait for the workers.
    pub(super) fn start(self: &Arc<Self>, asked: &Asked) -> Result<(u64, Packets), Refused> {
        let id = {
            let mut open = self.open();
            if open.slots.len() >= CAPTURES_MAX {
                return Err(Refused::new(
                    503,
                    format!("{CAPTURES_MAX} captures, traces and records are running already"),
                ));
            }
            open.last_id += 1;
            let id = open.last_id;
            open.slots.insert(id, None);
            id
        };
        // Ends it from here on, whatever happens.
        let running = Running { captures: Arc::clone(self), id };
        let (sender, bytes) = mpsc::channel(CHANNEL_WRITES);
        let slot = self.daemon.attach(id, asked, Box::new(Stream { sender }))?;
        if let Some(slot) = slot
            && !self.attached(id, slot)
        {
            // Nothing else ends it: `stop` found no slot.
            self.daemon.detach(slot);
            return Err(Refused::new(409, format!("the capture {id} was stopped before it began")));
        }
        Ok((id, Packets { bytes, _running: running }))
    }

    /// `false`: it has been stopped meanwhile.
    fn attached(&self, id: u64, slot: Slot) -> bool {
        match self.open().slots.get_mut(&id) {
            Some(place) => {
                *place = Some(slot);
                true
            }
            None => false,
        }
    }

    /// Stops a capture: its answer ends with the statistics. May wait for the workers. `false`: it is not
    /// running.
    pub(super) fn stop(&self, id: u64) -> bool {
        let slot = self.open().slots.remove(&id);
        if let Some(Some(slot)) = slot {
            self.daemon.detach(slot);
        }
        slot.is_some()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A capture; dropping it stops the capture.
struct Running {
    captures: Arc<Captures>,
    id: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (captures, id) = (Arc::clone(&self.captures), self.id);
        // The thread of the server should not wait for workers. If there is no other, it does: for a short
        // time.
        let stop = Arc::clone(&captures);
        let thread = std::thread::Builder::new().name("capture end".into()).spawn(move || stop.stop(id));
        if thread.is_err() {
            captures.stop(id);
        }
    }
}

/// The sink's side. A write waits until the client has taken earlier ones.
struct Stream {
    sender: mpsc::Sender<Bytes>,
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.sender.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The body of the answer; ends when the sink's thread has written its last block.
pub(super) struct Packets {
    bytes: mpsc::Receiver<Bytes>,
    _running: Running,
}

impl Body for Packets {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.bytes.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::api::model::Status;
    use crate::api::router::InForce;

    /// A daemon in which every capture is stopped while it is being attached.
    #[derive(Default)]
    struct Stopping {
        captures: OnceLock<Arc<Captures>>,
        detached: Mutex<Vec<Slot>>,
    }

    use crate::api::{model, rules};

    impl Daemon for Stopping {
        fn history(&self) -> model::History {
            unreachable!("only captures are asked for")
        }

        fn plan(
            &self,
            _: crate::policy_file::Read,
        ) -> Result<model::PlanReport, steerd_client::api::ApiFailure> {
            unreachable!("only captures are asked for")
        }

        fn may_change_rules(&self, _: rules::Caller) -> Result<(), Refused> {
            unreachable!("only captures are asked for")
        }

        fn change_rules(
            &self,
            _: rules::Caller,
            _: rules::RuleChanges,
        ) -> Result<rules::RulesChanged, rules::ChangesRefused> {
            unreachable!("only captures are asked for")
        }

        fn rules(&self, _: Option<&str>, _: &crate::state::State) -> Result<rules::RuleList, Refused> {
            unreachable!("only captures are asked for")
        }

        fn workers(&self) -> model::WorkerList {
            unreachable!("only captures are asked for")
        }

        fn change_workers(
            &self,
            _: crate::api::request::WorkerChange,
            _: &str,
        ) -> Result<model::WorkersChanged, Refused> {
            unreachable!("only captures are asked for")
        }

        fn status(&self) -> Status {
            unimplemented!("captures do not use it")
        }

        fn in_force(&self) -> InForce {
            unimplemented!("captures do not use it")
        }

        fn attach(
            &self,
            id: u64,
            _asked: &Asked,
            _stream: Box<dyn Write + Send>,
        ) -> Result<Option<Slot>, Refused> {
            assert!(self.captures.get().expect("set").stop(id), "it is known already");
            Ok(Some(Slot::of(3).expect("a place")))
        }

        fn detach(&self, slot: Slot) {
            self.detached.lock().expect("not poisoned").push(slot);
        }
    }

    #[test]
    fn a_capture_that_is_stopped_while_it_is_attached_is_detached() {
        let daemon = Arc::new(Stopping::default());
        let captures = Arc::new(Captures::new(Arc::clone(&daemon) as Arc<dyn Daemon>));
        assert!(daemon.captures.set(Arc::clone(&captures)).is_ok());
        let asked = Asked::Capture(CaptureBody { rule: Some("dns".to_owned()), ..CaptureBody::default() });
        let refused = captures.start(&asked).map(|(id, _)| id).expect_err("stopped");
        assert!(refused.status == 409 && refused.why.contains("was stopped"), "{refused}");
        assert_eq!(*daemon.detached.lock().expect("not poisoned"), [Slot::of(3).expect("a place")]);
        assert!(captures.open().slots.is_empty(), "it does not count as running");
    }
}
