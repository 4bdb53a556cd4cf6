//! Parses and validates a request before authentication: well-formedness, credentials, `RequestInfo`, deadline and
//! selectors. Nothing here may depend on the user.

pub(crate) mod cors;
pub(crate) mod credentials;
pub(crate) mod deadline;
pub(crate) mod info;
pub(crate) mod wellformed;
