//! The thread of a sink that talks to clients: listens, checks who connects, shakes hands, watches
//! connections, sends interrupts, and unmaps the memory of clients that have gone.
//!
//! Nothing here waits for a client: sockets are non-blocking, a handshake has a time limit, and interrupts
//! are sent without write(2) ([`shm::Signaller`]), and what comes from clients is closed by another thread
//! ([`shm::Closer`]). So a client that stalls harms nobody. While that thread has too much to close, nothing
//! is accepted and received.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use program::{AppMode, AppSink};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::geteuid;
use shm::memif::message::Message;
use shm::memif::server::{ClientLimits, Connection, HandshakeRefusal, HandshakeStep, Negotiation};
use shm::{Channel, Closer, ListenError, Listener, Peer, Received, Signaller};

use super::client::{Client, ThreadWakeup};
use super::roster::{Roster, RosterSlot, Shares};

/// The longest time from the connection to the end of the handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(3);
/// The most handshakes of users at once, and of one user. They are no places of clients: whoever does not
/// complete one takes nothing that another user could have. Fewer than four users cannot have all.
const PENDING_MAX: usize = 32;
pub(super) const USER_PENDING_MAX: usize = PENDING_MAX / 4;
/// Further handshakes of root and the daemon's user; beyond them connections wait in the socket.
const RESERVED: usize = PENDING_MAX / 4;
/// How long the thread sleeps at most, and while it waits for workers to give up a client.
const TICK: Duration = Duration::from_secs(1);
const RELEASE_TICK: Duration = Duration::from_millis(5);
/// The pause after an error of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// And while files wait to be closed.
const CLOSER_TICK: Duration = Duration::from_millis(20);
/// The least time between two rounds of interrupts: a client that always wants one costs a bounded time.
const INTERRUPT_GAP: Duration = Duration::from_micros(20);
/// Lines that are logged per second about clients; more are counted.
const LINES_PER_SECOND: u32 = 10;
/// Why a handshake fails whose messages find no room in the socket.
const UNREAD: &str = "it does not read its messages";
/// Clients that have gone and are still named in the status.
const GONE_MAX: usize = 8;

/// The state that the thread shares with the owner of the sink.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    pub(super) wakeup: Arc<ThreadWakeup>,
    clients: Mutex<Vec<Arc<Client>>>,
    /// The last clients that have gone.
    gone: Mutex<VecDeque<GoneClient>>,
    pub(super) events: Events,
}

/// A client that has gone.
#[derive(Debug)]
pub(super) struct GoneClient {
    pub(super) id: u64,
    /// Application and interface, as it named them.
    pub(super) name: String,
    pub(super) peer: Peer,
    pub(super) reason: String,
}

/// The events of connections, for the status.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) connected: AtomicU64,
    pub(super) left: AtomicU64,
    /// Disconnected because they broke the protocol of the rings.
    pub(super) violations: AtomicU64,
    /// Not allowed to connect.
    pub(super) denied: AtomicU64,
    /// Handshakes that failed, or did not end in time.
    pub(super) failed: AtomicU64,
}

impl Shared {
    pub(super) fn new(wakeup: Arc<ThreadWakeup>) -> Self {
        let (clients, gone) = (Mutex::default(), Mutex::default());
        Self { stop: AtomicBool::new(false), wakeup, clients, gone, events: Events::default() }
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, Vec<Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gone(&self) -> MutexGuard<'_, VecDeque<GoneClient>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection during its handshake.
struct Pending {
    channel: Channel,
    peer: Peer,
    negotiation: Negotiation,
    deadline: Instant,
    /// The peer has sent a message. A process that only looks whether somebody listens sends none.
    began: bool,
}

/// The server of one sink.
pub(super) struct Server {
    name: String,
    options: AppSink,
    closer: Closer,
    /// The log has a line that `closer` is busy.
    is_busy_logged: bool,
    listener: Listener,
    /// Until then nothing is accepted, after an error.
    accept_after: Instant,
    is_accept_error_logged: bool,
    shared: Arc<Shared>,
    slots: Vec<Arc<RosterSlot>>,
    pending: Vec<Pending>,
    /// In the order of the clients in `shared`.
    channels: Vec<Channel>,
    /// No longer in the roster, but workers may still have it.
    departed: Vec<Arc<Client>>,
    shares: Shares,
    signaller: Option<Signaller>,
    next_id: u64,
    /// When the socket's file was looked at last.
    checked: Instant,
    log: LogLimit,
}

impl Server {
    /// # Errors
    /// The socket cannot be had.
    pub(super) fn new(
        name: &str,
        options: &AppSink,
        shared: Arc<Shared>,
        slots: Vec<Arc<RosterSlot>>,
        closer: Closer,
    ) -> Result<Self, ListenError> {
        let listener = Listener::bind(&options.socket, options.socket_mode, &closer)?;
        let signaller = Signaller::new();
        if let Err(error) = &signaller {
            tracing::warn!(
                "sink `{name}`: clients must poll, because interrupts are not possible: io_setup: {error}"
            );
        }
        Ok(Self {
            name: name.to_owned(),
            options: options.clone(),
            closer,
            is_busy_logged: false,
            listener,
            accept_after: Instant::now(),
            is_accept_error_logged: false,
            shared,
            slots,
            pending: Vec::new(),
            channels: Vec::new(),
            departed: Vec::new(),
            shares: Shares::default(),
            signaller: signaller.ok(),
            next_id: 1,
            checked: Instant::now(),
            log: LogLimit::default(),
        })
    }

    /// Runs until the owner sets `stop`.
    pub(super) fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            let ready = self.wait();
            self.send_interrupts();
            if ready.listener {
                self.accept();
            }
            self.negotiate();
            self.watch(ready.clients);
            self.release();
            self.keep_listening();
        }
        self.close();
    }

    fn wait(&mut self) -> Ready {
        let is_busy = self.is_closer_busy();
        let accepts =
            !is_busy && self.pending.len() < PENDING_MAX + RESERVED && self.accept_after <= Instant::now();
        let mut files: Vec<BorrowedFd<'_>> = Vec::new();
        if !is_busy {
            files.extend(self.channels.iter().map(AsFd::as_fd));
            files.extend(self.pending.iter().map(|pending| pending.channel.as_fd()));
        }
        files.extend(accepts.then_some(self.listener.as_fd()));
        let entry = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
        let wakeup = &self.shared.wakeup;
        let mut files: Vec<_> = std::iter::once(wakeup.entry()).chain(files.into_iter().map(entry)).collect();
        wakeup.wait(&mut files, || self.timeout());
        let is_ready = |file: &PollFd<'_>| !file.revents().is_empty();
        Ready {
            clients: !is_busy && files.iter().skip(1).take(self.channels.len()).any(is_ready),
            listener: accepts && files.last().is_some_and(is_ready),
        }
    }

    /// Whether so many files of clients wait to be closed that nothing may be accepted and received.
    fn is_closer_busy(&mut self) -> bool {
        let is_busy = self.closer.is_busy();
        if is_busy && !self.is_busy_logged {
            let (waiting, left_open) = (self.closer.waiting(), self.closer.left_open());
            tracing::warn!(
                "sink `{}`: {waiting} files of clients wait to be closed, {left_open} were left open; clients cannot \
                 connect until they are closed (hint: a process that may open the socket sends files whose close waits)",
                self.name
            );
        }
        self.is_busy_logged = is_busy;
        is_busy
    }

    fn timeout(&self) -> Duration {
        let now = Instant::now();
        let pause = self.accept_after.saturating_duration_since(now);
        let limit = if self.is_busy_logged { CLOSER_TICK } else { TICK };
        let limit = if pause.is_zero() { limit } else { limit.min(pause) };
        let limit = if self.departed.is_empty() { limit } else { RELEASE_TICK };
        let deadlines = self.pending.iter().map(|pending| pending.deadline.saturating_duration_since(now));
        deadlines.min().map_or(limit, |next| next.min(limit))
    }

    fn accept(&mut self) {
        while self.pending.len() < PENDING_MAX + RESERVED {
            let channel = match self.listener.accept() {
                Ok(Some(channel)) => channel,
                Ok(None) => {
                    self.is_accept_error_logged = false;
                    return;
                }
                Err(errno) => return self.pause_accepting(errno),
            };
            let Ok(peer) = channel.peer() else { continue };
            if let Err(reason) = self.check_access(&peer).and_then(|()| self.check_place()) {
                self.deny(&channel, &peer, reason);
                continue;
            }
            let negotiation = Negotiation::new(self.limits());
            if channel.send(&negotiation.hello("steerd"), None).is_ok() {
                self.pending.push(Pending {
                    channel,
                    peer,
                    negotiation,
                    deadline: Instant::now() + HANDSHAKE,
                    began: false,
                });
            }
        }
    }

    /// The connection keeps waiting, so the socket stays readable: without a pause the thread would not
    /// sleep.
    fn pause_accepting(&mut self, errno: Errno) {
        self.accept_after = Instant::now() + ACCEPT_PAUSE;
        if !self.is_accept_error_logged {
            self.is_accept_error_logged = true;
            tracing::warn!(
                "sink `{}`: clients cannot connect: accept: {errno} (hint: `ulimit -n`, LimitNOFILE= of the service)",
                self.name
            );
        }
    }

    fn limits(&self) -> ClientLimits {
        ClientLimits {
            rings: self.options.rings,
            log2_ring_size: self.options.ring_size.ilog2() as u8,
            bytes: u64::from(self.options.client_mib) << 20,
        }
    }

    fn check_access(&self, peer: &Peer) -> Result<(), String> {
        if is_privileged(peer) {
            return Ok(());
        }
        let AppSink { uids, gids, .. } = &self.options;
        if !uids.contains(&peer.user) && !peer.groups.iter().any(|group| gids.contains(group)) {
            return Err(format!("neither user {} nor one of its groups is allowed", peer.user));
        }
        let own = self.pending.iter().filter(|pending| pending.peer.user == peer.user);
        if own.count() >= USER_PENDING_MAX {
            return Err(format!("user {} has {USER_PENDING_MAX} unfinished handshakes", peer.user));
        }
        if self.pending.iter().filter(|pending| !is_privileged(&pending.peer)).count() >= PENDING_MAX {
            return Err(format!("there are {PENDING_MAX} unfinished handshakes"));
        }
        Ok(())
    }

    /// Whether there is a place for one more client.
    fn check_place(&self) -> Result<(), String> {
        let clients = self.options.clients;
        if self.channels.len() < usize::from(clients) {
            return Ok(());
        }
        Err(format!("{clients} clients are connected already"))
    }

    fn deny(&mut self, channel: &Channel, peer: &Peer, reason: String) {
        self.shared.events.denied.fetch_add(1, Ordering::Relaxed);
        self.log.line(|| tracing::warn!("sink `{}`: {peer} was not accepted: {reason}", self.name));
        let _ = channel.send(&Message::Disconnect(1, reason), None);
    }

    fn negotiate(&mut self) {
        let now = Instant::now();
        for index in (0..self.pending.len()).rev() {
            match self.pending[index].advance(&self.name) {
                Ok(None) if self.pending[index].deadline > now => {}
                Ok(None) => self.give_up(index, "the handshake was not completed in time"),
                Err(refusal) => self.give_up(index, &refusal.to_string()),
                // Others may have taken the place during the handshake, so the last reply is not sent before
                // this.
                Ok(Some((reply, connection))) => match self.check_place() {
                    Err(reason) => {
                        let Pending { channel, peer, .. } = self.pending.swap_remove(index);
                        self.deny(&channel, &peer, reason);
                    }
                    Ok(()) if self.pending[index].channel.send(&reply, None).is_err() => {
                        self.give_up(index, UNREAD);
                    }
                    Ok(()) => {
                        let Pending { channel, peer, .. } = self.pending.swap_remove(index);
                        self.join(channel, peer, *connection);
                    }
                },
            }
        }
    }

    fn give_up(&mut self, index: usize, reason: &str) {
        let Pending { channel, peer, began, .. } = self.pending.swap_remove(index);
        if !began {
            return;
        }
        self.shared.events.failed.fetch_add(1, Ordering::Relaxed);
        let _ = channel.send(&Message::Disconnect(1, reason.to_owned()), None);
        self.log.line(|| tracing::warn!("sink `{}`: the handshake with {peer} failed: {reason}", self.name));
    }

    fn join(&mut self, channel: Channel, peer: Peer, connection: Connection) {
        let client = Arc::new(Client::new(self.next_id, peer, connection));
        self.next_id += 1;
        let (rings, size) = (client.rings(), client.ring_size);
        self.log.line(|| {
            tracing::info!(
                "sink `{}`: client {} connected: {}, {}, rings: {rings} of {size}",
                self.name,
                client.id,
                client.name,
                client.peer
            );
        });
        self.channels.push(channel);
        self.shared.clients().push(client);
        self.publish();
        // Last, so that who sees the count sees the rest.
        self.shared.events.connected.fetch_add(1, Ordering::Relaxed);
    }

    /// Finds clients that have gone or broke a rule.
    fn watch(&mut self, readable: bool) {
        let mut left = Vec::new();
        for (index, client) in self.shared.clients().iter().enumerate() {
            let reason = match client.violation() {
                Some(violation) => Some(Leave::Violation(violation.to_string())),
                None if readable => self.channels.get(index).and_then(departure),
                None => None,
            };
            left.extend(reason.map(|reason| (index, reason)));
        }
        if left.is_empty() {
            return;
        }
        for (index, reason) in left.iter().rev() {
            self.remove(*index, reason);
        }
        self.publish();
        // Last, so that who sees a count sees the rest.
        let Events { left: exits, violations, .. } = &self.shared.events;
        for (_, reason) in left {
            let count = if matches!(reason, Leave::Left(_)) { exits } else { violations };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&mut self, index: usize, leave: &Leave) {
        let channel = self.channels.remove(index);
        let client = self.shared.clients().remove(index);
        let name = &self.name;
        let title = format!("client {} ({}, {})", client.id, client.name, client.peer);
        let reason = match leave {
            Leave::Left(reason) => {
                self.log.line(|| tracing::info!("sink `{name}`: {title} left: {reason}"));
                format!("left: {reason}")
            }
            Leave::Violation(reason) => {
                let _ = channel.send(&Message::Disconnect(1, reason.clone()), None);
                self.log.line(|| tracing::warn!("sink `{name}`: {title} was disconnected: {reason}"));
                format!("disconnected: {reason}")
            }
        };
        let (name, peer) = (client.name.clone(), client.peer.clone());
        let mut gone = self.shared.gone();
        gone.push_back(GoneClient { id: client.id, name, peer, reason });
        if gone.len() > GONE_MAX {
            gone.pop_front();
        }
        drop(gone);
        self.departed.push(client);
    }

    /// Gives workers the clients of now.
    fn publish(&mut self) {
        let clients = self.shared.clients().clone();
        let ids: Vec<u64> = clients.iter().map(|client| client.id).collect();
        if self.options.mode == AppMode::Share {
            self.shares.divide(&ids);
        }
        let roster = Arc::new(Roster::new(clients, self.shares.table(&ids)));
        for slot in &self.slots {
            slot.publish(Arc::clone(&roster));
        }
    }

    /// Unmaps what no worker has any more.
    fn release(&mut self) {
        self.slots.iter().for_each(|slot| slot.release());
        self.departed.retain(|client| Arc::strong_count(client) > 1);
    }

    fn send_interrupts(&mut self) {
        let Some(signaller) = &self.signaller else { return };
        let mut sent = false;
        for client in self.shared.clients().iter() {
            let wanted = client.take_wanted();
            for (ring, interrupt) in client.interrupts.iter().enumerate() {
                if wanted & 1 << ring != 0 {
                    sent = true;
                    // A file that is no eventfd harms only the client.
                    let _ = signaller.signal(interrupt.as_fd());
                }
            }
        }
        if sent {
            std::thread::sleep(INTERRUPT_GAP);
        }
    }

    /// Listens again if the socket's file was removed: by somebody, or by a server that had replaced it.
    fn keep_listening(&mut self) {
        if self.checked.elapsed() < TICK {
            return;
        }
        self.checked = Instant::now();
        if !self.listener.path().exists()
            && let Ok(listener) = Listener::bind(&self.options.socket, self.options.socket_mode, &self.closer)
        {
            self.listener = listener;
        }
    }

    fn close(&mut self) {
        let reason = Message::Disconnect(0, "the sink is closed".to_owned());
        for channel in self.channels.iter().chain(self.pending.iter().map(|pending| &pending.channel)) {
            let _ = channel.send(&reason, None);
        }
        self.shared.clients().clear();
        self.slots.iter().for_each(|slot| slot.release());
    }
}

/// Whether the limits of users do not apply: root, and the daemon's user.
fn is_privileged(peer: &Peer) -> bool {
    peer.user == 0 || peer.user == geteuid().as_raw()
}

/// The descriptors for which the thread was woken.
struct Ready {
    clients: bool,
    listener: bool,
}

/// Why a client is removed.
enum Leave {
    Left(String),
    Violation(String),
}

fn departure(channel: &Channel) -> Option<Leave> {
    match channel.receive() {
        Received::Nothing => None,
        Received::End => Some(Leave::Left("the process has exited".to_owned())),
        Received::Message(Message::Disconnect(_, reason), _) => Some(Leave::Left(reason)),
        Received::Message(message, _) => {
            Some(Leave::Violation(format!("unexpected message {}", message.kind())))
        }
        Received::Invalid => Some(Leave::Violation("unexpected bytes on the socket".to_owned())),
    }
}

impl Pending {
    /// Handles the messages that have arrived. Returns the connection and the reply to its last message, once
    /// that has come.
    fn advance(&mut self, interface: &str) -> Result<Option<(Message, Box<Connection>)>, HandshakeRefusal> {
        let closed = |reason: &str| HandshakeRefusal::Closed { reason: reason.to_owned() };
        loop {
            match self.channel.receive() {
                Received::Nothing => return Ok(None),
                Received::End => return Err(closed("the process has exited")),
                Received::Invalid => return Err(closed("unexpected bytes on the socket")),
                Received::Message(message, file) => {
                    self.began = true;
                    match self.negotiation.receive(message, file, interface)? {
                        HandshakeStep::Reply(reply) => {
                            self.channel.send(&reply, None).map_err(|_| closed(UNREAD))?;
                        }
                        HandshakeStep::Established(reply, connection) => {
                            return Ok(Some((reply, connection)));
                        }
                    }
                }
            }
        }
    }
}

/// Limits the lines that clients can cause.
struct LogLimit {
    second: Instant,
    lines: u32,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { second: Instant::now(), lines: 0 }
    }
}

impl LogLimit {
    fn line(&mut self, write: impl FnOnce()) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            let dropped = self.lines.saturating_sub(LINES_PER_SECOND);
            if dropped > 0 {
                tracing::warn!("{dropped} lines about clients were left out");
            }
            *self = Self::default();
        }
        self.lines += 1;
        if self.lines <= LINES_PER_SECOND {
            write();
        }
    }
}
