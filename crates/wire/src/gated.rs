//! A wire that receives only while a program lets it, so that a capture loses no packet before all flows are
//! on the device and every packet is counted at the end.
//!
//! One flag opens and closes any number of them. All other calls pass through; no frame is inspected. While
//! it is closed, an XDP program drops nothing either, from the next call of `receive` on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    Burst, GivenBack, ReceiveCounters, SleepHint, Splits, TransmitError, Transmitted, Wire, WireState,
};
use packet::MacAddr;
use xdp::{AllDrops, ClaimTable};

/// A wire behind a flag: closed, it is tended but receives nothing.
pub struct GatedWire {
    wire: Box<dyn Wire>,
    open: Arc<AtomicBool>,
    /// The packets that the wire drops before they are received, once its claims were handed out.
    drops: Option<AllDrops>,
    /// Whether the wire was open when `receive` was called last.
    was_open: bool,
}

impl GatedWire {
    /// The wire receives while `open` is true.
    #[must_use]
    pub fn new(wire: Box<dyn Wire>, open: &Arc<AtomicBool>) -> Self {
        Self { wire, open: Arc::clone(open), drops: None, was_open: false }
    }

    /// Whether the wire is open; notes a change.
    fn is_open(&mut self) -> bool {
        let is_open = self.open.load(Ordering::Relaxed);
        if is_open != self.was_open {
            self.was_open = is_open;
            self.drops.iter().for_each(|drops| drops.allow(is_open));
        }
        is_open
    }
}

impl Wire for GatedWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        if self.is_open() {
            self.wire.receive(burst);
        } else {
            self.wire.tend();
        }
    }

    fn tend(&mut self) {
        self.wire.tend();
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        self.wire.transmit(frame)
    }

    fn has_room(&mut self) -> bool {
        self.wire.has_room()
    }

    fn transmit_burst(&mut self, frames: &[&[u8]]) -> Transmitted {
        self.wire.transmit_burst(frames)
    }

    fn flush(&mut self) {
        self.wire.flush();
    }

    fn state(&self) -> WireState {
        self.wire.state()
    }

    fn sleep_hint(&mut self) -> SleepHint {
        // While closed, a readable descriptor would keep the engine awake.
        if self.open.load(Ordering::Relaxed) { self.wire.sleep_hint() } else { SleepHint::Poll }
    }

    fn describe(&self) -> String {
        self.wire.describe()
    }

    fn mac(&self) -> MacAddr {
        self.wire.mac()
    }

    fn mtu_bytes(&self) -> u32 {
        self.wire.mtu_bytes()
    }

    fn receive_counters(&self) -> ReceiveCounters {
        self.wire.receive_counters()
    }

    fn takes_merged(&self) -> bool {
        self.wire.takes_merged()
    }

    fn splits(&self) -> Splits {
        self.wire.splits()
    }

    fn transmit_losses(&self) -> u64 {
        self.wire.transmit_losses()
    }

    fn claims(&mut self) -> Option<ClaimTable> {
        let claims = self.wire.claims()?;
        let drops = claims.all_drops();
        drops.allow(self.was_open);
        self.drops = Some(drops);
        Some(claims)
    }

    fn takes_away(&self) -> bool {
        self.wire.takes_away()
    }

    fn leave_to_host(&mut self, unmatched: u64) -> GivenBack {
        self.wire.leave_to_host(unmatched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// One frame, over and over; counts how often it was tended.
    #[derive(Default)]
    struct Endless(Arc<AtomicU32>);

    const LEFT: u32 = 1 << 16;

    impl Wire for Endless {
        fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
            burst.push(crate::RxFrame::new(&[0; 60]));
        }
        fn tend(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
            Ok(())
        }
        fn sleep_hint(&mut self) -> SleepHint {
            SleepHint::NEVER
        }
        fn takes_away(&self) -> bool {
            true
        }
        fn receive_counters(&self) -> ReceiveCounters {
            ReceiveCounters { lost: 11, beyond_claims: 17, passed: 23 }
        }
        fn leave_to_host(&mut self, _: u64) -> GivenBack {
            self.0.fetch_add(LEFT, Ordering::Relaxed);
            GivenBack { lost_long: 3, ..GivenBack::default() }
        }
        fn describe(&self) -> String {
            "endless".into()
        }
    }

    #[test]
    fn nothing_comes_through_before_it_is_opened() {
        let open = Arc::new(AtomicBool::new(false));
        let wire = Endless::default();
        let tended = Arc::clone(&wire.0);
        let mut gated = GatedWire::new(Box::new(wire), &open);
        let received = |gated: &mut GatedWire| {
            let mut burst = Burst::new();
            gated.receive(&mut burst);
            burst.len()
        };
        assert_eq!((received(&mut gated), gated.sleep_hint()), (0, SleepHint::Poll));
        assert_eq!(tended.load(Ordering::Relaxed), 1, "a closed wire is still tended");
        open.store(true, Ordering::Relaxed);
        assert_eq!((received(&mut gated), gated.sleep_hint()), (1, SleepHint::NEVER));
        let counters = ReceiveCounters { lost: 11, beyond_claims: 17, passed: 23 };
        assert_eq!((gated.leave_to_host(1).lost(), gated.receive_counters()), (3, counters));
        assert_eq!((gated.takes_away(), tended.load(Ordering::Relaxed)), (true, 1 + LEFT));
    }
}
