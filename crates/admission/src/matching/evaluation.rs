//! Evaluates the expressions of one webhook, or of one policy, with what they ask for: access reviews and variables.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{
    AccessDecision, AccessReview, Bindings, Evaluated, ExplainedPart, Expression, Outcome, VariableOutcome,
    VariableValues, Variables,
};

use super::statuses::internal_error;
use crate::Surroundings;
use crate::review::timeout;

/// Expressions that share the values of variables.
pub(crate) struct Expressions<'a> {
    bindings: Arc<Bindings>,
    variables: Option<&'a Arc<Variables>>,
    /// Whether an evaluation may take long.
    are_large: bool,
    known: Known,
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
    Review(Box<AccessReview>),
    Variable(String),
}

impl<'a> Expressions<'a> {
    pub(crate) fn new(
        bindings: Arc<Bindings>,
        variables: Option<&'a Arc<Variables>>,
        are_large: bool,
    ) -> Self {
        Self { bindings, variables, are_large, known: Known::default() }
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
                    return Ok(Evaluated { cost, ..evaluated });
                }
                Step::VariableIsKnown => drop(pending.pop()),
                Step::Review(review) => {
                    let decision = surroundings.authorize(&review).await;
                    self.known.decisions.push((*review, decision));
                }
                Step::Variable(name) if pending.contains(&name) => {
                    self.known.values.fail(&name, "it uses itself");
                }
                Step::Variable(name) => pending.push(name),
            }
        }
    }

    /// The values of the parts of an expression that has been evaluated.
    pub(crate) fn explain(&self, expression: &Expression) -> Vec<ExplainedPart> {
        expression.explain(&self.bindings, &self.known.decisions, &self.known.values)
    }

    /// Evaluates the variable, or else the expression, as far as what is known suffices.
    async fn step(
        &mut self,
        expression: &Expression,
        variable: Option<String>,
        surroundings: &impl Surroundings,
    ) -> Result<Step, Box<Status>> {
        let (expression, bindings) = (expression.clone(), Arc::clone(&self.bindings));
        let variables = self.variables.cloned().unwrap_or_default();
        let mut known = std::mem::take(&mut self.known);
        let step = move || {
            let step = if let Some(name) = variable {
                let Known { decisions, values, cost } = &mut known;
                let (outcome, spent) = variables.evaluate(&name, &bindings, decisions, values);
                match outcome {
                    VariableOutcome::Known => {
                        *cost = cost.saturating_add(spent);
                        Step::VariableIsKnown
                    }
                    VariableOutcome::Review(review) => Step::Review(review),
                    VariableOutcome::Variable(name) => Step::Variable(name),
                }
            } else {
                let evaluated = expression.evaluate_in(&bindings, &known.decisions, &known.values);
                match evaluated.outcome {
                    Outcome::Review(review) => Step::Review(review),
                    Outcome::Variable(name) => Step::Variable(name),
                    _ => Step::End(evaluated),
                }
            };
            (step, known)
        };
        let (step, known) = surroundings.compute(self.are_large, step).await.ok_or_else(cancelled)?;
        self.known = known;
        Ok(step)
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
