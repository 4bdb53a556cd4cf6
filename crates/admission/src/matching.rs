//! Which webhooks a request is sent to.

mod conditions;
mod selector;

pub use conditions::MatchCondition;
pub use selector::{LabelSelector, SelectorError};
