//! The function libraries of Kubernetes and of cel-go's extensions, one module each.
//!
//! The declarations of all functions are in `signatures`; the operators and conversions are in `functions`.

pub(crate) mod authorizer;
pub(crate) mod format;
pub(crate) mod ip;
pub(crate) mod json_patch;
pub(crate) mod lists;
pub(crate) mod named_formats;
pub(crate) mod quantity;
pub(crate) mod semver;
mod strings;
pub(crate) mod time;
pub(crate) mod url;

use super::eval::{EvalResult, Halt, Machine};
use super::native::Native;
use super::value::Datum;

/// Calls a function of a library by its name and its arguments; the target of a member function is the first.
pub(super) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    match (function, values) {
        ("duration" | "timestamp", _) => time::call(machine, function, values),
        ("format", [Datum::String(_), ..]) => format::call(machine, function, values),
        (_, _) if function.starts_with("format.") => named_formats::call(function, values),
        ("ip" | "isIP" | "ip.isCanonical" | "cidr" | "isCIDR", _) => ip::call(machine, function, values),
        ("quantity" | "isQuantity", _) => quantity::call(machine, function, values),
        ("url" | "isURL", _) => url::call(machine, function, values),
        ("semver" | "isSemver", _) => semver::call(machine, function, values),
        ("jsonpatch.escapeKey", _) => json_patch::call(machine, function, values),
        (_, [Datum::Native(native), ..]) => match native {
            Native::Duration(_) | Native::Timestamp(_) => time::call(machine, function, values),
            Native::NamedFormat(_) => named_formats::call(function, values),
            Native::Ip(_) | Native::Cidr(_) => ip::call(machine, function, values),
            Native::Quantity(_) => quantity::call(machine, function, values),
            Native::Url(_) => url::call(machine, function, values),
            Native::Semver(_) => semver::call(machine, function, values),
            Native::Authorizer(_)
            | Native::PathCheck(_)
            | Native::GroupCheck(_)
            | Native::ResourceCheck(_)
            | Native::Decision(_) => authorizer::call(machine, function, values),
        },
        (_, [Datum::String(_), ..]) => strings::call(machine, function, values),
        (_, [Datum::List(_), ..]) | ("lists.range", _) => lists::call(machine, function, values),
        _ => Err(Halt::Unsuited),
    }
}
