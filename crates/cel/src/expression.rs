//! Expressions: the steps of their compilation, and their evaluation.

use std::fmt;
use std::sync::Arc;

use super::access::{AccessDecision, AccessReview};
use super::bindings::Bindings;
use super::composition::{VariableTypes, VariableValues};
use super::environment::{Environment, ResultType};
use super::eval::Evaluator;
use super::evaluation::{BRIEF_COST, COST_EXCEEDED, COST_LIMIT, Extent, Halt, HaltKind, Spent};
use super::faults::{CompileError, CompileFault};
use super::patterns::Patterns;
use super::tree::{ExprNode, NodeKind};
use super::types::Type;
use super::value::{Datum, GoForm};
use super::{check, patch, plan, stack, syntax};

/// A compiled expression. Cheap to clone.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    text: String,
    environment: Environment,
    result: ResultType,
    /// The type of the result.
    kind: Type,
    tree: ExprNode,
    /// Whether the evaluation needs a stack of its own.
    deep: bool,
    patterns: Patterns,
}

/// The depth of a tree that is evaluated on the caller's stack: a level needs up to 10 KiB in a debug build.
const SHALLOW: usize = 64;

impl Drop for Compiled {
    /// Takes the tree apart without recursion: the caller's stack may be small.
    fn drop(&mut self) {
        let mut pending = vec![self.tree.take()];
        while let Some(mut node) = pending.pop() {
            pending.extend(node.children_mut().into_iter().map(ExprNode::take));
        }
    }
}

/// Why an evaluation failed: an error of the token or the rule, never of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(pub(super) String);

impl EvalError {
    /// Whether the evaluation, or that of a variable, costs too much. Prices are the reference's or higher, so that it may end there.
    pub fn is_of_cost(&self) -> bool {
        is_of_cost(&self.0)
    }
}

/// Whether an error is that of the cost limit, also if it is of a variable.
pub(super) fn is_of_cost(text: &str) -> bool {
    text.contains(COST_EXCEEDED)
}

/// The result of an expression, with the types that authenticators use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// A list.
    List(Vec<Self>),
    /// The type name of any other value. Includes the results of `split` and `findAll`, which kube-apiserver does not
    /// accept as a list of strings.
    Other(String),
}

impl Expression {
    /// Compiles an expression. Takes milliseconds and spawns a thread: call it only while loading a configuration.
    pub fn compile(text: &str, environment: Environment, result: ResultType) -> Result<Self, CompileError> {
        Self::compile_in(text, environment, result, &VariableTypes::default())
    }

    /// Compiles an expression of an environment with variables of these types.
    pub(super) fn compile_in(
        text: &str,
        environment: Environment,
        result: ResultType,
        variables: &VariableTypes,
    ) -> Result<Self, CompileError> {
        let compile = || -> Result<Compiled, CompileFault> {
            let mut tree = syntax::parse(text, environment)?;
            let kind = check::check(&tree, environment, variables, result)?;
            let mut patterns = Patterns::default();
            plan::plan(&mut tree, environment.rules(), &mut patterns)?;
            let deep = tree.depth() > SHALLOW;
            Ok(Compiled { text: text.to_owned(), environment, result, kind, tree, deep, patterns })
        };
        stack::run("cel-compiler", stack::COMPILER, compile)
            .unwrap_or_else(|reason| Err(CompileFault::of_whole(format!("cannot be compiled now: {reason}"))))
            .map(|compiled| Self(Arc::new(compiled)))
            .map_err(|fault| fault.display(text))
    }

    /// The type of the result, as the checker knows it.
    pub(super) fn kind(&self) -> &Type {
        &self.0.kind
    }

    /// What it was compiled for.
    pub(super) fn environment(&self) -> Environment {
        self.0.environment
    }

    /// The source text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Whether the expression selects this claim, as `claims.email` or `claims.?email`, but not as `claims["email"]`.
    // apiserver: pkg/apis/apiserver/validation/validation.go — usesEmailClaim
    pub fn uses_claim(&self, field: &str) -> bool {
        let selects = |node: &ExprNode| match &node.kind {
            NodeKind::Select { operand, field: selected, .. } => {
                selected == field && matches!(&operand.kind, NodeKind::Name(name) if name == "claims")
            }
            _ => false,
        };
        self.0.tree.any(&selects)
    }

    /// Whether the expression selects a field of this name, as `x.field`, `x.?field` or `has(x.field)`.
    // apiserver: pkg/authorization/cel/compile.go — usesFieldSelector
    pub fn selects(&self, field: &str) -> bool {
        self.0
            .tree
            .any(&|node| matches!(&node.kind, NodeKind::Select { field: selected, .. } if selected == field))
    }

    /// Whether each evaluation starts a thread, because the expression is nested deeply.
    pub fn needs_thread(&self) -> bool {
        self.0.deep
    }

    /// Evaluates the expression. The bindings must be those of its environment; an access review is an
    /// error.
    pub fn evaluate(&self, bindings: &Bindings) -> Result<Value, EvalError> {
        match self.evaluate_with(bindings, &[]).outcome {
            Outcome::Value(value) => Ok(value),
            Outcome::Patch(Ok(_)) => Err(EvalError("the value is that of a mutation".to_owned())),
            Outcome::Error(error) | Outcome::Patch(Err(error)) => Err(error),
            Outcome::Unsupported(text) => Err(EvalError(text)),
            Outcome::Review(_) => Err(EvalError("no authorizer is bound".to_owned())),
            Outcome::Variable(name) => Err(EvalError(format!("no value of variable {name:?} is known"))),
        }
    }

    /// Evaluates the expression with the authorizer's decisions so far. On [`Outcome::Review`], have it decided and
    /// evaluate again: the same bindings and decisions give the same outcome.
    pub fn evaluate_with(
        &self,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
    ) -> Evaluated {
        self.evaluate_in(bindings, decisions, &VariableValues::default())
    }

    /// The same, with the values of a policy's variables that are known so far. On [`Outcome::Variable`], have it
    /// [evaluated](crate::Variables::evaluate), and evaluate again.
    pub fn evaluate_in(
        &self,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
        values: &VariableValues,
    ) -> Evaluated {
        self.evaluated(bindings, decisions, values, Extent::Whole).unwrap_or_else(|cost| {
            // Only a brief evaluation ends so.
            let outcome = Outcome::Error(EvalError("the evaluation has not ended".to_owned()));
            Evaluated { outcome, cost, may_be_within: true }
        })
    }

    /// The same, if it takes less than a millisecond; else the cost so far.
    pub fn evaluate_briefly(
        &self,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
        values: &VariableValues,
    ) -> Result<Evaluated, u64> {
        if self.0.deep {
            Err(0)
        } else {
            self.evaluated(bindings, decisions, values, Extent::Brief(BRIEF_COST))
        }
    }

    pub(super) fn evaluated(
        &self,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
        values: &VariableValues,
        extent: Extent,
    ) -> Result<Evaluated, u64> {
        let convert = |value: &Datum| match self.0.result {
            ResultType::ApplyConfiguration => patch::apply_configuration(value).map(Outcome::patch),
            ResultType::JsonPatch => patch::json_patch(value).map(Outcome::patch),
            ResultType::DynamicStrings => Value::of_list(value).map(Outcome::Value),
            ResultType::Any
            | ResultType::Bool
            | ResultType::String
            | ResultType::StringOrNull
            | ResultType::DynamicString => Value::of(value).map(Outcome::Value),
        };
        let (result, spent) = self.run(bindings, (decisions, values), extent, convert);
        let Spent { cost, may_be_within } = spent;
        let outcome = match result.map_err(Halt::kind) {
            Ok(outcome) => outcome,
            Err(HaltKind::Error(text)) => Outcome::Error(EvalError(text)),
            Err(HaltKind::Unsupported(text)) => Outcome::Unsupported(text),
            Err(HaltKind::Long) => return Err(cost),
            Err(HaltKind::Review(review)) => Outcome::Review(review),
            Err(HaltKind::Variable(name)) => Outcome::Variable(name),
        };
        Ok(Evaluated { outcome, cost, may_be_within })
    }

    /// Shows the tree, with evaluators for its parts. `None` if there is no thread for a deep one.
    pub(super) fn look<T: Send>(
        &self,
        bindings: &Bindings,
        known: (&[(AccessReview, AccessDecision)], &VariableValues),
        look: impl for<'a> FnOnce(&'a ExprNode, &dyn Fn() -> Evaluator<'a>) -> T + Send,
    ) -> Option<T> {
        let Compiled { environment, patterns, tree, deep, .. } = &*self.0;
        let look = || {
            look(tree, &|| Evaluator::new(environment.rules(), &bindings.0, patterns, known, Extent::Whole))
        };
        if *deep { stack::run("cel-evaluator", stack::EVALUATOR, look).ok() } else { Some(look()) }
    }

    /// Evaluates the tree, and converts its value; also returns the cost.
    pub(super) fn run<T: Send>(
        &self,
        bindings: &Bindings,
        (decisions, values): (&[(AccessReview, AccessDecision)], &VariableValues),
        extent: Extent,
        convert: impl FnOnce(&Datum) -> Result<T, Halt> + Send,
    ) -> (Result<T, Halt>, Spent) {
        let compiled = &self.0;
        let evaluate = || {
            let mut evaluator = Evaluator::new(
                compiled.environment.rules(),
                &bindings.0,
                &compiled.patterns,
                (decisions, values),
                extent,
            );
            let result = evaluator.eval(&compiled.tree).and_then(|value| convert(&value));
            (result, evaluator.outlay())
        };
        if !compiled.deep {
            return evaluate();
        }
        stack::run("cel-evaluator", stack::EVALUATOR, evaluate).unwrap_or_else(|reason| {
            (Err(Halt::Unsupported(reason)), Spent { cost: COST_LIMIT, may_be_within: true })
        })
    }
}

/// The end of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluated {
    /// The result.
    pub outcome: Outcome,
    /// The cost, to be charged to the budget of several expressions.
    pub cost: u64,
    /// Whether the reference, whose prices are lower in part, may be within the limit. A caller that may ignore errors must then not ignore
    /// one [of the cost](EvalError::is_of_cost), as it must not ignore [`Outcome::Unsupported`].
    pub may_be_within: bool,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The value.
    Value(Value),
    /// The value of a mutation, as JSON. It has none if it does not fit: the error is not one of the expression, whose text it lacks.
    Patch(Result<serde_json::Value, EvalError>),
    /// An error of the input or the expression.
    Error(EvalError),
    /// What is not supported here, or is beyond a bound of this program that the reference does not have. Whoever may ignore errors must not
    /// ignore this one: a client that can cause it would decide which expressions count.
    Unsupported(String),
    /// The authorizer must decide this access review first.
    Review(Box<AccessReview>),
    /// This variable of the policy must be evaluated first.
    Variable(String),
}

impl Outcome {
    fn patch(converted: Result<serde_json::Value, String>) -> Self {
        Self::Patch(converted.map_err(EvalError))
    }
}

/// Expressions are equal if their texts, environments and result types are.
impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.0.environment, of.0.result);
        self.text() == other.text() && key(self) == key(other)
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Expression").field("text", &self.0.text).finish_non_exhaustive()
    }
}

impl Value {
    /// Copies a value, as far as the cost limit allows: what it contains may be shared, and far larger when it is not.
    fn of(value: &Datum) -> Result<Self, Halt> {
        Self::copy(value, &mut Some(COST_LIMIT))
    }

    /// The same, also of what `split` and `findAll` yield.
    fn of_list(value: &Datum) -> Result<Self, Halt> {
        let Datum::List(list) = value else { return Self::of(value) };
        let mut left = Some(COST_LIMIT);
        let items = list.items.iter().map(|item| Self::copy(item, &mut left));
        items.collect::<Result<_, _>>().map(Self::List)
    }

    /// `left` is what may be copied: an element, or ten bytes, for each unit.
    fn copy(value: &Datum, left: &mut Option<u64>) -> Result<Self, Halt> {
        let size = match value {
            Datum::String(text) => u64::try_from(text.len() / 10).unwrap_or(u64::MAX),
            _ => 0,
        };
        *left = left.and_then(|left| left.checked_sub(size.saturating_add(1)));
        if left.is_none() {
            return Err(Halt::Cost);
        }
        Ok(match value {
            Datum::Null => Self::Null,
            Datum::Bool(value) => Self::Bool(*value),
            Datum::String(text) => Self::String(text.to_string()),
            Datum::List(list) if list.form != GoForm::Texts => {
                Self::List(list.items.iter().map(|item| Self::copy(item, left)).collect::<Result<_, _>>()?)
            }
            other => Self::Other(other.type_name().to_owned()),
        })
    }
}
