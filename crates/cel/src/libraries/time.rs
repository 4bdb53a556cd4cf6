//! Durations and timestamps.

use crate::eval::{EvalResult, Machine, error};
use crate::value::Datum;

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Duration(pub(crate) i64);

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(pub(crate) i128);

pub(crate) fn call(_machine: &mut Machine<'_>, function: &str, _values: &[Datum]) -> EvalResult {
    error(format!("function '{function}' is not supported here"))
}
