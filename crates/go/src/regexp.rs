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

use std::ops::Deref;
use std::sync::Arc;

use regex_automata::meta::Regex;
use regex_syntax::hir::Hir;

use reader::{HALF_OF_A_PAIR, TOO_DEEP, TOO_LARGE};

/// Maximum size of a compiled pattern of a configuration, in bytes.
const MAX_COMPILED: usize = 1 << 20;
/// Maximum size of a compiled pattern from a token; also bounds the compile time, to about half a millisecond.
pub const MAX_COMPUTED: usize = 1 << 16;
/// Maximum size of the search cache of a pattern, in bytes.
const MAX_SEARCH_CACHE: usize = 1 << 20;

/// A compiled pattern. Share it as an `Arc`: a cloned [`Regex`] starts with an empty search cache, which costs more than
/// most searches.
#[derive(Debug)]
pub struct Pattern {
    regex: Regex,
    /// The length of the longest text that it matches, in bytes, if there is one.
    pub longest: Option<usize>,
}

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        &self.regex
    }
}

/// Compiles a pattern of a configuration. The error is Go's text.
pub fn compile(pattern: &str) -> Result<Arc<Pattern>, String> {
    build(pattern, MAX_COMPILED).map(Arc::new).map_err(|refused| refused.to_string())
}

/// Compiles a pattern that is computed from what a client sends, to at most [`MAX_COMPUTED`] bytes.
pub fn computed(pattern: &str) -> Result<Arc<Pattern>, RefusedPattern> {
    build(pattern, MAX_COMPUTED).map(Arc::new)
}

/// Why a pattern is not compiled. Its text is Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {why}: `{pattern}`")]
pub struct RefusedPattern {
    why: &'static str,
    pattern: String,
}

impl RefusedPattern {
    /// Whether Go may compile it: it is beyond a bound, those here being lower than Go's, or has what is not supported here.
    pub fn is_of_bound(&self) -> bool {
        [TOO_LARGE, TOO_DEEP, HALF_OF_A_PAIR].contains(&self.why)
    }
}

// threat: pattern-exhaustion
fn build(pattern: &str, size: usize) -> Result<Pattern, RefusedPattern> {
    let config = Regex::config()
        .nfa_size_limit(Some(size))
        .onepass_size_limit(Some(size))
        .hybrid_cache_capacity(MAX_SEARCH_CACHE);
    let tree = read(pattern)?;
    let longest = tree.properties().maximum_len();
    let regex =
        Regex::builder().configure(config).build_from_hir(&tree).map_err(|_| refused(pattern, TOO_LARGE))?;
    Ok(Pattern { regex, longest })
}

/// Parses and checks a pattern.
fn read(pattern: &str) -> Result<Hir, RefusedPattern> {
    parse::parse(pattern).map_err(|why| refused(pattern, why))
}

// Go: regexp/syntax, Error
fn refused(pattern: &str, why: &'static str) -> RefusedPattern {
    RefusedPattern { why, pattern: pattern.to_owned() }
}

/// All matches of a pattern in texts, for conformance tests against Go.
pub fn find_all(pattern: &str, texts: &[String]) -> Result<Vec<Vec<String>>, String> {
    let compiled = build(pattern, MAX_COMPILED).map_err(|refused| refused.to_string())?;
    let all = |text: &String| {
        compiled.find_iter(text).filter_map(|found| Some(text.get(found.range())?.to_owned())).collect()
    };
    Ok(texts.iter().map(all).collect())
}

/// The characters that a pattern for one character matches, as ranges, for conformance tests against Go; `None` for
/// other patterns.
pub fn characters(pattern: &str) -> Result<Option<Vec<(char, char)>>, String> {
    Ok(characters::of(&read(pattern).map_err(|refused| refused.to_string())?))
}

#[cfg(test)]
mod tests;
