//! `format` of strings.

use crate::eval::{EvalResult, Machine, error};
use crate::value::Datum;

pub(crate) fn call(_machine: &mut Machine<'_>, function: &str, _values: &[Datum]) -> EvalResult {
    error(format!("function '{function}' is not supported here"))
}
