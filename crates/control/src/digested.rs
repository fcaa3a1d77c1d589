//! A program with the digests of its flows, by which planner and check compare it with another.

use std::ops::Deref;
use std::sync::Arc;

use program::{FlowDigest, Program};

use crate::Limits;

/// A program with the digests of its flows.
#[derive(Clone, Debug)]
pub struct DigestedProgram {
    program: Arc<Program>,
    digests: Arc<[FlowDigest]>,
    has_masks: bool,
}

impl DigestedProgram {
    /// Computes the digests: those of masks for a device whose tables are small, which alone depends on them.
    #[must_use]
    pub fn new(program: Arc<Program>, limits: &Limits) -> Self {
        Self::with_masks(program, limits.priority_table.is_some())
    }

    fn with_masks(program: Arc<Program>, has_masks: bool) -> Self {
        Self { digests: program.flow_digests(has_masks), program, has_masks }
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The digests by flow.
    pub(crate) fn digests(&self) -> &[FlowDigest] {
        &self.digests
    }

    /// Changes the program; copies it if others have it too.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Program)) {
        change(Arc::make_mut(&mut self.program));
        *self = Self::with_masks(Arc::clone(&self.program), self.has_masks);
    }
}

impl Deref for DigestedProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}
