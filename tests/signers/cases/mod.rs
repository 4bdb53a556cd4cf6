//! The cases, by area.

mod alt_names;
mod approval;
mod conditions;
mod keys;
mod subjects;
mod usages;

use crate::case::Case;

pub(crate) fn all() -> Vec<Case> {
    [
        subjects::cases(),
        alt_names::cases(),
        usages::cases(),
        keys::cases(),
        conditions::cases(),
        approval::cases(),
    ]
    .concat()
}

/// An approval as the API server stores it.
fn stored_approval() -> serde_json::Value {
    conditions::stored("Approved", "True")
}
