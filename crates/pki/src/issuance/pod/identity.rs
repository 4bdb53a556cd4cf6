//! Certificates of a service account that are bound to its pod: which form of the PodIdentity extension they have.

use std::fmt;
use std::str::FromStr;

/// The form of the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodIdentityMode {
    /// Critical, as in KEP-4317: only a server that knows the extension accepts the certificate.
    Critical,
    /// Servers that do not know the extension accept the certificate, as any other of its CA.
    NonCritical,
}

/// The text is not the name of a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a form of the PodIdentity extension")]
pub struct UnknownPodIdentityMode(String);

impl PodIdentityMode {
    /// Whether the extension is critical.
    pub fn is_critical(self) -> bool {
        self == Self::Critical
    }

    /// The name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "Critical",
            Self::NonCritical => "NonCritical",
        }
    }
}

impl fmt::Display for PodIdentityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PodIdentityMode {
    type Err = UnknownPodIdentityMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Critical, Self::NonCritical].into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| UnknownPodIdentityMode(text.to_owned()))
    }
}
