//! The state of one sequence: a device, two contexts of it, the handles, and the memory that they may refer
//! to.

use std::collections::HashMap;
use std::ffi::c_int;

use ibverbs_sys::*;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::Provider as _;

use crate::c;
use crate::dice::Dice;
use crate::domain::Allocator;
use crate::wire::{FuzzWire, Inbox};

/// Live and destroyed handles of one kind.
pub struct Pool<T> {
    pub live: Vec<*mut T>,
    pub gone: Vec<*mut T>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { live: Vec::new(), gone: Vec::new() }
    }
}

impl<T> Pool<T> {
    /// Keeps a new handle; returns whether it is not null.
    pub fn keep(&mut self, handle: *mut T) -> bool {
        if handle.is_null() {
            return false;
        }
        assert!(!self.live.contains(&handle), "a handle that is in use");
        // The address of a destroyed handle may be reused.
        self.gone.retain(|gone| *gone != handle);
        self.live.push(handle);
        true
    }

    /// A handle for a call: a live or sometimes a destroyed one.
    pub fn some(&self, dice: &mut Dice<'_>) -> Option<*mut T> {
        let from = if !self.gone.is_empty() && dice.rarely() { &self.gone } else { &self.live };
        (!from.is_empty()).then(|| from[dice.below(from.len())])
    }

    /// A handle for an optional argument.
    pub fn or_null(&self, dice: &mut Dice<'_>) -> *mut T {
        if dice.rarely() { std::ptr::null_mut() } else { self.some(dice).unwrap_or(std::ptr::null_mut()) }
    }

    /// Destroys a handle; a destroyed one must be refused.
    pub fn end(&mut self, handle: *mut T, destroy: impl FnOnce(*mut T) -> c_int) -> bool {
        let status = destroy(handle);
        match self.live.iter().position(|live| *live == handle) {
            Some(index) if status == 0 => {
                self.gone.push(self.live.swap_remove(index));
                true
            }
            Some(_) => {
                assert_eq!(status, libc::EBUSY, "what lives can be destroyed, or is in use");
                false
            }
            None => {
                assert_eq!(status, libc::EINVAL, "a destroyed handle is answered");
                false
            }
        }
    }
}

/// A registered range: its key and its address for the device.
#[derive(Clone, Copy)]
pub struct Range {
    pub key: u32,
    pub address: u64,
    pub bytes: usize,
}

/// Bytes of the memory that regions are cut from.
pub const ARENA_BYTES: usize = 8192;

pub struct World {
    pub nic: SoftNic,
    pub contexts: [*mut ibv_context; 2],
    pub inbox: Inbox,
    pub pds: Pool<ibv_pd>,
    pub tds: Pool<ibv_td>,
    pub mrs: Pool<ibv_mr>,
    pub channels: Vec<*mut ibv_comp_channel>,
    pub cqs: Pool<ibv_cq>,
    /// Those of `cqs` that were made by `ibv_create_cq_ex`.
    pub extended: Vec<*mut ibv_cq>,
    pub wqs: Pool<ibv_wq>,
    pub tables: Pool<ibv_rwq_ind_table>,
    pub qps: Pool<ibv_qp>,
    pub flows: Pool<ibv_flow>,
    pub counters: Pool<ibv_counters>,
    /// Ranges of live and destroyed regions.
    pub ranges: Vec<Range>,
    /// Events that were read and not acknowledged.
    pub events: Vec<ibv_async_event>,
    pub cq_events: HashMap<*mut ibv_cq, u32>,
    pub allocators: Vec<Box<Allocator>>,
    pub arena: *mut [u8],
}

impl World {
    pub fn new(dice: &mut Dice<'_>) -> Self {
        let wire = FuzzWire::default();
        let inbox = wire.inbox.clone();
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".into(),
            personality: dice.of(&[Personality::Ideal, Personality::Mlx5, Personality::Mlx4]),
            ports: vec![PortConfig { wire: Box::new(wire), mtu_bytes: 1500 }],
            drive: Drive::Manual,
        })
        .expect("a device");
        let mut count = 0;
        let list = nic.device_list(&mut count);
        assert_eq!(count, 1);
        // SAFETY: a list of one device.
        let device = unsafe { list.read() };
        let contexts = [c::ibv_open_device(device), c::ibv_open_device(device)];
        c::ibv_free_device_list(list);
        for context in contexts {
            assert!(!context.is_null());
            // SAFETY: a live context.
            not_blocking(unsafe { (*context).async_fd });
        }
        Self {
            nic,
            contexts,
            inbox,
            pds: Pool::default(),
            tds: Pool::default(),
            mrs: Pool::default(),
            channels: Vec::new(),
            cqs: Pool::default(),
            extended: Vec::new(),
            wqs: Pool::default(),
            tables: Pool::default(),
            qps: Pool::default(),
            flows: Pool::default(),
            counters: Pool::default(),
            ranges: Vec::new(),
            events: Vec::new(),
            cq_events: HashMap::new(),
            allocators: Vec::new(),
            arena: Box::into_raw(vec![0x11; ARENA_BYTES].into_boxed_slice()),
        }
    }

    /// Mostly the first context.
    pub fn context(&self, dice: &mut Dice<'_>) -> *mut ibv_context {
        self.contexts[usize::from(dice.rarely())]
    }

    /// Runs the device; its counters must add up.
    pub fn pump(&mut self) {
        let mut passes = 0;
        while self.nic.pump(64) > 0 && passes < 1000 {
            passes += 1;
        }
        let stats = self.nic.port_stats(1);
        assert_eq!(stats.rx_frames, stats.dispositions(), "{stats:?}");
    }

    /// Reads events. Their objects are live: destroying an object removes its events.
    pub fn read_events(&mut self) {
        for context in self.contexts {
            loop {
                let element = ibv_async_event__bindgen_ty_1 { port_num: 0 };
                let mut event = ibv_async_event { element, event_type: 0 };
                if c::ibv_get_async_event(context, &raw mut event) != 0 {
                    break;
                }
                // SAFETY: the event type determines which member the library has set.
                let known = unsafe {
                    match event.event_type {
                        IBV_EVENT_CQ_ERR => self.cqs.live.contains(&event.element.cq),
                        IBV_EVENT_WQ_FATAL => self.wqs.live.contains(&event.element.wq),
                        IBV_EVENT_QP_FATAL => self.qps.live.contains(&event.element.qp),
                        other => panic!("event {other}"),
                    }
                };
                assert!(known, "an event of an object that is gone");
                self.events.push(event);
            }
        }
        for channel in &self.channels {
            let (mut cq, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
            while c::ibv_get_cq_event(*channel, &raw mut cq, &raw mut token) == 0 {
                assert!(self.cqs.live.contains(&cq), "an event of a queue that is gone");
                *self.cq_events.entry(cq).or_default() += 1;
            }
        }
    }

    /// Acknowledges all events that were read: destroying an object waits for that.
    pub fn acknowledge(&mut self) {
        for mut event in self.events.drain(..) {
            c::ibv_ack_async_event(&raw mut event);
        }
        for (cq, count) in self.cq_events.drain() {
            c::ibv_ack_cq_events(cq, count);
        }
    }

    /// Destroys all objects, users first. No call may fail, and no object may remain.
    pub fn end(mut self) {
        self.acknowledge();
        end_all(&mut self.flows, |flow| c::inline_destroy_flow(flow));
        end_all(&mut self.qps, |qp| c::ibv_destroy_qp(qp));
        end_all(&mut self.tables, |table| c::inline_destroy_rwq_ind_table(table));
        end_all(&mut self.wqs, |wq| c::inline_destroy_wq(wq));
        end_all(&mut self.cqs, |cq| c::ibv_destroy_cq(cq));
        end_all(&mut self.counters, |counters| c::inline_destroy_counters(counters));
        end_all(&mut self.mrs, |mr| c::ibv_dereg_mr(mr));
        for channel in self.channels.drain(..) {
            assert_eq!(c::ibv_destroy_comp_channel(channel), 0);
        }
        // Parent domains were created after the domains that they refer to.
        let mut left = usize::MAX;
        while self.pds.live.len() < left {
            left = self.pds.live.len();
            for pd in self.pds.live.clone() {
                self.pds.end(pd, |pd| c::ibv_dealloc_pd(pd));
            }
        }
        assert_eq!(left, 0, "domains that nothing uses");
        end_all(&mut self.tds, |td| c::inline_dealloc_td(td));
        assert!(self.allocators.iter().all(|allocator| allocator.is_whole()), "queue memory came back");
        for context in self.contexts {
            assert_eq!(c::ibv_close_device(context), 0);
        }
        drop(self.nic);
        // SAFETY: from `Box::into_raw`; the device that could write to it was destroyed.
        drop(unsafe { Box::from_raw(self.arena) });
    }
}

fn end_all<T>(pool: &mut Pool<T>, destroy: impl Fn(*mut T) -> c_int) {
    for handle in pool.live.clone() {
        assert!(pool.end(handle, &destroy), "what nothing uses can be destroyed");
    }
}

pub fn not_blocking(fd: c_int) {
    // SAFETY: plain fcntl.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}
