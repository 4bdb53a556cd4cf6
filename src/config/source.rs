//! The source of a configuration, which is read again whenever it may have changed.

use std::collections::BTreeSet;

use super::ConfigErrors;
use super::flags::ServeFlags;
use super::inputs::{CredentialUser, InputReader};
use super::resolve::{ResolvedConfig, resolve};

/// The command line, and the inputs read when it was last resolved.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    flags: ServeFlags,
    inputs: InputReader,
}

impl ConfigSource {
    /// The configuration that these flags describe. Reads nothing yet.
    pub fn new(flags: ServeFlags) -> Self {
        Self { flags, inputs: InputReader::default() }
    }

    /// Reads and validates the configuration.
    pub fn load(&mut self) -> Result<ResolvedConfig, ConfigErrors> {
        resolve(&self.flags, &mut self.inputs)
    }

    /// Whether [`load`](Self::load) may return another result than the last time.
    pub fn changed(&self) -> bool {
        let due = self.inputs.due().is_some_and(|due| due <= self.inputs.now());
        due || self.inputs.changed()
    }

    /// Expires the credentials of these connections, and returns whether exec plugins issue any. Call it when an API
    /// server has rejected the gateway's credential.
    pub fn expire_credentials(&mut self, users: &BTreeSet<CredentialUser>) -> bool {
        self.inputs.expire_credentials(users)
    }
}
