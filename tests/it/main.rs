//! The gateway in-process, small real servers around it.
