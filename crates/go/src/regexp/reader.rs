//! The text of a pattern as it is read, and what each part of it depends on: the flags in force, and the ranges so far.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir};

use super::characters::complement;
use super::unicode;

/// Maximum number of character ranges in all classes of a pattern; `\pL` has about 650.
const MAX_RANGES: usize = 100_000;

/// A pattern is beyond a bound. Go has these two texts for bounds of its own, which are higher.
pub(super) const TOO_LARGE: PatternError = "expression too large";
pub(super) const TOO_DEEP: PatternError = "expression nests too deeply";
/// Not Go's: it reads it.
pub(super) const HALF_OF_A_PAIR: PatternError = "half of a surrogate pair is not supported";

/// Why a pattern is invalid: Go's error text.
pub(super) type PatternError = &'static str;

/// The rest of a pattern.
pub(super) struct PatternReader<'a> {
    pub(super) rest: &'a str,
    pub(super) flags: Flags,
    pub(super) ranges: Ranges,
}

/// The flags that `(?imsU)` sets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags {
    pub(super) fold_case: bool,
    pub(super) multi_line: bool,
    pub(super) dot_matches_newline: bool,
    pub(super) non_greedy: bool,
}

/// A set of characters.
pub(super) struct Characters(pub(super) ClassUnicode);

impl Characters {
    pub(super) fn into_hir(self) -> Hir {
        Hir::class(Class::Unicode(self.0))
    }
}

/// Creates character sets, and counts their ranges.
#[derive(Default)]
pub(super) struct Ranges(usize);

impl Ranges {
    /// A character and its case variants.
    pub(super) fn folded(&mut self, character: char) -> Result<Characters, PatternError> {
        let set = ClassUnicode::new([ClassUnicodeRange::new(character, character)]);
        self.group(set, true, false).map(Characters)
    }

    /// A group like `\d`, `[:alpha:]` or `\pL`: case folding precedes negation.
    pub(super) fn group(
        &mut self,
        mut set: ClassUnicode,
        fold_case: bool,
        negated: bool,
    ) -> Result<ClassUnicode, PatternError> {
        self.count(set.ranges().len())?;
        if fold_case {
            let others = unicode::others_by_case(&set);
            self.count(others.len())?;
            set.union(&ClassUnicode::new(others));
        }
        Ok(if negated { complement(&set) } else { set })
    }

    fn count(&mut self, more: usize) -> Result<(), PatternError> {
        self.0 = self.0.saturating_add(more);
        if self.0 > MAX_RANGES { Err(TOO_LARGE) } else { Ok(()) }
    }
}

impl PatternReader<'_> {
    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    /// Consumes a text if it comes next.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Consumes the input up to and including a text, and returns the part before it; `None` if it does not occur.
    pub(super) fn take_until(&mut self, end: &str) -> Option<String> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text.to_owned())
    }
}
