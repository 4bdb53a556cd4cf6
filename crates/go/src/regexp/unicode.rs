//! Unicode 15.0, the version of Go. The tables of `regex-syntax` have version 16.0; this module removes later
//! additions. A test compares every name and every character with Go's tables.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::characters::{complement, of};

/// The scripts that Go finds by name. It looks up names without underscores in a table with underscores, and so never
/// finds a script of several words.
// Go: regexp/syntax, unicodeTable; unicode.Scripts
const SCRIPTS: &str = "Adlam Ahom Arabic Armenian Avestan Balinese Bamum Batak Bengali Bhaiksuki Bopomofo Brahmi Braille \
    Buginese Buhid Carian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari \
    Dogra Duployan Elbasan Elymaic Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gurmukhi Han Hangul \
    Hanunoo Hatran Hebrew Hiragana Inherited Javanese Kaithi Kannada Katakana Kawi Kharoshthi Khmer Khojki Khudawadi Lao \
    Latin Lepcha Limbu Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Medefaidrin Miao Modi \
    Mongolian Mro Multani Myanmar Nabataean Nandinagari Newa Nko Nushu Ogham Oriya Osage Osmanya Palmyrene Phoenician \
    Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham Sinhala Sogdian Soyombo Sundanese Syriac Tagalog Tagbanwa \
    Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Yezidi Yi";

/// The general categories with their long names, normalized as in Go.
// Go: unicode.Categories, unicode.CategoryAliases
const CATEGORIES: &[(&str, &str)] = &[
    ("C", "Other"),
    ("Cc", "Control"),
    ("Cc", "Cntrl"),
    ("Cf", "Format"),
    ("Cn", "Unassigned"),
    ("Co", "Privateuse"),
    ("Cs", "Surrogate"),
    ("L", "Letter"),
    ("Lc", "Casedletter"),
    ("Ll", "Lowercaseletter"),
    ("Lm", "Modifierletter"),
    ("Lo", "Otherletter"),
    ("Lt", "Titlecaseletter"),
    ("Lu", "Uppercaseletter"),
    ("M", "Mark"),
    ("M", "Combiningmark"),
    ("Mc", "Spacingmark"),
    ("Me", "Enclosingmark"),
    ("Mn", "Nonspacingmark"),
    ("N", "Number"),
    ("Nd", "Decimalnumber"),
    ("Nd", "Digit"),
    ("Nl", "Letternumber"),
    ("No", "Othernumber"),
    ("P", "Punctuation"),
    ("P", "Punct"),
    ("Pc", "Connectorpunctuation"),
    ("Pd", "Dashpunctuation"),
    ("Pe", "Closepunctuation"),
    ("Pf", "Finalpunctuation"),
    ("Pi", "Initialpunctuation"),
    ("Po", "Otherpunctuation"),
    ("Ps", "Openpunctuation"),
    ("S", "Symbol"),
    ("Sc", "Currencysymbol"),
    ("Sk", "Modifiersymbol"),
    ("Sm", "Mathsymbol"),
    ("So", "Othersymbol"),
    ("Z", "Separator"),
    ("Zl", "Lineseparator"),
    ("Zp", "Paragraphseparator"),
    ("Zs", "Spaceseparator"),
];

/// Characters that fold to each other in Unicode 16.0, but not in 15.0.
const NOT_FOLDED: [char; 6] = ['\u{390}', '\u{3B0}', '\u{1FD3}', '\u{1FE3}', '\u{FB05}', '\u{FB06}'];

/// A character in Mn in Unicode 15.0, and in Mc in 16.0.
static MOVED: LazyLock<ClassUnicode> =
    LazyLock::new(|| ClassUnicode::new([ClassUnicodeRange::new('\u{1171E}', '\u{1171E}')]));

/// The characters of Unicode 15.0.
static KNOWN: LazyLock<ClassUnicode> = LazyLock::new(|| property("age=15.0"));

/// Characters with case variants, and these variants.
static FOLDS: LazyLock<BTreeMap<char, Vec<char>>> = LazyLock::new(|| {
    let mut cased = property("Changes_When_Casemapped");
    cased.union(&property("Changes_When_Casefolded"));
    cased.intersect(&KNOWN);
    let characters = cased.iter().flat_map(|range| range.start()..=range.end());
    let folds = characters.filter(|character| !NOT_FOLDED.contains(character)).map(|character| {
        let mut others = ClassUnicode::new([ClassUnicodeRange::new(character, character)]);
        others.case_fold_simple();
        others.intersect(&KNOWN);
        let others = others.iter().flat_map(|range| range.start()..=range.end());
        (character, others.filter(|other| *other != character).collect::<Vec<_>>())
    });
    folds.filter(|(_, others)| !others.is_empty()).collect()
});

/// The case variants of the characters of a set. A list, because its length determines the work.
pub(super) fn others_by_case(set: &ClassUnicode) -> Vec<ClassUnicodeRange> {
    let cased = set.iter().flat_map(|range| FOLDS.range(range.start()..=range.end()));
    cased.flat_map(|(_, others)| others.iter().map(|other| ClassUnicodeRange::new(*other, *other))).collect()
}

/// The characters of a category or script, and whether case folding applies to it.
// threat: pattern-other-reading
// Go: regexp/syntax, unicodeTable; unicode.FoldCategory has no table for LC
pub(super) fn named(name: &str) -> Option<(ClassUnicode, bool)> {
    let name = canonical(name);
    let all_from_zero = |last: char| ClassUnicode::new([ClassUnicodeRange::new('\0', last)]);
    let is_it = |(short, long): &&(&str, &str)| *short == name || *long == name;
    let set = match name.as_str() {
        "Any" => all_from_zero(char::MAX),
        "Ascii" => all_from_zero('\x7F'),
        "Assigned" => complement(&category("Cn")),
        _ => match CATEGORIES.iter().find(is_it) {
            Some(("Lc", _)) => return Some((category("Lc"), false)),
            Some((short, _)) => category(short),
            None if SCRIPTS.split(' ').any(|script| !script.is_empty() && script == name) => {
                let mut script = property(&format!("script={name}"));
                script.intersect(&KNOWN);
                script
            }
            None => return None,
        },
    };
    Some((set, true))
}

fn category(name: &str) -> ClassUnicode {
    let mut category = property(&format!("gc={name}"));
    category.intersect(&KNOWN);
    match name {
        // Texts contain no surrogates.
        "Cs" => ClassUnicode::empty(),
        "C" | "Cn" => {
            category.union(&complement(&KNOWN));
            category
        }
        "Mc" => {
            category.difference(&MOVED);
            category
        }
        "Mn" => {
            category.union(&MOVED);
            category
        }
        _ => category,
    }
}

/// Normalizes a name for lookup as Go does: no blanks, hyphens and underscores, lower case except the first letter.
// Go: regexp/syntax, canonicalName
fn canonical(name: &str) -> String {
    let mut canonical = String::new();
    for character in name.chars().filter(|character| !matches!(character, '_' | '-' | ' ')) {
        canonical.push(if canonical.is_empty() {
            character.to_ascii_uppercase()
        } else {
            character.to_ascii_lowercase()
        });
    }
    canonical
}

/// A table of `regex-syntax`; empty for an unknown name, which a test would detect.
fn property(name: &str) -> ClassUnicode {
    let parsed = regex_syntax::parse(&format!("\\p{{{name}}}"));
    let ranges = parsed.ok().as_ref().and_then(of).unwrap_or_default();
    ClassUnicode::new(ranges.into_iter().map(|(first, last)| ClassUnicodeRange::new(first, last)))
}
