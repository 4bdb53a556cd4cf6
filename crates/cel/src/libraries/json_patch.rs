//! `jsonpatch.escapeKey`, for the mutations of policies.

use crate::evaluation::{EvalResult, Evaluation, Halt};
use crate::library::{Call, Library};
use crate::price::{Price, tenth};
use crate::value::Datum;

/// The functions of JSON patches, from Kubernetes.
#[derive(Debug)]
pub(crate) struct JsonPatch;

impl Library for JsonPatch {
    fn signatures(&self) -> &'static str {
        "jsonpatch.escapeKey | (string) -> string"
    }

    fn price(&self, call: &Call<'_>) -> Price {
        Price::Units(tenth(call.size(0)))
    }

    /// Escapes a key for a JSON pointer (RFC 6901): `~` is `~0`, `/` is `~1`.
    // apiserver: pkg/cel/library/jsonpatch.go
    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let [Datum::String(key)] = call.values else { return Err(Halt::Unsuited) };
        // Each character may become two; the reference charges for the key alone.
        evaluation.charge_reading(key.matches(['~', '/']).count())?;
        Ok(Datum::string(&key.replace('~', "~0").replace('/', "~1")))
    }
}
