//! The layout of a flow tag: the class plus 1. `control` writes tags into flows, workers read them from
//! completions. No tag is 0, because devices report 0 for a flow without a tag (ibv_wc_read_flow_tag in
//! ibv_create_cq_ex(3)).
//!
//! Two programs have packets in flight while one replaces the other. Their classes share the numbers: a
//! number that both have means the same in both, or belongs to flows of one of them only.

use std::sync::Arc;

use crate::ids::ClassId;
use crate::program::Program;

/// The bits of a tag.
pub const TAG_BITS: u32 = 22;
/// The most classes of a program. The largest tag is below 2^22 and so not among the last 16 of the 2^24
/// values that devices offer, which DPDK reserves.
pub const CLASSES_MAX: u32 = (1 << TAG_BITS) - 1;

impl ClassId {
    /// The tag for the device; `None` for a class that does not fit.
    #[must_use]
    pub const fn tag(self) -> Option<u32> {
        if self.0 < CLASSES_MAX { Some(self.0 + 1) } else { None }
    }

    /// The class of a number from the device; `None` if [`tag`](Self::tag) gives no such number.
    #[must_use]
    #[inline]
    pub const fn of_tag(tag: u32) -> Option<Self> {
        match tag {
            1..=CLASSES_MAX => Some(Self(tag - 1)),
            _ => None,
        }
    }
}

/// A stage of the change from one program to another, for workers. Between the stages the device's flows
/// change.
#[derive(Clone, Debug)]
pub enum ChangeStage {
    /// Flows of this program are about to be installed: its classes are known from now on. A number that the
    /// program in force has too still means what that says.
    Begin(Arc<Program>),
    /// All flows of the program are installed: its classes count. Those of the program before stay known, for
    /// its flows, which are still to be removed, and for packets on their way.
    Enforce,
    /// The change is given up: the classes of the program before count again. Those of the other one stay
    /// known in the same way.
    GoBack,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_hold_a_class_and_fit_the_device() {
        for class in [0, 1, 7, CLASSES_MAX - 1].map(ClassId) {
            let tag = class.tag().expect("fits");
            assert!(tag != 0 && tag < (1 << 24) - 16);
            assert_eq!(ClassId::of_tag(tag), Some(class));
        }
        assert_eq!(ClassId(CLASSES_MAX).tag(), None);
        assert!([0, CLASSES_MAX + 1, 1 << 23, u32::MAX].iter().all(|tag| ClassId::of_tag(*tag).is_none()));
    }
}
