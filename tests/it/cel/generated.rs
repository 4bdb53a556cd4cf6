//! Random expressions.
