//! The contract of a function library.

use std::fmt;

use super::cel_go::Rules;
use super::evaluation::{EvalResult, Evaluation, Halt};
use super::faults::CompileFault;
use super::price::{self, Price};
use super::signatures::Overload;
use super::types::Type;
use super::value::Datum;

/// Functions that belong together, as kube-apiserver loads them: what they are called, what they cost, what they do.
///
/// A library is complete in itself. The checker, the planner and the evaluator know libraries by this trait alone, through the
/// functions of a [`Registry`](super::registry::Registry); a library knows values, prices and this trait, not the tree
/// of the expression.
///
/// For each call, the evaluator first charges its [`price`](Self::price), then makes the [`call`](Self::call), and asks
/// for the [`refusal`](Self::refusal) where the call ends with [`Halt::Unsuited`]. `price` and `call` are given the
/// functions of [`signatures`](Self::signatures) alone, but any values: those of an expression of type `dyn` are known at
/// evaluation. What is not in the price must be charged to the evaluation before the work is done.
pub(super) trait Library: fmt::Debug + Sync {
    /// The declarations, in the notation of [`signatures`](super::signatures). Several libraries may declare overloads of
    /// one function, if these differ in the type of the first parameter.
    fn signatures(&self) -> &'static str;

    /// What a call costs before it is made, also if an operand failed and it is not made.
    fn price(&self, _call: &Call<'_>) -> Price {
        Price::ONE
    }

    /// Whether the reference has the same price for a function, whatever its arguments.
    fn has_fixed_price(&self, _function: &str) -> bool {
        false
    }

    /// Calls a function.
    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult;

    /// The reference's error for a function that has no overload for the values.
    fn refusal(&self, _evaluation: &Evaluation<'_>, call: &Call<'_>) -> Halt {
        call.refusal()
    }

    /// Whether all overloads of a function have one implementation, which also accepts values of other types than those of the
    /// overload that the checker selected.
    fn has_one_implementation(&self, _function: &str) -> bool {
        false
    }

    /// Whether the first argument of a function is a pattern, to be compiled once if it is a literal.
    fn takes_pattern(&self, _function: &str) -> bool {
        false
    }

    /// How a function checks a list literal of arguments when the expression is compiled. Its elements may be of different
    /// types then.
    fn literal_check(&self, _function: &str) -> Option<LiteralCheck> {
        None
    }
}

/// A call of a function.
pub(super) struct Call<'a> {
    pub(super) function: &'a str,
    /// The overload that the checker selected, if it is the only one that the types allow.
    pub(super) only: Option<&'a Overload>,
    /// The arguments; the target of a member function is the first.
    pub(super) values: &'a [Datum],
    /// Those of the release that is followed.
    pub(super) rules: &'static Rules,
}

/// Checks a call on a literal text, at this offset, with a literal list.
pub(super) type LiteralCheck = fn(usize, &str, &[Operand]) -> Result<(), CompileFault>;

/// An element of a literal list, as the checker knows it.
#[derive(Debug)]
pub(super) struct Operand {
    /// The offset in the text of the expression.
    pub(super) at: usize,
    pub(super) kind: Type,
    /// The elements, or the keys and values, if this is a literal list or map.
    pub(super) elements: Vec<Self>,
}

impl Call<'_> {
    /// The size of the value at this position; one if there is none.
    pub(super) fn size(&self, position: usize) -> usize {
        self.values.get(position).map_or(1, price::size)
    }

    /// Whether the first value treats an operator as a call of a method, as strings and times do in the reference.
    pub(super) fn is_on_receiver(&self) -> bool {
        matches!(self.values.first(), Some(Datum::String(_) | Datum::Duration(_) | Datum::Timestamp(_)))
    }

    /// The error that names the function and the types of the values.
    pub(super) fn refusal(&self) -> Halt {
        if self.values.is_empty() {
            return Self::unnamed_refusal();
        }
        let types: Vec<&str> = self.values.iter().map(Datum::type_name).collect();
        Halt::Error(format!("no such overload: {}({})", self.function, types.join(", ")))
    }

    /// The error that names the function.
    pub(super) fn named_refusal(&self) -> Halt {
        Halt::Error(format!("no such overload: {}", self.function))
    }

    pub(super) fn unnamed_refusal() -> Halt {
        Halt::Error("no such overload".to_owned())
    }
}
