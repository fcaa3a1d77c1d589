//! Events: from the engine to `ibv_get_async_event` and `ibv_get_cq_event`, and back when their object goes.
//!
//! As the kernel does it: an object that is destroyed takes its unread events with it. Front ends wait for
//! those that were read but not acknowledged, because an event points to its object.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};

/// Bytes of `struct ib_uverbs_async_event_desc` {u64 element, u32 event_type, u32 reserved}.
const ASYNC_BYTES: usize = 16;
/// Bytes of `struct ib_uverbs_comp_event_desc` {u64 cq_handle}.
const COMPLETION_BYTES: usize = 8;
/// How many unread events of other objects can be kept when one object's are taken back.
const MAX_KEPT: usize = 4_096;

/// A context's events: a socket pair, because unlike a pipe it can be read without waiting whatever the
/// application made of its end.
pub(crate) struct EventChannel {
    write: OwnedFd,
    read: OwnedFd,
}

impl EventChannel {
    /// A channel, and the descriptor that the library reads from (`async_fd`).
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (write, read) = pair()?;
        let application = read.try_clone()?;
        Ok((Self { write, read }, application))
    }

    /// Sends an event. Returns whether it went; a channel that no one reads from loses events, since no one
    /// waits.
    pub(crate) fn send(&self, event_type: u32, element: u64) -> bool {
        let mut record = [0; ASYNC_BYTES];
        record[..8].copy_from_slice(&element.to_ne_bytes());
        record[8..12].copy_from_slice(&event_type.to_ne_bytes());
        let sent = send_record(&self.write, &record);
        if !sent {
            tracing::warn!("an asynchronous event is lost: its context does not read events");
        }
        sent
    }

    /// Ends the channel: behind the events that were sent the reader finds its end.
    pub(crate) fn end(&self) {
        // It has ended already if this fails.
        let _ = shutdown(&self.write, Shutdown::Write);
    }

    /// Takes back the unread events of an object; returns how many. Nothing may be sent meanwhile.
    pub(crate) fn retract(&self, element: u64) -> u32 {
        retract::<ASYNC_BYTES>(self.write.as_fd(), self.read.as_fd(), element)
    }
}

/// The device's end of a completion channel. The other one is the application's alone, so that it shows when
/// the library closes it: `ibv_destroy_comp_channel` calls no provider.
pub struct CompletionEvents {
    write: OwnedFd,
}

impl CompletionEvents {
    /// The device's end, and the descriptor that the library reads from (`ibv_comp_channel.fd`).
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (write, read) = pair()?;
        Ok((Self { write }, read))
    }

    /// Sends the event of a queue. Returns whether there was room; if not it is to be sent later.
    pub(crate) fn send(&self, cq: u64) -> bool {
        send_record::<COMPLETION_BYTES>(&self.write, &cq.to_ne_bytes())
    }

    /// Takes the unread events of a queue back from the application's end; returns how many. Nothing may be
    /// sent meanwhile.
    pub(crate) fn retract(&self, read: BorrowedFd<'_>, cq: u64) -> u32 {
        retract::<COMPLETION_BYTES>(self.write.as_fd(), read, cq)
    }

    /// Whether the application's end is closed.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut end = [PollFd::new(&self.write, PollFlags::empty())];
        let looked = poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        looked.is_ok() && end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn send_record<const BYTES: usize>(write: impl AsFd, record: &[u8; BYTES]) -> bool {
    send(write, record, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Ok(BYTES)
}

/// Every record begins with its object.
fn retract<const BYTES: usize>(write: BorrowedFd<'_>, read: BorrowedFd<'_>, element: u64) -> u32 {
    let (mut kept, mut retracted) = (Vec::new(), 0);
    let mut record = [0; BYTES];
    while kept.len() < MAX_KEPT
        && matches!(recv(read, &mut record, RecvFlags::DONTWAIT), Ok((received, _)) if received == BYTES)
    {
        if record[..8] == element.to_ne_bytes() {
            retracted += 1;
        } else {
            kept.push(record);
        }
    }
    for record in kept {
        if !send_record(write, &record) {
            tracing::warn!("an event is lost: its channel has no room for what it held");
        }
    }
    retracted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(reader: &OwnedFd) -> Option<u64> {
        let mut record = [0; ASYNC_BYTES];
        let (bytes, _) = recv(reader, &mut record, RecvFlags::DONTWAIT).ok()?;
        assert_eq!(bytes, ASYNC_BYTES);
        Some(u64::from_ne_bytes(record[..8].try_into().unwrap()))
    }

    #[test]
    fn an_objects_events_go_with_it_and_the_others_keep_their_order() {
        let (channel, reader) = EventChannel::new().unwrap();
        for element in [1, 2, 1, 3, 1] {
            assert!(channel.send(0, element));
        }
        assert_eq!(next(&reader), Some(1));
        assert_eq!(channel.retract(1), 2);
        assert_eq!([next(&reader), next(&reader), next(&reader)], [Some(2), Some(3), None]);
    }

    #[test]
    fn a_completion_channel_shows_when_the_application_closes_it() {
        let (channel, reader) = CompletionEvents::new().unwrap();
        for cq in [1, 2, 1] {
            assert!(channel.send(cq));
        }
        assert_eq!(channel.retract(reader.as_fd(), 1), 2);
        let mut record = [0; 64];
        assert_eq!(recv(&reader, &mut record, RecvFlags::DONTWAIT).unwrap().0, COMPLETION_BYTES);
        assert_eq!(record[..8], 2u64.to_ne_bytes());
        assert!(!channel.is_abandoned());
        drop(reader);
        assert!(channel.is_abandoned());
        assert!(!channel.send(1));
    }

    #[test]
    fn events_that_no_one_reads_are_lost_without_waiting() {
        let (channel, reader) = EventChannel::new().unwrap();
        let sent = (0..1_000_000).take_while(|element| channel.send(0, *element)).count();
        assert!((100..1_000_000).contains(&sent));
        drop(reader);
        drop(channel.read);
        assert!(!EventChannel::new().is_ok_and(|(other, reader)| {
            drop((reader, other.read));
            send(&other.write, &[0; ASYNC_BYTES], SendFlags::NOSIGNAL).is_ok()
        }));
    }
}
