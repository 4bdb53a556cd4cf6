//! Regular expressions with the syntax of Go's `regexp`, on the automata of the `regex` crate, which also search in
//! linear time.
//!
//! The two syntaxes differ in many details, so `parse` follows Go's rules and produces the tree for the automata. It
//! rejects every pattern that Go rejects, and patterns beyond the limits here with an error of their own.

mod characters;
mod class;
mod parse;
mod reader;
mod unicode;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use regex_automata::meta::Regex;
use regex_syntax::hir::Hir;

/// Maximum size of a compiled literal pattern, in bytes.
const MAX_COMPILED: usize = 1 << 20;
/// Maximum size of a compiled pattern from a token; also bounds the compile time, to about half a millisecond.
pub(super) const MAX_COMPUTED: usize = 1 << 16;
/// Maximum size of the search cache of a pattern, in bytes.
const MAX_SEARCH_CACHE: usize = 1 << 20;

/// A compiled pattern. Share it as an `Arc`: a cloned [`Regex`] starts with an empty search cache, which costs more than
/// most searches.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The length of the longest text that it matches, if there is one.
    pub(super) longest: Option<usize>,
}

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        &self.regex
    }
}

/// The compiled literal patterns of an expression.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Arc<Pattern>>);

impl Patterns {
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        self.0.insert(pattern.to_owned(), Arc::new(build(pattern, MAX_COMPILED)?));
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

/// Compiles a pattern that is not a literal.
pub(super) fn computed(pattern: &str) -> Result<Arc<Pattern>, String> {
    build(pattern, MAX_COMPUTED).map(Arc::new)
}

// threat: pattern-exhaustion
fn build(pattern: &str, size: usize) -> Result<Pattern, String> {
    let config = Regex::config()
        .nfa_size_limit(Some(size))
        .onepass_size_limit(Some(size))
        .hybrid_cache_capacity(MAX_SEARCH_CACHE);
    let tree = read(pattern)?;
    let longest = tree.properties().maximum_len();
    let regex = Regex::builder()
        .configure(config)
        .build_from_hir(&tree)
        .map_err(|_| refused(pattern, "expression too large"))?;
    Ok(Pattern { regex, longest })
}

/// Parses and checks a pattern.
fn read(pattern: &str) -> Result<Hir, String> {
    parse::parse(pattern).map_err(|why| refused(pattern, why))
}

// Go: regexp/syntax, Error
fn refused(pattern: &str, why: &str) -> String {
    format!("error parsing regexp: {why}: `{pattern}`")
}

/// All matches of a pattern in texts, for conformance tests against Go.
pub(super) fn find_all(pattern: &str, texts: &[String]) -> Result<Vec<Vec<String>>, String> {
    let compiled = build(pattern, MAX_COMPILED)?;
    let all = |text: &String| {
        compiled.find_iter(text).filter_map(|found| Some(text.get(found.range())?.to_owned())).collect()
    };
    Ok(texts.iter().map(all).collect())
}

/// The characters that a pattern for one character matches, as ranges, for conformance tests against Go; `None` for
/// other patterns.
pub(super) fn characters(pattern: &str) -> Result<Option<Vec<(char, char)>>, String> {
    Ok(characters::of(&read(pattern)?))
}

#[cfg(test)]
mod tests;
