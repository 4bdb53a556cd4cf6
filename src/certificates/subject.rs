//! Subjects of requests: what survives Go's re-encoding of a name.

use std::fmt;

/// Go's `pkix.Name`: the attributes that a certificate's subject is written from. Every other attribute vanishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// C
    pub country: Vec<String>,
    /// ST
    pub province: Vec<String>,
    /// L
    pub locality: Vec<String>,
    /// STREET
    pub street_address: Vec<String>,
    /// POSTALCODE
    pub postal_code: Vec<String>,
    /// O: the groups of a Kubernetes user, duplicates kept.
    pub organization: Vec<String>,
    /// OU
    pub organizational_unit: Vec<String>,
    /// The last CN; empty if there is none. The name of a Kubernetes user.
    pub common_name: String,
    /// The last SERIALNUMBER attribute; empty if there is none.
    pub serial_number: String,
}

impl Subject {
    /// Whether no attribute is left to write.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The encoded Name.
    pub fn to_der(&self) -> Vec<u8> {
        Vec::new()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CN={}", self.common_name)
    }
}
