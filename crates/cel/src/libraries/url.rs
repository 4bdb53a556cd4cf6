//! URLs.

use crate::eval::{EvalResult, Machine, error};
use crate::value::Datum;

/// A URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url;

pub(crate) fn call(_machine: &mut Machine<'_>, function: &str, _values: &[Datum]) -> EvalResult {
    error(format!("function '{function}' is not supported here"))
}
