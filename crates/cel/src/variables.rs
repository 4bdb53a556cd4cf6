//! The `variables` of a policy: named expressions that later ones may use, each evaluated when it is first used.
// apiserver: pkg/admission/plugin/cel/composition.go

use super::access::{AccessDecision, AccessReview};
use super::bindings::Bindings;
use super::composition::{VariableTypes, VariableValues};
use super::environment::{Environment, ResultType};
use super::evaluation::{BRIEF_COST, Extent, Halt, HaltKind};
use super::expression::{Expression, is_of_cost};
use super::faults::CompileError;
use super::types::Type;

/// The variables of a policy, compiled in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    types: VariableTypes,
    all: Vec<Variable>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Variable {
    name: String,
    /// `None` if it does not compile.
    expression: Option<Expression>,
}

/// The end of the evaluation of a variable.
#[derive(Debug)]
pub enum VariableOutcome {
    /// Its value, or its error, is known from now on.
    Known,
    /// It cannot be evaluated here: see [`Outcome::Unsupported`](crate::Outcome::Unsupported).
    Unsupported(String),
    /// The authorizer must decide this access review first.
    Review(Box<AccessReview>),
    /// This variable must be evaluated first.
    Variable(String),
}

impl Variables {
    /// Adds a variable, which may use those before it. One that does not compile is known to later expressions, without a type.
    pub fn add(&mut self, name: &str, text: &str, environment: Environment) -> Result<(), CompileError> {
        let compiled = self.compile(text, environment, ResultType::Any);
        self.types.add(name, compiled.as_ref().map_or(&Type::DYN, Expression::kind));
        let (expression, result) = match compiled {
            Ok(expression) => (Some(expression), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.all.push(Variable { name: name.to_owned(), expression });
        result
    }

    /// Compiles an expression of an environment [with variables](Environment::composed), which may use these.
    pub fn compile(
        &self,
        text: &str,
        environment: Environment,
        result: ResultType,
    ) -> Result<Expression, CompileError> {
        Expression::compile_in(text, environment, result, &self.types)
    }

    /// Whether there is a variable of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Evaluates one of them, and keeps the result. Returns what it costs, which is charged to the expression that uses it.
    pub fn evaluate(
        &self,
        name: &str,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
        values: &mut VariableValues,
    ) -> (VariableOutcome, u64) {
        match self.evaluated(name, bindings, (decisions, values), Extent::Whole) {
            Ok(evaluated) => evaluated,
            // Only a brief evaluation ends so.
            Err(cost) => {
                values.fail(name, "the evaluation has not ended");
                (VariableOutcome::Known, cost)
            }
        }
    }

    /// The same, if it takes less than a millisecond; else the cost so far.
    pub fn evaluate_briefly(
        &self,
        name: &str,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
        values: &mut VariableValues,
    ) -> Result<(VariableOutcome, u64), u64> {
        let is_deep = self.find(name).and_then(|found| found.expression.as_ref());
        if is_deep.is_some_and(Expression::needs_thread) {
            return Err(0);
        }
        self.evaluated(name, bindings, (decisions, values), Extent::Brief(BRIEF_COST))
    }

    fn evaluated(
        &self,
        name: &str,
        bindings: &Bindings,
        (decisions, values): (&[(AccessReview, AccessDecision)], &mut VariableValues),
        extent: Extent,
    ) -> Result<(VariableOutcome, u64), u64> {
        let Some(expression) = self.find(name).and_then(|variable| variable.expression.as_ref()) else {
            values.fail(name, "it does not compile");
            return Ok((VariableOutcome::Known, 0));
        };
        let (result, spent) =
            expression.run(bindings, (decisions, values), extent, |value| Ok(value.clone()));
        let cost = spent.cost;
        let outcome = match result.map_err(Halt::kind) {
            Ok(value) => {
                values.know(name, value);
                VariableOutcome::Known
            }
            Err(HaltKind::Error(text)) => {
                values.fail(name, &text);
                values.has_ended_early |= spent.may_be_within && is_of_cost(&text);
                VariableOutcome::Known
            }
            Err(HaltKind::Unsupported(text)) => VariableOutcome::Unsupported(text),
            Err(HaltKind::Long) => return Err(cost),
            Err(HaltKind::Review(review)) => VariableOutcome::Review(review),
            Err(HaltKind::Variable(other)) => VariableOutcome::Variable(other),
        };
        Ok((outcome, cost))
    }

    /// The variables in their order; one that does not compile has no expression.
    pub fn expressions(&self) -> impl Iterator<Item = (&str, Option<&Expression>)> {
        self.all.iter().map(|variable| (&*variable.name, variable.expression.as_ref()))
    }

    fn find(&self, name: &str) -> Option<&Variable> {
        self.all.iter().find(|variable| variable.name == name)
    }
}
