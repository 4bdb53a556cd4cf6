//! `jsonpatch.escapeKey`, for the mutations of policies.

use crate::eval::{EvalResult, Halt, Machine};
use crate::value::Datum;

/// Escapes a key for a JSON pointer (RFC 6901): `~` is `~0`, `/` is `~1`.
// apiserver: pkg/cel/library/jsonpatch.go
pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    let ("jsonpatch.escapeKey", [Datum::String(key)]) = (function, values) else {
        return Err(Halt::Unsuited);
    };
    // Each character may become two; the reference charges for the key alone.
    machine.charge_reading(key.matches(['~', '/']).count())?;
    Ok(Datum::string(&key.replace('~', "~0").replace('/', "~1")))
}
