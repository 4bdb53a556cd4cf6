//! Budgets of several expressions. One expression has the limit of [`crate::Expression::evaluate`].

use super::expression::Evaluated;

/// What several expressions may cost together.
// apiserver: pkg/apis/cel/config.go
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(u64);

/// The expressions cost more than their budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("validation failed due to running out of cost budget, no further validation rules will be run")]
pub struct BudgetExceeded;

impl Budget {
    /// The budget of all `matchConditions` of one webhook, or of one policy.
    pub const MATCH_CONDITIONS: Self = Self(2_500_000);
    /// The budget of one policy with one binding.
    pub const POLICY: Self = Self(10_000_000);

    /// Charges an evaluation.
    pub fn charge(&mut self, evaluated: &Evaluated) -> Result<(), BudgetExceeded> {
        self.0 = self.0.checked_sub(evaluated.cost).ok_or(BudgetExceeded)?;
        Ok(())
    }
}
