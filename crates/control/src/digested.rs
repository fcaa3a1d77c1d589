//! A program with the digests of its flows, by which planner and check compare it with another.

use std::ops::Deref;
use std::sync::Arc;

use program::{DanglingFlow, FlowDigest, Program};

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
    ///
    /// # Errors
    /// A flow refers to something that the program does not have.
    pub fn new(program: Arc<Program>, limits: &Limits) -> Result<Self, DanglingFlow> {
        Self::with_masks(program, limits.priority_table.is_some())
    }

    fn with_masks(program: Arc<Program>, has_masks: bool) -> Result<Self, DanglingFlow> {
        Ok(Self { digests: program.flow_digests(has_masks)?, program, has_masks })
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
    ///
    /// # Errors
    /// A flow of the changed program refers to something that the program does not have.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Program)) -> Result<(), DanglingFlow> {
        change(Arc::make_mut(&mut self.program));
        *self = Self::with_masks(Arc::clone(&self.program), self.has_masks)?;
        Ok(())
    }
}

impl Deref for DigestedProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}
