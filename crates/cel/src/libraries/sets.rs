//! Lists as sets, from cel-go.

use crate::equality::{equal, if_comparable};
use crate::evaluation::{EvalResult, Evaluation, Halt};
use crate::library::{Call, Library};
use crate::price::Price;
use crate::value::Datum;

/// The functions `sets.…`.
#[derive(Debug)]
pub(crate) struct Sets;

const SIGNATURES: &str = "
sets.contains | (list(T), list(T)) -> bool
sets.equivalent | (list(T), list(T)) -> bool
sets.intersects | (list(T), list(T)) -> bool
";

impl Library for Sets {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // cel-go: ext/sets.go
    fn price(&self, call: &Call<'_>) -> Price {
        let walks = if call.function == "sets.equivalent" { 2 } else { 1 };
        let pairs = call.size(0).saturating_mul(call.size(1));
        Price::Units(pairs.saturating_mul(walks).saturating_add(1))
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let [Datum::List(left), Datum::List(right)] = call.values else { return Err(Halt::Unsuited) };
        let (left, right) = (left.items.as_slice(), right.items.as_slice());
        Ok(Datum::Bool(match call.function {
            "sets.contains" => covers(evaluation, left, right)?,
            "sets.equivalent" => covers(evaluation, left, right)? && covers(evaluation, right, left)?,
            "sets.intersects" => {
                for item in left {
                    if covers(evaluation, right, std::slice::from_ref(item))? {
                        return Ok(Datum::Bool(true));
                    }
                }
                false
            }
            _ => return Err(Halt::Unsuited),
        }))
    }
}

/// Whether each element of `part` equals one of `items`. It is the left operand of the equality, which is not symmetric.
// cel-go: common/types/list.go — Contains
fn covers(evaluation: &mut Evaluation<'_>, items: &[Datum], part: &[Datum]) -> Result<bool, Halt> {
    for needle in part {
        let mut found = false;
        for item in items {
            found = found || if_comparable(equal(evaluation, needle, item), false)?;
        }
        if !found {
            return Ok(false);
        }
    }
    Ok(true)
}
