//! Regular expressions as Go's `regexp` reads them, on the automata of the `regex` crate, whose time is linear too.
//!
//! The two syntaxes differ in many small ways, so a pattern is parsed by Go's own rules (`parse`) into the tree that
//! the automata are built of. What Go refuses is refused; what is larger than the limits here is refused, and says so.

mod class;
mod parse;
mod unicode;

use std::collections::HashMap;
use std::sync::Arc;

use regex_automata::meta::Regex;
use regex_syntax::hir::Hir;

/// The most that a compiled pattern of the configuration may take, in bytes.
const MAX_COMPILED: usize = 1 << 20;
/// The same for a pattern that comes with the data: it bounds the work of compiling as well.
const MAX_COMPUTED: usize = 1 << 16;
/// The most that the search of one pattern keeps between two characters, in bytes.
const MAX_SEARCH_CACHE: usize = 1 << 20;

/// The patterns that an expression contains literally, compiled once.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Arc<Regex>>);

impl Patterns {
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        self.0.insert(pattern.to_owned(), Arc::new(build(pattern, MAX_COMPILED)?));
        Ok(())
    }

    /// Whether a pattern was computed.
    pub(super) fn is_new(&self, pattern: &str) -> bool {
        !self.0.contains_key(pattern)
    }

    /// A pattern of the expression or one that was computed.
    ///
    /// An `Arc`, because a clone of a [`Regex`] begins with an empty search cache, which costs more than most searches.
    pub(super) fn find(&self, pattern: &str) -> Result<Arc<Regex>, String> {
        match self.0.get(pattern) {
            Some(compiled) => Ok(Arc::clone(compiled)),
            None => build(pattern, MAX_COMPUTED).map(Arc::new),
        }
    }
}

// threat: pattern-exhaustion
fn build(pattern: &str, size: usize) -> Result<Regex, String> {
    let config = Regex::config()
        .nfa_size_limit(Some(size))
        .onepass_size_limit(Some(size))
        .hybrid_cache_capacity(MAX_SEARCH_CACHE);
    Regex::builder()
        .configure(config)
        .build_from_hir(&read(pattern)?)
        .map_err(|_| refused(pattern, "expression too large"))
}

/// The tree of a pattern.
fn read(pattern: &str) -> Result<Hir, String> {
    parse::parse(pattern).map_err(|why| refused(pattern, why))
}

// Go: regexp/syntax, Error
fn refused(pattern: &str, why: &str) -> String {
    format!("error parsing regexp: {why}: `{pattern}`")
}

/// All matches of a pattern in a text, for comparison with Go's.
pub(super) fn find_all(pattern: &str, texts: &[String]) -> Result<Vec<Vec<String>>, String> {
    let compiled = build(pattern, MAX_COMPILED)?;
    let all = |text: &String| {
        compiled.find_iter(text).filter_map(|found| Some(text.get(found.range())?.to_owned())).collect()
    };
    Ok(texts.iter().map(all).collect())
}

/// The characters that a pattern for one character stands for, as ranges, for comparison with Go's; `None` for another
/// pattern.
pub(super) fn characters(pattern: &str) -> Result<Option<Vec<(char, char)>>, String> {
    Ok(class::of(&read(pattern)?))
}

#[cfg(test)]
mod tests;
