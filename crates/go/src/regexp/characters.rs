//! Sets of characters.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// The characters that a pattern for one character matches.
pub(super) fn of(hir: &Hir) -> Option<Vec<(char, char)>> {
    let class = match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => class.clone(),
        HirKind::Class(Class::Bytes(class)) => class.to_unicode_class()?,
        HirKind::Literal(literal) => {
            let mut characters = std::str::from_utf8(&literal.0).ok()?.chars();
            let (one, None) = (characters.next()?, characters.next()) else { return None };
            ClassUnicode::new([ClassUnicodeRange::new(one, one)])
        }
        _ => return None,
    };
    Some(class.iter().map(|range| (range.start(), range.end())).collect())
}

/// All other characters.
pub(super) fn complement(set: &ClassUnicode) -> ClassUnicode {
    let mut ranges: Vec<ClassUnicodeRange> = Vec::new();
    for range in set.iter() {
        match ranges.pop() {
            // `negate` produces a reversed range for neighbours around the surrogates.
            Some(before) if before.end() == '\u{D7FF}' && range.start() == '\u{E000}' => {
                ranges.push(ClassUnicodeRange::new(before.start(), range.end()));
            }
            before => ranges.extend(before.into_iter().chain([*range])),
        }
    }
    let mut complement = ClassUnicode::new(ranges);
    complement.negate();
    complement
}
