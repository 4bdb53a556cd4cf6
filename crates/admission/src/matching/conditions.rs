//! The `matchConditions` of a webhook.

use portcullis_cel::Expression;

/// A named expression that must be true.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchCondition {
    /// The name.
    pub name: String,
    /// The expression, of [`portcullis_cel::Environment::ADMISSION`].
    pub expression: Expression,
}
