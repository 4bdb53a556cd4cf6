//! IP addresses and networks.

use crate::eval::{EvalResult, Machine, error};
use crate::value::Datum;

/// A network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) address: std::net::IpAddr,
    pub(crate) prefix: u8,
}

pub(crate) fn call(_machine: &mut Machine<'_>, function: &str, _values: &[Datum]) -> EvalResult {
    error(format!("function '{function}' is not supported here"))
}
