//! The cases, by group. A group is what a reader looks for; every group holds cases that the bare backend answers otherwise.

mod x509;

use crate::case::Case;

/// Every HTTP case.
pub(crate) fn all() -> Vec<Case> {
    [x509::cases()].concat()
}
