//! Where a configuration comes from, to be read again whenever it may have changed.

use super::ConfigErrors;
use super::flags::ServeFlags;
use super::inputs::Inputs;
use super::resolve::{Resolved, resolve};

/// Flags, and what was read when they were last resolved.
#[derive(Debug, Clone)]
pub struct Source {
    flags: ServeFlags,
    inputs: Inputs,
    /// What the last configuration that could be read was warned of.
    warned: Vec<String>,
}

impl Source {
    /// The configuration that these flags describe; nothing is read yet.
    pub fn new(flags: ServeFlags) -> Self {
        Self { flags, inputs: Inputs::default(), warned: Vec::new() }
    }

    /// Reads every file and judges it all. What was warned of the last time is not warned of again.
    pub fn load(&mut self) -> Result<Resolved, ConfigErrors> {
        let mut resolved = resolve(&self.flags, &mut self.inputs)?;
        let before = std::mem::replace(&mut self.warned, resolved.warnings.clone());
        resolved.warnings.retain(|warning| !before.contains(warning));
        Ok(resolved)
    }

    /// Whether [`load`](Self::load) may give something else than the last time.
    pub fn changed(&self) -> bool {
        let due = self.inputs.due().is_some_and(|due| due <= self.inputs.now());
        due || self.inputs.changed()
    }

    /// To be called when an API server has refused the gateway's credential: what programs gave is asked for again.
    pub fn expire_credentials(&mut self) {
        self.inputs.expire_credentials();
    }
}
