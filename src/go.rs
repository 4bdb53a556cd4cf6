//! What must equal Go's library, in one place.

pub(crate) mod csv;
pub mod escape;
pub(crate) mod json;
pub(crate) mod json_value;
pub mod pem;
pub mod query;
pub mod quote;
pub(crate) mod uri;
