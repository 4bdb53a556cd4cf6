//! The compiled literal patterns of an expression. Their syntax is Go's, see `portcullis_go::regexp`.

use std::collections::HashMap;
use std::sync::Arc;

use portcullis_go::regexp::{self, Pattern};

/// The compiled literal patterns of an expression.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Arc<Pattern>>);

impl Patterns {
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        self.0.insert(pattern.to_owned(), regexp::compile(pattern)?);
        Ok(())
    }

    /// Whether a pattern is not a literal of the expression.
    pub(super) fn is_new(&self, pattern: &str) -> bool {
        !self.0.contains_key(pattern)
    }

    /// The compiled pattern of a literal.
    pub(super) fn find(&self, pattern: &str) -> Option<Arc<Pattern>> {
        self.0.get(pattern).map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_the_expression_is_compiled_once_and_shared() {
        let mut patterns = Patterns::default();
        patterns.add("a+").unwrap();
        assert!(Arc::ptr_eq(&patterns.find("a+").unwrap(), &patterns.find("a+").unwrap()));
    }
}
