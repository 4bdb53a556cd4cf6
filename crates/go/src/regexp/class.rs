//! Character classes and escape sequences.
//!
//! Follows `parseClass`, `parseNamedClass`, `parsePerlClassEscape` and `parseEscape` of Go's `regexp/syntax/parse.go`.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::reader::{Characters, HALF_OF_A_PAIR, PatternError, PatternReader};
use super::unicode;

const INVALID_ESCAPE: PatternError = "invalid escape sequence";

impl PatternReader<'_> {
    /// Parses `[…]` after the bracket.
    // threat: pattern-other-reading
    pub(super) fn class(&mut self) -> Result<Characters, PatternError> {
        let fold_case = self.flags.fold_case;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        let mut groups = Vec::new();
        let mut is_first = true;
        // A leading `]` is a member.
        while is_first || !self.take("]") {
            is_first = false;
            if let Some(group) = self.named_group()? {
                groups.extend(group.0.iter().copied());
            } else if self.take("\\") {
                if let Some(group) = self.escaped_group()? {
                    groups.extend(group.0.iter().copied());
                } else {
                    let first = self.escaped_character()?;
                    self.range(first, &mut ranges)?;
                }
            } else {
                let first = self.next().ok_or("missing closing ]")?;
                self.range(first, &mut ranges)?;
            }
        }
        let mut class = self.ranges.group(ClassUnicode::new(ranges), fold_case, false)?;
        class.union(&ClassUnicode::new(groups));
        self.ranges.group(class, false, negated).map(Characters)
    }

    /// A character, or a range.
    fn range(&mut self, first: char, ranges: &mut Vec<ClassUnicodeRange>) -> Result<(), PatternError> {
        // A hyphen at the end of the class is literal.
        let is_range =
            self.rest.strip_prefix('-').is_some_and(|rest| !rest.is_empty() && !rest.starts_with(']'));
        let mut last = first;
        if is_range {
            self.next();
            last = match self.next() {
                Some('\\') => self.escaped_character()?,
                Some(last) => last,
                None => return Err("missing closing ]"),
            };
        }
        if last < first {
            return Err("invalid character class range");
        }
        ranges.push(ClassUnicodeRange::new(first, last));
        Ok(())
    }

    /// `[:alpha:]` or `[:^alpha:]`. Without the closing `:]`, the bracket is literal.
    fn named_group(&mut self) -> Result<Option<Characters>, PatternError> {
        let Some((name, rest)) = self.rest.strip_prefix("[:").and_then(|name| name.split_once(":]")) else {
            return Ok(None);
        };
        let length = self.rest.len() - rest.len();
        let (negated, name) = name.strip_prefix('^').map_or((false, name), |name| (true, name));
        let ranges = posix(name).ok_or("invalid character class range")?;
        self.skip(length);
        self.ascii_group(ranges, negated).map(Some)
    }

    /// `\d`, `\pL`, `\p{Greek}` and so on, after the backslash.
    pub(super) fn escaped_group(&mut self) -> Result<Option<Characters>, PatternError> {
        let (name, negated) = match self.peek() {
            Some('d') => ("digit", false),
            Some('D') => ("digit", true),
            Some('s') => ("perl space", false),
            Some('S') => ("perl space", true),
            Some('w') => ("word", false),
            Some('W') => ("word", true),
            Some('p') => return self.unicode_group(false).map(Some),
            Some('P') => return self.unicode_group(true).map(Some),
            _ => return Ok(None),
        };
        self.next();
        self.ascii_group(posix(name).unwrap_or_default(), negated).map(Some)
    }

    fn ascii_group(&mut self, ranges: &[(char, char)], negated: bool) -> Result<Characters, PatternError> {
        let set = ranges.iter().map(|(first, last)| ClassUnicodeRange::new(*first, *last));
        let (set, fold_case) = (ClassUnicode::new(set), self.flags.fold_case);
        self.ranges.group(set, fold_case, negated).map(Characters)
    }

    // Go: regexp/syntax, parseUnicodeClass
    fn unicode_group(&mut self, mut negated: bool) -> Result<Characters, PatternError> {
        const REFUSED: PatternError = "invalid character class range";
        self.next();
        let name = match self.next().ok_or(REFUSED)? {
            '{' => self.take_until("}").ok_or(REFUSED)?,
            letter => letter.to_string(),
        };
        let name = name.strip_prefix('^').map_or(name.as_str(), |name| {
            negated = !negated;
            name
        });
        let (set, folds) = unicode::named(name).ok_or(REFUSED)?;
        let fold_case = folds && self.flags.fold_case;
        self.ranges.group(set, fold_case, negated).map(Characters)
    }

    /// An escaped character, after the backslash.
    // Go: regexp/syntax, parseEscape
    pub(super) fn escaped_character(&mut self) -> Result<char, PatternError> {
        let character = self.next().ok_or("trailing backslash at end of expression")?;
        Ok(match character {
            'a' => '\x07',
            'f' => '\x0C',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0B',
            'x' => {
                let value = self.hexadecimal().ok_or(INVALID_ESCAPE)?;
                // Go treats it as U+FFFD in some patterns, and as empty in others.
                char::from_u32(value).ok_or(HALF_OF_A_PAIR)?
            }
            '0'..='7' => self.octal(character).ok_or(INVALID_ESCAPE)?,
            other if other.is_ascii() && !other.is_ascii_alphanumeric() => other,
            _ => return Err(INVALID_ESCAPE),
        })
    }

    /// `\0`, `\12` or `\123`, after the first digit. A single digit other than zero would be a back reference.
    fn octal(&mut self, first: char) -> Option<char> {
        let mut value = first.to_digit(8)?;
        let mut digits = 1;
        while digits < 3
            && let Some(digit) = self.peek().and_then(|digit| digit.to_digit(8))
        {
            self.next();
            value = value * 8 + digit;
            digits += 1;
        }
        if digits == 1 && value != 0 { None } else { char::from_u32(value) }
    }

    /// `\x7F` or `\x{10FFFF}`, after the `x`.
    fn hexadecimal(&mut self) -> Option<u32> {
        if !self.take("{") {
            let (high, low) = (self.next()?.to_digit(16)?, self.next()?.to_digit(16)?);
            return Some(high * 16 + low);
        }
        let digits = self.take_until("}").filter(|digits| !digits.is_empty())?;
        digits.chars().try_fold(0_u32, |value, digit| {
            Some(value * 16 + digit.to_digit(16)?).filter(|value| *value <= u32::from(char::MAX))
        })
    }

    fn skip(&mut self, bytes: usize) {
        let end = self.rest.len() - bytes;
        while self.rest.len() > end && self.next().is_some() {}
    }
}

/// A named ASCII group, and Perl's space.
// Go: regexp/syntax/perl_groups.go
fn posix(name: &str) -> Option<&'static [(char, char)]> {
    Some(match name {
        "alnum" => &[('0', '9'), ('A', 'Z'), ('a', 'z')],
        "alpha" => &[('A', 'Z'), ('a', 'z')],
        "ascii" => &[('\0', '\x7F')],
        "blank" => &[('\t', '\t'), (' ', ' ')],
        "cntrl" => &[('\0', '\x1F'), ('\x7F', '\x7F')],
        "digit" => &[('0', '9')],
        "graph" => &[('!', '~')],
        "lower" => &[('a', 'z')],
        "print" => &[(' ', '~')],
        "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
        "space" => &[('\t', '\r'), (' ', ' ')],
        "upper" => &[('A', 'Z')],
        "word" => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
        "xdigit" => &[('0', '9'), ('A', 'F'), ('a', 'f')],
        "perl space" => &[('\t', '\n'), ('\x0C', '\r'), (' ', ' ')],
        _ => return None,
    })
}
