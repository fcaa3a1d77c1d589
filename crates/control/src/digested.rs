//! A program with the digests of its flows, by which planner and check compare it with another.

use std::ops::Deref;
use std::sync::Arc;

use program::{FlowDigest, Program};

/// A program with the digests of its flows.
#[derive(Clone, Debug)]
pub struct DigestedProgram {
    program: Arc<Program>,
    digests: Arc<[FlowDigest]>,
}

impl DigestedProgram {
    /// Computes the digests.
    #[must_use]
    pub fn new(program: Arc<Program>) -> Self {
        Self { digests: program.flow_digests(), program }
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
        *self = Self::new(Arc::clone(&self.program));
    }
}

impl Deref for DigestedProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}
