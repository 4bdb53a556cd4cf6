//! Checks the expressions of a policy against the declared type of the objects that it is about.
//!
//! An expression compiles with any object, whose fields are only known when it is evaluated. With the type of the object, the same
//! checker finds fields that no such object has, and operators that do not fit.
// apiserver: pkg/admission/plugin/policy/validating/typechecking.go

use super::composition::VariableTypes;
use super::declared::Declared;
use super::expression::Expression;
use super::faults::{CompileError, CompileFault};
use super::types::Type;
use super::variables::Variables;
use super::{check, stack, syntax};

/// A check of expressions by the type of `object` and `oldObject`.
#[derive(Debug)]
pub struct TypeCheck {
    object: Type,
    variables: VariableTypes,
}

/// What is wrong with a variable.
#[derive(Debug)]
pub struct VariableCheck {
    /// The number of the variable, from 0, in the order of declaration.
    pub index: usize,
    /// Its errors.
    pub error: CompileError,
}

impl TypeCheck {
    /// Begins a check. `kind` is what errors call the type of the object.
    pub fn new(kind: &str, object: &Declared) -> Self {
        Self { object: Type::declared(kind, object), variables: VariableTypes::default() }
    }

    /// Declares the variables of a policy, which its expressions may use, and returns their errors. One with an error may be anything.
    pub fn declare(&mut self, variables: &Variables) -> Vec<VariableCheck> {
        let mut errors = Vec::new();
        for (index, (name, expression)) in variables.expressions().enumerate() {
            let found = expression.map_or(Ok(Type::DYN), |expression| self.infer(expression));
            self.variables.add(name, found.as_ref().unwrap_or(&Type::DYN));
            errors.extend(found.err().map(|error| VariableCheck { index, error }));
        }
        errors
    }

    /// Checks an expression. Takes milliseconds and spawns a thread. The error is the reference's, and lists all that is wrong.
    pub fn check(&self, expression: &Expression) -> Result<(), CompileError> {
        self.infer(expression).map(|_| ())
    }

    fn infer(&self, expression: &Expression) -> Result<Type, CompileError> {
        let (text, environment) = (expression.text(), expression.environment());
        let infer = || {
            let tree = syntax::parse(text, environment).map_err(|fault| vec![fault])?;
            check::check_object(&tree, environment, &self.variables, &self.object)
        };
        stack::run("cel-type-checker", stack::COMPILER, infer)
            .unwrap_or_else(|reason| {
                Err(vec![CompileFault::of_whole(format!("cannot be checked now: {reason}"))])
            })
            .map_err(|faults| CompileFault::display_all(faults, text))
    }
}

#[cfg(test)]
mod tests;
