//! The functions of an environment: their overloads, and the libraries that they are from.

use std::collections::BTreeMap;

use super::cel_go::{Declared, Rules};
use super::evaluation::{EvalResult, Evaluation, Halt};
use super::library::{Call, Library, LiteralCheck};
use super::price::Price;
use super::signatures::{self, Overload};
use super::value::Datum;

/// The functions of several libraries, by name.
#[derive(Debug)]
pub(super) struct Registry(BTreeMap<&'static str, Function>);

/// A function, with the overloads of all libraries that declare it.
#[derive(Debug)]
pub(super) struct Function {
    name: &'static str,
    pub(super) overloads: Vec<Overload>,
    /// The libraries, each with the number of overloads up to its last one.
    libraries: Vec<(&'static dyn Library, usize)>,
    has_one_implementation: bool,
    /// Whether the first argument is a pattern.
    pub(super) takes_pattern: bool,
    /// The check of a literal list of arguments.
    pub(super) literal_check: Option<LiteralCheck>,
}

/// What the checker resolves a call to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Callee {
    pub(super) function: &'static Function,
    /// The one overload that the types allow; evaluation calls no other, whatever the values.
    pub(super) only: Option<&'static Overload>,
    /// The library that makes the call; `None` where the values decide.
    library: Option<&'static dyn Library>,
}

impl Registry {
    /// The functions of the libraries that a release declares.
    pub(super) fn new(
        libraries: impl IntoIterator<Item = &'static dyn Library>,
        declared: &Declared,
    ) -> Self {
        let mut functions: BTreeMap<&'static str, Function> = BTreeMap::new();
        for library in libraries {
            for (name, mut overloads) in signatures::read(library.signatures()) {
                overloads.retain(|overload| declared.has(name, &overload.to_string()));
                if overloads.is_empty() {
                    continue;
                }
                let function = functions.entry(name).or_insert_with(|| Function::new(name, library));
                function.overloads.extend(overloads);
                function.libraries.push((library, function.overloads.len()));
            }
        }
        Self(functions)
    }

    /// The function of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Function> {
        self.0.get(name)
    }

    /// The names of all functions.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

impl Function {
    /// A function without overloads yet, of its first library.
    fn new(name: &'static str, library: &'static dyn Library) -> Self {
        Self {
            name,
            overloads: Vec::new(),
            libraries: Vec::new(),
            has_one_implementation: library.has_one_implementation(name),
            takes_pattern: library.takes_pattern(name),
            literal_check: library.literal_check(name),
        }
    }

    /// The library of the first overload of which this holds.
    fn library_of(&self, holds: impl FnMut(&Overload) -> bool) -> Option<&'static dyn Library> {
        let position = self.overloads.iter().position(holds)?;
        self.libraries.iter().find(|(_, end)| position < *end).map(|(library, _)| *library)
    }
}

impl Callee {
    /// A function, and its overload if there is only one that the types allow.
    pub(super) fn new(function: &'static Function, only: Option<&'static Overload>) -> Self {
        let library = match (function.libraries.as_slice(), only) {
            ([(library, _)], _) => Some(*library),
            (_, Some(only)) => function.library_of(|overload| std::ptr::eq(overload, only)),
            (_, None) => None,
        };
        Self { function, only, library }
    }

    /// Charges a call, makes it, and selects the reference's error if no overload accepts the values.
    pub(super) fn call(&self, evaluation: &mut Evaluation<'_>, values: &[Datum]) -> EvalResult {
        let (library, call) = (self.library(values)?, self.with(evaluation.rules(), values));
        match library.price(&call) {
            Price::Units(units) if library.has_fixed_price(self.function.name) => {
                evaluation.charge_alike(units)?;
            }
            price => price.charge(evaluation, values)?,
        }
        let result = match self.only {
            Some(only) if !self.function.has_one_implementation && !only.takes(values) => Err(Halt::Unsuited),
            _ => library.call(evaluation, &call),
        };
        match result {
            Err(Halt::Unsuited) => Err(library.refusal(evaluation, &call)),
            result => result,
        }
    }

    /// Charges a call that is not made.
    pub(super) fn charge(&self, evaluation: &mut Evaluation<'_>, values: &[Datum]) -> Result<(), Halt> {
        let call = self.with(evaluation.rules(), values);
        self.library(values)?.price(&call).charge(evaluation, values)
    }

    fn with<'a>(&self, rules: &'static Rules, values: &'a [Datum]) -> Call<'a> {
        Call { function: self.function.name, only: self.only, values, rules }
    }

    /// The library whose overloads accept the first value; the first one if there is none, which refuses the call.
    fn library(&self, values: &[Datum]) -> Result<&'static dyn Library, Halt> {
        self.library
            .or_else(|| self.function.library_of(|overload| overload.takes_first(values)))
            .or_else(|| self.function.libraries.first().map(|(library, _)| *library))
            .ok_or(Halt::Unsuited)
    }
}
