//! Evaluates the expressions of one webhook, or of one policy, with what they ask for: access reviews and variables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{
    AccessDecision, AccessReview, Bindings, Budget, Evaluated, ExplainedPart, Expression, Outcome,
    VariableOutcome, VariableValues, Variables,
};

use super::statuses::internal_error;
use crate::review::timeout;
use crate::{FailurePolicy, Surroundings};

/// Expressions that share the values of variables.
pub(crate) struct Expressions<'a> {
    bindings: Arc<Bindings>,
    variables: Option<&'a Arc<Variables>>,
    /// Whether an evaluation may take long.
    are_large: bool,
    /// What the evaluations of the request have cost on the thread that serves it.
    inline: &'a InlineCost,
    /// Whether a `failurePolicy` ignores their errors.
    ignores_errors: bool,
    known: Known,
    /// What all expressions have cost.
    spent: u64,
}

/// What the evaluations of one request have cost so far on the thread that serves it, on which others wait: a client decides by its
/// objects what an expression costs.
// threat: large-review
#[derive(Debug, Default)]
pub struct InlineCost(AtomicU64);

/// What all evaluations of one request may cost there: a few milliseconds. The others are done elsewhere, in turns of users and clusters.
const MAX_INLINE_COST: u64 = 20_000;

impl InlineCost {
    fn is_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MAX_INLINE_COST
    }

    fn charge(&self, cost: u64) {
        // A price may be that of work that was not done.
        self.0.fetch_add(cost.min(MAX_INLINE_COST), Ordering::Relaxed);
    }
}

/// What the evaluations have asked for so far.
#[derive(Default)]
struct Known {
    decisions: Vec<(AccessReview, AccessDecision)>,
    values: VariableValues,
    /// What the variables have cost that the current expression uses first.
    cost: u64,
}

/// The end of one step.
enum Step {
    End(Evaluated),
    VariableIsKnown,
    /// It cannot be evaluated here.
    Unsupported(String),
    Review(Box<AccessReview>),
    Variable(String),
}

impl<'a> Expressions<'a> {
    pub(crate) fn new(
        bindings: Arc<Bindings>,
        variables: Option<&'a Arc<Variables>>,
        are_large: bool,
        inline: &'a InlineCost,
        policy: FailurePolicy,
    ) -> Self {
        let (ignores_errors, known) = (policy == FailurePolicy::Ignore, Known::default());
        Self { bindings, variables, are_large, inline, ignores_errors, known, spent: 0 }
    }

    /// Evaluates an expression on which a decision depends, and charges it. The error is that of the budget.
    pub(crate) async fn evaluate_within(
        &mut self,
        budget: &mut Budget,
        expression: &Expression,
        surroundings: &impl Surroundings,
    ) -> Result<Result<Evaluated, String>, Box<Status>> {
        let evaluated = self.evaluate(expression, surroundings).await?;
        let may_be_within = evaluated.may_be_within || self.known.values.has_ended_early;
        if may_be_within && matches!(&evaluated.outcome, Outcome::Error(error) if error.is_of_cost()) {
            self.refuse_to_ignore(expression)?;
        }
        self.charge(budget, expression, evaluated)
    }

    /// Charges an evaluation. The error is that of the budget.
    pub(crate) fn charge(
        &self,
        budget: &mut Budget,
        expression: &Expression,
        evaluated: Evaluated,
    ) -> Result<Result<Evaluated, String>, Box<Status>> {
        match budget.charge(&evaluated) {
            Ok(()) => Ok(Ok(evaluated)),
            Err(exceeded) => {
                self.refuse_to_ignore(expression)?;
                Ok(Err(exceeded.to_string()))
            }
        }
    }

    /// Ends the request if the `failurePolicy` would ignore that an expression costs too much. Prices are higher than in kube-apiserver,
    /// which might go on, and a client's objects decide about them.
    // threat: unreviewed-write
    fn refuse_to_ignore(&self, expression: &Expression) -> Result<(), Box<Status>> {
        if !self.ignores_errors {
            return Ok(());
        }
        Err(internal_error(&format!(
            "the gateway does not ignore that '{}' costs too much",
            expression.text()
        )))
    }

    /// Evaluates an expression. Its cost includes that of the variables that it uses first. An evaluation ends by its limit of steps; none
    /// begins after the deadline of the request.
    // apiserver: pkg/admission/plugin/cel/activation.go, Evaluate; composition.go, variableAccessor
    pub(crate) async fn evaluate(
        &mut self,
        expression: &Expression,
        surroundings: &impl Surroundings,
    ) -> Result<Evaluated, Box<Status>> {
        // Each uses only those before it, so that this ends.
        let mut pending: Vec<String> = Vec::new();
        // A check costs more than a third of an expression's limit, so that there are two reviews at most for each expression.
        loop {
            if surroundings.is_late() {
                return Err(timeout());
            }
            match self.step(expression, pending.last().cloned(), surroundings).await? {
                Step::End(evaluated) => {
                    let cost = evaluated.cost.saturating_add(std::mem::take(&mut self.known.cost));
                    self.spent = self.spent.saturating_add(cost);
                    return Ok(Evaluated { cost, ..evaluated });
                }
                Step::VariableIsKnown => drop(pending.pop()),
                // No `failurePolicy` may ignore it: a client can cause it.
                // threat: unreviewed-write
                Step::Unsupported(error) => {
                    let error = format!("the gateway cannot evaluate '{}': {error}", expression.text());
                    return Err(internal_error(&error));
                }
                Step::Review(review) => {
                    let decision = surroundings.authorize(&review).await?;
                    self.known.decisions.push((*review, decision));
                }
                Step::Variable(name) if pending.contains(&name) => {
                    self.known.values.fail(&name, "it uses itself");
                }
                Step::Variable(name) => pending.push(name),
            }
        }
    }

    /// What all expressions have cost so far, with the variables that they use.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// The values of the parts of an expression that has been evaluated.
    pub(crate) fn explain(&self, expression: &Expression) -> Vec<ExplainedPart> {
        expression.explain(&self.bindings, &self.known.decisions, &self.known.values)
    }

    /// Evaluates the variable, or else the expression, as far as what is known suffices: here if that is brief, else elsewhere.
    async fn step(
        &mut self,
        expression: &Expression,
        variable: Option<String>,
        surroundings: &impl Surroundings,
    ) -> Result<Step, Box<Status>> {
        if !self.are_large && self.inline.is_left() {
            match self.brief_step(expression, variable.as_deref()) {
                Ok((step, cost)) => {
                    // Also of an expression without cost.
                    self.inline.charge(cost.max(1));
                    return Ok(step);
                }
                Err(cost) => self.inline.charge(cost),
            }
        }
        let (expression, bindings) = (expression.clone(), Arc::clone(&self.bindings));
        let variables = self.variables.cloned().unwrap_or_default();
        let mut known = std::mem::take(&mut self.known);
        let step = move || {
            let step = if let Some(name) = variable {
                let Known { decisions, values, cost } = &mut known;
                let (outcome, spent) = variables.evaluate(&name, &bindings, decisions, values);
                Step::of_variable(outcome, spent, cost)
            } else {
                Step::of(expression.evaluate_in(&bindings, &known.decisions, &known.values))
            };
            (step, known)
        };
        let (step, known) = surroundings.compute(true, step).await.ok_or_else(cancelled)?;
        self.known = known;
        Ok(step)
    }

    /// The step with its cost; only the cost so far, if it is not brief.
    fn brief_step(&mut self, expression: &Expression, variable: Option<&str>) -> Result<(Step, u64), u64> {
        let Known { decisions, values, cost } = &mut self.known;
        if let (Some(name), Some(variables)) = (variable, self.variables) {
            let (outcome, spent) = variables.evaluate_briefly(name, &self.bindings, decisions, values)?;
            return Ok((Step::of_variable(outcome, spent, cost), spent));
        }
        let evaluated = expression.evaluate_briefly(&self.bindings, decisions, values)?;
        let spent = evaluated.cost;
        Ok((Step::of(evaluated), spent))
    }
}

impl Step {
    fn of(evaluated: Evaluated) -> Self {
        match evaluated.outcome {
            Outcome::Unsupported(error) => Self::Unsupported(error),
            Outcome::Review(review) => Self::Review(review),
            Outcome::Variable(name) => Self::Variable(name),
            _ => Self::End(evaluated),
        }
    }

    /// `cost` is that of the variables that the current expression uses first.
    fn of_variable(outcome: VariableOutcome, spent: u64, cost: &mut u64) -> Self {
        match outcome {
            VariableOutcome::Known => {
                *cost = cost.saturating_add(spent);
                Self::VariableIsKnown
            }
            VariableOutcome::Unsupported(error) => Self::Unsupported(error),
            VariableOutcome::Review(review) => Self::Review(review),
            VariableOutcome::Variable(name) => Self::Variable(name),
        }
    }
}

/// The request ends because its work was cancelled, as that of a panic is.
pub(super) fn cancelled() -> Box<Status> {
    internal_error("the evaluation of expressions was cancelled")
}

/// The error of an expression, as upstream words it.
// apiserver: pkg/admission/plugin/cel/activation.go, Evaluate
pub(crate) fn failure(expression: &Expression, error: &str) -> String {
    format!("expression '{}' resulted in error: {error}", expression.text())
}
