//! Where a configuration comes from, to be read again whenever it may have changed.

use super::ConfigErrors;
use super::flags::ServeFlags;
use super::inputs::Inputs;
use super::resolve::{Resolved, resolve};

/// Flags, and what was read when they were last resolved.
#[derive(Debug)]
pub struct Source {
    flags: ServeFlags,
    inputs: Inputs,
}

impl Source {
    /// The configuration that these flags describe; nothing is read yet.
    pub fn new(flags: ServeFlags) -> Self {
        Self { flags, inputs: Inputs::default() }
    }

    /// Reads every file and judges it all.
    pub fn load(&mut self) -> Result<Resolved, ConfigErrors> {
        resolve(&self.flags, &mut self.inputs)
    }

    /// Whether [`load`](Self::load) may give something else than the last time.
    pub fn changed(&self) -> bool {
        self.inputs.changed()
    }
}
