//! What is read from a request before anyone is asked who sent it.

pub mod credentials;
pub mod deadline;

pub mod info;

pub mod selector;
pub mod wellformed;
