//! The gateway in-process, small real servers around it.

#[cfg(feature = "dev")]
mod dev_backend;
