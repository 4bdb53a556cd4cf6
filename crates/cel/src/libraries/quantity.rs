//! Quantities of resources, such as `500m` and `2Gi`.

use crate::eval::{EvalResult, Machine, error};
use crate::value::Datum;

/// A quantity of a resource.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Quantity;

pub(crate) fn call(_machine: &mut Machine<'_>, function: &str, _values: &[Datum]) -> EvalResult {
    error(format!("function '{function}' is not supported here"))
}
