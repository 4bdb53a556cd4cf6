//! Parses and validates a request before authentication: well-formedness, credentials, `RequestInfo`, deadline and
//! selectors. Nothing here may depend on the user.

pub mod credentials;
pub mod deadline;
pub mod info;
pub mod selector;
pub mod wellformed;
