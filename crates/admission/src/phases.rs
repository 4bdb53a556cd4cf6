//! The mutating and the validating phase.
